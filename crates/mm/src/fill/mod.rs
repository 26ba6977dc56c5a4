//! Filling: bringing pages in from the backing store.
//!
//! # Model
//!
//! The folios of a window go into the index locked and not uptodate, so that whoever wants one
//! waits for it; a vectored read fills them ([`Fill`]); then they are uptodate and unlocked. A caller that
//! needs a page waits for its end ([`AddressSpace::fill`]); a read ahead of its use is only started
//! ([`AddressSpace::start_fill`]), and ended by whatever thread learns of it.
//!
//! # Invariants
//!
//! 1. A fill that does not end well leaves nothing behind: [`Fill`]'s drop takes the folios out.
//! 2. Bytes past the end of the backing file, and past `size`, are zero.
//! 3. The memory of a read belongs to its folios, which stay locked and in the index until it has
//!    ended, whoever gave up waiting for it.
//!
//! # Locking
//!
//! `invalidate_lock` shared until the folios are in the index: a truncate that comes later finds
//! them there and waits for their locks. Memory is reserved before.

mod fetch;
mod reader;
mod uses;

pub(crate) use fetch::Behind;
pub(crate) use reader::{ReadFault, Reader};
pub(crate) use uses::FolioUse;

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sync::{Arc, rcu};
use foliocache_sys::Errno;
use smallvec::SmallVec;
use std::ops::Range;

use crate::counters::bump;
use crate::direct_map;
use crate::folio::{FolioId, LockedFolio, flag, grains};
use crate::frames::FrameKind;
use crate::ops::{IoSegment, ReadMode};
use crate::prepared::Prepared;
use crate::readahead::{
    COPY_MAX, Limits, MAX_WINDOW, READAHEAD_PART, ReadaheadState, WAIT_MAX, Window,
};
use crate::records::{AddressSpace, Mm};
use crate::slab::SlabArc;
use crate::types::{PageIndex, pages_for};

/// Times that huge frames are asked for again that others took meanwhile.
pub(crate) const REFUSALS: usize = 8;

/// Most pages in one read that is only started: whoever waits for its first page waits for all.
const READ_PAGES: u64 = 256;

/// Reads that begin together, at most: the device works on them while the next are prepared.
const PLUGGED: usize = 8;

/// A reader is close behind a stream if it is less than one part in so many of the cache behind.
const CLOSE_PART: u64 = 16;

/// Times that the cache turns over before it is tried again whether anybody follows a stream.
const FOLLOWED_FOR: u64 = 8;

impl AddressSpace {
    /// Largest window now, in pages: less when callers wait for memory, or where the bound is small.
    fn max_window(&self) -> u64 {
        let frames = &self.mm().frames;
        let max = MAX_WINDOW.min(frames.capacity() / 32).max(1);
        if frames.has_waiters() {
            max.min(16)
        } else {
            max
        }
    }

