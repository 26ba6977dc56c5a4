//! Giving inodes back: the clock's hand and its second chance.
//!
//! # Model
//!
//! The hand passes the pages of the slab in turn, so that pages come free. For each inode in them:
//!
//! ```text
//!  found since the last round?      spare it, once
//!  does it have a holder?            leave it
//!  else, frozen:  judge says yes    unhash it; it is freed after its readers
//!                            no     leave it
//! ```
//!
//! # Locking
//!
//! `judge` runs under the bucket's lock, the freeing with no lock held.
//!
//! # Differences from Linux
//!
//! There is no LRU list (`s_inode_lru`), so an inode that becomes unused, or used again, touches no
//! shared list. `docs/decisions/0015-inode-cache.md` has the cost of that.
//!
//! # Safety
//!
//! The cache's own reference is frozen and taken back by invariants 1 and 2 of [`link`](super::link).
#![allow(unsafe_code)]

use super::{CachedInode, InodeCache};
use foliocache_mm::slab::SlabArc;

impl<T: CachedInode> InodeCache<T> {
    /// Moves the clock hand over pages of inodes, until about `nr` are evicted or a multiple of that was passed. It
    /// evicts inodes without holders that were not found since the last pass, or of which few would keep their page
    /// (`Slab::shrink`), if `judge` says that nothing would be lost. Returns how many were evicted; their memory
    /// comes back when their readers are gone.
    ///
    /// Several threads may do this at once: they share the hand.
    ///
    /// Context: no read section, and no lock that the drop of an inode needs; may wait for readers.
    #[doc(alias = "prune_icache_sb")]
    pub fn shrink(&self, nr: usize, mut judge: impl FnMut(&T) -> bool) -> usize {
        let take_referenced = |inode: &T| CachedInode::link(inode).take_referenced();
        let evict = |inode: &T| self.try_evict(inode, 1, &mut judge);
        // Inodes are held by names, which were given up before, and by references that wait for
        // readers, which ends.
        let evicted = self
            .slab
            .0
            .shrink(nr, false, is_held, take_referenced, evict);
        self.limbo.tend();
        self.evicted.add(evicted as i64);
        evicted
    }

    /// Drops a reference, and evicts the inode if that was the last one but the cache's and `judge` allows it, even if the
    /// inode was found lately. Returns whether it did.
    ///
    /// Context: as for [`shrink`](Self::shrink).
    pub fn evict(&self, inode: SlabArc<T>, mut judge: impl FnMut(&T) -> bool) -> bool {
        let evicted = self.try_evict(&inode, 2, &mut judge);
        if evicted {
            // It was frozen with the cache's own.
            std::mem::forget(inode);
            self.evicted.add(1);
        }
        evicted
    }

    /// Frees waiting objects whose readers are gone, without waiting; returns how many inodes still wait.
    ///
    /// Context: no lock that the drop of an inode needs.
    pub fn reap(&self) -> usize {
        self.limbo.advance()
    }

    /// Waits for readers, then frees the objects given up before the call, except those that other
    /// threads have begun to free.
    ///
    /// Context: as for [`reap`](Self::reap); waits for readers.
    pub fn flush_limbo(&self) {
        self.limbo.flush();
    }

    /// Waits until everything that was given up before the call is freed, also by others.
    ///
    /// Context: as for [`flush_limbo`](Self::flush_limbo).
    pub fn wait_for_limbo(&self) {
        self.limbo.barrier();
    }

    /// Evicts an inode that has only these `references`, the cache's and the caller's.
    ///
    /// Context: in the read section in which it was met, or with a reference.
    fn try_evict(&self, inode: &T, references: u32, judge: &mut impl FnMut(&T) -> bool) -> bool {
        let link = CachedInode::link(inode);
        let mut bucket = self.hash.lock(link.hash.hash());
        if link.is_gone() {
            return false;
        }
        // SAFETY: in the hash, whose lock is held: one of them is the cache's, the other the caller's.
        if !unsafe { SlabArc::freeze(inode, references) } {
            return false;
        }
        if !judge(inode) {
            // SAFETY: frozen above.
            unsafe { SlabArc::thaw(inode, references) };
            return false;
        }
        let removed = bucket.remove(inode);
        debug_assert!(removed, "neither gone nor in the hash");
        Self::note_gone(inode);
        drop(bucket);
        // SAFETY: frozen above; the cache's was in the hash, and the caller forgets its own.
        self.limbo.retire(unsafe { SlabArc::retire_frozen(inode) });
        true
    }
}

/// Whether it has a holder, or a thread decides about its eviction.
///
/// Context: in the read section in which it was met.
fn is_held<T: CachedInode>(inode: &T) -> bool {
    // SAFETY: met in this read section.
    unsafe { SlabArc::count_of(inode) != 1 }
}
