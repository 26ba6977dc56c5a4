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
//! 1. `mapping`, `index`, `frame` and the order change only under the folio lock. `mapping` is
//!    non-zero exactly while the folio is in that mapping's index, and the address space lives at
//!    least that long.
//! 2. A folio of order n has 2^n frames from `frame` on, which belong to no other; they are given
//!    back only after the version grew. `index` and `frame` are multiples of 2^n.
//! 3. `lru_*` are protected by the LRU lock.
//! 4. Folios of order > 0 have *grains* ([`grains`]) that are uptodate or dirty by themselves;
//!    `UPTODATE` says that all are, `DIRTY` that some is. A dirty grain is uptodate. A folio that is
//!    found unlocked has at least one grain uptodate. Lockless readers use `UPTODATE` folios only.
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
//! sees the frame a folio was moved to also sees the bytes copied there. `index` and `frame` are
//! stored Release after the version grew, and loaded Acquire by a lockless reader that looks at the
//! version again before it uses them ([`Folio::locate`]): the order in the state word, the index and
//! the frame are of one identity, or the reader gives up. Under the folio lock `index` is loaded
//! Relaxed. The other fields are Relaxed: the folio lock orders them.

pub(crate) mod grains;
mod holds;
mod may;
mod pool;
pub(crate) mod state;

pub(crate) use holds::{Hold, HoldCounts, MOST_PINS};
pub(crate) use may::Operation;
pub(crate) use pool::{FolioId, FolioPool};
pub(crate) use state::flag;

use foliocache_sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use foliocache_sync::rank::{self, How, Rank, RankToken};
use foliocache_sync::wait::WaitTable;
use std::ops::Range;
use std::task::Waker;

use crate::frames::FrameNumber;
use crate::types::{PAGE_SIZE, PageIndex};
use grains::Margins;
use holds::Holds;
use state::{FolioState, LOCK, Snapshot};

/// A folio's descriptor: one cache line.
#[doc(alias = "struct folio")]
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Folio {
    pub(crate) state: FolioState,
    /// Address of the [`crate::AddressSpace`] that holds it, 0 if none (invariant 1).
    mapping: AtomicUsize,
    /// Index of its first page in the file (invariant 1).
    index: AtomicU64,
    /// Its first frame (invariants 1 and 2).
    frame: AtomicU32,
    /// Neighbours in its LRU queue or in the free list (invariant 3).
    pub(crate) lru_prev: AtomicU32,
    pub(crate) lru_next: AtomicU32,
    pub(crate) lru_queue: AtomicU8,
    /// The upper and the lower bits of [`Margins`], of a folio with dirty grains. Changed under the folio lock.
    margins_high: AtomicU8,
    margins_low: AtomicU16,
    /// Which grains are uptodate, in a folio of order > 0 without `UPTODATE` (invariant 4). Changed
    /// under the folio lock. Of an orphan ([`holds`]), the number of the file that it was of.
    uptodate: AtomicU64,
    /// Which grains are dirty (invariant 4). Changed under the folio lock.
    dirty: AtomicU64,
    /// Its views and pins.
    holds: Holds,
}

/// Where a folio is and what it covers, as it was at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) index: PageIndex,
    pub(crate) order: u32,
    pub(crate) frame: FrameNumber,
}

impl Identity {
    #[inline(always)]
    pub(crate) fn new(index: PageIndex, order: u32, frame: FrameNumber) -> Self {
        Self {
            index,
            order,
            frame,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        PAGE_SIZE << self.order
    }

    /// The bytes of the file that it has room for.
    #[inline]
    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.index.pos();
        start..start + self.bytes() as u64
    }

    /// Whether `page` of its file is one of its own: folios are aligned.
    #[inline]
    pub(crate) fn covers(&self, page: PageIndex) -> bool {
        (page.0 ^ self.index.0) >> self.order == 0
    }

