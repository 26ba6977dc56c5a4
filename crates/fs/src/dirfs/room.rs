//! Whether a write can be refused when it is made, if the source has no room for it.
//!
//! # Model
//!
//! The cache looks at the source's free blocks before it takes data (decision 62). That says little on a file system whose
//! blocks are somewhere else, and nothing of quotas. There the error comes with the write to the source, later. So a program
//! is told of it when it closes the file, as with NFS (decision 64).

use foliocache_sys::dir::mount;
use foliocache_sys::fd::{self, BorrowedFd};

/// `statfs.f_type` of file systems whose free blocks are what can be written: ext2 to ext4, XFS, btrfs, F2FS and tmpfs.
const KNOWN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// Whether the source's answers about its room are the last word: a file system that is known for it, without quotas.
pub(super) fn is_told(root: BorrowedFd<'_>, dev: u64) -> bool {
    let known = fd::fs_magic(root).is_ok_and(|magic| KNOWN.contains(&magic));
    known && !mount::has_quotas(dev).unwrap_or(true)
}
