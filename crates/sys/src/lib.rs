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
//! | [`memory`] | one reserved address range: activate, populate, give back |
//! | [`fork`] | a one-load test for being a forked child |
//! | [`barrier`] | memory barriers that cost the reader nothing |
//! | [`fd`] | positional file I/O, durability, attributes |
//! | [`dir`] | names below a directory descriptor, mount points |
//! | [`usercopy`] | a copy that survives a fault |
//! | [`uring`] | reads and writes in the background through io_uring |
//! | [`pressure`] | how short of memory the surroundings are |
//! | [`credentials`] | the process's user, group and umask |
//! | [`signal`] | signals that a thread waits for |
//! | [`cpu`] | how many processors there may be |
//! | [`clock`] | coarse wall time and monotonic time, without a system call |
#![deny(unsafe_code)]

pub mod barrier;
pub mod clock;
pub mod cpu;
pub mod credentials;
pub mod dir;
pub mod errno;
pub mod fd;
pub mod fork;
pub mod memory;
pub mod pressure;
pub mod signal;
pub mod uring;
pub mod usercopy;

pub use errno::Errno;
