//! Shared by the tests of io_uring: files, memory with slots, a pattern, forked children.
#![allow(unsafe_code, dead_code, unreachable_pub, missing_docs)]

use std::os::fd::OwnedFd;

use foliocache_sys::Errno;
use foliocache_sys::fd::{self, IoSegment, OFlags};
use foliocache_sys::memory::ReservedRange;

pub const MIB: usize = 1 << 20;
pub const PAGE: usize = 4096;

pub struct File {
    pub direct: OwnedFd,
    pub buffered: OwnedFd,
    _dir: tempfile::TempDir,
}

pub fn file() -> File {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("f");
    let buffered = fd::open(&path, OFlags::RDWR | OFlags::CREATE, 0o600).unwrap();
    // Where direct I/O is refused the same things are tested without.
    let direct = fd::open(&path, OFlags::RDWR | OFlags::DIRECT, 0)
        .unwrap_or_else(|_| fd::open(&path, OFlags::RDWR, 0).unwrap());
    File {
        direct,
        buffered,
        _dir: dir,
    }
}

/// Page-aligned memory, in units of 2 MiB.
pub struct Arena {
    pub range: ReservedRange,
}

pub const BLOCK: usize = 2 * MIB;

impl Arena {
    pub fn new(blocks: usize) -> Arena {
        let range = ReservedRange::reserve(blocks * BLOCK).unwrap();
        range.activate(0..blocks * BLOCK, true).unwrap();
        Arena { range }
    }

    pub fn segment(&self, start: usize, len: usize) -> IoSegment<'_> {
        assert!(start + len <= self.range.len());
        // SAFETY: activated memory that lives as long as the arena and is touched through
        // segments only.
        unsafe { IoSegment::new(self.range.as_ptr().wrapping_add(start), len) }
    }
}

/// The byte of the test pattern at a position of the file.
pub fn pattern(pos: u64, seed: u64) -> u8 {
    let x = (pos / 8)
        .wrapping_add(seed)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> (8 * (pos % 8))) as u8
}

pub fn fill(segment: &IoSegment<'_>, pos: u64, seed: u64) {
    let bytes: Vec<u8> = (0..segment.len() as u64)
        .map(|i| pattern(pos + i, seed))
        .collect();
    segment.copy_from(0, &bytes);
}

#[track_caller]
pub fn check(segment: &IoSegment<'_>, pos: u64, seed: u64) {
    let mut bytes = vec![0; segment.len()];
    segment.copy_to(0, &mut bytes);
    for (i, byte) in (0_u64..).zip(bytes) {
        assert_eq!(byte, pattern(pos + i, seed), "byte {}", pos + i);
    }
}

/// Runs `child` in a forked child and returns its exit code.
pub fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only makes system calls and computes, then leaves without unwinding.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", Errno::last_os_error()),
        0 => {
            let code = child();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is ours.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(waited, pid);
            if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                -1
            }
        }
    }
}
