//! Opening files of a directory.

use foliocache_sys::Errno;
use foliocache_vfs::{OpenFile, OpenHow};
use std::path::Path;

use super::Directory;
use crate::error::{Operation, Result};
use crate::file::File;
use crate::open_how;

/// How a file is to be opened; from [`Directory::open_options`]. As [`std::fs::OpenOptions`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let dir = cache.memfs()?;
/// # let keep = false;
/// let mut options = dir.open_options();
/// options.write(true).create(true);
/// if !keep {
///     options.truncate(true);
/// }
/// let file = options.open("list")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions<'a> {
    directory: &'a Directory,
    pub(crate) how: OpenHow,
}

impl<'a> OpenOptions<'a> {
    fn new(directory: &'a Directory) -> Self {
        Self {
            directory,
            how: open_how::nothing(),
        }
    }

    open_how::setters!("the directory was first opened.");

    /// Opens the file at `path`, relative to the directory.
    ///
    /// May block on I/O. An open file takes some hundred bytes of the bound.
    ///
    /// # Errors
    /// `ENOMEM` if the bound has no room for it; `EINVAL` for options that do not go together; `ENOENT`, `EEXIST`, `EISDIR`, `EACCES`,
    /// `EROFS`, `ELOOP`; [`Error::Escape`](crate::Error::Escape); those of the backing store.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.directory.open_with(path.as_ref(), self)
    }

    /// The options, if they go together.
    pub(crate) fn checked(&self) -> Result<OpenHow, Errno> {
        open_how::checked(self.how)
    }
}

impl Directory {
    /// Options for opening a file.
    pub fn open_options(&self) -> OpenOptions<'_> {
        OpenOptions::new(self)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_options().read(true).open(path)
    }

    /// Opens a file for reading and writing; makes it if it does not exist, truncates it if it does.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        let mut options = self.open_options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(path)
    }

    /// Makes a file that must not exist yet, and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        let mut options = self.open_options();
        options.read(true).write(true).create_new(true).open(path)
    }

    /// Opens a file for writing at its end; makes it if it does not exist.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn append(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_options().append(true).create(true).open(path)
    }

    pub(crate) fn open_with(&self, path: &Path, options: &OpenOptions<'_>) -> Result<File> {
        let operation = open_how::operation(&options.how);
        let how = options
            .checked()
            .and_then(|how| match self.rights.read_only {
                true if how.flags.write => Err(Errno::EROFS),
                _ => Ok(how),
            });
        let how = how.map_err(|errno| self.error(operation, path, errno))?;
        let open = self.open_how(operation, path, how)?;
        let (mount, rights) = (&self.vfs_path.mount, self.rights.clone());
        Ok(File::new(open, mount, rights, self.join(path)))
    }

    pub(crate) fn open_how(
        &self,
        operation: Operation,
        path: &Path,
        how: OpenHow,
    ) -> Result<OpenFile> {
        self.run(operation, path, |namei, path| namei.open(path, how))
    }
}
