//! Numbers of inodes that are gone from the source and still open here.
//!
//! # Locking
//!
//! The lock is a leaf, taken only while there are any.
//!
//! # Memory ordering
//!
//! `nr` is changed under the lock; an insertion of an inode that reads it without looks for a number which the source has given to
//! a new file, long after the old one lost its name.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use std::collections::HashSet;

/// Numbers of inodes that live on without a name.
#[derive(Default)]
pub(super) struct Orphans {
    numbers: LeafMutex<HashSet<u64>>,
    nr: AtomicU64,
}

impl Orphans {
    pub(super) fn insert(&self, ino: u64) {
        let mut numbers = self.numbers.lock();
        numbers.insert(ino);
        // Relaxed: see the module's header.
        self.nr.store(numbers.len() as u64, Ordering::Relaxed);
    }

    /// The inode is gone for good.
    pub(super) fn remove(&self, ino: u64) {
        let mut numbers = self.numbers.lock();
        numbers.remove(&ino);
        // Relaxed: see the module's header.
        self.nr.store(numbers.len() as u64, Ordering::Relaxed);
    }

    pub(super) fn contains(&self, ino: u64) -> bool {
        // Relaxed: see the module's header.
        self.nr.load(Ordering::Relaxed) > 0 && self.numbers.lock().contains(&ino)
    }
}