    /// Bytes of the folio before byte `pos` of its file, which it covers.
    #[inline]
    pub(crate) fn offset(&self, pos: u64) -> usize {
        (pos - self.index.pos()) as usize
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Folio>() == 64, "a descriptor is one cache line");

/// Identity is stable under the folio lock; without it, each part may be another folio's by now.
impl Folio {
    /// Without the folio's lock a snapshot.
    #[inline(always)]
    pub(crate) fn uptodate_grains(&self) -> u64 {
        match self.state.load().has(flag::UPTODATE) {
            true => grains::all(self.order()),
            false => self.uptodate.load(Ordering::Relaxed),
        }
    }

    /// Which grains are dirty: a snapshot without the folio's lock, none while they are being written.
    pub(crate) fn dirty_grains(&self) -> u64 {
        let state = self.state.load();
        match state.order() {
            0 => u64::from(state.has(flag::DIRTY)),
            _ => self.dirty.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(crate) fn order(&self) -> u32 {
        self.state.order()
    }

    #[inline]
    pub(crate) fn nr_pages(&self) -> u64 {
        1 << self.order()
    }

    pub(crate) fn end(&self) -> PageIndex {
        self.index().add(self.nr_pages())
    }

    /// See [`Identity::range`].
    pub(crate) fn range(&self) -> Range<u64> {
        self.identity().range()
    }

    pub(crate) fn holds(&self, page: PageIndex) -> bool {
        self.index() <= page && page < self.end()
    }

    /// Relaxed, as [`Folio::index`].
    pub(crate) fn pages(&self) -> Range<u64> {
        self.index().0..self.end().0
    }

    /// Whether all of its pages are among `pages`.
    pub(crate) fn lies_in(&self, pages: &Range<u64>) -> bool {
        pages.start <= self.index().0 && self.end().0 <= pages.end
    }

    /// The folio of byte `pos` of its file, for a lockless reader that saw it in state `seen` at
    /// that position. `None` if it is another folio by now, or not one that covers the byte: order,
    /// index and frame are of one identity, so the bytes to the end of the folio can be read.
    #[inline]
    pub(crate) fn locate(&self, seen: Snapshot, pos: u64) -> Option<Identity> {
        // Acquire: partner is the Release in `attach`.
        let index = PageIndex(self.index.load(Ordering::Acquire));
        let identity = Identity::new(index, seen.order(), self.frame());
        (self.state.validate(seen) && identity.covers(PageIndex::of(pos))).then_some(identity)
    }

    #[inline]
    pub(crate) fn identity(&self) -> Identity {
        Identity::new(self.index(), self.order(), self.frame())
    }

    /// The first of the frames that hold its bytes.
    #[inline]
    pub(crate) fn frame(&self) -> FrameNumber {
        FrameNumber(self.frame.load(Ordering::Acquire))
    }

    /// Where it is in its file.
    #[inline]
    pub(crate) fn index(&self) -> PageIndex {
        PageIndex(self.index.load(Ordering::Relaxed))
    }

    /// The number of the file that an orphan was of.
    pub(crate) fn orphan_of(&self) -> u64 {
        self.uptodate.load(Ordering::Relaxed)
    }

    /// Address of the address space that holds it, 0 if none.
    #[inline]
    pub(crate) fn mapping(&self) -> usize {
        self.mapping.load(Ordering::Relaxed)
    }

    /// Takes the folio lock, sleeping if it must.
    ///
    /// Context: may block; no RCU read section.
    #[track_caller]
    pub(crate) fn lock<'a>(&'a self, waits: &'a WaitTable) -> LockedFolio<'a> {
        let token = rank::acquire(Rank::FolioLock, How::Nested);
        LOCK.lock(self.state.word(), waits);
        LockedFolio {
            lock: Lock { folio: self, waits },
            token,
        }
    }

    /// Takes over the lock of a folio that was [handed over](LockedFolio::hand_over), from the I/O
    /// that holds it: the one caller that knows of it.
    pub(crate) fn adopt<'a>(&'a self, waits: &'a WaitTable) -> LockedFolio<'a> {
        debug_assert!(self.state.load().has(flag::LOCKED), "nobody's lock");
        self.locked(waits)
    }

    /// The lock that was just taken, or taken over.
    #[inline]
    #[track_caller]
    fn locked<'a>(&'a self, waits: &'a WaitTable) -> LockedFolio<'a> {
        LockedFolio {
            lock: Lock { folio: self, waits },
            token: rank::acquire(Rank::FolioLock, How::Try),
        }
    }

    /// Takes the folio lock if that needs no waiting.
    #[inline]
    #[track_caller]
    pub(crate) fn try_lock<'a>(&'a self, waits: &'a WaitTable) -> Option<LockedFolio<'a>> {
        LOCK.try_lock(self.state.word()).then(|| self.locked(waits))
    }

    /// As [`Folio::try_lock`], with the state that the folio was in, the lock not yet taken; fails, too,
    /// if that changed in between.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn try_lock_seen<'a>(
        &'a self,
        waits: &'a WaitTable,
    ) -> Option<(LockedFolio<'a>, Snapshot)> {
        let seen = self.state.try_lock_seen()?;
        Some((self.locked(waits), seen))
    }

    /// Has `waker` called when the folio is unlocked; whether it is already.
    ///
    /// Does not block. The folio may be locked again by then, or be another's.
    pub(crate) fn wait_unlocked_async(&self, waits: &WaitTable, waker: &Waker) -> bool {
        LOCK.wait_clear_async(self.state.word(), waits, flag::LOCKED, waker)
    }

    /// A use by a reader or writer: clears READAHEAD at the first, sets REFERENCED at later ones. Costs a store
    /// only when a bit changes. Returns whether this was the first use of what readahead brought in.
    #[inline]
    pub(crate) fn mark_accessed(&self, seen: Snapshot) -> bool {
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
    lock: Lock<'a>,
    token: RankToken,
}

/// The lock of a folio, without its rank.
#[derive(Debug)]
struct Lock<'a> {
    folio: &'a Folio,
    waits: &'a WaitTable,
}

impl<'a> LockedFolio<'a> {
    /// The descriptor, with the lifetime of the pool and not of the lock.
    pub(crate) fn folio(&self) -> &'a Folio {
        self.lock.folio
    }

