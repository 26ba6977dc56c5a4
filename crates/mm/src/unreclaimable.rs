//! Memory that cannot be reclaimed: one budget, and the share of each class in it (decision 41).
//!
//! # Model
//!
//! ```text
//!   │◀─────────────────────────────── the bound ────────────────────────────────▶│
//!   │◀───────────────── memory for pages ──────────────────▶│◀──── metadata ────▶│
//!   │◀────────── most: 3/4 ──────────▶│◀─ always for reads ─▶│  at most 3/4 of all
//! ```
//!
//! | class | share of the memory for pages | beyond it |
//! |---|---|---|
//! | pages of memory file systems | a half | the write gets `ENOSPC` |
//! | pages that mappings hold | a half | the mapping is refused |
//! | pages of folios with pins, those that devices may write included | a half | the pin is refused |
//! | pages of viewed folios, those included that no file has any more | a half | the view is a copy |
//! | dirty pages whose write failed | a quarter | writes to their file system get its stored error |
//! | other pages that are not durable | what memory file systems, mappings, views and pins leave | writers wait for the store |
//!
//! A page that is pinned, and besides held by a mapping or of a memory file system, does not count as pinned. A page of a
//! memory file system that is viewed counts in both classes.
//!
//! Metadata takes memory from pages while it leaves a quarter of the bound, and enough for what
//! cannot be reclaimed to stay within the budget. Index nodes and descriptors are taken in any case: they
//! belong to pages, and go or are used again with them.
//!
//! # Invariants
//!
//! 1. The classes together hold at most three quarters of the memory for pages: reads go on in the rest.
//!    A shrink of the bound may leave less, and concurrent writers may pass it by some pages.
//! 2. Views, pins and what mappings hold keep units of 2 MiB from moving between general blocks and linear frames: a
//!    general block with one viewed page cannot be emptied. At least a unit of each kind stays free of them, so that
//!    neither kind waits for what only programs can end. A view, pin or mapping that would fix one unit
//!    too many is refused as beyond its share. Short pins of general frames are not: they end soon.
//! 3. Of the huge pages that the kernel's pool has for the cache one is neither held nor pinned.
//!
//! # Memory ordering
//!
//! All counts are Relaxed: they steer.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::sleep;
use foliocache_sys::Errno;
use foliocache_sys::memory::free_huge_pages;

use crate::counters::Count;
use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, FrameKind, MIN_LINEAR_LIMIT};
use crate::records::{AddressSpace, Mm};
use crate::rounds::RECLAIM_WAIT;
use crate::types::PAGE_SHIFT;

/// Names and inodes keep one of so many bytes of the bound while memory is short.
const NAMES_PART: u64 = 4;

/// One of so many bytes of the bound is left to pages, whatever metadata there is.
const PAGES_PART: u64 = 4;

/// Looks without a page written, [`RECLAIM_WAIT`] apart, before a store counts as one that takes nothing.
const LOOKS: u32 = 50;

/// Frames of a unit.
pub(crate) const UNIT: u64 = BLOCK_FRAMES as u64;

/// Units that are not fixed: a block, and one for linear frames.
const SPARED_UNITS: u64 = 2;

/// One of so many units is not fixed by views, pins and mappings: metadata may need some.
const SPARED_PART: u64 = 8;

/// Pages that cannot be reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreclaimable {
    /// Pages of memory file systems, and frames in bad memory that the kernel did not replace.
    pub memory_pages: u64,
    /// Dirty pages whose last write failed.
    pub failed_pages: u64,
    /// Pages that mappings hold in memory.
    pub held_pages: u64,
    /// Pages of folios with DMA pins, apart from those of memory file systems and those that mappings hold.
    pub pinned_pages: u64,
    /// Pages of folios that are viewed, and of those that only views have.
    pub viewed_pages: u64,
    /// The budget: the most that all classes may hold together.
    pub most_pages: u64,
    /// The most that memory file systems may hold.
    pub most_memory_pages: u64,
    /// The most that may have failed before writes are refused.
    pub most_failed_pages: u64,
    /// The most that mappings may hold.
    pub most_held_pages: u64,
    /// The most that pins may hold.
    pub most_pinned_pages: u64,
    /// The most that may be viewed.
    pub most_viewed_pages: u64,
}

