//! The caller's memory: what a read fills and a write takes its bytes from.
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

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use foliocache_sys::usercopy::{self, Side};

/// Memory of a caller that lies in a row.
#[derive(Clone, Copy, Debug)]
struct Iovec {
    addr: *mut u8,
    len: usize,
}

/// A position in a caller's memory, of iovecs one after another.
#[doc(alias = "iov_iter")]
#[derive(Debug)]
pub struct IovIter<'a> {
    /// The iovec the position is in, from the position on.
    current: Iovec,
    /// Pieces after it: at most those of one `IoSlice` list, read in place.
    rest: Rest<'a>,
    remaining: usize,
    direction: Direction,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// The memory is a write's source.
    Source,
    /// The memory is a read's destination.
    Destination,
}

#[derive(Debug)]
enum Rest<'a> {
    None(PhantomData<&'a [u8]>),
    Sources(std::slice::Iter<'a, IoSlice<'a>>),
    /// `IoSliceMut` and `IoSlice` have one layout, that of an `iovec`; the iovecs are kept apart
    /// here only to keep their types.
    Destinations(std::vec::IntoIter<Iovec>),
}

/// A copy that stopped at a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// Bytes copied before the fault.
    pub(crate) copied: usize,
    /// Whether the caller's memory faulted; else it was the folio's.
    pub(crate) callers_side: bool,
}

impl<'a> IovIter<'a> {
    /// The bytes that a write takes.
    pub fn source(bytes: &'a [u8]) -> Self {
        let iovec = Iovec {
            addr: bytes.as_ptr().cast_mut(),
            len: bytes.len(),
        };
        Self::single(iovec, Direction::Source)
    }

    /// The bytes that a read fills.
    pub fn destination(bytes: &'a mut [u8]) -> Self {
        let iovec = Iovec {
            addr: bytes.as_mut_ptr(),
            len: bytes.len(),
        };
        Self::single(iovec, Direction::Destination)
    }

