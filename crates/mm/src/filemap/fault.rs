//! Faults of mapped files: finding or reading the folio, and mapping its pages.
//!
//! # Model
//!
//! ```text
//!   page beyond the end? ─▶ EFAULT
//!   a store: wait for the share of the dirty limits of what the last one made dirty
//!   find or read its folio, locked
//!     still within the end, and the folio holds the page?
//!     put its pages into the page tables ── a write fault: writable, and dirty
//!                                        └─ a read fault: write-protected, neighbours that are cached too
//!   unlock
//! ```
//!
//! One fault maps up to all of a large folio ("mm: populate multiple PTEs if file page is large folio"). The stream of
//! faults that it continues says how much: a store at a random place maps and dirties one page. A huge frame is mapped
//! as a whole, also beyond the end of the file, and a store makes all of it dirty.
//!
//! [`around`](super::around) finds the pages that are mapped besides.
//!
//! A store waits before its page is writable, not after: the writeback that it waits for could be that page's, and
//! would make it read-only again, without end where the limits are small.
//!
//! # Invariants
//!
//! 1. A page is writable in a window only if its folio is dirty there, or is a memory file system's. It becomes
//!    dirty first; writeback makes it read-only first, both under the folio lock: a store is never lost.
//! 2. No page is mapped that lies, with all of its huge frame, beyond the end of the file when the folio is locked: a
//!    truncate sets the size first, and then takes the lock of every folio that it removes.
//!
//! # Locking
//!
//! The folio lock, for a load those of folios around it, too (tried), then the list of the file's windows shared. Memory and
//! I/O are waited for before.

use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use foliocache_sys::userfaultfd::Access;
use std::cell::Cell;

use super::around::Around;
use crate::counters::bump;
use crate::fill::{FolioUse, ReadFault, Reader};
use crate::folio::{LockedFolio, flag};
use crate::iocb::Iocb;
use crate::mapped::VmaAccess;
use crate::records::{AddressSpace, Mm, Window};
use crate::types::{PAGE_SIZE, PageIndex, pages_for};

/// Frames in bad memory that a fault reads its page again for.
const BAD_FRAMES: u32 = 2;

/// How a fault ended.
enum Mapped {
    /// All pages from the fault's on are mapped before this one.
    Until(u64),
    /// The page table is not charged any more.
    NoTable,
    /// The page's frame was in bad memory; its folio is gone, as the store has the data.
    BadMemory,
}

impl AddressSpace {
    /// Resolves a fault of a window at `page`, which it shows; returns the page up to which it has
    /// mapped the file from there on.
    ///
    /// Context: blocks for memory, I/O and the dirty limits; nothing held.
    ///
    /// # Errors
    /// `EFAULT` beyond the end, or for a store to a window for reads; the store's error; the file system's stored
    /// error; `ENOSPC` and `EDQUOT` where the store has no room for what is stored, or a memory file system is full.
    pub(crate) fn fault(
        &self,
        window: &Arc<Window>,
        page: PageIndex,
        write: bool,
    ) -> Result<u64, Errno> {
        let mm: &Mm = self.mm();
        mm.check_fork()?;
        if write {
            if window.access == VmaAccess::Read {
                return Err(Errno::EFAULT);
            }
            self.bdi().check_failed_cap()?;
            // Relaxed: a sum that one of the faults pays.
            let owed = window.owed.swap(0, Ordering::Relaxed);
            // The next write gets an error that came since.
            let _ = self.bdi().balance_dirty_pages(self, owed, false);
        }
        let space = || self.space_for_write(&Iocb::at(page.pos()), PAGE_SIZE);
        let space = write.then(space).transpose()?;
        bump(&self.counters.faults, 1);
        let mut tries = 0;
        loop {
            mm.wait_for_metadata(|| window.charge_tables(mm, &(page.0..page.0 + 1)))?;
            match self.fault_once(window, page, write)? {
                Mapped::Until(end) => {
                    drop(space);
                    return Ok(end);
                }
                Mapped::NoTable => {}
                Mapped::BadMemory if tries == BAD_FRAMES => return Err(Errno::EIO),
                Mapped::BadMemory => {
                    tries += 1;
                    // Else the page would be read into the same frame.
                    mm.frames.punch_leaving();
                }
            }
        }
    }

