//! Direct reads and writes: between the caller's memory and the store, around the cache and in agreement with it.
//!
//! # Model
//!
//! ```text
//!   pos ·····|==========================|···· end
//!      edge            pages             edge
//! ```
//!
//! The edges, parts of pages, go through the cache, uncached. Whole pages do not:
//!
//! - **A read** takes cached bytes from the cache, since they are at least as new, and the rest from the store. It brings
//!   nothing in.
//! - **A write** removes its pages from the cache, empties the windows, and then writes to the store.
//!   Meanwhile no other thread writes, fills or writes back the file.
//!
//! A fault of a mapping that comes before sees the old bytes, and its page leaves again; one that comes while the write is under
//! way waits for its end. A read beside the write may see part of it, as always.
//!
//! Where pages cannot leave the cache, because they are held or pinned, are not durable yet or lie in a folio that could not be
//! split, the write goes through the cache, uncached: no store has them for certain, and the write may fail. So do appends, and everything on a file system in memory.
//!
//! Memory of the caller's that does not begin at a page, or that is not known to be good, is copied through a buffer.
//!
//! # Invariants
//!
//! 1. Direct writes that no flush has covered keep the file on the list of dirty files, as unstable folios would: a sync of the
//!    file system flushes them. A flush that fails loses them, and reports that: no copy exists.
//!
//! # Locking
//!
//! A write: as a hole punch, `i_rwsem` exclusive, `wb_lock`, `invalidate_lock` exclusive. A read: `invalidate_lock` shared over
//! its I/O.
//!
//! The generations of direct writes change under `wb_lock` and `flush_lock`; a thread that looks without them sees its own
//! changes, and those of the threads that put the file on the list.

use foliocache_sync::rcu;
use foliocache_sys::Errno;
use foliocache_sys::memory::PageVec;
use std::ops::Range;

use crate::counters::bump;
use crate::direct_map;
use crate::folio::{Operation, flag};
use crate::iocb::Iocb;
use crate::iov::IovIter;
use crate::ops::IoSegment;
use crate::readahead::ReadaheadState;
use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, PageIndex, end_of, offset_in_page, pages_for};

/// Most bytes in one I/O, and in a buffer.
const PIECE: usize = 4 << 20;
const BUFFER: usize = 1 << 20;

/// Bytes from `pos` to the next page.
fn to_page(pos: u64) -> usize {
    (PAGE_SIZE - offset_in_page(pos)) % PAGE_SIZE
}

