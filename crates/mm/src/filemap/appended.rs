//! The order of the next folio of a write, from recent appends.

use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, offset_in_page};

impl AddressSpace {
    /// Largest order of a new folio for a write of `remaining` bytes at `pos`: of pages that it
    /// writes whole, or, at the end of a file that grows by `small` writes, of half as many pages as
    /// were appended in a row.
    pub(super) fn order_for_write(&self, pos: u64, remaining: usize, small: bool) -> u32 {
        if offset_in_page(pos) != 0 {
            return 0;
        }
        let whole = (remaining / PAGE_SIZE) as u64;
        let appended = match small {
            true => self.appended.pages_before(pos, self.size()) / 2,
            // Where it ends is known.
            false => 0,
        };
        let pages = whole.max(appended).max(1);
        pages.ilog2().min(self.max_order())
    }
}