impl Unreclaimable {
    /// Pages of all classes.
    pub const fn total_pages(&self) -> u64 {
        self.memory_pages
            + self.failed_pages
            + self.held_pages
            + self.viewed_pages
            + self.pinned_pages
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.total_pages() << PAGE_SHIFT
    }

    /// Bytes that pages need for the classes to stay within the budget, at least a block.
    pub(crate) fn needed(&self) -> u64 {
        let bytes = self.bytes();
        (bytes + bytes.div_ceil(3)).max(bytes + BLOCK_SIZE as u64)
    }

    /// Whether writes to a file system that has failed pages are refused.
    pub(crate) const fn refuses_failed(&self) -> bool {
        self.failed_pages >= self.most_failed_pages || self.total_pages() >= self.most_pages
    }

    /// Most pages that may be dirty, under writeback or unstable: all of them may turn out to fail.
    pub(crate) const fn most_dirty(&self) -> u64 {
        let others = self.memory_pages + self.held_pages + self.viewed_pages + self.pinned_pages;
        self.most_pages.saturating_sub(others)
    }
}

impl AddressSpace {
    /// Whether the file may have `wanted` pages more: one of a memory file system within its share.
    ///
    /// # Errors
    /// `ENOSPC` where the share or the budget is used up; `EAGAIN` where writeback makes room.
    pub(crate) fn check_memory_share(&self, wanted: u32) -> Result<(), Errno> {
        if !self.bdi().is_memory() {
            return Ok(());
        }
        let (now, wanted) = (self.mm().unreclaimable(), u64::from(wanted));
        let memory = now.memory_pages + wanted;
        if memory > now.most_memory_pages || now.total_pages() + wanted > now.most_pages {
            return Err(Errno::ENOSPC);
        }
        let others = now.held_pages + now.viewed_pages + now.pinned_pages;
        match memory + others + self.mm().nr_to_write() <= now.most_pages {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }

    /// As [`AddressSpace::check_memory_share`], after a wait for writeback if that makes room.
    ///
    /// Context: may block for writeback.
    ///
    /// # Errors
    /// `ENOSPC`, also if the stores take nothing for about a second.
    pub(crate) fn wait_for_memory_share(&self, wanted: u32) -> Result<(), Errno> {
        let (mut least, mut idle) = (u64::MAX, 0);
        while let Err(error) = self.check_memory_share(wanted) {
            if error != Errno::EAGAIN || idle > LOOKS {
                return Err(Errno::ENOSPC);
            }
            self.mm().request_writeback();
            sleep(RECLAIM_WAIT);
            let left = self.mm().nr_to_write();
            idle = if left < least { 0 } else { idle + 1 };
            least = least.min(left);
        }
        Ok(())
    }
}

impl Mm {
    pub(crate) fn unreclaimable(&self) -> Unreclaimable {
        let capacity = self.frames.capacity();
        Unreclaimable {
            memory_pages: self.nr_unevictable.load(Ordering::Relaxed),
            failed_pages: self.counts.get(Count::Failed),
            held_pages: self.holding.pages.load(Ordering::Relaxed),
            pinned_pages: self.pins.pages(),
            viewed_pages: self.views.pages(),
            most_pages: capacity / 4 * 3,
            most_memory_pages: capacity / 2,
            most_failed_pages: capacity / 4,
            most_held_pages: capacity / 2,
            most_pinned_pages: capacity / 2,
            most_viewed_pages: capacity / 2,
        }
    }

