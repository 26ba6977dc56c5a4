//! Writing: the source is touched once, the folio is locked, no fault is resolved under the lock.
//!
//! # Model
//!
//! ```text
//!   for each page of the write:
//!     find or create the folio, locked ── not uptodate and partly written? read it in
//!     copy, stopping at a fault
//!       all copied     ─▶ dirty, size, unlock
//!       part copied    ─▶ that part counts; go on from there
//!       nothing copied ─▶ unlock, fault the source in; that fails: EFAULT or the count so far
//! ```
//!
//! The source may be a mapping of the very folio that is written, so a fault taken under its lock
//! would wait for itself; and a source that is not there yet is ordinary. Faulting it in only after
//! a copy made no progress touches it once where the older order touched it twice (Linux 6.15,
//! "filemap: Move prefaulting out of hot write path").
//!
//! # Invariants
//!
//! 1. No fault is resolved and no memory is waited for under a folio lock.
//! 2. The size covers only bytes whose folio is uptodate.
//! 3. A folio becomes uptodate only if every byte of it is the file's; one that does not by the
//!    end of its piece leaves the index. So a folio that is found unlocked is uptodate.
//!
//! # Locking
//!
//! `i_rwsem` shared for what stays within the size, exclusive for what goes beyond. Overlapping
//! writes may interleave by folio.
//!
//! A *write hit*, of one page that is cached and within the size, takes the folio lock alone.
//! Truncate sets the size before it takes the folio away, which needs that lock: either the write
//! sees the new size and goes the long way, or it comes before the truncate. A hole is punched
//! before its folios are taken away: the write comes before or after the whole of it.

use foliocache_sync::Arc;
use foliocache_sys::Errno;

use crate::address_space::{AddFolioError, AddressSpace};
use crate::direct_map;
use crate::error::{IoError, IoOperation};
use crate::folio::{LockedFolio, flag};
use crate::iov::IovIter;
use crate::mm::Prepared;
use crate::types::{MAX_FILE_SIZE, PAGE_SIZE, PageIndex, offset_in_page};

/// Most pages reserved ahead in a long write, and dirtied between two looks at the dirty limits.
const BATCH: u64 = 64;

/// When the source of a write is faulted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum FaultIn {
    /// After a copy that made no progress.
    OnFault,
    /// Before every copy, as it was done before; for the benchmark that shows the difference.
    Before,
}

impl AddressSpace {
    /// Writes `iter` at byte `pos`; returns the bytes, fewer than given only for bad memory of the
    /// caller's or an error after some progress.
    ///
    /// The data is in the cache then, dirty. Blocks for memory of the bound, for the dirty limits,
    /// and for I/O where a page is written in part that is not in the cache.
    ///
    /// # Errors
    /// Only if nothing was written: `EFAULT`; `EFBIG` past the largest size; `ENOSPC` where a
    /// memory file system is full; the backing store's error; the file system's stored error while
    /// too much of it has failed to be written; `ECHILD` after a fork.
    #[doc(alias = "generic_file_write_iter")]
    pub fn write(self: &Arc<Self>, pos: u64, iter: &mut IovIter<'_>) -> Result<usize, IoError> {
        self.write_with(pos, iter, FaultIn::OnFault)
    }

    /// As [`AddressSpace::write`], with the order of faulting in chosen.
    #[doc(hidden)]
    pub fn write_with(
        self: &Arc<Self>,
        pos: u64,
        iter: &mut IovIter<'_>,
        fault_in: FaultIn,
    ) -> Result<usize, IoError> {
        let wanted = iter.remaining();
        if fault_in == FaultIn::Before && !iter.fault_in(PAGE_SIZE) {
            return Err(self.error(IoOperation::Write, pos, wanted as u64, Errno::EFAULT));
        }
        if self.write_hit(pos, iter) {
            return Ok(wanted);
        }
        // Whatever the hit got done is in the file; the rest goes the long way.
        let result = self.write_locked(pos + (wanted - iter.remaining()) as u64, iter, fault_in);
        self.written(pos, wanted, iter, result)
    }

