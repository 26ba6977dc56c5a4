//! A ring that one thread uses: its set-up, waiting on it, and its end.
//!
//! # Invariants
//!
//! 1. A ring that is broken is never entered again: what lies in its submission queue does not
//!    reach the kernel any more.
//!
//! # Safety
//!
//! `enter` is called directly only to wait.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
#[cfg(test)]
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring};

use crate::Errno;
use crate::fork::ForkGuard;

/// How long completions of a ring that the kernel refuses are waited for before the process is
/// aborted.
pub(super) const DRAIN: Duration = Duration::from_secs(60);

/// An io_uring of the thread that made it. Costs about 100 bytes of kernel memory for each entry of
/// its depth, outside any cache's bound.
pub(super) struct Ring {
    /// The kernel's side.
    pub(super) kernel: ManuallyDrop<IoUring>,
    guard: ForkGuard,
    /// Whether the kernel refused to take entries that are still in the submission queue.
    pub(super) broken: bool,
}

impl Ring {
    /// A ring for up to `entries` operations (rounded up to a power of two).
    ///
    /// # Errors
    ///
    /// `ENOSYS` or `EPERM` where io_uring is not there or not allowed; `ENOMEM`, `EMFILE`.
    pub(super) fn new(entries: u32) -> Result<Ring, Errno> {
        let guard = ForkGuard::new()?;
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(entries)
            .or_else(|e| {
                // EINVAL: a kernel that does not know one of the flags.
                if e.raw_os_error() == Some(libc::EINVAL) {
                    IoUring::builder().dontfork().build(entries)
                } else {
                    Err(e)
                }
            })?;
        let params = ring.params();
        // Without NODROP a kernel may lose completions; without SUBMIT_STABLE it may look at lists
        // of segments later. Both came with 5.5.
        if !params.is_feature_nodrop() || !params.is_feature_submit_stable() {
            return Err(Errno::ENOSYS);
        }
        Ok(Ring {
            kernel: ManuallyDrop::new(ring),
            guard,
            broken: false,
        })
    }

    /// Waits for a completion without submitting anything.
    pub(super) fn wait_for_one(&mut self) -> Result<(), Errno> {
        loop {
            if !self.kernel.completion().is_empty() {
                return Ok(());
            }
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: nothing is submitted and no argument is passed.
            let woken = unsafe {
                self.kernel
                    .submitter()
                    .enter::<libc::sigset_t>(0, 1, flags, None)
            };
            match woken.map_err(Errno::from) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The ring's descriptor.
    #[cfg(test)]
    pub(super) fn raw_fd(&self) -> i32 {
        self.kernel.as_raw_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // In a child the ring's memory is not mapped, and its addresses may be somebody else's.
        if !self.guard.is_child() {
            // SAFETY: dropped here only, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.kernel) };
        }
    }
}

pub(super) fn abort(why: &str) -> ! {
    eprintln!("foliocache: io_uring: {why}; memory would be overwritten later; aborting");
    std::process::abort();
}
