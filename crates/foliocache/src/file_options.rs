//! How a file is opened without its directory.

use foliocache_vfs::OpenHow;

use crate::open_how;

/// How [`Cache::file`](crate::Cache::file) opens a file. As [`std::fs::OpenOptions`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use foliocache::{Cache, FileOptions};
///
/// # let temporary = tempfile::tempdir()?;
/// # let path = temporary.path().join("accounts.db");
/// let cache = Cache::builder().memory("64M").build()?;
/// let file = cache.file(&path, FileOptions::new().read(true).write(true).create(true))?;
/// file.write_all_at(b"page", 0)?;
/// file.sync_all()?; // the name, too
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileOptions {
    pub(crate) how: OpenHow,
    pub(crate) ignore_lock: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FileOptions {
    /// Neither reading nor writing, until one of these is said.
    pub fn new() -> Self {
        Self {
            how: open_how::NOTHING,
            ignore_lock: false,
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

    /// Whether every write goes to the end of the file, wherever that is by then. Implies `write`.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.how.flags.append = append;
        self
    }

    /// Whether the file is cut to nothing, once it is locked. Needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.how.flags.truncate = truncate;
        self
    }

    /// Whether the file is made if it is not there. Needs `write` or `append`. Through a symbolic link that leads nowhere it is made
    /// where the link leads.
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

    /// Permission bits of a file that is made, 0o666 unless said. The umask is taken off: the one that the process had when the cache
    /// opened the first file of the same mounted file system.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.how.mode = mode;
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

    /// Open the file for writing even if another cache has it, or a directory above it, open for writing. The one may undo what is
    /// durable through the other. A warning is logged. Off by default.
    pub fn ignore_lock(&mut self, ignore: bool) -> &mut Self {
        self.ignore_lock = ignore;
        self
    }
}
