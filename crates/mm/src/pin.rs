//! DMA pins: folios that a device reads or writes, at addresses that stay.
//!
//! # Model
//!
//! ```text
//!   pin:    find or read the folio, locked ─▶ count the pin ─▶ dirty, if a device may write ─▶ unlock
//!   unpin:  count it off: one atomic operation a folio, no lock
//! ```
//!
//! | while pinned | |
//! |---|---|
//! | reclaim, migration, split | pass the folio by; it keeps its place in its queue |
//! | truncate, punch, first mapping | wait for short pins, at most [`Mm::set_pin_wait`], and are `EBUSY`; at once under a long pin whose holder cannot be asked to give it up (`revoke.rs`) |
//! | writeback, where a device may write | by a sync only, from a copy, and the folio stays dirty |
//! | a change of the file by others | the folio is filled again in place |
//!
//! A folio is dirty from the moment that it is pinned for a device's writes, since the device may write at any time. So an
//! unpin has nothing to mark, and need not wait. It is the pin that waits for its share of the dirty limits, as a write of
//! the same bytes does, unless they are dirty already. It asks no store for room. Pages that a device may write are not
//! counted in the dirty limits, since no writeback makes them fewer: they are counted as pinned.
//!
//! A pin for a device's reads counts as a read, and one for its writes as a write: it is no hit. In both modes a folio that is in
//! use already costs the window of readahead nothing.
//!
//! A long pin should fix little memory beside its own. So a large folio is split first, and a small one moves to a block
//! with other long pins, both if that can be done at once.
//!
//! # Invariants
//!
//! 1. Each pin that is counted in a folio belongs to one live [`FolioPin`], which has the folio in its list.
//! 2. A folio with pins is in its mapping's index, with its frames and order, until the last of them goes.
//! 3. A folio that a device may write, of a file with a store, is dirty, or under writeback by a pass that marks
//!    it dirty again; unless all of the file that is not durable was given up.
//!
//! # Locking
//!
//! Pins are counted under the folio lock, and counted off without it.
//!
//! # Memory ordering
//!
//! That of [`bar`] and of the folio's counts.

mod bar;
mod error;
mod revocable;

pub(crate) use bar::PinBar;
pub use error::PinError;

use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;

use crate::counters::{bump, read};
use crate::fill::{FolioUse, Reader};
use crate::folio::{
    Folio, FolioId, Hold, HoldCounts, LockedFolio, MOST_PINS, Operation, flag, grains,
};
use crate::pins::DEVICE_WRITES;
use crate::prepared::Prepared;
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, Mm};
use crate::slab::SlabArc;
use crate::types::{PAGE_SHIFT, PageIndex, pages_for};

/// The use of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PinMode {
    /// It lasts longer than one I/O, like a registration with a device. Operations that need the memory fail instead of
    /// waiting.
    pub long_term: bool,
    /// A device may write to the memory. It may read it in any case.
    pub device_writes: bool,
}

impl PinMode {
    /// For one I/O in which a device reads the memory: a write of the program to somewhere.
    pub const READ: Self = Self {
        long_term: false,
        device_writes: false,
    };

    /// For one I/O in which a device writes to the memory: a read of the program from somewhere.
    pub const WRITE: Self = Self {
        long_term: false,
        device_writes: true,
    };

    /// The same mode, without a time limit.
    #[must_use]
    pub const fn long_term(self) -> Self {
        Self {
            long_term: true,
            ..self
        }
    }

    const fn hold(self) -> Hold {
        Hold::pin(self.long_term, self.device_writes)
    }
}

/// Most ranges that an error names.
const MOST_NAMED: usize = 8;

/// A piece of memory that is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedPart {
    /// Where it begins. Others may read and write it at any time, through the cache or a device: accesses through it
    /// are to be atomic, volatile or a device's.
    pub addr: *mut u8,
    /// Its bytes.
    pub len: usize,
    /// The byte of the file that it begins with.
    pub pos: u64,
}

/// Bytes of a file whose memory stays where it is, and the file's, until this is dropped.
///
/// Dropping it takes no lock and does not block. In a forked child it does nothing.
pub struct FolioPin {
    mapping: SlabArc<AddressSpace>,
    bytes: Range<u64>,
    mode: PinMode,
    /// Its number among those that are given up on request; zero for the others.
    revocable: u32,
    /// The folios in order; most pins are of one.
    folios: SmallVec<[FolioId; 1]>,
}

