//! Bytes in and out of the pieces of memory that the cache hands to a backing store.
//!
//! # Safety
//!
//! The contract of [`IoSegment`] is the only premise: whoever calls a backing store keeps the
//! memory of every segment valid, for reads and writes of its length, until the call returns, and
//! nothing else of the program holds a Rust reference to it. Other threads may change bytes that
//! are being written out (the kernel's writeback has the same property); the copies below go
//! through raw pointers and never make a reference to the memory.
#![allow(unsafe_code)]

use foliocache_mm::IoSegment;

/// Bytes of all segments together.
pub(crate) fn total(segments: &[IoSegment]) -> u64 {
    segments.iter().map(|segment| segment.len() as u64).sum()
}

/// The page of a segment that starts at byte `start`, or what the segment has of it.
pub(crate) fn part(segment: &IoSegment, start: usize) -> IoSegment {
    let len = segment
        .len()
        .saturating_sub(start)
        .min(foliocache_mm::PAGE_SIZE);
    IoSegment::new(segment.addr().wrapping_add(start), len, segment.block())
}

/// Copies at most `limit` bytes out of the segments, in file order.
pub(crate) fn gather(segments: &[IoSegment], limit: usize) -> Vec<u8> {
    let len = (total(segments) as usize).min(limit);
    let mut bytes = vec![0_u8; len];
    let mut done = 0;
    for segment in segments {
        let to = &mut bytes[done..];
        let take = segment.len().min(to.len());
        // SAFETY: the segment is valid for reads of its length (module contract), `to` is at least
        // `take` bytes long, and a fresh vector overlaps nothing.
        unsafe { std::ptr::copy_nonoverlapping(segment.addr(), to.as_mut_ptr(), take) };
        done += take;
    }
    bytes
}

/// Copies `bytes` into the segments, in file order; what is too much is left out.
pub(crate) fn scatter(segments: &[IoSegment], bytes: &[u8]) {
    let mut done = 0;
    for segment in segments {
        let from = &bytes[done..];
        let take = segment.len().min(from.len());
        // SAFETY: the segment is valid for writes of its length (module contract), `from` is at
        // least `take` bytes long, and a slice of ours does not overlap a folio's memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), segment.addr(), take) };
        done += take;
    }
}

#[cfg(test)]
mod tests {
    use foliocache_mm::IoSegment;

    use super::{gather, scatter, total};

    #[test]
    fn bytes_keep_their_order_over_the_seams() {
        let mut a = [0_u8; 3];
        let mut b = [9_u8; 5];
        let segments = [
            IoSegment::new(a.as_mut_ptr(), a.len(), None),
            IoSegment::new(b.as_mut_ptr(), b.len(), None),
        ];
        assert_eq!(total(&segments), 8);
        scatter(&segments, &[1, 2, 3, 4, 5]);
        assert_eq!(gather(&segments, 100), [1, 2, 3, 4, 5, 9, 9, 9]);
        assert_eq!(gather(&segments, 4), [1, 2, 3, 4]);
        scatter(&segments, &[7; 20]);
        assert_eq!((a, b), ([7; 3], [7; 5]));
    }
}
