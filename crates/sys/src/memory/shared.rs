//! Sparse shared memory in a reserved range, and windows onto it.
//!
//! # Model
//!
//! ```text
//!   reserved range   │ private memory …            │ shared memory: a memfd, mapped once as a whole │
//!                                                      │ page i                      ▲
//!   windows                                            └── mapped by Window::new ────┘ the same bytes
//! ```
//!
//! A page of the memfd is made by its first touch, a read included, and goes with [`SharedMemory::punch`], from all
//! windows at once. Nothing else is counted here: whoever touches a page has reserved memory for it.
//!
//! # Invariants
//!
//! 1. The part of the reserved range is mapped to the memfd from creation on: byte `n` of the part is byte `n` of the
//!    memfd.
//! 2. All mappings of the memfd are advised `MADV_NOHUGEPAGE` (one touch would make 2 MiB present, most of it zeros
//!    that nobody reserved, where `shmem_enabled` says `always`), `MADV_DONTFORK` (a store of a forked child would
//!    reach the parent) and `MADV_DONTDUMP`.
//!
//! # Safety
//!
//! Memory is handed out as raw pointers; who may touch which page, and when, is the caller's knowledge.
#![allow(unsafe_code)]

use super::{PAGE_SIZE, ReservedRange};
use crate::Errno;
use crate::fork::ForkGuard;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{self, NonNull};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::{AsFd, OwnedFd};

/// See the module's header. Its mapping in the reserved range goes with that.
#[derive(Debug)]
pub struct SharedMemory {
    memfd: OwnedFd,
    len: u64,
}

/// What a window is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowAccess {
    /// Reads; a write is SIGSEGV.
    Read,
    /// Reads and writes.
    ReadWrite,
}

impl SharedMemory {
    /// Replaces a part of a reserved range, in bytes from its base, by shared memory without a page. Takes three
    /// system calls and a descriptor.
    ///
    /// # Errors
    /// `EINVAL` for a part that is not of whole pages or empty, `EMFILE` without a descriptor, `ENOMEM` without a
    /// mapping, `ECHILD` in a forked child.
    ///
    /// # Safety
    ///
    /// Nobody uses the part, which is reserved and not active.
    pub unsafe fn over(range: &ReservedRange, part: Range<usize>) -> Result<SharedMemory, Errno> {
        let (start, len) = range.part(part)?;
        let memfd = memfd_create("foliocache", MemfdFlags::CLOEXEC)?;
        ftruncate(&memfd, len as u64)?;
        let memory = SharedMemory {
            memfd,
            len: len as u64,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the part is the range's, and not in use, by the caller's contract.
        let start = unsafe {
            memory.map(
                start,
                0..len as u64,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        advise(start, len)?;
        Ok(memory)
    }

    /// Maps bytes of the memfd.
    ///
    /// # Safety
    ///
    /// With `MapFlags::FIXED` the place is the caller's, and nobody uses it.
    unsafe fn map(
        &self,
        at: *mut c_void,
        bytes: Range<u64>,
        access: ProtFlags,
        flags: MapFlags,
    ) -> Result<NonNull<c_void>, Errno> {
        let len = (bytes.end - bytes.start) as usize;
        // SAFETY: the caller's contract; without `FIXED` it is a new mapping at a place of the kernel's choice.
        let start = unsafe { mmap(at, len, access, flags, self.memfd.as_fd(), bytes.start) }?;
        NonNull::new(start).ok_or(Errno::ENOMEM)
    }

    /// Checks that these are whole pages of it, and some.
    fn check(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        let page = PAGE_SIZE as u64;
        let whole = bytes.start.is_multiple_of(page) && bytes.end.is_multiple_of(page);
        match whole && bytes.start < bytes.end && bytes.end <= self.len {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    /// Frees pages; their next touch makes new ones, of zeros. A system call: 3.5 to 20 µs for a page, in long runs
    /// 0.7 µs a page.
    ///
    /// # Errors
    /// `EINVAL` for what is not whole pages of it.
    ///
    /// # Safety
    ///
    /// Nobody uses the pages in the direct map during the call. A touch of a window is a fault, or makes a new page.
    pub unsafe fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.check(&bytes)?;
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match fallocate(&self.memfd, mode, bytes.start, bytes.end - bytes.start) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Bytes of memory that its pages take now. A system call.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn resident(&self) -> Result<u64, Errno> {
        Ok(fstat(&self.memfd)?.st_blocks as u64 * 512)
    }
}

/// Invariant 2, for a mapping that was just made.
fn advise(start: NonNull<c_void>, len: usize) -> Result<(), Errno> {
    for advice in [
        Advice::LinuxDontFork,
        Advice::LinuxDontDump,
        Advice::LinuxNoHugepage,
    ] {
        // SAFETY: the callers own the mapping, and the advice changes no contents.
        match unsafe { madvise(start.as_ptr(), len, advice) } {
            // A kernel without transparent huge pages knows no advice against them.
            Err(rustix::io::Errno::INVAL) if advice == Advice::LinuxNoHugepage => {}
            result => result?,
        }
    }
    Ok(())
}

/// A second mapping of some pages of a [`SharedMemory`]. It is unmapped when it is dropped, in the process that
/// made it; a forked child has none.
#[derive(Debug)]
pub struct Window {
    start: NonNull<u8>,
    len: usize,
    guard: ForkGuard,
}

// SAFETY: the value is an address range and a guard.
unsafe impl Send for Window {}
// SAFETY: as above; it has no method that changes anything.
unsafe impl Sync for Window {}

impl Window {
    /// Maps these bytes of the memory. Takes five system calls and one of the process's mappings
    /// (`vm.max_map_count`).
    ///
    /// # Errors
    /// `EINVAL` for what is not whole pages of the memory, `ENOMEM` without a mapping.
    pub fn new(
        memory: &SharedMemory,
        bytes: Range<u64>,
        access: WindowAccess,
    ) -> Result<Window, Errno> {
        memory.check(&bytes)?;
        let guard = ForkGuard::new()?;
        let len = (bytes.end - bytes.start) as usize;
        let access = match access {
            WindowAccess::Read => ProtFlags::READ,
            WindowAccess::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe { memory.map(ptr::null_mut(), bytes, access, flags) }?;
        let window = Window {
            start: start.cast(),
            len,
            guard,
        };
        advise(start, len)?;
        Ok(window)
    }

    /// Where it begins, at a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its addresses.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.len
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        // SAFETY: the range is ours, and whoever held pointers into it held this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests;
