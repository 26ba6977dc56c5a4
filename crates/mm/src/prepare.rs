//! Setting memory aside before an operation takes a lock.
//!
//! # Model
//!
//! An operation that may add folios calls [`Mm::prepare`] first, holding nothing that writeback or
//! reclaim need. It returns with frames promised, index nodes preloaded and a descriptor in hand;
//! from there to the index nothing can fail for want of memory.
//!
//! # Invariants
//!
//! 1. Nobody waits for memory while holding memory: [`Prepared`] is made whole or not at all.
//!
//! # Memory ordering
//!
//! `has_stable` is stored Release once the buffer is there that held pages are written from, and loaded Acquire: partners of one another.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rcu;
use foliocache_sys::Errno;
use foliocache_xarray::PreloadError;

use crate::frames::{BLOCK_FRAMES, FrameKind, Reservation};
use crate::mapped::STABLE_BYTES;
use crate::prepared::Prepared;
use crate::reclaim::{Need, Waiter};
use crate::records::{AddressSpace, Mm};
use crate::types::PageIndex;

impl Mm {
    /// Reserves what adding folios at `first..=last` of `mapping` needs; of huge frames, the first.
    ///
    /// Context: may block for reclaim and writeback; no lock that those need, no RCU read section.
    ///
    /// # Errors
    /// `ENOSPC` when a memory file system would pass its share. `ENOMEM` when nothing at all can be
    /// reclaimed.
    pub(crate) fn prepare<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Result<Prepared<'a>, Errno> {
        let (first, last) = match mapping.huge_unit(first) {
            Some(first) => (first, first.add(u64::from(BLOCK_FRAMES) - 1)),
            None => (first, last),
        };
        self.wait_for_memory_share(mapping, (last.0 - first.0 + 1) as u32)?;
        self.prepare_to_replace(mapping, first, last)
    }

    /// As [`Mm::prepare`], for folios in the place of others at `first..=last`: what the views keep counts in their share,
    /// not in that of a memory file system.
    ///
    /// Context as [`Mm::prepare`].
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed.
    pub(crate) fn prepare_to_replace<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Result<Prepared<'a>, Errno> {
        let wanted = (last.0 - first.0 + 1) as u32;
        let kind = mapping.frame_kind(first);
        if kind == FrameKind::Linear {
            self.wait_for_metadata(|| mapping.charge_tables(first.0..last.0 + 1))?;
        }
        let mut waiter = self.waiter(Need::Metadata);
        loop {
            let frames = self.reserve_frames(kind, wanted)?;
            let short = match self.complete(mapping, first, last, frames) {
                Ok(prepared) => return Ok(prepared),
                Err(short) => short,
            };
            match short {
                Short::Nodes(PreloadError::WouldBlock) => {
                    self.nodes.wait_for_limbo();
                    continue;
                }
                Short::Nodes(_) => {}
                // Descriptors can have what index nodes do not use.
                Short::Descriptors => _ = self.nodes.shrink(),
            }
            self.make_more_metadata(&mut waiter)?;
        }
    }

    /// Makes room for metadata until `take` has what it needs.
    ///
    /// # Errors
    /// `ENOMEM` when nothing at all can be reclaimed.
    pub(crate) fn wait_for_metadata(&self, take: impl Fn() -> bool) -> Result<(), Errno> {
        let mut waiter = self.waiter(Need::Metadata);
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

    /// As [`Mm::prepare`] with what is free or can be evicted now; else nothing.
    ///
    /// Context: takes the LRU lock and `xa_lock`s; does not sleep.
    pub(crate) fn try_prepare<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Option<Prepared<'a>> {
        let pages = mapping.whole(first..last.add(1));
        let (first, last) = (pages.start, PageIndex(pages.end.0 - 1));
        let wanted = (last.0 - first.0 + 1) as u32;
        self.check_memory_share(mapping, wanted).ok()?;
        self.try_prepare_to_replace(mapping, first, last)
    }

    /// As [`Mm::prepare_to_replace`] with what is free or can be evicted now; else nothing.
    ///
    /// Context: as [`Mm::try_prepare`].
    pub(crate) fn try_prepare_to_replace<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
    ) -> Option<Prepared<'a>> {
        let wanted = (last.0 - first.0 + 1) as u32;
        let kind = mapping.frame_kind(first);
        if kind == FrameKind::Linear && !mapping.charge_tables(first.0..last.0 + 1) {
            return None;
        }
        let frames = self.try_reserve_frames(kind, wanted)?;
        self.complete(mapping, first, last, frames).ok()
    }

    /// Adds index nodes and a descriptor to promised frames, or gives all back (invariant 1).
    fn complete<'a>(
        &'a self,
        mapping: &AddressSpace,
        first: PageIndex,
        last: PageIndex,
        frames: Reservation<'a>,
    ) -> Result<Prepared<'a>, Short> {
        let needed = {
            let rcu = rcu::read_lock();
            mapping.index.nodes_needed_range(first.0, last.0, &rcu)
        };
        let nodes = self.nodes.preload(needed).map_err(Short::Nodes)?;
        let folio = self.folios.alloc(&self.frames).ok_or(Short::Descriptors)?;
        Ok(Prepared::new(self, frames, nodes, folio))
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
