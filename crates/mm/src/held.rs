//! Parts of mapped files that are held: in memory for good, or while system calls use them.
//!
//! # Model
//!
//! | kind | its pages | a store | writeback |
//! |---|---|---|---|
//! | `Read` | stay in memory; the window has them without faults | – | as usual |
//! | `Untracked` | as `Read` | is not noticed | a sync writes all of it, through a copy |
//! | `Io` | stay in memory and writable in the windows | is not noticed, so all of it stays dirty | through a copy |
//!
//! Folios of held pages carry `HELD` and are not evicted. They count against a share of the bound ([`crate::unreclaimable`]),
//! each page once. A held page that is also pinned counts as held.
//!
//! # Invariants
//!
//! 1. A folio with `HELD` overlaps a range of the list; one that overlaps a range and was in the index when
//!    [`AddressSpace::hold`] returned has it.
//! 2. Pages that are held for stores are written from a copy: the store would see them change.
//!
//! # Locking
//!
//! `held` is a leaf. The copy's buffer is taken under `wb_lock`, over the I/O.
//!
//! # Memory ordering
//!
//! `has_stable` is stored Release once the copy's buffer is there, and loaded Acquire: partners of one another.

use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use std::cell::Cell;
use std::ops::Range;

use crate::counters::bump;
use crate::direct_map;
use crate::fill::Reader;
use crate::folio::flag;
use crate::mapped::{Held, HoldKind, MapError, not_held, overlap};
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, LinearFile, Mm};
use crate::types::{PAGE_SHIFT, PageIndex, pages_for};

impl AddressSpace {
    /// Keeps pages in memory until [`AddressSpace::release`], and reads missing ones; whether some were not held
    /// before.
    ///
    /// Context: blocks for I/O and memory; no lock held but `i_rwsem`. The pages lie in the file and in its linear ranges.
    ///
    /// # Errors
    /// [`MapError::TooMuchHeld`] beyond the share; those of the store.
    pub(crate) fn hold(&self, linear: &LinearFile, held: &mut Held) -> Result<bool, MapError> {
        let mm: &Mm = self.mm();
        let whole = self.whole(PageIndex(held.pages.start)..PageIndex(held.pages.end));
        held.pages = whole.start.0..whole.end.0;
        let new = {
            let mut all = linear.held.write();
            // Pages of a memory file system are in memory for good anyway.
            if !self.bdi().is_memory() {
                let new = not_held(&all, &held.pages, |_| true);
                let pinned = || self.pinned_pages(&held.pages).map(|of| of.end - of.start);
                mm.count_held(new, || pinned().sum())?;
            }
            let missing = not_held(&all, &held.pages, |held| held.ready);
            let more = self.held_for_io_alone(&all, held);
            bump(&mm.holding.for_io, more);
            bump(&self.bdi().stay_dirty, more);
            all.push(held.clone());
            missing > 0
        };
        for pages in self.pinned_pages(&held.pages) {
            if let Some(locked) = self.lock_folio(PageIndex(pages.start)) {
                self.count_pins_once(&locked);
            }
        }
        if new {
            let brought = match self.bdi().is_memory() || mm.spares_huge_page() {
                true => (mm.ready_stable().and_then(|()| self.bring_in(&held.pages)))
                    .map_err(MapError::from),
                false => Err(mm.too_much_held(held.pages.end - held.pages.start)),
            };
            brought.inspect_err(|_| self.release(linear, held))?;
        }
        {
            let mut all = linear.held.write();
            let mine = all.iter_mut().find(|other| *other == held);
            mine.expect("it is held").ready = true;
            held.ready = true;
        }
        let unnoticed = held.kind == HoldKind::Untracked;
        if unnoticed && !self.bdi().is_memory() {
            self.bdi().queue_dirty(self);
        }
        Ok(new)
    }

    /// Ends a hold: pages that no other has may be evicted again.
    pub(crate) fn release(&self, linear: &LinearFile, held: &Held) {
        let others = |those: fn(&Held) -> bool| {
            let mut all = linear.held.read().clone();
            let at = all.iter().position(|other| other == held);
            all.remove(at.expect("it is held"));
            not_held(&all, &held.pages, those)
        };
        let untracked = |held: &Held| held.kind == HoldKind::Untracked;
        let stored = matches!(held.kind, HoldKind::Untracked | HoldKind::Io);
        if stored && others(untracked) > 0 {
            // Stores since the last sync are still to be written.
            self.dirty_all(&held.pages);
        }
        let left = {
            let mut all = linear.held.write();
            let at = all.iter().position(|other| other == held);
            all.remove(at.expect("it is held"));
            let fewer = self.held_for_io_alone(&all, held);
            (self.mm().holding.for_io).fetch_sub(fewer, Ordering::Relaxed);
            (self.bdi().stay_dirty).fetch_sub(fewer, Ordering::Relaxed);
            not_held(&all, &held.pages, |_| true)
        };
        if held.kind == HoldKind::Untracked {
            // It may be durable now.
            self.bdi().note_progress(self);
        }
        if left == 0 {
            return;
        }
        let pinned = Cell::new(0);
        self.for_each_held(&held.pages, |locked| {
            let pages = locked.index().0..locked.end().0;
            let others = |held: &Held| overlap(&held.pages, &pages);
            let free = !linear.held.read().iter().any(others);
            if free {
                locked.state.clear(flag::HELD);
            }
            if self.count_pins_once(locked) && free {
                self.mm().uncount_held(locked.nr_pages());
                pinned.set(pinned.get() + locked.nr_pages());
            }
        });
        if !self.bdi().is_memory() {
            // Of a folio that was two ranges' it may be less, where both end at once: the sum of the changes counts.
            self.mm().uncount_held(left.wrapping_sub(pinned.get()));
        }
    }

