//! What inodes are charged for, from their insertion to their end.
//!
//! # Model
//!
//! A [`Charge`] lives in the inode and gives the bytes back when the inode is dropped, which may be long
//! after it left the cache: it waits for readers, or somebody holds it open.
//!
//! The bound counts in words that all threads share. So each [`Account`], of which there are a few with
//! threads spread over them, charges in batches and keeps a *stock* of what it has not handed out. What
//! comes back goes to the stock, and to the bound when there is too much of it.
//!
//! # Invariants
//!
//! 1. What the bound has charged to an account is its stock and the bytes of its inodes. The stock goes back
//!    when the cache and the last of its inodes are gone, and when somebody wants memory
//!    ([`Accounts::drain`]).
//! 2. A stock is less than twice [`BATCH`] for longer than a call.
//!
//! # Memory ordering
//!
//! All `Relaxed`: numbers of bytes publish nothing.

use std::fmt;

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::{Arc, CachePadded, thread_shard};

use crate::bound::Bound;

/// Accounts, a power of two.
const SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Bytes that are charged at a time beyond what is asked for.
const BATCH: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 8 << 10 };

/// The accounts of one cache.
pub(super) struct Accounts(Box<[Arc<Account>]>);

/// A part of what a cache is charged. On cache lines of its own.
struct Account {
    bound: Arc<dyn Bound>,
    sums: CachePadded<Sums>,
}

struct Sums {
    /// Bytes charged to no inode.
    stock: AtomicU64,
    /// Bytes charged to inodes.
    bytes: AtomicU64,
    /// Inodes that live without being charged.
    uncharged: AtomicU64,
}

/// What one inode was charged.
pub(super) struct Charge {
    account: Arc<Account>,
    /// `None` if there was no room.
    bytes: Option<u64>,
}

impl Accounts {
    pub(super) fn new(bound: &Arc<dyn Bound>) -> Self {
        let account = || {
            Arc::new(Account {
                bound: Arc::clone(bound),
                sums: CachePadded::new(Sums {
                    stock: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    uncharged: AtomicU64::new(0),
                }),
            })
        };
        Self((0..SHARDS).map(|_| account()).collect())
    }

    /// Charges so many bytes, if there is room.
    ///
    /// Context: that of [`Bound::charge`].
    pub(super) fn charge(&self, bytes: u64) -> Charge {
        let account = &self.0[thread_shard() & (SHARDS - 1)];
        let mut charged = account.charge(bytes);
        if !charged && self.drain() > 0 {
            charged = account.bound.charge(bytes);
        }
        match charged {
            true => account.sums.bytes.fetch_add(bytes, Ordering::Relaxed),
            false => account.sums.uncharged.fetch_add(1, Ordering::Relaxed),
        };
        Charge {
            account: Arc::clone(account),
            bytes: charged.then_some(bytes),
        }
    }

    /// Gives the stocks back to the bound; how many bytes.
    pub(super) fn drain(&self) -> u64 {
        self.0.iter().map(|account| account.drain(0)).sum()
    }

    /// Inodes that live without being charged.
    pub(super) fn uncharged(&self) -> u64 {
        let one = |account: &Arc<Account>| account.sums.uncharged.load(Ordering::Relaxed);
        self.0.iter().map(one).sum()
    }

    /// Bytes charged to inodes that live.
    pub(super) fn bytes(&self) -> u64 {
        let one = |account: &Arc<Account>| account.sums.bytes.load(Ordering::Relaxed);
        self.0.iter().map(one).sum()
    }
}

impl Account {
    fn charge(&self, bytes: u64) -> bool {
        let take = |stock: u64| stock.checked_sub(bytes);
        let stock = &self.sums.stock;
        let taken = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_ok() {
            return true;
        }
        if self.bound.charge(bytes + BATCH) {
            stock.fetch_add(BATCH, Ordering::Relaxed);
            return true;
        }
        self.bound.charge(bytes)
    }

    /// Gives back what the stock has beyond `keep`; how many bytes.
    fn drain(&self, keep: u64) -> u64 {
        let stock = &self.sums.stock;
        let excess = |stock: u64| (stock > keep).then_some(keep);
        let before = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, excess);
        let given = before.map_or(0, |before| before - keep);
        if given > 0 {
            self.bound.uncharge(given);
        }
        given
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.drain(0);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let sums = &self.account.sums;
        let Some(bytes) = self.bytes else {
            sums.uncharged.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        sums.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if sums.stock.fetch_add(bytes, Ordering::Relaxed) + bytes >= 2 * BATCH {
            self.account.drain(BATCH);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({:?})", self.bytes)
    }
}
