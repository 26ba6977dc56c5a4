//! The caches of a file system, which live as long as its super block.

use super::answers::Answers;
use super::observers::Observers;
use super::removed::Removed;
use crate::dcache::DentryCache;
use crate::filesystem::FileSystem;
use crate::inode::Inode;
use foliocache_sync::Arc;

/// The caches of a file system, and the tables beside them.
pub(super) struct Caches {
    pub(super) dcache: DentryCache<Inode>,
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) observers: Observers,
    pub(super) removed: Removed,
    pub(super) answers: Answers,
}

impl Caches {
    /// Bytes charged for names and inodes.
    pub(super) fn bytes(&self) -> u64 {
        self.dcache.bytes() + self.fs.inode_bytes()
    }
}
