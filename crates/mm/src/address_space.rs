//! Address spaces: the cached pages of one file.
//!
//! # Model
//!
//! An address space is an index from page to folio, a size, and the operations of the backing
//! store. Its folios come and go; it lives as long as a handle, an inode or a dirty list holds it.
//!
//! # Invariants
//!
//! 1. A folio in the index has this address space's address as its `mapping`; the address space is
//!    not freed before its last folio is removed ([`AddressSpace::drop`] does that).
//! 2. Bytes of the last page past `size` are zero in an uptodate folio.
//! 3. A folio is removed from the index with its lock held; a dirty or unstable one only with
//!    `wb_lock` held, too.
//! 4. The mark `Dirty` says of each folio what its flag says, whenever nobody holds its lock or `wb_lock`.
//!    An unstable folio has one of the two marks `UnstableEven` and `UnstableOdd`, whenever nobody holds
//!    `xa_lock`.
//!
//! # Locking
//!
//! | lock | protects | may block |
//! |---|---|---|
//! | `i_rwsem` | the size; shared for overwrites, exclusive for what changes the size or punches | yes |
//! | `flush_lock` | the flush of this file: one at a time | for I/O |
//! | `wb_lock` | writeback of this file: one pass at a time, no write in flight after it | for I/O |
//! | `invalidate_lock` | fills (shared) against truncate and punch (exclusive) | for I/O |
//! | folio lock | identity and content of one folio | for I/O |
//! | `xa_lock` | the index and its marks | no |
//!
//! *Order*: as in the table.
//!
//! # Memory ordering
//!
//! `size` is stored Release after the folios that it covers are uptodate, and loaded Acquire: a
//! reader that sees the size sees the bytes. The figures beside it are Relaxed.

use foliocache_sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use foliocache_sync::durability::Durability;
use foliocache_sync::rank::{RankedMutex, RankedRwLock};
use foliocache_sync::{Arc, LazyCounter, OnceBox, rcu};
use foliocache_xarray::{Mark, XArray};
use std::ops::Range;

use crate::counters::{Count, FileCounters, PageCounts, bump};
use crate::dirty::{FlushState, NOT_DIRTY, WritebackState};
use crate::errseq::ErrSeq;
use crate::folio::state::Snapshot;
use crate::folio::{Folio, Identity, LockedFolio, Operation, flag, grains};
use crate::frames::{FrameNumber, MAX_ORDER};
use crate::hints::Appended;
use crate::lookup::find_page;
use crate::ops::{AddressSpaceOperations, IoSegment};
use crate::prepared::Prepared;
use crate::records::{AddressSpace, BackingDevInfo, Mm};
use crate::reliance::Reliance;
use crate::slab::{SlabArc, Slot};
use crate::types::{PAGE_SIZE, PageIndex, pages_for};
use crate::{direct_map, owner};

/// Most names of files with orphans that are kept: invariant 1 of `holder`.
const MAX_NAMES: usize = 256;

impl AddressSpace {
    /// The cache of a file of `size` bytes behind `ops`, on file system `bdi`. Holds no page yet.
    ///
    /// Its memory is charged to the bound if there is room: callers that make many use [`BackingDevInfo::charge_mapping`].
    pub fn new(
        bdi: &Arc<BackingDevInfo>,
        ops: Arc<dyn AddressSpaceOperations>,
        size: u64,
    ) -> SlabArc<Self> {
        Self::in_slot(None, bdi, ops, size)
    }