    /// Overwrites part of one cached page under its folio lock alone; whether all was written.
    #[inline]
    pub(super) fn write_hit(self: &Arc<Self>, pos: u64, iter: &mut IovIter<'_>) -> bool {
        let (offset, len) = (offset_in_page(pos), iter.remaining());
        if len == 0 || len > PAGE_SIZE - offset || self.check_write(pos, len).is_err() {
            return false;
        }
        let Some(locked) = self.try_lock_folio(PageIndex::of(pos)) else {
            return false;
        };
        let seen = locked.state.load();
        if !seen.has(flag::UPTODATE) || pos + len as u64 > self.size() {
            return false;
        }
        let frame = self.mm().frames.addr(locked.frame());
        let copied = match iter.copy_to_frame(frame.wrapping_add(offset), len) {
            Ok(()) => len,
            Err(stopped) => stopped.copied,
        };
        if copied > 0 {
            self.mark_dirty(&locked);
            if !seen.has(flag::DIRTY) {
                locked.mark_accessed(seen);
            }
        }
        drop(locked);
        if copied > 0 && !seen.has(flag::DIRTY) {
            // The bytes are in the file; of a stored error the next write is told.
            let _ = self.throttle_writer(1);
        }
        copied == len
    }

    /// Writes `iter` at the end of the file, wherever that is once the writer has it to itself.
    /// Returns where the bytes went and how many.
    ///
    /// # Errors
    /// As [`AddressSpace::write`].
    #[doc(alias = "O_APPEND")]
    pub fn append(self: &Arc<Self>, iter: &mut IovIter<'_>) -> Result<(u64, usize), IoError> {
        let wanted = iter.remaining();
        let exclusive = self.i_rwsem.write();
        let pos = self.size();
        let result = self
            .check_write(pos, wanted)
            .and_then(|()| self.perform_write(pos, iter, FaultIn::OnFault));
        drop(exclusive);
        Ok((pos, self.written(pos, wanted, iter, result)?))
    }

    fn written(
        &self,
        pos: u64,
        wanted: usize,
        iter: &IovIter<'_>,
        result: Result<(), Errno>,
    ) -> Result<usize, IoError> {
        match (wanted - iter.remaining(), result) {
            (0, Err(errno)) => Err(self.error(IoOperation::Write, pos, wanted as u64, errno)),
            (done, _) => Ok(done),
        }
    }

    pub(super) fn check_write(&self, pos: u64, len: usize) -> Result<(), Errno> {
        self.mm().check_fork()?;
        match pos.checked_add(len as u64) {
            Some(end) if end <= MAX_FILE_SIZE => self.bdi().check_failed_cap(),
            _ => Err(Errno::EFBIG),
        }
    }

    fn write_locked(
        self: &Arc<Self>,
        pos: u64,
        iter: &mut IovIter<'_>,
        fault_in: FaultIn,
    ) -> Result<(), Errno> {
        self.check_write(pos, iter.remaining())?;
        let end = pos + iter.remaining() as u64;
        let shared = self.i_rwsem.read();
        if end <= self.size() {
            return self.perform_write(pos, iter, fault_in);
        }
        drop(shared);
        let _exclusive = self.i_rwsem.write();
        self.perform_write(pos, iter, fault_in)
    }

    /// Context: `i_rwsem` held, exclusive if the write may pass the size.
    #[doc(alias = "generic_perform_write")]
    fn perform_write(
        self: &Arc<Self>,
        mut pos: u64,
        iter: &mut IovIter<'_>,
        fault_in: FaultIn,
    ) -> Result<(), Errno> {
        let mut prepared = None;
        // In a small cache many writers of large batches would pass the dirty limit by far.
        let (mut dirtied, batch) = (0, self.write_batch());
        // The next piece is at most so long; shorter than a page after a short copy.
        let mut limit = PAGE_SIZE;
        let mut faulted = false;
        while iter.remaining() > 0 {
            let room = PAGE_SIZE - offset_in_page(pos);
            let len = room.min(iter.remaining()).min(limit);
            if fault_in == FaultIn::Before && !iter.fault_in(len) {
                return Err(Errno::EFAULT);
            }
            let locked = self.folio_for_write(pos, iter.remaining(), &mut prepared)?;
            let seen = locked.state.load();
            let progress = self.write_piece(&locked, pos, len, iter);
            if locked.state.load().has(flag::UPTODATE) {
                drop(locked);
            } else {
                // Invariant 3: what the copy left unfinished is not the file's.
                self.remove_folio(locked);
            }
            match progress? {
                Progress::Wrote(n) => {
                    dirtied += u64::from(!seen.has(flag::DIRTY));
                    pos += n as u64;
                    (limit, faulted) = (PAGE_SIZE, false);
                }
                Progress::TryShorter(n) => limit = n,
                Progress::Fault => {
                    // Resolving a fault may take long; others may need the memory meanwhile.
                    prepared = None;
                    // Faulted in just now and no progress again: the memory is bad.
                    if faulted || !iter.fault_in(len) {
                        return Err(Errno::EFAULT);
                    }
                    faulted = true;
                }
            }
            if dirtied >= batch {
                prepared = None;
                self.throttle_writer(std::mem::take(&mut dirtied))?;
            }
        }
        drop(prepared);
        self.throttle_writer(dirtied)
    }

