//! The one room of foliocache that makes system calls.
//!
//! # Model
//!
//! Nothing here knows a file, a folio or a cache: each module wraps one thing that the kernel
//! offers, so that everything above it can be written without `unsafe` and without errno numbers.
#![deny(unsafe_code)]

pub mod barrier;
pub mod clock;
pub mod cpu;
pub mod credentials;
pub mod dir;
pub mod errno;
pub mod event;
pub mod exit;
pub mod fanotify;
pub mod fd;
pub mod fork;
pub mod inotify;
pub mod inside;
mod lock;
pub mod memory;
mod page;
pub mod peer;
pub mod pressure;
pub mod process;
pub mod signal;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod uring;
pub mod usercopy;
pub mod userfaultfd;
pub mod windows;

pub use errno::Errno;
