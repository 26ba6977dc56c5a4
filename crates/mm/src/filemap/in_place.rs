//! Reading in place: bytes of a file where they lie in the cache, for a caller that copies them itself, as
//! a front door does whose answer is one more copy.
//!
//! # Model
//!
//! It is offered, not promised: where a page is missing, is locked, or does not adjoin the one before it in memory,
//! nothing is read in place and the caller reads as usual.
//!
//! # Invariants
//!
//! 1. While bytes are read in place the folios that hold them are locked: they are not stored into, moved or evicted.
//!
//! # Locking
//!
//! Folio locks, several, ascending, taken only where they are free, and held while the caller
//! copies. A writer of the same folio waits for that long; readers do not.
//!
//! # Safety
//!
//! With [`super::view`] this is where references into the direct map are made. The premise here is invariant 1
//! with what the folio lock means: every store into a frame of a file is made under the lock of its folio, or through a window or a pin for a
//! device's writes, which rule a reference out. Reads beside it, by readers without a lock and by write-out, do no harm.
#![allow(unsafe_code)]

use std::ptr;

use crate::fill::FolioUse;
use crate::folio::{LockedFolio, flag};
use crate::iocb::Iocb;
use crate::readahead::ReadaheadState;
use crate::records::AddressSpace;
use crate::types::PageIndex;

impl AddressSpace {
    /// Runs `with` on the bytes from `iocb.pos` on, `len` of them or as many as the file has, without
    /// copying them; `None`, without having run it, if they do not lie ready in one piece.
    ///
    /// Neither blocks nor takes memory of the bound. Counts as a read by `handle`.
    ///
    /// Context: `with` runs under folio locks. It must not use this cache, and should be no longer
    /// than a copy: writers of the same folios wait for it.
    pub fn read_in_place<R>(
        &self,
        handle: &ReadaheadState,
        iocb: &Iocb,
        len: usize,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let pos = iocb.pos;
        self.mm().check_fork().ok()?;
        let end = self.size().min(pos.saturating_add(len as u64));
        if pos >= end {
            return None;
        }
        let mut held: Vec<LockedFolio<'_>> = Vec::new();
        let mut start = ptr::null();
        let mut at = pos;
        while at < end {
            let locked = self.try_lock_folio(PageIndex::of(at))?;
            let (addr, readable) = self.readable(&locked, at);
            // Through a window or a pin the program or a device could store into it meanwhile.
            if readable == 0
                || locked.state.load().has_any(flag::MAPPED | flag::HELD)
                || locked.hold_counts().device_writes() > 0
            {
                return None;
            }
            if at == pos {
                start = addr;
            } else if start.wrapping_add((at - pos) as usize) != addr {
                return None;
            }
            held.push(locked);
            at += readable as u64;
        }
        // A truncate that changed the size meanwhile may have zeroed what it cut off before we had
        // the lock; one that comes now waits for the lock.
        let end = self.size().min(end);
        let len = end.checked_sub(pos).filter(|&len| len > 0)? as usize;
        // SAFETY: `start` on lie `at - pos >= len` bytes in a row of the frames of the folios in
        // `held`, mapped and initialised because they are uptodate. Nobody stores into them
        // (invariant 1) before `held` is dropped, after the last use.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        let result = with(bytes);
        let first_uses = self.note_read_in_place(handle, iocb, end, &held);
        drop(held);
        for (page, order) in first_uses {
            self.used_readahead(handle, page, order, false);
        }
        Some(result)
    }

    /// Counts a read of the same bytes; returns the folios that readahead brought in and that were not used before,
    /// each by the first page read of it, and its order.
    fn note_read_in_place(
        &self,
        handle: &ReadaheadState,
        iocb: &Iocb,
        end: u64,
        held: &[LockedFolio<'_>],
    ) -> Vec<(PageIndex, u32)> {
        let mut first_uses = Vec::new();
        let mut at = iocb.pos;
        for locked in held {
            let seen = locked.state.load();
            let next = locked.end().pos().min(end);
            let bytes = at..next;
            let (kind, first) = FolioUse::mark(handle, locked, &bytes, (false, iocb.fetched));
            self.keep_used(locked, seen);
            if first {
                first_uses.push((PageIndex::of(at), locked.order()));
            }
            self.count_use(kind, at, (next - at) as usize);
            handle.note_read(bytes);
            at = next;
        }
        first_uses
    }
}
