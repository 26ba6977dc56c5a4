//! Giving inodes back: the clock's hand, its second chance, and the end of a cache.
//!
//! # Model
//!
//! The hand passes buckets of the hash in turn. For each inode in them:
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

use foliocache_sync::{Arc, rcu};

use super::{CachedInode, InodeCache, link};
use crate::hash::Hand;

/// Buckets that are passed in one read section.
const STRETCH: usize = 16;
/// Buckets that are passed at most for each inode that is to be looked at: the table may be nearly empty.
const EMPTY: usize = 8;

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
    /// Moves the clock's hand on past some `nr_to_scan` inodes, and evicts those that nobody holds, that were
    /// not found since the hand last passed, and that `judge` gives free. What it wants written is
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
        nr_to_scan: usize,
        mut judge: impl FnMut(&T) -> Verdict,
        mut write: impl FnMut(&Arc<T>),
    ) -> usize {
        let most = self
            .hash
            .buckets()
            .min(nr_to_scan.saturating_mul(EMPTY).max(STRETCH));
        let mut scanned = 0;
        let mut passed = 0;
        let mut evicted = 0;
        while scanned < nr_to_scan && passed < most {
            // About an inode a bucket.
            let stretch = STRETCH.min(most - passed).min(nr_to_scan - scanned);
            let (seen, gone) = self.pass(&self.hand, stretch, true, &mut judge, &mut write);
            passed += stretch;
            scanned += seen;
            evicted += gone;
        }
        evicted
    }

    /// Evicts an inode of which nobody but the caller has a reference, if `judge` gives it free; whether it did.
    /// Its memory comes back when the caller has dropped it and its readers are gone.
    ///
    /// Context: as for [`shrink`](Self::shrink).
    pub fn evict(&self, inode: &Arc<T>, mut judge: impl FnMut(&T) -> Verdict) -> bool {
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
        mut write: impl FnMut(&Arc<T>),
    ) -> usize {
        let hand = Hand::new();
        let mut left = self.hash.buckets();
        while left > 0 {
            let stretch = STRETCH.min(left);
            self.pass(&hand, stretch, false, &mut judge, &mut write);
            left -= stretch;
        }
        self.limbo.flush();
        self.accounts.release(u64::MAX);
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

    /// Passes some buckets; how many inodes were looked at, and how many evicted.
    fn pass(
        &self,
        hand: &Hand,
        buckets: usize,
        spare_referenced: bool,
        judge: &mut impl FnMut(&T) -> Verdict,
        write: &mut impl FnMut(&Arc<T>),
    ) -> (usize, usize) {
        let mut scanned = 0;
        let mut evicted = 0;
        let mut dirty = Vec::new();
        let rcu = rcu::read_lock();
        let visit = |inode: &T| {
            scanned += 1;
            // SAFETY: met in this read section.
            let held = || unsafe { link::count(inode) } > 1;
            if !CachedInode::link(inode).pass(spare_referenced) || held() {
                return;
            }
            match self.try_evict(inode, 0, judge) {
                Outcome::Evicted => evicted += 1,
                Outcome::Kept => (),
                // SAFETY: met in this read section.
                Outcome::Dirty => dirty.extend(unsafe { link::get(inode, false) }),
            }
        };
        self.hash.scan(hand, buckets, visit, &rcu);
        drop(rcu);
        for inode in dirty {
            write(&inode);
            if self.try_evict(&inode, 1, judge) == Outcome::Evicted {
                evicted += 1;
            }
        }
        self.evicted.add(evicted as i64);
        self.limbo.tend();
        (scanned, evicted)
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
                link.set_gone();
                drop(bucket);
                // SAFETY: just taken out.
                self.limbo.retire(unsafe { link::from_cache(inode) });
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
