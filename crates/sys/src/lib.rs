//! The one room of foliocache that makes system calls.
//!
//! # Model
//!
//! Nothing here knows a file, a folio or a cache: each module wraps one thing that the kernel
//! offers, so that everything above it can be written without `unsafe` and without errno numbers.
//!
//! | module | what it wraps |
//! |---|---|
//! | [`errno`] | error numbers as a type |
//! | [`clock`] | coarse wall time and monotonic time, without a system call |
#![deny(unsafe_code)]

pub mod clock;
pub mod errno;

pub use errno::Errno;