    /// As [`AddressSpace::new`], in memory that is reserved for it.
    pub(crate) fn in_slot(
        slot: Option<Slot<Self>>,
        bdi: &Arc<BackingDevInfo>,
        ops: Arc<dyn AddressSpaceOperations>,
        size: u64,
    ) -> SlabArc<Self> {
        let mm = bdi.mm();
        let mapping = mm.mapping_slab.make(
            slot,
            Self {
                mm: Arc::clone(mm),
                hits: LazyCounter::new(),
                ops,
                bdi: Arc::clone(bdi),
                id: mm.next_mapping_id(),
                size: AtomicU64::new(size),
                nr_pages: AtomicU64::new(0),
                appended: Appended::default(),
                direct: Durability::new(),
                counts: PageCounts::default(),
                start: AtomicU64::new(0),
                nr_pinned: AtomicU64::new(0),
                index: XArray::new(Arc::clone(&mm.nodes)),
                i_rwsem: RankedRwLock::new(()),
                invalidate_lock: RankedRwLock::new(()),
                flush_lock: RankedMutex::new(FlushState::default()),
                groups: OnceBox::default(),
                awaited: AtomicU32::new(0),
                wb_lock: RankedMutex::new(WritebackState::new(size)),
                wb_err: ErrSeq::default(),
                counters: FileCounters::default(),
                dirty_turn: AtomicU64::new(NOT_DIRTY),
                drops_behind: AtomicU8::new(0),
                refuses_views: AtomicBool::new(false),
                relied: Reliance::default(),
                held_off: AtomicU8::new(0),
                holders: AtomicU32::new(0),
                dirty_paid_until: AtomicU64::new(0),
                dropped_to: AtomicU64::new(0),
                followed_until: AtomicU64::new(0),
                linear: OnceBox::default(),
            },
        );
        mm.register(&mapping);
        mapping
    }

