//! Write hits: stores to bytes of one cached folio, as most writes are.
//!
//! # Model
//!
//! ```text
//!   find the folio, try its lock ── not uptodate, past the size, or in use? no hit: see `write`
//!     grains of more pages than are stored to? split it until a grain is a page
//!     copy, mark dirty, unlock
//! ```
//!
//! A grain of a large folio is several pages, and writeback would write all of them for a store to one. The split
//! leaves the frames where they are; later stores find small folios.
//!
//! # Locking
//!
//! A hit, of bytes that lie in one folio, uptodate and within the size, takes its lock alone. Truncate
//! and punch come wholly before it or after it (decision 1).

use crate::dirty::UnaskedWrite;
use crate::folio::state::Snapshot;
use crate::folio::{Identity, LockedFolio, flag, grains};
use crate::iocb::Iocb;
use crate::iov::{IovIter, Iovec, Stopped};
use crate::records::AddressSpace;
use crate::types::PageIndex;

/// A folio that is locked for a write within it.
pub(super) struct WriteHit<'a> {
    locked: LockedFolio<'a>,
    seen: Snapshot,
    addr: *mut u8,
    /// Of a page that was clean.
    unasked: Option<UnaskedWrite<'a>>,
}

impl AddressSpace {
    /// Writes `bytes` at `pos` over bytes of one cached folio, as most writes do, and returns how many:
    /// none, if they are not that, or if anything went wrong. [`AddressSpace::write`] does the rest.
    /// Does not block, but for the dirty limits.
    #[inline]
    pub fn overwrite(&self, pos: u64, bytes: &[u8]) -> usize {
        self.overwrite_iovec(pos, Iovec::source(bytes))
    }

    /// As [`AddressSpace::overwrite`]: the path of most hits, apart from others so that its arguments fit
    /// into registers.
    #[inline(never)]
    pub(super) fn overwrite_iovec(&self, pos: u64, from: Iovec<'_>) -> usize {
        let Some(hit) = self.begin_hit(pos, from.len()) else {
            return 0;
        };
        let result = from.copy_to_frame(hit.addr);
        self.end_hit(hit, pos, from.len(), result.err(), false)
    }

    /// As [`AddressSpace::overwrite`], with all of `iter`, which stays where it is.
    pub(super) fn overwrite_iovecs(&self, iocb: &Iocb, iter: &IovIter<'_>) -> usize {
        let len = iter.remaining();
        let Some(hit) = self.begin_hit(iocb.pos, len) else {
            return 0;
        };
        let result = iter.copy_to_frame(hit.addr, len);
        self.end_hit(hit, iocb.pos, len, result.err(), iocb.nowait)
    }

    /// Locks the one cached folio in which the `len` bytes at `pos` lie, if they do and may be written.
    #[inline(always)]
    pub(super) fn begin_hit(&self, pos: u64, len: usize) -> Option<WriteHit<'_>> {
        self.mm().check_fork().ok()?;
        self.bdi().check_failed_cap().ok()?;
        let (locked, seen, identity) = self.try_lock_seen(PageIndex::of(pos))?;
        let offset = identity.offset(pos);
        // None at all is not a hit, either.
        if len.wrapping_sub(1) >= identity.bytes() - offset || pos + len as u64 > self.size() {
            return None;
        }
        if !seen.has(flag::UPTODATE) && !locked.has_grains(offset..offset + len) {
            return None;
        }
        if grains::spill(identity.order, &(offset..offset + len)) {
            return self.begin_hit_in_part(locked, pos, len);
        }
        self.hit(locked, seen, identity, pos)
    }

    /// As [`AddressSpace::begin_hit`], in a locked folio whose grains are too large for the store.
    #[cold]
    fn begin_hit_in_part<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        pos: u64,
        len: usize,
    ) -> Option<WriteHit<'a>> {
        let part = self.split_to_pages(locked, pos);
        let identity = part.identity();
        // It may go across the end of the part.
        if pos + len as u64 > part.end().pos() {
            return None;
        }
        let seen = part.state.load();
        self.hit(part, seen, identity, pos)
    }

    /// Where to store to, at byte `pos` of the file in a locked folio.
    #[inline(always)]
    fn hit<'a>(
        &'a self,
        locked: LockedFolio<'a>,
        seen: Snapshot,
        identity: Identity,
        pos: u64,
    ) -> Option<WriteHit<'a>> {
        let unasked = match seen.has(flag::DIRTY) || self.bdi().is_memory() {
            true => None,
            false => Some(self.begin_without_asking()?),
        };
        if locked.hold_counts().is_viewed() {
            return None;
        }
        let offset = identity.offset(pos);
        Some(WriteHit {
            addr: self.mm().frames.addr(identity.frame).wrapping_add(offset),
            locked,
            seen,
            unasked,
        })
    }

    /// The end of a hit whose copy of `len` bytes to `pos` was `stopped`, if so. Returns how many are there:
    /// they are the file's then, also if the rest meets an error.
    #[inline(always)]
    pub(super) fn end_hit(
        &self,
        hit: WriteHit<'_>,
        pos: u64,
        len: usize,
        stopped: Option<Stopped>,
        nowait: bool,
    ) -> usize {
        let copied = match stopped {
            None => len,
            Some(stopped) if stopped.callers_side => stopped.copied,
            Some(_) => {
                let _ = self.drop_bad_folio(hit.locked);
                return 0;
            }
        };
        // A page that was dirty stays so; one that has no store never is.
        let changes_nothing = match self.bdi().is_memory() {
            true => hit.seen.is_in_use(),
            false => {
                hit.seen.has(flag::DIRTY)
                    && !hit.seen.has(flag::DROPBEHIND)
                    && hit.seen.order() == 0
                    && !hit.locked.has_margins()
            }
        };
        if !changes_nothing && copied > 0 {
            self.note_hit(hit, pos, copied, nowait);
        }
        copied
    }

    /// The end of a hit of `len` bytes at `pos` that changes more of their folio than them.
    fn note_hit(&self, hit: WriteHit<'_>, pos: u64, len: usize, nowait: bool) {
        let (locked, unasked) = (hit.locked, hit.unasked);
        let seen = locked.state.load();
        let offset = locked.identity().offset(pos);
        if foliocache_sync::planted!(unstable_dropped_by_a_write) {
            self.clear_unstable(&locked);
        }
        let dirtied = self.mark_dirty(&locked, offset..offset + len);
        drop(unasked);
        self.keep_used(&locked, seen);
        if !seen.has(flag::DIRTY) {
            locked.mark_accessed(seen);
        }
        drop(locked);
        if !nowait {
            // The bytes are in the file; the next write gets a stored error.
            let _ = self.bdi().balance_dirty_pages(self, dirtied, false);
        }
    }
}
