//! Writing: the source is touched once, the folio is locked, no fault is resolved under the lock.
//!
//! # Model
//!
//! ```text
//!   for each folio of the write:
//!     find or create it, locked ── its first or last grain partly written, not uptodate? read it in
//!     copy, stopping at a fault
//!       all copied     ─▶ dirty, size, unlock
//!       part copied    ─▶ that part counts; go on from there
//!       nothing copied ─▶ unlock, fault the source in; that fails: EFAULT or the count so far
//! ```
//!
//! The source may be a mapping of the very folio that is written, so a fault taken under its lock
//! would wait for itself. It is faulted in only after a copy made no progress, which touches it once (as
//! Linux does from 6.15 on, "filemap: Move prefaulting out of hot write path").
//!
//! A new folio is as large as the rest of the write, or recent appends, allow: so
//! folios grow with sequential writes and stay small under random ones.
//!
//! # Invariants
//!
//! 1. No fault is resolved and no memory is waited for under a folio lock.
//! 2. The size covers only bytes whose folio is uptodate.
//! 3. A grain of a folio becomes uptodate only if every byte of it is the file's; a folio of which
//!    none is by the end of its piece leaves the index.
//!
//! # Locking
//!
//! `i_rwsem` shared for writes within the size, exclusive for those beyond. Overlapping
//! writes may interleave by folio. A writer waits for its share of the dirty limit after it has let go of `i_rwsem`.
//! It waits earlier where it has dirtied more than a MiB, and at the limit itself. [Write hits](super::write_hit)
//! take the lock of their folio alone.

use foliocache_sys::Errno;
use std::ops::Range;

use super::BAD_MEMORY_RETRIES;
use crate::direct_map;
use crate::fill::REFUSALS;
use crate::folio::{LockedFolio, flag, grains};
use crate::iocb::Iocb;
use crate::iov::IovIter;
use crate::prepared::Prepared;
use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page, pages_for};

/// Most pages reserved ahead in a long write, and dirtied between two looks at the dirty limits.
const BATCH: u64 = 512;

/// Bytes of the buffer for a source that is a mapping.
const BUFFER: usize = 1 << 20;

/// Bytes up to which a write says little about how much will follow it.
const SMALL_WRITE: usize = 64 << 10;

/// Most pages that a write waits for at once.
const WAIT_BATCH: u64 = 64;

impl AddressSpace {
    /// Writes `iter` at `iocb.pos`, or at the end with `iocb.append`; returns the bytes, fewer than given
    /// only for bad memory of the caller's or an error after some progress.
    ///
    /// The data is in the cache then, dirty. Blocks for memory of the bound, for the dirty limits,
    /// and for I/O where a page is written in part that is not in the cache; with `iocb.nowait` only for
    /// faults of the caller's memory.
    ///
    /// # Errors
    /// Only if nothing was written: `EFAULT`; `EFBIG` past the largest size; `ENOSPC` and `EDQUOT` where the
    /// store has no room for it, or a memory file system is full; the backing store's error; the file system's stored error while
    /// too much of it has failed to be written; `ECHILD` after a fork. `EAGAIN` also after some progress,
    /// if the rest has to be waited for. `ENOSPC` and `EDQUOT` also after all of it, if others took the room meanwhile: it is
    /// dirty and retried. An append returns its bytes then, and a flush returns the error.
    #[doc(alias = "generic_file_write_iter")]
    #[inline]
    pub fn write(&self, iocb: &mut Iocb, iter: &mut IovIter<'_>) -> Result<usize, Errno> {
        let mut hit = 0;
        if !iocb.append && !iocb.nowait && iocb.is_cached() {
            let (wanted, from) = (iter.remaining(), iter.iovec());
            hit = match from.len() == wanted {
                true => self.overwrite_iovec(iocb.pos, from),
                false => self.overwrite_iovecs(iocb, iter),
            };
            iocb.advance(iter, hit);
            if hit == wanted {
                return Ok(wanted);
            }
        }
        self.write_on(iocb, iter, hit)
    }

