//! The memory of a file system's names and inodes, and how they give it up.
//!
//! # Model
//!
//! A dentry keeps its inode, so names go first. Then the file system evicts inodes without holders. Both are freed
//! a grace period after they are given up.
//!
//! If that is too little, the rest is held. A mount holds inodes for its kernel, and can have them given back: it
//! is asked to ([`InodeHolder`]), does so in its own time, and then gives up the inodes that came back
//! ([`SuperBlock::give_up`](super::SuperBlock::give_up)).
//!
//! # Locking
//!
//! `caches` is read by reclaim, tried only, and taken for writing once, when the file system goes. `holders`
//! is a [`Leaf`](Rank::Leaf).

use super::caches::Caches;
use super::removed::LOOK;
use crate::dcache::DENTRY_BYTES;
use crate::inode::inode_bytes;
use foliocache_mm::{GivenUp, Shrinker};
use foliocache_sync::rank::{LeafMutex, Rank, RankedRwLock};
use foliocache_sync::{Arc, Weak};

/// A holder of inodes on behalf of others, which can have them given back.
pub trait InodeHolder: Send + Sync {
    /// About this many of its inodes are wanted back, with their names; returns whether some may
    /// come.
    ///
    /// Context: that of reclaim: does not wait, and takes no locks but leaves.
    fn want_back(&self, nr: usize) -> bool;
}

/// Memory reclaim's view of a `SuperBlock`; it is empty once that is dropped.
///
/// Reclaim uses the caches under the lock and takes no reference out of it, so it never drops the last reference to
/// a file system, whose end may need memory.
pub(super) struct Shrinkable {
    caches: RankedRwLock<{ Rank::Shrinker as u8 }, Option<Arc<Caches>>>,
    holders: LeafMutex<Vec<Weak<dyn InodeHolder>>>,
}

impl Shrinkable {
    pub(super) fn new(caches: &Arc<Caches>) -> Shrinkable {
        Shrinkable {
            caches: RankedRwLock::new(Some(Arc::clone(caches))),
            holders: LeafMutex::default(),
        }
    }

    pub(super) fn add_holder(&self, holder: Weak<dyn InodeHolder>) {
        let mut holders = self.holders.lock();
        holders.retain(|holder| holder.strong_count() > 0);
        holders.push(holder);
    }

    fn want_back(&self, nr: usize) -> bool {
        let holders: Vec<Arc<dyn InodeHolder>> = {
            let holders = self.holders.lock();
            holders.iter().filter_map(Weak::upgrade).collect()
        };
        let each = nr.div_ceil(holders.len().max(1));
        // All of them are asked.
        let asked: Vec<bool> = holders
            .iter()
            .map(|holder| holder.want_back(each))
            .collect();
        asked.contains(&true)
    }

    /// Runs `with` on the caches; nothing where they are gone, or going.
    fn with<R: Default>(&self, with: impl FnOnce(&Caches) -> R) -> R {
        let caches = self.caches.try_read();
        let caches = caches.as_deref().and_then(Option::as_ref);
        caches.map_or_else(R::default, |caches| with(caches))
    }

    /// Frees entries that were given up and that no reader can see; returns how many still wait. Looks for removals by
    /// others if that was not done for [`LOOK`].
    pub(super) fn reap(&self) -> usize {
        self.with(|caches| {
            caches.fs.belief().read_if_older(LOOK);
            caches.give_up_removed();
            caches.dcache.reap() + caches.fs.reap()
        })
    }

    /// From here on there is nothing to give up. Waits for reclaim and the reaper.
    pub(super) fn end(&self) {
        *self.caches.write() = None;
    }
}

impl Shrinker for Shrinkable {
    fn bytes(&self) -> u64 {
        self.with(Caches::bytes)
    }

    fn spare(&self) -> u64 {
        self.with(|caches| {
            // A file takes a name and an inode, and neither has room that the other left.
            let files = caches.dcache.spare().min(caches.fs.spare_inodes());
            files * (DENTRY_BYTES + inode_bytes())
        })
    }

    fn shrink(&self, bytes: u64) -> GivenUp {
        self.with(|caches| {
            let (before, mut asked) = (caches.bytes(), false);
            let (names, inodes) = (caches.dcache.bytes(), caches.fs.inode_bytes());
            let part = |held: u64, each: u64| {
                let all = u128::from((names + inodes).max(1));
                let part = u128::from(bytes) * u128::from(held) / all;
                usize::try_from(part as u64 / each + 1).unwrap_or(usize::MAX)
            };
            let wanted = part(names, DENTRY_BYTES);
            let gone_names = caches.dcache.shrink(wanted);
            let missing_names = wanted.saturating_sub(gone_names);
            // It does not wait for other threads: the caller may reclaim for another file system, which this store must not
            // hold up.
            caches.dcache.flush_limbo();
            let wanted = part(inodes, inode_bytes());
            let gone_inodes = caches.fs.shrink_inodes(wanted);
            let missing_inodes = wanted.saturating_sub(gone_inodes);
            let missing = missing_names.max(missing_inodes);
            if missing > 0 && names + inodes > 0 {
                asked = self.want_back(missing);
            }
            GivenUp {
                bytes: before.saturating_sub(caches.bytes()),
                // The page of an entry that went may be in use still, or another thread frees it.
                more: asked || gone_names + gone_inodes > 0,
            }
        })
    }
}
