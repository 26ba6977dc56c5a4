//! Reads and writes in the background through io_uring, for a file's backing store.
//!
//! # Model
//!
//! An [`Engine`] takes one range of a file and a list of [`IoSegment`](crate::fd::IoSegment)s and
//! calls its caller back when the transfer has ended. A caller that waits uses
//! [`crate::fd::read_segments`] and [`crate::fd::write_segments`], which do the same things with the
//! same results: for one range at a time a ring is no faster, since the kernel itself cuts a long
//! transfer into requests that are in flight together (`docs/decisions/0024`).
//!
//! A range becomes as few operations as its memory allows:
//!
//! | memory | operation |
//! |---|---|
//! | one contiguous run | `READ`, `WRITE` |
//! | scattered | `READV`, `WRITEV`, up to 1,024 runs each |
//!
//! # Short transfers
//!
//! As in [`crate::fd`]: a read is short only at end of file, and any error wins over the bytes
//! before it; a write returns the bytes up to the first place that was not written, and the error
//! itself when that place is its start.
//!
//! # Forks
//!
//! Ring memory is not inherited by children. In a child every I/O is `ECHILD`, and dropping an
//! engine leaks its descriptor (closed by `exec`) rather than unmap memory that may belong to
//! somebody else by then.

mod engine;
mod lock;
mod piece;
mod ring;
mod split;
#[cfg(test)]
mod tests;

pub use engine::{Engine, EngineStats, IoDone};

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}
