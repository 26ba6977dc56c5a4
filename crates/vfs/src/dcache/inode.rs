//! What the dentry cache asks of an inode: whether it is a directory, and a place to remember its dentry.
//!
//! # Model
//!
//! A directory has one dentry at most while it is cached, or the tree below it would be cached twice and
//! change in one of the places only. Its inode remembers the dentry in an [`AliasSlot`].
//!
//! # Invariants
//!
//! 1. A slot holds the dentry that has the inode, from the moment the two are joined until the dentry dies
//!    or gives the inode up; null otherwise.
//! 2. A slot goes from null, or from a dead dentry, to a dentry under the cache's rename lock only.
//!
//! # Memory ordering
//!
//! A slot is stored with `Release` after its dentry was made, and loaded with `Acquire` before the dentry
//! is looked at, in [`AliasSlot::load`].
//!
//! # Differences from Linux
//!
//! `i_dentry` lists all dentries of an inode, whatever it is; nobody here looks for the names of a file.

use super::dentry::Dentry;
use foliocache_sync::atomic::{AtomicPtr, Ordering};
use foliocache_sync::rcu::RcuReadGuard;
use std::ptr;

/// An inode as the dentry cache sees it.
///
/// The cache keeps references of inodes ([`SlabArc`](crate::SlabArc)). What it has given up it keeps for its readers, until
/// whichever call finds the grace period over, outside its locks.
pub trait DentryInode: Send + Sync + Sized + 'static {
    /// Whether it is a directory. Never changes.
    fn is_dir(&self) -> bool;

    /// Where the cache remembers the dentry of a directory. Always the same slot.
    fn alias(&self) -> &AliasSlot<Self>;

    /// Where two cache lines are that look-ups read besides the inode, if there are any. Always the same.
    fn beside(&self) -> *const () {
        ptr::null()
    }

    /// A dentry that look-ups found does not lead to it any more.
    ///
    /// Context: the dentry's lock; takes leaf locks at most.
    fn name_gone(&self) {}
}

/// The dentry of a directory, as its inode remembers it. Belongs to one [`DentryCache`](super::DentryCache).
#[doc(alias = "i_dentry")]
pub struct AliasSlot<I: DentryInode> {
    dentry: AtomicPtr<Dentry<I>>,
}

impl<I: DentryInode> AliasSlot<I> {
    /// The dentry, which may be dead. Valid as long as the read section.
    pub(super) fn load(&self, _rcu: &RcuReadGuard) -> *mut Dentry<I> {
        // Acquire pairs with the Release in `replace`.
        self.dentry.load(Ordering::Acquire)
    }

    /// Puts `next` in place of `current`; whether that was still there.
    pub(super) fn replace(&self, current: *mut Dentry<I>, next: *mut Dentry<I>) -> bool {
        // Release pairs with the Acquire in `load`. Relaxed on failure: the caller looks again.
        self.dentry
            .compare_exchange(current, next, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

impl<I: DentryInode> Default for AliasSlot<I> {
    /// A slot for an inode without a dentry.
    fn default() -> Self {
        Self {
            dentry: AtomicPtr::new(ptr::null_mut()),
        }
    }
}
