//! What objects are charged for, from their making to their end.
//!
//! # Model
//!
//! A [`Charge`] lives in an inode and gives the bytes back when the inode is dropped, which may be long
//! after it left the cache: it waits for readers, or somebody holds it open.
//!
//! The bound counts in words that all threads share. So each [`Account`], of which there are a few with
//! threads spread over them, charges in batches and keeps a *stock* of what it has not handed out. What
//! comes back goes to the stock, and to the bound when there is too much of it.
//!
//! **While the bound is short** all that comes back stays in the stock. Objects are evicted in no order that the allocator
//! knows: the memory that they leave serves objects of the same kind, but the system does not get it back. If the
//! bound handed the bytes to another kind of object the process would hold both. So a refused charge is served from
//! what eviction brings to the stock. Only where pages of files need memory the stocks go back to the bound
//! ([`Accounts::release`]).
//!
//! # Invariants
//!
//! 1. What the bound has charged to an account is its stock and the bytes of its objects. The stock goes back
//!    when the cache and the last of its objects are gone.
//! 2. A stock is less than twice the batch for longer than a call, unless the bound was short.
//!
//! # Memory ordering
//!
//! All `Relaxed`: numbers of bytes publish nothing.

use std::fmt;

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::{Arc, CachePadded, thread_shard};

use crate::bound::MetadataBound;

/// Accounts, a power of two.
const SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// Bytes that the accounts of inodes charge at a time beyond what is asked for.
pub(crate) const BATCH: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 8 << 10 };

/// The accounts of one kind of objects.
#[derive(Clone)]
pub struct Accounts(Arc<[Arc<Account>]>);

/// A part of what a cache is charged. On cache lines of its own.
struct Account {
    bound: Arc<dyn MetadataBound>,
    /// Bytes that are charged at a time beyond what is asked for.
    batch: u64,
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

/// What one object was charged.
pub struct Charge {
    account: Arc<Account>,
    /// `None` if there was no room.
    bytes: Option<u64>,
}

impl Accounts {
    pub(crate) fn new(bound: &Arc<dyn MetadataBound>, batch: u64) -> Self {
        let account = || {
            Arc::new(Account {
                bound: Arc::clone(bound),
                batch,
                sums: CachePadded::new(Sums {
                    stock: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    uncharged: AtomicU64::new(0),
                }),
            })
        };
        Self((0..SHARDS).map(|_| account()).collect())
    }

    fn account(&self) -> &Arc<Account> {
        &self.0[thread_shard() & (SHARDS - 1)]
    }

    /// Charges so many bytes, if there is room.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub fn charge(&self, bytes: u64) -> Charge {
        let charged = self.take(bytes);
        if !charged {
            let uncharged = &self.account().sums.uncharged;
            uncharged.fetch_add(1, Ordering::Relaxed);
        }
        Charge {
            account: Arc::clone(self.account()),
            bytes: charged.then_some(bytes),
        }
    }

    /// What is charged to the bound already.
    pub fn adopt(&self, bytes: u64) -> Charge {
        self.account()
            .sums
            .bytes
            .fetch_add(bytes, Ordering::Relaxed);
        Charge {
            account: Arc::clone(self.account()),
            bytes: Some(bytes),
        }
    }

    /// Charges so many bytes, to be given back by [`put`](Self::put); whether there was room.
    ///
    /// Context: that of [`MetadataBound::charge`].
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let account = self.account();
        let charged = account.take_stock(bytes)
            || account.charge_batch(bytes)
            || account
                .bound
                .charge_or(bytes, &|| self.take_any_stock(bytes));
        if charged {
            account.sums.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        charged
    }

    /// Gives back what [`take`](Self::take) charged.
    pub(crate) fn put(&self, bytes: u64) {
        if bytes > 0 {
            self.account().put(bytes);
        }
    }

    /// Takes bytes out of the stock of any account, or of several together.
    fn take_any_stock(&self, bytes: u64) -> bool {
        if self.0.iter().any(|account| account.take_stock(bytes)) {
            return true;
        }
        if self.stock() < bytes {
            return false;
        }
        let mut taken = 0;
        for account in &*self.0 {
            taken += account.take_up_to(bytes - taken);
        }
        if taken < bytes {
            self.account()
                .sums
                .stock
                .fetch_add(taken, Ordering::Relaxed);
        }
        taken == bytes
    }

    /// Gives up to so many bytes of the stocks back to the bound; how many.
    pub(crate) fn release(&self, bytes: u64) -> u64 {
        let mut taken = 0;
        for account in &*self.0 {
            taken += account.take_up_to(bytes - taken);
        }
        if taken > 0 {
            self.account().bound.uncharge(taken);
        }
        taken
    }

    fn sum(&self, which: fn(&Sums) -> &AtomicU64) -> u64 {
        let one = |account: &Arc<Account>| which(&account.sums).load(Ordering::Relaxed);
        self.0.iter().map(one).sum()
    }

    /// Objects that live without being charged.
    pub(crate) fn uncharged(&self) -> u64 {
        self.sum(|sums| &sums.uncharged)
    }

    /// Bytes charged to objects that live.
    pub(crate) fn bytes(&self) -> u64 {
        self.sum(|sums| &sums.bytes)
    }

    /// Bytes charged to nothing.
    pub(crate) fn stock(&self) -> u64 {
        self.sum(|sums| &sums.stock)
    }
}

impl Charge {
    /// Whether there was room.
    pub fn is_charged(&self) -> bool {
        self.bytes.is_some()
    }
}

impl Account {
    fn take_stock(&self, bytes: u64) -> bool {
        let take = |stock: u64| stock.checked_sub(bytes);
        let stock = &self.sums.stock;
        stock
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    fn take_up_to(&self, bytes: u64) -> u64 {
        let take = |stock: u64| Some(stock - stock.min(bytes));
        let stock = &self.sums.stock;
        let before = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.map_or(0, |before| before.min(bytes))
    }

    /// Charges more than is asked for, where that is there for nothing.
    fn charge_batch(&self, bytes: u64) -> bool {
        let charged = self.batch > 0 && self.bound.try_charge(bytes + self.batch);
        if charged {
            self.sums.stock.fetch_add(self.batch, Ordering::Relaxed);
        }
        charged
    }

    fn put(&self, bytes: u64) {
        self.sums.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let stock = self.sums.stock.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if stock >= 2 * self.batch && !self.bound.is_short() {
            self.drain(self.batch);
        }
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
        match self.bytes {
            Some(bytes) => self.account.put(bytes),
            None => _ = self.account.sums.uncharged.fetch_sub(1, Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({:?})", self.bytes)
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts")
            .field("bytes", &self.bytes())
            .field("stock", &self.stock())
            .finish_non_exhaustive()
    }
}
