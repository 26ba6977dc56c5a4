//! Windows: the addresses at which the program has files mapped, and how their faults find the file.
//!
//! # Model
//!
//! ```text
//!   area of the cache   │ window │      │ window          │ window │ …      reserved addresses
//!                          │                    │
//!                          │                    └─ a piece for each linear range of the file that it shows
//!                          └─ pages of one file, at addresses that never change
//! ```
//!
//! All windows of a cache lie in one area, so a fault's address says whose it is. A window begins at the same place
//! within 2 MiB as its first page in its linear range, so that a large folio has one page table.
//!
//! # Invariants
//!
//! 1. A page of a window is in the page tables only if the folio that has it carries `MAPPED`, or its frame is
//!    leaving; and writable only if the folio is dirty there, or has no store.
//! 2. Page tables are charged before the kernel makes them.
//! 3. A window is in its file's list as long as its addresses are mapped.
//!
//! # Locking
//!
//! A window has no lock: its page tables change with its file's list of windows held.

use crate::frames::{BLOCK_FRAMES, BLOCK_SIZE, FrameKind, TABLE_BYTES};
use crate::records::{AddressSpace, LinearFile, Mm, Window};
use foliocache_sync::Arc;
use std::ops::Range;

mod area;

/// Units of a window that a search for page tables looks at in one go.
const SCAN_UNITS: usize = 1024;

impl Window {
    /// Charges the page tables of pages as far as they have none; false where there is no room for them.
    pub(crate) fn charge_tables(&self, mm: &Mm, pages: &Range<u64>) -> bool {
        self.huge || (self.units_of(pages)).all(|unit| self.charge_unit(mm, unit))
    }

    fn charge_unit(&self, mm: &Mm, unit: u32) -> bool {
        if self.tables.has(unit) {
            return true;
        }
        if !mm.take_metadata(TABLE_BYTES) {
            return false;
        }
        match self.tables.add(unit) {
            true => mm.frames.note_tables(TABLE_BYTES.cast_signed()),
            // Another thread was faster.
            false => mm.uncharge_metadata(TABLE_BYTES),
        }
        true
    }

    /// The units from `first` on, at most as many as `most`, that have a page table and no page in the cache; and where
    /// to go on, unless that was all.
    fn idle_units(&self, file: &AddressSpace, first: u32, most: usize) -> (Vec<u32>, Option<u32>) {
        let (mut idle, mut looked) = (Vec::new(), 0);
        for unit in self.tables.from(first) {
            if looked == SCAN_UNITS || idle.len() == most {
                return (idle, Some(unit));
            }
            looked += 1;
            if self.is_idle(file, unit) {
                idle.push(unit);
            }
        }
        (idle, None)
    }

    fn is_idle(&self, file: &AddressSpace, unit: u32) -> bool {
        !file.has_pages(&self.pages_of(unit))
    }

    /// Gives back the page tables of units, in ascending order, that still have no page in the cache; how many. A touch
    /// of a page that is evicted and not punched yet is a fault again.
    ///
    /// Context: takes `windows` exclusive.
    fn drop_tables(
        self: &Arc<Self>,
        file: &AddressSpace,
        linear: &LinearFile,
        units: &[u32],
    ) -> u64 {
        let mm: &Mm = file.mm();
        let windows = linear.windows.write();
        if !windows.iter().any(|listed| Arc::ptr_eq(listed, self)) {
            return 0;
        }
        // Pages that came into the cache since may be locked for I/O, and stay mapped.
        let still = |&&unit: &&u32| self.is_idle(file, unit);
        let units: Vec<u32> = units.iter().filter(still).copied().collect();
        let gone = units.iter().filter(|&&unit| self.tables.remove(unit));
        let gone = gone.count() as u64;
        for run in units.chunk_by(|one, next| one + 1 == *next) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let pages = self.pages_of(first).start..self.pages_of(last).end;
            let addresses = self.addresses(&pages);
            let part = mm.windows().offset(addresses.clone());
            // The second time without the markers that write protection leaves: they would keep the table.
            let dropped = (mm.windows().area.zap(part.clone()))
                .and_then(|()| mm.windows().faults.allow_writes(addresses))
                .and_then(|()| mm.windows().area.zap(part));
            debug_assert!(dropped.is_ok(), "{dropped:?}");
        }
        drop(windows);
        mm.frames.uncharge_tables(gone * TABLE_BYTES);
        gone
    }

    /// Has huge pages made of what it shows of `pages`, which are held, as far as there is memory for that.
    pub(crate) fn collapse(&self, mm: &Mm, pages: &Range<u64>) {
        if self.huge {
            return;
        }
        let addresses = self.addresses(&self.part(pages));
        let first = addresses.start.next_multiple_of(BLOCK_SIZE);
        for unit in (first..)
            .step_by(BLOCK_SIZE)
            .take_while(|unit| unit + BLOCK_SIZE <= addresses.end)
        {
            // Both copies are there for a while.
            let Ok(_both) = mm.reserve_frames(FrameKind::Linear, BLOCK_FRAMES) else {
                return;
            };
            let part = mm.windows().offset(unit..unit + BLOCK_SIZE);
            if let Err(error) = mm.windows().area.collapse(part) {
                tracing::debug!(%error, "no huge page for a held mapping");
            }
        }
    }

    /// Gives the charges for all page tables back: the window is gone.
    pub(crate) fn uncharge_tables(&self, mm: &Mm) {
        let gone = self.tables.from(0).filter(|&unit| self.tables.remove(unit));
        mm.frames.uncharge_tables(gone.count() as u64 * TABLE_BYTES);
    }
}