    /// The bytes that a vectored write takes.
    pub fn sources(slices: &'a [IoSlice<'a>]) -> Self {
        Self {
            current: Iovec {
                addr: std::ptr::null_mut(),
                len: 0,
            },
            rest: Rest::Sources(slices.iter()),
            remaining: slices.iter().map(|slice| slice.len()).sum(),
            direction: Direction::Source,
        }
    }

    /// The bytes that a vectored read fills.
    pub fn destinations(slices: &'a mut [IoSliceMut<'a>]) -> Self {
        let iovecs: Vec<Iovec> = slices
            .iter_mut()
            .map(|slice| Iovec {
                addr: slice.as_mut_ptr(),
                len: slice.len(),
            })
            .collect();
        let remaining = iovecs.iter().map(|iovec| iovec.len).sum();
        Self {
            current: Iovec {
                addr: std::ptr::null_mut(),
                len: 0,
            },
            rest: Rest::Destinations(iovecs.into_iter()),
            remaining,
            direction: Direction::Destination,
        }
    }

    /// `len` bytes at `addr` that a write takes, wherever that points to.
    ///
    /// # Safety
    /// For the life of the value the bytes are readable, or the fault handlers are installed
    /// ([`foliocache_sys::usercopy::install_handlers`]); then bad memory ends the write with
    /// `EFAULT`. They may change meanwhile; the write then takes what it finds.
    pub unsafe fn raw_source(addr: *const u8, len: usize) -> Self {
        Self::single(
            Iovec {
                addr: addr.cast_mut(),
                len,
            },
            Direction::Source,
        )
    }

    /// `len` bytes at `addr` that a read fills, wherever that points to.
    ///
    /// # Safety
    /// As for [`IovIter::raw_source`], with *writable* for *readable*, and nothing else relies on
    /// the bytes staying as they are.
    pub unsafe fn raw_destination(addr: *mut u8, len: usize) -> Self {
        Self::single(Iovec { addr, len }, Direction::Destination)
    }

    fn single(current: Iovec, direction: Direction) -> Self {
        Self {
            current,
            rest: Rest::None(PhantomData),
            remaining: current.len,
            direction,
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
        self.current = match &mut self.rest {
            Rest::None(_) => unreachable!("`remaining` covers the iovecs"),
            Rest::Sources(slices) => {
                let slice = slices.next().expect("`remaining` covers the iovecs");
                Iovec {
                    addr: slice.as_ptr().cast_mut(),
                    len: slice.len(),
                }
            }
            Rest::Destinations(iovecs) => iovecs.next().expect("`remaining` covers the iovecs"),
        };
    }

    /// The longest iovec at the position, of at most `len` bytes.
    #[inline]
    fn iovec(&mut self, len: usize) -> Iovec {
        while self.current.len == 0 {
            self.next_iovec();
        }
        Iovec {
            addr: self.current.addr,
            len: self.current.len.min(len),
        }
    }

    /// Fills up to `len` bytes at the position from `frame` without moving on; returns how many,
    /// which is fewer where the iovec at the position ends.
    ///
    /// Resolves no fault, as [`IovIter::copy`].
    #[inline]
    pub(crate) fn peek_copy(&mut self, frame: *const u8, len: usize) -> Result<usize, Stopped> {
        debug_assert_eq!(self.direction, Direction::Destination);
        let iovec = self.iovec(len);
        // SAFETY: the frame is in the direct map, readable as long as the cache lives, and what is
        // read there is validated afterwards; the iovec by the constructors' contracts.
        match unsafe { usercopy::copy(iovec.addr, frame, iovec.len) } {
            Ok(()) => Ok(iovec.len),
            Err(fault) => Err(Stopped {
                copied: iovec.len - fault.left,
                callers_side: fault.side == Side::Destination,
            }),
        }
    }

    /// Copies `len` bytes at the position to `frame` and moves on by what was copied, but not at all if
    /// the frame faults.
    ///
    /// Resolves no fault: it ends at one. The kernel's own faults (a page not touched yet) are
    /// the exception that cannot be seen from here; they never need this cache.
    ///
    /// Context: the folio of `frame` is locked, or nobody else knows it.
    #[inline]
    pub(crate) fn copy_to_frame(&mut self, frame: *mut u8, len: usize) -> Result<(), Stopped> {
        debug_assert!(len <= self.remaining && self.direction == Direction::Source);
        if self.current.len < len {
            return self.copy_iovecs_to_frame(frame, len);
        }
        self.copy_iovec_to_frame(frame, len)
    }

    /// As [`IovIter::copy_to_frame`], of bytes that are not all in the current iovec.
    #[cold]
    fn copy_iovecs_to_frame(&mut self, frame: *mut u8, len: usize) -> Result<(), Stopped> {
        let start = self.save();
        let mut done = 0;
        while done < len {
            let iovec = self.iovec(len - done);
            if let Err(stopped) = self.copy_iovec_to_frame(frame.wrapping_add(done), iovec.len) {
                if !stopped.callers_side {
                    self.restore(start);
                }
                return Err(Stopped {
                    copied: done + stopped.copied,
                    ..stopped
                });
            }
            done += iovec.len;
        }
        Ok(())
    }

    #[inline]
    fn copy_iovec_to_frame(&mut self, frame: *mut u8, len: usize) -> Result<(), Stopped> {
        // SAFETY: the frame is in the direct map, writable as long as the cache lives, and the
        // caller may write it; the current iovec is as long, and valid by the constructors' contracts.
        let result = unsafe { usercopy::copy(frame, self.current.addr, len) };
        let (copied, result) = match result {
            Ok(()) => (len, Ok(())),
            Err(fault) => {
                let copied = len - fault.left;
                let callers_side = fault.side == Side::Source;
                let stopped = Stopped {
                    copied,
                    callers_side,
                };
                (if callers_side { copied } else { 0 }, Err(stopped))
            }
        };
        self.advance(copied);
        result
    }

    /// Goes back to a position saved before a copy that must not count.
    pub(crate) fn restore(&mut self, saved: Position<'a>) {
        self.current = saved.current;
        self.rest = saved.rest;
        self.remaining = saved.remaining;
    }

    /// The position, to come back to with [`IovIter::restore`].
    pub(crate) fn save(&self) -> Position<'a> {
        let rest = match &self.rest {
            Rest::None(marker) => Rest::None(*marker),
            Rest::Sources(slices) => Rest::Sources(slices.clone()),
            Rest::Destinations(iovecs) => Rest::Destinations(iovecs.clone()),
        };
        Position {
            current: self.current,
            rest,
            remaining: self.remaining,
        }
    }

    /// Makes up to `len` bytes at the position accessible; whether the first byte is.
    ///
    /// Context: may fault, so no lock that a fault handler may take, no RCU read section.
    pub(crate) fn fault_in(&mut self, len: usize) -> bool {
        if self.remaining == 0 || len == 0 {
            return true;
        }
        let iovec = self.iovec(len);
        let bad = match self.direction {
            Direction::Source => usercopy::fault_in_readable(iovec.addr, iovec.len),
            Direction::Destination => usercopy::fault_in_writable(iovec.addr, iovec.len),
        };
        bad < iovec.len
    }
}

/// A saved position of an [`IovIter`].
pub(crate) struct Position<'a> {
    current: Iovec,
    rest: Rest<'a>,
    remaining: usize,
}
