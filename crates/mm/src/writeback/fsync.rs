//! Durability of a file or of a file system, and giving data up, when a caller asks.

use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use foliocache_xarray::Mark;
use std::ops::Range;

use crate::counters::Count;
use crate::dirty::{Groups, WritebackState};
use crate::errseq::ErrSeqCursor;
use crate::folio::{Folio, LockedFolio, Operation, flag, grains};
use crate::records::{AddressSpace, BackingDevInfo};
use crate::slab::SlabArc;
use crate::types::{PageIndex, pages_for};
use crate::writeback::{Pass, SIZE_NOT_KNOWN};

/// The bytes of any file.
const ALL: Range<u64> = 0..u64::MAX;

impl AddressSpace {
    /// Makes durable whatever was written to the file before the call.
    ///
    /// Returns success only if all of it is on the medium now and no write of the file failed
    /// since the handle of `cursor` was last told. A failure is told once to every handle that was
    /// open; data that could not be written stays dirty and is retried.
    ///
    /// Blocks for the I/O. Uses no memory of the bound.
    ///
    /// # Errors
    /// The error of this attempt, else one of an earlier attempt; `ECHILD` after a fork.
    #[doc(alias = "fdatasync")]
    pub fn fsync(&self, cursor: &ErrSeqCursor) -> Result<(), Errno> {
        self.fsync_range(ALL, cursor)
    }

