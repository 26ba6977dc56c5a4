//! Pins that their holder gives up on request, and pins for which others are given up: their part of a pin (decision 95).
//!
//! # Locking
//!
//! The registry is a leaf. It is taken with no folio locked, once before the pin is made, once when it is complete and once
//! after it was counted off.

use foliocache_sys::Errno;
use std::ops::Range;

use super::{FolioPin, PinError, PinMode};
use crate::pins::{Callback, PinEvent, RevokeReason};
use crate::readahead::ReadaheadState;
use crate::records::{AddressSpace, Mm};
use crate::revoke::Revoking;
use crate::types::{PAGE_SHIFT, PageIndex, pages_for};

impl AddressSpace {
    /// As [`AddressSpace::pin`], for long, with a holder that is asked to give the pin up when an operation needs its pages.
    /// A thread of the cache calls `callback`, with no lock held; see [`PinEvent`].
    ///
    /// # Errors
    /// As [`AddressSpace::pin`]; `EAGAIN` also while a smaller bound, or a pin without a callback, waits for revocable
    /// pins; `EAGAIN` or `ENOMEM` where the kernel refuses the first such pin its thread.
    pub fn pin_revocable(
        &self,
        handle: &ReadaheadState,
        bytes: Range<u64>,
        mode: PinMode,
        callback: impl Fn(PinEvent) + Send + Sync + 'static,
    ) -> Result<FolioPin, PinError> {
        self.mm().check_fork()?;
        if bytes.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        self.mm().start_revoker()?;
        let number = self.add_revocable(&bytes, Callback::new(callback))?;
        match self.pin(handle, bytes, mode.long_term()) {
            Ok(mut pin) => {
                pin.revocable = number;
                self.mm().pins.revocable.lock().complete(number);
                Ok(pin)
            }
            Err(error) => {
                self.end_revocable(number);
                Err(error)
            }
        }
    }

    /// Registers a pin that is about to be made; its number.
    ///
    /// # Errors
    /// [`PinError::Barred`] while an operation asks pins wherever they are.
    fn add_revocable(&self, bytes: &Range<u64>, callback: Callback) -> Result<u32, PinError> {
        let pages = PageIndex::of(bytes.start).0..pages_for(bytes.end);
        let counts = !self.bdi().is_memory();
        let added = (self.mm().pins.revocable.lock()).add(self.id(), pages, counts, callback);
        // The callback is dropped without the lock.
        added.map_err(|_| PinError::Barred)
    }

    /// Takes a pin off the list, after it was counted off (invariant 2 of `revoke.rs`).
    #[cold]
    pub(super) fn end_revocable(&self, number: u32) {
        let callback = self.mm().pins.revocable.lock().remove(number);
        // The program's code may run: no lock is held.
        drop(callback);
    }
}

impl Mm {
    /// Whether a revocable pin was given up for a folio of `wanted` bytes of one that is not, so that this may be tried
    /// again.
    #[cold]
    pub(super) fn revoke_for_pin<'a>(
        &'a self,
        revoking: &mut Option<Revoking<'a>>,
        wanted: u64,
    ) -> bool {
        if self.pins.revocable.lock().is_making() {
            return false;
        }
        let counted = |pages, counts| if counts { pages } else { 0 };
        self.revoke_pins(
            revoking,
            RevokeReason::Budget,
            wanted >> PAGE_SHIFT,
            counted,
        )
    }
}
