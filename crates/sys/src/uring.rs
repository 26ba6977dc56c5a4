//! Reads in the background and many writes at once through io_uring, for a file's backing store.
//!
//! # Model
//!
//! An [`Engine`] takes one range of a file and a list of [`IoSegment`](crate::fd::IoSegment)s and calls its caller
//! back when the read has ended, with the result that [`crate::fd::read_segments`] would return. It is not for
//! callers that wait for one range at a time: for them a ring is no faster, since the kernel itself cuts a long
//! transfer into requests that are in flight together (`docs/decisions/0024`).
//!
//! A caller that waits hands over many ranges to be written at once ([`Engine::write_all`]), and
//! uses a ring that the worker does not share.
//!
//! A range becomes as few operations as its memory allows: `READ` for one contiguous run, and `READV`
//! for up to 1,024.
//!
//! # Forks
//!
//! Children do not inherit ring memory. In a child every I/O is `ECHILD`, and dropping an engine
//! leaks its descriptor (closed by `exec`), because unmapping could hit memory that took the ring's
//! place.

mod engine;
mod piece;
mod ring;
#[cfg(test)]
mod tests;

pub use engine::{Engine, EngineStats, IoDone};
