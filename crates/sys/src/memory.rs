//! One large reserved address range, activated piece by piece and given back block by block.
//!
//! # Model
//!
//! ```text
//!            activate            first touch, populate
//! reserved ───────────▶ active ───────────────────────▶ resident
//! (PROT_NONE, free)      (readable, writable, free)  ◀── give_back ── (costs memory)
//! ```
//!
//! Reserving terabytes costs only address space. A range that was given back stays active: its next
//! touch brings zeroed memory. The caller tracks the state of each part; nothing is tracked here.
//!
//! # Invariants
//!
//! 1. `base` is aligned to 2 MiB and `len` is a multiple of 2 MiB; the whole range belongs to this
//!    value from creation to drop, in the process that created it.
//! 2. The whole range is advised `MADV_DONTFORK` and `MADV_DONTDUMP` before any of it is active: a
//!    forked child finds a hole here, a core file does not carry the cache.
//!
//! # Safety
//!
//! Memory is only handed out as raw pointers ([`ReservedRange::as_ptr`]): the caller knows which
//! parts are active and who uses them. The one call that changes contents under such a pointer,
//! [`ReservedRange::give_back`], is `unsafe`.
#![allow(unsafe_code)]

mod anonymous;
pub(crate) mod cgroup;
mod page_vec;
pub(crate) mod resident;
mod shared;
#[cfg(test)]
mod tests;

pub use crate::page::{HUGE_PAGE_SIZE, PAGE_SIZE};
pub use anonymous::AnonymousRange;
pub use page_vec::PageVec;
pub use resident::{Resident, free_huge_pages, total_memory};
pub use shared::{SharedMemory, WindowAccess, WindowArea, room_for_mappings};

use crate::Errno;
use crate::fork::ForkGuard;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

/// A reserved range of addresses; see the module's model.
#[derive(Debug)]
pub struct ReservedRange {
    /// Invariant 1.
    base: NonNull<u8>,
    /// Invariant 1.
    len: usize,
    /// In a forked child the range is a hole, and other memory may have moved into it.
    guard: ForkGuard,
}

// SAFETY: the value is an address range and a guard; every method is a system call on the range,
// and the kernel serialises those.
unsafe impl Send for ReservedRange {}
// SAFETY: every method is a system call on the range, and the kernel serialises those.
unsafe impl Sync for ReservedRange {}

/// Bytes of address space for a user that could use `most`: at most a 16th of the largest free piece, so that some
/// are left however often this is called. 2 MiB at least. Some system calls.
pub fn spare_addresses(most: usize) -> usize {
    const PART: usize = 16;
    let mut len = most;
    while len > HUGE_PAGE_SIZE && ReservedRange::reserve(len.saturating_mul(PART)).is_err() {
        len /= 2;
    }
    len.max(HUGE_PAGE_SIZE)
}

impl ReservedRange {
    /// Reserves `len` bytes, rounded up to 2 MiB. Uses no memory.
    ///
    /// EINVAL for zero or an overflowing length; ENOMEM when the address space (RLIMIT_AS) is used up.
    pub fn reserve(len: usize) -> Result<ReservedRange, Errno> {
        let len = len
            .checked_next_multiple_of(HUGE_PAGE_SIZE)
            .ok_or(Errno::EINVAL)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let guard = ForkGuard::new()?;
        let mapped = len.checked_add(HUGE_PAGE_SIZE).ok_or(Errno::EINVAL)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let start = core::ptr::null_mut();
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory.
        let start = unsafe { mmap_anonymous(start, mapped, ProtFlags::empty(), flags) }?;
        let start = start.cast::<u8>();
        let head = start.align_offset(HUGE_PAGE_SIZE);
        let base = start.wrapping_add(head);
        let tail = mapped - head - len;
        if head > 0 {
            // SAFETY: the part before the aligned base, which was never handed out.
            unsafe { munmap(start.cast(), head) }?;
        }
        if tail > 0 {
            // SAFETY: the part after the aligned range, which was never handed out.
            unsafe { munmap(base.wrapping_add(len).cast(), tail) }?;
        }
        let base = NonNull::new(base).ok_or(Errno::ENOMEM)?;
        let range = ReservedRange { base, len, guard };
        range.advise(0..len, Advice::LinuxDontFork)?;
        range.advise(0..len, Advice::LinuxDontDump)?;
        Ok(range)
    }

