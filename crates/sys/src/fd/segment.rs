//! Memory that takes part in an I/O.
//!
//! # Model
//!
//! An [`IoSegment`] is an address and a length. The segments of one I/O are contiguous in the
//! *file*; in memory they may lie anywhere.
//!
//! # Invariants
//!
//! 1. The memory of a segment stays mapped, readable and writable for the segment's lifetime.
//! 2. While a segment exists, its memory is accessed only in ways that tolerate torn bytes: through
//!    another segment, a system call or a copy routine in assembly, never through a reference.
//!
//! # Safety
//!
//! Segments are made from raw memory by an unsafe constructor whose contract is the two
//! invariants; everything done with them afterwards is safe.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::IOV_MAX;
use crate::Errno;
use crate::usercopy::{self, CopyFault};

/// One piece of memory of an I/O. Plain data, copied freely.
#[derive(Clone, Copy, Debug)]
pub struct IoSegment<'a> {
    addr: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: invariants 1 and 2 hold whichever thread uses the memory.
unsafe impl Send for IoSegment<'_> {}
// SAFETY: a shared segment can do no more than a copy of it, which is `Send`.
unsafe impl Sync for IoSegment<'_> {}

impl<'a> IoSegment<'a> {
    /// A segment of `len` bytes at `addr`.
    ///
    /// # Safety
    ///
    /// For the lifetime `'a`, `addr..addr + len` is one mapped range, readable and writable. There
    /// is no reference to it, and no code relies on its bytes staying the same.
    pub const unsafe fn new(addr: *mut u8, len: usize) -> IoSegment<'a> {
        IoSegment {
            addr,
            len,
            memory: PhantomData,
        }
    }

    /// A segment over ordinary memory, borrowed as long as the segment or a copy of it lives.
    pub fn from_mut(buf: &'a mut [u8]) -> IoSegment<'a> {
        IoSegment {
            addr: buf.as_mut_ptr(),
            len: buf.len(),
            memory: PhantomData,
        }
    }

    /// The address of the first byte.
    pub const fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it names no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of the segment from byte `start` on, `len` bytes long.
    ///
    /// # Panics
    ///
    /// When the part is not inside the segment.
    pub fn sub(&self, start: usize, len: usize) -> IoSegment<'a> {
        let end = start
            .checked_add(len)
            .expect("a part of a segment has an end");
        assert!(
            end <= self.len,
            "part {start}..{end} of a segment of {} bytes",
            self.len
        );
        IoSegment {
            addr: self.addr.wrapping_add(start),
            len,
            ..*self
        }
    }

    /// This segment and `next` as one, when `next` goes on in memory where this one ends.
    pub fn joined(&self, next: &IoSegment<'a>) -> Option<IoSegment<'a>> {
        let meets = self.addr.wrapping_add(self.len) == next.addr;
        meets.then(|| IoSegment {
            len: self.len + next.len,
            ..*self
        })
    }

    /// Copies `bytes` into the segment from its byte `start` on. Bytes may tear against whoever
    /// else touches the memory. Does not block.
    ///
    /// # Panics
    ///
    /// When `bytes` do not fit.
    pub fn copy_from(&self, start: usize, bytes: &[u8]) {
        let part = self.sub(start, bytes.len());
        // SAFETY: `part` is inside the segment, so invariant 1 covers it; the copy is made by
        // assembly, as invariant 2 asks.
        let copied = unsafe { usercopy::copy(part.addr, bytes.as_ptr(), bytes.len()) };
        expect_mapped(copied);
    }

    /// Copies bytes of the segment from its byte `start` on into `bytes`. Bytes may tear against
    /// whoever else touches the memory. Does not block.
    ///
    /// # Panics
    ///
    /// When the segment has fewer bytes.
    pub fn copy_to(&self, start: usize, bytes: &mut [u8]) {
        let part = self.sub(start, bytes.len());
        // SAFETY: as in `copy_from`, in the other direction.
        let copied = unsafe { usercopy::copy(bytes.as_mut_ptr(), part.addr, bytes.len()) };
        expect_mapped(copied);
    }

    /// Zeroes `len` bytes from byte `start` on. Does not block.
    ///
    /// # Panics
    ///
    /// When the segment has fewer bytes.
    pub fn zero(&self, start: usize, len: usize) {
        let part = self.sub(start, len);
        // SAFETY: `part` is inside the segment, so invariant 1 covers it.
        let zeroed = unsafe { usercopy::zero(part.addr, len) };
        expect_mapped(zeroed);
    }
}

