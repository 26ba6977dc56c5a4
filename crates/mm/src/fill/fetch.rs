//! Bringing in pages for a read, a view, a pin or a fault, and reading on ahead of it.

use foliocache_sys::Errno;
use std::ops::Range;

use super::reader::Reader;
use crate::counters::bump;
use crate::folio::{LockedFolio, grains};
use crate::iocb::Iocb;
use crate::readahead::{Limits, ReadaheadState, Window};
use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, PageIndex, pages_for};

impl AddressSpace {
    /// Bytes of `len` from `pos` on that are in the file.
    #[inline]
    pub(crate) fn left(&self, pos: u64, len: usize) -> usize {
        self.size().saturating_sub(pos).min(len as u64) as usize
    }

    /// The first use of a folio of `order` that readahead brought in, at `page`. Starts reads only where
    /// the store reads in the background, so it does not block.
    ///
    /// Context: no folio lock, no RCU read section.
    #[cold]
    pub(crate) fn used_readahead(
        &self,
        handle: &ReadaheadState,
        page: PageIndex,
        order: u32,
        uncached: bool,
    ) {
        let ahead = self.note_first_use(handle, page, order);
        self.read_on_ahead(handle, page, ahead, uncached);
    }

    /// The first half of [`AddressSpace::used_readahead`]: returns the windows to read ahead, and their limits. Does not
    /// sleep.
    ///
    /// Context: a folio lock may be held.
    pub(crate) fn note_first_use(
        &self,
        handle: &ReadaheadState,
        page: PageIndex,
        order: u32,
    ) -> (Vec<Window>, Limits<'_>) {
        bump(&self.counters.readahead_used, 1 << order);
        self.counters.feedback.note_used(1 << order);
        let limits = self.readahead_limits(page);
        (handle.on_first_use(page, &limits), limits)
    }

