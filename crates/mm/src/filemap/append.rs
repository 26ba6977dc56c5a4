//! Appends that wait for nothing: whole at once, or not at all.
//!
//! # Model
//!
//! ```text
//!   i_rwsem exclusive, or EAGAIN ─▶ the end of the file ─▶ all that the append needs, or EAGAIN ─▶ written
//! ```
//!
//! An append that would stop on its way could not go on later: others may append meanwhile, and its bytes
//! would lie apart. So the memory for all of its folios is set aside before the first byte is copied.
//!
//! # Locking
//!
//! `i_rwsem` is held exclusive from the look at the end of the file to the last byte. It is tried, as every lock is.

use foliocache_sync::rank::RankedWriteGuard;
use foliocache_sys::Errno;

use crate::iocb::Iocb;
use crate::prepared::Prepared;
use crate::records::AddressSpace;
use crate::types::{PageIndex, offset_in_page, pages_for};

impl AddressSpace {
    /// Takes `i_rwsem` exclusive, for a write that goes beyond the end.
    ///
    /// # Errors
    /// `EAGAIN` with `nowait` where it would have to wait, also for the end of a file that was mapped, which is zeroed
    /// under a folio lock.
    pub(super) fn exclude_writers(&self, nowait: bool) -> Result<RankedWriteGuard<'_, ()>, Errno> {
        match nowait {
            false => Ok(self.lock_unless_held_off(|| self.i_rwsem.write())),
            true if self.linear.get().is_some() => Err(Errno::EAGAIN),
            true => {
                let exclusive = self.i_rwsem.try_write();
                let exclusive = exclusive.filter(|_| !self.holds_off_writers());
                exclusive.ok_or(Errno::EAGAIN)
            }
        }
    }

    /// The memory for an append of `len` bytes at `iocb.pos`, the end of the file, so that the append does not stop
    /// on its way.
    ///
    /// Context: `i_rwsem` held exclusive.
    ///
    /// # Errors
    /// `EAGAIN` where it would have to wait, or is long.
    pub(super) fn prepare_append(
        &self,
        iocb: &Iocb,
        len: usize,
    ) -> Result<Option<Prepared<'_>>, Errno> {
        self.bdi().check_dirty_pages(self, iocb.uncached)?;
        let end = iocb.pos + len as u64;
        let pages = PageIndex::of(iocb.pos)..PageIndex(pages_for(end));
        let nr_pages = pages.end.0 - pages.start.0;
        if nr_pages > self.write_batch() {
            return Err(Errno::EAGAIN);
        }
        // Where the last page is there and all fits beside it, nothing is needed. If it is evicted before it is locked
        // again it has to be read, before the first byte: so the append ends whole in that case, too.
        if offset_in_page(iocb.pos) != 0
            && let Some(locked) = self.lock_folio_nowait(pages.start)?
            && end <= locked.end().pos()
        {
            return Ok(None);
        }
        let mut prepared = self.try_prepare(pages).ok_or(Errno::EAGAIN)?;
        match prepared.reserve_folios(nr_pages as usize) {
            true => Ok(Some(prepared)),
            false => Err(Errno::EAGAIN),
        }
    }
}
