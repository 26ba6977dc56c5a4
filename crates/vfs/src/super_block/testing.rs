//! What tests and models see of a super block, and do to it.

use super::SuperBlock;
use crate::dcache::DentryStats;
#[cfg(any(loom, shuttle))]
use crate::filesystem::FileSystem;
#[cfg(any(loom, shuttle))]
use foliocache_sync::Arc;

impl SuperBlock {
    /// A file system whose names are not charged, and freed only by callers.
    #[cfg(any(loom, shuttle))]
    pub fn unbounded(fs: Arc<dyn FileSystem>) -> SuperBlock {
        Self::of(fs, Arc::new(crate::Unbounded))
    }

    /// Does the reaper's work: a model has none.
    #[cfg(any(loom, shuttle))]
    pub fn give_up_removed(&self) {
        self.caches.give_up_removed();
    }

    /// Gives up all unheld names and inodes, whether or not memory is short. Waits for RCU readers.
    #[doc(alias = "drop_caches")]
    pub fn evict_unused(&self) {
        self.caches.dcache.evict_all();
        self.caches.dcache.wait_for_limbo();
        self.caches.fs.shrink_inodes(usize::MAX);
    }

    /// The contents and counters of the dentry cache.
    pub fn dentry_stats(&self) -> DentryStats {
        self.caches.dcache.stats()
    }
}
