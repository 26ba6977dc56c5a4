//! Reads and writes that do not wait: what an async caller does by itself.
//!
//! # Model
//!
//! ```text
//!   read_nowait   copies pages that are there, up to the first that is not
//!   start_fetch   starts bringing that page in, and leaves a waker with its folio
//!   fetch         brings it in where that has to wait: on some other thread
//!   write_nowait  writes as far as no lock, no memory, no page and no throttle has to be waited for
//! ```
//!
//! Buffers belong to folios: a caller that loses interest between a fetch and its copy leaves pages
//! in the cache and a waker that is called for nothing.
//!
//! # Locking
//!
//! What does not wait takes folio locks only where they are free. [`AddressSpace::fetch`] is an
//! ordinary miss.

use foliocache_sync::{Arc, rcu};
use foliocache_sys::Errno;
use std::task::Waker;

use super::read::{CopyOutcome, Purpose};
use crate::address_space::AddressSpace;
use crate::error::{IoError, IoOperation};
use crate::folio::LockedFolio;
use crate::iov::IovIter;
use crate::mm::Mm;
use crate::readahead::ReadaheadState;
use crate::stats::bump;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};

/// Looks at a page that changes all the time before somebody else is to do it.
const LOOKS: usize = 8;

/// How an operation that does not wait ended. What it did so far shows in the position of its
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nowait {
    /// It is over: all was done, or the file ended, or there was an error after some progress.
    Over,
    /// The rest would have to wait.
    WouldBlock,
}

/// What is to be done about a page that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Look for it again now. What is before byte `fetched` was brought in for this.
    Look {
        /// The byte after what was brought in.
        fetched: u64,
    },
    /// It is on its way, and the waker will be called.
    Waiting {
        /// As for `Look`; 0 if somebody else brings it in.
        fetched: u64,
    },
    /// [`AddressSpace::fetch`] it on a thread that may block.
    Blocked,
}

impl AddressSpace {
    /// As [`AddressSpace::read`], up to the first page that would have to be waited for. Before byte
    /// `fetched` are pages that were fetched for this very read.
    ///
    /// Neither blocks nor takes memory of the bound, but for faults of the caller's memory.
    ///
    /// # Errors
    /// As [`AddressSpace::read`], only if nothing was read.
    #[doc(alias = "RWF_NOWAIT")]
    pub fn read_nowait(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        pos: u64,
        fetched: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<Nowait, IoError> {
        let wanted = iter.remaining();
        let purpose = Purpose {
            fetched,
            may_wait: false,
        };
        let mut known = true;
        let result = self.read_pages_nowait(handle, pos, purpose, iter, &mut known);
        if !known {
            handle.note_read(pos + (wanted - iter.remaining()) as u64);
        }
        match result {
            Ok(nowait) => Ok(nowait),
            Err(_) if iter.remaining() < wanted => Ok(Nowait::Over),
            Err(errno) => Err(self.error(IoOperation::Read, pos, wanted as u64, errno)),
        }
    }

    /// `known` becomes false with the first piece that is not [`CopyOutcome::Known`].
    fn read_pages_nowait(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        mut pos: u64,
        purpose: Purpose,
        iter: &mut IovIter<'_>,
        known: &mut bool,
    ) -> Result<Nowait, Errno> {
        self.mm().check_fork()?;
        let mut faulted = false;
        let mut missed = pos < purpose.fetched;
        while iter.remaining() > 0 {
            let left = self.left(pos, iter);
            if left == 0 {
                break;
            }
            let piece = match self.read_hit(handle, pos, purpose, iter) {
                Some(piece) => piece,
                // No I/O is ever done under the folio locks of a memory file system.
                None if self.bdi().is_memory() => self.read_memory(pos, left, iter)?,
                None => match self.read_locked_nowait(pos, left, iter)? {
                    Some(piece) => piece,
                    None => return Ok(Nowait::WouldBlock),
                },
            };
            let page = left.min(PAGE_SIZE - offset_in_page(pos));
            match piece {
                CopyOutcome::Copied(n) | CopyOutcome::Known(n) => {
                    *known &= matches!(piece, CopyOutcome::Known(_));
                    if std::mem::take(&mut missed) {
                        // It is what the bytes were brought in for.
                        self.count_hits(-1);
                    }
                    pos += n as u64;
                    faulted = false;
                }
                CopyOutcome::Fault if faulted || !iter.fault_in(page) => return Err(Errno::EFAULT),
                CopyOutcome::Fault => faulted = true,
            }
        }
        Ok(Nowait::Over)
    }

    /// Sees to it that the page of byte `pos` is brought in as a read of `len` bytes there would, with
    /// readahead, and has `waker` called when it may be there. Starts nothing unless `may_start`.
    ///
    /// Neither blocks nor waits for memory.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn start_fetch(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        (pos, len): (u64, u64),
        may_start: bool,
        waker: &Waker,
    ) -> Result<Fetch, Errno> {
        self.mm().check_fork()?;
        let Some((page, last)) = self.pages_to_fetch(pos, len) else {
            return Ok(Fetch::Look { fetched: 0 });
        };
        let mut fetched = 0;
        for _ in 0..LOOKS {
            let mm: &Mm = self.mm();
            let folio = {
                let rcu = rcu::read_lock();
                let entry = self.index.load(page.0, &rcu);
                entry.map(|entry| mm.folios.of_entry(entry))
            };
            let Some(folio) = folio else {
                if fetched > 0 || !may_start {
                    // It was there already and is gone again, or could not be read.
                    return Ok(Fetch::Look { fetched });
                }
                match self.start_miss(handle, page, last) {
                    Some(end) => fetched = end.pos(),
                    None => return Ok(Fetch::Blocked),
                }
                continue;
            };
            let Some(locked) = folio.try_lock(&mm.waits) else {
                match folio.wait_unlocked_async(&mm.waits, waker) {
                    true => continue,
                    false => return Ok(Fetch::Waiting { fetched }),
                }
            };
            if !self.has_at(&locked, page) {
                continue;
            }
            return Ok(match self.has_grain_at(&locked, pos) {
                true => Fetch::Look { fetched },
                // Written in part and never read.
                false => Fetch::Blocked,
            });
        }
        Ok(Fetch::Blocked)
    }

