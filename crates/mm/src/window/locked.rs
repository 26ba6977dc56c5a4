//! Windows whose pages are held: the kernel maps them, and there are no faults of ours.

use std::ops::Range;

use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, FrameKind};
use crate::records::{Mm, Window};

impl Window {
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
