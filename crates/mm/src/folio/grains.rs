//! Grains: the parts of a large folio that are uptodate or dirty by themselves.
//!
//! # Model
//!
//! A word of 64 bits describes a folio, one bit a grain from its start. Up to order 6 a grain is a
//! page; above it is as many pages as make 64 grains, so 32 KiB in a folio of 2 MiB.
//!
//! Of the first and the last dirty grain a part may never have been written to: the [`Margins`].

use std::ops::Range;

use crate::types::{PAGE_SHIFT, PAGE_SIZE};

/// Binary logarithm of the grains that a word has room for.
const WORD_SHIFT: u32 = u64::BITS.ilog2();

/// The largest order of a folio whose grains are pages.
pub(crate) const FINE_ORDER: u32 = WORD_SHIFT;

fn pages_shift(order: u32) -> u32 {
    order.saturating_sub(WORD_SHIFT)
}

/// Bytes of a grain of a folio of `order`.
pub(crate) fn size(order: u32) -> usize {
    PAGE_SIZE << pages_shift(order)
}

pub(crate) fn pages(order: u32, grains: u64) -> u64 {
    u64::from(grains.count_ones()) << pages_shift(order)
}

fn bits(first: u32, len: u32) -> u64 {
    match len {
        0 => 0,
        len => (u64::MAX >> (u64::BITS - len)) << first,
    }
}

pub(crate) fn all(order: u32) -> u64 {
    bits(0, 1 << order.min(WORD_SHIFT))
}

/// The grains that a range of a folio's bytes touches.
pub(crate) fn touched(order: u32, bytes: Range<usize>) -> u64 {
    if bytes.is_empty() {
        return 0;
    }
    let first = bytes.start / size(order);
    let end = bytes.end.div_ceil(size(order));
    bits(first as u32, (end - first) as u32)
}

/// Whether the grains that a range of a folio's bytes touches have pages that it does not.
#[inline]
pub(crate) fn spill(order: u32, bytes: &Range<usize>) -> bool {
    order > FINE_ORDER && {
        let past = |byte: usize| byte % size(order);
        past(bytes.start) >= PAGE_SIZE || (1..=size(order) - PAGE_SIZE).contains(&past(bytes.end))
    }
}

/// The grains that lie in a range of a folio's bytes from their first byte to their last.
pub(crate) fn inside(order: u32, bytes: Range<usize>) -> u64 {
    let first = bytes.start.div_ceil(size(order));
    let end = bytes.end / size(order);
    bits(first as u32, end.saturating_sub(first) as u32)
}

pub(crate) fn of(order: u32, byte: usize) -> u64 {
    1 << (byte / size(order))
}

/// Bytes from `byte` on to the end of the run of set grains that it is in; 0 if it is in none.
pub(crate) fn run_from(grains: u64, order: u32, byte: usize) -> usize {
    let at = byte / size(order);
    let run = (!(grains >> at)).trailing_zeros() as usize;
    ((at + run) * size(order)).saturating_sub(byte)
}

/// Bytes before `byte` from the beginning of the run of set grains that it is in on; 0 if it is in none.
pub(crate) fn run_before(grains: u64, order: u32, byte: usize) -> usize {
    let at = byte / size(order);
    let run = (!(grains << (u64::BITS as usize - 1 - at))).leading_zeros() as usize;
    byte.saturating_sub((at + 1 - run) * size(order))
}

/// The byte ranges of a folio that the set grains make up, neighbours joined, in order.
pub(crate) fn ranges(mut grains: u64, order: u32) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        if grains == 0 {
            return None;
        }
        let first = grains.trailing_zeros();
        let len = (!(grains >> first)).trailing_zeros();
        grains &= !bits(first, len);
        Some(first as usize * size(order)..(first + len) as usize * size(order))
    })
}

/// The grains of the two halves of a folio of `order`, which is at least 1.
pub(crate) fn halves(grains: u64, order: u32) -> [u64; 2] {
    let half = all(order).count_ones() / 2;
    let parts = [grains & bits(0, half), grains >> half];
    if pages_shift(order) == 0 {
        return parts;
    }
    // The halves have grains of half the size: each of the old is two of the new.
    parts.map(|part| {
        (0..half)
            .filter(|grain| part >> grain & 1 != 0)
            .fold(0, |doubled, grain| doubled | bits(2 * grain, 2))
    })
}

/// From the first byte of the first set grain to the last of the last.
pub(crate) fn span(grains: u64, order: u32) -> Range<usize> {
    let first = grains.trailing_zeros() as usize;
    let end = (u64::BITS - grains.leading_zeros()) as usize;
    first.min(end) * size(order)..end * size(order)
}

/// The part that was not written to, at the beginning of a folio's first dirty grain and at the end of its last. In
/// units of a byte where a grain is a page, of 8 bytes in a folio of 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Margins {
    before: u32,
    after: u32,
}

impl Margins {
    /// Bits of each of the two.
    const BITS: u32 = PAGE_SHIFT;

    /// Those of dirty `grains` of which only `written` was written to, or less than a unit more.
    pub(crate) fn of(order: u32, grains: u64, written: &Range<usize>) -> Margins {
        if grains == 0 {
            return Margins::default();
        }
        let (span, grain) = (span(grains, order), size(order));
        let units = |bytes: usize| (bytes.min(grain - 1) >> pages_shift(order)) as u32;
        Margins {
            before: units(written.start.saturating_sub(span.start)),
            after: units(span.end.saturating_sub(written.end)),
        }
    }