/// A range of a file to be written, and its result.
#[derive(Debug)]
pub struct Extent<'a> {
    /// Its first byte in the file.
    pub pos: u64,
    segments: Vec<IoSegment<'a>>,
    bytes: usize,
    /// The result, as [`write_segments`](super::write_segments) returns it; `None` until it is
    /// known.
    pub written: Option<Result<usize, Errno>>,
}

impl<'a> Extent<'a> {
    /// An extent that is not written yet.
    pub fn new(pos: u64, segments: Vec<IoSegment<'a>>) -> Extent<'a> {
        Extent {
            pos,
            bytes: segments.iter().map(IoSegment::len).sum(),
            segments,
            written: None,
        }
    }

    /// Appends memory, joined to the last segment where the two adjoin.
    pub fn push(&mut self, next: IoSegment<'a>) {
        self.bytes += next.len();
        match self.segments.last_mut() {
            Some(last) if let Some(joined) = last.joined(&next) => *last = joined,
            _ => self.segments.push(next),
        }
    }

    /// The memory that holds it.
    pub fn segments(&self) -> &[IoSegment<'a>] {
        &self.segments
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The byte of the file after its last.
    pub fn end(&self) -> u64 {
        self.pos + self.bytes as u64
    }
}

/// A fault here means that invariant 1 is broken, or that a slice maps a file which was truncated:
/// going on would lose bytes silently.
fn expect_mapped(copied: Result<(), CopyFault>) {
    assert!(copied.is_ok(), "memory of an I/O is not there: {copied:?}");
}

/// Most bytes of one operation. A multiple of every alignment that direct I/O asks for.
pub(super) const LONGEST: usize = 1 << 30;

/// The iovecs of one operation: the bytes left to be moved, up to [`IOV_MAX`] runs.
pub(crate) struct Batch {
    iov: SmallVec<[libc::iovec; 1]>,
    /// Runs before it are done.
    first: usize,
    left: usize,
}

// SAFETY: the addresses come from segments, which any thread may use.
unsafe impl Send for Batch {}

impl Batch {
    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Their runs, none of them empty.
    pub(crate) fn runs(&self) -> &[libc::iovec] {
        &self.iov[self.first..]
    }

    /// Takes `n` bytes off the front.
    ///
    /// # Panics
    ///
    /// When fewer are left.
    pub(crate) fn advance(&mut self, mut n: usize) {
        assert!(n <= self.left, "more bytes moved than asked");
        self.left -= n;
        while n > 0 {
            let run = &mut self.iov[self.first];
            let step = n.min(run.iov_len);
            run.iov_base = run.iov_base.wrapping_byte_add(step);
            run.iov_len -= step;
            n -= step;
            self.first += usize::from(run.iov_len == 0);
        }
    }
}

/// Cuts segments into batches of at most `longest` bytes, which cover them in order. Segments that follow each
/// other in memory become one run.
pub(crate) struct Batches<'s, 'a> {
    segments: &'s [IoSegment<'a>],
    /// Bytes of the first segment that are in a batch.
    skip: usize,
    longest: usize,
}

impl<'s, 'a> Batches<'s, 'a> {
    pub(crate) fn new(segments: &'s [IoSegment<'a>], longest: usize) -> Batches<'s, 'a> {
        Batches {
            segments,
            skip: 0,
            longest,
        }
    }
}

impl Iterator for Batches<'_, '_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let mut iov: SmallVec<[libc::iovec; 1]> =
            SmallVec::with_capacity(self.segments.len().min(IOV_MAX));
        let mut left = 0;
        while let [segment, rest @ ..] = self.segments
            && left < self.longest
        {
            let len = (segment.len - self.skip).min(self.longest - left);
            let at = segment.addr.wrapping_add(self.skip).cast();
            let full = iov.len() == IOV_MAX;
            match iov.last_mut() {
                _ if len == 0 => {}
                Some(run) if run.iov_base.wrapping_byte_add(run.iov_len) == at => {
                    run.iov_len += len
                }
                _ if full => break,
                _ => iov.push(libc::iovec {
                    iov_base: at,
                    iov_len: len,
                }),
            }
            left += len;
            self.skip += len;
            if self.skip == segment.len {
                (self.segments, self.skip) = (rest, 0);
            }
        }
        (left > 0).then_some(Batch {
            iov,
            first: 0,
            left,
        })
    }
}
