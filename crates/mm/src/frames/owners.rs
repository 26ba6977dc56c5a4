//! Which owner has the frames that begin at a frame: the way from a block to the folios in it.
//!
//! # Model
//!
//! Who owns a chunk of frames leaves a number with its first frame ([`Frames::set_owner`]); whoever
//! empties a block asks for the numbers of its frames in use ([`Frames::owners`], decision 25).
//!
//! # Invariants
//!
//! 1. A number is a hint: that of a frame that is free, or lies inside a chunk, is an earlier owner's.
//!    Whoever asks looks under the owner's lock whether it still has the frame.
//!
//! # Memory ordering
//!
//! A number is stored Release and loaded Acquire, partners of one another: who finds it sees that its owner
//! was made. One that is not seen yet belongs to an owner that has just got its frames; its block is not
//! empty then, and is looked at again.
//!
//! # Safety
//!
//! Entries below the active length are valid: zeroed memory of the kernel's, which is an atomic zero, or,
//! in a model, written before anybody knows of them.
#![allow(unsafe_code)]

use super::{BLOCK_FRAMES, BlockNumber, FrameNumber, Frames};
use foliocache_sync::atomic::{AtomicU32, Ordering};
use foliocache_sys::Errno;
use foliocache_sys::memory::ReservedRange;

/// Blocks whose entries are activated together: whole pages.
const STEP: u32 = 2;

pub(super) struct Owners {
    range: ReservedRange,
}

impl Owners {
    pub(super) const BYTES_PER_BLOCK: usize = BLOCK_FRAMES as usize * size_of::<AtomicU32>();

    /// Reserves address space for so many blocks; uses no memory yet.
    pub(super) fn new(blocks: u32) -> Result<Self, Errno> {
        let len = blocks.next_multiple_of(STEP) as usize * Self::BYTES_PER_BLOCK;
        let range = ReservedRange::reserve(len)?;
        Ok(Self { range })
    }

    /// Makes the entries of blocks valid that were not in use; those below `from` are.
    pub(super) fn activate(&self, from: u32, to: u32) -> Result<(), Errno> {
        let (from, to) = (from.next_multiple_of(STEP), to.next_multiple_of(STEP));
        if from >= to {
            return Ok(());
        }
        let bytes = |blocks: u32| blocks as usize * Self::BYTES_PER_BLOCK;
        self.range.activate(bytes(from)..bytes(to), false)?;
        if cfg!(any(loom, shuttle)) {
            for frame in from * BLOCK_FRAMES..to * BLOCK_FRAMES {
                // SAFETY: activated just now, and nobody else knows of it.
                unsafe { self.slot(frame).write(AtomicU32::new(0)) };
            }
        }
        Ok(())
    }

    fn slot(&self, frame: u32) -> *mut AtomicU32 {
        let first: *mut AtomicU32 = self.range.as_ptr().cast();
        first.wrapping_add(frame as usize)
    }

    fn entry(&self, frame: FrameNumber) -> &AtomicU32 {
        // SAFETY: the frame is one of a block that was taken, hence active, and so is its entry.
        unsafe { &*self.slot(frame.0) }
    }
}

impl Frames {
    /// Notes that the chunk which begins with `frame` belongs to `owner`, which is not 0. Of linear frames nobody
    /// needs to know that.
    #[inline]
    pub(crate) fn set_owner(&self, frame: FrameNumber, owner: u32) {
        if self.is_linear(frame) {
            return;
        }
        self.owners.entry(frame).store(owner, Ordering::Release);
    }

    /// The owners of the chunks of a block that are in use now, each with the first frame, and others
    /// that were: see invariant 1.
    pub(crate) fn owners(&self, block: BlockNumber) -> impl Iterator<Item = (FrameNumber, u32)> {
        self.block_frames(block).into_iter().filter_map(|frame| {
            let owner = self.owners.entry(frame).load(Ordering::Acquire);
            (owner != 0).then_some((frame, owner))
        })
    }
}
