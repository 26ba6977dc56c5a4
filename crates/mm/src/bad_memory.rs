//! Memory of the cache itself that fails.
//!
//! # Model
//!
//! Memory of the cache itself may fail under a copy, as bad RAM does. If the folio may be evicted it leaves the
//! index, its frames get new memory, and the copy starts over, from the store. If only the cache has the data
//! this access gets `EIO`; dirty data stays dirty, its writeback fails and is reported. Both are counted
//! (`MmStats::memory_faults`) and logged. Such a fault is survived only where the fault handlers are
//! installed; without them it kills the process, as in any program.

use foliocache_sys::Errno;

use crate::counters::bump;
use crate::folio::{LockedFolio, Operation};
use crate::records::{AddressSpace, Mm};

impl AddressSpace {
    /// Takes a folio whose memory failed under a copy out of the cache, so that it is read again.
    ///
    /// Context: holds `i_rwsem` at most, and the folio lock, which it gives up. Blocks for a grace period.
    ///
    /// # Errors
    /// `EIO` if nothing but the cache has the data; the folio stays as it is.
    #[cold]
    pub(crate) fn drop_bad_folio(&self, locked: LockedFolio<'_>) -> Result<(), Errno> {
        let mm: &Mm = self.mm();
        let (file, pos) = (self.ops.describe(), locked.index().pos());
        bump(&mm.events.memory_faults, 1);
        if !locked.may(Operation::Forget) {
            tracing::error!(file, pos, "memory failed under data that is nowhere else");
            return Err(Errno::EIO);
        }
        tracing::warn!(file, pos, "memory failed; the data is read again");
        // A punch gives a page of a linear range new memory.
        if let Some((frame, order)) = self.detach_folio(locked)
            && let Err(error) = mm.frames.free_bad(frame, order)
        {
            tracing::error!(%error, "frames in bad memory stay in use");
            bump(&mm.nr_unevictable, 1 << order);
        }
        Ok(())
    }
}
