//! A ring: its set-up, submission, waiting on it, and its end.
//!
//! # Invariants
//!
//! 1. A broken ring is never entered again: entries left in its submission queue never reach the
//!    kernel.
//!
//! # Safety
//!
//! `enter` is called directly only to wait.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
#[cfg(test)]
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{Builder, EnterFlags, IoUring, cqueue, types};

use super::piece::{MAX_RETRIES, pause};
use crate::Errno;
use crate::fork::ForkGuard;

/// How long completions of a ring that the kernel refuses are waited for before the process is
/// aborted.
const DRAIN: Duration = Duration::from_secs(60);

/// An io_uring. Costs about 100 bytes of kernel memory for each entry of
/// its depth, outside any cache's bound.
pub(super) struct Ring {
    /// The kernel's side.
    pub(super) kernel: ManuallyDrop<IoUring>,
    guard: ForkGuard,
    /// Whether the kernel refused to take entries that are still in the submission queue.
    pub(super) broken: bool,
}

impl Ring {
    /// A ring of the thread that makes it, for up to `entries` operations (rounded up to a power of two).
    ///
    /// # Errors
    ///
    /// `ENOSYS` or `EPERM` where io_uring is not there or not allowed; `ENOMEM`, `EMFILE`.
    pub(super) fn new(entries: u32) -> Result<Ring, Errno> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        Ring::build(&mut builder, entries)
    }

    /// As [`Ring::new`], for threads that use it one after the other, each until nothing is in flight.
    ///
    /// # Errors
    ///
    /// As [`Ring::new`].
    pub(super) fn for_any_thread(entries: u32) -> Result<Ring, Errno> {
        let mut builder = IoUring::builder();
        // A thread with operations in flight waits in the kernel.
        builder.setup_coop_taskrun();
        Ring::build(&mut builder, entries)
    }

    fn build(builder: &mut Builder, entries: u32) -> Result<Ring, Errno> {
        let guard = ForkGuard::new()?;
        let ring = builder
            .dontfork()
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

    /// Submits the queued entries and waits for `want` completions; returns early when a signal
    /// comes.
    ///
    /// An error means that the kernel takes no more entries.
    pub(super) fn enter(&mut self, want: usize) -> Result<(), Errno> {
        let mut refusals = 0;
        loop {
            let Err(error) = self.kernel.submit_and_wait(want) else {
                return Ok(());
            };
            match Errno::from(error) {
                Errno::EINTR => return Ok(()),
                // Short of memory, or completions to be taken first.
                error @ (Errno::EAGAIN | Errno::EBUSY | Errno::ENOMEM) => {
                    if !self.kernel.completion().is_empty() {
                        return Ok(());
                    }
                    refusals += 1;
                    if refusals > MAX_RETRIES {
                        return Err(error);
                    }
                    pause();
                }
                error => return Err(error),
            }
        }
    }

    /// The kernel takes no more entries: waits for those that it has of `pushed` ones. `is_one` knows their completions.
    pub(super) fn abandon(&mut self, mut pushed: usize, is_one: impl Fn(&cqueue::Entry) -> bool) {
        let no_wait = Some(types::Timespec::new());
        let any = types::CancelBuilder::any();
        let _ = self.kernel.submitter().register_sync_cancel(no_wait, any);
        let since = Instant::now();
        loop {
            pushed -= self.kernel.completion().filter(&is_one).count();
            if pushed <= self.kernel.submission().len() {
                break;
            }
            if since.elapsed() > DRAIN {
                abort("the kernel neither finishes nor cancels I/O in flight");
            }
            // Deferred completions are posted by whoever asks for them.
            if self.wait_for_one().is_err() {
                pause();
            }
        }
        self.broken = true;
    }

    /// Waits for a completion without submitting anything.
    fn wait_for_one(&mut self) -> Result<(), Errno> {
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
        // In a child the ring's memory is not mapped, and its addresses may have been reused.
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