    fn throttle_writer(&self, dirtied: u64) -> Result<(), Errno> {
        if dirtied == 0 || self.bdi().is_memory() {
            return Ok(());
        }
        self.bdi().balance_dirty_pages(self, dirtied)
    }

    /// The folio that holds byte `pos`, locked; a new one is not uptodate.
    ///
    /// Context: blocks for memory, holding nothing but `i_rwsem`.
    #[doc(alias = "write_begin")]
    fn folio_for_write<'a>(
        &'a self,
        pos: u64,
        remaining: usize,
        prepared: &mut Option<Prepared<'a>>,
    ) -> Result<LockedFolio<'a>, Errno> {
        let page = PageIndex::of(pos);
        loop {
            if let Some(locked) = self.lock_folio(page) {
                return Ok(locked);
            }
            if let Some(ready) = prepared {
                match self.add_folio(page, ready) {
                    Ok(locked) => return Ok(locked),
                    Err(AddFolioError::Occupied) => continue,
                    Err(AddFolioError::NeedMemory) => *prepared = None,
                }
            }
            let last = PageIndex::of(pos + remaining as u64 - 1);
            let last = last.min(page.add(self.write_batch() - 1));
            *prepared = Some(match self.mm().prepare(self, page, last) {
                // Not room for all: perhaps for one.
                Err(Errno::ENOSPC) if last > page => self.mm().prepare(self, page, page)?,
                result => result?,
            });
        }
    }

    fn write_batch(&self) -> u64 {
        BATCH.min(self.mm().frames.capacity() / 64).max(1)
    }

    /// Copies one piece into a locked folio.
    fn write_piece(
        self: &Arc<Self>,
        locked: &LockedFolio<'_>,
        pos: u64,
        len: usize,
        iter: &mut IovIter<'_>,
    ) -> Result<Progress, Errno> {
        let seen = locked.state.load();
        let uptodate = seen.has(flag::UPTODATE);
        let offset = offset_in_page(pos);
        let frame = self.mm().frames.addr(locked.frame());
        let mut whole = uptodate;
        if !uptodate {
            // Bytes of the page that are the file's and that this piece does not write?
            let valid = self
                .size()
                .saturating_sub(pos - offset as u64)
                .min(PAGE_SIZE as u64);
            whole = offset == 0 && len as u64 >= valid;
            if valid == 0 || whole {
                direct_map::zero(frame, 0, offset);
                direct_map::zero(frame, offset + len, PAGE_SIZE - offset - len);
                whole = true;
            } else {
                self.fill_locked(locked)?;
            }
        }
        // Only a folio that nobody can read yet may be left half written and tried again.
        let saved = (!uptodate && whole).then(|| iter.save());
        let copied = match iter.copy_to_frame(frame.wrapping_add(offset), len) {
            Ok(()) => len,
            Err(stopped) if !stopped.callers_side => return Err(Errno::EIO),
            Err(stopped) if stopped.copied == 0 => return Ok(Progress::Fault),
            Err(stopped) => match saved {
                Some(saved) => {
                    iter.restore(saved);
                    return Ok(Progress::TryShorter(stopped.copied));
                }
                None => stopped.copied,
            },
        };
        if !uptodate {
            self.set_uptodate(locked);
        }
        self.mark_dirty(locked);
        if pos + copied as u64 > self.size() {
            self.set_size(pos + copied as u64);
        }
        // A folio that is new, or dirty still from the write before, was not used *again*.
        if uptodate && !seen.has(flag::DIRTY) {
            locked.mark_accessed(seen);
        }
        Ok(Progress::Wrote(copied))
    }
}

/// How the copy of one piece ended.
enum Progress {
    /// So many bytes are in the folio and count.
    Wrote(usize),
    /// The source ends after so many bytes, and the folio could not take part of it: try with those.
    TryShorter(usize),
    /// The source faulted at once.
    Fault,
}
