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
            how: open_how::NOTHING,
        }
    }

    /// Whether the file can be read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.how.flags.read = read;
        self
    }

    /// Whether the file can be written.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.how.flags.write = write;
        self
    }

    /// Whether every write goes to the end of the file, wherever that is by then. Implies
    /// `write`.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.how.flags.append = append;
        self
    }

    /// Whether the file is cut to nothing. Needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.how.flags.truncate = truncate;
        self
    }

    /// Whether the file is made if it is not there. Needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.how.create = create;
        self
    }

    /// Whether the file is made, and must not be there yet, not even as a symbolic link. Needs
    /// `write` or `append`; `create` and `truncate` then say nothing.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.how.exclusive = create_new;
        self
    }

    /// Whether all reads and writes through the handle are
    /// [uncached](crate::IoOptions::uncached).
    pub fn uncached(&mut self, uncached: bool) -> &mut Self {
        self.how.flags.uncached = uncached;
        self
    }

    /// Whether all reads and writes through the handle are
    /// [direct](crate::IoOptions::direct).
    pub fn direct(&mut self, direct: bool) -> &mut Self {
        self.how.flags.direct = direct;
        self
    }

    /// Permission bits of a file that is made. The umask is taken off: the one that the process had when the directory was first opened.
    /// 0o666 unless said.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.how.mode = mode;
        self
    }

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
        let operation = match options.how.create || options.how.exclusive {
            true => Operation::Create,
            false => Operation::Open,
        };
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
