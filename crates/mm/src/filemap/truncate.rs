//! Changing the size, and punching holes.
//!
//! # Model
//!
//! The backing store goes first and the cache follows, with writeback of the file held off by
//! `wb_lock` all the while: if the store refuses, the cache has lost nothing.
//!
//! **The edges of a hole** that are no whole pages are zeroed by the store and in the cache, and written once more. Kernels
//! zero them in their own cache: if the write of such a page fails later, its old bytes are back, and no flush
//! punches the hole again. So these pages are brought in first, and are dirty afterwards, unless they had only zeros there.
//!
//! # Invariants
//!
//! 1. A page that stays, partly cut off, is zero beyond the cut, so that growing again reads zeros. A
//!    large folio is split at the cut; where there is no memory for that it stays, zero beyond it.
//! 2. No write of a cut-off page can reach the store after the cut: none is in flight under
//!    `wb_lock`, and the pages are gone before it is released.
//! 3. Windows are emptied after the folios went, or were zeroed: of a folio that was evicted in the meantime they
//!    may have pages until the punch, also of one that a fault brought in before it saw the new size.
//!
//! # Locking
//!
//! `i_rwsem` exclusive, `wb_lock`, `invalidate_lock` exclusive, then folio locks one by one. Before them, with none held,
//! it waits for pins of the pages that go (see [`crate::pin`]).

use foliocache_sys::Errno;
use std::ops::Range;

use crate::direct_map;
use crate::folio::{LockedFolio, Operation, grains};
use crate::owner;
use crate::pin::PinBar;
use crate::pins::RevokeReason;
use crate::records::AddressSpace;
use crate::types::{MAX_FILE_SIZE, PAGE_SIZE, PageIndex, end_of, offset_in_page, pages_for};

/// Times that a change waits for memory to replace viewed folios.
const REPLACE_TRIES: usize = 16;

/// Times that a hole waits for the pages of its edges.
const EDGE_TRIES: usize = 4;

/// How a change ended, or for which pages it lacks the memory to replace their folio.
type Refusable<R> = Result<Result<R, Errno>, Range<PageIndex>>;