    /// Gives the folio its place in the file `mapping`. No grain of it is uptodate or dirty.
    pub(crate) fn attach(&self, mapping: usize, identity: Identity) {
        // Release: partner is the Acquire in `Folio::locate`, which then sees that the version grew.
        debug_assert_eq!((self.dirty.load(Ordering::Relaxed), self.margins()), (0, 0));
        self.index.store(identity.index.0, Ordering::Release);
        self.state.set_order(identity.order);
        self.mapping.store(mapping, Ordering::Relaxed);
        self.set_frame(identity.frame);
    }

    /// Ends the folio's identity after it left the index, and returns its frames, which may be
    /// reused from now on: the first, and the order.
    pub(crate) fn detach(&self) -> (FrameNumber, u32) {
        self.mapping.store(0, Ordering::Relaxed);
        self.uptodate.store(0, Ordering::Relaxed);
        self.set_clean();
        self.state.bump_version(flag::CONTENT);
        (self.frame(), self.order())
    }

    /// Makes grains uptodate; whether the folio has any for the first time.
    pub(crate) fn add_uptodate(&self, grains: u64) -> bool {
        let before = self.uptodate_grains();
        if before | grains == grains::all(self.order()) {
            // Release, in `set`: a lockless reader that sees the flag sees the bytes.
            self.state.set(flag::UPTODATE);
        } else {
            self.uptodate.store(before | grains, Ordering::Relaxed);
        }
        before == 0
    }

    /// Its identity, where the lock was taken in state `seen`.
    #[inline]
    pub(crate) fn identity_at(&self, seen: Snapshot) -> Identity {
        Identity::new(self.index(), seen.order(), self.frame())
    }

