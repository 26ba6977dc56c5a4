//! The linear ranges and the windows of a file that was mapped.
//!
//! # Model
//!
//! ```text
//!   pages of the file   0 ────────────── n₁ ───────────────── n₂ ─────────▶
//!                       │ first range     │ second range       │ general frames
//! ```
//!
//! The ranges follow one another from page 0 on. Pages within them have linear frames, all others general ones. A
//! mapping that goes beyond the ranges adds one. The folios that are cached there move into it then.
//!
//! A huge frame of 2 MiB is one folio's, whatever part of it the file has. So no folio moves into a range of those: what
//! is cached there is written and dropped.
//!
//! # Invariants
//!
//! 1. A folio in the index has linear frames exactly if its first page lies within the ranges, except while they are
//!    moved by [`AddressSpace::make_linear`]. Ranges are of whole units of 2 MiB, so no folio lies across an end.
//! 2. A window's pages lie within the ranges, and their folios have moved.
//!
//! # Locking
//!
//! `making` *protects* the ranges against a second maker, over the whole move. *Order*: before `i_rwsem`. `ranges` is
//! a leaf, changed with `i_rwsem` and `invalidate_lock` held exclusive: nobody adds a folio meanwhile. `windows`
//! has [`Rank::IMmap`](foliocache_sync::rank::Rank::IMmap): held shared while page tables are changed, so that no window goes meanwhile.

use foliocache_sync::Arc;
use foliocache_sync::time::{Duration, sleep};
use foliocache_sys::Errno;
use std::ops::Range;

use crate::direct_map;
use crate::folio::{LockedFolio, Operation};
use crate::frames::{FrameKind, FrameNumber, LinearRange, RangeError, RangeOwner, Reservation};
use crate::lookup::find_page;
use crate::mapped::MapError;
use crate::pins::RevokeReason;
use crate::records::{AddressSpace, LinearFile, Mm};
use crate::types::{PAGE_SIZE, PageIndex};

mod busy;

/// How often unused files are asked for their addresses before a file is refused some.
const NO_SPACE_TRIES: u32 = 8;

/// How long is waited before files are asked a second time; then twice as long each time.
const NO_SPACE_WAIT: Duration = Duration::from_millis(4);

/// Times that a file is written out before it has huge frames, if others go on storing to it.
const MAX_SYNCS: u32 = 16;

impl Mm {
    /// As [`Frames::new_range`](crate::Frames); unused files give theirs up first if need be.
    fn new_range(&self, pages: u64, owner: RangeOwner) -> Result<LinearRange, RangeError> {
        let mut tries = 0;
        loop {
            let range = self.frames.new_range(pages, owner);
            if tries == NO_SPACE_TRIES || !matches!(range, Err(RangeError::NoSpace { .. })) {
                return range;
            }
            if tries > 0 {
                // Dirty files stay until they are written.
                self.request_writeback();
                sleep(NO_SPACE_WAIT * (1 << tries));
                // And those with pages until these are evicted.
                let half = self.lru.lock().len() / 2 + 1;
                self.shrink_lru(half);
            }
            self.drop_idle_caches();
            self.frames.punch_leaving();
            tries += 1;
        }
    }
}

impl AddressSpace {
    /// Charges the page tables that the cache's own accesses to pages will take; false where there is no room.
    pub(crate) fn charge_tables(&self, pages: Range<u64>) -> bool {
        let Some(linear) = self.linear.get() else {
            return true;
        };
        let mm: &Mm = self.mm();
        // A charge takes locks that come before this one.
        let ranges = linear.ranges.read().clone();
        let charge = |range: &Arc<LinearRange>| {
            let (part, pay) = (range.part(&pages), |bytes| mm.take_metadata(bytes));
            part.is_empty() || mm.frames.charge_tables(range, part, pay)
        };
        ranges.iter().all(charge)
    }

    /// Gives the file's first `pages` pages linear frames, moving the folios that are cached.
    ///
    /// Context: blocks for memory, and for seconds for other users and pins of the file; of huge frames for I/O; no lock
    /// held.
    ///
    /// # Errors
    /// [`MapError::Busy`]: the next call goes on where this one stopped.
    pub(crate) fn make_linear(&self, pages: u64) -> Result<&LinearFile, MapError> {
        let mm: &Mm = self.mm();
        let linear = self.linear.get_or_init(LinearFile::default);
        let mut made = linear.making.lock();
        let moves = linear.pages() < pages || *made < linear.pages();
        // Nobody pins a folio that is to move.
        let reason = RevokeReason::FirstMapping;
        let barred = moves.then(|| self.hold_off_pins(*made..u64::MAX, reason));
        let _bar = barred.transpose().map_err(|pinned| MapError::Busy {
            holder: pinned.to_string(),
        })?;
        if linear.pages() < pages {
            let (file, first) = (self.id(), linear.pages());
            let range = mm.new_range(pages - first, RangeOwner { file, first })?;
            let charged = mm.wait_for_metadata(|| mm.take_metadata(range.memory_bytes()));
            if let Err(errno) = charged {
                mm.frames.abandon_range(range);
                return Err(errno.into());
            }
            if mm.frames.is_huge() {
                self.add_huge_range(linear, range)?;
                return Ok(linear);
            }
            let _exclusive = match self.lock_to_add_range(linear) {
                Ok(locked) => locked,
                Err(busy) => {
                    mm.uncharge_metadata(range.memory_bytes());
                    mm.frames.abandon_range(range);
                    return Err(busy);
                }
            };
            linear.ranges.write().push(Arc::new(range));
        }
        let all = linear.pages();
        self.move_folios(PageIndex(*made)..PageIndex(all))?;
        *made = all;
        Ok(linear)
    }

