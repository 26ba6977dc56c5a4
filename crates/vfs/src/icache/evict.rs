//! Giving inodes back: the clock's hand, its second chance, and the end of a cache.
//!
//! # Model
//!
//! The hand passes the pages of the slab in turn, so that pages come free. For each inode in them:
//!
//! ```text
//!  found since the last round?   spare it, once
//!  held by somebody?             leave it
//!  else, frozen:  judge ──▶ Evict        unhash it; it is freed after its readers
//!                       ──▶ Keep         leave it
//!                       ──▶ WriteFirst   with a reference and without locks: write, then once more
//! ```
//!
//! What is written is in use like any other inode meanwhile: whoever finds it has it, without waiting,
//! and then it is not evicted.
//!
//! # Locking
//!
//! `judge` runs under the bucket's lock; `write` and the freeing run with no lock held.
//!
//! # Differences from Linux
//!
//! There is no LRU list (`s_inode_lru`), so making an inode unused, or used again, touches no shared
//! list. What that costs is in `docs/decisions/0015-inode-cache.md`.
//!
//! # Safety
//!
//! The cache's own reference is taken back when an inode leaves the hash, by invariant 1 of
//! [`link`].
#![allow(unsafe_code)]

use std::fmt;

use foliocache_sync::rcu::{self, RcuReadGuard};

use super::{CachedInode, InodeCache, link};
use crate::hash::Hand;
#[cfg(not(any(loom, shuttle)))]
use crate::slab;
use crate::slab::SlabArc;

/// Buckets that are passed in one read section.
const STRETCH: usize = 16;
/// Pages to pass for each that is to be emptied: marks are cleared first.
#[cfg(not(any(loom, shuttle)))]
const EACH: usize = 8;

/// What a file system says of an inode that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing would be lost.
    Evict,
    /// It has to stay, or is worth it.
    Keep,
    /// Something of it has to be written first.
    WriteFirst,
}

/// What became of an inode that the hand came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Evicted,
    Kept,
    Dirty,
}

impl<T: CachedInode> InodeCache<T> {
    /// Moves the clock's hand on over pages of inodes, until about `nr` are evicted or some times as many were passed:
    /// those that nobody holds, that were not found since the hand last passed, or few would keep their page
    /// (`slab::cold`), and that `judge` gives free. What it wants written is
    /// handed to `write`, then judged once more. Returns how many were evicted; their memory comes back when
    /// their readers are gone.
    ///
    /// Several threads may do this at once: they share the hand.
    ///
    /// Context: no read section, and no lock that `write` or the drop of an inode needs; may wait for
    /// readers.
    #[doc(alias = "prune_icache_sb")]
    pub fn shrink(
        &self,
        nr: usize,
        mut judge: impl FnMut(&T) -> Verdict,
        mut write: impl FnMut(&SlabArc<T>),
    ) -> usize {
        let mut evicted = 0;
        for _ in 0..self.budget(nr) {
            if evicted >= nr {
                break;
            }
            let rcu = rcu::read_lock();
            let (gone, dirty) = self.evict_each(self.cold(&rcu), &mut judge);
            drop(rcu);
            evicted += gone + self.write_and_evict(dirty, &mut judge, &mut write);
        }
        evicted
    }

    /// Pages to pass for so many inodes.
    #[cfg(not(any(loom, shuttle)))]
    fn budget(&self, nr: usize) -> usize {
        let slab = self.slab.slab();
        let pages = nr.div_ceil(slab.per_page());
        pages.saturating_mul(EACH).min(slab.round())
    }

    /// What is to be evicted of the page that the hand comes to.
    #[cfg(not(any(loom, shuttle)))]
    fn cold<'g>(&'g self, rcu: &'g RcuReadGuard) -> Vec<&'g T> {
        let slab = self.slab.slab();
        let Some(page) = slab.next_page(rcu) else {
            return Vec::new();
        };
        let take_referenced = |inode: &T| CachedInode::link(inode).take_referenced();
        slab::cold(page, is_held, take_referenced, slab.per_page())
    }

    /// In a model objects lie in no pages: the hash is gone round.
    #[cfg(any(loom, shuttle))]
    fn budget(&self, nr: usize) -> usize {
        nr.min(self.hash.buckets())
    }

    #[cfg(any(loom, shuttle))]
    fn cold<'g>(&'g self, rcu: &'g RcuReadGuard) -> Vec<&'g T> {
        let mut unused = self.unused(&self.hand, 1, rcu);
        unused.retain(|inode| !CachedInode::link(*inode).take_referenced());
        unused
    }

    /// Evicts an inode of which nobody but the caller has a reference, if `judge` gives it free; whether it did.
    /// Its memory comes back when the caller has dropped it and its readers are gone.
    ///
    /// Context: as for [`shrink`](Self::shrink).
    pub fn evict(&self, inode: &SlabArc<T>, mut judge: impl FnMut(&T) -> Verdict) -> bool {
        let evicted = self.try_evict(inode, 1, &mut judge) == Outcome::Evicted;
        if evicted {
            self.evicted.add(1);
        }
        evicted
    }

