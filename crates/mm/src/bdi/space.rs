//! Room in the store: a write that the store has no room for is refused when it is made.
//!
//! # Model
//!
//! ```text
//!  ample ── half of the room is used up ──▶ look ── less than HEADROOM is left ──▶ scarce
//!
//!  scarce, before a write or a store to a mapping:
//!    is enough of the grant left? ── yes ──▶ reserved until they are dirty
//!      no, look:
//!    free − dirty − about to be dirty ≥ its bytes? ── yes ──▶ reserved, and half of the rest is the next grant
//!      no, one writer at a time, and nobody else reserves:
//!      write what is dirty, look again             ── yes ──▶ reserved
//!      no: have the store allocate the range       ── yes ──▶ allocated
//!                     ENOSPC, EDQUOT: refused      ── the store cannot: goes on, and fsync tells
//! ```
//!
//! Dirty data has no place in the store yet, so it counts as used. Much of it may overwrite data that has a place
//! already: then it counts twice, and writing it back corrects that. The store alone knows of quotas, of room that
//! only root may use, and that a range has its place; so it has the last word.
//!
//! The store is asked by one thread at a time while room is ample, and again when much more was used. While it is scarce a look
//! grants half of what is left to the writes of the next [`GRANT_TIME`](crate::dirty::GRANT_TIME), none of which asks; so only the last of the room is asked
//! for write by write. A pin asks for nothing: it has the flusher look where that is due, and takes what it dirties
//! from the grant.
//!
//! While room is ample a write counts itself, and looks at a flag. It may still be under way when room has become scarce,
//! held up perhaps. So for [`UNASKED_WAIT`] after that a write that asks leaves [`UNASKED`](crate::dirty::UNASKED) bytes to each of those, and one
//! that finds too little room waits for them.
//!
//! # Invariants
//!
//! 1. Between two looks at most half of the room above [`HEADROOM`] is used by this cache.
//! 2. An error of the store that says that it is full makes room scarce until it is over, and closes the grant.
//! 3. While a grant is open room is scarce, and no write that did not ask is under way that others wait for.
//!
//! # Locking
//!
//! *Protects*: `writing` nothing; one thread at a time writes what is dirty, and the others that need room wait for it.
//! *Order*: rank `Space`. *May block*: for I/O, and for writes that did not ask, which may hold `i_rwsem` and folio locks.
//!
//! # Memory ordering
//!
//! `reserved` goes down with Release, after its bytes were counted as dirty, and up with Acquire, before the counts are
//! read: bytes are seen in one of both. `unasked` likewise. A write that does not ask counts itself before it looks at
//! `scarce`, and one that asks reads the count after that was set, with a SeqCst fence between the two on either side: so one of
//! them sees the other. Those of a grant: `dirty/space.rs`. All else is Relaxed: sums and hints.

use foliocache_sync::atomic::{Ordering, fence};
use foliocache_sync::time::{Duration, monotonic_ns};
use foliocache_sys::Errno;

use crate::counters::{Count, bump, read};
use crate::dirty::{UnaskedWrite, says_full};
use crate::records::{AddressSpace, BackingDevInfo};
use crate::types::PAGE_SIZE;

/// Room below which writes ask for their own: what many threads may dirty before they see that room is scarce.
const HEADROOM: u64 = 64 << 20;

/// Bytes that may be used while one thread asks, before the next one does.
const WHILE_ASKED: u64 = HEADROOM / 8;

/// How long after room became scarce others wait for writes that did not ask. Such a write may hang in the store, or wait for
/// one of those that wait for it.
const UNASKED_WAIT: Duration = Duration::from_secs(1);

