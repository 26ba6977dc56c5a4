//! Where the last reads through a handle ended: tells a pass over a folio that goes on from another use of it.
//!
//! # Model
//!
//! A *pass* is a reader that goes through a file in one direction; it may leave bytes out on its way forward. Several go on at the
//! same time where threads share the handle, so the ends of several are kept. A read that belongs to none of them takes the place of one.
//!
//! # Memory ordering
//!
//! All Relaxed: hints. They are stored to only when they change.

use foliocache_sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::ops::Range;

use crate::frames::BLOCK_SIZE;

/// Passes that one handle tells apart. A model checker would only have more to choose from.
const PASSES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };

#[derive(Debug)]
pub(super) struct Passes {
    /// Byte after the last read of each; 0 is none.
    ends: [AtomicU64; PASSES],
    /// Which one the last read belongs to.
    last: AtomicU8,
    /// Which one is replaced next.
    oldest: AtomicU8,
}

impl Passes {
    pub(super) fn new() -> Self {
        Self {
            ends: std::array::from_fn(|_| AtomicU64::new(0)),
            last: AtomicU8::new(0),
            oldest: AtomicU8::new(0),
        }
    }

    /// Byte after the last read.
    #[inline]
    pub(super) fn last_end(&self) -> u64 {
        self.ends[usize::from(self.last.load(Ordering::Relaxed))].load(Ordering::Relaxed)
    }

    /// Whether a read of `len` bytes at `pos`, which lies in a folio of `folio`, goes on with a pass that has been in
    /// that folio.
    #[inline]
    pub(super) fn goes_on(&self, folio: &Range<u64>, pos: u64, len: u64) -> bool {
        self.ends.iter().any(|end| {
            let end = end.load(Ordering::Relaxed);
            folio.start < end && end <= folio.end && follows(end, pos, len)
        })
    }

    /// Notes that a read went from `pos` to `end`.
    pub(super) fn note(&self, pos: u64, end: u64) {
        let (last, len) = (self.last.load(Ordering::Relaxed), end - pos);
        let ends = self.ends.iter().map(|end| end.load(Ordering::Relaxed));
        let (distance, at) = ends
            .enumerate()
            .filter(|&(_, seen)| seen != 0 && follows(seen, pos, len))
            .map(|(at, seen)| (pos.abs_diff(seen), at))
            .min()
            .unwrap_or((u64::MAX, 0));
        let at = match distance <= BLOCK_SIZE as u64 {
            true => at,
            false => {
                let oldest = self.oldest.load(Ordering::Relaxed);
                let next = (oldest + 1) % PASSES as u8;
                self.oldest.store(next, Ordering::Relaxed);
                usize::from(oldest)
            }
        };
        self.ends[at].store(end, Ordering::Relaxed);
        if usize::from(last) != at {
            self.last.store(at as u8, Ordering::Relaxed);
        }
    }
}

/// Whether a read of `len` bytes at `pos` comes after one that ended at `end`: behind it, or as one just before it of the same length.
#[inline]
fn follows(end: u64, pos: u64, len: u64) -> bool {
    end <= pos || end == pos.saturating_add(2 * len)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const FOLIO: Range<u64> = 0x20_0000..0x40_0000;

    #[test]
    fn passes_go_on_side_by_side_forwards_and_backwards() {
        let passes = Passes::new();
        for step in 0..10 {
            for pass in 0..PASSES as u64 {
                let start = FOLIO.start * 4 * (pass + 1);
                let folio = start..start + FOLIO.start;
                let forwards = folio.start + step * 4096;
                let pos = match pass % 2 {
                    0 => forwards,
                    _ => folio.end - 4096 - step * 4096,
                };
                assert_eq!(passes.goes_on(&folio, pos, 100), step > 0 && pass % 2 == 0);
                assert_eq!(passes.goes_on(&folio, pos, 4096), step > 0);
                passes.note(pos, pos + 4096);
                assert_eq!(passes.last_end(), pos + 4096);
            }
        }
    }

    #[test]
    fn another_look_at_the_same_bytes_is_no_pass() {
        let passes = Passes::new();
        for _ in 0..10 {
            let pos = FOLIO.start + 4096;
            assert!(!passes.goes_on(&FOLIO, pos, 100));
            passes.note(pos, pos + 100);
        }
        assert!(passes.goes_on(&FOLIO, FOLIO.start + 8192, 100));
        let next = FOLIO.end..FOLIO.end + 4096;
        assert!(
            !passes.goes_on(&next, next.start, 100),
            "a folio of its own"
        );
    }
}
