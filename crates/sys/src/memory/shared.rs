//! Sparse shared memory in a reserved range, and windows onto it.
//!
//! # Model
//!
//! ```text
//!   reserved range   │ private memory …            │ shared memory: a memfd, mapped once as a whole │
//!                                                      │ page i                      ▲
//!   window area      │ reserved … │ a window │ reserved …  └── mapped by WindowArea::map: the same bytes
//! ```
//!
//! The first touch of a page, even a read, allocates it in the memfd; [`SharedMemory::punch`] frees it in all
//! windows at once. Nothing else is counted here: a caller reserves memory for a page before it touches it.
//!
//! Its pages are of 4 KiB, or *huge*: 2 MiB each, out of the kernel's pool (`vm.nr_hugepages`). The pool may be empty, and
//! a touch is SIGBUS then. So a huge page is made by [`SharedMemory::allocate`] before it is touched.
//!
//! # Invariants
//!
//! 1. The part of the reserved range is mapped to the memfd from creation on: byte `n` of the part is byte `n` of the
//!    memfd.
//! 2. Every mapping of the memfd is advised `MADV_DONTFORK` (a store of a forked child would reach the parent) and
//!    `MADV_DONTDUMP` before it can be accessed. It is also advised `MADV_NOHUGEPAGE`, because with `shmem_enabled`
//!    at `always` one touch would make 2 MiB present, most of it zeros without a reservation; windows without a
//!    userfaultfd are exempt, since all their pages are present.
//! 3. No access to a window with a userfaultfd escapes it: the window is registered before it can be accessed.
//!
//! # Safety
//!
//! Memory is handed out as addresses; the caller knows which pages may be touched, and when.
#![allow(unsafe_code)]

use super::{HUGE_PAGE_SIZE, PAGE_SIZE, ReservedRange, discard};
use crate::Errno;
use crate::lock::{Mutex, lock};
use crate::userfaultfd::Userfaultfd;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::os::fd::OwnedFd;

/// See the module's header. Its mapping in the reserved range goes with that.
#[derive(Debug)]
pub struct SharedMemory {
    memfd: OwnedFd,
    /// Its place in the reserved range.
    at: usize,
    len: u64,
    /// Bytes of a page.
    page: u64,
}

/// The access of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowAccess {
    /// Reads; a store is SIGSEGV.
    Read,
    /// Reads and stores; stores go to the memory behind the mapping, and so to its file.
    ReadWrite,
}

impl SharedMemory {
    /// Replaces a part of a reserved range, in bytes from its base, by shared memory without a page; with huge pages if
    /// `huge`: parts of it, here and below, are of whole 2 MiB then. Takes seven system calls and a descriptor.
    ///
    /// # Errors
    /// `EINVAL` for a part that is not of whole pages or empty, `EMFILE` without a descriptor, `ENOMEM` without a
    /// mapping, `ECHILD` in a forked child; those of memfd_create(2) where the kernel has no huge pages of 2 MiB.
    ///
    /// # Safety
    ///
    /// The part is reserved, not active and not in use. No byte is touched in a huge page that was not allocated.
    pub unsafe fn over(
        range: &ReservedRange,
        part: Range<usize>,
        huge: bool,
    ) -> Result<SharedMemory, Errno> {
        let (start, len) = range.part(part.clone())?;
        let (page, kind) = match huge {
            true => (HUGE_PAGE_SIZE, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB),
            false => (PAGE_SIZE, MemfdFlags::empty()),
        };
        let memfd = memfd_create("foliocache", MemfdFlags::CLOEXEC | kind)?;
        ftruncate(&memfd, len as u64)?;
        let memory = SharedMemory {
            memfd,
            at: part.start,
            len: len as u64,
            page: page as u64,
        };
        // SAFETY: the part is the range's, and not in use, by the caller's contract.
        unsafe { memory.map_direct(start, 0..len as u64) }?;
        Ok(memory)
    }

