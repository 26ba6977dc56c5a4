//! Whole listings, for tests and benchmarks.

use crate::filesystem::OpenDirectory;
use crate::types::DirEntryBuf;
use foliocache_sys::Errno;

impl dyn OpenDirectory {
    /// All entries, in order.
    ///
    /// # Errors
    /// As [`OpenDirectory::read`].
    pub fn read_all(&self) -> Result<Vec<DirEntryBuf>, Errno> {
        let mut all = Vec::new();
        self.read(0, &mut |entry| {
            all.push(entry.into());
            true
        })?;
        Ok(all)
    }
}
