//! Numbers that are kept for each block, or for each of its frames.
//!
//! # Safety
//!
//! Entries below the active length are valid: zeroed memory of the kernel's, which is an atomic zero, or,
//! in a model, written before anybody knows of them.
#![allow(unsafe_code)]

use foliocache_sync::atomic::AtomicU32;
use foliocache_sys::Errno;
use foliocache_sys::memory::{PAGE_SIZE, ReservedRange};

/// So many numbers for each block, zero at first.
pub(super) struct BlockEntries<const PER_BLOCK: u32>(ReservedRange);

impl<const PER_BLOCK: u32> BlockEntries<PER_BLOCK> {
    pub(super) const BYTES_PER_BLOCK: usize = PER_BLOCK as usize * size_of::<AtomicU32>();

    /// The fewest blocks whose entries fill whole pages: they are activated together. In a model no number of entries
    /// may fill one page.
    const STEP: u32 = {
        let part = 1 << Self::BYTES_PER_BLOCK.trailing_zeros();
        if part < PAGE_SIZE {
            (PAGE_SIZE / part) as u32
        } else {
            1
        }
    };

    /// Reserves address space for so many blocks; uses no memory yet.
    pub(super) fn new(blocks: u32) -> Result<Self, Errno> {
        let len = blocks.next_multiple_of(Self::STEP) as usize * Self::BYTES_PER_BLOCK;
        Ok(Self(ReservedRange::reserve(len)?))
    }

    /// Makes the entries of blocks valid that were not in use; those below `from` are.
    pub(super) fn activate(&self, from: u32, to: u32) -> Result<(), Errno> {
        let (from, to) = (
            from.next_multiple_of(Self::STEP),
            to.next_multiple_of(Self::STEP),
        );
        if from >= to {
            return Ok(());
        }
        let bytes = |blocks: u32| blocks as usize * Self::BYTES_PER_BLOCK;
        self.0.activate(bytes(from)..bytes(to), false)?;
        if cfg!(any(loom, shuttle)) {
            for entry in from * PER_BLOCK..to * PER_BLOCK {
                // SAFETY: activated just now, and nobody else knows of it.
                unsafe { self.slot(entry).write(AtomicU32::new(0)) };
            }
        }
        Ok(())
    }

    fn slot(&self, entry: u32) -> *mut AtomicU32 {
        let first: *mut AtomicU32 = self.0.as_ptr().cast();
        first.wrapping_add(entry as usize)
    }

    /// An entry, counted from that of the first block on.
    ///
    /// Context: of a block that was taken.
    pub(super) fn of_taken(&self, entry: u32) -> &AtomicU32 {
        // SAFETY: a block that was taken is active, and so are its entries.
        unsafe { &*self.slot(entry) }
    }
}