    /// Pages that only `held` holds for I/O, as `others` are the file's other holds. They are not counted in the dirty
    /// limits, as no writeback makes them fewer: they are counted as held.
    fn held_for_io_alone(&self, others: &[Held], held: &Held) -> u64 {
        match held.kind == HoldKind::Io && !self.bdi().is_memory() {
            true => not_held(others, &held.pages, |held| held.kind == HoldKind::Io),
            false => 0,
        }
    }

    /// Reads missing pages, and marks the folios as held. Folios that go beyond the pages are split where there is
    /// memory for it.
    fn bring_in(&self, pages: &Range<u64>) -> Result<(), Errno> {
        let readahead = ReadaheadState::new();
        let (mut page, mut split) = (PageIndex(pages.start), None);
        while page.0 < pages.end {
            let (mut locked, behind) = self.folio_to_map(&readahead, page, Reader::Ordinary)?;
            let goes_beyond = locked.index().0 < pages.start || locked.end().0 > pages.end;
            if goes_beyond && split.replace(page) != Some(page) {
                drop(locked);
                let _wb = self.wb_lock.lock();
                self.split_at(PageIndex(pages.start));
                self.split_at(PageIndex(pages.end));
                continue;
            }
            let (bytes, pages) = (locked.identity().bytes(), locked.index()..locked.end());
            if !locked.has_grains(0..bytes) {
                drop(locked);
                match self.read_rest(pages)? {
                    Some(whole) if whole.has_grains(0..bytes) => locked = whole,
                    _ => continue,
                }
            }
            if locked.index().0 >= pages_for(self.size()) {
                return Err(Errno::EFAULT);
            }
            self.keep_used(&locked, locked.state.load());
            locked.state.clear_hint(flag::READAHEAD);
            locked.state.set(flag::HELD);
            self.count_pins_once(&locked);
            page = locked.end();
            drop(locked);
            self.read_ahead(behind.and_then(|behind| behind.window), false);
        }
        Ok(())
    }

    /// Reads held and pinned pages once more, in place, because the store has changed them. A page that cannot be read
    /// stays as it was.
    ///
    /// Context: `invalidate_lock` held exclusive; blocks for I/O, with folio locks.
    pub(crate) fn read_held_again(&self) {
        let held = |linear: &LinearFile| linear.held.read().clone();
        let held = self.linear.get().map(held).unwrap_or_default();
        let pinned = self.pinned().into_iter().map(|pinned| pinned.bytes);
        let pinned = pinned.map(|bytes| PageIndex::of(bytes.start).0..pages_for(bytes.end));
        for pages in held.into_iter().map(|held| held.pages).chain(pinned) {
            self.for_each_held(&pages, |locked| {
                let seen = locked.state.load();
                let kept = seen.has(flag::HELD) || locked.hold_counts().is_pinned();
                if !kept || seen.has_any(flag::DIRTY | flag::WRITEBACK | flag::UNSTABLE) {
                    return;
                }
                let bytes = locked.identity().bytes();
                let segment = self.segment(locked, 0..bytes);
                match self.ask_store(|ops| ops.read_folios(locked.index().pos(), &[segment])) {
                    Ok(read) if read < bytes => {
                        direct_map::zero(self.addr(locked, read), bytes - read);
                    }
                    Ok(_) => {}
                    Err(error) => tracing::warn!(
                        file = %self.name(), page = locked.index().0, %error,
                        "a page that a mapping or a pin holds stays as it was before the store changed it"
                    ),
                }
            });
        }
    }
}

impl Mm {
    /// Counts pages that are held from now on; `pinned` says how many of them count as pinned yet.
    fn count_held(&self, pages: u64, pinned: impl FnOnce() -> u64) -> Result<(), MapError> {
        // Relaxed: the sum of the changes counts.
        let held = self.holding.pages.fetch_add(pages, Ordering::Relaxed) + pages;
        let now = self.unreclaimable();
        let fits = |twice: u64| {
            now.total_pages().saturating_sub(twice) <= now.most_pages && self.spares_units(twice)
        };
        if held <= now.most_held_pages && (fits(0) || fits(pinned())) {
            return Ok(());
        }
        self.uncount_held(pages);
        Err(self.too_much_held(pages))
    }

    fn too_much_held(&self, wanted: u64) -> MapError {
        let now = self.unreclaimable();
        MapError::TooMuchHeld {
            wanted: wanted << PAGE_SHIFT,
            held: now.held_pages << PAGE_SHIFT,
            most: now.most_held_pages << PAGE_SHIFT,
        }
    }

    fn uncount_held(&self, pages: u64) {
        self.holding.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}
