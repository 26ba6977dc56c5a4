//! Pins that are registered with the driver.
//!
//! # Safety
//!
//! Memory is registered with the driver only while it is pinned: it is unregistered before the pin is dropped, and
//! if that fails the pin is never dropped.
#![allow(unsafe_code)]

use foliocache::{Errno, FolioPin};
use std::ffi::CStr;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;

use crate::driver::{DriverError, LIBRARY, Registration};

/// Pinned bytes of a file that are registered with the GPU driver, for kernels and copies of a GPU, until this is
/// dropped; from [`register`].
///
/// It may be moved to another thread and outlives the [`File`](foliocache::File). Dropping it unregisters the memory, then drops
/// the pin; it blocks in the driver. All work of a GPU on the memory must have ended before. If the driver does not
/// unregister the memory, the pin stays until the process ends, so that no GPU writes to memory that is another
/// file's: [`Cache::pinned`](foliocache::Cache::pinned) shows it. In a forked child the drop does nothing.
#[must_use = "the bytes are registered until it is dropped"]
pub struct CudaPin {
    memory: ManuallyDrop<Registration>,
    pin: ManuallyDrop<FolioPin>,
}

/// A piece of memory as a GPU finds it: that of the [`PinnedPart`](foliocache::PinnedPart) with the same byte of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaPart {
    /// Where it begins: a `CUdeviceptr`, valid in all contexts of the process.
    pub device_addr: u64,
    /// Its bytes.
    pub len: usize,
    /// The byte of the file that it begins with.
    pub pos: u64,
}

/// Pinned bytes of a file could not be registered with the GPU driver.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot register {file}, bytes {}..{}, with the GPU driver: {cause}", .range.start, .range.end)]
#[non_exhaustive]
pub struct Error {
    /// The file, as its file system names it.
    pub file: String,
    /// The bytes.
    pub range: Range<u64>,
    /// The cause.
    #[source]
    pub cause: Cause,
}

/// The cause of an [`Error`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The pin is a short-term one, which others wait for, and the end of a registration is not known.
    #[error("the pin is short-term, and others would wait for it: pin with PinMode::long_term")]
    ShortTerm,
    /// The driver is missing, lacks the device, or refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// This is a forked child, and the pin is its parent's.
    #[error("{}", Errno::ECHILD)]
    Forked,
}

impl Error {
    /// The error number that is nearest.
    pub fn errno(&self) -> Errno {
        match &self.cause {
            Cause::ShortTerm => Errno::EINVAL,
            Cause::Driver(error) => error.errno(),
            Cause::Forked => Errno::ECHILD,
        }
    }
}

/// Registers pinned memory with the GPU driver (`cuMemHostRegister`, for all contexts and with addresses for the
/// device), in the primary context of a device, by its number: the context that the CUDA runtime uses. The driver's library,
/// `libcuda.so.1`, is loaded at the first call. The pin must be a long-term one; for memory that a GPU writes it must
/// be [`PinMode::WRITE`](foliocache::PinMode::WRITE).
///
/// The driver registers whole pages, and each once: pins that share a page cannot both be registered. Blocks in the
/// driver.
///
/// # Errors
/// The pin is dropped: `ENODEV` without the driver or the device, `EINVAL` for a short-term pin, `EBUSY` for memory that is
/// registered, `ENOMEM`, `EIO` for other errors of the driver, which are named; `ECHILD` after a fork.
#[doc(alias = "cuMemHostRegister")]
pub fn register(pin: FolioPin, device: i32) -> Result<CudaPin, Error> {
    // SAFETY: the library of this name is NVIDIA's driver.
    unsafe { register_with(LIBRARY, pin, device) }
}

/// As [`register`], with the driver's library under another name or path.
///
/// # Errors
/// As [`register`].
///
/// # Safety
/// The library's functions with names of `cuda.h` (11.0 and later) have its types and behave as its
/// documentation says.
pub unsafe fn register_with(library: &CStr, pin: FolioPin, device: i32) -> Result<CudaPin, Error> {
    let range = pin.range();
    let file = pin.file();
    let registered = || {
        if file.is_err() {
            return Err(Cause::Forked);
        }
        if !pin.mode().long_term {
            return Err(Cause::ShortTerm);
        }
        let mut registered = CudaPin {
            memory: ManuallyDrop::new(Registration::new(library, device)?),
            pin: ManuallyDrop::new(pin),
        };
        let parts = registered.pin.parts().map(|part| (part.addr, part.len));
        // SAFETY: the pin keeps the memory until `CudaPin::drop`, and the caller of `File::pin` makes no reference to it.
        unsafe { registered.memory.register(parts) }?;
        Ok(registered)
    };
    registered().map_err(|cause| {
        let file = file.unwrap_or_else(|_| "a file of the parent process".to_owned());
        Error { file, range, cause }
    })
}

impl CudaPin {
    /// The pin: range, mode, and the addresses for the processor.
    pub fn pin(&self) -> &FolioPin {
        &self.pin
    }

    /// Where the bytes are for a GPU, in order: a piece for each folio. The pieces are registered one by one, so a copy
    /// of the driver's lies within one of them. In a forked child there are none.
    pub fn parts(&self) -> impl Iterator<Item = CudaPart> + '_ {
        let parts = self.pin.parts().zip(self.memory.device_addrs());
        parts.map(|(part, device_addr)| CudaPart {
            device_addr,
            len: part.len,
            pos: part.pos,
        })
    }
}

impl Drop for CudaPin {
    fn drop(&mut self) {
        // A pin has at least one part, and none in a forked child, where driver and pin are the parent's.
        if self.pin.parts().next().is_none() {
            return;
        }
        if self.memory.end().is_ok() {
            // SAFETY: this is the only place that drops the pin, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.pin) };
        }
        // SAFETY: this is the only place that drops the registration, and it runs once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl fmt::Debug for CudaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaPin").field(&*self.pin).finish()
    }
}