    /// Where the range begins, aligned to 2 MiB.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes of the range, a multiple of 2 MiB, never zero.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether `address` lies in the range. Two compares.
    #[inline]
    pub fn contains(&self, address: *const u8) -> bool {
        (address as usize).wrapping_sub(self.base.as_ptr() as usize) < self.len
    }

    /// Makes a part readable and writable; with `huge`, advises huge pages there.
    ///
    /// Uses no memory until it is touched. `range` is in bytes from the base, of whole pages (EINVAL
    /// otherwise). ECHILD in a forked child; ENOMEM when the process has too many mappings (active
    /// parts that touch each other and agree on `huge` count as one). A machine without huge pages
    /// is no error. May block on the process's memory map lock.
    pub fn activate(&self, range: Range<usize>, huge: bool) -> Result<(), Errno> {
        let (start, len) = self.part(range.clone())?;
        let prot = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the part belongs to this range (invariant 1), and more access invalidates
        // nothing.
        unsafe { mprotect(start, len, prot) }?;
        if huge {
            match self.advise(range, Advice::LinuxHugepage) {
                // Kernels without transparent huge pages reject the advice.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Touches every page of a part, so that later accesses take no fault.
    ///
    /// Contents stay as they are. EFAULT when the part is not active (on kernels before 5.14, where
    /// pages are touched one by one: death by SIGSEGV), ENOMEM, ECHILD in a forked child. Uses `len`
    /// bytes of memory and blocks for as long as the kernel needs to find and zero them.
    pub fn populate(&self, range: Range<usize>) -> Result<(), Errno> {
        loop {
            match self.advise(range.clone(), Advice::LinuxPopulateWrite) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::EINVAL) => break,
                result => return result,
            }
        }
        // Either the kernel rejects the advice, or it accepts it and the memory is not writable.
        let (start, len) = self.part(range)?;
        if self.advise(0..0, Advice::LinuxPopulateWrite).is_ok() {
            return Err(Errno::EFAULT);
        }
        for offset in (0..len).step_by(PAGE_SIZE) {
            let byte = start.cast::<u8>().wrapping_add(offset);
            // SAFETY: the part is mapped (invariant 1) and, by this call's contract, active; an
            // atomic access that changes nothing does not disturb other users of the byte.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            // Relaxed: only the fault matters, no value is passed on. Not `fetch_or(0)`, which the
            // compiler may turn into nothing.
            let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Frees the memory of a part, which stays active: its next touch finds zeros.
    ///
    /// Pages of a huge page that is given back only in part stay used: give back whole blocks of
    /// 2 MiB. Blocks on the process's memory map lock. ECHILD in a forked child.
    ///
    /// # Safety
    ///
    /// The part is not in use during the call: no references into it, no copy and no I/O on it.
    pub unsafe fn give_back(&self, range: Range<usize>) -> Result<(), Errno> {
        let (start, len) = self.part(range)?;
        // SAFETY: the part is ours (invariant 1) and not in use, by the caller's contract.
        unsafe { discard(start, len) }
    }

    /// Where a part begins and its length, once it is known to be ours.
    fn part(&self, range: Range<usize>) -> Result<(*mut c_void, usize), Errno> {
        self.guard.check()?;
        let whole = range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE);
        if !whole || range.start > range.end || range.end > self.len {
            return Err(Errno::EINVAL);
        }
        Ok((
            self.as_ptr().wrapping_add(range.start).cast(),
            range.end - range.start,
        ))
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        let (start, len) = self.part(range)?;
        // SAFETY: the part is ours (invariant 1); no advice used here changes contents.
        unsafe { madvise(start, len, advice) }?;
        Ok(())
    }
}

/// Empties the page tables of whole pages, locked ones (`mlock`, `mlockall`) included. Private memory is freed.
///
/// # Safety
///
/// The pages belong to the caller, and private ones are not in use during the call.
unsafe fn discard(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    match unsafe { madvise(start, len, Advice::LinuxDontNeed) } {
        Err(rustix::io::Errno::INVAL) => {}
        result => return Ok(result?),
    }
    // `MADV_DONTNEED` refuses locked memory, and kernels before 5.18 refuse this advice.
    // SAFETY: the caller's contract, which does not depend on whether pages are locked.
    Errno::result(unsafe { libc::madvise(start, len, libc::MADV_DONTNEED_LOCKED) }).map(drop)
}

impl Drop for ReservedRange {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        // SAFETY: the range is ours (invariant 1), and whoever held pointers into it held this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
