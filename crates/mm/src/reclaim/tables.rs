//! Page tables, of windows and of the direct map of linear frames: giving them back while metadata is short.
//!
//! # Model
//!
//! A page table takes 4 KiB for 2 MiB of addresses. Pages at random places of files that are hundreds of times the bound
//! have nearly a table each, and another one in each window. Tables without a page go first. Then metadata takes memory from
//! pages, as far as it may. Then units with the fewest pages are emptied: their pages are evicted, and punched.

use crate::folio::Operation;
use crate::records::{AddressSpace, Mm};
use std::ops::Range;

impl Mm {
    /// Gives back about as many page tables as `wanted`; how many.
    ///
    /// Context: no read section; no lock but those of folios and before. Waits for RCU readers, and for a punch.
    pub(super) fn shrink_tables(&self, wanted: u64) -> u64 {
        if self.frames.table_bytes() == 0 {
            return 0;
        }
        let mut gone = self.drop_idle_tables(wanted);
        if gone < wanted && !self.metadata_may_grow() {
            let units = self.frames.sparse_units((wanted - gone) as usize);
            for (owner, pages) in units {
                if let Some(file) = self.mapping(owner.file) {
                    self.evict_pages(&file, pages);
                }
            }
            self.frames.punch_leaving();
            gone += self.drop_idle_tables(wanted - gone);
        }
        gone
    }

    /// As [`Mm::shrink_tables`], of tables without a page.
    fn drop_idle_tables(&self, wanted: u64) -> u64 {
        let windows = (self.windows.get()).map_or(0, |windows| windows.drop_idle_tables(wanted));
        windows + self.frames.drop_idle_tables(wanted.saturating_sub(windows))
    }

    /// Evicts what can be evicted of some pages of a file at once.
    fn evict_pages(&self, file: &AddressSpace, pages: Range<u64>) {
        let lock = |page| file.try_lock_folio(page);
        file.for_each_folio(pages, lock, |locked| {
            if locked.may(Operation::Evict) {
                self.evict_queued(locked);
            }
        });
    }
}