impl FolioPin {
    /// The bytes of the file that are pinned.
    pub fn range(&self) -> Range<u64> {
        self.bytes.clone()
    }

    /// The mode that it was made with.
    pub fn mode(&self) -> PinMode {
        self.mode
    }

    /// The file.
    pub fn mapping(&self) -> &AddressSpace {
        &self.mapping
    }

    /// Where the bytes are, in order: a piece for each folio. None in a forked child, where the memory is not.
    pub fn parts(&self) -> impl Iterator<Item = PinnedPart> + '_ {
        let in_child = self.mapping.mm().check_fork().is_err();
        self.folios()
            .take(if in_child { 0 } else { usize::MAX })
            .map(|folio| {
                let (index, all) = (folio.index(), folio.identity());
                let start = self.bytes.start.max(index.pos());
                let end = self.bytes.end.min(index.pos() + all.bytes() as u64);
                let addr = self.mapping.mm().frames.addr(all.frame);
                PinnedPart {
                    addr: addr.wrapping_add(all.offset(start)),
                    len: (end - start) as usize,
                    pos: start,
                }
            })
    }

    /// The folios, whose identity is stable (invariant 2).
    fn folios(&self) -> impl Iterator<Item = &Folio> {
        let ids = self.folios.iter();
        ids.map(|&id| self.mapping.mm().folios.get(id))
    }
}

/// As in an early version for Linux: pinned folios are on no queue.
#[cfg(feature = "bench")]
#[doc(hidden)]
impl FolioPin {
    /// Takes the folios off reclaim's queues.
    pub fn isolate(&self) {
        let mm: &Mm = self.mapping.mm();
        self.folios()
            .for_each(|folio| mm.lru.lock().remove(&mm.folios, folio));
    }

    /// Puts them back.
    pub fn put_back(&self) {
        let (mm, id): (&Mm, _) = (self.mapping.mm(), self.mapping.id());
        for folio in self.folios() {
            (mm.lru.lock()).add(&mm.folios, folio, id, folio.index());
        }
    }
}

impl Drop for FolioPin {
    fn drop(&mut self) {
        if self.mapping.mm().check_fork().is_ok() {
            self.folios()
                .for_each(|folio| self.mapping.unpin(folio, self.mode));
            if self.revocable != 0 {
                self.mapping.end_revocable(self.revocable);
            }
        }
    }
}

impl fmt::Debug for FolioPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioPin")
            .field("range", &self.bytes)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

/// Why a folio gets no pin.
enum Refused {
    Barred,
    TooMuch,
    TooMany,
}

/// The part of `pages` that lies in a folio which has the first of them, as bytes of the folio.
fn part_of(locked: &LockedFolio<'_>, pages: &Range<PageIndex>) -> Range<usize> {
    let offset = |page: PageIndex| locked.identity().offset(page.pos());
    offset(pages.start)..offset(pages.end.min(locked.end()))
}

/// Whether a folio that has the first of `pages` has all of them that lie in it.
fn has_pages(locked: &LockedFolio<'_>, pages: &Range<PageIndex>) -> bool {
    locked.has_grains(part_of(locked, pages))
}

/// Whether such a folio has all of `pages`, and they are dirty.
fn are_dirty(locked: &LockedFolio<'_>, pages: &Range<PageIndex>) -> bool {
    let touched = grains::touched(locked.order(), part_of(locked, pages));
    pages.end <= locked.end()
        && locked.dirty_grains() & touched == touched
        && !foliocache_sync::planted!(dirty_pages_paid_for_again)
}

/// Memory and room in the limits that a pin needs on its way.
#[derive(Default)]
struct Needs<'a> {
    prepared: Option<Prepared<'a>>,
    /// Pages that a device may write and that were not waited for in the dirty limits.
    unpaid: u64,
}

/// The number that a pin adds to [`Pins::pages`](crate::pins::Pins::pages), and later takes off, for a folio of so many pages that
/// has `others`.
fn counted(pages: u64, others: HoldCounts, mode: PinMode) -> u64 {
    let pinned = if others.is_pinned() { 0 } else { pages };
    match mode.device_writes && others.device_writes() == 0 {
        true => pinned | pages << DEVICE_WRITES,
        false => pinned,
    }
}

