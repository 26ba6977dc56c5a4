//! Windows whose pages are held: the kernel maps them, and there are no faults of ours.
//!
//! # Safety
//!
//! That of the module above.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, FrameKind};
use crate::mapped::LockedAccess;
use crate::records::{Mm, Window};

impl Window {
    /// Has the kernel map all its pages. Context: they are held, and the page tables are charged.
    pub(crate) fn fill(&self, mm: &Mm) {
        let (windows, addresses) = (mm.windows(), self.addresses(&self.whole(&self.pages)));
        let write = self.locked == Some(LockedAccess::Untracked);
        if let Err(error) = windows.area.populate(windows.offset(addresses), write) {
            tracing::debug!(%error, "pages of a locked mapping will be mapped as they are touched");
        }
    }

    /// Takes those of `pages` that it shows out of a window without faults, for good.
    pub(crate) fn cut(&self, mm: &Mm, pages: &Range<u64>) {
        let mut part = self.part(pages);
        if self.huge {
            // The file has a part of its last frame.
            let first = part.start.next_multiple_of(BLOCK_FRAMES.into());
            part = first..self.whole(&part).end;
        }
        if self.locked.is_none() || part.is_empty() {
            return;
        }
        let windows = mm.windows();
        // SAFETY: the program has been told that what is cut off the file cannot be accessed.
        if let Err(error) = unsafe { windows.area.unmap(windows.offset(self.addresses(&part))) } {
            tracing::error!(%error, "pages that the file no longer has stay mapped");
        }
    }

    /// Has huge pages made of what it shows of `pages`, as far as there is memory for that.
    pub(crate) fn collapse(&self, mm: &Mm, pages: &Range<u64>) {
        if self.huge {
            return;
        }
        let addresses = self.addresses(&self.part(pages));
        let first = addresses.start.next_multiple_of(BLOCK_SIZE);
        for unit in (first..)
            .step_by(BLOCK_SIZE)
            .take_while(|unit| unit + BLOCK_SIZE <= addresses.end)
        {
            // Both copies are there for a while.
            let Ok(_both) = mm.reserve_frames(FrameKind::Linear, BLOCK_FRAMES) else {
                return;
            };
            let part = mm.windows().offset(unit..unit + BLOCK_SIZE);
            if let Err(error) = mm.windows().area.collapse(part) {
                tracing::debug!(%error, "no huge page for a held mapping");
            }
        }
    }
}