    /// Context: `i_rwsem` held exclusive. Takes the list of the file's windows, shared, if it gets pages more.
    #[doc(alias = "i_size_write")]
    pub(crate) fn set_size(&self, size: u64) {
        let old = pages_for(self.size());
        self.size.store(size, Ordering::Release);
        if pages_for(size) > old {
            self.end_poison(&(old..pages_for(size)));
        }
    }

    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).expose_provenance()
    }

    /// The folio that the index has for `page`. Without its lock it may be another's by now.
    #[inline]
    pub(crate) fn folio_at(&self, page: PageIndex) -> Option<&Folio> {
        let rcu = rcu::read_lock();
        let entry = self.index.load(page.0, &rcu)?;
        Some(self.mm.folios.of_entry(entry))
    }

    /// Finds the folio that holds `page` and locks it.
    ///
    /// Context: may block for the folio lock; no RCU read section.
    pub(crate) fn lock_folio(&self, page: PageIndex) -> Option<LockedFolio<'_>> {
        let mm: &Mm = self.mm();
        loop {
            let locked = self.folio_at(page)?.lock(&mm.waits);
            if self.has_at(&locked, page) {
                return Some(locked);
            }
        }
    }

    pub(crate) fn has_at(&self, locked: &LockedFolio<'_>, page: PageIndex) -> bool {
        locked.mapping() == self.key() && locked.holds(page)
    }

    /// As [`AddressSpace::try_lock_folio`], with the state and the identity that it was locked in. Fails, too, if the state
    /// changes between the look at it and the exchange: so what it was need not be waited for after the lock.
    #[inline(always)]
    pub(crate) fn try_lock_seen(
        &self,
        page: PageIndex,
    ) -> Option<(LockedFolio<'_>, Snapshot, Identity)> {
        let (locked, seen) = self.folio_at(page)?.try_lock_seen(&self.mm.waits)?;
        let identity = locked.identity_at(seen);
        let here = locked.mapping() == self.key() && identity.covers(page);
        here.then_some((locked, seen, identity))
    }

    /// As [`AddressSpace::lock_folio`] where the lock is free; else nothing.
    #[inline]
    pub(crate) fn try_lock_folio(&self, page: PageIndex) -> Option<LockedFolio<'_>> {
        let locked = self.folio_at(page)?.try_lock(&self.mm.waits)?;
        self.has_at(&locked, page).then_some(locked)
    }

    /// Puts a new folio, locked and not uptodate, into the index at `page`: of the largest order up
    /// to `max_order` that is aligned there, meets no other folio, fits what was prepared and finds
    /// frames in a row. `None` if there is one already, or what was prepared is used up; nothing is
    /// locked or changed then. Huge frames are taken whole, so the folio may begin before `page`.
    ///
    /// Context: several folio locks may be held in ascending index; takes `xa_lock`.
    pub(crate) fn add_folio<'a>(
        &'a self,
        page: PageIndex,
        max_order: u32,
        prepared: &mut Prepared<'a>,
    ) -> Option<LockedFolio<'a>> {
        let (page, order) = match self.huge_unit(page) {
            Some(first) => (first, MAX_ORDER),
            None => (page, self.free_order(page, max_order)),
        };
        let (folio, frame, order) = prepared.take(self, page, order)?;
        let mm: &Mm = self.mm();
        let locked = folio.lock(&mm.waits);
        let identity = Identity::new(page, order, frame);
        locked.attach(self.key(), identity);
        mm.frames.set_owner(frame, mm.folios.id(folio));
        if self.bdi.is_memory() {
            locked.state.set(flag::UNEVICTABLE);
        }
        let entry = mm.folios.entry(folio);
        let added = self
            .index
            .lock()
            .insert(page.0, order, entry, &mut prepared.nodes);
        if added.is_err() {
            let (frame, order) = locked.detach();
            drop(locked);
            // A linear frame belongs to its page, not to a folio.
            match mm.frames.is_linear(frame) {
                true => mm.frames.unclaim_linear(frame, order),
                false => mm.frames.free(frame, order),
            }
            mm.folios.free(folio);
            return None;
        }
        if let Err(error) = self.take_linear(identity, &mut prepared.frames) {
            let mut index = self.index.lock();
            let _ = (index.erase_if(page.0, entry), locked.detach());
            drop((index, locked));
            mm.folios.free(folio);
            prepared.refuse(error);
            return None;
        }
        self.note_start(&locked);
        self.nr_pages.fetch_add(1 << order, Ordering::Relaxed);
        if self.bdi.is_memory() {
            mm.nr_unevictable.fetch_add(1 << order, Ordering::Relaxed);
        }
        Some(locked)
    }

    /// Largest order up to `max_order` of a folio at `page` that is aligned and meets no other now.
    fn free_order(&self, page: PageIndex, max_order: u32) -> u32 {
        let order = max_order.min(page.0.trailing_zeros());
        if order == 0 {
            return 0;
        }
        let rcu = rcu::read_lock();
        let last = page.0 + (1 << order) - 1;
        match self.index.find(page.0, last, None, &rcu) {
            Some(found) => found.index.saturating_sub(page.0).max(1).ilog2(),
            None => order,
        }
    }

    /// Takes a locked folio's dirtiness back: nothing in it is newer than the store.
    pub(crate) fn clear_dirty(&self, locked: &LockedFolio<'_>) {
        locked.set_clean();
        let before = locked.state.clear(flag::DIRTY | flag::ERROR);
        self.index.lock().clear_mark(locked.index().0, Mark::Dirty);
        for (flag, count) in [(flag::DIRTY, Count::Dirty), (flag::ERROR, Count::Failed)] {
            if before.has(flag) {
                self.uncount(count, locked.nr_pages());
            }
        }
    }

    /// Takes a folio out of the index and gives its frame and descriptor back, whatever its state.
    ///
    /// Context: invariant 3. Takes `xa_lock`, the LRU lock and the allocators' locks.
    pub(crate) fn remove_folio(&self, locked: LockedFolio<'_>) {
        self.free_frames(self.detach_folio(locked));
    }

    /// As [`Self::remove_folio`], but its frames are the caller's, if they are general ones that no view has.
    pub(crate) fn detach_folio(&self, locked: LockedFolio<'_>) -> Option<(FrameNumber, u32)> {
        let mm: &Mm = self.mm();
        self.unmap_folio(&locked);
        if !self.bdi.is_memory() {
            mm.lru.lock().remove(&mm.folios, &locked);
        }
        self.detach_unqueued_folio(locked)
    }

    /// As [`Self::detach_folio`], for a folio that is on no queue: reclaim took it off.
    /// Windows may still have its frames, which are as the store has them.
    pub(crate) fn detach_unqueued_folio(
        &self,
        locked: LockedFolio<'_>,
    ) -> Option<(FrameNumber, u32)> {
        let mm: &Mm = self.mm();
        debug_assert!(locked.may(Operation::Remove));
        if Self::take_mark(&locked) {
            bump(&self.counters.uncached.dropped, locked.nr_pages());
        }
        let folio = locked.folio();
        let (seen, frame, order) = {
            let mut index = self.index.lock();
            let erased = index.erase_if(locked.index().0, mm.folios.entry(folio));
            debug_assert!(
                erased.is_some(),
                "a locked folio with a mapping is in its index"
            );
            // Only now: a flush that succeeds makes folios clean as long as it finds them in the index.
            let seen = locked.state.load();
            let (frame, order) = locked.detach();
            if mm.frames.is_linear(frame) {
                // The next folio of the page has the same frame, and can be there as soon as the lock is free.
                mm.frames.free_linear(frame, order, seen.has(flag::MAPPED));
            }
            (seen, frame, order)
        };
        let pages = 1 << order;
        for (flag, count) in [
            (flag::DIRTY, Count::Dirty),
            (flag::UNSTABLE, Count::Unstable),
            (flag::ERROR, Count::Failed),
        ] {
            if seen.has(flag) {
                self.uncount(count, pages);
            }
        }
        if seen.has(flag::READAHEAD) {
            bump(&self.counters.readahead_wasted, pages);
            self.counters.feedback.note_wasted(pages as u32);
        }
        self.nr_pages.fetch_sub(pages, Ordering::Relaxed);
        if self.bdi.is_memory() {
            mm.nr_unevictable.fetch_sub(pages, Ordering::Relaxed);
        }
        self.retire(locked, frame, order)
    }

    /// The end of a folio that was detached and had these frames: its views keep it, or its descriptor becomes free. In
    /// the second case general frames are returned.
    pub(crate) fn retire(
        &self,
        locked: LockedFolio<'_>,
        frame: FrameNumber,
        order: u32,
    ) -> Option<(FrameNumber, u32)> {
        let (mm, folio) = (self.mm(), locked.folio());
        if locked.hold_counts().is_viewed() {
            {
                let mut names = mm.orphan_names.lock();
                if names.len() < MAX_NAMES && !names.contains_key(&self.id()) {
                    names.insert(self.id(), self.name());
                }
            }
            if !locked.leave_to_views(self.id()).is_left_orphan() {
                return None;
            }
            folio.end_orphan();
        }
        drop(locked);
        mm.folios.free(folio);
        (!mm.frames.is_linear(frame)).then_some((frame, order))
    }

    /// Whether the caller is the one who takes the mark from a locked folio.
    pub(crate) fn take_mark(locked: &LockedFolio<'_>) -> bool {
        locked.state.load().has(flag::DROPBEHIND)
            && locked.state.clear(flag::DROPBEHIND).has(flag::DROPBEHIND)
    }

    /// As [`AddressSpace::mark_grains_dirty`], for those that a range of bytes touches.
    #[doc(alias = "folio_mark_dirty")]
    #[inline(always)]
    pub(crate) fn mark_dirty(&self, locked: &LockedFolio<'_>, bytes: Range<usize>) -> u64 {
        if self.bdi.is_memory() {
            return 0;
        }
        let grains = grains::touched(locked.order(), bytes.clone());
        self.mark_grains_dirty(locked, grains, bytes)
    }

    /// Marks uptodate grains of a locked folio dirty, of which the bytes `written` have to be written back. Returns the pages
    /// that have to be written now and had not.
    ///
    /// Context: a file with a store, folio lock held. On the clean-to-dirty edge takes `xa_lock`, then the list of
    /// dirty files.
    pub(crate) fn mark_grains_dirty(
        &self,
        locked: &LockedFolio<'_>,
        grains: u64,
        written: Range<usize>,
    ) -> u64 {
        let newly = locked.add_dirty(grains, written);
        let seen = locked.state.load();
        if !seen.has(flag::DIRTY) {
            self.mark_newly_dirty(locked);
        } else if !seen.has(flag::AGAIN) {
            locked.state.set(flag::AGAIN);
        }
        grains::pages(locked.order(), newly)
    }

    #[cold]
    fn mark_newly_dirty(&self, locked: &LockedFolio<'_>) {
        locked.state.set(flag::DIRTY);
        if locked.state.clear(flag::EARLY).has(flag::EARLY) {
            self.bdi.rewrites.dirtied_again(locked.nr_pages());
        }
        self.index.lock().set_mark(locked.index().0, Mark::Dirty);
        self.count(Count::Dirty, locked.nr_pages());
        self.bdi.queue_dirty(self);
    }

    pub(crate) fn segment<'a>(
        &self,
        locked: &LockedFolio<'_>,
        bytes: Range<usize>,
    ) -> IoSegment<'a> {
        direct_map::segment(self.addr(locked, bytes.start), bytes.len())
    }

    /// Where byte `offset` of a locked folio is in memory.
    pub(crate) fn addr(&self, locked: &LockedFolio<'_>, offset: usize) -> *mut u8 {
        debug_assert!(offset < PAGE_SIZE << locked.order());
        self.mm().frames.addr(locked.frame()).wrapping_add(offset)
    }

    /// Removes the folios that lie in `pages` whole and permit `operation`; an eviction leaves those in use, the others
    /// wait for them. Returns how many pages went.
    ///
    /// Context: for [`Operation::Remove`] `wb_lock` held, unless nothing can be dirty.
    pub(crate) fn remove_folios(&self, pages: Range<u64>, operation: Operation) -> u64 {
        let mut dropped = 0;
        let lock = |page| match operation {
            Operation::Evict => self.try_lock_folio(page),
            _ => self.lock_folio(page),
        };
        self.for_each_folio(pages.clone(), lock, |locked| {
            if locked.lies_in(&pages) && locked.may(operation) {
                dropped += locked.nr_pages();
                self.remove_folio(locked);
            }
        });
        dropped
    }

    /// Calls `visit` with each folio that overlaps `pages` and that `lock` locks, in order.
    pub(crate) fn for_each_folio<'a>(
        &'a self,
        mut pages: Range<u64>,
        lock: impl Fn(PageIndex) -> Option<LockedFolio<'a>>,
        mut visit: impl FnMut(LockedFolio<'a>),
    ) {
        while let Some(first) = find_page(&self.index, &pages) {
            let page = PageIndex(first.0.max(pages.start));
            let locked = lock(page);
            pages.start = locked.as_ref().map_or(page.add(1), |locked| locked.end()).0;
            if let Some(locked) = locked {
                visit(locked);
            }
        }
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if self.mm().check_fork().is_err() {
            // The index nodes are not there in a child: nothing may walk them.
            let nothing = XArray::new(Arc::clone(&self.mm().nodes));
            std::mem::forget(std::mem::replace(&mut self.index, nothing));
            return;
        }
        // Nobody else holds it, so no writeback runs; reclaim may still evict a folio, and
        // `lock_folio` waits for that folio's lock.
        self.remove_folios(0..u64::MAX, Operation::Remove);
        owner::wait_for_holders(&self.index, &self.holders);
        self.retire_ranges();
        self.mm().unregister(self);
        self.uncharge_hits();
    }
}
