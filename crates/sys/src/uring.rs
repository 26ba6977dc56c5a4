//! Positional I/O through io_uring, for a file's backing store: blocking, and in the background.
//!
//! # Model
//!
//! A [`Ring`] takes a batch of reads and writes, keeps up to its depth of them in flight, and
//! returns when the last one is over: a blocking caller uses it for depth and for registered
//! buffers, and reaps what it submitted without another thread. A [`RingPool`] lends rings to
//! threads and keeps one table of registered buffers alike in all of them. An [`Engine`] does the
//! same I/O for callers that do not wait. Whoever finds no ring free uses [`crate::fd::read_segments`] and
//! [`crate::fd::write_segments`], which do the same things with the same results.
//!
//! An [`Io`] is one range of a file and a list of [`IoSegment`]s. It becomes as few operations as
//! its memory allows:
//!
//! | memory | operation |
//! |---|---|
//! | one contiguous run inside one registered buffer, 64 KiB or more or the whole `Io` | `READ_FIXED`, `WRITE_FIXED` |
//! | one contiguous run elsewhere | `READ`, `WRITE` |
//! | scattered | `READV`, `WRITEV`, up to 1,024 pieces each |
//!
//! Short runs in registered buffers go vectored together with their neighbours: what a fixed
//! buffer saves (pinning the pages again) is less than what a further command to the disk costs.
//! Direct reads of 32 pages scattered in memory and contiguous in the file took 1.14 times as long
//! as 32 fixed operations than as one vector; a fixed buffer saved 4 % of reads of 4 and 64 KiB and
//! nothing of 1 MiB (`examples/ring_speed.rs`, a virtual disk of 30 microseconds).
//!
//! # Invariants
//!
//! 1. When [`Ring::submit_and_wait`] returns, by whatever way, no operation on the caller's memory
//!    is in flight or waiting to be submitted to a kernel that could still take it. Where that
//!    cannot be reached the process is aborted with a message.
//! 2. A ring's buffer table holds a slot only while [`RingPool`]'s table, or the caller of
//!    [`Ring::update_buffer`], says that its memory is valid.
//!
//! # Short transfers
//!
//! As in [`crate::fd`]: a read is short only at end of file, and any error wins over the bytes
//! before it; a write returns the bytes up to the first place that was not written, and the error
//! itself when that place is its start.
//!
//! # Forks
//!
//! Ring memory is not inherited by children. In a child every I/O is `ECHILD`, a pool lends
//! nothing, and dropping a ring leaks its descriptor (closed by `exec`) rather than unmap memory
//! that may belong to somebody else by then.

use std::os::fd::BorrowedFd;

use crate::fd::IoSegment;

mod engine;
mod lock;
mod piece;
mod pool;
mod ring;
mod split;
#[cfg(test)]
mod tests;

pub use engine::{Engine, EngineStats, IoDone};
pub use pool::{RingGuard, RingPool, RingPoolStats};
pub use ring::{MAX_BUFFERS, Ring};

/// The direction of an [`Io`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

/// One range of a file to read or write.
#[derive(Clone, Copy, Debug)]
pub struct Io<'a> {
    /// The direction.
    pub op: Op,
    /// The file.
    pub fd: BorrowedFd<'a>,
    /// Where the range starts, in bytes.
    pub pos: u64,
    /// The memory, contiguous in the file from `pos` on.
    pub segments: &'a [IoSegment<'a>],
}
