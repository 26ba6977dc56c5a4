//! The limit and how blocks and metadata share it.
//!
//! # Model
//!
//! ```text
//!  │◀──────────────────────────── limit ───────────────────────────▶│
//!  │ blocks held │ may be taken │ linear │ metadata charged │ room  │
//!  │◀──── capacity × 2 MiB ────▶│◀─ u. ─▶│◀─ at least 1/32 at first ▶│
//! ```
//!
//! Linear ranges have units of 2 MiB of the limit, which move between them and the blocks ([`super::linear`]).
//! When metadata (folio descriptors, index nodes, the tables of the frame space itself) outgrows its floor
//! it takes capacity for blocks in units of 2 MiB, provided that a block less is held and 512 frames are
//! available. When it shrinks, the capacity comes back, up to the target.
//!
//! # Invariants
//!
//! `(capacity + linear units) × 2 MiB + metadata + room = limit`, `held ≤ capacity`, no more linear frames in
//! use than the units have, and `room ≥ 0` together are the bound: `held × 2 MiB + linear frames + metadata ≤ limit`. A shrink may break the last two until enough was given back,
//! which is what [`Frames::excess`] counts.
//!
//! # Locking
//!
//! The limit and the capacity change under the table's lock; charging within the room needs no lock.

use super::block::Table;
use super::budget::Budget;
use super::{BLOCK_FRAMES, BLOCK_SIZE, FrameKind, FrameUsage, Frames, MIN_LIMIT};
use crate::error::MmError;
use crate::types::PAGE_SHIFT;
use foliocache_sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use foliocache_sync::rank::{Rank, might_lock};

/// The part of the limit that blocks never take.
const FLOOR_SHARE: u64 = 32;

/// One of so many bytes of the limit is what should be left for metadata.
const METADATA_LOW: u64 = 64;

/// Figures of the table for a look without its lock. Hints all of them, hence relaxed.
#[derive(Default)]
pub(super) struct Hints {
    limit: AtomicU64,
    capacity: AtomicU32,
    linear: AtomicU32,
    target: AtomicU32,
    pub(super) order_failures: AtomicU64,
    pub(super) give_back_failures: AtomicU64,
    /// Largest order that was not there since a compaction looked.
    pub(super) order_wanted: AtomicU32,
    /// A block should be taken ahead of need.
    pub(super) block_wanted: AtomicBool,
}

/// Bytes that metadata may still take; below zero only after a shrink. It guards no memory: relaxed, the total of
/// the changes is all that counts.
#[derive(Default)]
pub(super) struct Room(AtomicI64);

impl Room {
    pub(super) fn left(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if `keep` bytes are left.
    #[inline]
    pub(super) fn take(&self, bytes: u64, keep: u64) -> bool {
        let Ok(bytes) = i64::try_from(bytes) else {
            return false;
        };
        let keep = keep as i64;
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| {
                (room.checked_sub(bytes)? >= keep).then(|| room - bytes)
            })
            .is_ok()
    }