    /// As [`AddressSpace::fsync`] for what was written to a range of bytes. Writes the dirty parts of all folios that
    /// it touches, which are 2 MiB at most; the flush is the file's.
    ///
    /// # Errors
    /// As [`AddressSpace::fsync`]: a failure elsewhere in the file, of which the handle has not been told, is told too.
    #[doc(alias = "vfs_fsync_range")]
    pub fn fsync_range(&self, bytes: Range<u64>, cursor: &ErrSeqCursor) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if self.bdi().is_memory() {
            return Ok(());
        }
        let attempt = match bytes == ALL {
            true => self.make_all_durable(),
            false => self.make_durable(&bytes),
        };
        let told = self.wb_err.check_and_advance(cursor);
        attempt.and(told)
    }

    /// Writes everything back and flushes, without telling anybody's cursor.
    ///
    /// # Errors
    /// As [`AddressSpace::fsync`].
    pub fn sync(&self) -> Result<(), Errno> {
        self.mm().check_fork()?;
        self.make_all_durable()
    }

    /// Writes everything that is dirty now, without a flush: it is with the store afterwards, and not
    /// durable. What fails stays dirty, and the next fsync says so.
    ///
    /// Blocks for I/O. Uses no memory of the bound. Does nothing after a fork.
    #[doc(alias = "filemap_fdatawrite")]
    pub fn fdatawrite(&self) {
        if self.mm().check_fork().is_err() {
            return;
        }
        let mut wb = self.wb_lock.lock();
        let last = PageIndex(pages_for(self.size()).saturating_sub(1));
        let _ = self.write_dirty(PageIndex(0), last, u64::MAX, Pass::Sync, &mut wb);
    }

    /// A cursor for a new handle: which writeback errors it has still to be told of.
    pub fn sample_wb_err(&self) -> ErrSeqCursor {
        self.wb_err.sample(self.counts.get(Count::Failed) > 0)
    }

    /// Tells the handle of `cursor` of a failed writeback that it has not been told of, once, as [`AddressSpace::fsync`] does.
    ///
    /// # Errors
    /// The newest error of writing the file back; `ECHILD` after a fork.
    #[doc(alias = "file_check_and_advance_wb_err")]
    pub fn check_wb_err(&self, cursor: &ErrSeqCursor) -> Result<(), Errno> {
        self.mm().check_fork()?;
        self.wb_err.check_and_advance(cursor)
    }

    /// Flushes what is written, without writing what is dirty.
    ///
    /// Blocks for I/O. Uses no memory of the bound.
    ///
    /// # Errors
    /// Those of the store: what was written is dirty again, and every handle is told. `ECHILD` after a fork.
    pub fn flush_written(&self) -> Result<(), Errno> {
        self.mm().check_fork()?;
        let ticket = self.wb_lock.lock().flushes.ticket();
        if self.counts.get(Count::Unstable) == 0 && self.direct.is_durable() {
            return Ok(());
        }
        let flushed = self.flush_through(ticket);
        self.bdi().note_progress(self);
        flushed
    }

    /// As [`AddressSpace::make_durable`] for the whole file, together with others who want that. Where much is to be written a
    /// caller does not wait for a group: it writes beside the flush.
    fn make_all_durable(&self) -> Result<(), Errno> {
        let groups = self.groups.get_or_init(Groups::default);
        let work = || {
            // Relaxed: a statistic, which others may add to meanwhile.
            let written = || self.counters.written.load(Ordering::Relaxed);
            let before = written();
            let done = self.make_durable(&ALL);
            groups.note_written(written() - before);
            done
        };
        let dirty = self.counts.get(Count::Dirty);
        match groups.may_be_much(dirty) && groups.is_led() {
            true => work(),
            false => groups.run(work),
        }
    }

    /// Writes, flushes, and sees to the size if the writes did not bring it about.
    fn make_durable(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        let end = self.size().min(bytes.end);
        self.dirty_unnoticed(&(PageIndex::of(bytes.start).0..pages_for(end)));
        self.write_and_flush(bytes)?;
        let stored = self.lock_awaited().store_size;
        if stored != SIZE_NOT_KNOWN && stored >= end || foliocache_sync::planted!(size_not_stored) {
            return Ok(());
        }
        {
            let _exclusive = self.i_rwsem.write();
            let mut wb = self.wb_lock.lock();
            let _invalidate = self.invalidate_lock.write();
            self.store_size(&mut wb)?;
        }
        self.write_and_flush(bytes)
    }

    /// Gives the backing file the size of this one, where it is not known to have it.
    ///
    /// Context: `i_rwsem`, `wb_lock` and `invalidate_lock` held exclusive.
    pub(crate) fn store_size(&self, wb: &mut WritebackState) -> Result<(), Errno> {
        let size = self.size();
        if wb.store_size != size {
            self.ask_store(|ops| ops.truncate(size))?;
            wb.store_size = size;
        }
        Ok(())
    }

    /// The byte ranges whose last write failed.
    pub fn failed_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        if self.mm().check_fork().is_err() {
            return ranges;
        }
        self.for_each_failed(|first, folio| push_dirty(&mut ranges, first, folio, self.size()));
        ranges
    }

    /// Gives up the pages whose last write failed: they leave the cache, and reads find what the
    /// backing store has. Those that a mapping or a pin holds in memory are read again; but what a device may write stays,
    /// to be written. Returns their byte ranges.
    ///
    /// Blocks for writeback of the file that is under way.
    pub fn discard_failed(&self) -> Vec<Range<u64>> {
        if self.mm().check_fork().is_err() {
            return Vec::new();
        }
        let mut wb = self.wb_lock.lock();
        let _invalidate = self.invalidate_lock.write();
        let mut failed = Vec::new();
        self.for_each_failed(|first, _| failed.push(first));
        let mut ranges = Vec::new();
        for page in failed {
            if let Some(locked) = self.lock_folio(page)
                && locked.state.load().has(flag::ERROR)
            {
                push_dirty(&mut ranges, page, &locked, self.size());
                match locked.hold_counts().device_writes() {
                    0 => self.give_up(locked),
                    // Data that the device writes next has not failed.
                    _ => {
                        locked.state.clear(flag::ERROR);
                        self.uncount(Count::Failed, locked.nr_pages());
                    }
                }
            }
        }
        self.after_removal(&mut wb);
        drop(wb);
        self.read_held_again();
        ranges
    }

    /// Bytes of the file that are not durable, rounded up to pages but not beyond the end of the file.
    pub fn bytes_not_durable(&self) -> u64 {
        let bytes = self.counts.not_durable() * crate::types::PAGE_SIZE as u64;
        bytes.min(self.size())
    }

    /// Gives up everything of the file that is not durable, also what a device writes to a folio before its pins for
    /// that end; returns the bytes.
    pub fn discard_dirty(&self) -> u64 {
        if self.mm().check_fork().is_err() {
            return 0;
        }
        let mut wb = self.wb_lock.lock();
        let _invalidate = self.invalidate_lock.write();
        let bytes = self.counts.not_durable() * crate::types::PAGE_SIZE as u64;
        self.give_up_all(&mut wb, |page| self.lock_folio(page));
        drop(wb);
        self.read_held_again();
        bytes
    }

    /// As [`AddressSpace::discard_dirty`], of a file that nobody has or will have; whether nothing is left that is not durable.
    /// Does not wait: what is being written or read stays, and is written.
    pub fn try_discard_dirty(&self) -> bool {
        if self.mm().check_fork().is_err() {
            return false;
        }
        if let Some(mut wb) = self.wb_lock.try_lock()
            && let Some(_invalidate) = self.invalidate_lock.try_write()
        {
            self.give_up_all(&mut wb, |page| self.try_lock_folio(page));
        }
        !self.is_dirty()
    }

    /// Context: as [`AddressSpace::give_up`].
    fn give_up_all<'a>(
        &'a self,
        wb: &mut WritebackState,
        lock: impl Fn(PageIndex) -> Option<LockedFolio<'a>>,
    ) {
        if let Some(begun) = self.direct.begin() {
            self.direct.end(begun);
        }
        self.for_each_folio(0..u64::MAX, lock, |locked| self.give_up(locked));
        self.after_removal(wb);
    }

    /// Context: `wb_lock` and `invalidate_lock` held; what is held in memory or pinned is read again afterwards.
    fn give_up(&self, locked: LockedFolio<'_>) {
        if !locked.state.load().has(flag::HELD) && locked.may(Operation::Remove) {
            return self.remove_folio(locked);
        }
        self.clear_dirty(&locked);
        self.clear_unstable(&locked);
    }

    /// The newest error of writing this file back, told or not.
    pub fn writeback_error(&self) -> Option<Errno> {
        self.wb_err.newest()
    }

    /// Tells of each folio whose last write failed, and of its first page.
    fn for_each_failed(&self, mut tell: impl FnMut(PageIndex, &Folio)) {
        let mut at = 0;
        loop {
            let found = self.index.lock().find(at, u64::MAX, Some(Mark::Dirty));
            let Some(found) = found else { return };
            let folio = self.mm().folios.of_entry(found.entry);
            if folio.state.load().has(flag::ERROR) {
                tell(PageIndex(found.index), folio);
            }
            at = found.last() + 1;
        }
    }
}

