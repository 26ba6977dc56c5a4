//! The state word of a folio: its flags, its lock bit, its order and its version, in 64 bits.
//!
//! # Model
//!
//! ```text
//!   63                    20 19     16 15                                  0
//!  ┌────────────────────────┬─────────┬─────────────────────────────────────┐
//!  │ version (44 bits)      │ order   │ flags                               │
//!  └────────────────────────┴─────────┴─────────────────────────────────────┘
//! ```
//!
//! | flag | meaning | set and cleared by | under |
//! |---|---|---|---|
//! | `LOCKED` | the folio lock | whoever takes it | itself |
//! | `WAITERS` | a thread or a future waits for `LOCKED` | set by the waiter, cleared with `LOCKED` | the wait queue |
//! | `UPTODATE` | every byte is the file's (a large folio without it: see its grains) | set by the filler or writer, cleared on removal | folio lock |
//! | `DIRTY` | some byte is newer than what was handed to the backing store | set by writers and failed writeback, cleared when writeback starts | folio lock |
//! | `WRITEBACK` | `writepages` is reading the frame | set by writeback; cleared when the I/O ended | set: folio lock; cleared: `wb_lock` |
//! | `UNSTABLE` | written, not yet flushed to the medium | writeback and flush | set: `wb_lock`; cleared: `flush_lock` or `wb_lock`; both: `xa_lock` |
//! | `ERROR` | the last attempt to write it failed; also `DIRTY` | writeback and flush | `wb_lock` |
//! | `REFERENCED` | used since it was queued or last looked at by reclaim | set by readers and writers, cleared by reclaim | nothing: a hint |
//! | `READAHEAD` | brought in by readahead and not used yet | set by the filler, cleared by the first use | nothing: a hint |
//! | `MAPPED` | page tables of windows may have pages of it | set by faults, cleared when they are emptied | folio lock |
//! | `HELD` | a program wants it in memory (`held.rs`) | set and cleared by holds | folio lock |
//! | `DROPBEHIND` | an uncached operation brought it in: it leaves the cache when that is done, and is on no queue of reclaim's | set by whoever puts
//! it into the index, cleared by the first ordinary use (`uncached.rs`) | set: folio lock; cleared: nothing; the thread that clears it decides what
//! becomes of the folio |
//! | `AGAIN` | stored to since it became dirty, or since a turn of the flusher spared it | set by writers, cleared by writeback | folio lock |
//! | `EARLY` | the flusher wrote it for room alone | set by writeback, cleared by the next store (`dirty/rewrites.rs`) | set: `wb_lock`; cleared: folio lock |
//! | `UNEVICTABLE` | of a memory file system: there is no store to read it from again | whoever puts it into the index, cleared on removal | folio lock |
//!
//! # Invariants
//!
//! 1. The **version is identity, not content**: it grows whenever the folio leaves the index or
//!    its frames change, or it is split, and before a frame can be used for anything else. Writes leave it
//!    alone, so a reader of one part is never disturbed by a writer of another.
//! 2. The order changes only under the folio lock, together with the version or while the folio is
//!    not `UPTODATE`: what is uptodate and of one version is of one order.
//! 3. A folio with `DIRTY`, `WRITEBACK` or `UNSTABLE` is in its mapping's index. [`Operation`](super::Operation) says
//!    which operations it permits then.
//! 4. `ERROR` implies `DIRTY` or `WRITEBACK` (the retry is under way).
//!
//! # Memory ordering
//!
//! - `LOCKED`: taken with Acquire, released with Release; the partner is the previous holder.
//! - Version: [`FolioState::bump_version`] is followed by a Release fence; the partner is the
//!   Acquire fence in [`FolioState::validate`]. If a reader's copy saw any byte stored after the
//!   bump, its second look at the version sees the bump.
//! - [`FolioState::load`] is Acquire; the partner is the Release of the bump: a reader that
//!   starts with a bumped version also sees the index slot that was cleared before it.
//! - `REFERENCED` and `READAHEAD` are Relaxed: hints that order nothing.

use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
use foliocache_sync::wait::LockBits;

