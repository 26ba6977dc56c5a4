//! The frame space: 4 KiB slots of one reserved address range, under one hard bound.
//!
//! # Model
//!
//! ```text
//!   who needs frames        try_reserve ── not there ──▶ enqueue, wait, try_take (first in, first out)
//!                                │
//!                           Reservation (a promise: counted, no memory yet)
//!                                │ alloc
//!   per shard of threads     Magazine ◀──▶ Buddy of a block ◀── new block (2 MiB, touched) ── kernel
//!                                                │ isolate_blocks, evacuated by the caller
//!                                                └──────────────── give_back ────────────▶ kernel
//! ```
//!
//! A frame number is the index of a slot in the range, and fits 32 bits. The range holds *general blocks*:
//! 2 MiB of private memory each, split by a buddy allocator, given back whole. Behind them is the space for
//! files that are mapped ([`linear`]).
//!
//! # Invariants
//!
//! 1. `blocks held × 2 MiB + linear frames in use + metadata ≤ limit` at every moment, except between a shrink of the limit and
//!    the last byte given back for it.
//! 2. A frame that was promised can be had: `reserved ≤ free frames in open blocks and magazines + frames
//!    of blocks that may still be taken`.
//! 3. A frame has one owner: the buddy of its block, one magazine, or whoever allocated it.
//!
//! # Locking
//!
//! *Order*: the table's lock ([`Rank::Frames`]) → a magazine's ([`Rank::Magazine`]) → the queue's
//! ([`Rank::Budget`]). *May block*: nothing here waits for memory to be freed except [`Ticket::wait`];
//! taking a block sleeps in the kernel, giving one back waits for RCU.
//!
//! # Differences from Linux
//!
//! Memory is reserved before it is allocated, so that no operation fails or reclaims in its middle. There are
//! no zones and no migrate types; a block is emptied by its owner, which knows the folios.

mod block;
mod buddy;
mod budget;
mod entries;
mod evacuate;
mod fixed;
mod huge;
mod limit;
mod linear;
mod magazine;
mod owners;
mod runs;
mod supply;
mod tables;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::error::MmError;
use block::Table;
use budget::Budget;
use fixed::FixedBlocks;
use foliocache_sync::Condvar;
use foliocache_sync::atomic::AtomicU32;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sys::memory::{ReservedRange, total_memory};
use limit::{Hints, Room};
use linear::Linear;
use magazine::Magazines;
use owners::Owners;

pub use budget::Ticket;
pub use huge::HugeFrames;
pub(crate) use linear::{LinearRange, RangeError, RangeOwner};
pub(crate) use runs::Runs;
pub(crate) use tables::{TABLE_BYTES, Tables};

/// Binary logarithm of the frames of a block; also the largest order.
pub const MAX_ORDER: u32 = 9;
/// Frames of a general block.
pub const BLOCK_FRAMES: u32 = 1 << MAX_ORDER;
/// Bytes of a general block.
pub const BLOCK_SIZE: usize = (BLOCK_FRAMES as usize) << crate::PAGE_SHIFT;
/// Least limit of a frame space, in bytes: 4 MiB.
pub const MIN_LIMIT: u64 = 4 << 20;
/// Least limit with which there are linear ranges: each kind of frames has to have some.
pub(crate) const MIN_LINEAR_LIMIT: u64 = 16 << 20;
/// Largest limit whatever the machine: 4 TiB, so that counts of frames keep a bit to spare.
const MAX_LIMIT: u64 = 4 << 40;

/// The frames of one cache; see the module's header.
#[repr(C, align(64))]
pub struct Frames {
    /// Alone on its cache line with what never changes: every hit reads where it begins.
    range: ReservedRange,
    owners: Owners,
    fixed: FixedBlocks,
    max_limit: u64,
    /// Of the general blocks.
    budget: Budget,
    linear: Linear,
    room: Room,
    magazines: Magazines,
    /// Isolated blocks: while there are any, which is for milliseconds, frees pass the magazines by. Relaxed:
    /// raised while all magazines are closed under their locks, and read under the lock of one.
    isolated: AtomicU32,
    /// Blocks that cannot be emptied (`fixed.rs`).
    nr_fixed: AtomicU32,
    hints: Hints,
    table: RankedMutex<{ Rank::Frames as u8 }, Table>,
    /// Notified, under the table's lock, when a new block is open.
    grown: Condvar,
}

