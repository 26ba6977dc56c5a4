//! Blocks that cannot be emptied: views and pins keep frames of them where they are.
//!
//! # Model
//!
//! Each block has a count of folios that are viewed or pinned in it. What matters is how many blocks have any: however
//! few pages that are, the block is no use to linear frames, or to a smaller limit ([`crate::unreclaimable`]).
//!
//! # Memory ordering
//!
//! Relaxed, all: they steer. The counts of a block go up and down with those of its folios, each step once, so no sum is lost.
//!
//! # Safety
//!
//! That of [`super::owners`].
#![allow(unsafe_code)]

use super::{FrameNumber, Frames, MAX_ORDER};
use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sys::Errno;
use foliocache_sys::memory::ReservedRange;

/// Blocks whose counts are activated together: whole pages.
const STEP: u32 = 1024;

pub(super) struct FixedBlocks {
    range: ReservedRange,
    nr: AtomicU32,
}

impl FixedBlocks {
    pub(super) const BYTES_PER_BLOCK: usize = size_of::<AtomicU32>();

    /// Reserves address space for so many blocks; uses no memory yet.
    pub(super) fn new(blocks: u32) -> Result<Self, Errno> {
        let len = blocks.next_multiple_of(STEP) as usize * Self::BYTES_PER_BLOCK;
        let range = ReservedRange::reserve(len)?;
        let nr = AtomicU32::new(0);
        Ok(Self { range, nr })
    }

    /// Makes the counts of blocks valid that were not in use; those below `from` are.
    pub(super) fn activate(&self, from: u32, to: u32) -> Result<(), Errno> {
        let (from, to) = (from.next_multiple_of(STEP), to.next_multiple_of(STEP));
        if from >= to {
            return Ok(());
        }
        let bytes = |blocks: u32| blocks as usize * Self::BYTES_PER_BLOCK;
        self.range.activate(bytes(from)..bytes(to), false)?;
        if cfg!(any(loom, shuttle)) {
            for block in from..to {
                // SAFETY: activated just now, and nobody else knows of it.
                unsafe { self.slot(block).write(AtomicU32::new(0)) };
            }
        }
        Ok(())
    }

    fn slot(&self, block: u32) -> *mut AtomicU32 {
        let first: *mut AtomicU32 = self.range.as_ptr().cast();
        first.wrapping_add(block as usize)
    }

    fn count(&self, frame: FrameNumber) -> &AtomicU32 {
        // SAFETY: the frame is one of a block that was taken, hence active, and so is its count.
        unsafe { &*self.slot(frame.0 >> MAX_ORDER) }
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
