//! Where faults of a window are expected next, and which pages each of them maps.
//!
//! # Model
//!
//! A load that belongs to no stream maps the aligned block around it. A fault at either edge of what a stream has mapped
//! goes on with it, up or down, and maps twice as much there. Loads may leave out less than the last fault mapped; where
//! only two do, it may be by chance, and the second maps no more than the first. Four loads at equal distances make a
//! strided stream: each of its faults maps the blocks around the next places, too.
//!
//! ```text
//!             no stream             up                          down
//!   ──────────┬───p────┬───────────┬p───────────────┬──  ──┬───────────────p┬───────────┬─
//!             │ block  │  mapped   │ twice as much  │      │ twice as much  │  mapped   │
//!
//!   strided   ┬──p──┬ · · · ┬──│──┬ · · · ┬──│──┬         the block around each
//! ```
//!
//! Stores at random places begin streams that never go on, and dirty one page each. A store goes on with a stream of
//! stores alone, at its very edge: edges of what loads have mapped are many.
//!
//! # Memory ordering
//!
//! Relaxed: guesses. A stream is one word, so that it is never half another's.

use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::ops::Range;

/// Streams of a window that are told apart.
const STREAMS: usize = 4;
/// Loads of no stream that are remembered.
const RECENT: usize = 8;
/// Binary logarithm of the pages around a load that belongs to no stream: as many as the kernel's own.
const READ_AROUND: u32 = 4;
/// Places that a fault of a strided stream maps, at most.
const MOST_PLACES: u32 = 16;
/// Pages between two places of a strided stream are fewer: beyond, each has a page table of its own.
const MOST_STEP: i32 = 512;
/// Places that a strided stream may leave out.
const LEFT_OUT: i32 = 8;

/// A stream, in 32 bits of a page's number: a window has fewer pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It has mapped `len` pages from `start` on.
    Run {
        start: u32,
        len: u32,
        order: u32,
        store: bool,
        /// More than one fault.
        went_on: bool,
    },
    /// The next load is at `next`, then every `step` pages.
    Strided { next: u32, step: i32, order: u32 },
}

const RUN: u64 = 1;
const STORES: u64 = 2;
const STRIDED: u64 = 3;

impl Seen {
    /// A page or place, 32 bits; a length or a step, 20; an order, 8; the kind, 4, of which none is 0.
    fn pack(self) -> u64 {
        let (at, len, order, kind) = match self {
            Seen::Run {
                start,
                len,
                order,
                store,
                went_on,
            } => {
                let kind = if store { STORES } else { RUN };
                (start, len, order, kind | u64::from(went_on) << 3)
            }
            Seen::Strided { next, step, order } => {
                (next, (step + MOST_STEP) as u32, order, STRIDED)
            }
        };
        u64::from(at) << 32 | u64::from(len) << 12 | u64::from(order) << 4 | kind
    }

    fn unpack(word: u64) -> Option<Self> {
        let (at, len, order) = ((word >> 32) as u32, word >> 12 & 0xf_ffff, word >> 4 & 0xff);
        let (len, order) = (len as u32, order as u32);
        match word & 0x7 {
            kind @ (RUN | STORES) => Some(Seen::Run {
                start: at,
                len,
                order,
                store: kind == STORES,
                went_on: word & 1 << 3 != 0,
            }),
            STRIDED => Some(Seen::Strided {
                next: at,
                step: len as i32 - MOST_STEP,
                order,
            }),
            _ => None,
        }
    }

    /// How a fault at `page` goes on with it, and with what order.
    fn goes_on(self, page: u32, write: bool) -> Option<(Shape, u32)> {
        match self {
            Seen::Run {
                start,
                len,
                order,
                store,
                went_on,
            } => {
                if write && !store {
                    return None;
                }
                let most = if write { 1 } else { len };
                let (above, below) = (
                    page.wrapping_sub(start.wrapping_add(len)),
                    start.wrapping_sub(page),
                );
                let (shape, left_out) = match above < most {
                    true => (Shape::Up { left_out: above }, above),
                    false if (1..=most).contains(&below) => {
                        let left_out = below - 1;
                        (Shape::Down { left_out }, left_out)
                    }
                    false => return None,
                };
                // Two loads near each other may be so by chance.
                let more = went_on || left_out == 0;
                Some((shape, order + u32::from(more)))
            }
            Seen::Strided { next, step, order } => {
                let ahead = page.wrapping_sub(next) as i32;
                // Also at a place that the last fault did not map: not cached, or of another page table.
                let places = -(1 << order)..=LEFT_OUT;
                let on_its_way = ahead % step == 0 && places.contains(&(ahead / step));
                (!write && on_its_way).then_some((Shape::Strided { step }, order + 1))
            }
        }
    }
}

