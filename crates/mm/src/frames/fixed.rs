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
use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sys::Errno;

/// A count for each block.
type Counts = BlockEntries<1>;

pub(super) struct FixedBlocks {
    counts: Counts,
    nr: AtomicU32,
}

impl FixedBlocks {
    pub(super) const BYTES_PER_BLOCK: usize = Counts::BYTES_PER_BLOCK;

    /// As [`BlockEntries::new`].
    pub(super) fn new(blocks: u32) -> Result<Self, Errno> {
        Ok(Self {
            counts: Counts::new(blocks)?,
            nr: AtomicU32::new(0),
        })
    }

    /// As [`BlockEntries::activate`].
    pub(super) fn activate(&self, from: u32, to: u32) -> Result<(), Errno> {
        self.counts.activate(from, to)
    }

    fn count(&self, frame: FrameNumber) -> &AtomicU32 {
        self.counts.of_taken(frame.0 >> MAX_ORDER)
    }
}

impl Frames {
    /// Notes that a folio with general frames from `frame` on got its first view or pin; whether it is the first such
    /// folio of the block.
    #[inline]
    pub(crate) fn fix(&self, frame: FrameNumber) -> bool {
        let first = self.fixed.count(frame).fetch_add(1, Ordering::Relaxed) == 0;
        if first {
            self.fixed.nr.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// Notes that such a folio lost its last one.
    #[inline]
    pub(crate) fn unfix(&self, frame: FrameNumber) {
        if self.fixed.count(frame).fetch_sub(1, Ordering::Relaxed) == 1 {
            self.fixed.nr.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Blocks that cannot be emptied.
    pub(crate) fn nr_fixed(&self) -> u64 {
        u64::from(self.fixed.nr.load(Ordering::Relaxed))
    }
}
