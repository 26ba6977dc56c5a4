//! Whether a write can be refused when it is made, if the source has no room for it.
//!
//! # Model
//!
//! The cache looks at the source's free blocks before it takes data (decision 62). That says little on a file system whose
//! blocks are somewhere else, and nothing of quotas. There the error comes with the write to the source, later. So a program
//! gets the error when it closes the file, as with NFS (decision 64).

use super::magic::{BTRFS, EXT4, F2FS, TMPFS, XFS};
use foliocache_sys::dir::mount;
use foliocache_sys::fd::{self, BorrowedFd};

/// File systems whose free blocks are what can be written.
const KNOWN: [u64; 5] = [EXT4, XFS, BTRFS, F2FS, TMPFS];

/// Whether the source's answers about its room are the last word: a file system that is known for it, without quotas.
pub(super) fn is_told(root: BorrowedFd<'_>, dev: u64) -> bool {
    let known = fd::fs_magic(root).is_ok_and(|magic| KNOWN.contains(&magic));
    known && !mount::has_quotas(dev).unwrap_or(true)
}
