//! Giving memory back in whole blocks: evacuating the folios of a block to other frames.
//!
//! # Model
//!
//! ```text
//!   isolate ─▶ evict or move every folio that has a frame of the block ─▶ give back
//!                 └── a folio stays busy: try again soon, then skip the block and take another
//! ```
//!
//! An I/O holds its folios, and with them their blocks, until it ends, which on a store that hangs it
//! may never do. So a block is skipped that does not become empty within some milliseconds.
//!
//! # Invariants
//!
//! 1. A folio that moves keeps its place in the index; its version grows before the old frame is
//!    free, so a lockless reader of the old one copies again.
//! 2. A folio under writeback is not moved: the device reads its frame.

use std::collections::HashSet;
use std::time::Duration;

use crate::folio::{LockedFolio, Operation};
use crate::frames::BlockNumber;
use crate::mm::Mm;
use crate::owner;
use crate::stats::bump;
use crate::types::PAGE_SIZE;

/// Sets of blocks in a row of which none could be emptied before the caller is told so.
const MAX_IDLE: u32 = 4;

/// Rounds over a set of blocks before the rest is put back into use.
const ROUNDS: u32 = 6;

/// How long the first folios that are busy have until the second round, doubled for each later one:
/// locks and writes to a fast store last no longer.
const ROUND_PAUSE: Duration = Duration::from_micros(500);

impl Mm {
    /// Empties up to `want` blocks and gives them back; returns how many it did.
    ///
    /// Context: may block for some milliseconds, while folios are busy; not for I/O.
    pub(crate) fn evacuate_blocks(&self, want: usize) -> usize {
        let (mut given, mut idle) = (0, 0);
        let mut skipped = HashSet::new();
        while given < want && idle < MAX_IDLE {
            // More than are wanted once some were skipped, so that few sets go through many of them.
            let set = (want - given).max(skipped.len());
            let mut blocks = self.frames.isolate_blocks(set, &skipped);
            if blocks.is_empty() {
                break;
            }
            let emptied = self.empty_blocks(&mut blocks, want - given);
            if emptied < want - given {
                bump(&self.skipped, blocks.len() as u64);
                skipped.extend(blocks.iter().copied());
            }
            for block in blocks {
                self.frames.unisolate(block);
            }
            given += emptied;
            idle = if emptied > 0 { 0 } else { idle + 1 };
        }
        given
    }

    /// Empties isolated blocks until it has given `want` of them back; returns how many it did. If they
    /// are fewer, each block that is left in the list has a folio that stays busy.
    fn empty_blocks(&self, blocks: &mut Vec<BlockNumber>, want: usize) -> usize {
        let mut given = 0;
        for round in 0..ROUNDS {
            if blocks.is_empty() || given >= want {
                break;
            }
            if round > 0 {
                foliocache_sync::time::sleep(ROUND_PAUSE * (1 << (round - 1)));
            }
            let mut empty = 0;
            for &block in blocks.iter() {
                self.folios_in(block)
                    .for_each(|locked| self.evacuate_folio(locked));
                empty += usize::from(self.frames.block_frames(block).is_empty());
                if given + empty >= want {
                    break;
                }
            }
            given += self.frames.give_back(blocks);
        }
        given
    }

    /// The folios of a block that can be locked without waiting, each locked.
    pub(super) fn folios_in(&self, block: BlockNumber) -> impl Iterator<Item = LockedFolio<'_>> {
        self.frames.owners(block).filter_map(|(frame, owner)| {
            let folio = self.folios.get(owner);
            // It may have moved, or be another by now; its lock is for who owns the frame.
            if folio.frame() != frame {
                return None;
            }
            let locked = folio.try_lock(&self.waits)?;
            (locked.mapping() != 0 && locked.frame() == frame).then_some(locked)
        })
    }

    /// Gets a locked folio out of its block, if it can be moved or dropped now.
    fn evacuate_folio(&self, locked: LockedFolio<'_>) {
        if self.migrate(&locked) {
            return;
        }
        if locked.may(Operation::Evict) {
            self.lru.lock().remove(&self.folios, &locked);
            let evicted = self.evict(locked);
            self.lru.lock().record_eviction(&evicted);
        } else if locked.may(Operation::Split) {
            // It has to stay in memory, and no such chunk is free: its halves may find places.
            self.migrate_in_parts(locked);
        }
    }

    /// Moves a locked folio that is too large for the chunks there are in parts, as far as memory
    /// goes; what stays is tried again in a later round.
    fn migrate_in_parts(&self, locked: LockedFolio<'_>) {
        if locked.order() == 0 {
            return;
        }
        let mapping = owner::hold(&locked);
        let middle = locked.index().add(locked.nr_pages() / 2);
        if let Some(part) = mapping.split_folio(locked, middle) {
            self.migrate(&part);
        }
    }

    /// Moves a locked folio to other frames, if it may be moved and there are free ones (invariants 1
    /// and 2).
    pub(super) fn migrate(&self, locked: &LockedFolio<'_>) -> bool {
        if !locked.may(Operation::Migrate) {
            return false;
        }
        let order = locked.order();
        let Some(frame) = self.frames.try_alloc_to_move(order) else {
            return false;
        };
        let (from, to) = (self.frames.addr(locked.frame()), self.frames.addr(frame));
        let moved = crate::direct_map::copy(to, from, PAGE_SIZE << order);
        let unused = match moved {
            true => {
                self.frames.set_owner(frame, self.folios.id(locked.folio()));
                locked.migrate(frame)
            }
            // Bad memory: a reader will meet it, or writeback.
            false => frame,
        };
        self.frames.free(unused, order);
        moved
    }
}