impl AddressSpace {
    /// Sets the size of the file, in bytes; new bytes read as zeros.
    ///
    /// Blocks for writeback of the file that is under way, and a bounded time for pins of pages that are cut off. Frees
    /// memory when it shrinks.
    ///
    /// # Errors
    /// `EFBIG`; `EBUSY` where pins are in the way; the backing store's error; with size and data as they were. `ECHILD`
    /// after a fork.
    #[doc(alias = "truncate_setsize")]
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.resize(size, false)
    }

    /// As [`AddressSpace::truncate`], if the file is shorter.
    ///
    /// # Errors
    /// As [`AddressSpace::truncate`].
    pub fn extend(&self, size: u64) -> Result<(), Errno> {
        self.resize(size, true)
    }

    fn resize(&self, size: u64, only_grow: bool) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if size > MAX_FILE_SIZE {
            return Err(Errno::EFBIG);
        }
        let mut bar = None;
        self.with_views_refused(|| self.try_resize(size, only_grow, &mut bar))
    }

    fn try_resize<'a>(
        &'a self,
        size: u64,
        only_grow: bool,
        bar: &mut Option<PinBar<'a>>,
    ) -> Refusable<()> {
        let (_exclusive, old) = loop {
            let exclusive = self.i_rwsem.write();
            let old = self.size();
            if only_grow && size <= old {
                return Ok(Ok(()));
            }
            if size >= old || bar.is_some() {
                break (exclusive, old);
            }
            // Pages that are cut off may be pinned, and the owner of the pin may need the lock.
            drop(exclusive);
            match self.bar_pins(PageIndex::of(size).0..u64::MAX, RevokeReason::Truncate) {
                Ok(barred) => *bar = Some(barred),
                Err(error) => return Ok(Err(error)),
            }
        };
        let mut wb = self.wb_lock.lock();
        let _invalidate = self.invalidate_lock.write();
        let refuse = || self.refuse_views(size, u64::MAX);
        let _refused = (size < old).then(refuse).transpose()?;
        // Readers stop at the new end before the store loses the bytes behind it.
        if size < old {
            self.set_size(size);
        }
        if let Err(error) = self.ask_store(|ops| ops.truncate(size)) {
            self.set_size(old);
            return Ok(Err(error));
        }
        if size > old {
            self.zero_beyond_end();
        }
        self.set_size(size);
        wb.store_size = size;
        if size < old {
            self.cut_off(size);
            self.after_removal(&mut wb);
        }
        Ok(Ok(()))
    }

    /// Repeats `change`, which refuses views, after a wait for the memory that it lacks to replace folios.
    ///
    /// Context: blocks for memory; nothing held.
    ///
    /// # Errors
    /// `ENOMEM`, where views of the same bytes are taken over and over in a full cache, or nothing can be reclaimed.
    fn with_views_refused<R>(&self, mut change: impl FnMut() -> Refusable<R>) -> Result<R, Errno> {
        for _ in 0..REPLACE_TRIES {
            match change() {
                Ok(result) => return result,
                // There is room then. It is given back at once: no memory is held over a wait for locks.
                Err(pages) => drop(self.prepare_to_replace(&pages)?),
            }
        }
        Err(Errno::ENOMEM)
    }

    /// As [`AddressSpace::hold_off_pins`], for a truncate or hole punch.
    fn bar_pins(&self, pages: Range<u64>, reason: RevokeReason) -> Result<PinBar<'_>, Errno> {
        self.hold_off_pins(pages, reason).map_err(|pinned| {
            tracing::info!(%pinned, "a truncate or hole punch is refused");
            Errno::EBUSY
        })
    }

    /// Zeroes the bytes of the last page, or of the last huge frame, beyond the end of the file, before the end moves:
    /// a store through a window may have left something there.
    ///
    /// Context: `i_rwsem` held exclusive; takes the folio lock.
    pub(super) fn zero_beyond_end(&self) {
        let (size, page) = (self.size(), PageIndex::of(self.size()));
        let is_end = match self.huge_unit(page) {
            Some(unit) => unit.pos() == size,
            None => offset_in_page(size) == 0,
        };
        if self.linear.get().is_none() || is_end {
            return;
        }
        let Some(locked) = self.lock_folio(page) else {
            // It was evicted, and windows may show it still.
            return self.unmap_pages(page.0..page.0 + 1);
        };
        if self.has_grain_at(&locked, size) {
            let offset = (size - locked.index().pos()) as usize;
            let end = match self.huge_unit(page) {
                Some(_) => locked.identity().bytes(),
                None => offset + PAGE_SIZE - offset_in_page(size),
            };
            direct_map::zero(self.addr(&locked, offset), end - offset);
        }
    }

    /// Makes `len` bytes at `pos` read as zeros and gives their space back; the size stays.
    ///
    /// Blocks for writeback of the file that is under way, and a bounded time for pins of the range. Reads the pages at
    /// the edges that are there in part. Frees memory.
    ///
    /// # Errors
    /// `EINVAL` for no bytes, `EFBIG`, `EBUSY` where pins are in the way, the backing store's error; `ECHILD`
    /// after a fork. The data is as it was, unless the store made the hole in part: then pages that are not dirty show
    /// that.
    #[doc(alias = "FALLOC_FL_PUNCH_HOLE")]
    pub fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = end_of(pos, len).ok_or(Errno::EFBIG)?;
        let mut tries = EDGE_TRIES;
        loop {
            self.bring_edges_in(pos, end)?;
            tries -= 1;
            let _bar = self.bar_pins(
                PageIndex::of(pos).0..pages_for(end),
                RevokeReason::PunchHole,
            )?;
            if self.with_views_refused(|| self.try_punch_hole(pos, end, tries == 0))? {
                return Ok(());
            }
        }
    }

    /// The pages that a hole zeroes in part: none, one or two.
    fn edges(&self, pos: u64, end: u64) -> impl Iterator<Item = PageIndex> + use<> {
        let (first, last) = (PageIndex::of(pos), PageIndex::of(end - 1));
        let before = (offset_in_page(pos) > 0).then_some(first);
        let after = (offset_in_page(end) > 0).then_some(last);
        // A memory file has no store.
        let stored = !self.bdi().is_memory();
        let after = after.filter(move |_| before != after);
        before.into_iter().chain(after).filter(move |_| stored)
    }

    /// Reads the pages at the edges of a hole that are not cached.
    ///
    /// Context: no lock held.
    fn bring_edges_in(&self, pos: u64, end: u64) -> Result<(), Errno> {
        let end = end.min(self.size());
        if pos >= end {
            return Ok(());
        }
        for page in self.edges(pos, end) {
            self.populate(page.pos(), 1)?;
            drop(self.read_rest(page..page.add(1))?);
        }
        Ok(())
    }

    /// The part of an edge that a hole zeroes and the locked folio that has it, if that is cached.
    fn edge(&self, page: PageIndex, pos: u64, end: u64) -> Option<(LockedFolio<'_>, Range<usize>)> {
        let locked = self.lock_folio(page)?;
        if !self.has_grain_at(&locked, page.pos()) {
            return None;
        }
        let within = pos.max(page.pos())..end.min(page.add(1).pos());
        let offset = |pos: u64| (pos - locked.index().pos()) as usize;
        let bytes = offset(within.start)..offset(within.end);
        Some((locked, bytes))
    }

    /// Whether it made the hole: not if the page of an edge left the cache meanwhile, unless that is all the `same`.
    fn try_punch_hole(&self, pos: u64, end: u64, same: bool) -> Refusable<bool> {
        let _exclusive = self.i_rwsem.write();
        let mut wb = self.wb_lock.lock();
        let _invalidate = self.invalidate_lock.write();
        let end = end.min(self.size().max(pos));
        if pos == end {
            return Ok(Ok(true));
        }
        let _refused = self.refuse_views(pos, end)?;
        let mut written = Vec::new();
        for page in self.edges(pos, end) {
            match self.edge(page, pos, end) {
                Some((locked, bytes)) => {
                    let at = self.addr(&locked, bytes.start);
                    if !direct_map::is_zero(at, bytes.len()) {
                        written.push(page);
                    }
                }
                None if same => {}
                None => return Ok(Ok(false)),
            }
        }
        // With the last page goes what would have told the store the size.
        let told = match end == self.size() {
            true => self.store_size(&mut wb).map(drop),
            false => Ok(()),
        };
        if let Err(error) = told.and_then(|()| self.ask_store(|ops| ops.punch_hole(pos, end - pos)))
        {
            // It may be there in part.
            let pages = PageIndex::of(pos).0..pages_for(end);
            self.remove_folios(pages.clone(), Operation::Forget);
            self.unmap_pages(pages);
            drop(wb);
            self.read_held_again();
            return Ok(Err(error));
        }
        if foliocache_sync::planted!(hole_left_in_the_cache) {
            return Ok(Ok(true));
        }
        let (first, last) = (pages_for(pos), end >> crate::types::PAGE_SHIFT);
        // Held pages stay in memory.
        if first < last && !self.is_held(first..last) {
            self.split_at(PageIndex(first));
            self.split_at(PageIndex(last));
            self.remove_folios(first..last, Operation::Remove);
        }
        self.zero_range(pos, end);
        self.unmap_pages(PageIndex::of(pos).0..pages_for(end));
        for page in written {
            if let Some((locked, bytes)) = self.edge(page, pos, end) {
                self.mark_dirty(&locked, bytes);
            }
        }
        self.after_removal(&mut wb);
        Ok(Ok(true))
    }

    /// Removes pages beyond `size` from the cache.
    ///
    /// Context: `wb_lock` and `invalidate_lock` held; views refused.
    fn cut_off(&self, size: u64) {
        let first = pages_for(size);
        self.cut_held(first..u64::MAX);
        self.split_at(PageIndex(first));
        self.remove_folios(first..u64::MAX, Operation::Remove);
        // The last page, and more only where a folio could not be split.
        if !foliocache_sync::planted!(tail_not_zeroed) {
            self.zero_range(size, u64::MAX);
        }
        self.unmap_pages(PageIndex::of(size).0..u64::MAX);
    }

    /// Zeroes the cached bytes from `pos` to `end`; the store has zeroed its own copy. A
    /// dirty folio stays dirty, a clean one clean: cache and store agree. Grains that are zero
    /// throughout need not be written.
    ///
    /// Context: `wb_lock` held, so the device is not reading the folio; views refused.
    fn zero_range(&self, pos: u64, end: u64) {
        let lock = |page| self.lock_folio(page);
        self.for_each_folio(PageIndex::of(pos).0..pages_for(end), lock, |locked| {
            let (start, bytes) = (locked.index().pos(), locked.identity().bytes());
            let within = |pos: u64| pos.saturating_sub(start).min(bytes as u64) as usize;
            let (from, to) = (within(pos), within(end));
            if from >= to {
                return;
            }
            let held = self.held_for_stores(locked.pages()).is_some();
            if !held {
                // No store without a fault: a dirty page may be clean in a moment.
                self.unmap_pages(locked.pages());
            }
            direct_map::zero(self.addr(&locked, from), to - from);
            if held {
                return;
            }
            let zero = grains::inside(locked.order(), from..to);
            if locked.order() > 0 && locked.dirty_grains() & zero != 0 {
                let (left, written) = (locked.dirty_grains() & !zero, locked.written());
                match left {
                    0 => self.clear_dirty(&locked),
                    _ => locked.set_dirty(left, &written),
                }
            }
        });
    }

    /// Drops the clean pages of a range from the cache; pages that are not durable stay.
    ///
    /// Does not block for I/O; pages in use by others stay. Returns the pages dropped.
    #[doc(alias = "invalidate_mapping_pages")]
    pub fn invalidate(&self, pos: u64, len: u64) -> u64 {
        if self.bdi().is_memory() || self.mm().check_fork().is_err() || len == 0 {
            return 0;
        }
        let pages = PageIndex::of(pos).0..pages_for(pos.saturating_add(len));
        owner::count_up(&self.holders);
        let dropped = match self.keeps_page(false) {
            true => 0,
            false => self.remove_folios(pages, Operation::Evict),
        };
        owner::count_down(&self.holders);
        dropped
    }

    /// Takes over a size that the backing store changed to by itself, with no page cached but those that are pinned.
    /// Whether it did: not while something is dirty, and not if the caller's observation no longer `holds`, since the file was
    /// changed here in the meantime. `holds` is called while the file cannot change.
    ///
    /// Blocks for writeback of the file that is under way.
    pub fn backing_changed(&self, size: u64, holds: impl Fn() -> bool) -> bool {
        if self.mm().check_fork().is_err() {
            return false;
        }
        let taken = self.with_views_refused(|| self.try_take_over(size, &holds).map(Ok));
        taken.unwrap_or_else(|error| {
            tracing::warn!(file = self.name(), %error, "a change of the store is not seen");
            false
        })
    }

    fn try_take_over(&self, size: u64, holds: impl Fn() -> bool) -> Result<bool, Range<PageIndex>> {
        let _exclusive = self.i_rwsem.write();
        let mut wb = self.wb_lock.lock();
        let _invalidate = self.invalidate_lock.write();
        if self.is_dirty() || !holds() {
            return Ok(false);
        }
        let old = self.size();
        let refuse = || self.refuse_views(size, u64::MAX);
        let _refused = (size < old).then(refuse).transpose()?;
        // A page in use is waited for: a page that stays would be read for ever.
        self.remove_folios(0..u64::MAX, Operation::Forget);
        self.unmap_pages(0..u64::MAX);
        // A write hit takes no `i_rwsem`. One that began while something was still to be written has dirtied an old page: it is written
        // first, beside the store's new data.
        if self.is_dirty() {
            return Ok(false);
        }
        self.set_size(size.min(old));
        if size < old {
            self.cut_off(size);
            self.after_removal(&mut wb);
        }
        self.set_size(size);
        wb.store_size = size;
        drop(wb);
        self.read_held_again();
        Ok(true)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::iocb::Iocb;
    use crate::iov::IovIter;
    use crate::records::{BackingDevInfo, BdiKind};
    use crate::records::{Mm, MmConfig};
    use crate::test_store::Sink;
    use foliocache_sync::Arc;
    use foliocache_sync::thread;

    /// It began while another page waited for its flush, so it did not ask whether the store changed.
    #[test]
    fn a_hit_beside_a_change_of_the_store_is_written_before_that_is_taken_over() {
        let mut config = MmConfig::new(64 << 20);
        config.dirty_expire = std::time::Duration::from_secs(3600);
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        let store = Sink {
            shared: true,
            ..Sink::default()
        };
        let file = AddressSpace::new(&bdi, Arc::new(store), 0);
        for pos in [0, 1 << 20] {
            let mut page = Iocb::at(pos);
            let written = file.write(&mut page, &mut IovIter::source(&[1; 4096]));
            written.unwrap();
        }
        file.sync().unwrap();
        let other = file.write(&mut Iocb::at(1 << 20), &mut IovIter::source(b"other"));
        other.unwrap();
        file.fdatawrite();
        let hit = file.begin_hit(0, 4).expect("a page that is cached");
        let size = file.size();
        thread::scope(|scope| {
            let flush = scope.spawn(|| file.flush_written());
            flush.join().unwrap().unwrap();
            assert!(!file.is_dirty());
            let change = scope.spawn(|| file.backing_changed(size, || true));
            while file.i_rwsem.try_write().is_some() {
                thread::yield_now();
            }
            // It waits for the page by now, or will.
            foliocache_sync::time::sleep(std::time::Duration::from_millis(20));
            assert_eq!(file.end_hit(hit, 0, 4, None, false), 4);
            assert!(!change.join().unwrap(), "something is to be written first");
        });
        assert!(file.is_dirty());
        file.sync().unwrap();
        assert!(file.backing_changed(size, || true));
        assert_eq!(file.stats().resident_pages, 0);
    }
}
