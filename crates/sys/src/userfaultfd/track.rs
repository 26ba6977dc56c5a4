//! Which pages of a window were written, as the kernel notes it: asynchronous write protection and `PAGEMAP_SCAN`.
//!
//! # Model
//!
//! The kernel resolves all faults of such a window, and the program is never told. A write to a protected page ends its
//! protection: that is the note. [`WriteTracker::take_written`] returns the pages without protection, and protects
//! them again, each in one step.
//!
//! Large pages are split where they are protected, so writes are told apart by the page of 4 KiB.
//!
//! # Safety
//!
//! The scan changes protection, no byte of memory, and is given an array of this file's own to write to.

use super::{OpenError, Userfaultfd, raw, user_mode_only};
use crate::Errno;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::UserfaultfdFlags;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;

/// `PAGEMAP_SCAN`, of Linux 6.7.
pub(super) const PAGEMAP_SCAN: Opcode =
    rustix::ioctl::opcode::read_write::<raw::pm_scan_arg>(b'f', 16);

pub(super) const FEATURES: u32 = raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | raw::UFFD_FEATURE_WP_UNPOPULATED
    | raw::UFFD_FEATURE_WP_ASYNC;

/// Runs of pages that a call of the kernel's returns at most.
const RUNS: usize = 128;

/// The windows whose writes the kernel notes. They are ordinary mappings once it is dropped.
#[derive(Debug)]
pub struct WriteTracker {
    faults: Userfaultfd,
    pagemap: OwnedFd,
}

impl WriteTracker {
    /// Opens one. Three system calls, two descriptors, no privilege.
    ///
    /// # Errors
    /// [`OpenError::Untracked`] before Linux 6.7, [`OpenError::NoPagemap`]; otherwise see [`OpenError`].
    pub fn open() -> Result<WriteTracker, OpenError> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user_mode_only();
        // SAFETY: it sees no memory before a window is registered.
        let fd = unsafe { rustix::mm::userfaultfd(flags) }.map_err(super::refused)?;
        let faults = Userfaultfd {
            fd,
            modes: raw::UFFDIO_REGISTER_MODE_WP,
            calls: 1 << raw::_UFFDIO_WRITEPROTECT,
        };
        faults.enable(FEATURES).map_err(|error| match error {
            OpenError::Unsupported => OpenError::Untracked,
            other => other,
        })?;
        let access = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = rustix::fs::open("/proc/self/pagemap", access, Mode::empty());
        let pagemap = pagemap.map_err(|errno| OpenError::NoPagemap(errno.into()))?;
        Ok(WriteTracker { faults, pagemap })
    }

    /// The userfaultfd that its windows are made with, see [`WindowArea::map`](crate::memory::WindowArea::map).
    pub fn faults(&self) -> &Userfaultfd {
        &self.faults
    }

    /// Begins to note writes to pages of a window: none of them counts as written now. A system call, and page tables
    /// for all of them.
    ///
    /// # Errors
    /// `ENOENT` for what is no window, `ENOMEM`.
    pub fn start(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.faults.write_protect(pages)
    }

    /// Calls `each` for runs of pages that were written since they were last returned, or since
    /// [`WriteTracker::start`], 128 of them at most; returns where it stopped. A write that comes later is returned by a
    /// later call. What is no window is left out. A system call, which tells all processors that run the process.
    ///
    /// # Errors
    /// `EINVAL` for what is not at page boundaries, `ENOMEM`. Any of the pages may have been written then.
    pub fn take_written(
        &self,
        pages: Range<usize>,
        each: impl FnMut(Range<usize>),
    ) -> Result<usize, Errno> {
        let mut runs = [raw::page_region {
            start: 0,
            end: 0,
            categories: 0,
        }; RUNS];
        let scan = raw::pm_scan_arg {
            size: size_of::<raw::pm_scan_arg>() as u64,
            // Without `PM_SCAN_CHECK_WPASYNC`, which fails for what is no window any more.
            flags: raw::PM_SCAN_WP_MATCHING.into(),
            start: pages.start as u64,
            end: pages.end as u64,
            walk_end: 0,
            vec: runs.as_mut_ptr().expose_provenance() as u64,
            vec_len: RUNS as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: raw::PAGE_IS_WRITTEN.into(),
            category_anyof_mask: 0,
            return_mask: raw::PAGE_IS_WRITTEN.into(),
        };
        // SAFETY: the kernel writes to `runs` alone, as many as it is told.
        let (nr, end) = unsafe { ioctl(&self.pagemap, Scan(scan)) }?;
        let run = |run: &raw::page_region| run.start as usize..run.end as usize;
        runs[..nr].iter().map(run).for_each(each);
        Ok(end)
    }
}

/// The answer is the number of runs, and where the walk ended.
struct Scan(raw::pm_scan_arg);

// SAFETY: the structure that the kernel's header names for this code.
unsafe impl Ioctl for Scan {
    type Output = (usize, usize);
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        nr: IoctlOutput,
        scan: *mut c_void,
    ) -> rustix::io::Result<Self::Output> {
        // SAFETY: what `as_ptr` gave.
        let walked = unsafe { &*scan.cast::<raw::pm_scan_arg>() }.walk_end;
        Ok((nr as usize, walked as usize))
    }
}
