//! Files that wait for the flusher: closed ones (`writeback/closed.rs`), and what uncached writers handed over
//! (`writeback/handed.rs`).

use std::collections::BTreeMap;
use std::ops::Range;

use crate::slab::SlabWeak;

/// A file, and the pages that are not written yet.
pub(crate) type ClosedFile<F> = (SlabWeak<F>, Range<u64>);

/// Closed files that are to be written.
#[derive(Debug)]
pub(crate) struct Closed<F> {
    /// By their numbers.
    pub(crate) files: BTreeMap<u64, ClosedFile<F>>,
    /// When the first of them was closed, in nanoseconds of the monotonic clock.
    pub(crate) since: u64,
}

impl<F> Default for Closed<F> {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            since: 0,
        }
    }
}

/// By the file's number.
pub(crate) type Handed<F> = BTreeMap<u64, HandedFile<F>>;

/// Pages of one file that were handed over and not begun.
#[derive(Debug)]
pub(crate) struct HandedFile<F> {
    pub(crate) file: SlabWeak<F>,
    /// The pages around all of it.
    pub(crate) pages: Range<u64>,
    /// How many pages it is, those written twice counted twice.
    pub(crate) nr_pages: u64,
}
