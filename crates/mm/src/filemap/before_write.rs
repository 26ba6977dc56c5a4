//! The questions of a write to the store before it makes anything dirty: did others change the file, and is there
//! room?
//!
//! A file that is all in the store may be changed there by others. A write of a part of a page brings back the rest of
//! it as it is cached; so the store is asked first where the file may have changed. While something is dirty it is asked
//! before that is written back ([`writeback`](crate::writeback)).

use foliocache_sys::Errno;

use crate::dirty::{UNASKED, UnaskedWrite};
use crate::iocb::Iocb;
use crate::records::AddressSpace;
use crate::types::end_of;
use crate::writeback::ReservedSpace;

/// Keeps room for a write until its bytes are dirty: either the room that it asked for, or its right not to ask.
type SpaceForWrite<'a> = (Option<ReservedSpace<'a>>, Option<UnaskedWrite<'a>>);

impl AddressSpace {
    /// Begins a write to a clean page that need not ask the store; `None` if it has to.
    #[inline]
    pub(super) fn begin_without_asking(&self) -> Option<UnaskedWrite<'_>> {
        let asks = self.ops.is_shared() && !self.has_pages_to_write();
        match asks || self.holds_off_writers() {
            true => None,
            false => self.bdi().begin_unasked(),
        }
    }

    /// Whether such a write can be.
    pub(super) fn check_write(&self, pos: u64, len: usize) -> Result<(), Errno> {
        self.mm().check_fork()?;
        end_of(pos, len as u64).ok_or(Errno::EFBIG)?;
        self.bdi().check_failed_cap()
    }

    /// Asks the store whether others changed the file, before the first write to a file that is all in the store.
    ///
    /// Context: nothing held; may block unless `nowait`, and then for reads under way if somebody changed the file.
    ///
    /// # Errors
    /// `EAGAIN` with `nowait`, where it would have to wait.
    pub(super) fn look_before_write(&self, nowait: bool) -> Result<(), Errno> {
        if !self.ops.is_shared()
            || self.has_pages_to_write()
            || self.mm().check_fork().is_err()
            || !self.ops.may_have_changed()
        {
            return Ok(());
        }
        match self.ask_store(|ops| ops.look_before_write(nowait)) {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }

    /// Room in the store for a write, where it is scarce or the write is large. Errors of the write itself are found
    /// later.
    pub(super) fn space_for_write(
        &self,
        iocb: &Iocb,
        len: usize,
    ) -> Result<SpaceForWrite<'_>, Errno> {
        if (len as u64) < UNASKED
            && let Some(unasked) = self.bdi().begin_unasked()
        {
            return Ok((None, Some(unasked)));
        }
        let pos = if iocb.append { self.size() } else { iocb.pos };
        match end_of(pos, len as u64).filter(|_| self.mm().check_fork().is_ok()) {
            Some(_) if iocb.nowait => Err(Errno::EAGAIN),
            Some(end) => Ok((self.reserve_space(&(pos..end))?, None)),
            None => Ok((None, None)),
        }
    }

    /// After a write that did not ask: if room became scarce meanwhile others may have got what this one needs. So it is
    /// written at once.
    ///
    /// Context: nothing held; may block for I/O then.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`: the data is dirty, and may never find room.
    pub(super) fn check_space_after(&self, asked: bool) -> Result<(), Errno> {
        if asked || !self.bdi().is_scarce() {
            return Ok(());
        }
        self.fdatawrite();
        self.bdi().full().map_or(Ok(()), Err)
    }
}
