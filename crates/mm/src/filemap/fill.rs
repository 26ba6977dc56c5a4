//! Filling: bringing pages in from the backing store.
//!
//! # Model
//!
//! The folios of a window go into the index locked and not uptodate, so that whoever wants one
//! waits for it; one vectored read fills them; then they are uptodate and unlocked.
//!
//! # Invariants
//!
//! 1. A fill that does not end well leaves nothing behind: [`Filling`]'s drop takes the folios out.
//! 2. Bytes past the end of the backing file, and past `size`, are zero.
//!
//! # Locking
//!
//! `invalidate_lock` shared over the whole, so that no truncate sees half of it; memory is
//! reserved before.

use foliocache_sys::Errno;

use crate::address_space::{AddFolioError, AddressSpace};
use crate::direct_map;
use crate::folio::{LockedFolio, flag};
use crate::ops::IoSegment;
use crate::readahead::MAX_WINDOW;
use crate::stats::bump;
use crate::types::{PAGE_SIZE, PageIndex, pages_for};

/// Folios being filled; those still in it when it is dropped leave the index.
struct Filling<'a> {
    mapping: &'a AddressSpace,
    folios: Vec<LockedFolio<'a>>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        for locked in self.folios.drain(..) {
            self.mapping.remove_folio(locked);
        }
    }
}

impl AddressSpace {
    /// Largest readahead window now, in pages: less when memory is short or the bound small.
    pub(super) fn max_window(&self) -> u64 {
        let frames = &self.mm().frames;
        let max = MAX_WINDOW.min(frames.capacity() / 64).max(1);
        if frames.below_low() { max.min(16) } else { max }
    }

    /// Brings in up to `window` pages from `page` on; returns that page's folio, locked and
    /// uptodate, or `None` if somebody else put one there first.
    ///
    /// Context: blocks for memory and I/O; nothing held but perhaps `i_rwsem`.
    ///
    /// # Errors
    /// The backing store's error, if the page itself cannot be read.
    pub(super) fn fill(
        &self,
        page: PageIndex,
        window: u64,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        match self.try_fill(page, window) {
            Err(_) if window > 1 => self.try_fill(page, 1),
            result => result,
        }
    }

    fn try_fill(&self, page: PageIndex, window: u64) -> Result<Option<LockedFolio<'_>>, Errno> {
        let mut end = page.0 + window.min(pages_for(self.size()).saturating_sub(page.0).max(1));
        let mut prepared = self.mm().prepare(self, page, PageIndex(end - 1))?;
        let invalidate = self.invalidate_lock.read();
        // The file may have shrunk meanwhile; a page wholly past the end is filled with zeros.
        end = end.min(pages_for(self.size()).max(page.0 + 1));
        let mut filling = Filling {
            mapping: self,
            folios: Vec::new(),
        };
        for at in page.0..end {
            match self.add_folio(PageIndex(at), &mut prepared) {
                Ok(locked) => filling.folios.push(locked),
                Err(AddFolioError::Occupied | AddFolioError::NeedMemory) => break,
            }
        }
        drop(prepared);
        if filling.folios.is_empty() {
            return Ok(None);
        }
        self.read_in(&filling.folios)?;
        let mut folios = std::mem::take(&mut filling.folios).into_iter();
        let wanted = folios.next();
        if let Some(locked) = &wanted {
            locked.state.set(flag::UPTODATE);
            self.queue_folio(locked);
        }
        for locked in folios {
            locked.state.set(flag::UPTODATE | flag::READAHEAD);
            self.queue_folio(&locked);
            bump(&self.counters.readahead, 1);
        }
        drop(invalidate);
        Ok(wanted)
    }

    /// Fills a folio that is in the index, locked and not uptodate.
    ///
    /// Context: folio lock held; blocks for I/O.
    pub(super) fn fill_locked(&self, locked: &LockedFolio<'_>) -> Result<(), Errno> {
        self.read_in(std::slice::from_ref(locked))?;
        self.set_uptodate(locked);
        Ok(())
    }

    /// Marks a locked folio uptodate and, if reclaim does not know it yet, queues it.
    pub(super) fn set_uptodate(&self, locked: &LockedFolio<'_>) {
        if !locked.state.set(flag::UPTODATE).has(flag::UPTODATE) {
            self.queue_folio(locked);
        }
    }

    /// Reads a run of neighbouring locked folios and zeroes what the file does not have.
    fn read_in(&self, folios: &[LockedFolio<'_>]) -> Result<(), Errno> {
        let pos = folios[0].index().pos();
        let mut segments: Vec<IoSegment<'_>> = Vec::with_capacity(4);
        for locked in folios {
            direct_map::push_merged(&mut segments, self.segment(locked, PAGE_SIZE));
        }
        let wanted = folios.len() * PAGE_SIZE;
        let read = self.ops.read_folios(pos, &segments)?.min(wanted);
        bump(&self.counters.read_in, read as u64);
        let valid = (self.size().saturating_sub(pos)).min(read as u64) as usize;
        for (at, locked) in folios.iter().enumerate() {
            let here = valid.saturating_sub(at * PAGE_SIZE).min(PAGE_SIZE);
            if here < PAGE_SIZE {
                let frame = self.mm().frames.addr(locked.frame());
                direct_map::zero(frame, here, PAGE_SIZE - here);
            }
        }
        Ok(())
    }

    /// Brings a range in without copying it anywhere.
    ///
    /// Blocks for memory and I/O; takes memory of the bound. Pages that are there stay as they are.
    ///
    /// # Errors
    /// The backing store's error; `ECHILD` after a fork.
    #[doc(alias = "POSIX_FADV_WILLNEED")]
    pub fn populate(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if self.bdi().is_memory() {
            return Ok(());
        }
        let end = pos.saturating_add(len).min(self.size());
        let mut page = PageIndex::of(pos);
        while page.pos() < end {
            let window = self.max_window().min(pages_for(end) - page.0);
            let there = {
                self.index
                    .load(page.0, &foliocache_sync::rcu::read_lock())
                    .is_some()
            };
            if there {
                page = page.add(1);
                continue;
            }
            drop(self.fill(page, window)?);
            page = page.add(1);
        }
        Ok(())
    }
}