/// Adds what of a folio is dirty, all that it has while that is being written.
fn push_dirty(ranges: &mut Vec<Range<u64>>, first: PageIndex, folio: &Folio, size: u64) {
    let order = folio.state.load().order();
    let dirty = match folio.dirty_grains() {
        0 => folio.uptodate_grains(),
        dirty => dirty,
    };
    for bytes in grains::ranges(dirty, order) {
        let start = first.pos() + bytes.start as u64;
        let end = (first.pos() + bytes.end as u64).min(size);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end.max(start),
            _ if start < end => ranges.push(start..end),
            _ => {}
        }
    }
}

impl BackingDevInfo {
    /// Makes every file of the file system durable; returns those that failed.
    ///
    /// Blocks for the I/O.
    #[doc(alias = "sync_filesystem")]
    pub fn sync(&self) -> Vec<(SlabArc<AddressSpace>, Errno)> {
        // All writes first: then one flush does for many files. What fails here fails again, and is told, below.
        let files = self.dirty_files();
        files.iter().for_each(|file| file.fdatawrite());
        if let Some(file) = files.first() {
            file.ask_store(|ops| ops.flush_together());
        }
        self.dirty_files()
            .into_iter()
            .filter_map(|file| file.make_durable(&ALL).err().map(|errno| (file, errno)))
            .collect()
    }

    /// Gives up all data of the file system that is not durable; returns each file's name and the
    /// bytes given up. For a forced unmount and for unlinked files.
    pub fn discard_all(&self) -> Vec<(String, u64)> {
        self.dirty_files()
            .iter()
            .map(|file| (file.ops.describe(), file.discard_dirty()))
            .collect()
    }
}

impl AddressSpace {
    /// The rest of the work once folios were removed whatever their state.
    pub(crate) fn after_removal(&self, wb: &mut WritebackState) {
        if self.counts.get(Count::Failed) == 0 {
            // Dirty data need not wait for the retry of data that is gone.
            wb.note(Ok(()));
            self.bdi().set_error(None);
        }
        self.bdi().note_progress(self);
    }
}