    /// Maps bytes of the memfd where the direct map has them.
    ///
    /// # Safety
    ///
    /// The place belongs to the caller and is not in use during the call.
    unsafe fn map_direct(&self, start: *mut c_void, bytes: Range<u64>) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let len = unsafe { self.map(start, bytes) }?;
        no_huge_pages(start, len)?;
        allow(start, len, WindowAccess::ReadWrite)
    }

    /// Maps bytes of the memfd over the place, inaccessible at first; returns their length. Three
    /// system calls.
    ///
    /// # Safety
    ///
    /// The place belongs to the caller and is not in use during the call.
    unsafe fn map(&self, start: *mut c_void, bytes: Range<u64>) -> Result<usize, Errno> {
        let len = (bytes.end - bytes.start) as usize;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let none = ProtFlags::empty();
        // SAFETY: the caller's contract.
        unsafe { mmap(start, len, none, flags, &self.memfd, bytes.start) }?;
        advise(start, len, Advice::LinuxDontFork)?;
        advise(start, len, Advice::LinuxDontDump)?;
        Ok(len)
    }

    /// Checks that these are whole pages of it, and some.
    fn check(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        let whole = bytes.start.is_multiple_of(self.page) && bytes.end.is_multiple_of(self.page);
        match whole && bytes.start < bytes.end && bytes.end <= self.len {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    /// Makes pages that are not there yet, of zeros. A system call: some 100 µs for a huge page.
    ///
    /// # Errors
    /// `ENOSPC` if the pool of huge pages is empty, `EINVAL` unless the range is whole pages of the
    /// memory.
    pub fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.check(&bytes)?;
        self.fallocate(FallocateFlags::KEEP_SIZE, bytes)
    }

    fn fallocate(&self, mode: FallocateFlags, bytes: Range<u64>) -> Result<(), Errno> {
        loop {
            match fallocate(&self.memfd, mode, bytes.start, bytes.end - bytes.start) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Frees pages; their next touch makes new ones, of zeros. A system call: 3.5 to 20 µs for a page, in long runs
    /// 0.7 µs a page; 15 µs for a huge page.
    ///
    /// # Errors
    /// `EINVAL` unless the range is whole pages of the memory.
    ///
    /// # Safety
    ///
    /// The pages are not in use in the direct map during the call. A touch of a window is a fault,
    /// or makes a new page.
    pub unsafe fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.check(&bytes)?;
        self.fallocate(
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            bytes,
        )
    }

    /// Frees the page tables with which the direct map has these bytes. Takes five system calls.
    ///
    /// # Errors
    /// As [`SharedMemory::over`]. Where it fails, the direct map may be left without access to the bytes.
    ///
    /// # Safety
    ///
    /// `range` is the range that it was made over. The bytes are not in use in the direct map
    /// during the call.
    pub unsafe fn drop_page_tables(
        &self,
        range: &ReservedRange,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        self.check(&bytes)?;
        let part = self.at + bytes.start as usize..self.at + bytes.end as usize;
        let (start, _) = range.part(part)?;
        // SAFETY: the place of these bytes, by invariant 1 and the caller's contract.
        unsafe { self.map_direct(start, bytes) }
    }

    /// Bytes of memory that its pages take now. A system call.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn resident(&self) -> Result<u64, Errno> {
        Ok(fstat(&self.memfd)?.st_blocks as u64 * 512)
    }
}

/// Advice that changes no contents.
fn advise(start: *mut c_void, len: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the callers own the mapping.
    Ok(unsafe { madvise(start, len, advice) }?)
}

fn no_huge_pages(start: *mut c_void, len: usize) -> Result<(), Errno> {
    match advise(start, len, Advice::LinuxNoHugepage) {
        // A kernel without transparent huge pages knows no advice against them.
        Err(Errno::EINVAL) => Ok(()),
        result => result,
    }
}

fn allow(start: *mut c_void, len: usize, access: WindowAccess) -> Result<(), Errno> {
    let access = match access {
        WindowAccess::Read => MprotectFlags::READ,
        WindowAccess::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: the callers own the mapping.
    Ok(unsafe { mprotect(start, len, access) }?)
}

/// Reserved addresses for windows: second mappings of parts of a [`SharedMemory`]. The drop unmaps all of it, in
/// the process that made it; a forked child has no part of it.
///
/// Parts are in bytes from the start of the area, of whole pages. A window of whole 2 MiB has separate page tables.
/// Each window, and each gap between windows, is one of the process's mappings (`vm.max_map_count`).
#[derive(Debug)]
pub struct WindowArea {
    range: ReservedRange,
    /// A mapping that is given up where the process has one too many for a window to be unmapped.
    spare: Mutex<Option<Spare>>,
}

/// A page of addresses that no other mapping is joined with. A forked child has its own.
#[derive(Debug)]
struct Spare(usize);

impl Spare {
    fn new() -> Option<Spare> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_SIZE, ProtFlags::empty(), flags) };
        page.ok().map(|page| Spare(page.expose_provenance()))
    }
}

/// Whether the process may have `nr` more mappings (`vm.max_map_count`). Two system calls for each.
///
/// For callers that cannot handle the error: the standard library aborts if a new thread lacks one.
pub fn room_for_mappings(nr: usize) -> bool {
    let spares: Option<Vec<_>> = (0..nr).map(|_| Spare::new()).collect();
    spares.is_some()
}

impl Drop for Spare {
    fn drop(&mut self) {
        // SAFETY: the page is private to this area and not in use.
        let unmapped = unsafe { munmap(ptr::with_exposed_provenance_mut(self.0), PAGE_SIZE) };
        debug_assert!(unmapped.is_ok());
    }
}

impl WindowArea {
    /// Reserves `len` bytes, rounded up to 2 MiB and aligned to that. Uses no memory.
    ///
    /// # Errors
    /// `EINVAL` for zero or an overflow, `ENOMEM` without address space.
    pub fn reserve(len: usize) -> Result<WindowArea, Errno> {
        Ok(WindowArea {
            range: ReservedRange::reserve(len)?,
            spare: Mutex::new(Spare::new()),
        })
    }

