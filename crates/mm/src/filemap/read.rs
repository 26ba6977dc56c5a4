//! Reading: hits without a lock, misses through readahead.
//!
//! # Model
//!
//! Folio by folio: the lockless look-up ([`crate::lookup`]); where that misses, readahead and a copy
//! under the folio lock, so that a page that is evicted at once is still read once.
//!
//! # Locking
//!
//! A hit takes none. A miss takes `invalidate_lock` shared and folio locks; `i_rwsem` is not taken,
//! so a read beside a write of the same bytes may see part of it.
//!
//! The size is looked at before and after the copy, and a file that was cut and made longer in between passes both. Then what the
//! copy found zeroed is within the file again and zero there, so that each byte is one that the file had during the read.

use foliocache_sync::rcu;
use foliocache_sys::Errno;

use super::{BAD_MEMORY_RETRIES, memory_failed};
use crate::fill::{FolioUse, Reader};
use crate::folio::{LockedFolio, flag};
use crate::iocb::Iocb;
use crate::iov::{IovIter, Iovec, Stopped};
use crate::lookup::Lookup;
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, Mm};
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page, pages_for};
use crate::uncached::UncachedRead;

/// The bytes of a hole of a memory file.
static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Bytes of the buffer for a destination that is a mapping.
const BUFFER: usize = 256 << 10;

/// How the copy of one piece ended.
enum CopyOutcome {
    /// So many bytes were copied.
    Copied(usize),
    /// The caller's memory faulted at once.
    Fault,
    /// Nothing was copied yet: it was the first use of a folio that readahead brought in, and more is on its way now.
    FirstUse,
}

impl AddressSpace {
    /// Reads from `iocb.pos` into `iter` up to its end or the end of the file; returns the bytes.
    ///
    /// A hit makes no system call and writes nothing that others share. A miss blocks for I/O and
    /// takes memory of the bound, waiting for it if it must; with `iocb.nowait` it does neither, and
    /// only faults of the caller's memory block.
    ///
    /// # Errors
    /// Only if nothing was read: `EFAULT` for bad memory of the caller's, the backing store's
    /// error, `ECHILD` after a fork. `EAGAIN` also after some progress, if the rest has to be waited for.
    #[doc(alias = "filemap_read")]
    #[inline]
    pub fn read(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
    ) -> Result<usize, Errno> {
        let to = iter.iovec();
        let plain = iocb.pos >= iocb.fetched && iocb.is_cached();
        if plain && self.read_iovec_in_use(iocb.pos, to) {
            iocb.advance(iter, to.len());
            return Ok(to.len());
        }
        self.read_on(handle, iocb, iter)
    }

    /// Fills `buf` from byte `pos` on with bytes of one folio that is known to be in use, as most reads do.
    /// False if they are not that, or if anything went wrong: then nothing counts, and
    /// [`AddressSpace::read_on`] does the rest. Neither blocks nor writes memory that others share.
    #[inline]
    pub fn read_in_use(&self, pos: u64, buf: &mut [u8]) -> bool {
        self.read_iovec_in_use(pos, Iovec::destination(buf))
    }

    /// As [`AddressSpace::read_in_use`]: the path of most hits. It does only what each of them needs, so that
    /// its arguments and what it keeps over the copy fit into registers. The handle learns nothing from
    /// such a hit, so that threads that share the handle write nothing that others read.
    #[inline(never)]
    pub(super) fn read_iovec_in_use(&self, pos: u64, to: Iovec<'_>) -> bool {
        let mm: &Mm = self.mm();
        if mm.check_fork().is_err() || self.left(pos, to.len()) != to.len() {
            return false;
        }
        let rcu = rcu::read_lock();
        let found = Lookup::begin(&self.index, pos, &rcu, |entry| mm.folios.of_entry(entry));
        let Some(found) = found else { return false };
        let (identity, offset) = (found.identity, found.identity.offset(pos));
        // None at all is not a hit, either.
        if !found.seen.is_in_use() || to.len().wrapping_sub(1) >= identity.bytes() - offset {
            return false;
        }
        let from = mm.frames.addr(identity.frame).wrapping_add(offset);
        let whole = to.copy_from_frame(from).is_ok() && found.validate();
        drop(rcu);
        // A truncate beside the copy may have zeroed what it cut off.
        if !whole || self.left(pos, to.len()) != to.len() {
            return false;
        }
        self.count_use(FolioUse::Again, pos, to.len());
        true
    }

    /// As [`AddressSpace::read`], after [`AddressSpace::read_in_use`] said no.
    ///
    /// # Errors
    /// As [`AddressSpace::read`].
    #[cold]
    pub fn read_on(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
    ) -> Result<usize, Errno> {
        let start = iocb.pos;
        let direct = iocb.direct && !self.bdi().is_memory();
        let result = match iter.is_mapped() {
            _ if direct => self.read_direct(handle, iocb, iter),
            false => match self.read_pages(handle, iocb, iter) {
                // In a small cache the page that is read may have pushed out the one that it is read into.
                Err(Errno::EFAULT) => self.read_mapped(handle, iocb, iter),
                result => result,
            },
            true => self.read_mapped(handle, iocb, iter),
        };
        let done = (iocb.pos - start) as usize;
        if done > 0 {
            handle.note_read(start..iocb.pos);
        }
        iocb.end(done, result)
    }

