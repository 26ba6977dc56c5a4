//! One operation on one contiguous range of a file, from the first submission to its end.
//!
//! # Model
//!
//! A piece that comes back short is shortened from the front by what was moved and submitted again.
//!
//! # Invariants
//!
//! 1. `pos + done` is the file position, and `memory` the memory, of the bytes still to be moved:
//!    `len - done` of them.
//!
//! # Safety
//!
//! A piece only carries addresses: whoever submits it answers for the memory behind them.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{opcode, squeue, types};

use super::Op;
use crate::Errno;
use crate::fd::{self, IoSegment};

/// How often one piece is tried again when the kernel is short of memory.
pub(super) const MAX_RETRIES: u32 = 1000;

/// What is to be done with a piece after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Done,
    Again,
}

/// Where the bytes of a piece are in memory.
pub(super) enum Memory<'a> {
    /// One run.
    Linear(IoSegment<'a>),
    /// Scattered; those before `first` are done.
    Vector { iov: Vec<libc::iovec>, first: usize },
}

// SAFETY: the addresses in a vector come from segments, which any thread may use.
unsafe impl Send for Memory<'_> {}

/// One operation.
pub(super) struct Piece<'a> {
    pub(super) pos: u64,
    pub(super) len: usize,
    pub(super) done: usize,
    pub(super) memory: Memory<'a>,
    /// Why it ended before all was moved.
    pub(super) error: Option<Errno>,
    /// Whether nothing more will be submitted for it.
    pub(super) ended: bool,
    /// How often the kernel said to try again without moving anything.
    pub(super) retries: u32,
}

impl<'a> Piece<'a> {
    pub(super) fn new(pos: u64, len: usize, memory: Memory<'a>) -> Piece<'a> {
        Piece {
            pos,
            len,
            done: 0,
            memory,
            error: None,
            ended: false,
            retries: 0,
        }
    }

    /// Notes that `n` more bytes were moved.
    ///
    /// # Panics
    ///
    /// When fewer were asked for.
    pub(super) fn advance(&mut self, n: usize) {
        assert!(
            n <= self.len - self.done,
            "an operation moved more bytes than asked"
        );
        self.done += n;
        self.retries = 0;
        match &mut self.memory {
            Memory::Linear(run) => *run = run.sub(n, run.len() - n),
            Memory::Vector { iov, first } => {
                let mut left = n;
                while left > 0 {
                    let head = &mut iov[*first];
                    let step = left.min(head.iov_len);
                    head.iov_base = head.iov_base.wrapping_byte_add(step);
                    head.iov_len -= step;
                    left -= step;
                    if head.iov_len == 0 {
                        *first += 1;
                    }
                }
            }
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.done == self.len
    }

    /// Takes in what the kernel said of the piece's operation on `fd`.
    pub(super) fn complete(&mut self, op: Op, fd: BorrowedFd<'_>, result: i32) -> Next {
        let next = self.take_in(op, fd, result);
        self.ended = next == Next::Done;
        next
    }

    fn take_in(&mut self, op: Op, fd: BorrowedFd<'_>, result: i32) -> Next {
        if let Ok(moved) = usize::try_from(result) {
            self.advance(moved);
            return match (self.is_complete(), moved, op) {
                (true, ..) => Next::Done,
                // End of file.
                (false, 0, Op::Read) => Next::Done,
                (false, 0, Op::Write) => {
                    self.error = Some(Errno::EIO);
                    Next::Done
                }
                (false, ..) => Next::Again,
            };
        }
        match Errno::from_raw(-result) {
            Errno::EINTR | Errno::EAGAIN if self.retries < MAX_RETRIES => {
                self.retries += 1;
                if self.retries > 8 {
                    pause();
                }
                return Next::Again;
            }
            // Direct I/O may refuse the odd position that a cut at end of file leaves.
            Errno::EINVAL
                if op == Op::Read
                    && self.done > 0
                    && fd::at_end(fd, self.pos + self.done as u64) => {}
            error => self.error = Some(error),
        }
        Next::Done
    }

    /// The operation that moves what is left of the piece.
    pub(super) fn entry(&self, op: Op, fd: BorrowedFd<'_>) -> squeue::Entry {
        let file = types::Fd(fd.as_raw_fd());
        let pos = self.pos + self.done as u64;
        match &self.memory {
            Memory::Linear(run) => {
                // Runs are at most 1 GiB.
                let (addr, len) = (run.addr(), run.len() as u32);
                match op {
                    Op::Read => opcode::Read::new(file, addr, len).offset(pos).build(),
                    Op::Write => opcode::Write::new(file, addr, len).offset(pos).build(),
                }
            }
            Memory::Vector { iov, first } => {
                let iov = &iov[*first..];
                let (list, count) = (iov.as_ptr(), iov.len() as u32);
                match op {
                    Op::Read => opcode::Readv::new(file, list, count).offset(pos).build(),
                    Op::Write => opcode::Writev::new(file, list, count).offset(pos).build(),
                }
            }
        }
    }
}

/// Sleeps a millisecond, or less when a signal comes.
pub(super) fn pause() {
    let request = rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let _ = rustix::thread::nanosleep(&request);
}
