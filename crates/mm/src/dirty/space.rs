//! The room in a store, as far as it is known. `bdi/space.rs` uses it.
//!
//! # Memory ordering
//!
//! The end of an [`UnaskedWrite`] is Release; its partner is the Acquire in `nr_unasked` of `bdi/space.rs`.
//!
//! A write that takes from a [`Grant`] has counted itself as reserved before, and the exchange that takes is Release. Closing is
//! Acquire: in `reserved`, read afterwards, a thread that closes sees all that was taken before. Opening is Release and taking
//! Acquire, for the end of the grant. All else is Relaxed here.

use foliocache_sync::ShardedCounter;
use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::time::Duration;
use foliocache_sys::Errno;

/// Bytes of a write that always asks whether the store has room for it.
pub(crate) const UNASKED: u64 = 4 << 20;

/// How long writes take from what a look found before another one looks: others use the store, too.
pub(crate) const GRANT_TIME: Duration = Duration::from_millis(20);

/// The room in the store, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Bytes written to the store, ever.
    pub(crate) written: AtomicU64,
    /// The store is asked again when so many bytes are used.
    pub(crate) next_look: AtomicU64,
    /// Bytes of writes under way that asked.
    pub(crate) reserved: AtomicU64,
    /// Room for writes that need not ask, while it is scarce.
    pub(crate) grant: Grant,
    /// Writes under way that did not ask.
    pub(crate) unasked: ShardedCounter,
    /// When room became scarce last, in nanoseconds of `monotonic_ns`.
    pub(crate) scarce_since: AtomicU64,
    pub(crate) writing: RankedMutex<{ Rank::Space as u8 }, ()>,
}

/// A part of the room that the last look found, for writes that then need not ask.
///
/// # Invariants
///
/// 1. Bytes are counted as reserved, or as dirty, before they are taken. So a look that closes the grant first, and then reads both
///    counts, misses nothing that was taken.
/// 2. Only the last thread that closed it opens it: no look is later than the one that it grants from.
#[derive(Debug, Default)]
pub(crate) struct Grant {
    /// Bytes that are left of it; above [`Grant::BITS`] how often it was closed.
    word: AtomicU64,
    /// When it ends, in nanoseconds of `monotonic_ns`: others use the store, too.
    until: AtomicU64,
}

/// The number of a closing, for the one that may open the grant after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed(u64);

impl Grant {
    const BITS: u32 = u32::BITS;
    const BYTES: u64 = (1 << Self::BITS) - 1;

    /// Nothing is left of it.
    pub(crate) fn close(&self) -> Closed {
        // Acquire, Release: see the module's header. Relaxed where it fails: it is tried again.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = (word >> Self::BITS).wrapping_add(1) << Self::BITS;
            let done =
                (self.word).compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed);
            match done {
                Ok(_) => return Closed(next),
                Err(other) => word = other,
            }
        }
    }

    /// Grants `bytes` until then, unless it was closed again.
    pub(crate) fn open(&self, closed: Closed, bytes: u64, until: u64) {
        // Relaxed: the Release below publishes it, and of two a little later is as good.
        self.until.store(until, Ordering::Relaxed);
        let open = closed.0 | bytes.min(Self::BYTES);
        if foliocache_sync::planted!(late_answer_granted) {
            self.word.store(open, Ordering::Release);
        }
        // Relaxed where it fails: another look is later than that of the caller.
        let _ = (self.word).compare_exchange(closed.0, open, Ordering::Release, Ordering::Relaxed);
    }

    /// Takes so many bytes, which the caller has counted already (invariant 1), at `now`; whether there were so many.
    pub(crate) fn take(&self, bytes: u64, now: impl Fn() -> u64) -> bool {
        // Acquire: partner is the Release in `open`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & Self::BYTES < bytes || now() >= self.until.load(Ordering::Relaxed) {
                return false;
            }
            let left = word - bytes;
            // Acquire where it fails: as the load.
            let done =
                (self.word).compare_exchange_weak(word, left, Ordering::AcqRel, Ordering::Acquire);
            match done {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
    }
}

/// A write of less than [`UNASKED`] bytes that did not ask for room.
#[derive(Debug)]
pub(crate) struct UnaskedWrite<'a>(pub(crate) &'a Space);

impl Drop for UnaskedWrite<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `nr_unasked`: its bytes are counted as dirty.
        fence(Ordering::Release);
        self.0.unasked.dec();
    }
}

/// Whether an error says that the store is full.
pub(crate) fn says_full(error: &Errno) -> bool {
    matches!(*error, Errno::ENOSPC | Errno::EDQUOT)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_taken_in_parts_until_it_ends_or_is_closed() {
        let grant = Grant::default();
        let take = |bytes, at| grant.take(bytes, || at);
        assert!(!take(1, 0), "none was opened");
        let closed = grant.close();
        grant.open(closed, 10, 100);
        assert!(take(4, 50) && take(6, 99));
        assert!(!take(1, 99), "it is used up");
        let closed = grant.close();
        grant.open(closed, 10, 100);
        assert!(!take(1, 100), "it has ended");
        assert!(take(1, 99));
        grant.close();
        assert!(!take(1, 99), "it was closed");
    }

    #[test]
    fn only_the_last_that_closed_a_grant_opens_it() {
        let grant = Grant::default();
        let (early, late) = (grant.close(), grant.close());
        assert_ne!(early, late);
        grant.open(early, 10, 100);
        assert!(!grant.take(1, || 0), "another look came after that one");
        grant.open(late, u64::MAX, 100);
        assert!(grant.take(Grant::BYTES, || 0) && !grant.take(1, || 0));
    }
}
