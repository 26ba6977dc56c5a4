//! Bytes in and out of the pieces of memory that the cache hands to a backing store.

use foliocache_mm::IoSegment;

/// Bytes of all segments together.
pub(crate) fn total(segments: &[IoSegment<'_>]) -> u64 {
    segments.iter().map(|segment| segment.len() as u64).sum()
}

/// The part of a segment in the page that starts at byte `start`.
pub(crate) fn part<'a>(segment: &IoSegment<'a>, start: usize) -> IoSegment<'a> {
    let len = (segment.len() - start).min(foliocache_mm::PAGE_SIZE);
    segment.sub(start, len)
}

/// Copies at most `limit` bytes out of the segments, in file order.
pub(crate) fn gather(segments: &[IoSegment<'_>], limit: usize) -> Vec<u8> {
    let len = (total(segments) as usize).min(limit);
    let mut bytes = vec![0_u8; len];
    let mut done = 0;
    for segment in segments {
        let to = &mut bytes[done..];
        let take = segment.len().min(to.len());
        segment.copy_to(0, &mut to[..take]);
        done += take;
    }
    bytes
}

/// Copies `bytes` into the segments, in file order; bytes without room are left out.
pub(crate) fn scatter(segments: &[IoSegment<'_>], bytes: &[u8]) {
    let mut done = 0;
    for segment in segments {
        let from = &bytes[done..];
        let take = segment.len().min(from.len());
        segment.copy_from(0, &from[..take]);
        done += take;
    }
}

#[cfg(test)]
mod tests {
    use foliocache_mm::IoSegment;

    use super::{gather, part, scatter, total};

    #[test]
    fn bytes_keep_their_order_over_the_seams() {
        let mut a = [0_u8; 3];
        let mut b = [9_u8; 5];
        let segments = [IoSegment::from_mut(&mut a), IoSegment::from_mut(&mut b)];
        assert_eq!(total(&segments), 8);
        scatter(&segments, &[1, 2, 3, 4, 5]);
        assert_eq!(gather(&segments, 100), [1, 2, 3, 4, 5, 9, 9, 9]);
        assert_eq!(gather(&segments, 4), [1, 2, 3, 4]);
        assert_eq!(gather(&[part(&segments[1], 1)], 100), [5, 9, 9, 9]);
        scatter(&segments, &[7; 20]);
        assert_eq!((a, b), ([7; 3], [7; 5]));
    }
}