    #[cold]
    fn write_on(
        &self,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
        done: usize,
    ) -> Result<usize, Errno> {
        let wanted = iter.remaining();
        if iocb.direct && !self.bdi().is_memory() {
            if !iocb.append {
                let result = self.write_direct(iocb, iter);
                return iocb.end(wanted - iter.remaining(), result);
            }
            iocb.uncached = true;
        }
        if iter.is_mapped() {
            return match iocb.nowait {
                true => Err(Errno::EAGAIN),
                false => self.write_mapped(iocb, iter, done),
            };
        }
        self.look_before_write(iocb.nowait)?;
        let scarce = self.bdi().is_scarce();
        let (reserved, unasked) = match self.space_for_write(iocb, wanted) {
            Err(error) => return iocb.end(done, Err(error)),
            Ok(space) => space,
        };
        let asked = scarce && unasked.is_none();
        let mut dirtied = 0;
        let mut result = self.write_locked(iocb, iter, &mut dirtied);
        drop((reserved, unasked));
        let room = self.check_space_after(asked || iocb.nowait);
        // A caller repeats an append that returns an error.
        if !iocb.append {
            room?;
        }
        if result == Err(Errno::EFAULT) {
            // In a small cache the page that is written may have pushed out the one that it is written from.
            let written = done + wanted - iter.remaining();
            if iocb.nowait && (written == 0 || !iocb.append) {
                return Err(Errno::EAGAIN);
            }
            // An append that has begun is not left.
            iocb.nowait = false;
            let _ = (self.bdi()).balance_dirty_pages(self, dirtied, iocb.uncached);
            return self.write_mapped(iocb, iter, written);
        }
        if !iocb.nowait {
            // Only now, so that other writers of the file do not wait for this one's share.
            let waited = (self.bdi()).balance_dirty_pages(self, dirtied, iocb.uncached);
            result = result.and(waited);
        }
        iocb.end(done + wanted - iter.remaining(), result)
    }

    /// As [`AddressSpace::write`] from memory whose faults may need what the write holds: through a buffer.
    fn write_mapped(
        &self,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
        mut done: usize,
    ) -> Result<usize, Errno> {
        let mut buffer = vec![0; iter.remaining().min(BUFFER)];
        while iter.remaining() > 0 {
            let filled = iter.copy_buffer(&mut buffer);
            if filled == 0 {
                return iocb.end(done, Err(Errno::EFAULT));
            }
            let mut piece = IovIter::source(&buffer[..filled]);
            match self.write_on(iocb, &mut piece, 0) {
                Ok(written) if written == filled => done += written,
                Ok(written) => return Ok(done + written),
                Err(error) => return iocb.end(done, Err(error)),
            }
        }
        Ok(done)
    }

    fn write_locked(
        &self,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
        dirtied: &mut u64,
    ) -> Result<(), Errno> {
        let len = iter.remaining();
        if iocb.append {
            let _exclusive = self.exclude_writers(iocb.nowait)?;
            iocb.pos = self.size();
            self.check_write(iocb.pos, len)?;
            let prepared = match iocb.nowait {
                true => self.prepare_append(iocb, len)?,
                false => None,
            };
            return self.perform_write(iocb, iter, prepared, dirtied);
        }
        self.check_write(iocb.pos, len)?;
        if iocb.nowait {
            self.bdi().check_dirty_pages(self, iocb.uncached)?;
            if !iocb.uncached {
                let hit = self.overwrite_iovecs(iocb, iter);
                iocb.advance(iter, hit);
                if hit == len {
                    return Ok(());
                }
            }
        }
        let shared = match iocb.nowait {
            true => self.try_share_i_rwsem().ok_or(Errno::EAGAIN)?,
            false => self.share_i_rwsem(),
        };
        if iocb.pos + len as u64 <= self.size() {
            return self.perform_write(iocb, iter, None, dirtied);
        }
        drop(shared);
        let _exclusive = self.exclude_writers(iocb.nowait)?;
        self.perform_write(iocb, iter, None, dirtied)
    }

