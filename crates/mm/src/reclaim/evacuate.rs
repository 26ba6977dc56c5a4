//! Changing the bound, and giving memory back in whole blocks.
//!
//! # Model
//!
//! ```text
//!   set_limit ─▶ evict what the queues give up ─▶ wholly free blocks ─▶ evacuate the emptiest
//!                (coldest first)                                         (what stays is moved)
//!   evacuate  ─▶ isolate ─▶ evict or move every folio that has a frame of the block ─▶ give back
//!                             └── a folio stays busy: try again soon, then skip the block and take another
//! ```
//!
//! A folio is not dropped because of the block that it lies in, as long as there is a place to move it to.
//!
//! An I/O holds its folios, and with them their blocks, until it ends, which on a store that hangs it
//! may never do. So a block is skipped that does not become empty within some milliseconds.
//!
//! # Invariants
//!
//! 1. A folio that moves keeps its place in the index; its version grows before the old frame is
//!    free, so a lockless reader of the old one copies again.
//! 2. A folio under writeback is not moved: the device reads its frame.

use foliocache_sync::MutexGuard;
use foliocache_sync::collections::HashSet;
use foliocache_sync::time::{Duration, sleep};

use crate::counters::bump;
use crate::error::MmError;
use crate::folio::{LockedFolio, Operation};
use crate::frames::{BLOCK_SIZE, BlockNumber, FrameNumber, Frames};
use crate::owner;
use crate::pins::RevokeReason;
use crate::records::Mm;
use crate::revoke::Revoking;
use crate::types::{PAGE_SHIFT, PAGE_SIZE};
use crate::unreclaimable::UNIT;

/// Sets of blocks in a row of which none could be emptied before the caller is told so.
const MAX_IDLE: u32 = 4;

/// Rounds over a set of blocks before the rest is put back into use.
const ROUNDS: u32 = 6;

/// How long the first folios that are busy have until the second round, doubled for each later one:
/// locks and writes to a fast store last no longer.
const ROUND_PAUSE: Duration = Duration::from_micros(500);

/// Bytes that a limit must leave for index nodes, beside a block and the descriptors there are.
const METADATA_FLOOR: u64 = 1 << 20;

/// Frames evicted beyond what the new bound needs, so that there is a place to move folios to.
const MOVE_ROOM: u64 = 64;

/// Frames evicted between two looks at the deficit.
const EVICT_BATCH: u64 = 512;

/// Looks without progress before giving back is left to the background.
const MAX_LOOKS: u32 = 3;

/// Largest order of folios that are moved for a long pin: 64 KiB.
const MAX_PIN_ORDER: u32 = 4;

/// How long folios that were busy have between two looks.
const PAUSE: Duration = Duration::from_millis(2);

impl Mm {
    /// Sets the bound to `bytes`, at once for whatever is taken from now on.
    ///
    /// Shrinking gives whole blocks back: the coldest folios go, others move to blocks that stay.
    /// Memory that cannot go at once (dirty data that has to be written first) goes in the background.
    /// While memory is short outside the cache, a smaller bound is kept, see
    /// [`PressureStats`](crate::PressureStats).
    ///
    /// If pins hold more than the new bound leaves them, holders of revocable ones are asked to give them up first.
    ///
    /// Context: may block while folios are moved, and for `pin_wait` for revocable pins; not for I/O.
    ///
    /// # Errors
    /// A limit that exceeds the machine, or is too small beside descriptors, memory file systems and data
    /// that could not be written, or less than 16 MiB once a file was mapped; `ECHILD` after a fork.
    pub fn set_limit(&self, bytes: u64) -> Result<(), MmError> {
        self.check_fork()?;
        let mut revoking = None;
        let mut least = self.least_bound();
        while bytes < least {
            // Each page of a pin takes more than itself. Too few are asked at first rather than too many.
            let pages = (least - bytes).div_ceil(2 << PAGE_SHIFT);
            let counted = |pages, counts| if counts { pages } else { 0 };
            if bytes < self.frames.least_limit() || !self.revoke(&mut revoking, pages, counted) {
                return Err(MmError::LimitTooSmall {
                    limit: bytes,
                    min: least,
                });
            }
            least = self.least_bound();
        }
        self.pressure.configure(&self.frames, bytes, self.held())?;
        while self.frames.excess() > 0 {
            let (wanted, units) = (self.unspared_units(), |pages: u64, _| pages.div_ceil(UNIT));
            if wanted == 0 || !self.revoke(&mut revoking, wanted, units) {
                break;
            }
        }
        if self.give_back_excess(Some(self.reclaimer.giving_back.lock())) > 0 {
            self.log_holders("memory cannot be given back yet");
            self.reclaimer.worker.wake();
        }
        Ok(())
    }