    /// Adds a range of huge frames. The cached pages of the range leave the cache: no smaller folio
    /// may be there.
    ///
    /// # Errors
    /// Those of a sync; `EBUSY` where others go on storing to these pages, or a memory file system has some: it has
    /// nowhere else to put them.
    fn add_huge_range(&self, linear: &LinearFile, more: LinearRange) -> Result<(), MapError> {
        let pages = more.first..more.end();
        for _ in 0..MAX_SYNCS {
            if let Err(error) = self.sync() {
                self.mm().frames.retire_range(more);
                return Err(error.into());
            }
            let _exclusive = self.i_rwsem.write();
            let _wb = self.wb_lock.lock();
            let _invalidate = self.invalidate_lock.write();
            self.remove_folios(pages.clone(), Operation::Forget);
            if !self.has_pages(&pages) {
                linear.ranges.write().push(Arc::new(more));
                return Ok(());
            }
        }
        self.mm().frames.retire_range(more);
        Err(Errno::EBUSY.into())
    }

    /// Moves the folios of pages that have linear frames from now on.
    fn move_folios(&self, pages: Range<PageIndex>) -> Result<(), MapError> {
        let mut at = pages.start;
        let find = |at: PageIndex| find_page(&self.index, &(at.0..pages.end.0));
        while at < pages.end
            && let Some(page) = find(at)
        {
            let Some(folio) = self.folio_at(page) else {
                continue;
            };
            let nr_pages = folio.nr_pages();
            if folio.hold_counts().is_viewed() {
                // Its views keep the frames that it has.
                let mut prepared = self.prepare_to_replace(&(page..page.add(nr_pages)))?;
                let _wb = self.lock_to_move()?;
                if let Some(locked) = self.lock_folio_to_move(page)?
                    && locked.hold_counts().is_viewed()
                    && let Err(error) = self.replace_folio(locked, page, &mut prepared)
                    && error != Errno::ENOMEM
                {
                    return Err(error.into());
                }
                continue;
            }
            self.wait_for_tables(page.0..page.0 + nr_pages)?;
            let mut promised = self
                .mm()
                .reserve_frames(FrameKind::Linear, nr_pages as u32)?;
            // No write is in flight, so that every folio may be moved.
            let _wb = self.lock_to_move()?;
            let Some(locked) = self.lock_folio_to_move(page)? else {
                at = page.add(1);
                continue;
            };
            let frame = self.linear_frame(locked.index()).expect("made before");
            if locked.nr_pages() > u64::from(promised.left())
                || locked.hold_counts().is_viewed()
                || !self.mm().frames.is_linear(locked.frame())
                    && !self.mm().frames.claim_linear(frame, locked.order())
            {
                continue;
            }
            at = locked.end();
            self.move_folio(locked, frame, &mut promised)?;
        }
        Ok(())
    }

    fn move_folio(
        &self,
        locked: LockedFolio<'_>,
        new: FrameNumber,
        promised: &mut Reservation<'_>,
    ) -> Result<(), Errno> {
        let mm: &Mm = self.mm();
        let (old, order) = (locked.frame(), locked.order());
        if mm.frames.is_linear(old) {
            return Ok(());
        }
        debug_assert!(locked.may(Operation::Migrate), "wb_lock is held");
        mm.frames.take_linear(new, order, promised)?;
        let (from, to) = (mm.frames.addr(old), mm.frames.addr(new));
        if direct_map::copy(to, from, PAGE_SIZE << order) {
            locked.migrate(new);
            mm.frames.free(old, order);
            return Ok(());
        }
        mm.frames.free_linear(new, order, false);
        self.drop_bad_folio(locked)
    }

    /// Charges page tables, making room as long as it takes.
    ///
    /// # Errors
    /// `ENOMEM` when nothing can be reclaimed.
    pub(crate) fn wait_for_tables(&self, pages: Range<u64>) -> Result<(), MapError> {
        let mm: &Mm = self.mm();
        mm.wait_for_metadata(|| self.charge_tables(pages.clone()))?;
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
