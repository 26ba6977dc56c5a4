//! Reading: hits without a lock, misses through readahead.
//!
//! # Model
//!
//! Page by page: the lockless look-up ([`super::lookup`]); where that misses, readahead and a copy
//! under the folio lock, so that a page that is evicted at once is still read once.
//!
//! # Locking
//!
//! A hit takes none. A miss takes `invalidate_lock` shared and folio locks; `i_rwsem` is not taken,
//! so a read beside a write of the same bytes may see part of it.

use foliocache_sync::{Arc, rcu};
use foliocache_sys::Errno;

use super::lookup::{Lookup, read_validated};
use crate::address_space::AddressSpace;
use crate::error::{IoError, IoOperation};
use crate::folio::{LockedFolio, flag};
use crate::iov::{IovIter, Stopped};
use crate::mm::Mm;
use crate::readahead::ReadaheadState;
use crate::stats::bump;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};

/// What a hole of a memory file is read from.
static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// How the copy of one piece ended.
pub(super) enum Piece {
    /// So many bytes were copied and the position moved on by them.
    Copied(usize),
    /// The caller's memory faulted at once.
    Fault,
}

impl AddressSpace {
    /// Reads from byte `pos` into `iter` up to its end or the end of the file; returns the bytes.
    ///
    /// A hit makes no system call and writes nothing that others share. A miss blocks for I/O and
    /// takes memory of the bound, waiting for it if it must.
    ///
    /// # Errors
    /// Only if nothing was read: `EFAULT` for bad memory of the caller's, the backing store's
    /// error, `ECHILD` after a fork.
    #[doc(alias = "filemap_read")]
    pub fn read(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        pos: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<usize, IoError> {
        let wanted = iter.remaining();
        let result = self.read_pages(handle, pos, iter);
        let done = wanted - iter.remaining();
        match result {
            Err(errno) if done == 0 => {
                Err(self.error(IoOperation::Read, pos, wanted as u64, errno))
            }
            _ => Ok(done),
        }
    }

    fn read_pages(
        &self,
        handle: &ReadaheadState,
        mut pos: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<(), Errno> {
        self.mm().check_fork()?;
        let mut faulted = false;
        while iter.remaining() > 0 {
            let size = self.size();
            if pos >= size {
                break;
            }
            let left = (size - pos).min(iter.remaining() as u64);
            let len = left.min((PAGE_SIZE - offset_in_page(pos)) as u64) as usize;
            let piece = match self.read_hit(handle, pos, len, iter) {
                Some(piece) => piece,
                None => self.read_miss(handle, pos, len, left, iter)?,
            };
            match piece {
                Piece::Copied(n) => {
                    pos += n as u64;
                    handle.note_read(pos);
                    faulted = false;
                }
                // Faulted in just now and no progress again: the memory is bad.
                Piece::Fault if faulted => return Err(Errno::EFAULT),
                Piece::Fault => {
                    if !iter.fault_in(len) {
                        return Err(Errno::EFAULT);
                    }
                    faulted = true;
                }
            }
        }
        Ok(())
    }

    /// Copies from a folio that is there and uptodate, without a lock; `None` if there is none.
    #[inline]
    pub(super) fn read_hit(
        &self,
        handle: &ReadaheadState,
        pos: u64,
        len: usize,
        iter: &mut IovIter<'_>,
    ) -> Option<Piece> {
        let mm: &Mm = self.mm();
        let rcu = rcu::read_lock();
        let found = read_validated(
            &self.index,
            PageIndex::of(pos),
            &rcu,
            |entry| mm.folios.of_entry(entry),
            |folio| {
                let frame = mm.frames.addr(folio.frame());
                iter.peek_copy(frame.wrapping_add(offset_in_page(pos)), len)
            },
        );
        let Lookup::Found(folio, seen, result) = found else {
            return None;
        };
        if !handle.continues(pos) && folio.mark_accessed(seen) {
            bump(&self.counters.readahead_used, 1);
        }
        drop(rcu);
        self.counters.hits.add(1);
        self.count_copy(pos, result, iter).ok()
    }

    /// Moves the position on by what was copied and is still within the file: a truncate beside
    /// the copy may have zeroed what is not. The folio's own side cannot fault in general blocks;
    /// if it does the frame is gone, which is an error of ours.
    fn count_copy(
        &self,
        pos: u64,
        result: Result<usize, Stopped>,
        iter: &mut IovIter<'_>,
    ) -> Result<Piece, Errno> {
        let copied = match result {
            Ok(copied) => copied,
            Err(stopped) if !stopped.callers_side => return Err(Errno::EIO),
            Err(stopped) if stopped.copied == 0 => return Ok(Piece::Fault),
            Err(stopped) => stopped.copied,
        };
        let within = self.size().saturating_sub(pos).min(copied as u64) as usize;
        iter.advance(within);
        Ok(Piece::Copied(within))
    }

    /// Brings the page in, with readahead, and copies from it under its lock.
    #[cold]
    fn read_miss(
        &self,
        handle: &ReadaheadState,
        pos: u64,
        len: usize,
        left: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<Piece, Errno> {
        let page = PageIndex::of(pos);
        let last = PageIndex::of(pos + left - 1);
        if self.bdi().is_memory() {
            return self.read_memory(pos, len, iter);
        }
        let locked = self.read_folio(handle, page, last)?;
        let frame = self.mm().frames.addr(locked.frame());
        let result = iter.peek_copy(frame.wrapping_add(offset_in_page(pos)), len);
        drop(locked);
        self.count_copy(pos, result, iter)
    }

    /// As `read_miss` where the cache is the store: a hole is read as zeros and takes no memory,
    /// which nothing but a truncate would ever give back.
    pub(super) fn read_memory(
        &self,
        pos: u64,
        len: usize,
        iter: &mut IovIter<'_>,
    ) -> Result<Piece, Errno> {
        let offset = offset_in_page(pos);
        let result = match self.lock_folio(PageIndex::of(pos)) {
            Some(locked) => {
                let frame = self.mm().frames.addr(locked.frame());
                iter.peek_copy(frame.wrapping_add(offset), len)
            }
            None => iter.peek_copy(ZEROS[offset..].as_ptr(), len),
        };
        self.count_copy(pos, result, iter)
    }

    /// The folio at `page`, locked and uptodate, for a request that goes on to page `last`.
    fn read_folio(
        &self,
        handle: &ReadaheadState,
        page: PageIndex,
        last: PageIndex,
    ) -> Result<LockedFolio<'_>, Errno> {
        let mut missed = false;
        loop {
            if let Some(locked) = self.lock_folio(page) {
                if !locked.state.load().has(flag::UPTODATE) {
                    // Only a panic of the backing store leaves such a folio unlocked.
                    if let Err(error) = self.fill_locked(&locked) {
                        self.remove_folio(locked);
                        return Err(error);
                    }
                }
                if !missed {
                    // Somebody else brought it in while we waited for the lock.
                    self.counters.hits.add(1);
                }
                return Ok(locked);
            }
            if !missed {
                bump(&self.counters.misses, 1);
                missed = true;
            }
            let window = handle.window(page, last, self.max_window());
            if let Some(locked) = self.fill(page, window)? {
                return Ok(locked);
            }
        }
    }
}