/// Flags of the state word; see the module's table.
pub(crate) mod flag {
    pub(crate) const LOCKED: u64 = 1 << 0;
    pub(crate) const WAITERS: u64 = 1 << 1;
    pub(crate) const UPTODATE: u64 = 1 << 2;
    pub(crate) const DIRTY: u64 = 1 << 3;
    pub(crate) const WRITEBACK: u64 = 1 << 4;
    pub(crate) const UNSTABLE: u64 = 1 << 5;
    pub(crate) const ERROR: u64 = 1 << 6;
    pub(crate) const REFERENCED: u64 = 1 << 7;
    pub(crate) const READAHEAD: u64 = 1 << 8;
    pub(crate) const UNEVICTABLE: u64 = 1 << 9;
    pub(crate) const MAPPED: u64 = 1 << 10;
    pub(crate) const HELD: u64 = 1 << 11;
    pub(crate) const DROPBEHIND: u64 = 1 << 12;
    pub(crate) const EARLY: u64 = 1 << 13;
    pub(crate) const AGAIN: u64 = 1 << 14;
    /// Everything that describes the content or the queue, cleared when the folio is freed.
    pub(crate) const CONTENT: u64 = UPTODATE
        | DIRTY
        | WRITEBACK
        | UNSTABLE
        | ERROR
        | REFERENCED
        | READAHEAD
        | UNEVICTABLE
        | MAPPED
        | HELD
        | DROPBEHIND
        | EARLY
        | AGAIN;
}

const ORDER_SHIFT: u32 = 16;
const ORDER_ONE: u64 = 1 << ORDER_SHIFT;
const VERSION_SHIFT: u32 = 20;
const VERSION_ONE: u64 = 1 << VERSION_SHIFT;

pub(super) const LOCK: LockBits = LockBits {
    locked: flag::LOCKED,
    waiters: flag::WAITERS,
};

#[derive(Debug, Default)]
pub(crate) struct FolioState(AtomicU64);

/// A value of the state word that was read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(u64);

impl Snapshot {
    #[inline]
    pub(crate) fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    #[inline]
    pub(crate) fn has_any(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    pub(crate) fn content(self) -> u64 {
        self.0 & flag::CONTENT
    }

    /// Whether a further use of the folio changes none of its flags.
    #[inline]
    pub(crate) fn is_in_use(self) -> bool {
        self.0 & (flag::REFERENCED | flag::READAHEAD | flag::DROPBEHIND) == flag::REFERENCED
    }

    #[inline]
    pub(crate) fn order(self) -> u32 {
        (self.0 >> ORDER_SHIFT & 0xf) as u32
    }

    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT
    }
}

impl FolioState {
    #[inline]
    pub(super) fn word(&self) -> &AtomicU64 {
        &self.0
    }

