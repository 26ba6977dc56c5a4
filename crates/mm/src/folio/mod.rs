//! Folios: the descriptors of the pages that the cache holds, and their lock.
//!
//! # Model
//!
//! A folio is 2^order naturally aligned pages of one file. Its descriptor lives in type-stable
//! memory ([`pool`]) and is never freed while the cache lives: a stale pointer reads an old
//! descriptor and is caught by the version or by a look at `mapping` and `index` under the lock.
//!
//! ```text
//!   free ──alloc──▶ locked, in the index, not uptodate ──fill / write──▶ uptodate
//!    ▲                                                                     │
//!    └────────── removed from the index, version grown ◀── reclaim, truncate
//! ```
//!
//! # Invariants
//!
//! 1. `mapping`, `index`, `frame` and `order` change only under the folio lock. `mapping` is
//!    non-zero exactly while the folio is in that mapping's index, and the address space lives at
//!    least that long.
//! 2. A frame belongs to one folio; it is given back only after the version grew.
//! 3. `lru_*` are protected by the LRU lock.
//!
//! # Locking
//!
//! *Protects*: identity, content flags, and the frame's bytes against writers. *Order*: after
//! `invalidate_lock`, before `xa_lock`; several folios in ascending index. *May block*: yes; no
//! fault is ever resolved and no memory is waited for under it.
//!
//! # Memory ordering
//!
//! `frame` is stored Release and loaded Acquire (partners of one another): a lockless reader that
//! sees the frame a folio was moved to also sees the bytes copied there. The other fields are
//! Relaxed: they are read under the folio lock, whose Acquire and Release order them.

mod pool;
pub(crate) mod state;

pub(crate) use pool::FolioPool;
pub(crate) use state::flag;

use foliocache_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use foliocache_sync::hint;
use foliocache_sync::rank::{self, Rank, RankToken};
use foliocache_sync::wait::WaitTable;

use crate::frames::FrameNumber;
use crate::types::PageIndex;
use state::FolioState;

/// Turns of the lock's spin before it sleeps: about the time a copy of a page takes.
const LOCK_SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 100 };

/// A folio's descriptor: one cache line.
#[doc(alias = "struct folio")]
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Folio {
    /// Flags, lock and version; see [`state`].
    pub(crate) state: FolioState,
    /// Address of the [`crate::AddressSpace`] that holds it, 0 if none (invariant 1).
    mapping: AtomicUsize,
    /// Index of its first page in the file (invariant 1).
    index: AtomicU64,
    /// Its frame (invariants 1 and 2).
    frame: AtomicU32,
    /// Place kept for exact pin and view counts.
    _pins: AtomicU32,
    /// Neighbours in its LRU queue or in the free list (invariant 3).
    pub(crate) lru_prev: AtomicU32,
    pub(crate) lru_next: AtomicU32,
    /// Which LRU queue it is on (invariant 3).
    pub(crate) lru_queue: AtomicU8,
    /// Place kept: binary logarithm of its pages; 0 in this version of the cache.
    _order: AtomicU8,
    _unused: [u8; 6],
    /// Places kept: which grains of a large folio are uptodate and dirty.
    _grains: [u64; 2],
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Folio>() == 64, "a descriptor is one cache line");

impl Folio {
    pub(crate) fn new() -> Self {
        Self {
            state: FolioState::new(),
            mapping: AtomicUsize::new(0),
            index: AtomicU64::new(0),
            frame: AtomicU32::new(0),
            _pins: AtomicU32::new(0),
            lru_prev: AtomicU32::new(0),
            lru_next: AtomicU32::new(0),
            lru_queue: AtomicU8::new(0),
            _order: AtomicU8::new(0),
            _unused: [0; 6],
            _grains: [0; 2],
        }
    }

    /// The frame that holds its bytes. Stable under the folio lock; for a lockless reader valid
    /// only if the version is the same afterwards.
    #[inline]
    pub(crate) fn frame(&self) -> FrameNumber {
        FrameNumber::from_u32(self.frame.load(Ordering::Acquire))
    }

    /// Where it is in its file.
    ///
    /// Context: folio lock held, else the value may be another folio's by now.
    #[inline]
    pub(crate) fn index(&self) -> PageIndex {
        PageIndex(self.index.load(Ordering::Relaxed))
    }

    /// Address of the address space that holds it, 0 if none.
    ///
    /// Context: as for [`Folio::index`].
    #[inline]
    pub(crate) fn mapping(&self) -> usize {
        self.mapping.load(Ordering::Relaxed)
    }

