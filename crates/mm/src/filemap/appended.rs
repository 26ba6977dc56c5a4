//! What was appended to a file lately, and how large the next folio is.

use foliocache_sync::atomic::{AtomicU64, Ordering};

use crate::address_space::AddressSpace;
use crate::types::{PAGE_SIZE, offset_in_page};

/// The bytes that were appended to a file in a row: a guess at how it goes on.
///
/// # Memory ordering
///
/// Relaxed: written with `i_rwsem` held exclusive; whoever reads something older makes a smaller
/// folio, or one that is larger than it will need.
#[derive(Debug, Default)]
pub(crate) struct Appended {
    start: AtomicU64,
    end: AtomicU64,
}

impl Appended {
    /// Notes that a file of `size` bytes was written from `pos` to `end`, beyond its end.
    pub(super) fn note(&self, size: u64, pos: u64, end: u64) {
        let goes_on = self.end.load(Ordering::Relaxed) == size && pos <= size;
        if !goes_on {
            self.start.store(pos, Ordering::Relaxed);
        }
        self.end.store(end, Ordering::Relaxed);
    }

    /// Pages that were appended in a row up to `pos`, the end of a file of `size` bytes; else 0.
    pub(super) fn pages_before(&self, pos: u64, size: u64) -> u64 {
        if pos < size || self.end.load(Ordering::Relaxed) != pos {
            return 0;
        }
        (pos - self.start.load(Ordering::Relaxed).min(pos)) / PAGE_SIZE as u64
    }
}

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