    /// Evicts all that nobody holds, whether it was found lately or not; with `judge` and `write` as for
    /// [`shrink`](Self::shrink). For unmounting: call it when nobody looks anything up any more. Waits until
    /// what was evicted is freed, and returns how many inodes are left.
    ///
    /// Context: as for [`shrink`](Self::shrink); waits for readers.
    #[doc(alias = "evict_inodes")]
    pub fn evict_all(
        &self,
        mut judge: impl FnMut(&T) -> Verdict,
        mut write: impl FnMut(&SlabArc<T>),
    ) -> usize {
        let hand = Hand::new();
        for _ in 0..self.hash.buckets().div_ceil(STRETCH) {
            let rcu = rcu::read_lock();
            let (_, dirty) = self.evict_each(self.unused(&hand, STRETCH, &rcu), &mut judge);
            drop(rcu);
            self.write_and_evict(dirty, &mut judge, &mut write);
        }
        self.limbo.flush();
        self.len()
    }

    /// Frees what waits for its readers, as far as they are gone, without waiting for any; how many inodes
    /// still wait.
    ///
    /// Context: no lock that the drop of an inode needs.
    pub fn reap(&self) -> usize {
        self.limbo.advance();
        self.limbo.len()
    }

    /// Waits for readers, then frees everything that was given up before the call.
    ///
    /// Context: as for [`reap`](Self::reap); waits for readers.
    pub fn wait_for_limbo(&self) {
        self.limbo.flush();
    }

    /// The inodes in some buckets that nobody holds, and so many buckets at least.
    fn unused<'g>(&'g self, hand: &Hand, buckets: usize, rcu: &'g RcuReadGuard) -> Vec<&'g T> {
        let mut unused: Vec<&T> = Vec::new();
        self.hash
            .scan(hand, buckets, |inode| unused.push(inode), rcu);
        unused.retain(|inode| !is_held(*inode));
        unused
    }

    /// Evicts those that are given free; how many, and those that have to be written first.
    ///
    /// Context: in the read section in which they were met.
    fn evict_each(
        &self,
        unused: Vec<&T>,
        judge: &mut impl FnMut(&T) -> Verdict,
    ) -> (usize, Vec<SlabArc<T>>) {
        let mut evicted = 0;
        let mut dirty = Vec::new();
        for inode in unused {
            match self.try_evict(inode, 0, judge) {
                Outcome::Evicted => evicted += 1,
                Outcome::Kept => (),
                // SAFETY: met in this read section.
                Outcome::Dirty => dirty.extend(unsafe { link::get(inode, false) }),
            }
        }
        self.evicted.add(evicted as i64);
        (evicted, dirty)
    }

    /// Writes inodes and evicts those that are then given free; how many. Frees what was evicted before.
    fn write_and_evict(
        &self,
        dirty: Vec<SlabArc<T>>,
        judge: &mut impl FnMut(&T) -> Verdict,
        write: &mut impl FnMut(&SlabArc<T>),
    ) -> usize {
        let mut evicted = 0;
        for inode in dirty {
            write(&inode);
            evicted += usize::from(self.evict(&inode, &mut *judge));
        }
        self.limbo.tend();
        evicted
    }

    /// Evicts an inode that nobody has references of but the cache, and `ours` by the caller.
    ///
    /// Context: in the read section in which it was met, or with a reference.
    fn try_evict(&self, inode: &T, ours: usize, judge: &mut impl FnMut(&T) -> Verdict) -> Outcome {
        let link = CachedInode::link(inode);
        let mut bucket = self.hash.lock(link.hash.hash());
        // SAFETY: not gone, which `freeze` finds out, so it is in the hash; the lock is held.
        if !unsafe { link::freeze(inode, ours) } {
            return Outcome::Kept;
        }
        match judge(inode) {
            Verdict::Evict => {
                let removed = bucket.remove(inode);
                debug_assert!(removed, "neither gone nor in the hash");
                // SAFETY: just taken out.
                let own = unsafe { link::from_cache(inode) };
                drop(bucket);
                self.limbo.retire(own);
                Outcome::Evicted
            }
            verdict => {
                link::thaw(inode);
                match verdict {
                    Verdict::WriteFirst => Outcome::Dirty,
                    _ => Outcome::Kept,
                }
            }
        }
    }
}

/// Whether it is in use, or the cache's no more.
///
/// Context: in the read section in which it was met.
fn is_held<T: CachedInode>(inode: &T) -> bool {
    // SAFETY: met in this read section.
    !CachedInode::link(inode).is_idle() || unsafe { link::count(inode) } > 1
}

impl<T: CachedInode> Drop for InodeCache<T> {
    fn drop(&mut self) {
        // Nobody looks anything up: that borrows the cache.
        self.hash.drain(|inode| {
            // SAFETY: valid until the cache's reference is dropped, below.
            let inode = unsafe { inode.as_ref() };
            // SAFETY: just taken out.
            drop(unsafe { link::from_cache(inode) });
        });
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evict => "evict",
            Self::Keep => "keep",
            Self::WriteFirst => "write first",
        })
    }
}
