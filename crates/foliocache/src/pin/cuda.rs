//! Pinned bytes that are registered with the GPU driver.
//!
//! # Safety
//!
//! The driver has memory only while it is pinned: it is unregistered before the pin is dropped, and where that fails the pin
//! is never dropped.
#![allow(unsafe_code)]

use foliocache_sys::Errno;
use foliocache_sys::cuda::{LIBRARY, Registration};
use std::ffi::CStr;
use std::fmt;
use std::mem::ManuallyDrop;

use super::FolioPin;
use crate::error::{CudaError, Error, Result};
use crate::parent_only::{Forked, ParentOnly};

/// Pinned bytes of a file that are registered with the GPU driver, for kernels and copies of a GPU, until this is
/// dropped; from [`FolioPin::register_cuda`].
///
/// It may be moved to another thread and outlives the [`File`](crate::File). Dropping it unregisters the memory, then drops
/// the pin; it blocks in the driver. All work of a GPU on the memory must have ended before. If the driver does not
/// unregister the memory, the pin stays until the process ends, so that no GPU writes to memory that is another
/// file's: [`Cache::pinned`](crate::Cache::pinned) shows it. In a forked child the drop does nothing.
#[must_use = "the bytes are registered until it is dropped"]
pub struct CudaPin(ParentOnly<Registered>);

/// A piece of memory as a GPU finds it: that of the [`PinnedPart`](crate::PinnedPart) with the same byte of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaPart {
    /// Where it begins: a `CUdeviceptr`, valid in all contexts of the process.
    pub device_addr: u64,
    /// Its bytes.
    pub len: usize,
    /// The byte of the file that it begins with.
    pub pos: u64,
}

struct Registered {
    memory: Registration,
    pin: ManuallyDrop<FolioPin>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.memory.end().is_ok() {
            // SAFETY: this is the only place that drops the pin, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.pin) };
        }
    }
}

impl Forked for Registered {
    fn check_fork(&self) -> Result<(), Errno> {
        self.pin.0.check_fork()
    }
}

impl FolioPin {
    /// Registers the memory with the GPU driver (`cuMemHostRegister`, for all contexts and with addresses for the
    /// device), in the primary context of a device, by its number: the context that the CUDA runtime uses. The driver's library,
    /// `libcuda.so.1`, is loaded at the first call. The pin must be a long-term one; for memory that a GPU writes it must
    /// be [`PinMode::WRITE`](crate::PinMode::WRITE).
    ///
    /// The driver registers whole pages, and each once: pins that share a page cannot both be registered. Blocks in the
    /// driver.
    ///
    /// # Errors
    /// [`Error::Cuda`], and the pin is dropped: `ENODEV` without the driver or the device, `EINVAL` for a short-term
    /// pin, `EBUSY` for memory that is registered, `ENOMEM`, `EIO` for other errors of the driver, which are named;
    /// `ECHILD` after a fork.
    #[doc(alias = "cuMemHostRegister")]
    pub fn register_cuda(self, device: i32) -> Result<CudaPin> {
        self.register(LIBRARY, device)
    }

    /// The same, with another library in place of the driver's.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn register_cuda_with(self, library: &CStr, device: i32) -> Result<CudaPin> {
        self.register(library, device)
    }

    fn register(self, library: &CStr, device: i32) -> Result<CudaPin> {
        let range = self.range();
        let file = match self.0.check_fork() {
            Ok(()) => self.0.folios.mapping().name(),
            Err(_) => "a file of the parent process".to_owned(),
        };
        let registered = || {
            self.0.check_fork()?;
            if !self.mode().long_term {
                return Err(CudaError::ShortTerm);
            }
            let mut registered = Registered {
                memory: Registration::new(library, device)?,
                pin: ManuallyDrop::new(self),
            };
            let parts = registered.pin.parts().map(|part| (part.addr, part.len));
            // SAFETY: the pin keeps the memory until `Registered::drop`, and whoever makes it promises no reference.
            unsafe { registered.memory.register(parts) }?;
            Ok(CudaPin(ParentOnly::new(registered)))
        };
        registered().map_err(|cause| Error::Cuda { file, range, cause })
    }
}

impl CudaPin {
    /// The pin: range, mode, and the addresses for the processor.
    pub fn pin(&self) -> &FolioPin {
        &self.0.pin
    }

    /// Where the bytes are for a GPU, in order: a piece for each folio. The pieces are registered one by one, so a copy
    /// of the driver's lies within one of them. In a forked child there are none.
    pub fn parts(&self) -> impl Iterator<Item = CudaPart> + '_ {
        let parts = self.0.pin.parts().zip(self.0.memory.device_addrs());
        parts.map(|(part, device_addr)| CudaPart {
            device_addr,
            len: part.len,
            pos: part.pos,
        })
    }
}

impl fmt::Debug for CudaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaPin").field(self.pin()).finish()
    }
}
