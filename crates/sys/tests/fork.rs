//! The behaviour of forked children, with real children.
//!
//! # Safety
//!
//! A child here calls only functions that are allowed after `fork` in a process with threads:
//! loads, plain system calls and `_exit`.
#![allow(unsafe_code)]

use foliocache_sys::Errno;
use foliocache_sys::fork::ForkGuard;
use foliocache_sys::memory::{
    HUGE_PAGE_SIZE, PAGE_SIZE, ReservedRange, SharedMemory, WindowAccess, WindowArea,
};
use foliocache_sys::userfaultfd::{Access, Handler, Userfaultfd};

/// Runs `child` in a forked child and returns its wait status.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only async-signal-safe code and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: always allowed.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0);
            let mut status = 0;
            // SAFETY: `status` is ours.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(waited, pid);
            status
        }
    }
}

fn exit_code(status: i32) -> Option<i32> {
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[test]
fn a_child_knows_that_it_is_one() {
    let guard = ForkGuard::new().unwrap();
    assert!(!guard.is_child());
    assert_eq!(guard.check(), Ok(()));
    let status = in_child(|| match guard.check() {
        Ok(()) => 0,
        Err(error) => error.raw(),
    });
    assert_eq!(exit_code(status), Some(Errno::ECHILD.raw()));
    assert!(!guard.is_child());
}

#[test]
fn a_grandchild_knows_it_too_and_may_have_a_guard_of_its_own() {
    let guard = ForkGuard::new().unwrap();
    let status = in_child(|| {
        let Ok(own) = ForkGuard::new() else { return 1 };
        if own.is_child() {
            return 2;
        }
        let status = in_child(|| i32::from(!(guard.is_child() && own.is_child())) * 3);
        exit_code(status).unwrap_or(4)
    });
    assert_eq!(exit_code(status), Some(0));
}

/// The cache's memory is not there in a child: a stray store dies instead of reaching the parent.
#[test]
fn touching_reserved_memory_in_a_child_is_sigsegv() {
    let range = ReservedRange::reserve(HUGE_PAGE_SIZE).unwrap();
    range.activate(0..HUGE_PAGE_SIZE, false).unwrap();
    range.populate(0..HUGE_PAGE_SIZE).unwrap();
    let status = in_child(|| {
        // SAFETY: not sound in the child, on purpose: the store must kill it.
        unsafe { range.as_ptr().write_volatile(1) };
        0
    });
    assert!(libc::WIFSIGNALED(status));
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}

/// A store of a child's would reach the parent.
#[test]
fn touching_a_window_in_a_child_is_sigsegv() {
    let range = ReservedRange::reserve(HUGE_PAGE_SIZE).unwrap();
    // SAFETY: the range is private to this test.
    let memory = unsafe { SharedMemory::over(&range, 0..HUGE_PAGE_SIZE, false) }.unwrap();
    let area = WindowArea::reserve(HUGE_PAGE_SIZE).unwrap();
    let faults = Userfaultfd::open(Handler::Signal).unwrap();
    let window = |at, faults| {
        let page = 0..PAGE_SIZE as u64;
        // SAFETY: a new area; only a page that is mapped is touched.
        unsafe { area.map(at, &memory, page, WindowAccess::ReadWrite, faults) }.unwrap();
    };
    window(0, None);
    window(PAGE_SIZE, Some(&faults));
    let start = area.addresses().start;
    // SAFETY: private to this test; the store allocates the page.
    unsafe { range.as_ptr().write_volatile(1) };
    let page = start + PAGE_SIZE..start + 2 * PAGE_SIZE;
    assert_eq!(faults.map(page, Access::Write).stopped, None);
    let windows = [start, start + PAGE_SIZE].map(std::ptr::with_exposed_provenance_mut);
    for place in [range.as_ptr(), windows[0], windows[1]] {
        // SAFETY: mapped, and private to this test.
        unsafe { place.write_volatile(1) };
        let status = in_child(|| {
            // SAFETY: not sound in the child, on purpose: the store must kill it.
            unsafe { place.write_volatile(2) };
            0
        });
        assert!(libc::WIFSIGNALED(status));
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
        // SAFETY: mapped in this process, and private to this test.
        assert_eq!(unsafe { place.read_volatile() }, 1);
    }
}

/// A child that drops its copy of the range unmaps nothing, whatever lies there by then.
#[test]
fn a_child_cannot_use_or_unmap_the_range() {
    let range = ReservedRange::reserve(HUGE_PAGE_SIZE).unwrap();
    range.activate(0..HUGE_PAGE_SIZE, false).unwrap();
    let range = core::cell::Cell::new(Some(range));
    let status = in_child(|| {
        let Some(range) = range.take() else { return 1 };
        if range.activate(0..HUGE_PAGE_SIZE, false) != Err(Errno::ECHILD) {
            return 2;
        }
        let place = range.as_ptr();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a hole in the child, so nothing is replaced.
        let other = unsafe { libc::mmap(place.cast(), 4096, prot, flags, -1, 0) };
        if other.cast() != place {
            return 3;
        }
        drop(range);
        // SAFETY: the page that was mapped just now.
        unsafe { place.write_volatile(1) };
        0
    });
    assert_eq!(exit_code(status), Some(0));
    let range = range.take().unwrap();
    // SAFETY: active in this process.
    unsafe { range.as_ptr().write_volatile(1) };
}