    /// Flags, order and version now. Acquire: what the setter of a flag wrote before it is visible.
    #[inline]
    pub(crate) fn load(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    /// Whether the folio kept its identity since `begin`; call after the copy.
    #[inline]
    pub(crate) fn validate(&self, begin: Snapshot) -> bool {
        // Partner: the Release fence in `bump_version`.
        fence(Ordering::Acquire);
        // Relaxed: ordered after the copy by the fence above.
        Snapshot(self.0.load(Ordering::Relaxed)).version() == begin.version()
    }

    /// The version as a reader without the fence may see it: for a model that must fail.
    #[cfg(loom)]
    pub(crate) fn version_unordered(&self) -> u64 {
        // Relaxed: that is what is wrong with it.
        Snapshot(self.0.load(Ordering::Relaxed)).version()
    }

    /// The order, for a holder of the folio lock, or as a hint.
    #[inline]
    pub(crate) fn order(&self) -> u32 {
        // Relaxed: the folio lock orders it.
        Snapshot(self.0.load(Ordering::Relaxed)).order()
    }

    /// Gives a folio that is locked and not uptodate its order.
    pub(crate) fn set_order(&self, order: u32) {
        let change = self.order() ^ order;
        if change != 0 {
            // Relaxed: `set` of UPTODATE publishes it.
            self.0
                .fetch_xor(u64::from(change) << ORDER_SHIFT, Ordering::Relaxed);
        }
    }

    /// Sets flags and returns what was there. Release: the partner is `load`, which then sees
    /// what was written to the folio before (UPTODATE above all).
    #[inline]
    pub(crate) fn set(&self, flags: u64) -> Snapshot {
        Snapshot(self.0.fetch_or(flags, Ordering::Release))
    }

    /// Clears flags and returns what was there. AcqRel: a claim (clearing DIRTY before the bytes
    /// are read) must see the stores made before the flag was set, partner `set`.
    #[inline]
    pub(crate) fn clear(&self, flags: u64) -> Snapshot {
        Snapshot(self.0.fetch_and(!flags, Ordering::AcqRel))
    }

    /// Clears a flag of the identity that was seen; whether it was set, and is cleared by this call.
    pub(crate) fn clear_of(&self, seen: Snapshot, flag: u64) -> bool {
        // Relaxed, all: the exchange confirms what is read, and orders nothing (`uncached.rs`).
        let mut now = Snapshot(self.0.load(Ordering::Relaxed));
        while now.has(flag) && now.version() == seen.version() {
            let (relaxed, cleared) = (Ordering::Relaxed, now.0 & !flag);
            match self
                .0
                .compare_exchange_weak(now.0, cleared, relaxed, relaxed)
            {
                Ok(_) => return true,
                Err(changed) => now = Snapshot(changed),
            }
        }
        false
    }

    /// Marks a hint bit without ordering anything.
    #[inline]
    pub(crate) fn set_hint(&self, flags: u64) {
        // Relaxed: REFERENCED is only ever a hint to reclaim.
        self.0.fetch_or(flags, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn clear_hint(&self, flags: u64) -> bool {
        // Relaxed: as in `set_hint`.
        self.0.fetch_and(!flags, Ordering::Relaxed) & flags != 0
    }

    /// Tries to take the folio lock at the state that is returned.
    #[inline]
    pub(crate) fn try_lock_seen(&self) -> Option<Snapshot> {
        // Relaxed: the exchange confirms it.
        let seen = self.0.load(Ordering::Relaxed);
        if seen & flag::LOCKED != 0 {
            return None;
        }
        // Acquire: partner is the Release in `LockBits`. Relaxed on failure: nothing is done.
        self.0
            .compare_exchange(
                seen,
                seen | flag::LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()
            .map(Snapshot)
    }

    /// Ends the folio's identity: the version grows and everything about the content is cleared.
    /// The lock bit stays. To be called with the folio lock held, after the index slot was
    /// cleared and before the frame is used for anything else.
    pub(crate) fn bump_version(&self, clear: u64) {
        // The flags go first: no reader may see UPTODATE of the old content beside the new version,
        // or it would take the descriptor's next use at the same place for uptodate, too.
        if clear != 0 {
            self.0.fetch_and(!clear, Ordering::Release);
        }
        self.change_version(VERSION_ONE);
    }

    /// Makes the order one less, and grows the version in the same step. With the folio lock held,
    /// after the index says so.
    pub(crate) fn halve(&self) {
        debug_assert!(self.order() > 0, "a page has no halves");
        self.change_version(VERSION_ONE - ORDER_ONE);
    }

    fn change_version(&self, growth: u64) {
        // The holder of the folio lock is the only one to change order and version, so the addition
        // cannot race with another; flags may change meanwhile, hence an RMW.
        self.0.fetch_add(growth, Ordering::Release);
        // Partner: the Acquire fence in `validate`.
        fence(Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::thread;

    #[test]
    fn lock_order_and_version_do_not_disturb_each_other() {
        let state = FolioState::default();
        state.set_order(9);
        assert!(state.try_lock_seen().is_some() && state.try_lock_seen().is_none());
        let begin = state.set(flag::UPTODATE | flag::DIRTY);
        state.halve();
        assert!(!state.validate(begin));
        let now = state.load();
        assert_eq!((now.order(), now.version()), (8, begin.version() + 1));
        assert!(now.has(flag::LOCKED | flag::UPTODATE | flag::DIRTY));
        state.bump_version(flag::CONTENT);
        assert_eq!(state.load().content(), 0);
        assert!(state.load().has(flag::LOCKED));
    }

    /// A frame that is reused while a reader copies from it. Miri runs it with stores that come late to other threads.
    #[test]
    fn a_reader_that_saw_a_byte_of_the_next_owner_sees_the_bump() {
        let shared = foliocache_sync::Arc::new((FolioState::default(), AtomicU64::new(1)));
        shared.0.set(flag::UPTODATE);
        let other = foliocache_sync::Arc::clone(&shared);
        let reuse = thread::spawn(move || {
            let (state, byte) = &*other;
            state.bump_version(flag::CONTENT);
            // Relaxed, as a frame's bytes are stored: the fence of the bump is what counts.
            byte.store(2, Ordering::Relaxed);
        });
        let (state, byte) = &*shared;
        for _ in 0..50 {
            let begin = state.load();
            // Relaxed: as the store.
            let seen = byte.load(Ordering::Relaxed);
            if begin.has(flag::UPTODATE) && state.validate(begin) {
                assert_eq!(seen, 1, "a byte of the next owner");
            }
        }
        reuse.join().unwrap();
    }
}