    /// As [`AddressSpace::fault`], if the page table is still charged in the end and the frame is in good memory.
    fn fault_once(
        &self,
        window: &Arc<Window>,
        page: PageIndex,
        write: bool,
    ) -> Result<Mapped, Errno> {
        let placed = Cell::new(false);
        let fault = ReadFault { window, placed };
        let reader = match write {
            true => Reader::Ordinary,
            false => Reader::Fault(&fault),
        };
        let (locked, behind) = self.folio_to_map(&window.readahead, page, reader)?;
        if !self.has_page(page) {
            drop(self.keep_content(locked));
            return Err(Errno::EFAULT);
        }
        let seen = locked.state.load();
        let bytes = page.pos()..page.add(1).pos();
        let fetched = (behind.is_some(), 0);
        let (kind, first_use) = FolioUse::mark(&window.readahead, &locked, &bytes, fetched);
        self.count_use(kind, page.pos(), PAGE_SIZE);
        self.keep_used(&locked, seen);
        if write {
            window.note_stores();
        }
        // Before the page can be touched: the fault after it may be another thread's, and would look like another stream's.
        let ahead = first_use.then(|| self.note_first_use(&window.readahead, page, locked.order()));
        let (mapped, dirtied) = match fault.placed.get() {
            true => {
                drop(locked);
                bump(&self.counters.mapped, 1);
                (Mapped::Until(page.0 + 1), 0)
            }
            false => self.map_folio(window, locked, page, write)?,
        };
        if let Some(ahead) = ahead {
            self.read_on_ahead(&window.readahead, page, ahead, false);
        }
        self.read_ahead(behind.and_then(|behind| behind.window), false);
        // Pages that are held for stores stay dirty, however long the fault waits.
        let stays = seen.has(flag::HELD) && self.held_for_stores(page.0..page.0 + 1).is_some();
        if dirtied > 0 && !stays {
            // Relaxed: as above.
            window.owed.fetch_add(dirtied, Ordering::Relaxed);
        }
        Ok(mapped)
    }

    /// Maps `page` of a locked folio, and pages around it; returns the pages that have to be written now and had not, too.
    fn map_folio(
        &self,
        window: &Arc<Window>,
        locked: LockedFolio<'_>,
        page: PageIndex,
        write: bool,
    ) -> Result<(Mapped, u64), Errno> {
        let mm: &Mm = self.mm();
        let huge = self.huge_unit(page).is_some();
        // A huge frame is mapped as a whole.
        let page = if huge { locked.index() } else { page };
        let most = u64::from(mm.config.fault_around_bytes) / PAGE_SIZE as u64;
        let stream = window.expect(page, write, most);
        let around = match huge {
            true => Around::one(page.0..locked.end().0),
            false => {
                let table = window.pages_of(window.unit_of(page.0));
                let within = table.start..table.end.min(pages_for(self.size()));
                self.around(&locked, page, write, &stream, &within)
            }
        };
        let Some(run) = around.run_of(page) else {
            // The file has been cut since.
            return Err(Errno::EFAULT);
        };
        let alone = around.runs.len() == 1 && around.others.is_empty();
        let writable =
            || self.is_writable(window, &locked, PageIndex(run.start)..PageIndex(run.end));
        let access = match write || alone && writable() {
            true => Access::Write,
            false => Access::Read,
        };
        let linear = self.linear.get().expect("it is mapped");
        let windows = linear.windows.read();
        if !windows.iter().any(|listed| Arc::ptr_eq(listed, window)) {
            // The window is gone, and no other thread will give the charge back.
            window.uncharge_tables(mm);
            return Err(Errno::EFAULT);
        }
        if !window.has_table(page.0) {
            return Ok((Mapped::NoTable, 0));
        }
        for folio in std::iter::once(&locked).chain(&around.others) {
            if !folio.state.load().has(flag::MAPPED) {
                folio.state.set(flag::MAPPED);
            }
        }
        let was_dirty = locked.state.load().has(flag::DIRTY);
        let late = foliocache_sync::planted!(mapped_before_it_is_dirty);
        let mut dirtied = 0;
        let mut mark_dirty = || {
            let offset = |page: u64| (page - locked.index().0) as usize * PAGE_SIZE;
            dirtied = self.mark_dirty(&locked, offset(run.start)..offset(run.end));
        };
        if write && !late {
            // Before the store can be made: an fsync after it looks for dirty folios without their locks.
            mark_dirty();
        }
        // Before the next page can be touched: its fault may be another thread's.
        stream.note(run.clone());
        window.readahead.note_read(page.pos()..page.add(1).pos());
        let mapped = window.install(mm.windows(), &around.runs, page.0, access);
        let Ok(mapped) = mapped else {
            drop((windows, around));
            let is_dirty = locked.state.load().has(flag::DIRTY);
            if write && run.start == page.0 && is_dirty && !was_dirty {
                // Nothing was mapped before it, so no store was made.
                self.clear_dirty(&locked);
            }
            self.drop_bad_folio(locked)?;
            return Ok((Mapped::BadMemory, 0));
        };
        if write && late {
            mark_dirty();
        }
        bump(&self.counters.mapped, mapped.pages);
        if !write && mapped.end < run.end {
            stream.note(run.start..mapped.end);
        }
        Ok((Mapped::Until(mapped.end), dirtied))
    }

    /// Whether a read fault may map pages of a locked folio writable: they are dirty anyway, or never are.
    fn is_writable(
        &self,
        window: &Window,
        locked: &LockedFolio<'_>,
        pages: std::ops::Range<PageIndex>,
    ) -> bool {
        if window.access == VmaAccess::Read || pages.end > locked.end() {
            return false;
        }
        let offset = |page: PageIndex| (page.0 - locked.index().0) as usize * PAGE_SIZE;
        let bytes = offset(pages.start)..offset(pages.end);
        self.bdi().is_memory() || locked.state.load().has(flag::DIRTY) && locked.has_written(&bytes)
    }
}