    /// Starts reading what a miss needs, where that needs no waiting; returns the page after it.
    fn start_miss(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        page: PageIndex,
        last: PageIndex,
    ) -> Option<PageIndex> {
        // Memory that is not free now is the business of a thread that may wait, and so is the pattern.
        if !self.ops.reads_in_background() || self.mm().frames.has_waiters() {
            return None;
        }
        let limits = self.readahead_limits();
        let (now, behind) = handle.on_miss(page, last, &limits);
        self.drop_behind(handle, page, &limits);
        let (end, asked) = (now.start.add(now.pages), page..last.add(1));
        if self.start_fill_for(now, asked) == 0 {
            return None;
        }
        bump(&self.counters.misses, 1);
        if let Some(window) = behind {
            self.start_fill(window);
        }
        Some(end)
    }

    /// The first and the last page of a read; `None` if it needs none brought in.
    fn pages_to_fetch(&self, pos: u64, len: u64) -> Option<(PageIndex, PageIndex)> {
        let left = self.size().saturating_sub(pos).min(len);
        let some = left > 0 && !self.bdi().is_memory();
        some.then(|| (PageIndex::of(pos), PageIndex::of(pos + left - 1)))
    }

    /// Brings in the page of byte `pos` as a read of `len` bytes there would, readahead included,
    /// and copies nothing. Returns the byte after what it brought in.
    ///
    /// Blocks for I/O and for memory of the bound. The page may be gone again when this returns.
    ///
    /// # Errors
    /// The backing store's error; `ECHILD` after a fork.
    pub fn fetch(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        pos: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        self.mm().check_fork()?;
        let Some((page, last)) = self.pages_to_fetch(pos, len) else {
            return Ok(0);
        };
        let (locked, behind) = self.read_folio(handle, page, last)?;
        drop(locked);
        let Some(behind) = behind else { return Ok(0) };
        if let Some(window) = behind.window {
            self.start_fill(window);
        }
        Ok(behind.fetched.pos())
    }

    /// As [`AddressSpace::write`], up to where it would have to wait: for a lock, for memory, for a
    /// page to be read in, or because so much is dirty that writers pause.
    ///
    /// Does not block, but for faults of the caller's memory. Takes memory of the bound.
    ///
    /// # Errors
    /// As [`AddressSpace::write`], only if nothing was written.
    pub fn write_nowait(
        self: &Arc<Self>,
        pos: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<Nowait, IoError> {
        let wanted = iter.remaining();
        match self.write_pages_nowait(pos, iter) {
            Ok(()) => Ok(Nowait::Over),
            Err(Errno::EAGAIN) => Ok(Nowait::WouldBlock),
            Err(_) if iter.remaining() < wanted => Ok(Nowait::Over),
            Err(errno) => Err(self.error(IoOperation::Write, pos, wanted as u64, errno)),
        }
    }

    /// The folio that holds `page`, locked, or nothing if there is none; `EAGAIN` if it is locked.
    pub(super) fn lock_folio_nowait(
        &self,
        page: PageIndex,
    ) -> Result<Option<LockedFolio<'_>>, Errno> {
        let mm: &Mm = self.mm();
        let folio = {
            let rcu = rcu::read_lock();
            let entry = self.index.load(page.0, &rcu);
            entry.map(|entry| mm.folios.of_entry(entry))
        };
        let Some(folio) = folio else { return Ok(None) };
        let locked = folio.try_lock(&mm.waits).ok_or(Errno::EAGAIN)?;
        match self.has_at(&locked, page) {
            true => Ok(Some(locked)),
            false => Err(Errno::EAGAIN),
        }
    }
}