    /// The limits for a stream that is at `page` now.
    pub(crate) fn readahead_limits(&self, page: PageIndex) -> Limits<'_> {
        let mm: &Mm = self.mm();
        // The bound may have changed.
        mm.readahead.set_cap(mm.frames.capacity() / READAHEAD_PART);
        let (mode, max) = (self.ops.read_mode(), self.max_window());
        // Linear frames that are evicted leave only after a grace period.
        let room = match self.frame_kind(page) {
            FrameKind::Linear if !mm.frames.is_huge() => mm.frames.linear_room(max),
            _ => u64::MAX,
        };
        Limits {
            max,
            max_order: self.max_order(),
            file_pages: pages_for(self.size()),
            background: mode == ReadMode::Background,
            now_max: match mode {
                ReadMode::Copying => COPY_MAX,
                _ => WAIT_MAX,
            },
            room,
            budget: &mm.readahead,
            feedback: &self.counters.feedback,
        }
    }

    /// Has a stream that came to `page`, of a file that no cache of this size can hold, make room for
    /// its next window where it has just been.
    ///
    /// Context: as [`Mm::shrink_lru`].
    pub(crate) fn drop_behind(
        &self,
        handle: &ReadaheadState,
        page: PageIndex,
        limits: &Limits<'_>,
    ) {
        let mm: &Mm = self.mm();
        if limits.file_pages > mm.frames.capacity() {
            mm.drop_behind(self, handle.left_behind(page, limits), 2 * limits.max);
        }
    }

    /// Brings in what is missing of `window` around the first page of `asked`, which is in it; returns that page's folio,
    /// locked and uptodate, or `None` if somebody else put one there first.
    ///
    /// Context: blocks for memory and I/O; nothing held but perhaps `i_rwsem`.
    ///
    /// # Errors
    /// The backing store's error, if the page itself cannot be read.
    pub(crate) fn fill(
        &self,
        asked: Range<PageIndex>,
        window: Window,
        reader: Reader<'_>,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        let alone = Window::whole(asked.start, 1, 0);
        match self.try_fill(asked.clone(), window, reader) {
            Err(_) if window.pages > 1 => self.try_fill(asked, alone, reader),
            result => result,
        }
    }

    fn try_fill(
        &self,
        asked: Range<PageIndex>,
        window: Window,
        reader: Reader<'_>,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        let (page, mut refusals) = (asked.start, 0);
        let (window, fill) = loop {
            let (window, mut prepared) = self.prepare_window(&asked, window)?;
            let invalidate = self.share_invalidate_lock();
            // The file may have shrunk meanwhile; a page wholly past the end is filled with zeros.
            let range = self.whole(self.within_file(window, page));
            let Some(free) = self.free_around(page, range) else {
                return Ok(None);
            };
            let how = (window.order, reader.is_uncached());
            let fill = Fill::new(self, free, how, &mut prepared, asked.clone());
            drop(invalidate);
            match prepared.refused.filter(|_| fill.is_none()) {
                Some(error) if refusals == REFUSALS => return Err(error),
                Some(_) => refusals += 1,
                None => break (window, fill),
            }
        };
        match fill.filter(|fill| page < fill.end) {
            Some(fill) => {
                self.start_rest(window, fill.end, reader);
                fill.wait(page, reader)
                    .map(|folio| folio.map(|id| self.adopt(id)))
            }
            // Descriptors ran out on the way to the page, or somebody else came first.
            None if window.start < page => self.try_fill(asked, Window::whole(page, 1, 0), reader),
            None => Ok(None),
        }
    }

    /// Starts reading the rest of a window, behind pages that were there, as readahead. Otherwise a later reader
    /// would wait once for each piece between such pages.
    fn start_rest(&self, window: Window, from: PageIndex, reader: Reader<'_>) {
        let pages = (window.start.0 + window.pages).saturating_sub(from.0);
        if pages > 0 && self.ops.read_mode() == ReadMode::Background {
            let rest = Window::new(from.0, pages, window.order);
            self.read_ahead([rest], reader.is_uncached());
        }
    }

    /// Reserves memory for a window, or, where there is not enough for it at once, for what the
    /// request has in it: no caller waits for memory of pages that it did not ask for.
    fn prepare_window(
        &self,
        asked: &Range<PageIndex>,
        window: Window,
    ) -> Result<(Window, Prepared<'_>), Errno> {
        let range = self.within_file(window, asked.start);
        if let Some(prepared) = self.try_prepare(range.clone()) {
            return Ok((window, prepared));
        }
        let range = asked.start..range.end.min(asked.end);
        let pages = range.end.0 - range.start.0;
        let part = Window::new(range.start.0, pages, window.order);
        Ok((part, self.prepare(range)?))
    }

    /// The part of a window that the file has now, and `page` in any case.
    fn within_file(&self, window: Window, page: PageIndex) -> Range<PageIndex> {
        let end = (window.start.0 + window.pages).min(pages_for(self.size()));
        window.start..PageIndex(end.max(page.0 + 1))
    }

    /// The pages around `page` in `range` that have no folio; `None` if `page` has one.
    pub(crate) fn free_around(
        &self,
        page: PageIndex,
        range: Range<PageIndex>,
    ) -> Option<Range<PageIndex>> {
        let (mut start, mut end) = (range.start, range.end);
        let rcu = rcu::read_lock();
        while let Some(found) = self.index.find(start.0, end.0 - 1, None, &rcu) {
            if found.index > page.0 {
                end = PageIndex(found.index);
                break;
            }
            if found.last() >= page.0 {
                return None;
            }
            start = PageIndex(found.last() + 1);
        }
        Some(start..end)
    }

    /// As [`AddressSpace::start_fill`], of pages that no reader waits for.
    pub(crate) fn read_ahead(&self, windows: impl IntoIterator<Item = Window>, uncached: bool) {
        let mut plug = Plug::default();
        for window in windows {
            self.start_fill(window, PageIndex(0)..PageIndex(0), uncached, &mut plug);
        }
    }

    /// Marks grains of a locked folio uptodate, and queues it for reclaim if they are its first.
    pub(crate) fn set_uptodate(&self, locked: &LockedFolio<'_>, grains: u64) {
        if locked.add_uptodate(grains) {
            self.queue_folio(locked);
        }
    }

    fn queue_folio(&self, locked: &LockedFolio<'_>) {
        if self.bdi().is_memory() {
            return;
        }
        let mm = self.mm();
        let page = locked.index();
        let mut lru = mm.lru.lock();
        if lru.add(&mm.folios, locked, self.id(), page) {
            bump(&self.counters.refaults, 1);
        }
        if locked.state.load().has(flag::DROPBEHIND) {
            let nr_uncached = lru.nr_uncached();
            drop(lru);
            return mm.bound_uncached(nr_uncached);
        }
        // Relaxed, both: hints.
        let dropped_to = self.dropped_to.load(Ordering::Relaxed);
        let frames = mm.frames.capacity();
        if page.0 < dropped_to && dropped_to - page.0 < frames / CLOSE_PART {
            self.followed_until
                .store(lru.evictions() + FOLLOWED_FOR * frames, Ordering::Relaxed);
        }
    }

    /// Fills the grains of `wanted` that a folio lacks. The folio is in the index and locked.
    ///
    /// Context: folio lock held; blocks for I/O.
    pub(crate) fn fill_grains(&self, locked: &LockedFolio<'_>, wanted: u64) -> Result<(), Errno> {
        let missing = wanted & !locked.uptodate_grains();
        for bytes in grains::ranges(missing, locked.order()) {
            let pos = locked.index().pos() + bytes.start as u64;
            let segments = [self.segment(locked, bytes)];
            let read = self.ask_store(|ops| ops.read_folios(pos, &segments))?;
            self.zero_unread(pos, &segments, read, self.size());
        }
        if missing != 0 {
            self.set_uptodate(locked, missing);
        }
        Ok(())
    }

    /// After a read of `read` bytes into the segments: zeroes what a file of `size` bytes does not have.
    fn zero_unread(&self, pos: u64, segments: &[IoSegment<'_>], read: usize, size: u64) {
        let wanted: usize = segments.iter().map(IoSegment::len).sum();
        let read = read.min(wanted);
        bump(&self.counters.read_in, read as u64);
        let valid = size.saturating_sub(pos).min(read as u64) as usize;
        for segment in direct_map::after(segments, valid) {
            direct_map::zero(segment.addr(), segment.len());
        }
    }

    /// Starts bringing in what is missing of `window`, as far as memory is free now. A reader waits for the pages of
    /// `asked`; the others are read ahead. Returns the pages that are on their way once `plug` goes, or are there
    /// already by the time it returns.
    ///
    /// Context: takes `invalidate_lock` if it is free. May evict clean folios; does not wait for
    /// memory. Waits for I/O only where the store cannot read in the background.
    pub(crate) fn start_fill(
        &self,
        window: Window,
        asked: Range<PageIndex>,
        uncached: bool,
        plug: &mut Plug,
    ) -> u64 {
        let end = PageIndex((window.start.0 + window.pages).min(pages_for(self.size())));
        if window.start >= end {
            return 0;
        }
        let Some(mut prepared) = self.try_prepare(window.start..end) else {
            return 0;
        };
        let Some(invalidate) = self.try_share_invalidate_lock() else {
            return 0;
        };
        let end = PageIndex(end.0.min(pages_for(self.size())).max(window.start.0));
        let mut fills = SmallVec::<[Fill; 1]>::new();
        let Range { start: mut at, end } = self.whole(window.start..end);
        while at < end {
            let until = self.whole(at..end.min(at.add(READ_PAGES))).end;
            let Some(free) = self.free_around(at, at..until) else {
                at = self.after_folio(at);
                continue;
            };
            let next = free.end;
            let how = (window.order, uncached);
            let fill = Fill::new(self, free, how, &mut prepared, asked.clone());
            let Some(fill) = fill else { break };
            at = fill.end.max(next);
            fills.push(fill);
        }
        drop((prepared, invalidate));
        fills.into_iter().map(|fill| fill.start(plug)).sum()
    }

    fn adopt(&self, folio: FolioId) -> LockedFolio<'_> {
        let mm: &Mm = self.mm();
        mm.folios.get(folio).adopt(&mm.waits)
    }

    /// The page after the folio that holds `page`, or the next page.
    pub(crate) fn after_folio(&self, page: PageIndex) -> PageIndex {
        let rcu = rcu::read_lock();
        let found = self.index.find(page.0, page.0, None, &rcu);
        PageIndex(found.map_or(page.0, |found| found.last()) + 1)
    }

    /// Brings a range in without copying it anywhere.
    ///
    /// Blocks for memory and I/O; takes memory of the bound. Pages that are there stay as they are.
    ///
    /// # Errors
    /// The backing store's error; `ECHILD` after a fork.
    #[doc(alias = "POSIX_FADV_WILLNEED")]
    pub fn populate(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if self.bdi().is_memory() {
            return Ok(());
        }
        let end = pos.saturating_add(len).min(self.size());
        let mut page = PageIndex::of(pos);
        while page.pos() < end {
            if let Some(folio) = self.folio_at(page) {
                self.keep_used(folio, folio.state.load());
            } else {
                let pages = self.max_window().min(pages_for(end) - page.0);
                let window = Window::whole(page, pages, self.max_order());
                drop(self.fill(page..page.add(1), window, Reader::Ordinary)?);
            }
            page = self.after_folio(page);
        }
        Ok(())
    }
}