/// How a fault belongs to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// The block around it.
    Around,
    /// Pages above it, and those that the stream has left out on its way.
    Up { left_out: u32 },
    /// The same below it.
    Down { left_out: u32 },
    /// The block around it and around the next places of the stream.
    Strided { step: i32 },
}

/// Where faults are expected next, and how many pages they will be given.
#[derive(Default)]
pub(crate) struct Streams {
    seen: [AtomicU64; STREAMS],
    oldest: AtomicU32,
    /// The last loads of no stream, in a ring; pages and one, and 0 is none.
    loads: [AtomicU32; RECENT],
    hand: AtomicU32,
}

impl Streams {
    /// The stream of a fault at `page`, which is given at most 2^`most` pages in all, twice as many as the last of its stream, or,
    /// where it is the first, the block around a load and the page of a store.
    pub(crate) fn expect(&self, page: u64, write: bool, most: u32) -> Stream<'_> {
        let here = page as u32;
        for slot in &self.seen {
            let seen = Seen::unpack(slot.load(Ordering::Relaxed));
            if let Some((shape, order)) = seen.and_then(|seen| seen.goes_on(here, write)) {
                return Stream::new(slot, (page, write), shape, order, most);
            }
        }
        let shape = match write {
            true => Shape::Around,
            false => self.recognise(here),
        };
        let order = match shape {
            Shape::Strided { .. } => 0,
            _ if write => 0,
            _ => READ_AROUND,
        };
        let oldest = self.oldest.fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        Stream::new(&self.seen[oldest], (page, write), shape, order, most)
    }

    /// Notes a load of no stream; whether it and two earlier ones are at equal distances.
    fn recognise(&self, here: u32) -> Shape {
        let mut loads = [None; RECENT];
        for (load, word) in loads.iter_mut().zip(&self.loads) {
            *load = word.load(Ordering::Relaxed).checked_sub(1);
        }
        let hand = self.hand.fetch_add(1, Ordering::Relaxed) as usize % RECENT;
        // The last of all pages is taken for none.
        self.loads[hand].store(here.wrapping_add(1), Ordering::Relaxed);
        let equal = loads.iter().flatten().find_map(|&before| {
            let step = here.wrapping_sub(before) as i32;
            let first = before.wrapping_sub(step as u32);
            let near = step != 0 && (-MOST_STEP + 1..MOST_STEP).contains(&step);
            (near && loads.contains(&Some(first))).then_some(step)
        });
        equal.map_or(Shape::Around, |step| Shape::Strided { step })
    }
}

/// A fault's place in a stream.
pub(crate) struct Stream<'a> {
    slot: &'a AtomicU64,
    page: u64,
    write: bool,
    shape: Shape,
    order: u32,
    most: u32,
}

impl<'a> Stream<'a> {
    fn new(
        slot: &'a AtomicU64,
        (page, write): (u64, bool),
        shape: Shape,
        order: u32,
        most: u32,
    ) -> Self {
        let most_order = match shape {
            Shape::Strided { .. } => MOST_PLACES.ilog2().min(most.saturating_sub(READ_AROUND)),
            _ => most,
        };
        Self {
            slot,
            page,
            write,
            shape,
            order: order.min(most_order),
            most,
        }
    }

    /// The pages that it may map in one piece, its own among them; not all of them need be there.
    pub(crate) fn pages(&self) -> Range<u64> {
        let (page, len) = (self.page, 1 << self.order);
        match self.shape {
            Shape::Around => self.block(page, self.order),
            Shape::Up { left_out } => {
                let start = page - u64::from(left_out).min(len - 1);
                start..start + len
            }
            Shape::Down { left_out } => {
                let end = page + 1 + u64::from(left_out).min(len - 1);
                end.saturating_sub(len)..end
            }
            Shape::Strided { .. } => self.block(page, READ_AROUND),
        }
    }

    /// Other pieces that it may map.
    pub(crate) fn places(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let step = match self.shape {
            Shape::Strided { step } => Some(i64::from(step)),
            _ => None,
        };
        let place = move |nth| self.page.checked_add_signed(step? * nth);
        (1..1 << self.order)
            .map_while(place)
            .map(|page| self.block(page, READ_AROUND))
    }

