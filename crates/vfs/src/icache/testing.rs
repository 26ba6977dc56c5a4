//! What tests see of the inode cache.

use super::{CachedInode, InodeCache};

/// Figures of a cache; see [`InodeCache::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InodeCacheStats {
    /// Inodes that can be found.
    pub inodes: u64,
    /// Locks of buckets that were taken, for any purpose.
    pub bucket_locks: u64,
    /// Inodes that were evicted: not those removed.
    pub evicted: u64,
    /// Waits for an inode that was being filled.
    pub waits: u64,
    /// Inodes out of the hash that wait for their readers.
    pub limbo: u64,
    /// Inodes in pages that the bound had no room for.
    pub uncharged: u64,
    /// Bytes charged for the pages that inodes lie in.
    pub inode_bytes: u64,
}

impl<T: CachedInode> InodeCache<T> {
    /// Figures. Costs some thousand loads.
    #[must_use]
    pub fn stats(&self) -> InodeCacheStats {
        InodeCacheStats {
            inodes: self.hash.len() as u64,
            bucket_locks: self.hash.locks_taken(),
            evicted: self.evicted.sum_positive(),
            waits: self.waited.sum_positive(),
            limbo: self.limbo.len() as u64,
            uncharged: self.uncharged(),
            inode_bytes: self.slab.0.bytes(),
        }
    }
}
