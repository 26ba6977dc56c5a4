//! Cutting the segments of an I/O into operations.
//!
//! # Model
//!
//! A [`Piece`] is one operation on one contiguous range of the file; the pieces of an [`Io`] cover
//! it in order. A piece that comes back short is shortened from the front by what was moved and
//! submitted again.
//!
//! # Invariants
//!
//! 1. `pos + done` is the file position, and `memory` the memory, of the bytes still to be moved:
//!    `len - done` of them.

use super::{Io, Op};
use crate::Errno;
use crate::fd::{IOV_MAX, IoSegment};

/// Shortest run that is worth an operation of its own to use a registered buffer.
pub(super) const FIXED_MIN: usize = 64 << 10;

/// Longest run of one operation. A multiple of every alignment that direct I/O asks for.
const RUN_MAX: usize = 1 << 30;

/// Where the bytes of a piece are in memory.
pub(super) enum Memory<'a> {
    /// One run; in a registered buffer when `slot` is there.
    Linear {
        run: IoSegment<'a>,
        slot: Option<u16>,
    },
    /// Scattered; those before `first` are done.
    Vector { iov: Vec<libc::iovec>, first: usize },
}

/// One operation.
pub(super) struct Piece<'a> {
    /// Index of the [`Io`] it belongs to.
    pub(super) io: usize,
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

impl Piece<'_> {
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
            Memory::Linear { run, .. } => *run = run.sub(n, run.len() - n),
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
}

/// Joins segments that follow each other in memory and calls `each` with the runs.
fn runs<'a>(segments: &[IoSegment<'a>], mut each: impl FnMut(IoSegment<'a>)) {
    let mut open: Option<IoSegment<'a>> = None;
    for segment in segments.iter().filter(|segment| !segment.is_empty()) {
        open = Some(match open {
            Some(run) if run.len() + segment.len() <= RUN_MAX => match run.joined(segment) {
                Some(longer) => longer,
                None => {
                    each(run);
                    *segment
                }
            },
            Some(run) => {
                each(run);
                *segment
            }
            None => *segment,
        });
    }
    if let Some(run) = open {
        each(run);
    }
}

/// The pieces of `io`, the `index`th of its batch, appended to `pieces`. `usable` says which
/// blocks are in the ring's table.
///
/// # Errors
///
/// `EINVAL` when the range does not fit into a file.
pub(super) fn split<'a>(
    index: usize,
    io: &Io<'a>,
    usable: impl Fn(u32) -> bool,
    pieces: &mut Vec<Piece<'a>>,
) -> Result<(), Errno> {
    let total = io
        .segments
        .iter()
        .try_fold(0_usize, |sum, segment| sum.checked_add(segment.len()))
        .ok_or(Errno::EINVAL)?;
    let end = io.pos.checked_add(total as u64).ok_or(Errno::EINVAL)?;
    // Beyond this the kernel takes the position for a negative number, and -1 for "the current".
    if i64::try_from(end).is_err() {
        return Err(Errno::EINVAL);
    }
    let mut out = Splitter {
        io: index,
        pos: io.pos,
        iov: Vec::new(),
        iov_len: 0,
        pieces,
    };
    runs(io.segments, |mut run| {
        // One segment may itself be longer than one operation takes.
        while !run.is_empty() {
            let len = run.len().min(RUN_MAX);
            let part = run.sub(0, len);
            run = run.sub(len, run.len() - len);
            let slot = part
                .block()
                .filter(|&block| usable(block))
                .and_then(|block| u16::try_from(block).ok());
            if len == total || (slot.is_some() && len >= FIXED_MIN) {
                out.linear(part, slot);
            } else {
                out.scattered(part);
            }
        }
    });
    out.flush();
    debug_assert_eq!(out.pos, end);
    Ok(())
}

/// Gathers scattered runs until something ends the vector.
struct Splitter<'p, 'a> {
    io: usize,
    /// Where the next piece starts; the runs in `iov` come first.
    pos: u64,
    iov: Vec<libc::iovec>,
    iov_len: usize,
    pieces: &'p mut Vec<Piece<'a>>,
}

impl<'a> Splitter<'_, 'a> {
    fn linear(&mut self, run: IoSegment<'a>, slot: Option<u16>) {
        self.flush();
        self.push(run.len(), Memory::Linear { run, slot });
    }

    fn scattered(&mut self, run: IoSegment<'a>) {
        if self.iov.len() == IOV_MAX || self.iov_len + run.len() > RUN_MAX {
            self.flush();
        }
        self.iov.push(run.iovec());
        self.iov_len += run.len();
    }

    fn flush(&mut self) {
        if !self.iov.is_empty() {
            let iov = std::mem::take(&mut self.iov);
            let len = std::mem::take(&mut self.iov_len);
            self.push(len, Memory::Vector { iov, first: 0 });
        }
    }

    fn push(&mut self, len: usize, memory: Memory<'a>) {
        let (io, pos) = (self.io, self.pos);
        self.pos += len as u64;
        self.pieces.push(Piece {
            io,
            pos,
            len,
            done: 0,
            memory,
            error: None,
            ended: false,
            retries: 0,
        });
    }
}

/// What became of the pieces of one I/O, as its caller is told.
pub(super) fn outcome<'p, 'a: 'p>(
    op: Op,
    pieces: impl Iterator<Item = &'p Piece<'a>>,
) -> Result<usize, Errno> {
    let mut moved = 0;
    for piece in pieces {
        moved += piece.done;
        if piece.is_complete() {
            continue;
        }
        return match piece.error {
            Some(e) if op == Op::Read || moved == 0 => Err(e),
            _ => Ok(moved),
        };
    }
    Ok(moved)
}