impl AddressSpace {
    /// As [`AddressSpace::read`], of a file with a store.
    pub(super) fn read_direct(
        &self,
        handle: &ReadaheadState,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
    ) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if iocb.nowait && self.left(iocb.pos, iter.remaining()) > 0 {
            return Err(Errno::EAGAIN);
        }
        let mut buffer = PageVec::default();
        while iter.remaining() > 0 {
            let left = self.left(iocb.pos, iter.remaining());
            if left == 0 {
                break;
            }
            let absent = self.absent(iocb.pos, left.min(PIECE));
            let n = match absent {
                0 => self.read_edge(handle, iocb.pos, left, iter)?,
                _ => match self.read_store(iocb.pos, absent, iter, &mut buffer)? {
                    Some(n) => n,
                    // Somebody brought some of it in.
                    None => continue,
                },
            };
            if n == 0 {
                break;
            }
            iocb.advance(iter, n);
        }
        Ok(())
    }

    /// Bytes of whole pages from `pos` on, of `len`, of which nothing is cached.
    fn absent(&self, pos: u64, len: usize) -> usize {
        let (first, pages) = (PageIndex::of(pos), (len / PAGE_SIZE) as u64);
        if offset_in_page(pos) != 0 || pages == 0 {
            return 0;
        }
        let rcu = rcu::read_lock();
        let found = self.index.find(first.0, first.0 + pages - 1, None, &rcu);
        let absent = found.map_or(pages, |found| found.index.saturating_sub(first.0));
        absent as usize * PAGE_SIZE
    }

    /// Reads part of a page, or a folio that is cached, through the cache; returns the bytes.
    fn read_edge(
        &self,
        handle: &ReadaheadState,
        pos: u64,
        left: usize,
        iter: &IovIter<'_>,
    ) -> Result<usize, Errno> {
        let page = PageIndex::of(pos);
        let end = self.folio_at(page).map_or(page.add(1), |folio| folio.end());
        let len = end.pos().saturating_sub(pos).clamp(1, left as u64);
        let mut edge = Iocb::at(pos);
        edge.uncached = true;
        self.read(handle, &mut edge, &mut iter.limited(len as usize))
    }

    /// Reads pages that are not cached from the store; returns the bytes, or `None` if some are cached by now.
    fn read_store(
        &self,
        pos: u64,
        len: usize,
        iter: &mut IovIter<'_>,
        buffer: &mut PageVec<u8>,
    ) -> Result<Option<usize>, Errno> {
        let segment = iter.io_segment(len);
        let len = if segment.is_some() {
            len
        } else {
            len.min(BUFFER)
        };
        let (segment, is_copy) = match segment {
            Some(segment) => (segment, false),
            None => (buffered(buffer, len)?, true),
        };
        let read = {
            let _invalidate = self.share_invalidate_lock();
            if self.absent(pos, len) < len {
                return Ok(None);
            }
            self.ask_store(|ops| ops.read_folios(pos, &[segment]))?
                .min(len)
        };
        bump(&self.counters.read_in, read as u64);
        // Bytes that the store does not have are zero, up to the end of the file.
        let valid = self.left(pos, len);
        if read < valid {
            segment.zero(read, valid - read);
        }
        if !is_copy {
            return Ok(Some(valid));
        }
        match iter.limited(valid).copy_buffer(&mut buffer[..valid]) {
            0 if valid > 0 => Err(Errno::EFAULT),
            copied => Ok(Some(copied)),
        }
    }

    /// As [`AddressSpace::write`], of a file with a store, not at its end.
    pub(super) fn write_direct(
        &self,
        iocb: &mut Iocb,
        iter: &mut IovIter<'_>,
    ) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if iocb.nowait {
            return Err(Errno::EAGAIN);
        }
        end_of(iocb.pos, iter.remaining() as u64).ok_or(Errno::EFBIG)?;
        let mut buffer = PageVec::default();
        while iter.remaining() > 0 {
            let (pos, left) = (iocb.pos, iter.remaining());
            let whole = left.min(PIECE) / PAGE_SIZE * PAGE_SIZE;
            let n = match to_page(pos) {
                0 if whole > 0 => self.write_whole(pos, whole, iter, &mut buffer)?,
                // To the next page; or the end of the write.
                edge => {
                    let len = if edge == 0 { left } else { edge.min(left) };
                    self.write_edge(pos, len, iter)?
                }
            };
            if n == 0 {
                return Err(Errno::EFAULT);
            }
            iocb.advance(iter, n);
        }
        Ok(())
    }

    /// Writes through the cache, uncached; returns the bytes.
    fn write_edge(&self, pos: u64, len: usize, iter: &IovIter<'_>) -> Result<usize, Errno> {
        let mut edge = Iocb::at(pos);
        edge.uncached = true;
        self.write(&mut edge, &mut iter.limited(len))
    }

    /// Writes whole pages, or some of them; returns the bytes.
    fn write_whole(
        &self,
        pos: u64,
        len: usize,
        iter: &mut IovIter<'_>,
        buffer: &mut PageVec<u8>,
    ) -> Result<usize, Errno> {
        let segment = match iter.io_segment(len) {
            Some(segment) => segment,
            None => {
                let len = len.min(BUFFER);
                let segment = buffered(buffer, len)?;
                // With nothing held: a fault may need the cache.
                let copied = iter.limited(len).copy_buffer(&mut buffer[..len]);
                match copied / PAGE_SIZE {
                    0 => return self.write_edge(pos, len.min(copied.max(1)), iter),
                    whole => segment.sub(0, whole * PAGE_SIZE),
                }
            }
        };
        match self.write_store(pos, segment) {
            Some(written) => written,
            None => self.write_edge(pos, segment.len(), iter),
        }
    }

    /// Writes whole pages to the store; returns the bytes, or `None` if they cannot leave the cache.
    fn write_store(&self, pos: u64, segment: IoSegment<'_>) -> Option<Result<usize, Errno>> {
        let end = pos + segment.len() as u64;
        let pages = PageIndex::of(pos).0..pages_for(end);
        let _exclusive = self.lock_unless_held_off(|| self.i_rwsem.write());
        let mut wb = self.lock_awaited();
        let _invalidate = self.invalidate_lock.write();
        if end > self.size() {
            self.zero_beyond_end();
        }
        if self.is_held(pages.clone()) {
            return None;
        }
        self.split_at(PageIndex(pages.start));
        self.split_at(PageIndex(pages.end));
        if !self.remove_written(&pages) {
            return None;
        }
        // Of a page that was evicted the windows have the frame until it is punched.
        self.unmap_pages(pages);
        self.ask_store(|ops| ops.look_before_writeback());
        // Before the write: its data is not durable, however it ends.
        self.direct.changed();
        let (mut done, mut result) = (0, Ok(()));
        while done < segment.len() && result.is_ok() {
            let rest = segment.sub(done, segment.len() - done);
            match self.ask_store(|ops| ops.writepages(pos + done as u64, &[rest])) {
                // No whole page, and no error that says why.
                Ok(written) if written < PAGE_SIZE => result = Err(Errno::EIO),
                Ok(written) => done += written.min(rest.len()) / PAGE_SIZE * PAGE_SIZE,
                Err(error) => result = Err(error),
            }
        }
        bump(&self.counters.written, done as u64);
        let end = pos + done as u64;
        if done > 0 {
            wb.store_size = wb.store_size.max(end);
            self.set_size(self.size().max(end));
        }
        self.bdi().queue_dirty(self);
        Some(match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        })
    }

    /// Takes all folios of a range from the cache; false if one may not go. Those that went are durable.
    fn remove_written(&self, pages: &Range<u64>) -> bool {
        if foliocache_sync::planted!(direct_write_leaves_old_pages) {
            return true;
        }
        let lock = |page| self.lock_folio(page);
        let mut all = true;
        self.for_each_folio(pages.clone(), lock, |locked| {
            let busy = flag::DIRTY | flag::UNSTABLE | flag::HELD;
            let free = !locked.state.load().has_any(busy) && locked.may(Operation::Remove);
            if locked.lies_in(pages) && free {
                self.remove_folio(locked);
            } else {
                all = false;
            }
        });
        all
    }
}

/// The first `len` bytes of the buffer, which is given room, as memory of an I/O.
fn buffered<'a>(buffer: &mut PageVec<u8>, len: usize) -> Result<IoSegment<'a>, Errno> {
    if buffer.is_empty() {
        *buffer = PageVec::<u8>::zeroed(BUFFER)?;
    }
    Ok(direct_map::segment(buffer.as_mut_ptr(), len))
}
