//! Reading: hits without a lock, misses through readahead.
//!
//! # Model
//!
//! Folio by folio: the lockless look-up ([`super::lookup`]); where that misses, readahead and a copy
//! under the folio lock, so that a page that is evicted at once is still read once.
//!
//! # Locking
//!
//! A hit takes none. A miss takes `invalidate_lock` shared and folio locks; `i_rwsem` is not taken,
//! so a read beside a write of the same bytes may see part of it.

use foliocache_sync::{Arc, rcu};
use foliocache_sys::Errno;

use super::bad_memory;
use super::lookup::Lookup;
use crate::address_space::AddressSpace;
use crate::error::{IoError, IoOperation};
use crate::folio::{LockedFolio, flag, grains};
use crate::iov::{IovIter, Stopped};
use crate::mm::Mm;
use crate::readahead::{ReadaheadState, Window};
use crate::stats::bump;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};

/// What a hole of a memory file is read from.
static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// What a copy from the cache is for.
#[derive(Clone, Copy)]
pub(super) struct Purpose {
    /// Up to here the request brought the bytes in itself: copying them is their first use.
    pub(super) fetched: u64,
    /// Whether the caller may wait, for a store that cannot read in the background.
    pub(super) may_wait: bool,
}

impl Purpose {
    /// Bytes that may be there already, for a caller who may wait.
    const HIT: Self = Self {
        fetched: 0,
        may_wait: true,
    };
}

