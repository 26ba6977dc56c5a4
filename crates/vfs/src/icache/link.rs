//! The part of an inode that belongs to the cache: its hash link and its state word.
//!
//! # Model
//!
//! ```text
//! bit 0  NEW         being filled: finders wait until it is clear
//! bit 1  GONE        out of the hash for good: evicted, removed, or its filling failed
//! bit 2  REFERENCED  found since the clock's hand passed
//! bit 3  WAITERS     threads may sleep until NEW is clear
//! ```
//!
//! A reference is a [`SlabArc`]; the cache owns one, as a pointer in the hash. A finder under RCU takes another
//! unless there is none ([`SlabArc::try_from_borrow`]). An evictor freezes the cache's, if it is the only one, decides
//! whether the inode goes, and retires it or thaws it. A finder that gets none meanwhile looks again behind the bucket's
//! lock, under which that is decided in a bounded number of steps.
//!
//! # Invariants
//!
//! 1. The cache's own reference is given up by the thread that took the inode out of the hash, under the bucket's
//!    lock, and kept for its readers until a grace period is over.
//! 2. It is frozen and thawed under the bucket's lock. GONE is set under it and never cleared. So under the lock,
//!    an inode in the hash is neither frozen nor gone.
//! 3. NEW is set until the filling ends, and never again.
//!
//! # Memory ordering
//!
//! That of the counts. In addition, clearing NEW is `Release`, and every look at it that lets a finder continue is
//! `Acquire`: it sees the filled inode. Waiting and waking is [`LockBits`]'s.
//!
//! # Differences from Linux
//!
//! `i_count` and `I_FREEING` live under `i_lock`, which finders take. A finder that met `I_FREEING` went to sleep
//! until the inode was gone, and missed a wake-up that came before it slept: upstream had to check whether the
//! inode is still hashed. Here no finder sleeps for an inode that is being freed.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::wait::{LockBits, WaitTable};

use crate::hash::HashLink;

const NEW: u64 = 1;
const GONE: u64 = 1 << 1;
const REFERENCED: u64 = 1 << 2;
const WAITERS: u64 = 1 << 3;

const FILLING: LockBits = LockBits {
    locked: NEW,
    waiters: WAITERS,
};

/// The cache's part of an inode, made with it.
pub struct InodeLink<T> {
    pub(super) hash: HashLink<T>,
    state: AtomicU64,
}

/// The state that a finder met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// A thread is filling it.
    New,
    Filled,
    /// It is out of the hash: its filling failed, or it was removed meanwhile.
    Gone,
}

impl<T> InodeLink<T> {
    /// Whether the inode is out of its cache for good.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Relaxed: no more than an answer, or the bucket's lock is held.
        self.state.load(Ordering::Relaxed) & GONE != 0
    }

    /// Says that it is out of the hash for good.
    ///
    /// Context: the bucket's lock, under which it was taken out.
    pub(super) fn set_gone(&self) {
        // Relaxed: a thread that sees it takes the bucket's lock, or ignores the inode.
        self.state.fetch_or(GONE, Ordering::Relaxed);
    }

    /// Ends the filling, and wakes its waiters.
    pub(super) fn end_filling(&self, waits: &WaitTable) {
        FILLING.clear(&self.state, waits, NEW);
    }

    #[inline]
    pub(super) fn fill(&self) -> Fill {
        // Acquire pairs with the Release in `end_filling`.
        fill_of(self.state.load(Ordering::Acquire))
    }

    /// Sleeps until the filling is over. The caller has a reference.
    #[cold]
    pub(super) fn wait_filled(&self, waits: &WaitTable) -> Fill {
        fill_of(FILLING.wait_clear(&self.state, waits, NEW))
    }

    /// Notes that it was found, if that is not noted yet.
    #[inline]
    pub(super) fn touch(&self) {
        // Relaxed, both: only the clock's hand looks at it.
        if self.state.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.state.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Whether it was found since the last call.
    pub(super) fn take_referenced(&self) -> bool {
        // Relaxed, both: a hint.
        let referenced = self.state.load(Ordering::Relaxed) & REFERENCED != 0;
        if referenced {
            self.state.fetch_and(!REFERENCED, Ordering::Relaxed);
        }
        referenced
    }
}

fn fill_of(state: u64) -> Fill {
    match state {
        _ if state & NEW != 0 => Fill::New,
        _ if state & GONE != 0 => Fill::Gone,
        _ => Fill::Filled,
    }
}

impl<T> Default for InodeLink<T> {
    /// The link of an inode that is in no cache: new.
    fn default() -> Self {
        Self {
            hash: HashLink::default(),
            state: AtomicU64::new(NEW),
        }
    }
}