impl AddressSpace {
    /// Pins bytes of the file: reads missing pages, and keeps all the memory in place, and part of the file, until the
    /// result is dropped. A pin holds whole folios, of 2 MiB at most; one for long splits those that go beyond its range
    /// where it can.
    ///
    /// Blocks for I/O and memory; for a device's writes to pages that are not dirty also as a write of so many bytes does for
    /// the dirty limits, and for writeback of the range that is under way. Counts as memory that cannot be reclaimed; the
    /// pages of a memory file system are counted as such already.
    ///
    /// # Errors
    /// See [`PinError`]; `EINVAL` for no bytes, or bytes beyond the end of the file; those of the store; the
    /// file system's stored error, for a device's writes; `ECHILD` after a fork.
    #[doc(alias = "pin_user_pages")]
    pub fn pin(
        &self,
        handle: &ReadaheadState,
        bytes: Range<u64>,
        mode: PinMode,
    ) -> Result<FolioPin, PinError> {
        let mm: &Mm = self.mm();
        mm.check_fork()?;
        if bytes.is_empty() || bytes.end > self.size() {
            return Err(Errno::EINVAL.into());
        }
        let last = PageIndex::of(bytes.end - 1);
        let mut needs = Needs::default();
        if mode.device_writes && !self.bdi().is_memory() {
            mm.ready_stable()?;
            self.bdi().check_failed_cap()?;
            needs.unpaid = last.0 + 1 - PageIndex::of(bytes.start).0;
        }
        let mut pin = FolioPin {
            mapping: self.share(),
            bytes: bytes.clone(),
            mode,
            revocable: 0,
            folios: SmallVec::new(),
        };
        let (mut page, mut revoking) = (PageIndex::of(bytes.start), None);
        while page <= last {
            page = match self.pin_folio(handle, page, &mut pin, &mut needs) {
                Err(PinError::TooMuch { wanted, .. })
                    if mm.revoke_for_pin(&mut revoking, wanted) =>
                {
                    page
                }
                done => done?,
            };
        }
        Ok(pin)
    }