/// How the copy of one piece ended.
pub(super) enum CopyOutcome {
    /// So many bytes were copied and the position moved on by them.
    Copied(usize),
    /// The same, of a folio that is known to be in use: nobody learns from it, so the handle need not
    /// note it, and threads that share the handle write nothing that others read.
    Known(usize),
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
        // Most requests end in the folio that they begin in.
        let wanted = iter.remaining();
        let first = match self.mm().check_fork() {
            Ok(()) => self.read_hit(handle, pos, Purpose::HIT, iter),
            Err(_) => None,
        };
        match first {
            Some(CopyOutcome::Known(n)) if n == wanted => Ok(n),
            Some(CopyOutcome::Copied(n)) if n == wanted => {
                handle.note_read(pos + n as u64);
                Ok(n)
            }
            first => self.read_on(handle, pos, wanted, first, iter),
        }
    }

    /// Goes on with a request for `wanted` bytes from `pos` on after its first piece.
    #[cold]
    fn read_on(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        pos: u64,
        wanted: usize,
        first: Option<CopyOutcome>,
        iter: &mut IovIter<'_>,
    ) -> Result<usize, IoError> {
        let result = self.read_pages(handle, pos, first, iter);
        let done = wanted - iter.remaining();
        if done > 0 {
            handle.note_read(pos + done as u64);
        }
        match result {
            Err(errno) if done == 0 => {
                Err(self.error(IoOperation::Read, pos, wanted as u64, errno))
            }
            _ => Ok(done),
        }
    }

    fn read_pages(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        mut pos: u64,
        mut piece: Option<CopyOutcome>,
        iter: &mut IovIter<'_>,
    ) -> Result<(), Errno> {
        self.mm().check_fork()?;
        let mut faulted = false;
        let mut purpose = Purpose::HIT;
        loop {
            match piece {
                Some(CopyOutcome::Copied(n) | CopyOutcome::Known(n)) => {
                    pos += n as u64;
                    faulted = false;
                }
                // Faulted in just now and no progress again: the memory is bad.
                Some(CopyOutcome::Fault) if faulted => return Err(Errno::EFAULT),
                Some(CopyOutcome::Fault) => {
                    if !iter.fault_in(PAGE_SIZE - offset_in_page(pos)) {
                        return Err(Errno::EFAULT);
                    }
                    faulted = true;
                }
                None => {
                    let left = self.left(pos, iter);
                    if left == 0 {
                        return Ok(());
                    }
                    piece = Some(self.read_miss(handle, pos, left, &mut purpose.fetched, iter)?);
                    continue;
                }
            }
            piece = self.read_hit(handle, pos, purpose, iter);
        }
    }

    /// Bytes that are asked for from `pos` on and are in the file.
    #[inline]
    pub(super) fn left(&self, pos: u64, iter: &IovIter<'_>) -> usize {
        self.size().saturating_sub(pos).min(iter.remaining() as u64) as usize
    }

    /// Copies from a folio that is there and uptodate, without a lock; `None` if there is none, or
    /// nothing of the file to read at `pos`.
    ///
    /// Always inlined, as [`Lookup::begin`] is: what they hand on is several words, and through memory
    /// it costs a small read up to a fifth of its time.
    #[inline(always)]
    pub(super) fn read_hit(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        pos: u64,
        purpose: Purpose,
        iter: &mut IovIter<'_>,
    ) -> Option<CopyOutcome> {
        let left = self.left(pos, iter);
        if left == 0 {
            return None;
        }
        let mm: &Mm = self.mm();
        let rcu = rcu::read_lock();
        let found = Lookup::begin(&self.index, pos, &rcu, |entry| mm.folios.of_entry(entry))?;
        let spot = found.spot;
        let frame = mm.frames.addr(spot.frame);
        let result = iter.peek_copy(
            frame.wrapping_add(offset_in_page(pos)),
            left.min(spot.rest()),
        );
        if !found.validate() {
            return None;
        }
        let known = found.seen.flags() & (flag::REFERENCED | flag::READAHEAD) == flag::REFERENCED;
        // Going on within a folio is the same use of it.
        let goes_on = || pos < purpose.fetched || (spot.offset != 0 && handle.continues(pos));
        let first_use = !known && !goes_on() && found.folio.mark_accessed(found.seen);
        drop(rcu);
        if first_use {
            self.used_readahead(handle, PageIndex::of(pos), spot.order, purpose.may_wait);
        }
        let piece = self.count_copy(pos, result, iter).ok()?;
        self.count_copied(pos, &piece);
        Some(match piece {
            CopyOutcome::Copied(n) if known => CopyOutcome::Known(n),
            piece => piece,
        })
    }

    /// Counts a hit for each page that a copy was of.
    #[inline]
    fn count_copied(&self, pos: u64, piece: &CopyOutcome) {
        if let CopyOutcome::Copied(n) = piece {
            let pages = (offset_in_page(pos) + n.saturating_sub(1)) / PAGE_SIZE + 1;
            self.count_hits(pages as i64);
        }
    }

    /// The first use of a folio of `order` that readahead brought in, at `page`.
    ///
    /// Context: no folio lock, no RCU read section.
    #[cold]
    pub(super) fn used_readahead(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        page: PageIndex,
        order: u32,
        may_wait: bool,
    ) {
        bump(&self.counters.readahead_used, 1 << order);
        self.counters.feedback.note_used(1 << order);
        if !may_wait && !self.ops.reads_in_background() {
            // The next miss goes on, on a thread that may.
            return;
        }
        let limits = self.readahead_limits();
        let windows = handle.on_first_use(page, &limits);
        if !windows.is_empty() {
            self.drop_behind(handle, page, &limits);
        }
        for window in windows {
            self.start_fill(window);
        }
    }

    /// Moves the position on by what was copied and is still within the file: a truncate beside
    /// the copy may have zeroed what is not. `EIO` if the folio's own memory stopped it.
    fn count_copy(
        &self,
        pos: u64,
        result: Result<usize, Stopped>,
        iter: &mut IovIter<'_>,
    ) -> Result<CopyOutcome, Errno> {
        let copied = match result {
            Ok(copied) => copied,
            Err(stopped) if !stopped.callers_side => return Err(Errno::EIO),
            Err(stopped) if stopped.copied == 0 => return Ok(CopyOutcome::Fault),
            Err(stopped) => stopped.copied,
        };
        let within = self.size().saturating_sub(pos).min(copied as u64) as usize;
        iter.advance(within);
        Ok(CopyOutcome::Copied(within))
    }

    /// Brings the page in, with readahead, and copies from it under its lock.
    #[cold]
    fn read_miss(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        pos: u64,
        left: usize,
        fetched: &mut u64,
        iter: &mut IovIter<'_>,
    ) -> Result<CopyOutcome, Errno> {
        if self.bdi().is_memory() {
            return self.read_memory(pos, left, iter);
        }
        let (page, last) = (PageIndex::of(pos), PageIndex::of(pos + left as u64 - 1));
        let mut retries = 0;
        let (locked, behind, result) = loop {
            let (locked, behind) = self.read_folio(handle, page, last)?;
            let result = self.copy_locked(&locked, pos, left, iter);
            if !bad_memory::failed(&result) || retries == bad_memory::RETRIES {
                break (locked, behind, result);
            }
            self.drop_bad_folio(locked)?;
            retries += 1;
        };
        let (order, missed) = (locked.order(), behind.is_some());
        let seen = locked.state.load();
        let first_use = seen.has(flag::READAHEAD) && locked.mark_accessed(seen);
        drop(locked);
        if first_use {
            self.used_readahead(handle, page, order, true);
        }
        if let Some(Behind {
            fetched: to,
            window,
        }) = behind
        {
            *fetched = to.pos();
            if let Some(window) = window {
                self.start_fill(window);
            }
        }
        let piece = self.count_copy(pos, result, iter)?;
        if !missed {
            // Somebody else brought it in while we waited for the lock.
            self.count_copied(pos, &piece);
        }
        Ok(piece)
    }

    /// Copies from a folio that is there and of which the grain of `pos` is uptodate, if its lock is
    /// free: for large folios that were written in part, which lockless readers leave alone.
    pub(super) fn read_locked_nowait(
        &self,
        pos: u64,
        left: usize,
        iter: &mut IovIter<'_>,
    ) -> Result<Option<CopyOutcome>, Errno> {
        let Some(locked) = self.try_lock_folio(PageIndex::of(pos)) else {
            return Ok(None);
        };
        if !self.has_grain_at(&locked, pos) {
            return Ok(None);
        }
        let result = self.copy_locked(&locked, pos, left, iter);
        if bad_memory::failed(&result) {
            self.drop_bad_folio(locked)?;
            return Ok(None);
        }
        drop(locked);
        let piece = self.count_copy(pos, result, iter)?;
        self.count_copied(pos, &piece);
        Ok(Some(piece))
    }

    /// Copies what of a locked folio is uptodate from byte `pos` of the file on.
    fn copy_locked(
        &self,
        locked: &LockedFolio<'_>,
        pos: u64,
        left: usize,
        iter: &mut IovIter<'_>,
    ) -> Result<usize, Stopped> {
        let offset = (pos - locked.index().pos()) as usize;
        let readable = grains::run_from(locked.uptodate_grains(), locked.order(), offset);
        debug_assert!(readable > 0, "the grain at {pos} is not uptodate");
        iter.peek_copy(self.addr(locked, offset), left.min(readable))
    }

    /// As `read_miss` where the cache is the store: a hole is read as zeros and takes no memory,
    /// which nothing but a truncate would ever give back.
    pub(super) fn read_memory(
        &self,
        pos: u64,
        left: usize,
        iter: &mut IovIter<'_>,
    ) -> Result<CopyOutcome, Errno> {
        let result = match self.lock_folio(PageIndex::of(pos)) {
            Some(locked) if self.has_grain_at(&locked, pos) => {
                let result = self.copy_locked(&locked, pos, left, iter);
                if bad_memory::failed(&result) {
                    self.drop_bad_folio(locked)?;
                }
                result
            }
            _ => {
                let offset = offset_in_page(pos);
                iter.peek_copy(ZEROS[offset..].as_ptr(), left.min(PAGE_SIZE - offset))
            }
        };
        self.count_copy(pos, result, iter)
    }

    pub(super) fn has_grain_at(&self, locked: &LockedFolio<'_>, pos: u64) -> bool {
        let offset = (pos - locked.index().pos()) as usize;
        locked.uptodate_grains() & grains::of(locked.order(), offset) != 0
    }

    /// Reads what the folio that holds `page` lacks for a request that goes on to page `last`; returns
    /// it locked, or `None` if it is gone.
    ///
    /// Context: blocks for I/O, with `invalidate_lock` shared: the size must not change meanwhile, not
    /// even for a truncate that is taken back.
    fn read_rest(
        &self,
        page: PageIndex,
        last: PageIndex,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        let _invalidate = self.invalidate_lock.read();
        let Some(locked) = self.lock_folio(page) else {
            return Ok(None);
        };
        let place = locked.place();
        let from = (page.0 - place.index.0) as usize * PAGE_SIZE;
        let to = ((last.0 + 1 - place.index.0) as usize * PAGE_SIZE).min(place.bytes());
        match self.fill_grains(&locked, grains::touched(place.order, from..to)) {
            Ok(()) => Ok(Some(locked)),
            Err(error) => {
                drop(self.keep_content(locked));
                Err(error)
            }
        }
    }

    /// The folio that holds `page`, locked, with that page uptodate, for a request that goes on to
    /// page `last`; and what is to follow if it was missing.
    pub(super) fn read_folio(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        page: PageIndex,
        last: PageIndex,
    ) -> Result<(LockedFolio<'_>, Option<Behind>), Errno> {
        let mut behind = None;
        loop {
            if let Some(locked) = self.lock_folio(page) {
                if self.has_grain_at(&locked, page.pos()) {
                    return Ok((locked, behind));
                }
                // Written in part and never read, or left by a panic of the backing store.
                drop(locked);
                match self.read_rest(page, last)? {
                    Some(locked) => return Ok((locked, behind)),
                    None => continue,
                }
            }
            if behind.is_none() {
                bump(&self.counters.misses, 1);
            }
            let limits = self.readahead_limits();
            let (now, window) = handle.on_miss(page, last, &limits);
            self.drop_behind(handle, page, &limits);
            behind = Some(Behind {
                fetched: now.start.add(now.pages),
                window,
            });
            if let Some(locked) = self.fill(page, last, now)? {
                return Ok((locked, behind));
            }
        }
    }
}

/// What a miss leaves to be done once its own page is copied.
pub(super) struct Behind {
    /// The page after those that it brought in.
    pub(super) fetched: PageIndex,
    /// What to start reading.
    pub(super) window: Option<Window>,
}
