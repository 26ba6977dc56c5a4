//! Setting memory aside before an operation takes a lock.
//!
//! # Model
//!
//! An operation that may add folios calls [`AddressSpace::prepare`] first, holding nothing that writeback or
//! reclaim need. It returns with frames promised, index nodes preloaded and a descriptor in hand;
//! from there to the index nothing can fail for want of memory.
//!
//! # Invariants
//!
//! 1. No caller waits for memory while it holds memory: [`Prepared`] is made whole or not at all.
//!
//! # Memory ordering
//!
//! `has_stable` is stored Release once the buffer is there that held pages are written from, and loaded Acquire: partners of one another.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rcu;
use foliocache_sys::Errno;
use foliocache_xarray::PreloadError;
use std::ops::Range;

use crate::frames::{BLOCK_FRAMES, FrameKind, Reservation};
use crate::mapped::STABLE_BYTES;
use crate::prepared::Prepared;
use crate::reclaim::{Need, Waiter};
use crate::records::{AddressSpace, Mm};
use crate::rounds::PATIENCE;
use crate::types::PageIndex;

impl AddressSpace {
    /// Reserves what adding folios for `pages` needs; of huge frames, the first.
    ///
    /// Context: may block for reclaim and writeback; no lock that those need, no RCU read section.
    ///
    /// # Errors
    /// `ENOSPC` when a memory file system would pass its share. `ENOMEM` when nothing at all can be
    /// reclaimed.
    pub(crate) fn prepare(&self, pages: Range<PageIndex>) -> Result<Prepared<'_>, Errno> {
        let pages = match self.huge_unit(pages.start) {
            Some(first) => first..first.add(BLOCK_FRAMES.into()),
            None => pages,
        };
        self.wait_for_memory_share(nr_pages(&pages))?;
        self.prepare_to_replace(&pages)
    }

    /// As [`AddressSpace::prepare`], for folios in the place of others: the pages that views keep count in their share,
    /// not in that of a memory file system.
    ///
    /// Context as [`AddressSpace::prepare`].
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed.
    pub(crate) fn prepare_to_replace(
        &self,
        pages: &Range<PageIndex>,
    ) -> Result<Prepared<'_>, Errno> {
        let (mm, kind): (&Mm, _) = (self.mm(), self.frame_kind(pages.start));
        if kind == FrameKind::Linear {
            mm.wait_for_metadata(|| self.charge_tables(pages.start.0..pages.end.0))?;
        }
        let mut waiter = Waiter::new(mm, Need::Metadata, PATIENCE);
        loop {
            let frames = mm.reserve_frames(kind, nr_pages(pages))?;
            match self.complete(pages, frames) {
                Ok(prepared) => return Ok(prepared),
                Err(Short::Nodes(PreloadError::WouldBlock)) => {
                    mm.nodes.wait_for_limbo();
                    continue;
                }
                Err(Short::Nodes(_)) => {}
                // Descriptors can have what index nodes do not use.
                Err(Short::Descriptors) => _ = mm.nodes.shrink(),
            }
            mm.make_more_metadata(&mut waiter)?;
        }
    }

    /// As [`AddressSpace::prepare`] with memory that is free or can be evicted now; else nothing.
    ///
    /// Context: takes the LRU lock and `xa_lock`s; does not sleep.
    pub(crate) fn try_prepare(&self, pages: Range<PageIndex>) -> Option<Prepared<'_>> {
        let pages = self.whole(pages);
        self.check_memory_share(nr_pages(&pages)).ok()?;
        self.try_prepare_to_replace(&pages)
    }

    /// As [`AddressSpace::prepare_to_replace`] with memory that is free or can be evicted now; else nothing.
    ///
    /// Context: as [`AddressSpace::try_prepare`].
    pub(crate) fn try_prepare_to_replace(&self, pages: &Range<PageIndex>) -> Option<Prepared<'_>> {
        let kind = self.frame_kind(pages.start);
        if kind == FrameKind::Linear && !self.charge_tables(pages.start.0..pages.end.0) {
            return None;
        }
        let frames = self.mm().try_reserve_frames(kind, nr_pages(pages))?;
        self.complete(pages, frames).ok()
    }

    /// Adds index nodes and a descriptor to promised frames, or gives all back (invariant 1).
    fn complete<'a>(
        &'a self,
        pages: &Range<PageIndex>,
        frames: Reservation<'a>,
    ) -> Result<Prepared<'a>, Short> {
        let (mm, last): (&Mm, _) = (self.mm(), pages.end.0 - 1);
        let needed = (self.index).nodes_needed_range(pages.start.0, last, &rcu::read_lock());
        let nodes = mm.nodes.preload(needed).map_err(Short::Nodes)?;
        let folio = mm.folios.alloc(&mm.frames).ok_or(Short::Descriptors)?;
        Ok(Prepared::new(mm, frames, nodes, folio))
    }
}

fn nr_pages(pages: &Range<PageIndex>) -> u32 {
    (pages.end.0 - pages.start.0) as u32
}

impl Mm {
    /// Makes room for metadata until `take` succeeds.
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed.
    pub(crate) fn wait_for_metadata(&self, take: impl Fn() -> bool) -> Result<(), Errno> {
        let mut waiter = Waiter::new(self, Need::Metadata, PATIENCE);
        while !take() {
            self.make_more_metadata(&mut waiter)?;
        }
        Ok(())
    }

    fn make_more_metadata(&self, waiter: &mut Waiter<'_>) -> Result<(), Errno> {
        match () {
            () if self.make_room_for_metadata() => waiter.evicted(),
            () if self.anything_reclaimable() => waiter.held_up(),
            () => waiter.refused()?,
        }
        Ok(())
    }

    /// Makes the buffer that held pages are written from.
    pub(crate) fn ready_stable(&self) -> Result<(), Errno> {
        // The lock may be held over I/O.
        if self.pins.has_stable.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.holding.stable.lock().is_empty() {
            self.wait_for_metadata(|| self.take_metadata(STABLE_BYTES as u64))?;
            let mut stable = self.holding.stable.lock();
            if !stable.is_empty() {
                self.uncharge_metadata(STABLE_BYTES as u64);
                return Ok(());
            }
            stable.set_room(STABLE_BYTES);
            (0..STABLE_BYTES).for_each(|_| stable.push(0));
        }
        self.pins.has_stable.store(true, Ordering::Release);
        Ok(())
    }
}

/// Memory other than frames that was missing.
enum Short {
    Nodes(PreloadError),
    Descriptors,
}
