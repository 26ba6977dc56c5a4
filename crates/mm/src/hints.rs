//! Guesses about a file that an address space keeps: the bytes that were appended lately.

use foliocache_sync::atomic::{AtomicU64, Ordering};

use crate::types::PAGE_SIZE;

/// The bytes that were appended to a file in a row: a guess at how it goes on.
///
/// # Memory ordering
///
/// Relaxed: written with `i_rwsem` held exclusive; a thread that reads something older makes a smaller folio, or one
/// that is larger than it will need.
#[derive(Debug, Default)]
pub(crate) struct Appended {
    start: AtomicU64,
    end: AtomicU64,
}

impl Appended {
    /// Notes that a file of `size` bytes was written from `pos` to `end`, beyond its end.
    pub(crate) fn note(&self, size: u64, pos: u64, end: u64) {
        let goes_on = self.end.load(Ordering::Relaxed) == size && pos <= size;
        if !goes_on {
            self.start.store(pos, Ordering::Relaxed);
        }
        self.end.store(end, Ordering::Relaxed);
    }

    /// Pages that were appended in a row up to `pos`, the end of a file of `size` bytes; else 0.
    pub(crate) fn pages_before(&self, pos: u64, size: u64) -> u64 {
        if pos < size || self.end.load(Ordering::Relaxed) != pos {
            return 0;
        }
        (pos - self.start.load(Ordering::Relaxed).min(pos)) / PAGE_SIZE as u64
    }
}