    fn block(&self, page: u64, order: u32) -> Range<u64> {
        let order = order.min(self.most);
        let start = page >> order << order;
        start..start + (1 << order)
    }

    /// Notes that these pages are mapped now, its own among them.
    pub(crate) fn note(&self, mapped: Range<u64>) {
        let seen = match self.shape {
            Shape::Strided { step } => Seen::Strided {
                next: (self.page as u32).wrapping_add((step << self.order) as u32),
                step,
                order: self.order,
            },
            _ => Seen::Run {
                start: mapped.start as u32,
                len: (mapped.end - mapped.start) as u32,
                order: self.order,
                store: self.write,
                went_on: self.shape != Shape::Around,
            },
        };
        self.slot.store(seen.pack(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const MOST: u32 = 9;

    /// Faults of a scan over cached pages, of which each maps all that it may: pages that have been mapped need none.
    fn faults(pages: impl IntoIterator<Item = u64>, write: bool) -> usize {
        let (streams, mut mapped) = (Streams::default(), std::collections::HashSet::new());
        let mut faults = 0;
        for page in pages {
            if !mapped.contains(&page) {
                let stream = streams.expect(page, write, MOST);
                assert!(stream.pages().contains(&page), "{page}");
                stream.note(stream.pages());
                mapped.extend(stream.pages());
                mapped.extend(stream.places().flatten());
                faults += 1;
            }
        }
        faults
    }

    #[test]
    fn loads_up_and_down_take_as_few_faults() {
        let (up, down) = (faults(0..8192, false), faults((0..8192).rev(), false));
        assert!(up <= 22 && down <= up + 1, "{up} up, {down} down");
        let (up, down) = (faults(0..8192, true), faults((0..8192).rev(), true));
        assert!(up <= 26 && down <= up + 1, "{up} up, {down} down");
    }

    #[test]
    fn strided_loads_take_fewer_faults_than_places() {
        for step in [3, 20, 32, 64, 100, 256] {
            let up = faults((0..8192).step_by(step), false);
            let down = faults((0..8192).rev().step_by(step), false);
            let places = 8192 / step;
            assert!(up <= places / 8 + 12, "{up} for {places} every {step}");
            assert!(down <= places / 8 + 12, "{down} for {places} every {step}");
        }
    }

    #[test]
    fn a_load_of_no_stream_maps_the_block_around_it() {
        let streams = Streams::default();
        assert_eq!(streams.expect(1003, false, MOST).pages(), 992..1008);
        assert_eq!(streams.expect(1003, false, 2).pages(), 1000..1004);
        assert_eq!(streams.expect(0, false, 0).pages(), 0..1);
    }

    #[test]
    fn loads_at_random_map_a_block_each() {
        let (streams, mut at) = (Streams::default(), 1_u64);
        let mut more = 0;
        for _ in 0..10_000 {
            at = at
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let stream = streams.expect((at >> 33) % 65_536, false, MOST);
            let pages = stream.pages();
            more += u32::from(pages.end - pages.start > 16 || stream.places().count() > 0);
            stream.note(pages);
        }
        assert!(more < 20, "{more}");
    }

    #[test]
    fn a_store_goes_on_with_stores_alone_and_at_their_very_edge() {
        let streams = Streams::default();
        streams.expect(1003, false, MOST).note(992..1008);
        for page in [991, 1008, 1009] {
            assert_eq!(streams.expect(page, true, MOST).pages(), page..page + 1);
        }
        streams.expect(2000, true, MOST).note(2000..2001);
        assert_eq!(streams.expect(2001, true, MOST).pages(), 2001..2003);
        assert_eq!(streams.expect(1999, true, MOST).pages(), 1998..2000);
        assert_eq!(streams.expect(1998, true, MOST).pages(), 1998..1999);
    }

    #[test]
    fn what_is_seen_fits_a_word() {
        for seen in [
            Seen::Run {
                start: u32::MAX,
                len: 1 << 19,
                order: 9,
                store: true,
                went_on: true,
            },
            Seen::Strided {
                next: 0,
                step: 1 - MOST_STEP,
                order: 4,
            },
        ] {
            assert_eq!(Seen::unpack(seen.pack()), Some(seen));
        }
        assert_eq!(Seen::unpack(0), None);
    }
}
