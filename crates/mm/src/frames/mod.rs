//! The frame space: 4 KiB slots of one reserved address range, under one hard bound.
#![allow(dead_code, unused_variables, clippy::todo)] // interface first

mod types;

use foliocache_sync::Arc;
use foliocache_sync::time::Duration;
use foliocache_sys::memory::ReservedRange;

pub use types::{BlockNumber, FrameNumber, FrameUsage, FramesError};

/// Binary logarithm of the frames of a block; also the largest order.
pub const MAX_ORDER: u32 = 9;
/// Frames of a general block.
pub const BLOCK_FRAMES: u32 = 1 << MAX_ORDER;
/// Bytes of a general block.
pub const BLOCK_SIZE: usize = (BLOCK_FRAMES as usize) << crate::PAGE_SHIFT;
/// Least limit of a frame space, in bytes.
pub const MIN_LIMIT: u64 = 4 << 20;

/// Told which blocks are held, so that it can register them with a device.
pub trait BlockObserver: Send + Sync {
    /// Block `block` of `len` bytes at `addr` is about to come into use.
    ///
    /// Context: no lock of the frame space is held.
    fn added(&self, block: u32, addr: *mut u8, len: usize);
    /// Block `block` is about to be given back; returns once its registrations are gone and their
    /// I/O is over.
    ///
    /// Context: no lock of the frame space is held. May block.
    fn removed(&self, block: u32);
}

/// The frames of one cache.
pub struct Frames {
    range: ReservedRange,
}

/// A promise of order-0 frames.
pub struct Reservation<'a> {
    frames: &'a Frames,
    left: u32,
}

impl Reservation<'_> {
    /// Frames still promised.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Moves `n` of the promised frames into a reservation of their own.
    #[must_use]
    pub fn split(&mut self, n: u32) -> Self {
        todo!()
    }

    /// Gives back all but `n` of the promised frames.
    pub fn shrink_to(&mut self, n: u32) {
        todo!()
    }
}

/// A place in the queue of those who wait for frames.
pub struct Ticket<'a> {
    frames: &'a Frames,
}

impl<'a> Ticket<'a> {
    /// Takes the reservation if this ticket is the first in the queue and the frames are there.
    pub fn try_take(&mut self) -> Option<Reservation<'a>> {
        todo!()
    }

    /// Sleeps until it may be worth trying or `timeout` is over; true if it may be.
    pub fn wait(&self, timeout: Duration) -> bool {
        todo!()
    }
}

impl Frames {
    /// A frame space bounded by `limit` bytes.
    pub fn new(limit: u64) -> Result<Self, FramesError> {
        todo!()
    }

    /// Where a frame is.
    #[inline]
    pub fn addr(&self, frame: FrameNumber) -> *mut u8 {
        self.range
            .as_ptr()
            .wrapping_add((frame.0 as usize) << crate::PAGE_SHIFT)
    }

    /// The number of the block that a frame lies in.
    #[inline]
    pub fn block_of(frame: FrameNumber) -> u32 {
        frame.0 >> MAX_ORDER
    }

    /// Promises `n` frames, or `None` when they are not there or others wait.
    pub fn try_reserve(&self, n: u32) -> Option<Reservation<'_>> {
        todo!()
    }

    /// Joins the queue for `n` frames.
    pub fn enqueue(&self, n: u32) -> Ticket<'_> {
        todo!()
    }

    /// Takes one frame of a reservation. Never fails; panics if `r` is used up.
    pub fn alloc(&self, r: &mut Reservation<'_>) -> FrameNumber {
        todo!()
    }

    /// Takes 2^`order` frames of a reservation, naturally aligned and contiguous, if there are such.
    pub fn alloc_order(&self, r: &mut Reservation<'_>, order: u32) -> Option<FrameNumber> {
        todo!()
    }

    /// Takes 2^`order` contiguous frames without a reservation, best effort.
    pub fn try_alloc_order(&self, order: u32) -> Option<FrameNumber> {
        todo!()
    }

    /// Gives 2^`order` frames back.
    pub fn free(&self, frame: FrameNumber, order: u32) {
        todo!()
    }

    /// Charges `bytes` of metadata against the bound; false when there is no room.
    #[must_use]
    pub fn charge_metadata(&self, bytes: u64) -> bool {
        todo!()
    }

    /// Gives charged metadata back.
    pub fn uncharge_metadata(&self, bytes: u64) {
        todo!()
    }

    /// Changes the bound.
    pub fn set_limit(&self, bytes: u64) -> Result<(), FramesError> {
        todo!()
    }

    /// The bound in bytes.
    pub fn limit(&self) -> u64 {
        todo!()
    }

    /// Bytes held beyond the limit.
    pub fn excess(&self) -> u64 {
        todo!()
    }

    /// All figures at one moment.
    pub fn usage(&self) -> FrameUsage {
        todo!()
    }

    /// Frames a reservation could get now (a hint).
    pub fn available(&self) -> u64 {
        todo!()
    }

    /// Most frames that can be in use or reserved at once.
    pub fn capacity(&self) -> u64 {
        todo!()
    }

    /// Whether the background reclaimer should start.
    pub fn below_low(&self) -> bool {
        todo!()
    }

    /// Whether the background reclaimer, once started, should go on.
    pub fn below_high(&self) -> bool {
        todo!()
    }

    /// Whether somebody waits in the queue.
    pub fn has_waiters(&self) -> bool {
        todo!()
    }

    /// Isolates the block with the fewest frames in use.
    pub fn isolate_block(&self) -> Option<BlockNumber> {
        todo!()
    }

    /// As [`Frames::isolate_block`], passing over the blocks in `except`.
    pub fn isolate_block_except(&self, except: &[BlockNumber]) -> Option<BlockNumber> {
        todo!()
    }

    /// The frames of a block that are in use.
    pub fn block_frames(&self, block: BlockNumber) -> Vec<FrameNumber> {
        todo!()
    }

    /// Gives an isolated block back if all its frames are free.
    pub fn try_give_back(&self, block: BlockNumber) -> bool {
        todo!()
    }

    /// Makes an isolated block allocatable again.
    pub fn unisolate(&self, block: BlockNumber) {
        todo!()
    }

    /// Gives all wholly free blocks back, or only as many as lie beyond the limit; returns how many.
    pub fn trim(&self, all: bool) -> usize {
        todo!()
    }

    /// Adds an observer, which is told of all held blocks before this returns.
    pub fn add_observer(&self, observer: &Arc<dyn BlockObserver>) {
        todo!()
    }
}
