//! A copy that survives a fault, and says where it met it.
//!
//! # Model
//!
//! The cache copies between its folios and memory of the caller, which may be anything: a pointer
//! that was never valid, a mapping whose page is missing, a mapping of the very folio that is being
//! written. [`copy`] stops at the first byte that cannot be reached and returns how many bytes are
//! left and on which [`Side`] the fault was; the caller drops its locks, faults the page in
//! ([`fault_in_readable`], [`fault_in_writable`]) and goes on, or ends with EFAULT.
//!
//! It takes two parts: routines with known instruction ranges (`x86_64.rs`), and handlers of SIGSEGV
//! and SIGBUS (`handler.rs`) which, for a fault inside these ranges, let the routine go on at its
//! fixup. Handlers are the process's own, so they are installed only by [`install_handlers`].
//! **Without them `copy` is as fast, and a bad pointer kills the process, as with memcpy.**
//!
//! # Invariants
//!
//! 1. After `Err(CopyFault { left, .. })` exactly the first `len - left` bytes were copied, and the
//!    byte after them is one that could not be read or written, at the time. Bytes after that are
//!    as they were (where source and destination do not overlap).
//! 2. No lock, no allocation, no state: it works in signal handlers, and nested in itself.
//!
//! # Limits
//!
//! * Overlapping source and destination end with unspecified bytes in the destination; counts and
//!   sides stay right.
//! * A fault that the kernel resolves by waiting (a FUSE mount served by this very process) never
//!   becomes a signal and cannot be caught here.
//! * A thread that blocks SIGSEGV or SIGBUS is killed by the kernel at a fault, also in here.
//! * A library that installs handlers later has to chain to those it found, as we do; otherwise
//!   faults go to it alone, and `copy` behaves as without handlers.
//!
//! # Speed
//!
//! As fast as glibc's memcpy from 512 bytes on; shorter copies cost 1 to 3 ns more. `examples/copy_speed.rs`
//! compares the two. From 12 KiB on `rep movsb` is at least as good as the AVX loop.
//!
//! A copy whose first byte cannot be reached takes one signal, about 2 µs; one that gets
//! further before it faults takes two. Touching a page that is there takes some 10 ns.
//!
//! # Safety
//!
//! Callers of [`copy`] and [`zero`] vouch for the memory at the addresses; see there.
#![allow(unsafe_code)]

#[cfg(not(target_arch = "x86_64"))]
#[path = "usercopy/fallback.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "usercopy/x86_64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
mod handler;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use crate::Errno;
use crate::page::PAGE_SIZE;
#[cfg(target_arch = "x86_64")]
use handler::Resolver;

/// Which end of a copy could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The memory that is read.
    Source,
    /// The memory that is written.
    Destination,
}

/// A copy that met memory which cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyFault {
    /// Bytes not copied, at least one: the first of them could not be accessed.
    pub left: usize,
    /// The side on which it could not be reached; the source, where both are unreachable.
    pub side: Side,
}

impl arch::Outcome {
    #[inline(always)]
    fn result(self) -> Result<(), CopyFault> {
        if self.left == 0 {
            return Ok(());
        }
        let side = if self.side == arch::SOURCE {
            Side::Source
        } else {
            Side::Destination
        };
        Err(CopyFault {
            left: self.left,
            side,
        })
    }
}

/// Installs the handlers of SIGSEGV and SIGBUS that make [`copy`] survive faults, for the process.
///
/// The first call does it, later ones find it done; any thread may call. Signals that are none of
/// ours go to the handlers that were there before. EOPNOTSUPP on other architectures than x86-64.
/// Makes system calls; waits for another thread that is just doing the same.
pub fn install_handlers() -> Result<(), Errno> {
    #[cfg(target_arch = "x86_64")]
    return handler::install();
    #[cfg(not(target_arch = "x86_64"))]
    Err(Errno::EOPNOTSUPP)
}

/// As [`install_handlers`], and lets `resolver` resolve faults of SIGBUS. All calls pass the same one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn install_resolver(resolver: Resolver) -> Result<(), Errno> {
    handler::install_resolver(resolver)
}

/// Whether [`install_handlers`] has succeeded in this process. One load.
#[inline]
pub fn handlers_installed() -> bool {
    #[cfg(target_arch = "x86_64")]
    return handler::installed();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Copies `len` bytes from `src` to `dst`, up to the first byte that cannot be reached.
///
/// Other threads may change either side meanwhile; the bytes are then some mixture of old and new.
/// Never blocks by itself: a page fault in it may.
///
/// # Safety
///
/// Where `dst..dst + len` is mapped writable, it is memory that the caller may overwrite, and where
/// `src..src + len` is mapped readable, it is memory that it may read; neither range wraps around the
/// end of the address space. Any of it may be unmapped or protected if [`handlers_installed`] is
/// true; otherwise all of it has to be accessible.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's contract.
    unsafe { arch::copy(dst, src, len) }.result()
}

/// Fills `len` bytes at `dst` with zeros, up to the first byte that cannot be reached (the side is
/// always the destination).
///
/// # Safety
///
/// As [`copy`], for the destination.
#[inline]
pub unsafe fn zero(dst: *mut u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's contract.
    unsafe { arch::zero(dst, len) }.result()
}

/// Touches each page of a range, so that the kernel brings it in, and returns how many bytes cannot be read,
/// counted from the first such byte to the end; 0 means that all can be read now.
///
/// Only a hint: pages may be evicted again before they are used. Any pointer is allowed. Takes page faults, so it
/// may block for as long as they take: call it without locks. Without handlers, when [`copy`] reports no faults,
/// nothing is touched, and no byte counts as readable.
pub fn fault_in_readable(ptr: *const u8, len: usize) -> usize {
    fault_in(ptr, len, arch::touch_read)
}

/// As [`fault_in_readable`], for writing. Contents stay as they are.
pub fn fault_in_writable(ptr: *mut u8, len: usize) -> usize {
    fault_in(ptr, len, arch::touch_write)
}

/// Bytes of the range that cannot be reached, from the first such byte on.
fn fault_in(ptr: *const u8, len: usize, touch: unsafe fn(*const u8) -> bool) -> usize {
    let end = ptr.addr().checked_add(len);
    let Some(end) = end.filter(|_| len > 0 && handlers_installed()) else {
        return len;
    };
    // The first address of the range in each of its pages.
    let pages = (ptr.addr() & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE);
    let mut addresses = pages.map(|page| page.max(ptr.addr()));
    // SAFETY: handlers are installed.
    let unreachable = addresses.find(|&at| !unsafe { touch(ptr.with_addr(at)) });
    unreachable.map_or(0, |at| end - at)
}
