//! Compaction: moving folios together, so that there are large chunks again.
//!
//! # Model
//!
//! ```text
//!   a chunk was missing ─▶ room for a block's folios? ─▶ isolate the emptiest ─▶ move ─▶ open it, whole
//!                            no: not now
//! ```
//!
//! Nothing is evicted for it, but while chunks are missing the reclaimer keeps a block more free, in caches
//! that can spare one. Where callers wait for memory it does nothing: they would pay for it.
//!
//! # Invariants
//!
//! 1. A pass takes a bounded part of the time (a [`PART`]th), however large the cache.
//! 2. A folio is moved or left alone, never dropped.

use foliocache_sync::time::{Duration, Instant};

use crate::frames::BLOCK_FRAMES;
use crate::mm::Mm;
use crate::stats::bump;

pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The part of the time that passes may take.
const PART: u32 = 20;

/// The part of a cache's blocks that one pass makes whole, at least one.
const SHARE: u64 = 64;

/// Blocks that a cache has at least before one is kept free for compaction.
const SPARE_FROM: u64 = 24;

impl Mm {
    /// Frames that are to be available beside the usual so that a block can be made whole.
    pub(super) fn spare_for_compaction(&self) -> u64 {
        let blocks = self.frames.capacity() / u64::from(BLOCK_FRAMES);
        match self.frames.is_fragmented() && blocks >= SPARE_FROM {
            true => u64::from(BLOCK_FRAMES),
            false => 0,
        }
    }

    /// Makes some blocks whole if chunks are missing and it is time: not before `next`.
    ///
    /// Context: the background reclaimer. Tries folio locks; does not sleep but for a block's lock.
    pub(super) fn compact(&self, next: &mut Option<Instant>) {
        let start = Instant::now();
        if !self.frames.is_fragmented() || next.is_some_and(|next| start < next) {
            return;
        }
        if self.frames.take_fragmented() {
            let blocks = (self.frames.capacity() / u64::from(BLOCK_FRAMES) / SHARE).max(1);
            let whole = self.compact_blocks(blocks as usize);
            bump(&self.compacted, whole);
        }
        *next = start.checked_add(PAUSE.max(start.elapsed() * PART));
    }

    fn compact_blocks(&self, want: usize) -> u64 {
        // What the blocks chosen so far need comes on top.
        let (mut blocks, mut used) = (Vec::new(), 0);
        while blocks.len() < want
            && let Some(block) = self.frames.isolate_fragmented(used)
        {
            used += self.frames.block_frames(block).len() as u64;
            blocks.push(block);
        }
        for &block in &blocks {
            for locked in self.folios_in(block) {
                // Invariant 2: what cannot be moved stays.
                self.migrate(&locked);
            }
        }
        let mut whole = 0;
        for block in blocks {
            whole += u64::from(self.frames.block_frames(block).is_empty());
            self.frames.unisolate(block);
        }
        whole
    }
}