/// The file system whose store was handed reads that it may hold back. They begin together, [`PLUGGED`] at a time
/// and the rest when it goes.
///
/// Context: nothing waits while there is one, nor touches memory of a caller, whose faults may need the pages.
#[derive(Default)]
pub(crate) struct Plug {
    of: Option<SlabArc<AddressSpace>>,
    held: usize,
}

impl Plug {
    /// To be called before a read of the file is handed to the store.
    fn add(&mut self, mapping: &AddressSpace) {
        let same = |held: &SlabArc<AddressSpace>| Arc::ptr_eq(held.bdi(), mapping.bdi());
        if self.held == PLUGGED || !self.of.as_ref().is_some_and(same) {
            drop(std::mem::take(self));
            self.of = Some(mapping.share());
        }
        self.held += 1;
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        if let Some(mapping) = &self.of {
            mapping.ops.begin_reads();
        }
    }
}

/// One read of new folios, which stay locked until it ends, on whatever thread that is. Those still in it when
/// it is dropped leave the index.
struct Fill {
    mapping: SlabArc<AddressSpace>,
    folios: SmallVec<[FolioId; 4]>,
    end: PageIndex,
    pos: u64,
    segments: SmallVec<[IoSegment<'static>; 1]>,
    /// The file's size when the folios went into the index. A truncate zeroes what it cuts off
    /// later. One that fails puts the old size back, so the size in between must not be used.
    size: u64,
    /// Pages that a reader waits for; the others are read ahead.
    asked: Range<PageIndex>,
    /// When it began, in milliseconds.
    begun: u64,
}

impl Fill {
    /// Puts new folios into the index, from the first page of `range` on as far as there is nothing in the
    /// way and memory in hand. `None` if that is no folio.
    ///
    /// Context: `invalidate_lock` held shared.
    fn new<'a>(
        mapping: &'a AddressSpace,
        range: Range<PageIndex>,
        (max_order, uncached): (u32, bool),
        prepared: &mut Prepared<'a>,
        asked: Range<PageIndex>,
    ) -> Option<Self> {
        let mut fill = Self {
            mapping: mapping.share(),
            folios: SmallVec::new(),
            end: range.start,
            pos: range.start.pos(),
            segments: SmallVec::new(),
            size: mapping.size(),
            asked,
            begun: coarse_monotonic_ms(),
        };
        mapping.bdi().note_asked();
        while fill.end < range.end {
            let order = max_order.min((range.end.0 - fill.end.0).ilog2());
            let Some(locked) = mapping.add_folio(fill.end, order, prepared) else {
                break;
            };
            debug_assert_eq!(locked.index(), fill.end, "huge frames are whole");
            if uncached {
                mapping.mark_uncached(&locked);
            }
            fill.end = locked.end();
            let segment = mapping.segment(&locked, 0..locked.identity().bytes());
            direct_map::push_merged(&mut fill.segments, segment);
            fill.folios.push(mapping.mm().folios.id(locked.hand_over()));
        }
        (!fill.folios.is_empty()).then_some(fill)
    }

