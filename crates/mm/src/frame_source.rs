//! Where the frames of a file come from, and where they go: the boundary between files and frames.
//!
//! # Model
//!
//! ```text
//!   promised before (Mm::prepare) ─▶ take_frames ─▶ folio in the index
//!                                                        │ out of the index, its version grown
//!                                    free_frames ◀───────┘
//! ```
//!
//! Frames of all files come from the general blocks: any that are free, and free again at once. A file with
//! frames of its own (a linear range, where page `i` has frame `base + i`) differs in these two functions
//! alone (decision 42). A model of such a range runs in the tests.
//!
//! # Invariants
//!
//! 1. Frames are taken on a promise, whatever their kind: one budget counts them, and one queue serves who
//!    waits for them.
//! 2. Frames that were taken are one folio's until they are freed. A source that has one frame for a page
//!    refuses it while another folio has it.
//! 3. Frames are freed after the folio left the index and its version grew. A reader may still be copying from
//!    them, and finds that out afterwards.

use crate::address_space::AddressSpace;
use crate::frames::{FrameNumber, Reservation};
use crate::types::PageIndex;

impl AddressSpace {
    /// Takes 2^`order` frames in a row for the folio that begins at `page`. `None`: not now, so a smaller
    /// folio has to do; one of a single page is refused only if it has a folio by now.
    ///
    /// May sleep as [`Frames::alloc`](crate::Frames::alloc) does; never waits for memory to be freed.
    #[cfg_attr(
        not(any(test, shuttle)),
        expect(unused_variables, reason = "any frame does")
    )]
    pub(crate) fn take_frames(
        &self,
        page: PageIndex,
        order: u32,
        promised: &mut Reservation<'_>,
    ) -> Option<FrameNumber> {
        #[cfg(any(test, shuttle))]
        if let Some(range) = self.ops.linear_range() {
            return range.take(page, order, promised);
        }
        self.mm().frames.alloc_order(promised, order)
    }

    /// Frees the frames of a folio that is in the index no more. Does not sleep.
    pub(crate) fn free_frames(&self, frame: FrameNumber, order: u32) {
        #[cfg(any(test, shuttle))]
        if let Some(range) = self.ops.linear_range() {
            return range.free(frame, order);
        }
        self.mm().frames.free(frame, order);
    }
}
