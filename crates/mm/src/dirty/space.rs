//! The room in a store, as far as it is known. `bdi/space.rs` uses it.
//!
//! # Memory ordering
//!
//! The end of an [`UnaskedWrite`] is Release; its partner is the Acquire in `nr_unasked` of `bdi/space.rs`. All else is Relaxed here.

use foliocache_sync::ShardedCounter;
use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sys::Errno;

/// Bytes of a write that always asks whether the store has room for it.
pub(crate) const UNASKED: u64 = 4 << 20;

/// The room in the store, as far as it is known.
#[derive(Debug)]
pub(crate) struct Space {
    /// Bytes written to the store, ever.
    pub(crate) written: AtomicU64,
    /// The store is asked again when so many bytes are used.
    pub(crate) next_look: AtomicU64,
    /// Bytes of writes under way that asked.
    pub(crate) reserved: AtomicU64,
    /// Writes under way that did not ask.
    pub(crate) unasked: ShardedCounter,
    /// When room became scarce last, in nanoseconds of `monotonic_ns`.
    pub(crate) scarce_since: AtomicU64,
    pub(crate) writing: RankedMutex<{ Rank::Space as u8 }, ()>,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            written: AtomicU64::new(0),
            next_look: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            unasked: ShardedCounter::new(),
            scarce_since: AtomicU64::new(0),
            writing: RankedMutex::new(()),
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
