//! Where the last reads through a handle were: tells a pass over a folio that goes on from another use of it.
//!
//! # Model
//!
//! A *pass* is a reader that goes through a file in one direction; it may leave bytes out on its way. Several go on at the
//! same time where threads share the handle, so several are kept.
//!
//! ```text
//!   a read of no pass ─▶ Fresh ── the next read is behind it ──────────────────────▶ Forward
//!                              └─ the next is the one before it, and as long ──────▶ Backward
//! ```
//!
//! A read of no pass replaces one. A pass that went on is spared once. A reader that turns begins a
//! new pass.
//!
//! # Memory ordering
//!
//! All Relaxed: hints. If two threads mix up the words of a pass, a use is counted wrongly.

use foliocache_sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::ops::Range;

use crate::frames::BLOCK_SIZE;

/// Passes that one handle tells apart. A model checker would only have more to choose from.
const PASSES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Fresh,
    Forward,
    Backward,
}

/// Whether a read of `bytes` goes on with a pass, and which way: the bytes that it leaves out.
#[inline]
fn goes_on((edge, direction): (u64, Direction), bytes: &Range<u64>) -> Option<(Direction, u64)> {
    let before = bytes.end.saturating_add(bytes.end - bytes.start);
    match direction {
        Direction::Fresh | Direction::Forward if edge <= bytes.start => {
            Some((Direction::Forward, bytes.start - edge))
        }
        Direction::Fresh if edge == before => Some((Direction::Backward, 0)),
        Direction::Backward if bytes.end <= edge => Some((Direction::Backward, edge - bytes.end)),
        _ => None,
    }
}

#[derive(Debug, Default)]
pub(super) struct Passes {
    /// Byte after the last read of each; backwards, its first byte. 0 is none.
    edges: [AtomicU64; PASSES],
    /// The [`Direction`] of each.
    directions: [AtomicU8; PASSES],
    /// Byte after the last read.
    last_end: AtomicU64,
    /// A bit for each pass: it has gone on, and was not spared since.
    went_on: AtomicU8,
    /// Which one is looked at next for a place.
    hand: AtomicU8,
}

impl Passes {
    fn pass(&self, at: usize) -> (u64, Direction) {
        let direction = match self.directions[at].load(Ordering::Relaxed) {
            0 => Direction::Fresh,
            1 => Direction::Forward,
            _ => Direction::Backward,
        };
        (self.edges[at].load(Ordering::Relaxed), direction)
    }

    fn set_pass(&self, at: usize, bytes: &Range<u64>, direction: Direction) {
        let edge = match direction {
            Direction::Backward => bytes.start,
            _ => bytes.end,
        };
        self.edges[at].store(edge, Ordering::Relaxed);
        self.directions[at].store(direction as u8, Ordering::Relaxed);
    }

    /// Byte after the last read.
    #[inline]
    pub(super) fn last_end(&self) -> u64 {
        self.last_end.load(Ordering::Relaxed)
    }

    /// Whether a read of `bytes` of the folio that has the bytes `folio` goes on with a pass that has been in it.
    #[inline]
    pub(super) fn goes_on(&self, folio: &Range<u64>, bytes: &Range<u64>) -> bool {
        (0..PASSES).any(|at| {
            let pass = self.pass(at);
            let been_here = match pass {
                (start, Direction::Backward) => folio.contains(&start),
                (end, _) => folio.start < end && end <= folio.end,
            };
            been_here && goes_on(pass, bytes).is_some()
        })
    }

    /// Notes a read of `bytes`.
    pub(super) fn note(&self, bytes: &Range<u64>) {
        self.last_end.store(bytes.end, Ordering::Relaxed);
        let near = (0..PASSES).filter_map(|at| {
            let pass = self.pass(at);
            let (direction, left_out) = goes_on(pass, bytes)?;
            (pass.0 != 0 && left_out <= BLOCK_SIZE as u64).then_some((left_out, at, direction))
        });
        let went_on = self.went_on.load(Ordering::Relaxed);
        if let Some((_, at, direction)) = near.min_by_key(|&(left_out, at, _)| (left_out, at)) {
            self.set_pass(at, bytes, direction);
            if went_on & (1 << at) == 0 {
                self.went_on.store(went_on | (1 << at), Ordering::Relaxed);
            }
            return;
        }
        let (mut at, mut left) = (self.hand.load(Ordering::Relaxed), went_on);
        while left & (1 << at) != 0 {
            left &= !(1 << at);
            at = (at + 1) % PASSES as u8;
        }
        self.set_pass(usize::from(at), bytes, Direction::Fresh);
        self.hand.store((at + 1) % PASSES as u8, Ordering::Relaxed);
        if left != went_on {
            self.went_on.store(left, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const FOLIO: Range<u64> = 0x20_0000..0x40_0000;
    const PAGE: u64 = 4096;

    fn page(n: u64) -> Range<u64> {
        FOLIO.start + n * PAGE..FOLIO.start + (n + 1) * PAGE
    }

    /// Reads one range; whether it went on with a pass.
    fn read(passes: &Passes, bytes: Range<u64>) -> bool {
        let goes_on = passes.goes_on(&FOLIO, &bytes);
        passes.note(&bytes);
        assert_eq!(passes.last_end(), bytes.end);
        goes_on
    }

    #[test]
    fn passes_go_on_side_by_side_forwards_and_backwards() {
        let passes = Passes::default();
        for step in 0..10 {
            for pass in 0..PASSES as u64 {
                let start = FOLIO.start * 4 * (pass + 1);
                let folio = start..start + FOLIO.start;
                let pos = match pass % 2 {
                    0 => folio.start + step * PAGE,
                    _ => folio.end - PAGE - step * PAGE,
                };
                let bytes = pos..pos + PAGE;
                assert_eq!(passes.goes_on(&folio, &bytes), step > 0);
                passes.note(&bytes);
            }
        }
    }

    #[test]
    fn a_pass_may_leave_bytes_out() {
        let passes = Passes::default();
        assert!(!read(&passes, page(1)));
        assert!(read(&passes, page(3)));
        assert!(read(&passes, page(10)));
        let passes = Passes::default();
        assert!(!read(&passes, page(10)));
        assert!(read(&passes, page(9)));
        assert!(read(&passes, page(2)));
    }

    #[test]
    fn another_look_is_no_pass() {
        let passes = Passes::default();
        for _ in 0..10 {
            assert!(!read(&passes, FOLIO.start + 100..FOLIO.start + 200));
        }
        let (passes, mut uses) = (Passes::default(), 0);
        for n in 0..20 {
            // Neighbours in turns.
            uses += u64::from(!read(&passes, page(20 + n % 2)));
        }
        assert!(uses >= 9, "{uses}");
        let next = FOLIO.end..FOLIO.end + PAGE;
        assert!(!passes.goes_on(&next, &next), "a folio of its own");
    }

    #[test]
    fn reads_of_no_pass_take_the_place_of_each_other() {
        let passes = Passes::default();
        read(&passes, page(0));
        for n in 1..100 {
            assert!(read(&passes, page(n)), "{n}");
            for other in 0..3 {
                let pos = FOLIO.end * (10 * n + other + 10);
                passes.note(&(pos..pos + 100));
            }
        }
    }
}