    /// Whether all grains that a range of its bytes touches are uptodate.
    #[inline(always)]
    pub(crate) fn has_grains(&self, bytes: std::ops::Range<usize>) -> bool {
        let touched = grains::touched(self.order(), bytes);
        self.uptodate_grains() & touched == touched
    }

    /// Notes which grains are dirty, and which bytes were `written`. The caller changes the flag.
    pub(crate) fn set_dirty(&self, grains: u64, written: &Range<usize>) {
        if self.dirty.load(Ordering::Relaxed) != grains {
            self.dirty.store(grains, Ordering::Relaxed);
        }
        let margins = Margins::of(self.order(), grains, written).pack();
        if self.margins() != margins {
            self.margins_low.store(margins as u16, Ordering::Relaxed);
            self.margins_high
                .store((margins >> u16::BITS) as u8, Ordering::Relaxed);
        }
    }

    /// Makes more grains dirty, of which `written` was written to; returns those that were not. The flag is the caller's to set.
    pub(crate) fn add_dirty(&self, grains: u64, written: Range<usize>) -> u64 {
        let before = self.dirty_grains();
        if before & grains == grains && !self.has_margins() {
            return 0;
        }
        let all = match before {
            0 => written,
            _ => {
                let earlier = self.written();
                earlier.start.min(written.start)..earlier.end.max(written.end)
            }
        };
        self.set_dirty(before | grains, &all);
        grains & !before
    }

    /// No grain is dirty, or none any more.
    pub(crate) fn set_clean(&self) {
        self.set_dirty(0, &(0..0));
    }

    fn margins(&self) -> u32 {
        let low = u32::from(self.margins_low.load(Ordering::Relaxed));
        low | u32::from(self.margins_high.load(Ordering::Relaxed)) << u16::BITS
    }

    /// Whether a part of a dirty grain was not written to.
    #[inline]
    pub(crate) fn has_margins(&self) -> bool {
        self.margins() != 0
    }

    /// From the first byte that was written to since the folio was clean to the last; with dirty grains.
    pub(crate) fn written(&self) -> Range<usize> {
        Margins::unpack(self.margins()).written(self.order(), self.dirty_grains())
    }

    /// Whether a range of a dirty folio's bytes is to be written back in any case: all of its grains are dirty, and it has no
    /// margin.
    #[inline]
    pub(crate) fn has_written(&self, bytes: &Range<usize>) -> bool {
        if self.order() > 0 {
            let touched = grains::touched(self.order(), bytes.clone());
            if self.dirty_grains() & touched != touched {
                return false;
            }
        }
        let written = self.written();
        written.start <= bytes.start && bytes.end <= written.end
    }

    /// Says which grains are uptodate, of a folio that is split.
    pub(crate) fn set_uptodate_grains(&self, grains: u64) {
        self.uptodate.store(grains, Ordering::Relaxed);
    }

    /// Leaves the folio locked, for an I/O whose end will [`Folio::adopt`] it on whatever thread.
    pub(crate) fn hand_over(self) -> &'a Folio {
        self.token.disown();
        let folio = self.lock.folio;
        std::mem::forget(self.lock);
        folio
    }

    /// Leaves the folio, which was detached, to its views; returns what there is of them now.
    pub(crate) fn leave_to_views(&self, file: u64) -> HoldCounts {
        // Relaxed: for messages.
        self.uptodate.store(file, Ordering::Relaxed);
        self.make_orphan()
    }

    /// Moves the folio to `frame`, whose bytes are in place; returns the old one for reuse.
    pub(crate) fn migrate(&self, frame: FrameNumber) -> FrameNumber {
        let old = self.frame();
        self.set_frame(frame);
        if !foliocache_sync::planted!(version_kept_by_a_move) {
            self.state.bump_version(0);
        }
        old
    }

    fn set_frame(&self, frame: FrameNumber) {
        self.frame.store(frame.0, Ordering::Release);
    }
}

impl std::ops::Deref for LockedFolio<'_> {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        self.lock.folio
    }
}

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        LOCK.unlock(self.folio.state.word(), self.waits);
    }
}
