//! The operations on a file's cached pages: read, write, fill, truncate.
//!
//! # Bad memory
//!
//! Memory of the cache itself may fail under a copy, as bad RAM does. If the folio may be evicted it leaves the
//! index, its frames get new memory, and the copy starts over, from the store. If only the cache has the data
//! this access gets `EIO`; dirty data stays dirty, its writeback fails and is reported. Both are counted
//! (`MmStats::memory_faults`) and logged. Such a fault is survived only where the fault handlers are
//! installed; without them it kills the process, as in any program.

mod append;
mod appended;
mod batch;
mod before_write;
mod copies;
mod direct;
mod exact;
mod fault;
mod fill;
mod held;
mod held_off;
mod in_place;
mod nowait;
mod pin;
mod read;
mod reader;
mod replace;
mod split;
mod truncate;
mod uncached;
mod uses;
mod view;
mod write;
mod write_hit;

pub use batch::{Batch, Request, read_batch};
pub use exact::{ViewRequest, view_batch};
pub use nowait::Fetch;
pub use pin::{FolioPin, PinError, PinMode, PinnedPart};
#[cfg(loom)]
pub(crate) use split::split_in_index;

use foliocache_sys::Errno;

use crate::counters::bump;
use crate::folio::{LockedFolio, Operation};
use crate::iov::Stopped;
use crate::records::AddressSpace;
use crate::records::Mm;

/// Times that one copy starts over because of bad memory.
const BAD_MEMORY_RETRIES: usize = 4;

/// Times that huge frames are asked for again that others took meanwhile.
const REFUSALS: usize = 8;

/// Whether a copy stopped in the cache's own memory.
#[inline]
fn memory_failed<T>(copied: &Result<T, Stopped>) -> bool {
    matches!(copied, Err(stopped) if !stopped.callers_side)
}

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
        bump(&mm.memory_faults, 1);
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
