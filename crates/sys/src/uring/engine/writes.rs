//! Many writes at once, for a caller that waits for all of them.
//!
//! # Model
//!
//! The caller takes an idle ring, or makes one, and keeps [`DEPTH`] operations in flight until all have ended. Then
//! it puts the ring back. Nothing is in flight between two calls, so the thread may end, and no completion
//! interrupts unrelated work: the arguments against callers' rings for background reads do not apply. The worker
//! would serve these writes as fast, but its reads would queue behind their submission.
//!
//! A write that would wait for more than the device is refused by the ring (`RWF_NOWAIT`). It would give it to a thread of the kernel, one of
//! several for each thread of the application. One such write at a time is made without a ring, while others are in flight:
//!
//! ```text
//!  refused ──▶ the first of them: pwritev. That mostly takes the hindrance away, as when the file's times had to change
//!      └─────▶ the others: the ring once more ── refused again ──▶ pwritev, as for writes into holes
//! ```
//!
//! # Invariants
//!
//! 1. A ring that lies idle has no entry in its queues.
//! 2. `in_flight` counts the entries pushed whose completion was not taken yet. The pieces stay where they are until then; a
//!    [`Flight`] that is dropped earlier aborts the process.
//!
//! # Locking
//!
//! The list of idle rings is a leaf, and not held over I/O.
//!
//! # Safety
//!
//! Entries are pushed under invariant 2. Their memory is borrowed by the call.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use super::super::piece::{Direction, Next, Piece, split};
use super::super::ring::{Ring, abort};
use super::PIECE;
use crate::Errno;
use crate::fd::Extent;
use crate::lock::{Mutex, lock};

/// Most operations in flight: half of a disk's queue in the kernel, so that other processes find
/// room there.
const DEPTH: usize = 128;

/// Most bytes in flight.
const MOST_BYTES: usize = 8 * PIECE;

/// Most rings that are kept.
const IDLE: usize = 4;

/// The rings of an engine for callers that write.
#[derive(Default)]
pub(super) struct Writes {
    idle: Mutex<Vec<Ring>>,
}

impl Writes {
    /// Writes all of `extents`, and stores each one's result in it.
    ///
    /// # Errors
    /// There is no ring, or the kernel takes no more from it: extents without a result may or may
    /// not have been written.
    pub(super) fn write(
        &self,
        fd: BorrowedFd<'_>,
        extents: &mut [&mut Extent<'_>],
    ) -> Result<(), Errno> {
        let mut pieces = Vec::with_capacity(extents.len());
        // Where the pieces of each extent end.
        let mut ends = Vec::with_capacity(extents.len());
        for extent in extents.iter() {
            pieces.extend(split(
                Direction::Write,
                extent.pos,
                extent.segments(),
                PIECE,
            )?);
            ends.push(pieces.len());
        }
        let idle = lock(&self.idle).pop();
        let mut ring = match idle {
            Some(ring) => ring,
            None => Ring::for_any_thread(DEPTH as u32)?,
        };
        Flight::new(&mut ring, fd, &mut pieces).run()?;
        let mut start = 0;
        for (extent, end) in extents.iter_mut().zip(ends) {
            extent.written = Some(prefix(&pieces[start..end]));
            start = end;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE {
            idle.push(ring);
        }
        Ok(())
    }
}

/// The result of one extent: the bytes before its first unwritten one, or the error if there are
/// none.
fn prefix(pieces: &[Piece]) -> Result<usize, Errno> {
    let mut written = 0;
    for piece in pieces {
        written += piece.done;
        if piece.memory.left() > 0 {
            let error = piece.error.unwrap_or(Errno::EIO);
            return if written == 0 {
                Err(error)
            } else {
                Ok(written)
            };
        }
    }
    Ok(written)
}

/// A call's operations.
struct Flight<'f> {
    ring: &'f mut Ring,
    fd: BorrowedFd<'f>,
    pieces: &'f mut [Piece],
    /// Pieces from here on were not pushed yet.
    next: usize,
    /// Pieces that came back short.
    again: Vec<usize>,
    /// Pieces that would wait.
    blocked: Vec<usize>,
    /// Invariant 2.
    in_flight: usize,
    bytes_in_flight: usize,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.in_flight > 0 && !self.ring.broken {
            abort("unwinding with writes in flight");
        }
    }
}

impl<'f> Flight<'f> {
    fn new(ring: &'f mut Ring, fd: BorrowedFd<'f>, pieces: &'f mut [Piece]) -> Flight<'f> {
        Flight {
            ring,
            fd,
            pieces,
            next: 0,
            again: Vec::new(),
            blocked: Vec::new(),
            in_flight: 0,
            bytes_in_flight: 0,
        }
    }

    fn run(&mut self) -> Result<(), Errno> {
        loop {
            self.push();
            self.write_one_blocked();
            if self.in_flight == 0 {
                if self.again.is_empty() && self.blocked.is_empty() {
                    return Ok(());
                }
                continue;
            }
            // Not one by one: a call costs as much as several submissions.
            let enough = self.in_flight.div_ceil(4);
            if let Err(error) = self.ring.enter(enough) {
                self.ring.abandon(self.in_flight, |_| true);
                return Err(error);
            }
            self.reap();
        }
    }

    fn push(&mut self) {
        while self.in_flight < DEPTH && self.bytes_in_flight < MOST_BYTES {
            let at = match self.again.pop() {
                Some(at) => at,
                None if self.next < self.pieces.len() => {
                    self.next += 1;
                    self.next - 1
                }
                None => return,
            };
            let piece = &self.pieces[at];
            let entry = piece.entry(self.fd).user_data(at as u64);
            // SAFETY: invariant 2: all that the entry points to outlives its completion.
            let pushed = unsafe { self.ring.kernel.submission().push(&entry) };
            // The queue is emptied by every successful `enter` and is as long as the depth.
            assert!(pushed.is_ok(), "the submission queue is full");
            self.in_flight += 1;
            self.bytes_in_flight += piece.memory.left();
        }
    }

    fn reap(&mut self) {
        for entry in self.ring.kernel.completion() {
            let at = entry.user_data() as usize;
            let piece = &mut self.pieces[at];
            self.in_flight -= 1;
            self.bytes_in_flight -= piece.memory.left();
            match piece.complete(self.fd, entry.result()) {
                Next::Done => {}
                Next::Again => self.again.push(at),
                Next::Blocked => self.blocked.push(at),
            }
        }
    }

    /// Writes one of the pieces that would wait, and has the ring try those again that it has refused once.
    fn write_one_blocked(&mut self) {
        let Some(at) = self.blocked.pop() else { return };
        // Submitted operations continue meanwhile.
        let _ = self.ring.kernel.submit();
        match self.pieces[at].write_blocking(self.fd) {
            Next::Done => {}
            Next::Again => self.again.push(at),
            Next::Blocked => self.blocked.push(at),
        }
        let pieces = &self.pieces;
        let once = self
            .blocked
            .extract_if(.., |&mut at| !pieces[at].is_blocked_again());
        self.again.extend(once);
    }
}
