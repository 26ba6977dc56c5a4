//! Reads and writes that do not wait: what an async caller does by itself.
//!
//! # Model
//!
//! ```text
//!   read_nowait   copies pages that are there, up to the first that is not
//!   fetch         brings that page in, with readahead, and copies nothing: on some other thread
//!   write_nowait  overwrites what is there, unless the writer would have to wait its share
//! ```
//!
//! Buffers belong to folios: a caller that loses interest between a fetch and its copy leaves pages
//! in the cache and nothing else.
//!
//! # Locking
//!
//! What does not wait takes folio locks only where they are free. [`AddressSpace::fetch`] is an
//! ordinary miss.

use foliocache_sync::Arc;
use foliocache_sys::Errno;

use super::read::Piece;
use crate::address_space::AddressSpace;
use crate::error::{IoError, IoOperation};
use crate::folio::{LockedFolio, flag};
use crate::iov::IovIter;
use crate::readahead::ReadaheadState;
use crate::stats::bump;
use crate::types::{PAGE_SIZE, PageIndex, offset_in_page};

/// How an operation that does not wait ended. What it did so far shows in the position of its
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nowait {
    /// It is over: all was done, or the file ended, or there was an error after some progress.
    Over,
    /// The rest would have to wait.
    WouldBlock,
}

impl AddressSpace {
    /// As [`AddressSpace::read`], up to the first page that would have to be waited for.
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
        iter: &mut IovIter<'_>,
    ) -> Result<Nowait, IoError> {
        let wanted = iter.remaining();
        let result = self.read_pages_nowait(handle, pos, iter);
        let done = wanted - iter.remaining();
        if done > 0 {
            handle.note_read(pos + done as u64);
        }
        match result {
            Ok(nowait) => Ok(nowait),
            Err(_) if iter.remaining() < wanted => Ok(Nowait::Over),
            Err(errno) => Err(self.error(IoOperation::Read, pos, wanted as u64, errno)),
        }
    }

    fn read_pages_nowait(
        self: &Arc<Self>,
        handle: &ReadaheadState,
        mut pos: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<Nowait, Errno> {
        self.mm().check_fork()?;
        let mut faulted = false;
        while iter.remaining() > 0 {
            let size = self.size();
            if pos >= size {
                break;
            }
            let left = (size - pos).min(iter.remaining() as u64) as usize;
            let piece = match self.read_hit(handle, pos, left, 0, iter) {
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
                Piece::Copied(n) => {
                    pos += n as u64;
                    faulted = false;
                }
                Piece::Fault if faulted || !iter.fault_in(page) => return Err(Errno::EFAULT),
                Piece::Fault => faulted = true,
            }
        }
        Ok(Nowait::Over)
    }

    /// Brings in the page of byte `pos` as a read of `len` bytes there would, readahead included,
    /// and copies nothing.
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
    ) -> Result<(), Errno> {
        self.mm().check_fork()?;
        let left = self.size().saturating_sub(pos).min(len);
        if left == 0 || self.bdi().is_memory() {
            return Ok(());
        }
        let (page, last) = (PageIndex::of(pos), PageIndex::of(pos + left - 1));
        let (locked, behind) = self.read_folio(handle, page, last)?;
        if let Some(behind) = behind {
            self.note_fetched(&locked);
            drop(locked);
            if let Some(window) = behind.window {
                self.start_fill(window);
            }
        }
        Ok(())
    }

    /// The copy that a fetch was made for is the page's first use, not its second, and no hit.
    fn note_fetched(&self, locked: &LockedFolio<'_>) {
        locked.state.set_hint(flag::READAHEAD);
        bump(&self.counters.readahead, locked.nr_pages());
        self.counters.hits.add(-1);
    }

    /// As [`AddressSpace::write`], for what can be done without waiting: overwriting part of a
    /// cached page while less is dirty than makes writers pause.
    ///
    /// # Errors
    /// As [`AddressSpace::write`], only if nothing was written.
    pub fn write_nowait(
        self: &Arc<Self>,
        pos: u64,
        iter: &mut IovIter<'_>,
    ) -> Result<Nowait, IoError> {
        let wanted = iter.remaining();
        let refused = |errno| self.error(IoOperation::Write, pos, wanted as u64, errno);
        self.check_write(pos, wanted).map_err(refused)?;
        if wanted == 0 || (self.bdi().may_dirty() && self.write_hit(pos, iter)) {
            return Ok(Nowait::Over);
        }
        Ok(Nowait::WouldBlock)
    }
}