    /// Takes the folio lock, sleeping if it must.
    ///
    /// Context: may block; no RCU read section.
    #[track_caller]
    pub(crate) fn lock<'a>(&'a self, waits: &'a WaitTable) -> LockedFolio<'a> {
        let token = rank::acquire_nested(Rank::FolioLock);
        self.lock_slow_path(waits);
        LockedFolio {
            folio: self,
            waits,
            _token: token,
        }
    }

    #[cfg_attr(
        any(loom, shuttle),
        allow(
            clippy::reversed_empty_ranges,
            reason = "a model does not spin before it sleeps"
        )
    )]
    fn lock_slow_path(&self, waits: &WaitTable) {
        for _ in 0..LOCK_SPINS {
            if self.state.try_lock() {
                return;
            }
            hint::spin_loop();
        }
        while !self.state.try_lock() {
            self.wait_while(flag::LOCKED, waits);
        }
    }

    /// Takes the folio lock if that needs no waiting.
    #[inline]
    #[track_caller]
    pub(crate) fn try_lock<'a>(&'a self, waits: &'a WaitTable) -> Option<LockedFolio<'a>> {
        self.state.try_lock().then(|| LockedFolio {
            folio: self,
            waits,
            _token: rank::acquire_try(Rank::FolioLock),
        })
    }

    /// Sleeps until none of `flags` is set at some moment.
    ///
    /// Context: may block.
    pub(crate) fn wait_while(&self, flags: u64, waits: &WaitTable) {
        waits.wait(self.wait_key(), || !self.state.announce_waiter(flags));
    }

    /// Clears `flags` and wakes whoever waits for that.
    pub(crate) fn release(&self, flags: u64, waits: &WaitTable) {
        if self.state.release(flags) {
            self.wake(waits);
        }
    }

    #[cold]
    fn wake(&self, waits: &WaitTable) {
        waits.wake_all(self.wait_key());
    }

    fn wait_key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// A use by a reader or writer: clears READAHEAD at the first, sets REFERENCED at later ones.
    ///
    /// Costs a store only when a bit changes, so that a hot folio's line stays shared. Returns
    /// whether this was the first use of a folio that readahead brought in.
    #[inline]
    pub(crate) fn mark_accessed(&self, seen: state::Snapshot) -> bool {
        if seen.has(flag::READAHEAD) {
            return self.state.clear_hint(flag::READAHEAD);
        }
        if !seen.has(flag::REFERENCED) {
            self.state.set_hint(flag::REFERENCED);
        }
        false
    }
}

/// A folio whose lock is held; dropping it unlocks.
#[derive(Debug)]
pub(crate) struct LockedFolio<'a> {
    folio: &'a Folio,
    waits: &'a WaitTable,
    _token: RankToken,
}

impl LockedFolio<'_> {
    /// Gives the folio its place: `mapping` at `index`, in `frame`.
    pub(crate) fn attach(&self, mapping: usize, index: PageIndex, frame: FrameNumber) {
        self.folio.index.store(index.0, Ordering::Relaxed);
        self.folio.mapping.store(mapping, Ordering::Relaxed);
        self.set_frame(frame);
    }

    /// Ends the folio's identity after it left the index, and returns its frame, which may be
    /// reused from now on.
    pub(crate) fn detach(&self) -> FrameNumber {
        self.folio.mapping.store(0, Ordering::Relaxed);
        self.folio.state.bump_version(flag::CONTENT);
        self.folio.frame()
    }

    /// Moves the folio to `frame`, whose bytes are in place; returns the old one for reuse.
    pub(crate) fn migrate(&self, frame: FrameNumber) -> FrameNumber {
        let old = self.folio.frame();
        self.set_frame(frame);
        self.folio.state.bump_version(0);
        old
    }

    fn set_frame(&self, frame: FrameNumber) {
        self.folio.frame.store(frame.as_u32(), Ordering::Release);
    }
}

impl std::ops::Deref for LockedFolio<'_> {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        self.folio
    }
}

impl Drop for LockedFolio<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.folio.state.unlock() {
            self.folio.wake(self.waits);
        }
    }
}

impl<'a> LockedFolio<'a> {
    /// The descriptor, with the lifetime of the pool and not of the lock.
    pub(crate) fn folio(&self) -> &'a Folio {
        self.folio
    }
}
