//! The caller's memory: the destination of a read, the source of a write.
//!
//! # Model
//!
//! An [`IovIter`] is a position in a list of iovecs. The cache copies between it and folios
//! with `usercopy`, which stops at a fault, and only ever resolves faults through
//! [`IovIter::fault_in`], with no lock held.
//!
//! # Safety
//!
//! Pieces made from slices are valid by construction. Pieces made from raw pointers may be bad in
//! every way where the fault handlers are installed; without them the caller vouches for them.
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::marker::PhantomData;

use foliocache_sys::fd::IoSegment;
use foliocache_sys::usercopy::{self, CopyFault, Side};
use foliocache_sys::windows;

use crate::types::PAGE_SIZE;

/// Times that memory is touched again that was gone before it was copied.
const COPY_TRIES: u32 = 16;

/// Memory of a caller that lies in a row.
///
/// Valid as the constructors of [`IovIter`] say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iovec<'a> {
    addr: *mut u8,
    len: usize,
    _memory: PhantomData<&'a [u8]>,
}

/// A position in a caller's memory, of iovecs one after another.
#[doc(alias = "iov_iter")]
#[derive(Clone, Debug)]
pub struct IovIter<'a> {
    /// The iovec the position is in, from the position on.
    current: Iovec<'a>,
    /// Iovecs after it; a read has one iovec.
    rest: std::slice::Iter<'a, IoSlice<'a>>,
    remaining: usize,
    direction: Direction,
    /// It is memory of Rust's, which is there as long as the value.
    borrowed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// The memory is a write's source.
    Source,
    /// The memory is a read's destination.
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) copied: usize,
    /// Whether the caller's memory faulted; else it was the folio's.
    pub(crate) callers_side: bool,
}

/// A copy that did not begin: the caller's memory is a mapping, and goes through a buffer.
const NOTHING: Stopped = Stopped {
    copied: 0,
    callers_side: true,
};

impl<'a> Iovec<'a> {
    #[inline]
    fn new(addr: *mut u8, len: usize) -> Self {
        Self {
            addr,
            len,
            _memory: PhantomData,
        }
    }

