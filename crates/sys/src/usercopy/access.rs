//! Bringing pages in ahead of a copy, with the handlers or without.
//!
//! # Model
//!
//! With handlers a page is touched by one protected instruction: a load, or an atomic `or` with zero,
//! which writes what is there. Without handlers the kernel is asked: `process_vm_readv` on our own
//! process reads one byte of each page (or, where a sandbox forbids it, `MADV_POPULATE_READ`), and
//! `MADV_POPULATE_WRITE` makes pages writable without changing them. Kernels before 5.14 have no
//! such call for writing; there every range counts as not writable, which is safe.
//!
//! # Safety
//!
//! The system calls report a bad address as an error, and the touches are made only with handlers.
#![allow(unsafe_code)]

use crate::Errno;
use core::ffi::c_void;
use rustix::mm::{Advice, madvise};

const PAGE: usize = 4096;
/// Pages asked about in one `process_vm_readv`.
const BATCH: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Bytes of the range that cannot be reached, from the first such byte on.
pub(super) fn fault_in(ptr: *const u8, len: usize, access: Access) -> usize {
    if len == 0 {
        return 0;
    }
    let Some(end) = ptr.addr().checked_add(len) else {
        return len;
    };
    #[cfg(target_arch = "x86_64")]
    if super::handlers_installed() {
        let unreachable = pages(ptr.addr(), end).find(|&at| {
            let at = ptr.with_addr(at);
            match access {
                // SAFETY: handlers are installed.
                Access::Read => !unsafe { super::arch::touch_read(at) },
                // SAFETY: handlers are installed.
                Access::Write => !unsafe { super::arch::touch_write(at.cast_mut()) },
            }
        });
        return unreachable.map_or(0, |at| end - at);
    }
    match access {
        Access::Read => end - read_by_syscall(ptr.addr(), end),
        Access::Write => end - populated(ptr, end, Advice::LinuxPopulateWrite),
    }
}

/// The first address of the range in each of its pages.
fn pages(start: usize, end: usize) -> impl Iterator<Item = usize> {
    let aligned = start & !(PAGE - 1);
    (aligned..end)
        .step_by(PAGE)
        .map(move |page| page.max(start))
}

/// The first address that cannot be read, or `end`.
fn read_by_syscall(start: usize, end: usize) -> usize {
    let mut next = pages(start, end).peekable();
    let mut bytes = [0u8; BATCH];
    let own = rustix::process::getpid().as_raw_pid();
    while let Some(&first) = next.peek() {
        let mut remote = [libc::iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 1,
        }; BATCH];
        let mut count = 0;
        while count < BATCH {
            let Some(at) = next.next() else { break };
            remote[count].iov_base = core::ptr::without_provenance_mut(at);
            count += 1;
        }
        let local = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: count,
        };
        // SAFETY: the local vector is our own buffer of that many bytes; addresses of the remote
        // one are the kernel's to check.
        let read =
            unsafe { libc::process_vm_readv(own, &local, 1, remote.as_ptr(), count as u64, 0) };
        match usize::try_from(read) {
            Ok(read) if read == count => {}
            Ok(read) => return remote[read].iov_base.addr(),
            Err(_) if Errno::last_os_error() == Errno::EFAULT => return first,
            // Forbidden (EPERM, ENOSYS): ask in the other way.
            Err(_) => {
                let first = core::ptr::without_provenance(first);
                return populated(first, end, Advice::LinuxPopulateRead);
            }
        }
    }
    end
}

/// The first address that the kernel cannot populate, or `end`.
fn populated(ptr: *const u8, end: usize, advice: Advice) -> usize {
    let first_page = ptr.addr() & !(PAGE - 1);
    let populate = |page: usize, len: usize| {
        loop {
            let start: *mut c_void = ptr.with_addr(page).cast_mut().cast();
            // SAFETY: populating changes no contents, and a bad address is an error.
            match unsafe { madvise(start, len, advice) } {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                result => return result.is_ok(),
            }
        }
    };
    if populate(first_page, end - first_page) {
        return end;
    }
    pages(ptr.addr(), end)
        .find(|&at| !populate(at & !(PAGE - 1), PAGE))
        .unwrap_or(end)
}
