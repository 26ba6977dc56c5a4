//! Memory that is set aside before any lock is taken: frames, index nodes and descriptors of the folios to come. From
//! [`AddressSpace::prepare`].

use foliocache_sys::Errno;
use foliocache_xarray::Preload;
use smallvec::SmallVec;

use crate::folio::Folio;
use crate::frames::{FrameNumber, MAX_ORDER, Reservation};
use crate::records::{AddressSpace, Mm};
use crate::types::PageIndex;

/// See the module. Its drop gives the unused part back.
pub(crate) struct Prepared<'a> {
    mm: &'a Mm,
    pub(crate) frames: Reservation<'a>,
    pub(crate) nodes: Preload<'a>,
    /// Descriptors: one, or as many as [`Prepared::reserve_folios`] was asked for.
    folios: SmallVec<[&'a Folio; 1]>,
    /// Largest order that frames were found for lately.
    max_order: u32,
    /// Why there is no huge frame, though one was promised.
    pub(crate) refused: Option<Errno>,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(
        mm: &'a Mm,
        frames: Reservation<'a>,
        nodes: Preload<'a>,
        folio: &'a Folio,
    ) -> Self {
        Self {
            mm,
            frames,
            nodes,
            folios: SmallVec::from_buf([folio]),
            max_order: MAX_ORDER,
            refused: None,
        }
    }

    /// Takes a descriptor and frames for the folio of `mapping` that begins at `page`, of `order` or,
    /// where no so many are promised or free in a row, of a lower one; says which. `None` when the
    /// promise is used up, descriptors ran out, or the page has a folio by now.
    pub(crate) fn take(
        &mut self,
        mapping: &AddressSpace,
        page: PageIndex,
        order: u32,
    ) -> Option<(&'a Folio, FrameNumber, u32)> {
        let promised = self.frames.left().checked_ilog2()?;
        let least = match mapping.huge_unit(page) {
            Some(_) => MAX_ORDER,
            None => 0,
        };
        let folio = self.folios.pop();
        let folio = folio.or_else(|| self.mm.folios.alloc(&self.mm.frames))?;
        for order in (least..=order.min(promised).min(self.max_order)).rev() {
            if let Some(frame) = mapping.take_frames(page, order, &mut self.frames) {
                return Some((folio, frame, order));
            }
            // An order that is not free now is not tried again.
            self.max_order = order.saturating_sub(1);
        }
        self.folios.push(folio);
        None
    }

    /// Sets descriptors for `nr` folios aside; whether they are there.
    pub(crate) fn reserve_folios(&mut self, nr: usize) -> bool {
        let (mm, missing) = (self.mm, nr.saturating_sub(self.folios.len()));
        let more = (0..missing).map_while(|_| mm.folios.alloc(&mm.frames));
        self.folios.extend(more);
        self.folios.len() >= nr
    }

    /// Gives the frames back: the pool of huge pages has none.
    pub(crate) fn refuse(&mut self, error: Errno) {
        self.frames.cancel();
        self.mm.frames.note_pool_empty();
        self.refused = Some(error);
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        for folio in self.folios.drain(..) {
            self.mm.folios.free(folio);
        }
    }
}