    /// The bytes that a write takes.
    #[inline]
    pub(crate) fn source(bytes: &'a [u8]) -> Self {
        Self::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// The bytes that a read fills.
    #[inline]
    pub(crate) fn destination(bytes: &'a mut [u8]) -> Self {
        Self::new(bytes.as_mut_ptr(), bytes.len())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first `len` bytes of it, or all.
    #[inline]
    pub(crate) fn first(self, len: usize) -> Self {
        Self::new(self.addr, self.len.min(len))
    }

    /// Fills it from `frame`, up to a fault; returns its length.
    ///
    /// Resolves no fault: it ends at one. The kernel's own faults (a page not touched yet) are
    /// the exception that cannot be seen from here; they never need this cache.
    #[inline(always)]
    pub(crate) fn copy_from_frame(self, frame: *const u8) -> Result<usize, Stopped> {
        // SAFETY: the frame is in the direct map, readable as long as the cache lives, and what is
        // read there is validated afterwards; the iovec is valid.
        unsafe { self.copy(self.addr, frame, Side::Destination) }
    }

    /// Copies it to `frame`, up to a fault; returns its length. Resolves no fault, as
    /// [`Iovec::copy_from_frame`].
    ///
    /// Context: the folio of `frame` is locked, or nobody else knows it.
    #[inline(always)]
    pub(crate) fn copy_to_frame(self, frame: *mut u8) -> Result<usize, Stopped> {
        // SAFETY: the frame is in the direct map, writable as long as the cache lives, and the
        // caller may write it; the iovec is valid.
        unsafe { self.copy(frame, self.addr, Side::Source) }
    }

    /// Copies as many bytes as it has; it is at `callers` of the copy.
    ///
    /// # Safety
    /// As for [`usercopy::copy`].
    #[inline(always)]
    unsafe fn copy(self, to: *mut u8, from: *const u8, callers: Side) -> Result<usize, Stopped> {
        if self.is_mapped() {
            return Err(NOTHING);
        }
        // SAFETY: the caller's.
        match unsafe { usercopy::copy(to, from, self.len) } {
            Ok(()) => Ok(self.len),
            Err(fault) => Err(self.stopped(fault, callers)),
        }
    }

    /// Whether a fault in it may wait for a thread of a cache, which may need what its toucher holds.
    #[inline(always)]
    fn is_mapped(self) -> bool {
        windows::overlaps(self.addr, self.len)
    }

    #[cold]
    fn stopped(self, fault: CopyFault, callers: Side) -> Stopped {
        Stopped {
            copied: self.len - fault.left,
            callers_side: fault.side == callers,
        }
    }
}

impl<'a> IovIter<'a> {
    /// The bytes that a write takes.
    #[inline]
    pub fn source(bytes: &'a [u8]) -> Self {
        Self::single(Iovec::source(bytes), Direction::Source)
    }

    /// The bytes that a read fills.
    #[inline]
    pub fn destination(bytes: &'a mut [u8]) -> Self {
        Self::single(Iovec::destination(bytes), Direction::Destination)
    }

    /// The bytes that a vectored write takes.
    pub fn sources(slices: &'a [IoSlice<'a>]) -> Self {
        Self {
            rest: slices.iter(),
            remaining: slices.iter().map(|slice| slice.len()).sum(),
            ..Self::source(&[])
        }
    }

    /// `len` bytes at `addr` that a write takes, wherever that points to.
    ///
    /// # Safety
    /// For the life of the value the bytes are readable, or the fault handlers are installed
    /// ([`foliocache_sys::usercopy::install_handlers`]); then bad memory ends the write with
    /// `EFAULT`. They may change meanwhile; the write then takes what it finds.
    pub unsafe fn raw_source(addr: *const u8, len: usize) -> Self {
        Self {
            borrowed: false,
            ..Self::single(Iovec::new(addr.cast_mut(), len), Direction::Source)
        }
    }

    /// `len` bytes at `addr` that a read fills, wherever that points to.
    ///
    /// # Safety
    /// As for [`IovIter::raw_source`], with *writable* for *readable*, and nothing else relies on
    /// the bytes staying as they are.
    pub unsafe fn raw_destination(addr: *mut u8, len: usize) -> Self {
        Self {
            borrowed: false,
            ..Self::single(Iovec::new(addr, len), Direction::Destination)
        }
    }

    #[inline]
    fn single(current: Iovec<'a>, direction: Direction) -> Self {
        Self {
            current,
            rest: [].iter(),
            remaining: current.len,
            direction,
            borrowed: true,
        }
    }

    /// Bytes from the position to the end.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Moves on by `n` bytes without copying.
    ///
    /// # Panics
    /// If fewer remain.
    #[inline]
    pub fn advance(&mut self, mut n: usize) {
        assert!(
            n <= self.remaining,
            "advance by {n} of {} bytes",
            self.remaining
        );
        self.remaining -= n;
        while n > self.current.len {
            n -= self.current.len;
            self.next_iovec();
        }
        self.current.addr = self.current.addr.wrapping_add(n);
        self.current.len -= n;
    }

    #[cold]
    fn next_iovec(&mut self) {
        let slice = self.rest.next().expect("`remaining` covers the iovecs");
        self.current = Iovec::new(slice.as_ptr().cast_mut(), slice.len());
    }

    /// The iovec at the position, as far as it remains, which is empty only if nothing does.
    #[inline]
    pub(crate) fn iovec(&mut self) -> Iovec<'a> {
        while self.current.len == 0 && self.remaining > 0 {
            self.next_iovec();
        }
        self.current.first(self.remaining)
    }