    /// The second half of [`AddressSpace::used_readahead`].
    ///
    /// Context: no folio lock, no RCU read section.
    pub(crate) fn read_on_ahead(
        &self,
        handle: &ReadaheadState,
        page: PageIndex,
        (windows, limits): (Vec<Window>, Limits<'_>),
        uncached: bool,
    ) {
        if !windows.is_empty() && !uncached {
            self.drop_behind(handle, page, &limits);
        }
        self.read_ahead(windows, uncached);
    }

    /// Does the rest of the work of a miss, if it was one.
    pub(crate) fn follow_miss(&self, iocb: &mut Iocb, behind: Option<Behind>) {
        if let Some(behind) = behind {
            iocb.fetched = iocb.fetched.max(behind.fetched.pos());
            self.read_ahead(behind.window, iocb.uncached);
        }
    }

    /// Where byte `pos` of a locked folio that holds it is, and how many bytes from there on are uptodate.
    pub(crate) fn readable(&self, locked: &LockedFolio<'_>, pos: u64) -> (*const u8, usize) {
        let offset = (pos - locked.index().pos()) as usize;
        let readable = grains::run_from(locked.uptodate_grains(), locked.order(), offset);
        (self.addr(locked, offset), readable)
    }

    /// How many bytes before byte `pos` of a locked folio that holds it are uptodate, as that one is.
    pub(crate) fn readable_before(&self, locked: &LockedFolio<'_>, pos: u64) -> usize {
        let offset = (pos - locked.index().pos()) as usize;
        grains::run_before(locked.uptodate_grains(), locked.order(), offset)
    }

    pub(crate) fn has_grain_at(&self, locked: &LockedFolio<'_>, pos: u64) -> bool {
        let offset = (pos - locked.index().pos()) as usize;
        locked.uptodate_grains() & grains::of(locked.order(), offset) != 0
    }

    /// Reads what the folio that holds the first page of `asked` lacks of `asked`; returns it locked, or `None` if it is
    /// gone.
    ///
    /// Context: blocks for I/O, with `invalidate_lock` shared: the size must not change meanwhile, not
    /// even for a truncate that is taken back.
    pub(crate) fn read_rest(
        &self,
        asked: Range<PageIndex>,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        let _invalidate = self.share_invalidate_lock();
        let Some(locked) = self.lock_folio(asked.start) else {
            return Ok(None);
        };
        let identity = locked.identity();
        let offset = |page: PageIndex| (page.0 - identity.index.0) as usize * PAGE_SIZE;
        let bytes = offset(asked.start)..offset(asked.end).min(identity.bytes());
        match self.fill_grains(&locked, grains::touched(identity.order, bytes)) {
            Ok(()) => Ok(Some(locked)),
            Err(error) => {
                drop(self.keep_content(locked));
                Err(error)
            }
        }
    }

    /// The folio that holds the first page of `asked`, locked, with that page uptodate; and the rest of the work if it
    /// was missing.
    pub(crate) fn read_folio(
        &self,
        handle: &ReadaheadState,
        asked: Range<PageIndex>,
        reader: Reader<'_>,
    ) -> Result<(LockedFolio<'_>, Option<Behind>), Errno> {
        let (page, mut behind) = (asked.start, None);
        loop {
            if let Some(locked) = self.lock_folio(page) {
                if self.has_grain_at(&locked, page.pos()) {
                    return Ok((locked, behind));
                }
                // Written in part and never read, or left by a panic of the backing store.
                drop(locked);
                match self.read_rest(asked.clone())? {
                    Some(locked) => return Ok((locked, behind)),
                    None => continue,
                }
            }
            let limits = self.readahead_limits(page);
            let (now, window) = handle.on_miss(&asked, &limits);
            let fetched = self.missing_from(&asked, now.start.add(now.pages));
            if behind.is_none() {
                bump(&self.counters.misses, fetched.0 - page.0);
            }
            if !reader.is_uncached() {
                self.drop_behind(handle, page, &limits);
            }
            behind = Some(Behind { fetched, window });
            if let Some(locked) = self.fill(asked.clone(), now, reader)? {
                return Ok((locked, behind));
            }
        }
    }

    /// The folio that holds `page`, locked, with that page uptodate, or all of it where its frames are huge; and what
    /// is to follow if it was missing.
    pub(crate) fn folio_to_map(
        &self,
        readahead: &ReadaheadState,
        page: PageIndex,
        reader: Reader<'_>,
    ) -> Result<(LockedFolio<'_>, Option<Behind>), Errno> {
        let Some(unit) = self.huge_unit(page) else {
            return self.page_to_map(readahead, page, reader);
        };
        loop {
            // The frame is zero beyond the end of the file.
            let last = PageIndex(pages_for(self.size()).saturating_sub(1).max(unit.0));
            let (locked, behind) = self.page_to_map(readahead, page.min(last), Reader::Ordinary)?;
            let all = 0..locked.identity().bytes();
            if locked.has_grains(all.clone()) {
                return Ok((locked, behind));
            }
            let end = locked.end();
            drop(locked);
            if let Some(locked) = self.read_rest(unit..end)?
                && locked.has_grains(all)
            {
                return Ok((locked, behind));
            }
        }
    }

    pub(crate) fn page_to_map(
        &self,
        readahead: &ReadaheadState,
        page: PageIndex,
        reader: Reader<'_>,
    ) -> Result<(LockedFolio<'_>, Option<Behind>), Errno> {
        if !self.has_page(page) {
            return Err(Errno::EFAULT);
        }
        if !self.bdi().is_memory() {
            return self.read_folio(readahead, page..page.add(1), reader);
        }
        // A hole gets memory, as little as can be.
        loop {
            if let Some(locked) = self.lock_folio(page) {
                let offset = (page.0 - locked.index().0) as usize * PAGE_SIZE;
                let grain = grains::of(locked.order(), offset);
                self.fill_grains(&locked, grain)?;
                return Ok((locked, None));
            }
            let whole = Window::whole(page, 1, 0);
            if let Some(locked) = self.fill(page..page.add(1), whole, Reader::Ordinary)? {
                return Ok((locked, None));
            }
        }
    }
}

/// The rest of the work of a miss, after its own page is copied.
pub(crate) struct Behind {
    /// The page after those that it brought in for its own request.
    pub(crate) fetched: PageIndex,
    pub(crate) window: Option<Window>,
}
