//! [`Bucket`]: a part of the table, locked for a change.
//!
//! # Safety
//!
//! Nodes and arrays are followed under the stripe's lock and in the read section that the guard holds.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rank::RankedMutexGuard;
use foliocache_sync::rcu::RcuReadGuard;

use super::grow::WANTS_TO_GROW;
use super::table::{Table, Walk};
use super::{HashNode, RcuHash, Stripe};

/// What a hash falls into, locked.
#[must_use = "the lock is released when it is dropped"]
pub struct Bucket<'a, T> {
    pub(super) table: &'a RcuHash<T>,
    pub(super) hash: u64,
    pub(super) stripe: &'a Stripe,
    pub(super) _guard: RankedMutexGuard<'a, ()>,
    // Below the guard: dropped after it. Keeps the arrays.
    pub(super) rcu: RcuReadGuard,
}

impl<T: HashNode> Bucket<'_, T> {
    /// Calls `look` with the tables in which the hash may be, until it says true.
    pub(super) fn each_table(&self, mut look: impl FnMut(&Table<T>) -> bool) {
        let mut table = Some(self.table.table(&self.rcu));
        while let Some(at) = table {
            if look(at) {
                return;
            }
            table = self.table.next(at, &self.rcu);
        }
    }

    /// The node with this hash for which `matches` says yes; it stays in the table as long as the lock is
    /// held. `matches` may take leaf locks only.
    pub fn find<'b>(&'b self, mut matches: impl FnMut(&'b T) -> bool) -> Option<&'b T> {
        let mut table = Some(self.table.table(&self.rcu));
        while let Some(at) = table {
            // SAFETY: `'b` is bounded by the read section in `self`. Nothing strays: the lock is held.
            if let Walk::Found(node) = unsafe { at.search(self.hash, &mut matches) } {
                return Some(node);
            }
            table = self.table.next(at, &self.rcu);
        }
        None
    }

    /// Inserts a node under this hash.
    ///
    /// # Safety
    ///
    /// The node is in no table. It stays where it is, and valid, until a grace period has passed that
    /// began after it was removed, or until the table is dropped.
    pub unsafe fn insert(&mut self, node: NonNull<T>) {
        // SAFETY: valid, by the caller's contract.
        let link = unsafe { node.as_ref() }.link();
        // Relaxed: the Release in `push` publishes it.
        link.hash.store(self.hash, Ordering::Relaxed);
        self.table.newest(&self.rcu).push(node, link);
        // Relaxed: changed under the lock alone.
        let len = self.stripe.len.load(Ordering::Relaxed) + 1;
        self.stripe.len.store(len, Ordering::Relaxed);
        // Relaxed: hints, as in `tend`.
        if len > self.table.crowded.load(Ordering::Relaxed) {
            let attention = self.table.attention.load(Ordering::Relaxed);
            if attention & WANTS_TO_GROW == 0 {
                let table = self.table;
                table.attention.fetch_or(WANTS_TO_GROW, Ordering::Relaxed);
            }
        }
    }

    /// Takes a node of this hash out; false if it was not in the table. Its link stays as it is, for readers
    /// that stand on it: it may be freed after a grace period. It may be inserted again at once.
    pub fn remove(&mut self, node: &T) -> bool {
        let mut found = false;
        self.each_table(|table| {
            found = table.unlink(table.bucket_of(self.hash), node);
            found
        });
        if found {
            // Relaxed: changed under the lock alone.
            let len = self.stripe.len.load(Ordering::Relaxed);
            self.stripe.len.store(len - 1, Ordering::Relaxed);
        }
        found
    }
}
