//! Byte ranges, as callers give them.

use std::ops::{Bound, Range, RangeBounds};

/// The bytes of a range. A range with an open end ends at `end`.
pub(crate) fn bytes_of(range: impl RangeBounds<u64>, end: u64) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => end,
    };
    start..end
}

/// The length of a range: 0 if it ends before it begins.
pub(crate) fn bytes_in(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}
