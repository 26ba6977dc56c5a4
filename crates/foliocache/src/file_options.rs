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
    /// Neither reading nor writing, until one of them is set.
    pub fn new() -> Self {
        Self {
            how: open_how::nothing(),
            ignore_lock: false,
        }
    }

    open_how::setters!("the cache opened the first file of the same mounted file system.");

    /// Open the file for writing even if another cache has it, or a directory above it, open for writing. Each may
    /// undo changes that are durable through the other. A warning is logged. Off by default.
    pub fn ignore_lock(&mut self, ignore: bool) -> &mut Self {
        self.ignore_lock = ignore;
        self
    }
}
