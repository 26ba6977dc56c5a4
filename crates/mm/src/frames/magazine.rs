//! Magazines: short lists of free order-0 frames, one for each shard of threads.
//!
//! # Model
//!
//! Most allocations and frees of single frames meet only the magazine of their thread's shard. It is
//! filled from and emptied to the buddies in batches of half its size, under its lock of [`Rank::Magazine`].
//!
//! # Invariants
//!
//! 1. Frames in a magazine are free and of blocks that are not isolated: a block is isolated while
//!    all magazines are closed and empty, and frees pass the magazines by as long as one is.
//! 2. Frames move between magazines and buddies only under the table's lock. With all magazines closed,
//!    the buddies hold every free frame.

use super::Frames;
use super::block::Table;
use foliocache_sync::CachePadded;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::thread_shard;

pub(super) const SIZE: usize = 32;
/// Frames moved at once between a magazine and the buddies.
pub(super) const BATCH: usize = SIZE / 2;
/// Magazines of a frame space, a power of two.
pub(super) const SHARDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 32 };

pub(super) struct Magazine {
    frames: [u32; SIZE],
    len: u32,
    /// Frames pass by, for the time of a gathering.
    closed: bool,
}

impl Magazine {
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.frames[self.len as usize])
    }

    pub(super) fn push(&mut self, frame: u32) -> bool {
        let len = self.len as usize;
        if self.closed || len == SIZE {
            return false;
        }
        debug_assert!(
            !self.frames[..len].contains(&frame),
            "frame {frame} was freed twice"
        );
        self.frames[len] = frame;
        self.len += 1;
        true
    }
}

type Shard = RankedMutex<{ Rank::Magazine as u8 }, Magazine>;

pub(super) struct Magazines {
    shards: Box<[CachePadded<Shard>]>,
}

impl Magazines {
    pub(super) const BYTES: u64 = (SHARDS * size_of::<CachePadded<Shard>>()) as u64;

    pub(super) fn new() -> Self {
        let magazine = || Magazine {
            frames: [0; SIZE],
            len: 0,
            closed: false,
        };
        let shard = |_| CachePadded::new(RankedMutex::new(magazine()));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    #[inline]
    pub(super) fn mine(&self) -> &Shard {
        &self.shards[thread_shard() % SHARDS]
    }

    /// Takes a frame from anybody's magazine.
    ///
    /// Context: the table's lock is held.
    pub(super) fn steal(&self, _table: &Table) -> Option<u32> {
        let first = thread_shard();
        (0..SHARDS).find_map(|n| self.shards[(first + n) % SHARDS].lock().pop())
    }

    /// Closes all magazines and frees what they hold into the buddies.
    ///
    /// Context: the table's lock is held, and stays held until [`Magazines::reopen`].
    pub(super) fn gather(&self, table: &mut Table) {
        for shard in &self.shards {
            let mut magazine = shard.lock();
            magazine.closed = true;
            while let Some(frame) = magazine.pop() {
                let isolated = table.free(frame, 0);
                // Invariant 1.
                assert!(
                    !isolated,
                    "a magazine held frame {frame} of an isolated block"
                );
            }
        }
    }

    pub(super) fn reopen(&self, _table: &Table) {
        for shard in &self.shards {
            shard.lock().closed = false;
        }
    }
}

impl Frames {
    /// Fills the thread's magazine from the buddies and takes one frame for the caller.
    ///
    /// The buddies give their lowest frames first, and the magazine gives them out in that order, so
    /// pages that follow one another in a file mostly do in memory too: one run for a device.
    pub(super) fn refill(&self, table: &mut Table) -> Option<u32> {
        let mine = table.alloc(0)?;
        let mut batch = [0; BATCH - 1];
        let mut taken = 0;
        while taken < batch.len()
            && let Some(frame) = table.alloc(0)
        {
            batch[taken] = frame;
            taken += 1;
        }
        let mut magazine = self.magazines.mine().lock();
        for &frame in batch[..taken].iter().rev() {
            if !magazine.push(frame) {
                table.free(frame, 0);
            }
        }
        Some(mine)
    }

    pub(super) fn unload(&self, table: &mut Table) {
        let mut magazine = self.magazines.mine().lock();
        if (magazine.len as usize) < SIZE {
            return;
        }
        // The oldest, which other threads' caches may hold.
        for &frame in &magazine.frames[..BATCH] {
            table.free(frame, 0);
        }
        magazine.frames.copy_within(BATCH.., 0);
        magazine.len = (SIZE - BATCH) as u32;
    }
}
