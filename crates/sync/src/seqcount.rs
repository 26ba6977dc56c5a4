//! Sequence counter: readers that write nothing and start over when a writer came between.
//!
//! # Model
//!
//! ```text
//! writer (holds a lock)            reader
//!   seq = odd                        start = seq, until it is even
//!   release fence                    (acquire)
//!   store the data                   load the data
//!   seq = next even (release)        acquire fence
//!                                    seq == start? else start over
//! ```
//!
//! # Invariants
//!
//! 1. `seq` is odd exactly while a [`SeqWriteGuard`] lives, and grows by two with each.
//! 2. There is one writer at a time: the guard borrows the proof of a lock exclusively.
//! 3. A reader may see any mixture of old and new data between its two looks; it must not follow a
//!    pointer nor trust a length before [`SeqCount::read_retry`] said `false`, unless something else
//!    (an RCU read section) makes that safe.
//!
//! # Locking
//!
//! The writer's lock protects the data; this counter only tells readers of a change. Readers spin, and yield the
//! processor, while a writer is inside, whatever locks they hold. So an open write section counts as a lock of rank
//! [`SeqCount`](Rank::SeqCount): no lock is taken inside it. A section that takes locks
//! ([`SeqCount::write_ranked`]) has an outer rank, and its readers hold no lock from that rank on.
//!
//! # Memory ordering
//!
//! The data itself is read and written with `Relaxed` atomics: the counter's fences order it. The
//! release fence in [`SeqCount::write`] pairs with the acquire fence in [`SeqCount::read_retry`] (a reader that saw
//! new data sees the odd number); the `Release` store at the end of the section pairs with the `Acquire`
//! load in [`SeqCount::try_read_begin`] (a reader that starts at the new number sees all of the new data).
//!
//! # Differences from Linux
//!
//! `seqcount_spinlock_t` and its kin name the lock in the type, for lockdep; here the signature asks for
//! it, as an exclusive borrow of its guard.

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::rank::{self, How, Rank, RankToken, Ranked};
use crate::{MutexGuard, RwLockWriteGuard, hint, thread};

/// A guard that excludes every other writer: the proof that [`SeqCount::write`] takes.
///
/// Implement it for guards of exclusive locks only (a locked folio, for example).
pub trait Exclusive {}

impl<T> Exclusive for MutexGuard<'_, T> {}
impl<T> Exclusive for RwLockWriteGuard<'_, T> {}
impl<G: Exclusive> Exclusive for Ranked<G> {}

/// How often a reader spins before it gives up the processor to the writer.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// The counter.
#[derive(Debug, Default)]
#[doc(alias = "seqcount_t")]
pub struct SeqCount {
    seq: AtomicU32,
}

/// The writer's section; ends when dropped. Borrows the proof of the lock, and lends it.
#[derive(Debug)]
pub struct SeqWriteGuard<'a, L: Exclusive> {
    count: &'a SeqCount,
    /// The odd number of this section.
    odd: u32,
    lock: &'a mut L,
    // The last field: dropped after the section has ended.
    _token: RankToken,
}

impl<L: Exclusive> SeqWriteGuard<'_, L> {
    /// The guard of the lock, for the other data that it protects.
    pub fn lock(&mut self) -> &mut L {
        self.lock
    }
}

impl SeqCount {
    const_unless_loom! {
        /// A counter at zero. `const` except under loom.
        pub fn new() -> Self {
            Self { seq: AtomicU32::new(0) }
        }
    }

    /// The number to hand to [`read_retry`](Self::read_retry); waits, spinning, for a writer to leave.
    #[doc(alias = "read_seqcount_begin")]
    ///
    /// # Panics
    ///
    /// In debug builds, in a write section.
    #[track_caller]
    #[inline]
    pub fn read_begin(&self) -> u32 {
        rank::might_lock(Rank::SeqCount);
        let mut spins = 0;
        loop {
            if let Some(start) = self.try_read_begin() {
                return start;
            }
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// The number to hand to [`read_retry`](Self::read_retry), or `None` while a writer is inside.
    #[inline]
    pub fn try_read_begin(&self) -> Option<u32> {
        // Acquire pairs with the Release store that ends a write section.
        let start = self.seq.load(Ordering::Acquire);
        (start & 1 == 0).then_some(start)
    }

    /// Whether a writer came between: the data read since `start` is worth nothing then.
    #[doc(alias = "read_seqcount_retry")]
    #[inline]
    #[must_use = "what was read may be torn"]
    pub fn read_retry(&self, start: u32) -> bool {
        // Pairs with the release fence in `write`, through the data.
        fence(Ordering::Acquire);
        // Relaxed: ordered after the data by the fence, and used for nothing but the comparison.
        self.seq.load(Ordering::Relaxed) != start && !crate::planted!(torn_read_accepted)
    }

    /// Opens a write section, in which no lock is taken. The lock's guard stays borrowed until it ends.
    ///
    /// # Panics
    ///
    /// In debug builds, if a section is open already: then the lock is not the one that protects
    /// this counter.
    #[doc(alias = "write_seqcount_begin")]
    #[track_caller]
    #[inline]
    pub fn write<'a, L: Exclusive>(&'a self, lock: &'a mut L) -> SeqWriteGuard<'a, L> {
        self.write_ranked(lock, Rank::SeqCount)
    }

    /// [`write`](Self::write) with another place in the order of locks: locks of inner ranks may be taken
    /// in the section. Readers wait for it with no lock of this rank or an inner one.
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    #[track_caller]
    #[inline]
    pub fn write_ranked<'a, L: Exclusive>(
        &'a self,
        lock: &'a mut L,
        rank: Rank,
    ) -> SeqWriteGuard<'a, L> {
        // The writer does not wait, so its section may be opened out of order.
        let token = rank::acquire(rank, How::Try);
        // Relaxed: only the holder of the lock writes it (invariant 2).
        let even = self.seq.load(Ordering::Relaxed);
        debug_assert!(even & 1 == 0, "two writers in one sequence counter");
        let odd = even.wrapping_add(1);
        // Relaxed: ordered before the data by the fence below.
        self.seq.store(odd, Ordering::Relaxed);
        // Pairs with the acquire fence in `read_retry`, through the data.
        fence(Ordering::Release);
        SeqWriteGuard {
            count: self,
            odd,
            lock,
            _token: token,
        }
    }
}

impl<L: Exclusive> Drop for SeqWriteGuard<'_, L> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire load in `try_read_begin`.
        self.count
            .seq
            .store(self.odd.wrapping_add(1), Ordering::Release);
    }
}