    /// Hands the read to the store; returns its pages.
    fn start(self, plug: &mut Plug) -> u64 {
        let (pos, pages) = (self.pos, self.end.0 - PageIndex::of(self.pos).0);
        let (mapping, segments) = (self.mapping.share(), self.segments.clone());
        plug.add(&mapping);
        let done = move |result| {
            // After an error the reader that needs a page reads it again, and gets the error.
            if let Ok(read) = result {
                self.end(read, None);
            }
        };
        mapping.ops.start_read(pos, &segments, Box::new(done));
        pages
    }

    /// Has the store read and wait; returns the folio that holds `page`, still locked.
    fn wait(self, page: PageIndex, reader: Reader<'_>) -> Result<Option<FolioId>, Errno> {
        let mapping = &self.mapping;
        let read = match reader {
            Reader::Fault(fault) if self.end == page.add(1) && self.pos == page.pos() => {
                mapping.read_for_fault(fault, mapping.mm().folios.get(self.folios[0]), page)
            }
            _ => mapping.ops.read_folios(self.pos, &self.segments),
        };
        let read = read.inspect_err(|&error| {
            let bytes = (self.end.pos() - self.pos).into();
            mapping
                .bdi()
                .tell_failure(mapping, "a read failed", bytes, error);
        })?;
        Ok(self.end(read, Some(page)))
    }

    /// Ends a read of `read` bytes: unlocks the folios, but for the one that holds `kept`, which it returns.
    fn end(mut self, read: usize, kept: Option<PageIndex>) -> Option<FolioId> {
        let mapping = &self.mapping;
        let took = coarse_monotonic_ms() - self.begun;
        mapping
            .bdi()
            .tell_slow(mapping, "a read", read as u64, took);
        mapping.zero_unread(self.pos, &self.segments, read, self.size);
        let mut still_locked = None;
        for folio in std::mem::take(&mut self.folios) {
            let locked = mapping.adopt(folio);
            let asked = locked.index() < self.asked.end && self.asked.start < locked.end();
            if !asked {
                locked.state.set(flag::READAHEAD);
                bump(&mapping.counters.readahead, locked.nr_pages());
            }
            mapping.set_uptodate(&locked, grains::all(locked.order()));
            if kept.is_some_and(|page| locked.holds(page)) {
                locked.hand_over();
                still_locked = Some(folio);
            }
        }
        still_locked
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.mapping.bdi().note_answered();
        for folio in self.folios.drain(..) {
            self.mapping.remove_folio(self.mapping.adopt(folio));
        }
    }
}