    fn read_pages(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
    ) -> Result<(), Errno> {
        self.mm().check_fork()?;
        let uncached =
            (iocb.uncached).then(|| UncachedRead::begin(handle, iocb.pos, iter.remaining()));
        let (mut faulted, mut noted) = (false, false);
        while iter.remaining() > 0 {
            let piece = match self.read_hit(handle, iocb, iter.iovec(), noted) {
                Some(piece) => piece,
                None => {
                    let to = iter.iovec().first(self.left(iocb.pos, iter.remaining()));
                    if to.len() == 0 {
                        return Ok(());
                    }
                    self.read_miss(handle, iocb, to)?
                }
            };
            match piece {
                CopyOutcome::Copied(n) => {
                    let start = iocb.pos;
                    iocb.advance(iter, n);
                    if let Some(uncached) = &uncached
                        && n > 0
                    {
                        let last = iter.remaining() == 0;
                        self.note_uncached_copy(uncached, start..iocb.pos, last);
                    }
                    (faulted, noted) = (false, false);
                }
                CopyOutcome::FirstUse => noted = true,
                // Faulted in just now and no progress again: the memory is bad.
                CopyOutcome::Fault if faulted => return Err(Errno::EFAULT),
                CopyOutcome::Fault => {
                    if !iter.fault_in(PAGE_SIZE - offset_in_page(iocb.pos)) {
                        return Err(Errno::EFAULT);
                    }
                    faulted = true;
                }
            }
        }
        Ok(())
    }

    /// As `read_pages` into memory whose faults may need what the read holds: through a buffer.
    fn read_mapped(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
    ) -> Result<(), Errno> {
        let mut buffer = vec![0; iter.remaining().min(BUFFER)];
        while iter.remaining() > 0 {
            let (start, wanted) = (iocb.pos, iter.remaining().min(BUFFER));
            let mut piece = IovIter::destination(&mut buffer[..wanted]);
            let result = self.read_pages(handle, iocb, &mut piece);
            let read = (iocb.pos - start) as usize;
            let copied = iter.copy_buffer(&mut buffer[..read]);
            iocb.pos = start + copied as u64;
            if copied < read {
                return Err(Errno::EFAULT);
            }
            if result.is_err() || read < wanted {
                return result;
            }
        }
        Ok(())
    }

    /// Copies from a folio that is there and uptodate, without a lock; `None` if there is none, or
    /// nothing of the file to read at `pos`. The first use of what was read ahead is reported before the copy, unless
    /// it was `noted`: the next window is read during it.
    ///
    /// Always inlined, as [`Lookup::begin`] is: what they hand on is several words, and through memory
    /// it costs a small read up to a fifth of its time.
    #[inline(always)]
    fn read_hit(
        &self,
        handle: &ReadaheadState,
        iocb: &Iocb,
        to: Iovec<'_>,
        noted: bool,
    ) -> Option<CopyOutcome> {
        let pos = iocb.pos;
        let left = self.left(pos, to.len());
        if left == 0 {
            return None;
        }
        let mm: &Mm = self.mm();
        let rcu = rcu::read_lock();
        let found = Lookup::begin(&self.index, pos, &rcu, |entry| mm.folios.of_entry(entry))?;
        let (identity, offset) = (found.identity, found.identity.offset(pos));
        let (folio, seen) = (found.folio, found.seen);
        let kind = match noted {
            true => FolioUse::First,
            false => {
                let folio = identity.range();
                let bytes = pos..folio.end.min(pos + left as u64);
                FolioUse::of(handle, seen, &folio, &bytes, iocb.fetched)
            }
        };
        let used = kind == FolioUse::Again && !seen.is_in_use();
        if used && seen.has(flag::READAHEAD) && folio.mark_accessed(seen) {
            drop(rcu);
            self.used_readahead(handle, PageIndex::of(pos), identity.order, iocb.uncached);
            return Some(CopyOutcome::FirstUse);
        }
        let result = to
            .first(left.min(identity.bytes() - offset))
            .copy_from_frame(mm.frames.addr(identity.frame).wrapping_add(offset));
        if !found.validate() {
            return None;
        }
        drop(rcu);
        if !iocb.uncached {
            if used {
                folio.mark_accessed(seen);
            }
            self.keep_used(folio, seen);
        }
        self.count_copy(Some(kind), pos, result).ok()
    }