    /// The bytes of a folio with dirty `grains` that lie between them.
    pub(crate) fn written(self, order: u32, grains: u64) -> Range<usize> {
        let span = span(grains, order);
        let bytes = |units: u32| (units as usize) << pages_shift(order);
        span.start + bytes(self.before)..span.end.saturating_sub(bytes(self.after))
    }

    pub(super) fn pack(self) -> u32 {
        self.before | self.after << Self::BITS
    }

    pub(super) fn unpack(packed: u32) -> Margins {
        Margins {
            before: packed & ((1 << Self::BITS) - 1),
            after: packed >> Self::BITS,
        }
    }
}

const _: () = assert!(
    PAGE_SHIFT + 9 - WORD_SHIFT == 15,
    "a grain is 32 KiB at most"
);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::frames::MAX_ORDER;

    #[test]
    fn a_grain_has_at_most_32_kib_and_a_word_describes_every_folio() {
        for order in 0..=MAX_ORDER {
            let bytes = PAGE_SIZE << order;
            assert_eq!(all(order).count_ones() as usize * size(order), bytes);
            assert_eq!(pages(order, all(order)), 1 << order);
            assert!(size(order) <= 32 << 10);
            assert_eq!(touched(order, 0..bytes), all(order));
            assert_eq!(inside(order, 0..bytes), all(order));
        }
    }

    #[test]
    fn touched_and_inside_differ_by_the_edges() {
        let grain = size(9);
        assert_eq!(touched(9, 1..grain + 1), 0b11);
        assert_eq!(inside(9, 1..grain + 1), 0);
        assert_eq!(inside(9, 1..3 * grain), 0b110);
        assert_eq!(touched(9, 5..5), 0);
        assert_eq!(inside(3, PAGE_SIZE..PAGE_SIZE), 0);
    }

    #[test]
    fn a_range_spills_where_its_grains_have_pages_beside_it() {
        for order in 0..=FINE_ORDER {
            assert!(!spill(order, &(1..2)), "a grain is a page");
        }
        let grain = size(9);
        for whole in [0..grain, 1..grain, 100..2 * grain - 100, 0..2 << 20] {
            assert!(!spill(9, &whole), "{whole:?}");
        }
        let spilt = [
            0..PAGE_SIZE,
            PAGE_SIZE..grain,
            5 * grain..6 * grain + 1,
            grain..2 * grain - PAGE_SIZE,
        ];
        for part in spilt {
            assert!(spill(9, &part), "{part:?}");
        }
    }

    #[test]
    fn runs_join_neighbours() {
        let found: Vec<_> = ranges(0b1011, 2).collect();
        assert_eq!(found, [0..2 * PAGE_SIZE, 3 * PAGE_SIZE..4 * PAGE_SIZE]);
        assert!(ranges(u64::MAX, 9).eq(std::iter::once(0..2 << 20)));
        assert_eq!(run_from(0b1011, 2, 100), 2 * PAGE_SIZE - 100);
        assert_eq!(run_from(0b1011, 2, 2 * PAGE_SIZE), 0);
        assert_eq!(run_from(u64::MAX, 9, 0), 2 << 20);
    }

    #[test]
    fn margins_keep_all_that_was_written_and_hardly_more() {
        for order in 0..=MAX_ORDER {
            let (bytes, unit) = (PAGE_SIZE << order, size(order) / PAGE_SIZE);
            let at = [
                0,
                1,
                7,
                8,
                100,
                4095,
                4096,
                33_000,
                bytes / 2 + 5,
                bytes - 1,
            ];
            for written in at.into_iter().flat_map(|from| {
                let ends = [from + 1, from + 9, from + 5000, bytes];
                ends.map(|end| from..end)
            }) {
                if written.start >= written.end || written.end > bytes {
                    continue;
                }
                let grains = touched(order, written.clone());
                let margins = Margins::of(order, grains, &written);
                let kept = Margins::unpack(margins.pack()).written(order, grains);
                assert!(kept.start <= written.start && written.end <= kept.end);
                assert!(written.start - kept.start < unit && kept.end - written.end < unit);
            }
            assert_eq!(Margins::default().written(order, all(order)), 0..bytes);
        }
        assert_eq!(span(0, 3), 0..0);
    }

    #[test]
    fn halves_describe_the_same_bytes() {
        for order in 1..=MAX_ORDER {
            let half = PAGE_SIZE << (order - 1);
            for grains in [0, 1, 0b1010_0110, u64::MAX, 0xf0f0_1234_5678_9abc] {
                let grains = grains & all(order);
                let bytes = |mask, order, base: usize| {
                    ranges(mask, order)
                        .flat_map(move |range| {
                            (range.start + base..range.end + base).step_by(PAGE_SIZE)
                        })
                        .collect::<Vec<_>>()
                };
                let [low, high] = halves(grains, order);
                let mut parts = bytes(low, order - 1, 0);
                parts.extend(bytes(high, order - 1, half));
                assert_eq!(parts, bytes(grains, order, 0), "order {order}");
            }
        }
    }
}
