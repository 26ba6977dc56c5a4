//! Objects without a memory bound, and whole listings, for tests and benchmarks.

use crate::bound::MetadataBound;
use crate::filesystem::OpenDirectory;
use crate::slab::{SharedSlab, SlabArc};
use crate::types::DirEntryBuf;
use foliocache_sync::Arc;
use foliocache_sys::Errno;

/// Has room for everything, and counts nothing: for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unbounded;

impl MetadataBound for Unbounded {
    fn charge(&self, _bytes: u64) -> bool {
        true
    }

    fn uncharge(&self, _bytes: u64) {}
}

impl<T> SlabArc<T> {
    /// An object in a private slab, without a charge: for tests.
    pub fn new(value: T) -> Self {
        SharedSlab::new(Arc::new(Unbounded)).alloc(value)
    }
}

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
