//! The memory of a handle, charged to the bound.

use super::OpenFile;
use foliocache_mm::{MetadataCharge, Mm, ReadaheadState};
use foliocache_sys::Errno;
use std::mem;

/// The memory of a handle, charged to the bound before the handle is made. The handle gives it back.
#[derive(Debug)]
pub struct HandleCharge<'a>(&'a Mm);

impl<'a> HandleCharge<'a> {
    /// The handle is made, and gives the memory back when it goes.
    pub(super) fn keep(self) {
        mem::forget(self);
    }

    /// Returns the charge of a dropped handle.
    pub(super) fn give_back(mm: &'a Mm) {
        drop(Self(mm));
    }
}

impl Drop for HandleCharge<'_> {
    fn drop(&mut self) {
        if self.0.check_fork().is_ok() {
            self.0.uncharge_metadata(OpenFile::bytes());
        }
    }
}

impl OpenFile {
    /// Charges the bound of `mm` for a handle; for a new file, before it is created.
    ///
    /// # Errors
    /// `ENOMEM` if there is no room.
    pub fn charge(mm: &Mm) -> Result<HandleCharge<'_>, Errno> {
        mm.charge_used_metadata(Self::bytes(), MetadataCharge::PATIENCE)?;
        Ok(HandleCharge(mm))
    }

    /// As [`OpenFile::charge`], without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if there is no room now.
    pub fn charge_at_once(mm: &Mm) -> Result<HandleCharge<'_>, Errno> {
        match mm.try_charge_metadata(Self::bytes()) {
            true => Ok(HandleCharge(mm)),
            false => Err(Errno::EAGAIN),
        }
    }

    /// The memory of a handle.
    fn bytes() -> u64 {
        (size_of::<OpenFile>() + ReadaheadState::FIRST_BYTES) as u64
    }
}
