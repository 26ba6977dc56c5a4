//! Cutting the segments of an I/O into operations.
//!
//! # Model
//!
//! The pieces of an I/O cover it in order.
//!
//! ```text
//! segments --join neighbours--> runs --only one--> Linear
//!                                 \----several--> Vector, up to 1,024 runs
//! ```

use super::Op;
use super::piece::{Memory, Piece};
use crate::Errno;
use crate::fd::{IOV_MAX, IoSegment};

/// Longest operation. A multiple of every alignment that direct I/O asks for.
pub(super) const RUN_MAX: usize = 1 << 30;

/// Joins segments that follow each other in memory and calls `each` with the runs.
fn runs<'a>(segments: &[IoSegment<'a>], mut each: impl FnMut(IoSegment<'a>)) {
    let mut open: Option<IoSegment<'a>> = None;
    for segment in segments.iter().filter(|segment| !segment.is_empty()) {
        open = Some(match open {
            Some(run) if run.len().saturating_add(segment.len()) <= RUN_MAX => {
                match run.joined(segment) {
                    Some(longer) => longer,
                    None => {
                        each(run);
                        *segment
                    }
                }
            }
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

/// The pieces of one I/O, of at most `longest` bytes each.
///
/// # Errors
///
/// `EINVAL` when the range does not fit into a file.
pub(super) fn split<'a>(
    pos: u64,
    segments: &[IoSegment<'a>],
    longest: usize,
) -> Result<Vec<Piece<'a>>, Errno> {
    let total = segments
        .iter()
        .try_fold(0_usize, |sum, segment| sum.checked_add(segment.len()))
        .ok_or(Errno::EINVAL)?;
    let end = pos.checked_add(total as u64).ok_or(Errno::EINVAL)?;
    // Beyond this the kernel takes the position for a negative number, and -1 for "the current".
    if i64::try_from(end).is_err() {
        return Err(Errno::EINVAL);
    }
    let mut out = Splitter {
        pos,
        iov: Vec::new(),
        iov_len: 0,
        longest,
        pieces: Vec::new(),
    };
    runs(segments, |mut run| {
        let whole = run.len() == total;
        // One run may itself be longer than one operation takes.
        while !run.is_empty() {
            let len = run.len().min(longest);
            let part = run.sub(0, len);
            run = run.sub(len, run.len() - len);
            if whole {
                out.push(len, Memory::Linear(part));
            } else {
                out.scattered(part);
            }
        }
    });
    out.flush();
    debug_assert_eq!(out.pos, end);
    Ok(out.pieces)
}

/// Gathers scattered runs until something ends the vector.
struct Splitter<'a> {
    /// Where the next piece starts; the runs in `iov` come first.
    pos: u64,
    iov: Vec<libc::iovec>,
    iov_len: usize,
    longest: usize,
    pieces: Vec<Piece<'a>>,
}

impl<'a> Splitter<'a> {
    fn scattered(&mut self, mut run: IoSegment<'a>) {
        while !run.is_empty() {
            if self.iov.len() == IOV_MAX || self.iov_len == self.longest {
                self.flush();
            }
            let len = run.len().min(self.longest - self.iov_len);
            self.iov.push(run.sub(0, len).iovec());
            self.iov_len += len;
            run = run.sub(len, run.len() - len);
        }
    }

    fn flush(&mut self) {
        if !self.iov.is_empty() {
            let iov = std::mem::take(&mut self.iov);
            let len = std::mem::take(&mut self.iov_len);
            self.push(len, Memory::Vector { iov, first: 0 });
        }
    }

    fn push(&mut self, len: usize, memory: Memory<'a>) {
        self.pieces.push(Piece::new(self.pos, len, memory));
        self.pos += len as u64;
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