    /// Copies `len` bytes at the position to `frame` without moving on, up to a fault; returns `len`.
    ///
    /// Context: as [`Iovec::copy_to_frame`].
    pub(crate) fn copy_to_frame(&self, frame: *mut u8, len: usize) -> Result<usize, Stopped> {
        debug_assert!(len <= self.remaining && self.direction == Direction::Source);
        let (mut at, mut done) = (self.clone(), 0);
        while done < len {
            let piece = at.iovec().first(len - done);
            let copied = piece.copy_to_frame(frame.wrapping_add(done));
            done += copied.map_err(|stopped| Stopped {
                copied: done + stopped.copied,
                ..stopped
            })?;
            at.advance(piece.len());
        }
        Ok(len)
    }

    /// Whether some of the memory is a mapping whose faults threads resolve: it is copied through a buffer, with
    /// nothing held.
    pub(crate) fn is_mapped(&self) -> bool {
        let mut at = self.clone();
        while at.remaining > 0 {
            let iovec = at.iovec();
            if iovec.is_mapped() {
                return true;
            }
            at.advance(iovec.len);
        }
        false
    }

    /// The first `len` bytes from the position on, or all.
    pub(crate) fn limited(&self, len: usize) -> Self {
        Self {
            current: self.current.first(len),
            remaining: self.remaining.min(len),
            ..self.clone()
        }
    }

    /// The next `len` bytes as memory of an I/O. `None` if they do not begin at a page or lie in a row, are a mapping, or
    /// may be bad. A store reads from the segment of a source, and does not write to it.
    pub(crate) fn io_segment(&self, len: usize) -> Option<IoSegment<'a>> {
        let iovec = self.clone().iovec();
        let fits = self.borrowed && iovec.len >= len && iovec.addr.addr().is_multiple_of(PAGE_SIZE);
        // SAFETY: it is a borrowed slice, mutable where it is a destination; the cache makes no reference to it meanwhile.
        (fits && !iovec.is_mapped()).then(|| unsafe { IoSegment::new(iovec.addr, len) })
    }

    /// Copies from the position into `buffer`, or the other way if the memory is a destination, and moves on; returns
    /// the bytes, fewer than it has at bad memory or at the end.
    ///
    /// Context: as [`IovIter::fault_in`].
    pub(crate) fn copy_buffer(&mut self, buffer: &mut [u8]) -> usize {
        let (mut done, mut tries) = (0, 0);
        while done < buffer.len() && self.remaining > 0 {
            let iovec = self.iovec().first(buffer.len() - done);
            let at = buffer[done..].as_mut_ptr();
            let (to, from) = match self.direction {
                Direction::Source => (at, iovec.addr.cast_const()),
                Direction::Destination => (iovec.addr, at.cast_const()),
            };
            // SAFETY: the buffer has so many bytes, and the iovec is valid.
            let left = match unsafe { usercopy::copy(to, from, iovec.len) } {
                Ok(()) => 0,
                Err(fault) => fault.left,
            };
            self.advance(iovec.len - left);
            done += iovec.len - left;
            tries = if left == iovec.len { tries + 1 } else { 0 };
            // A page may be gone again before it is copied.
            if left > 0 && (tries == COPY_TRIES || !self.fault_in(PAGE_SIZE)) {
                break;
            }
        }
        done
    }

    /// Makes up to `len` bytes at the position accessible; whether the first byte is.
    ///
    /// Context: may fault, so no lock that a fault handler may take, no RCU read section.
    pub(crate) fn fault_in(&mut self, len: usize) -> bool {
        if self.remaining == 0 || len == 0 {
            return true;
        }
        let iovec = self.iovec().first(len);
        let bad = match self.direction {
            Direction::Source => usercopy::fault_in_readable(iovec.addr, iovec.len),
            Direction::Destination => usercopy::fault_in_writable(iovec.addr, iovec.len),
        };
        bad < iovec.len
    }
}
