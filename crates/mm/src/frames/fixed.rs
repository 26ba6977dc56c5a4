//! Blocks that cannot be emptied: views and pins keep frames of them where they are.
//!
//! # Model
//!
//! Each block has a count of folios that are viewed or pinned in it. The number of blocks with such a folio counts:
//! even one page keeps its block from linear frames, and from a smaller limit ([`crate::unreclaimable`]).
//!
//! # Memory ordering
//!
//! Relaxed, all: they steer. The counts of a block go up and down with those of its folios, each step once, so no sum is lost.

use super::entries::BlockEntries;
use super::{FrameNumber, Frames, MAX_ORDER};
use foliocache_sync::atomic::Ordering;

/// A count for each block.
pub(super) type FixedBlocks = BlockEntries<1>;

impl Frames {
    /// Notes that a folio with general frames from `frame` on got its first view or pin; whether it is the first such
    /// folio of the block.
    #[inline]
    pub(crate) fn fix(&self, frame: FrameNumber) -> bool {
        let count = self.fixed.of_taken(frame.0 >> MAX_ORDER);
        let first = count.fetch_add(1, Ordering::Relaxed) == 0;
        if first {
            self.nr_fixed.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// Notes that such a folio lost its last one.
    #[inline]
    pub(crate) fn unfix(&self, frame: FrameNumber) {
        let count = self.fixed.of_taken(frame.0 >> MAX_ORDER);
        if count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.nr_fixed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Blocks that cannot be emptied.
    pub(crate) fn nr_fixed(&self) -> u64 {
        u64::from(self.nr_fixed.load(Ordering::Relaxed))
    }
}