impl Frames {
    /// A frame space bounded by `limit` bytes, metadata included.
    ///
    /// Reserves address space for as much memory as the machine has, so that the limit can grow; takes no
    /// block yet. Its own tables count as metadata from the start.
    ///
    /// Errors: a limit below [`MIN_LIMIT`] or above the machine's memory, naming both figures; address
    /// space that the kernel refuses.
    pub fn new(limit: u64) -> Result<Self, MmError> {
        let max_limit = total_memory().min(MAX_LIMIT);
        let max_blocks = max_limit.div_ceil(BLOCK_SIZE as u64) as u32;
        let (range, units) = linear::reserve(max_blocks)?;
        let frames = Self {
            range,
            owners: Owners::new(max_blocks)?,
            fixed: FixedBlocks::new(max_blocks)?,
            max_limit,
            budget: Budget::default(),
            linear: Linear::new(max_blocks, units),
            room: Room::default(),
            magazines: Magazines::new(),
            isolated: AtomicU32::new(0),
            nr_fixed: AtomicU32::new(0),
            hints: Hints::default(),
            table: RankedMutex::new(Table::new()),
            grown: Condvar::new(),
        };
        frames.check_limit(limit)?;
        let base = Magazines::BYTES + size_of::<Self>() as u64;
        frames.room.change(-(base as i64));
        frames.apply_limit(&mut frames.table.lock(), limit)?;
        Ok(frames)
    }

    /// Where a frame is: 4 KiB, mapped, readable and writable as long as its block is held. Contents of
    /// a newly allocated frame are arbitrary.
    #[inline]
    pub fn addr(&self, frame: FrameNumber) -> *mut u8 {
        let offset = (frame.0 as usize) << crate::PAGE_SHIFT;
        self.range.as_ptr().wrapping_add(offset)
    }

    /// Promises `n` frames of a kind; `None` when they are not available, or while others wait.
    ///
    /// Counts against the bound from now on, takes no memory yet. Does not sleep. A caller that gets
    /// `None` reclaims, or joins the queue ([`Frames::enqueue`]). Context: no lock of rank `Frames` or
    /// inner.
    #[inline]
    pub fn try_reserve(&self, kind: FrameKind, n: u32) -> Option<Reservation<'_>> {
        let budget = self.budget_of(kind);
        if !budget.reserve(n, false) {
            self.try_room_to_capacity();
            self.shift_unit(kind);
            if !budget.reserve(n, false) {
                return None;
            }
        }
        Some(Reservation::new(self, kind, n))
    }

    #[inline]
    fn budget_of(&self, kind: FrameKind) -> &Budget {
        match kind {
            FrameKind::General => &self.budget,
            FrameKind::Linear => &self.linear.budget,
        }
    }
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames")
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// A promise of frames of one kind. The unused part goes back when it is dropped.
#[must_use = "a reservation that is dropped promises nothing"]
pub struct Reservation<'a> {
    budget: &'a Budget,
    kind: FrameKind,
    left: u32,
}

impl<'a> Reservation<'a> {
    fn new(frames: &'a Frames, kind: FrameKind, n: u32) -> Self {
        Self {
            budget: frames.budget_of(kind),
            kind,
            left: n,
        }
    }

    /// The kind of frames that are promised.
    #[inline]
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Frames still promised.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Gives the unused part back.
    pub(crate) fn cancel(&mut self) {
        let left = std::mem::take(&mut self.left);
        if left > 0 {
            self.budget.unreserve(left);
        }
    }

    #[inline]
    fn use_up(&mut self, frames: &Frames, kind: FrameKind, n: u32) {
        debug_assert!(std::ptr::eq(self.budget, frames.budget_of(kind)));
        assert!(n <= self.left, "a reservation was used up");
        self.left -= n;
    }
}

impl std::fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Where frames come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// General blocks: any free frames will do.
    General,
    /// Linear ranges: a page has a frame of its own (`frames/linear.rs`).
    Linear,
}

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

/// Figures of the frame space, all taken at one moment. A page, and the frame that holds it, has 4 KiB; a block 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameUsage {
    /// The bound.
    pub limit_bytes: u64,
    /// General blocks held.
    pub blocks_held: u64,
    /// Bytes of the blocks held, free frames in them included.
    pub held_bytes: u64,
    /// Bytes charged as metadata, the block table included.
    pub metadata_bytes: u64,
    /// Pages promised by reservations and not yet allocated.
    pub reserved_pages: u64,
    /// Pages allocated, those of mapped files included that are on their way out.
    pub in_use_pages: u64,
    /// Bytes of the frames of mapped files that are in use.
    pub linear_bytes: u64,
    /// Pages that a reservation could get now; zero after a shrink until enough was freed.
    pub available_pages: u64,
    /// Callers that wait for memory.
    pub waiters: u64,
    /// Most pages that could be in use or reserved at once, with the metadata of now.
    pub capacity_pages: u64,
    /// Blocks that were taken past the limit to keep promises older than a shrink, ever.
    pub blocks_forced: u64,
    /// Chunks of an order above 0 that could not be had though enough frames were free, ever.
    pub order_failures: u64,
    /// Whether mapped files have huge pages, and if not why.
    pub huge: HugeFrames,
}

impl FrameUsage {
    /// Bytes that count against the bound: blocks held, frames of linear ranges, and metadata.
    pub const fn total_bytes(&self) -> u64 {
        self.blocks_held * BLOCK_SIZE as u64 + self.linear_bytes + self.metadata_bytes
    }
}
