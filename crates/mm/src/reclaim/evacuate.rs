//! Giving memory back in whole blocks: evacuating the folios of a block to other frames.
//!
//! # Model
//!
//! ```text
//!   isolate ─▶ evict or move every folio that has a frame of the block ─▶ give back
//!                 └── a folio stays busy: try again later, or unisolate
//! ```
//!
//! A frame does not say whose it is; one pass over the descriptors finds the folios of all
//! isolated blocks, which costs a look at 64 bytes a frame and saves four bytes a page for ever.
//!
//! # Invariants
//!
//! 1. A folio that moves keeps its place in the index; its version grows before the old frame is
//!    free, so a lockless reader of the old one copies again.
//! 2. A folio under writeback is not moved: the device reads its frame.

use std::collections::HashSet;

use crate::error::MmError;
use crate::folio::{Folio, LockedFolio, flag};
use crate::frames::{BLOCK_SIZE, BlockNumber, Frames, FramesError};
use crate::mm::Mm;
use crate::owner;
use crate::types::PAGE_SIZE;

/// What a limit must leave beside a block and the descriptors there are, for index nodes.
const METADATA_FLOOR: u64 = 1 << 20;

/// Rounds over a set of blocks before the rest is put back into use.
const ROUNDS: usize = 4;

impl Mm {
    /// Sets the bound to `bytes`, at once for whatever is taken from now on.
    ///
    /// Shrinking gives whole blocks back: clean folios go, others move to blocks that stay. What
    /// cannot go at once (dirty data that has to be written first) goes in the background.
    ///
    /// Context: may block while folios are moved; not for I/O.
    ///
    /// # Errors
    /// A limit that is too small or exceeds the machine; `ECHILD` after a fork.
    pub fn set_limit(&self, bytes: u64) -> Result<(), MmError> {
        self.check_fork().map_err(MmError::Setup)?;
        // Descriptors that were ever in use stay; under a limit that leaves no block beside them
        // nothing could be read or written any more.
        let min = self.folios.bytes() + BLOCK_SIZE as u64 + METADATA_FLOOR;
        if bytes < min {
            return Err(FramesError::LimitTooSmall { limit: bytes, min }.into());
        }
        self.frames.set_limit(bytes)?;
        self.give_back_excess();
        if self.frames.excess() > 0 {
            self.request_writeback();
            self.background.wake();
        }
        Ok(())
    }

    /// Gives back as much of what is over the limit as is possible now.
    pub(super) fn give_back_excess(&self) {
        self.nodes.shrink();
        let mut before = u64::MAX;
        loop {
            let excess = self.frames.excess();
            if excess == 0 || excess >= before {
                return;
            }
            before = excess;
            self.frames.trim(true);
            let blocks = self.frames.excess().div_ceil(BLOCK_SIZE as u64);
            self.evacuate_blocks(blocks as usize);
        }
    }

    /// Empties up to `want` blocks and gives them back; returns how many it did.
    pub(crate) fn evacuate_blocks(&self, want: usize) -> usize {
        let mut blocks: Vec<BlockNumber> = Vec::new();
        while blocks.len() < want {
            match self.frames.isolate_block_except(&blocks) {
                Some(block) => blocks.push(block),
                None => break,
            }
        }
        let isolated = blocks.len();
        for _ in 0..ROUNDS {
            if blocks.is_empty() {
                break;
            }
            let wanted: HashSet<u32> = blocks.iter().map(|block| block.as_u32()).collect();
            for folio in self.folios.all() {
                if wanted.contains(&Frames::block_of(folio.frame())) {
                    self.vacate(folio, &wanted);
                }
            }
            blocks.retain(|&block| !self.frames.try_give_back(block));
        }
        for &block in &blocks {
            self.frames.unisolate(block);
        }
        isolated - blocks.len()
    }

    /// Gets one folio out of the blocks in `wanted`, if it can be moved or dropped now.
    fn vacate(&self, folio: &Folio, wanted: &HashSet<u32>) {
        let Some(locked) = folio.try_lock(&self.waits) else {
            return;
        };
        if locked.mapping() == 0 || !wanted.contains(&Frames::block_of(locked.frame())) {
            return;
        }
        if locked.state.load().has(flag::WRITEBACK) {
            return;
        }
        if self.migrate(&locked) {
            return;
        }
        if !locked.state.load().has_any(flag::BUSY) && !owner::of(&locked).bdi().is_memory() {
            self.lru.lock().remove(&self.folios, &locked);
            self.evict(locked);
        }
    }

    /// Moves a locked folio to another frame, if one is free (invariants 1 and 2).
    fn migrate(&self, locked: &LockedFolio<'_>) -> bool {
        // Who waits for memory comes first: then the folio is dropped instead.
        let Some(mut reservation) = self.frames.try_reserve(1) else {
            return false;
        };
        let frame = self.frames.alloc(&mut reservation);
        let (from, to) = (self.frames.addr(locked.frame()), self.frames.addr(frame));
        crate::direct_map::copy(to, from, PAGE_SIZE);
        let old = locked.migrate(frame);
        self.frames.free(old, 0);
        true
    }
}
