//! Pinned bytes of [`foliocache`] files that are registered with the CUDA driver, so that GPUs use them in place.
//!
//! ```no_run
//! use foliocache::{File, PinMode};
//!
//! # fn launch(part: foliocache_cuda::CudaPart) {}
//! # fn synchronize() {}
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = foliocache::Cache::builder().build()?.memfs()?.create("f")?;
//! let pin = file.pin(.., PinMode::WRITE.long_term())?;
//! let gpu = foliocache_cuda::register(pin, 0)?;
//! for part in gpu.parts() {
//!     launch(part); // part.device_addr is a CUdeviceptr
//! }
//! synchronize();
//! drop(gpu); // unregisters, then unpins
//! file.sync_data()?;
//! # Ok(())
//! # }
//! ```
//!
//! The driver's library, `libcuda.so.1`, is loaded at the first call and not linked. So the crate builds and runs everywhere, and
//! the call fails where there is no driver. `docs/pinning.md` in the repository has the rules.
#![deny(unsafe_code)]

mod driver;
mod pin;

pub use driver::DriverError;
pub use pin::{Cause, CudaPart, CudaPin, Error, register, register_with};
