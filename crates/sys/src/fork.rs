//! Knowing, for the price of one load, that this process is a forked child.
//!
//! # Model
//!
//! The kernel zeroes a page advised `MADV_WIPEONFORK` in a child. A [`ForkGuard`] keeps a non-zero
//! cookie in such a page: a reader that finds zero runs in a child of the process that made the
//! guard (or in a grandchild). Comparing `getpid()` would tell the same, for a system call. The
//! cache's memory is not mapped at all in a child (`MADV_DONTFORK`), so every entry point checks a
//! guard first and returns ECHILD.
//!
//! # Invariants
//!
//! 1. The page holds the cookie from creation to drop in the process that made it, and zeros in
//!    every descendant made by `fork`. (`vfork` and threads share memory and are no children here.)
//!
//! # Memory ordering
//!
//! The load is Relaxed: the cookie is written before the guard is shared, and a child is made with
//! its page already wiped, so no thread of either process ever sees the value change.
//!
//! # Safety
//!
//! The page is mapped readable from creation to drop, and its address is private to the guard.
#![allow(unsafe_code)]

use crate::Errno;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: usize = 4096;
const COOKIE: u64 = 0x466f_6c69_6f43_6163;

/// Tells the process that made it from its forked children.
///
/// Costs one page of memory, outside any cache's bound. Checking never blocks.
#[derive(Debug)]
pub struct ForkGuard {
    /// Invariant 1.
    page: NonNull<AtomicU64>,
}

// SAFETY: invariant 1: the page is only read through a shared reference, by atomic loads.
unsafe impl Send for ForkGuard {}
// SAFETY: the page is only read, by atomic loads, see `Send` above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// A guard for this process. Fails with ENOMEM, or with EINVAL on kernels before 4.14.
    pub fn new() -> Result<ForkGuard, Errno> {
        let flags = MapFlags::PRIVATE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at a place of the kernel's choice touches no other memory.
        let page = unsafe { mmap_anonymous(core::ptr::null_mut(), PAGE, prot, flags) }?;
        let page = NonNull::new(page).ok_or(Errno::ENOMEM)?.cast::<AtomicU64>();
        let guard = ForkGuard { page };
        // SAFETY: the page is ours alone, and the advice takes effect only in children.
        unsafe { madvise(page.as_ptr().cast(), PAGE, Advice::LinuxWipeOnFork) }?;
        guard.word().store(COOKIE, Ordering::Relaxed);
        Ok(guard)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: invariant 1: mapped, aligned and initialised (zero or the cookie) while we live.
        unsafe { self.page.as_ref() }
    }

    /// Whether this process is a forked child of the one that made the guard. One load.
    #[inline]
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    /// ECHILD in a forked child.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.is_child() {
            Err(Errno::ECHILD)
        } else {
            Ok(())
        }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page is ours alone (in a child too: wiped, not missing) and we are its end.
        let unmapped = unsafe { munmap(self.page.as_ptr().cast(), PAGE) };
        debug_assert!(unmapped.is_ok());
    }
}
