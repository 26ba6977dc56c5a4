//! Changing the bound, and getting below it.
//!
//! # Model
//!
//! ```text
//!   set_limit ─▶ evict what the queues give up ─▶ wholly free blocks ─▶ evacuate the emptiest
//!                (coldest first)                                         (what stays is moved)
//! ```
//!
//! A folio is not dropped because of the block that it lies in, as long as there is a place to move it to.

use foliocache_sync::MutexGuard;
use std::time::Duration;

use crate::error::MmError;
use crate::frames::{BLOCK_SIZE, Frames};
use crate::mm::Mm;

/// What a limit must leave beside a block and the descriptors there are, for index nodes.
const METADATA_FLOOR: u64 = 1 << 20;

/// Frames evicted beyond what the new bound needs, so that there is a place to move folios to.
const MOVE_ROOM: u64 = 64;

/// Frames evicted before a look at what is still to go.
const EVICT_BATCH: u64 = 512;

/// Looks without progress before giving back is left to the background.
const MAX_IDLE: u32 = 3;

/// How long folios that were busy have between two looks.
const PAUSE: Duration = Duration::from_millis(2);

impl Mm {
    /// Sets the bound to `bytes`, at once for whatever is taken from now on.
    ///
    /// Shrinking gives whole blocks back: the coldest folios go, others move to blocks that stay.
    /// What cannot go at once (dirty data that has to be written first) goes in the background.
    /// While memory is short outside the cache, a smaller bound is kept, see
    /// [`PressureStats`](crate::PressureStats).
    ///
    /// Context: may block while folios are moved; not for I/O.
    ///
    /// # Errors
    /// A limit that exceeds the machine, or is too small beside descriptors, memory file systems and data
    /// that could not be written; `ECHILD` after a fork.
    pub fn set_limit(&self, bytes: u64) -> Result<(), MmError> {
        self.check_fork()?;
        // Descriptors that were ever in use stay; what cannot be reclaimed keeps to its budget.
        let blocks = self.unreclaimable().needed();
        let min = Frames::limit_for(blocks, self.folios.bytes() + METADATA_FLOOR);
        if bytes < min {
            return Err(MmError::LimitTooSmall { limit: bytes, min });
        }
        self.pressure.configure(&self.frames, bytes, self.held())?;
        if self.give_back_excess(Some(self.giving_back.lock())) > 0 {
            self.background.wake();
        }
        Ok(())
    }

    /// Gives back as much of what is over the limit as is possible now, if the caller is `alone`, with
    /// `giving_back` locked: two would each evict all that has to go. Returns the bytes that are left.
    ///
    /// Context: may block for a few milliseconds at a time, while folios are busy; not for I/O.
    pub(crate) fn give_back_excess(&self, alone: Option<MutexGuard<'_, ()>>) -> u64 {
        let (mut least, mut idle) = (u64::MAX, 0);
        loop {
            let excess = self.frames.excess();
            if excess == 0 {
                return 0;
            }
            (least, idle) = match excess < least {
                true => (excess, 0),
                false => (least, idle + 1),
            };
            if alone.is_none() || idle == MAX_IDLE {
                // Most of what stays waits to be written.
                self.request_writeback();
                return excess;
            }
            if idle > 0 {
                foliocache_sync::time::sleep(PAUSE);
            }
            self.nodes.shrink();
            self.evict_deficit();
            self.frames.trim(true);
            let blocks = self.frames.excess().div_ceil(BLOCK_SIZE as u64);
            self.evacuate_blocks(blocks as usize);
        }
    }

    /// Evicts until there are frames to reserve, and some to move folios to, as far as folios are clean.
    fn evict_deficit(&self) {
        loop {
            // Whoever waits for memory evicts too, so that it shrinks faster than by our doing.
            let deficit = self.frames.deficit();
            if deficit == 0 || self.shrink_lru((deficit + MOVE_ROOM).min(EVICT_BATCH) as usize) == 0
            {
                return;
            }
        }
    }
}
