//! One read or write of a range of a file, from the first submission to its end.
//!
//! # Model
//!
//! The pieces of an I/O cover it in order. The rest of a short piece is submitted again.
//!
//! # Invariants
//!
//! 1. `pos` is the file position of the bytes that are left in `memory`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{opcode, squeue, types};
use smallvec::SmallVec;

use crate::Errno;
use crate::fd::{self, Batch, Batches, IoSegment};
use crate::lock::sleep;

/// How often one piece is tried again when the kernel is short of memory.
pub(super) const MAX_RETRIES: u32 = 1000;

/// The next step for a piece after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Done,
    Again,
    /// A write that would wait for more than the device.
    Blocked,
}

/// Where the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// One operation.
pub(super) struct Piece {
    direction: Direction,
    pub(super) pos: u64,
    pub(super) memory: Batch,
    /// Bytes that were moved.
    pub(super) done: usize,
    /// Why it ended before all was moved.
    pub(super) error: Option<Errno>,
    /// How often the kernel said to try again without moving anything.
    retries: u32,
}

impl Piece {
    fn new(direction: Direction, pos: u64, memory: Batch) -> Piece {
        Piece {
            direction,
            pos,
            memory,
            done: 0,
            error: None,
            retries: 0,
        }
    }

    /// Takes the kernel's result of the piece's operation on `fd`.
    pub(super) fn complete(&mut self, fd: BorrowedFd<'_>, result: i32) -> Next {
        if let Ok(moved) = usize::try_from(result) {
            self.memory.advance(moved);
            self.pos += moved as u64;
            self.done += moved;
            self.retries = 0;
            return match moved == 0 || self.memory.left() == 0 {
                // All of it, or the end of the file.
                true => Next::Done,
                false => Next::Again,
            };
        }
        match Errno::from_raw(-result) {
            Errno::EAGAIN | Errno::EOPNOTSUPP if self.direction == Direction::Write => {
                self.retries += 1;
                return Next::Blocked;
            }
            Errno::EINTR | Errno::EAGAIN if self.retries < MAX_RETRIES => {
                self.retries += 1;
                if self.retries > 8 {
                    pause();
                }
                return Next::Again;
            }
            // Direct I/O may refuse the odd position that a cut at end of file leaves.
            Errno::EINVAL
                if self.direction == Direction::Read
                    && self.done > 0
                    && fd::at_end(fd, self.pos) => {}
            error => self.error = Some(error),
        }
        Next::Done
    }

    /// Whether it is a write that was refused twice, as it would wait.
    pub(super) fn is_blocked_again(&self) -> bool {
        self.retries > 1
    }

    /// Writes the rest without a ring; blocks.
    pub(super) fn write_blocking(&mut self, fd: BorrowedFd<'_>) -> Next {
        match fd::write_batch(fd, self.pos, &self.memory) {
            // No piece is that long.
            Ok(moved) => self.complete(fd, moved as i32),
            Err(error) => {
                self.error = Some(error);
                Next::Done
            }
        }
    }

    /// The operation that moves the rest of the piece.
    pub(super) fn entry(&self, fd: BorrowedFd<'_>) -> squeue::Entry {
        let (file, pos) = (types::Fd(fd.as_raw_fd()), self.pos);
        match (self.memory.runs(), self.direction) {
            ([run], direction) => {
                let (addr, len) = (run.iov_base.cast::<u8>(), run.iov_len as u32);
                match direction {
                    Direction::Read => opcode::Read::new(file, addr, len).offset(pos).build(),
                    Direction::Write => opcode::Write::new(file, addr, len)
                        .offset(pos)
                        .rw_flags(libc::RWF_NOWAIT)
                        .build(),
                }
            }
            (runs, direction) => {
                let (list, count) = (runs.as_ptr(), runs.len() as u32);
                match direction {
                    Direction::Read => opcode::Readv::new(file, list, count).offset(pos).build(),
                    Direction::Write => opcode::Writev::new(file, list, count)
                        .offset(pos)
                        .rw_flags(libc::RWF_NOWAIT)
                        .build(),
                }
            }
        }
    }
}

/// The pieces of one I/O, of at most `longest` bytes each.
///
/// # Errors
///
/// `EINVAL` when the range does not fit into a file.
pub(super) fn split(
    direction: Direction,
    mut pos: u64,
    segments: &[IoSegment<'_>],
    longest: usize,
) -> Result<SmallVec<[Piece; 1]>, Errno> {
    let mut lens = segments.iter().map(|segment| segment.len() as u64);
    let end = lens.try_fold(pos, u64::checked_add);
    // Beyond this the kernel takes the position for a negative number, and -1 for "the current".
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Errno::EINVAL);
    }
    let piece = |memory: Batch| {
        let piece = Piece::new(direction, pos, memory);
        pos += piece.memory.left() as u64;
        piece
    };
    Ok(Batches::new(segments, longest).map(piece).collect())
}

/// The result of one read, from the results of its pieces.
pub(super) fn outcome(pieces: &[Piece]) -> Result<usize, Errno> {
    let mut moved = 0;
    for piece in pieces {
        moved += piece.done;
        if piece.memory.left() > 0 {
            return piece.error.map_or(Ok(moved), Err);
        }
    }
    Ok(moved)
}

/// Sleeps a millisecond.
pub(super) fn pause() {
    sleep(Duration::from_millis(1));
}