    /// The smallest bound that can be set: descriptors that were ever in use stay, and unreclaimable memory keeps to its
    /// budget.
    fn least_bound(&self) -> u64 {
        let blocks = self.unreclaimable().needed();
        let least = Frames::limit_for(blocks, self.folios.bytes() + METADATA_FLOOR);
        least.max(self.frames.least_limit())
    }

    fn revoke<'a>(
        &'a self,
        revoking: &mut Option<Revoking<'a>>,
        wanted: u64,
        weigh: impl Fn(u64, bool) -> u64,
    ) -> bool {
        self.revoke_pins(revoking, RevokeReason::SmallerBound, wanted, weigh)
    }

    /// Gives back as much of the excess over the limit as is possible now, if the caller is `alone`, with
    /// `giving_back` locked: two would each evict all that has to go. Returns the bytes that are left.
    ///
    /// Context: may block for a few milliseconds at a time, while folios are busy; not for I/O.
    pub(crate) fn give_back_excess(&self, alone: Option<MutexGuard<'_, ()>>) -> u64 {
        if alone.is_some() && self.frames.excess() > 0 {
            self.nodes.shrink();
        }
        let (mut least, mut idle) = (u64::MAX, 0);
        loop {
            let excess = self.frames.excess();
            if excess == 0 {
                return 0;
            }
            (least, idle) = match excess < least {
                true => (excess, 0),
                false => (least, idle + 1),
            };
            if alone.is_none() || idle == MAX_LOOKS {
                // Most of what stays waits to be written.
                self.request_writeback();
                return excess;
            }
            if idle > 0 {
                sleep(PAUSE);
            }
            self.evict_deficit();
            self.frames.trim(true);
            let blocks = self.frames.excess().div_ceil(BLOCK_SIZE as u64);
            self.evacuate_blocks(blocks as usize);
        }
    }

    /// Evicts until there are frames to reserve, and some to move folios to, as far as folios are clean.
    fn evict_deficit(&self) {
        loop {
            // Callers that wait for memory evict too, so the deficit may shrink faster than by this loop alone.
            let deficit = self.frames.deficit();
            if deficit == 0 {
                return;
            }
            let evicted = self.shrink_lru((deficit + MOVE_ROOM).min(EVICT_BATCH) as usize);
            if self.frames.punch_leaving() == 0 && evicted == 0 {
                return;
            }
        }
    }

    /// Empties up to `want` blocks and gives them back; returns how many it did.
    ///
    /// Context: may block for some milliseconds, while folios are busy; not for I/O.
    pub(crate) fn evacuate_blocks(&self, want: usize) -> usize {
        let (mut given, mut idle) = (0, 0);
        let mut skipped = HashSet::default();
        while given < want && idle < MAX_IDLE {
            // More than are wanted once some were skipped, so that few sets go through many of them.
            let set = (want - given).max(skipped.len());
            let mut blocks = self.frames.isolate_blocks(set, &skipped);
            if blocks.is_empty() {
                break;
            }
            // Views and pins last longer than some milliseconds.
            let held = blocks.extract_if(.., |block| self.is_held_up(*block));
            for block in held {
                self.frames.unisolate(block);
                skipped.insert(block);
                bump(&self.events.skipped, 1);
            }
            if blocks.is_empty() {
                continue;
            }
            let emptied = self.empty_blocks(&mut blocks, want - given);
            if emptied < want - given {
                bump(&self.events.skipped, blocks.len() as u64);
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
                sleep(ROUND_PAUSE * (1 << (round - 1)));
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
            self.evict_queued(locked);
        } else if locked.may(Operation::Split) && locked.order() > 0 {
            // It has to stay in memory, and no such chunk is free: its halves may find places, now or in a
            // later round.
            let mapping = owner::hold(&locked);
            let middle = locked.index().add(locked.nr_pages() / 2);
            if let Some(part) = mapping.split_folio(locked, middle) {
                self.migrate(&part);
            }
        }
    }

    /// Moves a locked folio to other frames, if it may be moved and there are free ones (invariants 1
    /// and 2).
    pub(super) fn migrate(&self, locked: &LockedFolio<'_>) -> bool {
        if !locked.may(Operation::Migrate) {
            return false;
        }
        let frame = self.frames.try_alloc_to_move(locked.order());
        frame.is_some_and(|frame| self.move_to(locked, frame))
    }

    /// Moves a locked folio that is about to be pinned to where those lie that are pinned for long, if that can be done at
    /// once; whether it did.
    pub(crate) fn move_for_pin(&self, locked: &LockedFolio<'_>) -> bool {
        let (frame, order) = (locked.frame(), locked.order());
        if self.frames.is_linear(frame) || order > MAX_PIN_ORDER || !locked.may(Operation::Migrate)
        {
            return false;
        }
        let frame = self.frames.try_alloc_for_pins(frame, order);
        frame.is_some_and(|frame| self.move_to(locked, frame))
    }

    fn move_to(&self, locked: &LockedFolio<'_>, frame: FrameNumber) -> bool {
        let order = locked.order();
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
