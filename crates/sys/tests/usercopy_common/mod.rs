//! Memory with pages that cannot be reached, and the checks that hold with handlers and without.
//!
//! # Safety
//!
//! A [`Memory`] owns its mapping; slices of it are made only over its accessible pages.
#![allow(unsafe_code, dead_code, reason = "each test program uses a part of it")]

use foliocache_sys::usercopy::{fault_in_readable, fault_in_writable};
use std::os::fd::AsRawFd;

pub(crate) const PAGE: usize = 4096;

/// A mapping of some pages, each with its own protection.
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address range; the tests order their accesses.
unsafe impl Send for Memory {}
// SAFETY: an address range; the tests order their accesses.
unsafe impl Sync for Memory {}

impl Memory {
    /// Anonymous pages: `r` readable, `w` writable as well, `-` neither.
    pub(crate) fn new(pages: &str) -> Memory {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = Memory::map(pages.len(), flags, -1);
        for (at, kind) in pages.chars().enumerate() {
            memory.protect(at, kind);
        }
        memory
    }

    /// Two pages of a file that has one.
    pub(crate) fn past_the_end_of_a_file() -> Memory {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        Memory::map(2, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(pages: usize, flags: i32, fd: i32) -> Memory {
        let len = pages * PAGE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Memory {
            start: start.cast(),
            len,
        }
    }

    pub(crate) fn protect(&self, page: usize, kind: char) {
        let prot = match kind {
            '-' => libc::PROT_NONE,
            'r' => libc::PROT_READ,
            'w' => libc::PROT_READ | libc::PROT_WRITE,
            other => panic!("no such page: {other}"),
        };
        // SAFETY: a page of ours.
        let rc = unsafe { libc::mprotect(self.at(page * PAGE).cast(), PAGE, prot) };
        assert_eq!(rc, 0);
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, seed: usize) {
        for i in offset..offset + len {
            // SAFETY: callers name accessible bytes.
            unsafe { self.at(i).write_volatile(pattern(i, seed)) };
        }
    }

    pub(crate) fn read(&self, offset: usize) -> u8 {
        // SAFETY: callers name accessible bytes.
        unsafe { self.at(offset).read_volatile() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

pub(crate) fn pattern(at: usize, seed: usize) -> u8 {
    ((at + seed).wrapping_mul(0x9e37_79b9) >> 13) as u8 | 1
}

/// Addresses where nothing can ever be: beyond the lower half, the gap, the kernel's half, the start.
pub(crate) const NOWHERE: [usize; 5] = [
    0x8000_0000_0000,
    0x8000_0000_0000_0000,
    0xffff_8000_0000_0000,
    0x1234_5678_9abc_def0,
    16,
];

/// The results of `fault_in_*`.
pub(crate) fn fault_in_answers() {
    let memory = Memory::new("wwr-w");
    memory.fill(0, 2 * PAGE, 3);
    let readable = |offset: usize, len| fault_in_readable(memory.at(offset), len);
    let writable = |offset: usize, len| fault_in_writable(memory.at(offset), len);
    for len in [0, 1, PAGE, PAGE + 1, 3 * PAGE - 5] {
        assert_eq!(readable(5, len), 0, "{len}");
    }
    assert_eq!(readable(0, 3 * PAGE + 1), 1);
    assert_eq!(readable(100, 5 * PAGE - 100), 2 * PAGE);
    assert_eq!(readable(3 * PAGE, 10), 10);
    assert_eq!(readable(3 * PAGE + 7, PAGE), PAGE);
    assert_eq!(readable(4 * PAGE - 1, 2), 2);
    assert_eq!(writable(0, 2 * PAGE), 0);
    assert_eq!(writable(17, 3 * PAGE - 17), PAGE);
    assert_eq!(writable(2 * PAGE + 1, 5), 5);
    assert_eq!(writable(2 * PAGE - 1, 2), 1);
    assert_eq!(writable(4 * PAGE, PAGE), 0);
    for i in 0..2 * PAGE {
        assert_eq!(memory.read(i), pattern(i, 3), "contents stay");
    }

    let file = Memory::past_the_end_of_a_file();
    assert_eq!(fault_in_readable(file.at(0), 2 * PAGE), PAGE);
    assert_eq!(fault_in_writable(file.at(1), 2 * PAGE - 1), PAGE);

    // Many pages.
    let long = Memory::new(&("w".repeat(200) + "-"));
    assert_eq!(fault_in_readable(long.at(9), 200 * PAGE - 9), 0);
    assert_eq!(fault_in_readable(long.at(9), 201 * PAGE - 9), PAGE);
    assert_eq!(fault_in_writable(long.at(9), 201 * PAGE - 9), PAGE);

    for address in NOWHERE {
        let nowhere = core::ptr::without_provenance_mut(address);
        assert_eq!(fault_in_readable(nowhere, 100), 100, "{address:x}");
        assert_eq!(fault_in_writable(nowhere, 100), 100, "{address:x}");
    }
    let last = core::ptr::without_provenance_mut(usize::MAX - 10);
    assert_eq!(fault_in_readable(last, 100), 100);
    assert_eq!(fault_in_writable(last, 100), 100);
}