    /// Changes it without asking.
    #[inline]
    pub(super) fn change(&self, bytes: i64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Frames {
    /// Least limit under which blocks of so many bytes fit beside so many bytes of metadata.
    pub(crate) fn limit_for(blocks: u64, metadata: u64) -> u64 {
        blocks + metadata.max(blocks.div_ceil(FLOOR_SHARE - 1))
    }

    /// Whether [`Frames::set_limit`] would take `limit`; errors as of [`Frames::new`].
    pub(crate) fn check_limit(&self, limit: u64) -> Result<(), MmError> {
        let max = self.max_limit;
        if limit < MIN_LIMIT {
            let min = MIN_LIMIT;
            return Err(MmError::LimitTooSmall { limit, min });
        }
        if limit > max {
            return Err(MmError::LimitTooLarge { limit, max });
        }
        Ok(())
    }

    /// Changes the bound, in bytes; errors as of [`Frames::new`].
    ///
    /// Takes effect at once: after a shrink no block is taken beyond it (except for a reservation that is
    /// older and has no frame yet), and nothing can be reserved until enough was freed. Wholly free
    /// blocks beyond the limit are given back before this returns, so it may block as
    /// [`Frames::give_back`] does; the rest is up to the caller, see [`Frames::excess`].
    pub fn set_limit(&self, bytes: u64) -> Result<(), MmError> {
        self.check_limit(bytes)?;
        let shrunk = {
            let mut table = self.table.lock();
            let shrunk = bytes < table.limit;
            self.apply_limit(&mut table, bytes)?;
            shrunk
        };
        if shrunk {
            self.trim(false);
        }
        Ok(())
    }

    pub(super) fn apply_limit(&self, table: &mut Table, bytes: u64) -> Result<(), MmError> {
        let target = ((bytes - bytes / FLOOR_SHARE) / BLOCK_SIZE as u64) as u32;
        if target > table.active {
            let old = table.active as usize * BLOCK_SIZE;
            self.range
                .activate(old..target as usize * BLOCK_SIZE, true)?;
            self.owners.activate(table.active, target)?;
            self.fixed.activate(table.active, target)?;
            let more = u64::from(target - table.active) * Table::BYTES_PER_BLOCK;
            self.room.change(-(more as i64));
            table.reserve(target);
        }
        self.room.change(bytes as i64 - table.limit as i64);
        // A caller that was refused tries again under the new limit.
        table.metadata_wanted = 0;
        table.limit = bytes;
        table.target = target;
        while table.units() > 0 && (table.units() > target || self.room.left() < 0) {
            match table.capacity >= table.linear {
                true => table.capacity -= 1,
                false => self.lower_linear(table),
            }
            self.room.change(BLOCK_SIZE as i64);
        }
        self.room_to_capacity(table);
        self.account(table, 0);
        self.publish(table);
        Ok(())
    }

    /// Charges `bytes` of metadata against the bound; false, and nothing charged, when there is no room.
    ///
    /// Then all blocks that metadata would have to take the place of are held, or promised: the caller
    /// gives a block back, whose place is kept for the metadata, and tries again. Does not sleep.
    ///
    /// Context: no lock of rank `Frames` or inner.
    #[must_use]
    #[inline]
    pub fn charge_metadata(&self, bytes: u64) -> bool {
        self.room.take(bytes, 0) || self.charge_slow(bytes)
    }

    /// Charges `bytes` of metadata if there is room for them at once: for what can be done without. Takes no
    /// lock, and reclaims nothing.
    #[must_use]
    pub fn try_charge_metadata(&self, bytes: u64) -> bool {
        self.room.take(bytes, 0) || foliocache_sync::planted!(metadata_not_charged)
    }

    #[cold]
    fn charge_slow(&self, bytes: u64) -> bool {
        let mut table = self.table.lock();
        loop {
            if self.room.take(bytes, 0) {
                table.metadata_wanted = 0;
                return true;
            }
            if !self.capacity_to_room(&mut table) {
                table.metadata_wanted = bytes;
                return false;
            }
        }
    }

    /// Gives charged metadata back. Does not sleep. Context: as [`Frames::charge_metadata`].
    #[inline]
    pub fn uncharge_metadata(&self, bytes: u64) {
        self.room.change(bytes as i64);
        self.try_room_to_capacity();
    }

    /// Whether so little room is left for metadata, and no block that could be had at once in its place, that
    /// caches of metadata should give some up before a caller is refused. `fixed` says that no block may be had. A few
    /// loads.
    pub fn metadata_low(&self, fixed: bool) -> bool {
        let hints = &self.hints;
        if self.room.left() >= (self.limit() / METADATA_LOW) as i64 {
            return false;
        }
        let spare = self.can_spare(FrameKind::General) || self.can_spare(FrameKind::Linear);
        fixed || hints.capacity.load(Ordering::Relaxed) <= 1 || !spare
    }

    /// Turns a block that could still be taken into room for metadata.
    fn capacity_to_room(&self, table: &mut Table) -> bool {
        // Either kind of frames can be had of two units.
        let least = 1 + u32::from(self.linear.is_used());
        if table.units() <= least
            || !self.take_block_unit(table, true) && !self.take_linear_unit(table, true)
        {
            return false;
        }
        self.room.change(BLOCK_SIZE as i64);
        self.publish(table);
        true
    }

    /// Takes a block that could still be taken out of the capacity; past those who wait if `first`.
    pub(super) fn take_block_unit(&self, table: &mut Table, first: bool) -> bool {
        // The last block stays with the frames: without one nothing could ever be read.
        if table.capacity <= 1 || table.held >= table.capacity {
            return false;
        }
        if !self.budget.take(BLOCK_FRAMES, first) {
            return false;
        }
        table.capacity -= 1;
        // Those frames have just left the available count. There is no surplus, so no penalty
        // changes.
        table.managed -= i64::from(BLOCK_FRAMES);
        debug_assert_eq!(table.managed, table.managed_now());
        true
    }

    /// Keeps the place of a block just given back for metadata that was refused.
    pub(super) fn serve_metadata(&self, table: &mut Table) {
        let wanted = std::mem::take(&mut table.metadata_wanted);
        if wanted > 0 && self.room.left() < wanted as i64 {
            self.capacity_to_room(table);
        }
    }

    /// Takes capacity back from the room, if it has grown back by more than a block.
    fn room_to_capacity(&self, table: &mut Table) {
        // Some room is left, or the next charge would take the block again.
        let keep = table.limit / FLOOR_SHARE / 4;
        while table.units() < table.target && self.room.take(BLOCK_SIZE as u64, keep) {
            table.capacity += 1;
        }
    }

    /// As `room_to_capacity`, from a look without the lock.
    #[inline]
    pub(super) fn try_room_to_capacity(&self) {
        might_lock(Rank::Frames);
        let hints = &self.hints;
        if self.units() < hints.target.load(Ordering::Relaxed)
            && self.room.left() >= BLOCK_SIZE as i64
        {
            let mut table = self.table.lock();
            // There is room enough for whoever was refused.
            table.metadata_wanted = 0;
            self.room_to_capacity(&mut table);
            self.account(&mut table, 0);
            self.publish(&table);
        }
    }

    pub(super) fn publish(&self, table: &Table) {
        let hints = &self.hints;
        hints.limit.store(table.limit, Ordering::Relaxed);
        hints.capacity.store(table.capacity, Ordering::Relaxed);
        hints.linear.store(table.linear, Ordering::Relaxed);
        hints.target.store(table.target, Ordering::Relaxed);
    }

    /// The bound in bytes. One load.
    pub fn limit(&self) -> u64 {
        self.hints.limit.load(Ordering::Relaxed)
    }

    /// Units of 2 MiB that frames may have now. A hint, two loads.
    fn units(&self) -> u32 {
        self.units_of(FrameKind::General) + self.units_of(FrameKind::Linear)
    }

    /// As [`Frames::units`], of one kind.
    #[inline]
    pub(crate) fn units_of(&self, kind: FrameKind) -> u32 {
        let units = match kind {
            FrameKind::General => &self.hints.capacity,
            FrameKind::Linear => &self.hints.linear,
        };
        units.load(Ordering::Relaxed)
    }

    /// Most frames that can be in use or reserved at once, with the metadata of now. Two loads.
    pub fn capacity(&self) -> u64 {
        u64::from(self.units()) * u64::from(BLOCK_FRAMES)
    }

    /// Frames of a kind that a reservation could get now, if nobody waits. One load.
    #[inline]
    pub fn available(&self, kind: FrameKind) -> u64 {
        self.budget_of(kind).counts().available.max(0) as u64
    }

    /// Linear frames that can be promised now. Takes a unit of the other kind if there are fewer than `wanted` and it can be
    /// spared.
    pub(crate) fn linear_room(&self, wanted: u64) -> u64 {
        let budget = &self.linear.budget;
        if budget.counts().waiters {
            return 0;
        }
        if self.available(FrameKind::Linear) < wanted && self.can_spare(FrameKind::General) {
            self.shift_unit(FrameKind::Linear);
        }
        self.available(FrameKind::Linear)
    }

    /// Frames that must be freed, after a shrink, before there is one to reserve. Two loads.
    pub fn deficit(&self) -> u64 {
        let of = |budget: &Budget| budget.counts().available.min(0).unsigned_abs();
        of(&self.budget) + of(&self.linear.budget)
    }

    fn low(&self, kind: FrameKind) -> u64 {
        if kind == FrameKind::Linear && self.is_huge() {
            // There is either a unit or none; nothing is evicted ahead for one.
            return 0;
        }
        let frames = u64::from(self.units_of(kind)) * u64::from(BLOCK_FRAMES);
        (frames / 64).max(64).min(frames / 8)
    }

    /// Whether fewer frames of a kind are available than some times its low mark and `spare`.
    #[inline]
    fn is_below(&self, kind: FrameKind, times: u64, spare: u64) -> bool {
        let available = self.budget_of(kind).counts().available;
        available < (times * self.low(kind) + spare) as i64
    }

    /// Whether so few frames of a kind are available (a 64th of its capacity, at least 64) that the background
    /// reclaimer should start. Some loads.
    #[inline]
    pub fn below_low(&self) -> bool {
        self.is_below(FrameKind::General, 1, 0) || self.is_below(FrameKind::Linear, 1, 0)
    }

    /// Whether the background reclaimer, once started, should go on: fewer than twice the low mark, and for
    /// general frames `spare`, are available of a kind. Some loads.
    #[inline]
    pub fn below_high(&self, spare: u64) -> bool {
        self.is_below(FrameKind::General, 2, spare) || self.is_below(FrameKind::Linear, 2, 0)
    }

    /// Whether fewer frames of a kind are available than its high mark.
    pub(crate) fn lacks(&self, kind: FrameKind) -> bool {
        self.is_below(kind, 2, 0)
    }

    /// Whether a kind has a unit more than it needs to be above its high mark.
    pub(crate) fn can_spare(&self, kind: FrameKind) -> bool {
        !self.is_below(kind, 2, u64::from(BLOCK_FRAMES))
    }

    /// Whether somebody waits in a queue. Two loads.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.budget.counts().waiters || self.linear.budget.counts().waiters
    }

    /// Bytes held beyond the limit, after a shrink: so much must be given back.
    pub fn excess(&self) -> u64 {
        self.excess_now(&self.table.lock())
    }

    pub(super) fn excess_now(&self, table: &Table) -> u64 {
        let held =
            u64::from(table.held) * BLOCK_SIZE as u64 + (self.linear_in_use(table) << PAGE_SHIFT);
        (held + self.metadata_under(table.limit, table.units())).saturating_sub(table.limit)
    }

    fn linear_in_use(&self, table: &Table) -> u64 {
        let counts = self.linear.budget.counts();
        let in_use = table.managed_linear() - counts.available - counts.reserved as i64;
        u64::try_from(in_use).expect("no frame is in use less than never")
    }

    /// Bytes charged as metadata: a hint, three loads.
    pub(crate) fn metadata(&self) -> u64 {
        self.metadata_under(self.limit(), self.units())
    }

    fn metadata_under(&self, limit: u64, units: u32) -> u64 {
        let frames = u64::from(units) * BLOCK_SIZE as u64;
        (limit as i64 - frames as i64 - self.room.left()).max(0) as u64
    }

    /// All figures at one moment. Takes the table's lock: for statistics and tests.
    pub fn usage(&self) -> FrameUsage {
        let waiters = self.budget.nr_waiting() + self.linear.budget.nr_waiting();
        let table = self.table.lock();
        let counts = self.budget.counts();
        let in_use = table.managed - counts.available - counts.reserved as i64;
        let in_use = u64::try_from(in_use).expect("no frame is in use less than never");
        let linear = self.linear.budget.counts();
        let linear_in_use = self.linear_in_use(&table);
        let blocks_held = u64::from(table.held);
        FrameUsage {
            limit_bytes: table.limit,
            blocks_held,
            held_bytes: blocks_held * BLOCK_SIZE as u64,
            metadata_bytes: self.metadata_under(table.limit, table.units()),
            reserved_pages: counts.reserved + linear.reserved,
            in_use_pages: in_use + linear_in_use,
            linear_bytes: linear_in_use << PAGE_SHIFT,
            available_pages: (counts.available.max(0) + linear.available.max(0)) as u64,
            waiters: waiters as u64,
            capacity_pages: u64::from(table.units()) * u64::from(BLOCK_FRAMES),
            blocks_forced: table.forced,
            order_failures: self.hints.order_failures.load(Ordering::Relaxed),
            huge: self.linear.state.lock().huge,
        }
    }
}
