//! [`InodeHint`]: where the inode of a dentry lies, kept beside the bucket that the dentry is in.
//!
//! # Model
//!
//! ```text
//!  without    bucket ──▶ dentry ──▶ inode, attributes
//!  with       bucket ──▶ dentry
//!                    └─▶ inode, attributes
//! ```
//!
//! An arrow is a wait for memory where nothing is in the processor's caches. The hint is of the dentry that
//! came into the bucket last, which most look-ups want. It is never followed, and may be of an inode that is gone.
//!
//! ```text
//!  63        22 21                 0
//!  │ the inode │ the way to its attributes │      in lines of 64 bytes
//! ```
//!
//! Attributes lie within 128 MiB of their inode, where slabs grow side by side; further away they are not in the hint.
//!
//! # Memory ordering
//!
//! Relaxed: one word that is never followed.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::prefetch;
use std::ptr;

const LINE: usize = 64;
/// Bits of the way.
const WAY: u32 = 22;

/// Where an inode and its attributes lie, or nothing.
#[derive(Default)]
pub struct InodeHint(AtomicU64);

fn pack(inode: usize, beside: usize) -> u64 {
    let lines = (beside as i64 - inode as i64) / LINE as i64;
    let half = 1 << (WAY - 1);
    let way = if (-half..half).contains(&lines) {
        lines
    } else {
        0
    };
    let line = (inode / LINE) as u64;
    (line << WAY) | (way as u64 & ((1 << WAY) - 1))
}

fn unpack(word: u64) -> (usize, usize) {
    let inode = (word >> WAY) as usize * LINE;
    // The way has a sign.
    let way = (word << (u64::BITS - WAY)) as i64 >> (u64::BITS - WAY);
    (
        inode,
        inode.wrapping_add_signed(way as isize * LINE as isize),
    )
}

impl InodeHint {
    /// Notes an inode, null for none, and what lies [beside](super::DentryInode::beside) it.
    pub(super) fn store<I>(&self, inode: *const I, beside: *const ()) {
        // A model has no processor, and each access is a place where threads may be switched.
        if cfg!(not(any(loom, shuttle))) {
            self.0
                .store(pack(inode.addr(), beside.addr()), Ordering::Relaxed);
        }
    }

    /// Asks the processor for what look-ups read of these.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        if cfg!(any(loom, shuttle)) {
            return;
        }
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            return;
        }
        let (inode, beside) = unpack(word);
        for line in [inode, beside, beside.wrapping_add(LINE)] {
            prefetch(ptr::without_provenance::<()>(line));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn attributes_near_an_inode_are_packed_and_far_ones_are_replaced_by_the_inode() {
        let near = 127 << 20;
        let top = (1 << 47) - 256;
        for inode in [64, 0x7f12_3456_7880 & !63, top] {
            assert_eq!(unpack(pack(inode, inode)), (inode, inode));
        }
        let inode = 1 << 40;
        for beside in [inode + 64, inode - 64, inode + near, inode - near] {
            assert_eq!(unpack(pack(inode, beside)), (inode, beside));
        }
        for beside in [inode + (129 << 20), inode - (129 << 20), 0] {
            assert_eq!(unpack(pack(inode, beside)), (inode, inode));
        }
        assert_eq!(pack(0, 0), 0);
    }
}
