//! The frames of a file's pages: the boundary between files and frames (decision 42).

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::ops::Range;

use crate::folio::Identity;
use crate::frames::{BLOCK_FRAMES, FrameKind, FrameNumber, MAX_ORDER, Reservation};
use crate::lookup::find_page;
use crate::records::AddressSpace;
use crate::types::{PageIndex, pages_for};

/// Pages of a huge frame.
const UNIT: u64 = BLOCK_FRAMES as u64;

impl AddressSpace {
    /// The frame that `page` has for ever, if it lies in a linear range.
    pub(crate) fn linear_frame(&self, page: PageIndex) -> Option<FrameNumber> {
        let ranges = self.linear.get()?.ranges.read();
        let range = ranges.iter().find(|range| page.0 < range.end())?;
        Some(range.base().add((page.0 - range.first) as u32))
    }

    /// The first page of the folio that `page` has, if its frames are huge.
    pub(crate) fn huge_unit(&self, page: PageIndex) -> Option<PageIndex> {
        let is_huge = self.mm().frames.is_huge() && self.linear_frame(page).is_some();
        is_huge.then_some(PageIndex(page.0 & !(UNIT - 1)))
    }

    /// Pages, and those that folios of huge frames there have besides.
    pub(crate) fn whole(&self, pages: Range<PageIndex>) -> Range<PageIndex> {
        let start = self.huge_unit(pages.start).unwrap_or(pages.start);
        let last = PageIndex(pages.end.0.saturating_sub(1));
        let end = self.huge_unit(last).map(|unit| unit.add(UNIT));
        start..end.unwrap_or(pages.end)
    }

    pub(crate) fn frame_kind(&self, page: PageIndex) -> FrameKind {
        match self.linear_frame(page) {
            Some(_) => FrameKind::Linear,
            None => FrameKind::General,
        }
    }

    /// Gives the ranges back. Context: no folio is left, nor a window.
    pub(crate) fn retire_ranges(&self) {
        if let Some(linear) = self.linear.get() {
            let ranges = std::mem::take(&mut *linear.ranges.write());
            for range in ranges {
                let range = Arc::into_inner(range).expect("nobody else has the file");
                self.mm().frames.retire_range(range);
            }
            self.mm().reclaimer.worker.wake();
        }
    }

    /// Largest order of a folio now: at most a 64th of the bound.
    pub(crate) fn max_order(&self) -> u32 {
        (self.mm().frames.capacity() / 64)
            .max(1)
            .ilog2()
            .min(MAX_ORDER)
    }

    /// Takes 2^`order` frames in a row for the folio that begins at `page`. `None`: not now, so a smaller
    /// folio has to do; one of a single page is refused only if it has a folio by now.
    ///
    /// This and [`Self::detach_unqueued_folio`] are the boundary between files and frames (decision 42): a page in a
    /// linear range has one frame for ever, which is the folio's as long as that is in the index
    /// ([`Frames::take_linear`](crate::Frames)); for others any free frames of the general blocks will do. Frames are
    /// taken on a promise of their kind, and are one folio's until they are freed.
    ///
    /// May sleep as [`Frames::alloc`](crate::Frames::alloc) does; never waits for memory to be freed.
    pub(crate) fn take_frames(
        &self,
        page: PageIndex,
        order: u32,
        promised: &mut Reservation<'_>,
    ) -> Option<FrameNumber> {
        match (self.linear_frame(page), promised.kind()) {
            (None, FrameKind::General) => self.mm().frames.alloc_order(promised, order),
            // Without its page table, which was charged before, there is none.
            (Some(frame), FrameKind::Linear) => {
                self.mm().frames.claim_linear(frame, order).then_some(frame)
            }
            // The range is newer than the promise, or ends here.
            _ => None,
        }
    }

    /// Takes the frames of a folio that has just come into the index into use, if they are linear ones, which were claimed.
    ///
    /// Context: the folio is locked; takes `windows` shared.
    ///
    /// # Errors
    /// Those of [`Frames::take_linear`](crate::Frames); the frames are not claimed any more then.
    pub(crate) fn take_linear(
        &self,
        place: Identity,
        promised: &mut Reservation<'_>,
    ) -> Result<(), Errno> {
        let (frames, first) = (&self.mm().frames, place.index.0);
        if !frames.is_linear(place.frame) {
            return Ok(());
        }
        let taken = frames.take_linear(place.frame, place.order, promised);
        if taken.inspect_err(|_| frames.unclaim_linear(place.frame, place.order))? {
            self.unmap_pages(first..first + (1 << place.order));
        }
        Ok(())
    }

    /// Frees the general frames of a folio that left the index and whose version grew. A reader may still be
    /// copying from them, and finds that out afterwards. Does not sleep.
    pub(crate) fn free_frames(&self, frames: Option<(FrameNumber, u32)>) {
        if let Some((frame, order)) = frames {
            self.mm().frames.free(frame, order);
        }
    }

    /// Whether some of `pages` are cached.
    pub(crate) fn has_pages(&self, pages: &Range<u64>) -> bool {
        find_page(&self.index, pages).is_some()
    }

    /// Whether a page is the file's, or in a huge frame with such a page.
    pub(crate) fn has_page(&self, page: PageIndex) -> bool {
        self.huge_unit(page).unwrap_or(page).0 < pages_for(self.size())
    }
}