    /// Writes the rest of `iter`, at first with the memory in `prepared`. Adds to `dirtied` the pages for which the caller
    /// has to wait after it has let go of its lock.
    ///
    /// Context: `i_rwsem` held, exclusive if the write may pass the size.
    #[doc(alias = "generic_perform_write")]
    fn perform_write<'a>(
        &'a self,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
        mut prepared: Option<Prepared<'a>>,
        dirtied: &mut u64,
    ) -> Result<(), Errno> {
        let mut handed = iocb.pos;
        if iocb.pos + iter.remaining() as u64 > self.size() {
            self.zero_beyond_end();
        }
        let small = iter.remaining() <= SMALL_WRITE;
        // In a small cache many writers of large batches would pass the dirty limit by far.
        let (mut unseen, batch) = (0, self.write_batch().min(self.bdi().dirty_batch()));
        // The next piece is at most so long; shorter after a short copy.
        let mut limit = usize::MAX;
        let (mut faulted, mut retries) = (false, 0);
        while iter.remaining() > 0 {
            let piece = iter.remaining().min(limit);
            if foliocache_sync::planted!(source_faulted_in_first) {
                iter.fault_in(piece);
            }
            let locked = self.folio_for_write(iocb, (piece, small), &mut prepared)?;
            let room = (locked.end().pos() - iocb.pos) as usize;
            let len = piece.min(room);
            let progress = self.write_piece(&locked, iocb, len, iter);
            let Some(progress) = progress.transpose() else {
                self.drop_bad_folio(locked)?;
                retries += 1;
                if retries > BAD_MEMORY_RETRIES {
                    return Err(Errno::EIO);
                }
                continue;
            };
            // Invariant 3: a folio that the copy left unfinished is not the file's.
            drop(self.keep_content(locked));
            match progress? {
                Progress::Wrote(n, newly_dirty) => {
                    iocb.advance(iter, n);
                    unseen += newly_dirty;
                    (limit, faulted) = (usize::MAX, false);
                }
                Progress::TryShorter(n) => limit = n,
                Progress::Fault => {
                    // Resolving a fault may take long; others may need the memory meanwhile.
                    prepared = None;
                    let _locked = foliocache_sync::planted!(fault_under_the_folio_lock)
                        .then(|| self.lock_folio(PageIndex::of(iocb.pos)));
                    // Faulted in just now and no progress again: the memory is bad.
                    if faulted || !iter.fault_in(len.min(PAGE_SIZE)) {
                        return Err(Errno::EFAULT);
                    }
                    faulted = true;
                }
            }
            if unseen >= batch {
                *dirtied += std::mem::take(&mut unseen);
                self.hand_over(iocb, &mut handed);
                if iocb.nowait {
                    // An append is not stopped on its way.
                    if !iocb.append {
                        self.bdi().check_dirty_pages(self, iocb.uncached)?;
                    }
                } else if self.bdi().must_wait(self, *dirtied, iocb.uncached) {
                    prepared = None;
                    let dirtied = std::mem::take(dirtied);
                    self.bdi()
                        .balance_dirty_pages(self, dirtied, iocb.uncached)?;
                }
            }
        }
        *dirtied += unseen;
        self.hand_over(iocb, &mut handed);
        Ok(())
    }

    /// The folio that holds byte `pos`, locked, without a view of the bytes to write; a new one is not uptodate.
    ///
    /// Context: blocks for memory, holding nothing but `i_rwsem`.
    #[doc(alias = "write_begin")]
    fn folio_for_write<'a>(
        &'a self,
        iocb: &Iocb,
        (remaining, small): (usize, bool),
        prepared: &mut Option<Prepared<'a>>,
    ) -> Result<LockedFolio<'a>, Errno> {
        let pos = iocb.pos;
        let page = PageIndex::of(pos);
        let mut refusals = 0;
        loop {
            let found = match iocb.nowait {
                true => self.lock_folio_nowait(page)?,
                false => self.lock_folio(page),
            };
            if let Some(locked) = found {
                // Beyond the end of the file no view has bytes.
                if pos >= self.size() {
                    return Ok(locked);
                }
                match self.without_views(locked, page, iocb.nowait, prepared)? {
                    Some(locked) => return Ok(self.fit_to_store(locked, pos, remaining)),
                    None => continue,
                }
            }
            let order = self.order_for_write(pos, remaining, small);
            if let Some(ready) = prepared
                && let Some(locked) = self.add_folio(page, order, ready)
            {
                if iocb.uncached && !self.bdi().is_memory() {
                    self.mark_uncached(&locked);
                }
                return Ok(locked);
            }
            if let Some(error) = prepared.as_ref().and_then(|prepared| prepared.refused) {
                refusals += 1;
                if refusals > REFUSALS {
                    return Err(error);
                }
            }
            // Gives back the rest: no memory is held over a wait for memory.
            *prepared = None;
            let end = PageIndex(pages_for(pos + remaining as u64));
            let end = end.min(page.add(self.write_batch()));
            let end = end.max(page.add(1 << order));
            *prepared = self.try_prepare(page..end);
            if prepared.is_some() {
                continue;
            }
            if iocb.nowait {
                return Err(Errno::EAGAIN);
            }
            // The memory of a large folio is not waited for.
            let (one, end) = (page.add(1), end.min(page.add(WAIT_BATCH)));
            *prepared = Some(match self.prepare(page..end) {
                // Not room for all: perhaps for one.
                Err(Errno::ENOSPC) if end > one => self.prepare(page..one)?,
                result => result?,
            });
        }
    }

    /// A locked folio, or the part of it that has byte `pos` if its grains are too large for the bytes that are stored
    /// from there on.
    fn fit_to_store<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        pos: u64,
        remaining: usize,
    ) -> LockedFolio<'a> {
        let end = locked.end().pos().min(pos + remaining as u64);
        let bytes = locked.identity().offset(pos)..locked.identity().offset(end);
        let inside = end <= self.size() && self.has_grain_at(&locked, pos);
        match inside && grains::spill(locked.order(), &bytes) {
            true => self.split_to_pages(locked, pos),
            false => locked,
        }
    }

    /// Largest order of a new folio for a write of `remaining` bytes at `pos`: of pages that it
    /// writes whole, or, at the end of a file that grows by `small` writes, of half as many pages as
    /// were appended in a row.
    fn order_for_write(&self, pos: u64, remaining: usize, small: bool) -> u32 {
        if offset_in_page(pos) != 0 {
            return 0;
        }
        let whole = (remaining / PAGE_SIZE) as u64;
        let appended = match small {
            true => self.appended.pages_before(pos, self.size()) / 2,
            // Where it ends is known.
            false => 0,
        };
        let pages = whole.max(appended).max(1);
        pages.ilog2().min(self.max_order())
    }

    pub(super) fn write_batch(&self) -> u64 {
        BATCH.min(self.mm().frames.capacity() / 64).max(1)
    }

    /// Copies one piece into a locked folio, which it does not go beyond. `None`: the folio's own memory
    /// failed, and nothing counts.
    fn write_piece(
        &self,
        locked: &LockedFolio<'_>,
        iocb: &Iocb,
        len: usize,
        iter: &IovIter<'_>,
    ) -> Result<Option<Progress>, Errno> {
        let pos = iocb.pos;
        let seen = locked.state.load();
        let order = locked.order();
        let offset = (pos - locked.index().pos()) as usize;
        // Grains that will be uptodate only once the copy is through them.
        let fresh = self.prepare_grains(locked, offset..offset + len, iocb.nowait)?;
        let copied = match iter.copy_to_frame(self.addr(locked, offset), len) {
            Ok(copied) => copied,
            Err(stopped) if !stopped.callers_side => return Ok(None),
            Err(stopped) if stopped.copied == 0 => return Ok(Some(Progress::Fault)),
            Err(stopped) => {
                let last = grains::of(order, offset + stopped.copied - 1);
                let reached = offset + stopped.copied;
                // A fresh grain that is half written does not count: it cannot be read yet.
                let half = fresh & last != 0 && !reached.is_multiple_of(grains::size(order));
                if half && !foliocache_sync::planted!(half_written_grain_uptodate) {
                    return Ok(Some(Progress::TryShorter(stopped.copied)));
                }
                stopped.copied
            }
        };
        let written = grains::touched(order, offset..offset + copied);
        self.set_uptodate(locked, fresh & written);
        let dirtied = self.mark_dirty(locked, offset..offset + copied);
        if pos + copied as u64 > self.size() {
            self.appended.note(self.size(), pos, pos + copied as u64);
            self.set_size(pos + copied as u64);
        }
        match iocb.uncached {
            false => self.keep_used(locked, seen),
            true if seen.has(flag::DROPBEHIND) => {}
            true => self.note_present(pages_for(pos + copied as u64) - PageIndex::of(pos).0),
        }
        // A folio that is new, or dirty still from the write before, was not used *again*.
        if fresh == 0 && !seen.has(flag::DIRTY) && !iocb.uncached {
            locked.mark_accessed(seen);
        }
        Ok(Some(Progress::Wrote(copied, dirtied)))
    }

    /// Sees to it that grains which the piece writes in part hold the file's bytes around it: reads
    /// them, or zeroes what the file does not have. Returns the grains that become uptodate by the
    /// piece alone.
    fn prepare_grains(
        &self,
        locked: &LockedFolio<'_>,
        piece: Range<usize>,
        nowait: bool,
    ) -> Result<u64, Errno> {
        let order = locked.order();
        let fresh = grains::touched(order, piece.clone()) & !locked.uptodate_grains();
        if fresh == 0 {
            return Ok(0);
        }
        let start = locked.index().pos();
        let valid = self.size().saturating_sub(start).min(usize::MAX as u64) as usize;
        let mut to_read = 0;
        for edge in [piece.start, piece.end - 1] {
            let grain = grains::of(order, edge);
            let first = edge - edge % grains::size(order);
            let end = first + grains::size(order);
            if fresh & grain == 0 {
                continue;
            }
            // Bytes of the grain that are the file's and that this piece does not write?
            if first < valid && (first < piece.start || piece.end < end.min(valid)) {
                to_read |= grain;
                continue;
            }
            let zero = |from: usize, to: usize| {
                if from < to {
                    direct_map::zero(self.addr(locked, from), to - from);
                }
            };
            zero(first, piece.start.min(end));
            zero(piece.end.max(first), end);
        }
        if to_read != 0 && nowait {
            return Err(Errno::EAGAIN);
        }
        self.fill_grains(locked, to_read)?;
        Ok(fresh & !to_read)
    }
}

/// How the copy of one piece ended.
enum Progress {
    /// So many bytes are in the folio and count; so many pages of it are dirty that were not.
    Wrote(usize, u64),
    /// The source ends after so many bytes, and the folio could not take part of it: try with those.
    TryShorter(usize),
    /// The source faulted at once.
    Fault,
}
