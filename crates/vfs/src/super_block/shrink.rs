//! What a file system's names and inodes take, and how they give it up.
//!
//! # Model
//!
//! A dentry keeps its inode, so names go first; what then nobody holds is evicted by the file system.
//! Both are freed a grace period after they are given up.
//!
//! # Locking
//!
//! `caches` is read by reclaim, tried only, and taken for writing once, when the file system goes.

use crate::dcache::{DENTRY_BYTES, DentryCache};
use crate::filesystem::FileSystem;
use crate::inode::{Inode, inode_bytes};
use foliocache_mm::Shrinker;
use foliocache_sync::Arc;
use foliocache_sync::rank::{Rank, RankedRwLock};

/// What takes memory.
pub(super) struct Caches {
    pub(super) dcache: DentryCache<Inode>,
    pub(super) fs: Arc<dyn FileSystem>,
}

/// What memory reclaim knows of a `SuperBlock`; nothing once that is dropped.
///
/// Reclaim uses the caches under the lock and takes no reference out of it, so that it never is the last to
/// let go of a file system, whose end may need memory.
pub(super) struct Shrinkable {
    caches: RankedRwLock<Option<Arc<Caches>>>,
}

impl Shrinkable {
    pub(super) fn new(caches: &Arc<Caches>) -> Shrinkable {
        Shrinkable {
            caches: RankedRwLock::new(Rank::Shrinker, Some(Arc::clone(caches))),
        }
    }

    /// From here on there is nothing to give up. Waits for reclaim.
    pub(super) fn end(&self) {
        *self.caches.write() = None;
    }
}

impl Shrinker for Shrinkable {
    fn bytes(&self) -> u64 {
        let Some(caches) = self.caches.try_read() else {
            return 0;
        };
        let caches = caches.as_ref();
        caches.map_or(0, |caches| caches.dcache.bytes() + caches.fs.inode_bytes())
    }

    fn shrink(&self, bytes: u64) {
        let Some(caches) = self.caches.try_read() else {
            return;
        };
        let Some(caches) = caches.as_ref() else {
            return;
        };
        let (names, inodes) = (caches.dcache.bytes(), caches.fs.inode_bytes());
        let part = |held: u64, each: u64| {
            let all = u128::from((names + inodes).max(1));
            let part = u128::from(bytes) * u128::from(held) / all;
            usize::try_from(part as u64 / each + 1).unwrap_or(usize::MAX)
        };
        caches.dcache.shrink(part(names, DENTRY_BYTES));
        caches.dcache.wait_for_limbo();
        caches.fs.shrink_inodes(part(inodes, inode_bytes()));
    }
}
