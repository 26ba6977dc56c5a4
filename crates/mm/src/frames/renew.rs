//! New memory for frames whose memory went bad.
//!
//! # Safety
//!
//! The one unsafe call gives memory back; its premise is that of a block that is given back: the frames
//! belong to the caller alone, and a grace period has passed since they belonged to a folio.
#![allow(unsafe_code)]

use super::{FrameNumber, Frames};
use foliocache_sync::rcu;
use foliocache_sys::Errno;

impl Frames {
    /// Frees 2^`order` frames, the first of which is `frame`, with new memory in place of theirs, which
    /// cannot be accessed any more. Where the kernel refuses they stay in use for ever.
    ///
    /// Context: no folio has the frames since before the call, and no I/O is under way to them. Waits
    /// for a grace period; no lock of rank `Frames` or inner.
    pub(crate) fn free_bad(&self, frame: FrameNumber, order: u32) -> Result<(), Errno> {
        rcu::synchronize();
        let start = (frame.as_u32() as usize) << crate::PAGE_SHIFT;
        let range = start..start + (crate::PAGE_SIZE << order);
        // SAFETY: the frames are the caller's, so nobody else copies or does I/O to or from them, and
        // readers that saw them in a folio are gone.
        unsafe { self.range.give_back(range.clone()) }?;
        // What took the access away may not have been the memory.
        self.range.activate(range.clone(), false)?;
        if let Err(error) = self.range.populate(range) {
            // The frames are usable all the same: each page comes with its first touch.
            tracing::warn!(%error, "new memory for frames could not be populated");
        }
        self.free(frame, order);
        Ok(())
    }
}
