//! Bringing in a page for an async caller, whose read would have to wait for it.
//!
//! # Model
//!
//! ```text
//!   read         with `nowait`: copies pages that are there, up to the first that is not
//!   start_fetch  starts bringing that page in, and leaves a waker with its folio
//!   fetch        brings it in where that has to wait: on some other thread
//! ```

use foliocache_sys::Errno;
use std::ops::Range;
use std::task::Waker;

use crate::counters::bump;
use crate::fill::{Plug, Reader};
use crate::folio::LockedFolio;
use crate::iocb::Iocb;
use crate::ops::ReadMode;
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, Mm};
use crate::types::{PageIndex, pages_for};

/// Tries at a page that changes all the time before another thread takes over.
const MAX_TRIES: usize = 8;

/// The next step for a page that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Read it again now.
    Retry,
    /// It is on its way, and the waker will be called.
    Waiting,
    /// [`AddressSpace::fetch`] it on a thread that may block.
    Blocked,
}

impl AddressSpace {
    /// Sees to it that the page of byte `iocb.pos` is brought in as a read of `len` bytes there would,
    /// with readahead, and has `waker` called when it may be there. Starts nothing unless `may_start`, and
    /// notes in `iocb.fetched` what it started.
    ///
    /// Neither blocks nor waits for memory.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn start_fetch(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: u64,
        mut may_start: bool,
        waker: &Waker,
    ) -> Result<Fetch, Errno> {
        self.mm().check_fork()?;
        let Some(asked) = self.pages_to_fetch(iocb, len) else {
            return Ok(Fetch::Retry);
        };
        let page = asked.start;
        for _ in 0..MAX_TRIES {
            let mm: &Mm = self.mm();
            let Some(folio) = self.folio_at(page) else {
                if !std::mem::take(&mut may_start) {
                    // It was there already and is gone again, or could not be read.
                    return Ok(Fetch::Retry);
                }
                let plug = &mut Plug::default();
                match self.start_miss(handle, &asked, iocb.uncached, plug) {
                    Some((_, fetched)) => iocb.fetched = iocb.fetched.max(fetched.pos()),
                    None => return Ok(Fetch::Blocked),
                }
                continue;
            };
            let Some(locked) = folio.try_lock(&mm.waits) else {
                match folio.wait_unlocked_async(&mm.waits, waker) {
                    true => continue,
                    false => return Ok(Fetch::Waiting),
                }
            };
            if !self.has_at(&locked, page) {
                continue;
            }
            return Ok(match self.has_grain_at(&locked, iocb.pos) {
                true => Fetch::Retry,
                // Written in part and never read.
                false => Fetch::Blocked,
            });
        }
        Ok(Fetch::Blocked)
    }

    /// Starts reading the window of a miss, where that needs no waiting; returns the page after it, and the page after the
    /// part that the request asked for.
    fn start_miss(
        &self,
        handle: &ReadaheadState,
        asked: &Range<PageIndex>,
        uncached: bool,
        plug: &mut Plug,
    ) -> Option<(PageIndex, PageIndex)> {
        // If no memory is free now, a thread that may wait goes on, and it notes the pattern of the reads.
        if self.ops.read_mode() != ReadMode::Background || self.mm().frames.has_waiters() {
            return None;
        }
        let page = asked.start;
        let limits = self.readahead_limits(page);
        let (now, behind) = handle.on_miss(asked, &limits);
        match uncached {
            true => handle.note_uncached(),
            false => self.drop_behind(handle, page, &limits),
        }
        let end = now.start.add(now.pages);
        let fetched = self.missing_from(asked, end);
        if self.start_fill(now, page..fetched, uncached, plug) == 0 {
            return None;
        }
        bump(&self.counters.misses, fetched.0 - page.0);
        self.read_ahead(behind, uncached);
        Some((end, fetched))
    }

    /// Starts bringing in what a read of `len` bytes at `iocb.pos` lacks, from the first page that is missing on,
    /// where that needs no waiting; returns the pages, which are on their way once `plug` goes. Notes in
    /// `iocb.fetched` what it started.
    pub(super) fn start_missing(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        len: u64,
        plug: &mut Plug,
    ) -> u64 {
        let Some(mut asked) = self.pages_to_fetch(iocb, len) else {
            return 0;
        };
        while self.folio_at(asked.start).is_some() {
            asked.start = self.after_folio(asked.start);
            if asked.is_empty() {
                return 0;
            }
        }
        let started = self.start_miss(handle, &asked, iocb.uncached, plug);
        let Some((end, fetched)) = started else {
            return 0;
        };
        iocb.fetched = iocb.fetched.max(fetched.pos());
        end.0 - asked.start.0
    }

    /// The pages of a read; `None` if it needs none brought in, as a direct one does.
    fn pages_to_fetch(&self, iocb: &Iocb, len: u64) -> Option<Range<PageIndex>> {
        let end = self.size().min(iocb.pos.saturating_add(len));
        let some = iocb.pos < end && !self.bdi().is_memory() && !iocb.direct;
        some.then(|| PageIndex::of(iocb.pos)..PageIndex(pages_for(end)))
    }

    /// Brings in the page of byte `iocb.pos` as a read of `len` bytes there would, readahead included,
    /// and copies nothing. Notes in `iocb.fetched` what it brought in.
    ///
    /// Blocks for I/O and for memory of the bound. The page may be gone again when this returns.
    ///
    /// # Errors
    /// The backing store's error; `ECHILD` after a fork.
    pub fn fetch(&self, handle: &ReadaheadState, iocb: &mut Iocb, len: u64) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if let Some(asked) = self.pages_to_fetch(iocb, len) {
            let (locked, behind) = self.read_folio(handle, asked, Reader::of(iocb))?;
            drop(locked);
            self.follow_miss(iocb, behind);
        }
        Ok(())
    }

    /// The folio that holds `page`, locked, or nothing if there is none; `EAGAIN` if it is locked.
    pub(super) fn lock_folio_nowait(
        &self,
        page: PageIndex,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        let Some(folio) = self.folio_at(page) else {
            return Ok(None);
        };
        let locked = folio.try_lock(&self.mm().waits).ok_or(Errno::EAGAIN)?;
        match self.has_at(&locked, page) {
            true => Ok(Some(locked)),
            false => Err(Errno::EAGAIN),
        }
    }
}