    /// Pages of linear frames that cannot be reclaimed, those of memory file systems as far as they may have some.
    pub(crate) fn kept_linear(&self) -> u64 {
        let frames = u64::from(self.frames.units_of(FrameKind::Linear)) * UNIT;
        let memory = self.nr_unevictable.load(Ordering::Relaxed).min(frames);
        self.held_or_pinned() + memory
    }

    /// Those that mappings hold or that are pinned.
    fn held_or_pinned(&self) -> u64 {
        self.holding.pages.load(Ordering::Relaxed) + self.pins.linear.load(Ordering::Relaxed)
    }

    /// Whether the bound is large enough for mapped files.
    fn has_both_kinds(&self) -> bool {
        self.frames.limit() >= MIN_LINEAR_LIMIT
    }

    /// Units of 2 MiB of the bound that neither kind of frames can give up; `twice` pages of linear frames are counted
    /// both as held and as pinned.
    fn fixed_units(&self, twice: u64) -> u64 {
        self.frames.nr_fixed() + self.kept_linear().saturating_sub(twice).div_ceil(UNIT)
    }

    /// Whether both kinds of frames can be had while all fixed memory stays fixed (invariant 2); `twice` as of
    /// [`Mm::fixed_units`].
    pub(crate) fn spares_units(&self, twice: u64) -> bool {
        let units = self.frames.capacity() / UNIT;
        let spared = (units / SPARED_PART).max(SPARED_UNITS);
        !self.has_both_kinds() || self.fixed_units(twice) + spared <= units
    }

    /// Fixed units beyond what leaves one of each kind that is not.
    pub(crate) fn unspared_units(&self) -> u64 {
        let spared = match self.has_both_kinds() {
            true => SPARED_UNITS,
            false => 1,
        };
        let units = self.frames.capacity() / UNIT;
        (self.fixed_units(0) + spared).saturating_sub(units)
    }

    /// As [`Mm::spares_units`], for huge pages of the kernel's pool (invariant 3).
    ///
    /// Context: may read two files of the kernel's; takes locks of the frames.
    pub(crate) fn spares_huge_page(&self) -> bool {
        if !self.frames.is_huge() {
            return true;
        }
        let kept = self.held_or_pinned().div_ceil(UNIT);
        let had = self.usage().linear_bytes / BLOCK_SIZE as u64;
        kept < had || kept < had + free_huge_pages()
    }

    /// Bytes that metadata leaves to pages, whole blocks.
    fn kept_for_pages(&self) -> u64 {
        let needed = self.unreclaimable().needed();
        let units = match self.has_both_kinds() {
            true => self.fixed_units(0) + SPARED_UNITS,
            false => 0,
        };
        let kept = needed.max(self.frames.limit() / PAGES_PART);
        let kept = kept.max(units * BLOCK_SIZE as u64);
        kept.next_multiple_of(BLOCK_SIZE as u64)
    }

    /// Whether metadata may take memory from pages.
    pub(crate) fn metadata_may_grow(&self) -> bool {
        self.frames.capacity() << PAGE_SHIFT > self.kept_for_pages()
    }

    /// Bytes that caches of metadata, which hold `held` bytes, have to give up for `bytes` more: the larger
    /// of their excess over their share, and the excess of all metadata over the part of the bound that pages
    /// leave it.
    pub(crate) fn metadata_surplus(&self, held: u64, bytes: u64) -> u64 {
        let limit = self.frames.limit();
        let all = self.frames.metadata() + bytes + self.kept_for_pages();
        let surplus = all.saturating_sub(limit).min(held);
        surplus.max(held.saturating_sub(limit / NAMES_PART))
    }

    /// Charges metadata that is neither a descriptor nor an index node, if there is room for it now.
    pub(crate) fn take_metadata(&self, bytes: u64) -> bool {
        self.frames.try_charge_metadata(bytes)
            || (self.metadata_may_grow() && self.frames.charge_metadata(bytes))
    }
}
