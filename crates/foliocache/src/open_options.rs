//! How a file is opened.

use foliocache_sys::Errno;
use foliocache_vfs::{OpenFlags, OpenHow};
use std::path::Path;

use crate::directory::Directory;
use crate::error::Result;
use crate::file::File;

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
    pub(crate) fn new(directory: &'a Directory) -> Self {
        Self {
            directory,
            how: NOTHING,
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
        checked(self.how)
    }
}

/// How files are opened before anything is said of it.
pub(crate) const NOTHING: OpenHow = OpenHow {
    flags: OpenFlags {
        read: false,
        write: false,
        append: false,
        truncate: false,
        uncached: false,
        direct: false,
        append_only: false,
    },
    create: false,
    exclusive: false,
    follow: true,
    mode: 0o666,
};

/// The options, if they go together.
pub(crate) fn checked(mut how: OpenHow) -> Result<OpenHow, Errno> {
    let flags = &mut how.flags;
    let truncate = flags.truncate;
    flags.truncate &= !how.exclusive;
    if truncate && (!flags.write || (flags.append && !how.exclusive)) {
        return Err(Errno::EINVAL);
    }
    flags.write |= flags.append;
    how.create |= how.exclusive;
    let useless = !(flags.read || flags.write);
    if useless || (how.create && !flags.write) {
        return Err(Errno::EINVAL);
    }
    Ok(how)
}