    /// The part of a copy that counts: bytes that are still within the file, since a truncate beside the copy may
    /// have zeroed the rest. `EIO` if the folio's own memory stopped it.
    #[inline]
    fn count_copy(
        &self,
        kind: Option<FolioUse>,
        pos: u64,
        result: Result<usize, Stopped>,
    ) -> Result<CopyOutcome, Errno> {
        let copied = match result {
            Ok(copied) => copied,
            Err(stopped) if !stopped.callers_side => return Err(Errno::EIO),
            Err(stopped) if stopped.copied == 0 => return Ok(CopyOutcome::Fault),
            Err(stopped) => stopped.copied,
        };
        let copied = self.left(pos, copied);
        if let Some(kind) = kind {
            self.count_use(kind, pos, copied);
        }
        Ok(CopyOutcome::Copied(copied))
    }

    /// Brings the page in, with readahead, and copies from it under its lock. A `nowait` read copies cached bytes
    /// only.
    #[cold]
    fn read_miss(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        to: Iovec<'_>,
    ) -> Result<CopyOutcome, Errno> {
        let pos = iocb.pos;
        // No I/O is ever done under the folio locks of a memory file system.
        if self.bdi().is_memory() {
            return self.read_memory(pos, to);
        }
        if iocb.nowait {
            return self.read_locked_nowait(iocb, to);
        }
        let page = PageIndex::of(pos);
        let asked = page..PageIndex(pages_for(pos + to.len() as u64));
        let mut retries = 0;
        let (locked, behind, result) = loop {
            let (locked, behind) = self.read_folio(handle, asked.clone(), Reader::of(iocb))?;
            let result = self.copy_locked(&locked, pos, to);
            if !memory_failed(&result) || retries == BAD_MEMORY_RETRIES {
                break (locked, behind, result);
            }
            self.drop_bad_folio(locked)?;
            retries += 1;
        };
        let order = locked.order();
        let seen = locked.state.load();
        let kind = match behind {
            Some(_) => FolioUse::Fetched,
            // Somebody else brought it in while we waited for the lock.
            None => {
                let folio = locked.range();
                let bytes = pos..folio.end.min(pos + to.len() as u64);
                FolioUse::of(handle, seen, &folio, &bytes, iocb.fetched)
            }
        };
        let first_use = seen.has(flag::READAHEAD) && locked.mark_accessed(seen);
        let kind = if first_use { FolioUse::First } else { kind };
        if !iocb.uncached {
            self.keep_used(&locked, seen);
        }
        drop(locked);
        if first_use {
            self.used_readahead(handle, page, order, iocb.uncached);
        }
        self.follow_miss(iocb, behind);
        self.count_copy(Some(kind), pos, result)
    }

    /// Copies from a folio that is there and of which the grain of `pos` is uptodate, if its lock is
    /// free: for large folios that were written in part, which lockless readers leave alone. Else `EAGAIN`.
    fn read_locked_nowait(&self, iocb: &Iocb, to: Iovec<'_>) -> Result<CopyOutcome, Errno> {
        let pos = iocb.pos;
        let locked = self
            .try_lock_folio(PageIndex::of(pos))
            .ok_or(Errno::EAGAIN)?;
        if !self.has_grain_at(&locked, pos) {
            return Err(Errno::EAGAIN);
        }
        let result = self.copy_locked(&locked, pos, to);
        if memory_failed(&result) {
            self.drop_bad_folio(locked)?;
            return Err(Errno::EAGAIN);
        }
        if !iocb.uncached {
            self.keep_used(&locked, locked.state.load());
        }
        drop(locked);
        let kind = match pos < iocb.fetched {
            true => FolioUse::Fetched,
            false => FolioUse::Again,
        };
        self.count_copy(Some(kind), pos, result)
    }

    /// Copies the uptodate bytes of a locked folio from byte `pos` of the file on.
    fn copy_locked(
        &self,
        locked: &LockedFolio<'_>,
        pos: u64,
        to: Iovec<'_>,
    ) -> Result<usize, Stopped> {
        let (from, readable) = self.readable(locked, pos);
        debug_assert!(readable > 0, "the grain at {pos} is not uptodate");
        to.first(readable).copy_from_frame(from)
    }

    /// As `read_miss` where the cache is the store: a hole is read as zeros and takes no memory,
    /// which nothing but a truncate would ever give back.
    fn read_memory(&self, pos: u64, to: Iovec<'_>) -> Result<CopyOutcome, Errno> {
        let result = match self.lock_folio(PageIndex::of(pos)) {
            Some(locked) if self.has_grain_at(&locked, pos) => {
                let result = self.copy_locked(&locked, pos, to);
                if memory_failed(&result) {
                    self.drop_bad_folio(locked)?;
                }
                result
            }
            _ => {
                let offset = offset_in_page(pos);
                to.first(PAGE_SIZE - offset)
                    .copy_from_frame(ZEROS[offset..].as_ptr())
            }
        };
        self.count_copy(None, pos, result)
    }
}