impl BackingDevInfo {
    /// Whether each write has to ask for room. One load.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        // Relaxed: whether a write that does not ask is seen by one that does, the fences of `begin_unasked` and
        // `nr_unasked` see to; for all else it is a hint, and the look itself decides.
        self.scarce.load(Ordering::Relaxed)
    }

    fn set_scarce(&self, scarce: bool) {
        let was = self.is_scarce();
        if scarce && !was {
            // Relaxed: a time that others are off by at most.
            (self.space.scarce_since).store(monotonic_ns(), Ordering::Relaxed);
        }
        // Relaxed: see `is_scarce`.
        self.scarce.store(scarce, Ordering::Relaxed);
        if scarce != was {
            // Invariant 3.
            self.space.grant.close();
        }
    }

    /// Begins a write that does not ask for room; `None` where it has to.
    pub(crate) fn begin_unasked(&self) -> Option<UnaskedWrite<'_>> {
        if self.is_scarce() {
            return None;
        }
        self.space.unasked.inc();
        let write = UnaskedWrite(&self.space);
        // SeqCst: partner of the fence in `nr_unasked`.
        fence(Ordering::SeqCst);
        (!self.is_scarce()).then_some(write)
    }

    /// Writes under way that did not ask, as long as others wait for them. To be read before the counts of what is dirty.
    pub(crate) fn nr_unasked(&self) -> u64 {
        // SeqCst: partner of the fence in `begin_unasked`.
        fence(Ordering::SeqCst);
        // Relaxed: a time.
        let since = self.space.scarce_since.load(Ordering::Relaxed);
        if monotonic_ns().saturating_sub(since) > UNASKED_WAIT.as_nanos() as u64 {
            return 0;
        }
        let unasked = self.space.unasked.sum_positive();
        // Acquire pairs with the Release at the end of such a write.
        fence(Ordering::Acquire);
        unasked
    }

    /// The error of the store, if it says that it is full.
    pub(crate) fn full(&self) -> Option<Errno> {
        self.error().filter(says_full)
    }

    /// Bytes that have no place in the store yet, or are on their way.
    pub fn nr_dirty_bytes(&self) -> u64 {
        let pages = self.counts.get(Count::Dirty) + self.counts.get(Count::Writeback);
        pages * PAGE_SIZE as u64
    }

    /// Notes how many bytes the store took.
    pub(super) fn note_space_used(&self, bytes: u64) {
        bump(&self.space.written, bytes);
    }

    /// Whether so much was used since the store was asked last that one is to ask it again: the caller, if so. Never of memory.
    fn is_look_due(&self) -> bool {
        if self.is_memory() {
            return false;
        }
        let used = read(&self.space.written) + self.nr_dirty_bytes();
        // Relaxed, both: the looks steer, and a late one finds less room.
        let due = self.space.next_look.load(Ordering::Relaxed);
        let next = used.saturating_add(WHILE_ASKED);
        let mine = || {
            (self.space.next_look)
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        used >= due && mine()
    }

    /// A file became dirtier by a write: asks its store for the room that is left, if much was used since it was asked last. Where
    /// room is scarce writes have asked for theirs.
    pub(crate) fn note_dirtied(&self, mapping: &AddressSpace) {
        if !self.is_scarce() && self.is_look_due() {
            self.look_at_space(mapping);
        }
    }

    /// A pin made pages dirty. It asks no store: where a look is due the flusher does.
    pub(crate) fn note_pinned(&self, mapping: &AddressSpace, pages: u64) {
        if foliocache_sync::planted!(each_pin_asks_for_room) {
            self.look_at_space(mapping);
        }
        if self.is_scarce() {
            let bytes = pages * PAGE_SIZE as u64;
            if !self.space.grant.take(bytes, monotonic_ns) {
                self.space.grant.close();
            }
        } else if self.is_look_due() {
            self.flusher.wake();
        }
    }

    /// Asks the store for the room that is left, without what is dirty: `None` if it does not tell. Closes the grant.
    pub(crate) fn look_at_space(&self, mapping: &AddressSpace) -> Option<u64> {
        self.space.grant.close();
        self.look_again(mapping)
    }

    /// As [`BackingDevInfo::look_at_space`]. The grant was closed before the caller read what is reserved.
    pub(crate) fn look_again(&self, mapping: &AddressSpace) -> Option<u64> {
        // In this order: what is written meanwhile counts twice, and not in neither.
        let dirty = self.nr_dirty_bytes();
        let free = mapping.ask_store(|ops| ops.free_space());
        let left = free.map(|free| free.saturating_sub(dirty));
        let more = left.map_or(u64::MAX, |left| left.saturating_sub(HEADROOM) / 2);
        let used = read(&self.space.written) + self.nr_dirty_bytes();
        let next = used.saturating_add(more);
        self.space.next_look.store(next, Ordering::Relaxed);
        // Relaxed: a write that reserves room later looks itself.
        let reserved = self.space.reserved.load(Ordering::Relaxed);
        let least = HEADROOM.saturating_add(reserved);
        self.set_scarce(left.is_some_and(|left| left < least) || self.full().is_some());
        left
    }

    /// The store was full.
    pub(super) fn note_full(&self, error: Option<Errno>) {
        if error.as_ref().is_some_and(says_full) {
            self.set_scarce(true);
            self.space.grant.close();
        }
    }
}
