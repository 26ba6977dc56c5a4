//! The state of mapped files: windows, the area that they lie in, linear ranges, and pages held in memory.
//!
//! # Model
//!
//! State, and arithmetic on pages and addresses. The file of a window is a type parameter; a listener calls an implementation of
//! [`Resolve`]. The procedures are in `linear`, `window`, `vma` and `filemap`.

mod access;
mod error;
mod held;
mod linear;
mod listener;
mod streams;
mod tables;
mod window;
mod windows;

pub use access::{LockedAccess, VmaAccess};
pub use error::MapError;
pub(crate) use held::{Held, HoldKind, Holding, STABLE_BYTES, not_held, overlap};
pub(crate) use linear::{LinearFile, Wants};
pub(crate) use listener::{Listener, Resolve};
pub(crate) use streams::{Stream, Streams};
pub(crate) use window::Window;
pub use windows::FaultMode;
pub(crate) use windows::{Refusal, State, Windows};
