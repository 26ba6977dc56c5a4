//! How a file is opened.

use foliocache_sys::Errno;
use foliocache_vfs::OpenFlags;
use std::path::Path;

use crate::directory::Directory;
use crate::error::Result;
use crate::file::File;

/// How a file is to be opened; from [`Directory::open_options`]. As those of `std::fs`.
#[derive(Clone, Debug)]
#[must_use = "options open nothing before `open`"]
pub struct OpenOptions<'a> {
    directory: &'a Directory,
    flags: OpenFlags,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u32,
}

impl<'a> OpenOptions<'a> {
    pub(crate) fn new(directory: &'a Directory) -> Self {
        Self {
            directory,
            flags: OpenFlags::default(),
            create: false,
            create_new: false,
            mode: 0o666,
        }
    }

    /// Whether the file can be read.
    pub fn read(mut self, read: bool) -> Self {
        self.flags.read = read;
        self
    }

    /// Whether the file can be written.
    pub fn write(mut self, write: bool) -> Self {
        self.flags.write = write;
        self
    }

    /// Whether every write goes to the end of the file, wherever that is by then. Implies
    /// `write`.
    pub fn append(mut self, append: bool) -> Self {
        self.flags.append = append;
        self
    }

    /// Whether the file is cut to nothing. Needs `write`.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.flags.truncate = truncate;
        self
    }

    /// Whether the file is made if it is not there. Needs `write` or `append`.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether the file is made, and must not be there yet, not even as a symbolic link. Needs
    /// `write` or `append`; `create` and `truncate` then say nothing.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is made, before the umask is taken off. 0o666 unless said.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Opens the file at `path`, relative to the directory.
    ///
    /// May block on I/O.
    ///
    /// # Errors
    /// `EINVAL` for options that do not go together; `ENOENT`, `EEXIST`, `EISDIR`, `EACCES`,
    /// `EROFS`, `ELOOP`; [`Error::Escape`](crate::Error::Escape); those of the backing store.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.directory.open_with(path.as_ref(), self)
    }

    /// The flags, if they go together.
    pub(crate) fn flags(&self) -> Result<OpenFlags, Errno> {
        let mut flags = self.flags;
        let (truncate, create) = (flags.truncate, self.create || self.create_new);
        flags.truncate &= !self.create_new;
        if (truncate && !flags.write) || (truncate && flags.append && !self.create_new) {
            return Err(Errno::EINVAL);
        }
        flags.write |= flags.append;
        let useless = !(flags.read || flags.write);
        if useless || (create && !flags.write) {
            return Err(Errno::EINVAL);
        }
        Ok(flags)
    }
}
