//! Reads in the background and many writes at once through io_uring, for a file's backing store.
//!
//! # Model
//!
//! An [`Engine`] takes one range of a file and a list of [`IoSegment`](crate::fd::IoSegment)s and
//! calls its caller back when the read has ended, with what [`crate::fd::read_segments`] would return. That
//! is for callers that wait: for one range at a time a ring is no faster, since the kernel itself cuts a long
//! transfer into requests that are in flight together (`docs/decisions/0024`).
//!
//! A caller that waits hands many ranges over to be written at once ([`Engine::write_all`]), through a ring of its own.
//!
//! A range becomes as few operations as its memory allows: `READ` for one contiguous run, and `READV`
//! for up to 1,024.
//!
//! # Forks
//!
//! Ring memory is not inherited by children. In a child every I/O is `ECHILD`, and dropping an
//! engine leaks its descriptor (closed by `exec`) rather than unmap memory that may belong to
//! somebody else by then.

mod engine;
mod piece;
mod ring;
#[cfg(test)]
mod tests;

pub use engine::{Engine, EngineStats, IoDone};
