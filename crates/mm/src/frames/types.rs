//! Numbers and figures of the frame space.

use super::BLOCK_SIZE;

/// Number of a frame: a 4 KiB slot of the cache's reserved range.
#[doc(alias = "pfn")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FrameNumber(pub u32);

impl FrameNumber {
    /// The frame `n` slots further on, for walking the frames of a larger folio.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}

/// Number of a general block: 2 MiB of the reserved range, 512 frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockNumber(pub u32);

/// Figures of the frame space, all taken at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameUsage {
    /// The bound, in bytes.
    pub limit: u64,
    /// General blocks held.
    pub blocks_held: u64,
    /// Bytes of the blocks held, free frames in them included.
    pub bytes_held: u64,
    /// Bytes charged as metadata, the block table included.
    pub metadata: u64,
    /// Frames promised by reservations and not yet allocated.
    pub reserved: u64,
    /// Frames allocated.
    pub in_use: u64,
    /// Frames that a reservation could get now; zero after a shrink until enough was freed.
    pub available: u64,
    /// Tickets in the queue.
    pub waiters: u64,
    /// Most frames that could be in use or reserved at once, with the metadata of now.
    pub capacity: u64,
    /// Blocks that were taken past the limit to keep promises older than a shrink, ever.
    pub blocks_forced: u64,
    /// Chunks of an order above 0 that could not be had though enough frames were free, ever.
    pub order_failures: u64,
}

impl FrameUsage {
    /// Bytes that count against the bound: blocks held and metadata.
    pub const fn total(&self) -> u64 {
        self.blocks_held * BLOCK_SIZE as u64 + self.metadata
    }
}