    /// Its addresses.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.range.as_ptr().expose_provenance();
        start..start + self.range.len()
    }

    /// Makes a window onto these bytes of the memory, from byte `at` of the area on. Its faults are those of `faults`;
    /// without it, a touch of a page that the memory lacks makes the page. Takes four to six system calls.
    ///
    /// # Errors
    /// `EINVAL` unless the range is whole pages of the memory and the area, `ENOMEM` without a mapping, `ECHILD` in
    /// a forked child, those of [`Userfaultfd::register`]. After an error the place is reserved again.
    ///
    /// # Safety
    ///
    /// The place is no window, and the memory outlives the window. All users of the window are ready for its
    /// faults.
    pub unsafe fn map(
        &self,
        at: usize,
        memory: &SharedMemory,
        bytes: Range<u64>,
        access: WindowAccess,
        faults: Option<&Userfaultfd>,
    ) -> Result<(), Errno> {
        memory.check(&bytes)?;
        let len = (bytes.end - bytes.start) as usize;
        let part = at..at.checked_add(len).ok_or(Errno::EINVAL)?;
        let (start, len) = self.range.part(part.clone())?;
        let map = || {
            // SAFETY: the place is reserved, by the caller's contract.
            unsafe { memory.map(start, bytes) }?;
            if let Some(faults) = faults {
                no_huge_pages(start, len)?;
                let start = start.addr();
                // SAFETY: a mapping of ours, and the caller's contract for those that touch it.
                unsafe { faults.register(start..start + len) }?;
            }
            allow(start, len, access)
        };
        map().inspect_err(|_| {
            // SAFETY: the window has not been handed out yet.
            let _ = unsafe { self.unmap(part) };
        })
    }

    /// Makes a part reserved addresses again, whatever it is, and frees its page tables. Takes three system calls.
    ///
    /// # Errors
    /// `EINVAL` unless the part is whole pages of the area, `ENOMEM` without a mapping (a part of a window becomes
    /// two), `ECHILD` in a forked child.
    ///
    /// # Safety
    ///
    /// The part is no longer in use.
    pub unsafe fn unmap(&self, part: Range<usize>) -> Result<(), Errno> {
        let (start, len) = self.range.part(part)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the part belongs to this area and is not in use, by the caller's contract.
        let reserve = || unsafe { mmap_anonymous(start, len, ProtFlags::empty(), flags) };
        match reserve() {
            Err(rustix::io::Errno::NOMEM) => {
                // The process has one mapping more than it may have: then it may not even replace one.
                let mut spare = lock(&self.spare);
                drop(spare.take());
                let reserved = reserve();
                *spare = Spare::new();
                reserved?;
            }
            reserved => drop(reserved?),
        }
        // As its neighbours are, so that it merges with them.
        advise(start, len, Advice::LinuxDontFork)?;
        advise(start, len, Advice::LinuxDontDump)
    }

    /// Has the kernel move 2 MiB of a window without userfaultfd, all of whose pages are there, into one huge page.
    /// Takes a free huge page for as long as the call lasts, and a system call: some ms.
    ///
    /// # Errors
    /// `EINVAL` unless the part is 2 MiB of the area, or if the kernel has no huge pages for shared memory;
    /// `EAGAIN`, `EBUSY` and `ENOMEM` are worth a retry.
    pub fn collapse(&self, part: Range<usize>) -> Result<(), Errno> {
        let (start, len) = self.range.part(part)?;
        // SAFETY: a mapping of ours, and the advice changes no contents.
        Errno::result(unsafe { libc::madvise(start, len, libc::MADV_COLLAPSE) }).map(drop)
    }

    /// Puts the pages of a window without userfaultfd into the page tables, for writes too if `write`, so that a touch is
    /// no fault. A system call.
    ///
    /// # Errors
    /// `EINVAL` unless the part is whole pages of the area, `ENOMEM` or `EFAULT` where there is no
    /// window, `ECHILD` in a forked child.
    pub fn populate(&self, part: Range<usize>, write: bool) -> Result<(), Errno> {
        let (start, len) = self.range.part(part)?;
        let advice = match write {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        advise(start, len, advice)
    }

    /// Empties the page tables of a part. The memory keeps its pages; the next touch of a window is a fault. A
    /// system call, which interrupts all processors that run the process.
    ///
    /// # Errors
    /// `EINVAL` unless the part is whole pages of the area, `ECHILD` in a forked child.
    pub fn zap(&self, part: Range<usize>) -> Result<(), Errno> {
        let (start, len) = self.range.part(part)?;
        // SAFETY: windows are shared mappings, whose memory stays; the rest of the area has none.
        unsafe { discard(start, len) }
    }
}

#[cfg(test)]
mod tests;