    /// Pins the folio that holds `page`; returns the page after it.
    fn pin_folio<'a>(
        &'a self,
        handle: &ReadaheadState,
        page: PageIndex,
        pin: &mut FolioPin,
        needs: &mut Needs<'a>,
    ) -> Result<PageIndex, PinError> {
        let asked = page..PageIndex(pages_for(pin.bytes.end));
        let found = self.lock_folio(page);
        if needs.unpaid > 0 && !found.as_ref().is_some_and(|it| are_dirty(it, &asked)) {
            // Before anything is pinned: either the first folio has all pages, and they are dirty, or all are paid for here.
            drop(found);
            let unpaid = std::mem::take(&mut needs.unpaid);
            self.bdi().wait_for_share(self, unpaid, false)?;
            return Ok(page);
        }
        let (mut locked, behind) = match found {
            Some(locked) if has_pages(&locked, &asked) => (locked, None),
            incomplete => {
                drop(incomplete);
                self.folio_to_pin(handle, &asked)?
            }
        };
        if pin.bytes.end > self.size() {
            drop(self.keep_content(locked));
            return Err(Errno::EINVAL.into());
        }
        // It is to keep its frames, and the program may write to them.
        if locked.hold_counts().is_viewed() {
            match self.without_views(locked, page, false, &mut needs.prepared)? {
                Some(unviewed) => locked = unviewed,
                None => return Ok(page),
            }
        }
        // No memory is held over the waits below.
        needs.prepared = None;
        let seen = locked.state.load();
        if pin.mode.device_writes
            && seen.has(flag::WRITEBACK)
            && !foliocache_sync::planted!(pinned_while_it_is_written)
        {
            // It is not being written from a copy.
            drop(locked);
            drop(self.lock_awaited());
            return Ok(page);
        }
        if pin.mode.long_term {
            let pages = PageIndex::of(pin.bytes.start)..asked.end;
            match self.split_for_pin(locked, page, &pages) {
                Some(part) => locked = part,
                None => {
                    self.read_ahead(behind.and_then(|behind| behind.window), false);
                    return Ok(page);
                }
            }
            self.mm().move_for_pin(&locked);
        }
        let seen = locked.state.load();
        let (end, order) = (locked.end(), locked.order());
        let from = pin.bytes.start.max(page.pos());
        let bytes = from..pin.bytes.end.min(end.pos());
        let (mut kind, mut first_use) = (FolioUse::Again, false);
        let in_use = behind.is_none() && seen.is_in_use();
        if !in_use {
            if !foliocache_sync::planted!(pin_no_use_of_an_uncached_folio) {
                self.keep_used(&locked, seen);
            }
            (kind, first_use) = FolioUse::mark(handle, &locked, &bytes, (behind.is_some(), 0));
        }
        if !pin.mode.device_writes || foliocache_sync::planted!(pin_for_writes_is_a_hit) {
            self.count_use(kind, from, (bytes.end - from) as usize);
        }
        needs.unpaid = 0;
        let mut done = self.pin_locked(&locked, pin);
        if matches!(done, Err(Refused::TooMuch)) && self.mm().move_for_pin(&locked) {
            // It may have been its block that is too much.
            done = self.pin_locked(&locked, pin);
        }
        drop(locked);
        let newly_dirty = done.map_err(|refused| self.refusal(refused, order))?;
        if newly_dirty > 0 {
            self.bdi().note_pinned(self, newly_dirty);
        }
        if !in_use {
            handle.note_read(bytes);
        }
        if first_use {
            self.used_readahead(handle, page, order, false);
        }
        self.read_ahead(behind.and_then(|behind| behind.window), false);
        Ok(end)
    }

    /// The part of a locked folio, which holds `page`, that lies in `pages`, which are to be pinned for long; the whole
    /// folio where it cannot be split. `None`: it was split and unlocked; look again.
    fn split_for_pin<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        page: PageIndex,
        pages: &Range<PageIndex>,
    ) -> Option<LockedFolio<'a>> {
        if !locked.may(Operation::Split) || self.mm().frames.is_linear(locked.frame()) {
            return Some(locked);
        }
        if locked.index() < pages.start {
            return self
                .split_folio(locked, pages.start)
                .filter(|whole| whole.holds(page));
        }
        match locked.end() > pages.end {
            true => self.split_folio(locked, pages.end),
            false => Some(locked),
        }
    }

    /// Adds a pin to a locked folio, and the folio to the list of `pin`. Returns the pages that became dirty.
    fn pin_locked(&self, locked: &LockedFolio<'_>, pin: &mut FolioPin) -> Result<u64, Refused> {
        let mm: &Mm = self.mm();
        let pages = locked.index().0..locked.end().0;
        let barred = || mm.pins.is_barred(self.id(), &pages);
        if barred() {
            return Err(Refused::Barred);
        }
        let before = locked.add_hold(pin.mode.hold());
        let before = before.ok_or(Refused::TooMany)?;
        let within = self.count_pin(locked, before, pin.mode);
        let refused = match (within, barred()) {
            (false, _) => Some(Refused::TooMuch),
            (true, true) => Some(Refused::Barred),
            (true, false) => None,
        };
        if let Some(refused) = refused {
            self.unpin(locked, pin.mode);
            return Err(refused);
        }
        let mut newly_dirty = 0;
        if pin.mode.device_writes && !foliocache_sync::planted!(pinned_without_dirtying) {
            let part = |page: u64| (page.clamp(pages.start, pages.end) - pages.start) << PAGE_SHIFT;
            let first = part(PageIndex::of(pin.bytes.start).0) as usize;
            let end = part(pages_for(pin.bytes.end)) as usize;
            newly_dirty = self.mark_dirty(locked, first..end);
        }
        if foliocache_sync::planted!(pinned_off_the_queues) {
            mm.lru.lock().remove(&mm.folios, locked.folio());
        }
        pin.folios.push(mm.folios.id(locked.folio()));
        Ok(newly_dirty)
    }

    /// Why a folio of `order` got no pin, for the caller. Context: no lock held.
    #[cold]
    fn refusal(&self, refused: Refused, order: u32) -> PinError {
        let mm: &Mm = self.mm();
        let now = mm.unreclaimable();
        match refused {
            Refused::Barred => PinError::Barred,
            Refused::TooMany => PinError::TooMany { most: MOST_PINS },
            Refused::TooMuch => PinError::TooMuch {
                wanted: 1 << (order + PAGE_SHIFT),
                pinned: now.pinned_pages << PAGE_SHIFT,
                most: now.most_pinned_pages << PAGE_SHIFT,
                holders: mm.pinned(MOST_NAMED),
            },
        }
    }

    /// Counts the pages of a folio that got a pin and had `others`; whether they are within the share.
    fn count_pin(&self, locked: &LockedFolio<'_>, others: HoldCounts, mode: PinMode) -> bool {
        let (mm, pages): (&Mm, _) = (self.mm(), locked.nr_pages());
        let first = !others.is_pinned();
        if first {
            // SeqCst: partner is the fence in `PinBar::new`.
            self.nr_pinned.fetch_add(pages, Ordering::SeqCst);
        }
        let linear = mm.frames.is_linear(locked.frame());
        let fixes = !linear && first && mm.frames.fix(locked.frame());
        // A short one ends soon, and where memory is small even one request may lie in most blocks.
        let fits = !fixes || !mode.long_term || mm.spares_units(0);
        let counted = counted(pages, others, mode);
        if counted == 0 || self.bdi().is_memory() {
            return fits;
        }
        if counted >> DEVICE_WRITES > 0 {
            bump(&self.bdi().stay_dirty, pages);
        }
        bump(&mm.pins.pages, counted);
        if !first {
            return true;
        }
        if linear {
            bump(&mm.pins.linear, pages);
            if locked.state.load().has(flag::HELD) {
                self.count_pins_once(locked);
            }
        }
        let now = mm.unreclaimable();
        let fits = fits && (!linear || mm.spares_units(0) && mm.spares_huge_page());
        fits && now.pinned_pages <= now.most_pinned_pages && now.total_pages() <= now.most_pages
    }

    /// Takes a pin off a folio of the file.
    fn unpin(&self, folio: &Folio, mode: PinMode) {
        let mm: &Mm = self.mm();
        // They may be another folio's as soon as the pin is gone.
        let (pages, frame) = (folio.nr_pages(), folio.frame());
        let linear = mm.frames.is_linear(frame);
        let (left, as_held) = folio.drop_pin(mode.hold());
        let last = !left.is_pinned();
        if last {
            // Release: partner is the Acquire in `pinned_folios`, after which the folio's own count is seen.
            self.nr_pinned.fetch_sub(pages, Ordering::Release);
            if !linear {
                mm.frames.unfix(frame);
            }
        }
        let counted = counted(pages, left, mode);
        if counted == 0 || self.bdi().is_memory() {
            return;
        }
        // Relaxed, all: they steer.
        if counted >> DEVICE_WRITES > 0 {
            (self.bdi().stay_dirty).fetch_sub(pages, Ordering::Relaxed);
        }
        let elsewhere = if last && as_held { pages } else { 0 };
        let pinned = &mm.pins.pages;
        pinned.fetch_sub(counted - elsewhere, Ordering::Relaxed);
        if last && linear && !as_held {
            mm.pins.linear.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Has the pages of a locked folio of linear frames, if it is pinned, count once in the budget: as held where mappings
    /// hold all of it, else as pinned. Whether they count as pinned and did not.
    pub(crate) fn count_pins_once(&self, locked: &LockedFolio<'_>) -> bool {
        if !locked.hold_counts().is_pinned() || self.bdi().is_memory() {
            return false;
        }
        let (pins, pages) = (&self.mm().pins, locked.nr_pages());
        let as_held = self.holds_all_of(locked);
        // An unpin may take off at once what is counted as pinned again.
        if !as_held {
            bump(&pins.pages, pages);
            bump(&pins.linear, pages);
        }
        let changed = locked.set_as_held(as_held);
        if changed == as_held {
            // Relaxed, both: they steer.
            pins.pages.fetch_sub(pages, Ordering::Relaxed);
            pins.linear.fetch_sub(pages, Ordering::Relaxed);
        }
        changed && !as_held
    }

    /// The folio that holds the first page of `asked`, locked, with all of `asked` that lies in it; and the rest of the work
    /// if it was missing.
    fn folio_to_pin(
        &self,
        handle: &ReadaheadState,
        asked: &Range<PageIndex>,
    ) -> Result<(LockedFolio<'_>, Option<crate::fill::Behind>), Errno> {
        loop {
            let (locked, behind) = match self.bdi().is_memory() {
                true => self.page_to_map(handle, asked.start, Reader::Ordinary)?,
                false => self.read_folio(handle, asked.clone(), Reader::Ordinary)?,
            };
            if has_pages(&locked, asked) {
                return Ok((locked, behind));
            }
            drop(locked);
            if let Some(locked) = self.read_rest(asked.clone())? {
                return Ok((locked, behind));
            }
        }
    }
}

impl Mm {
    /// Pages of all files that are not durable and count in the dirty limits.
    pub(crate) fn nr_to_write(&self) -> u64 {
        let stay_dirty = self.pins.device_writes() + read(&self.holding.for_io);
        (self.counts.not_durable()).saturating_sub(stay_dirty)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::iocb::Iocb;
    use crate::iov::IovIter;
    use crate::records::{BackingDevInfo, BdiKind, MmConfig};
    use crate::test_store::Sink;
    use foliocache_sync::Arc;
    use foliocache_sync::thread;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A pin that took the lock of the queues would wait for it here.
    #[test]
    fn a_pin_of_a_cached_folio_leaves_the_queues_alone() {
        let mm = Mm::new(MmConfig::new(64 << 20)).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        let file = AddressSpace::new(&bdi, Arc::new(Sink::default()), 1 << 20);
        let handle = ReadaheadState::new();
        // Large folios are split once for a long-term pin, and small ones moved.
        let modes = [PinMode::READ, PinMode::READ.long_term()];
        let pin = || {
            for mode in modes {
                drop(file.pin(&handle, 5000..9 << 12, mode).unwrap());
            }
        };
        for _ in 0..3 {
            pin();
        }
        let queues = mm.lru.lock();
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                pin();
                let _ = done.send(());
            });
            let ended = is_done.recv_timeout(Duration::from_secs(5));
            drop(queues);
            ended.expect("pins that wait for no lock of the queues");
        });
    }

    /// A file of so many pages whose flusher writes nothing.
    fn unwritten(pages: u64) -> SlabArc<AddressSpace> {
        let mut config = MmConfig::new(64 << 20);
        config.external_pressure = false;
        config.dirty_percent = 1;
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        bdi.stop();
        AddressSpace::new(&bdi, Arc::new(Sink::default()), pages << PAGE_SHIFT)
    }

    #[test]
    fn a_pin_of_dirty_pages_waits_for_no_dirty_limit() {
        let file = unwritten(1 << 16);
        let handle = ReadaheadState::new();
        let write = |page: u64| {
            let mut at = Iocb::at(page << PAGE_SHIFT);
            file.write(&mut at, &mut IovIter::source(&[1; 4096]))
                .unwrap();
            // Writers pause from here on.
            file.bdi().check_dirty_pages(&file, false).is_err()
        };
        let last = (0..1 << 16).find(|&page| write(page)).expect("a limit");
        // Whether it was charged.
        let pays = |pages: Range<u64>| {
            // Relaxed: one thread.
            let paid_until = || file.dirty_paid_until.load(Ordering::Relaxed);
            let before = paid_until();
            let bytes = pages.start << PAGE_SHIFT..pages.end << PAGE_SHIFT;
            drop(file.pin(&handle, bytes, PinMode::WRITE).unwrap());
            paid_until() != before
        };
        for page in 0..10 {
            assert!(!pays(page..page + 1), "{page}");
        }
        assert!(pays(last + 20..last + 21), "it was clean");
        assert!(!pays(last + 20..last + 21), "it is dirty");
        assert!(pays(last..last + 11), "part of it was clean");
        file.bdi().discard_all();
    }

    #[test]
    fn a_pin_counts_as_a_read_of_its_pages_or_as_a_write() {
        const PAGES: u64 = 8;
        let file = unwritten(PAGES);
        let handle = ReadaheadState::new();
        let all = 0..PAGES << PAGE_SHIFT;
        let hits = |mode| {
            let before = file.stats().hit_pages;
            drop(file.pin(&handle, all.clone(), mode).unwrap());
            file.stats().hit_pages - before
        };
        // They are brought in, and used.
        hits(PinMode::READ);
        hits(PinMode::READ);
        assert_eq!((hits(PinMode::READ), hits(PinMode::WRITE)), (PAGES, 0));
        file.bdi().discard_all();
    }
}
