//! What inodes are charged for, from their insertion to their end.
//!
//! # Model
//!
//! A [`Charge`] lives in the inode and gives the bytes back when the inode is dropped, which may be long
//! after it left the cache: it waits for readers, or somebody holds it open.

use std::fmt;

use foliocache_sync::Arc;
use foliocache_sync::ShardedCounter;

use crate::bound::Bound;

/// The bound, and what it refused.
pub(super) struct Account {
    bound: Arc<dyn Bound>,
    /// Inodes that live without being charged.
    uncharged: ShardedCounter,
    /// Bytes charged.
    bytes: ShardedCounter,
}

/// What one inode was charged.
pub(super) struct Charge {
    account: Arc<Account>,
    /// `None` if there was no room.
    bytes: Option<u64>,
}

impl Account {
    pub(super) fn new(bound: Arc<dyn Bound>) -> Arc<Self> {
        Arc::new(Self {
            bound,
            uncharged: ShardedCounter::new(),
            bytes: ShardedCounter::new(),
        })
    }

    /// Charges so many bytes, if there is room.
    ///
    /// Context: that of [`Bound::charge`].
    pub(super) fn charge(self: &Arc<Self>, bytes: u64) -> Charge {
        let charged = self.bound.charge(bytes);
        match charged {
            true => self.bytes.add(bytes as i64),
            false => self.uncharged.inc(),
        }
        Charge {
            account: Arc::clone(self),
            bytes: charged.then_some(bytes),
        }
    }

    pub(super) fn uncharged(&self) -> u64 {
        self.uncharged.sum_positive()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.sum_positive()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(bytes) = self.bytes else {
            self.account.uncharged.dec();
            return;
        };
        self.account.bytes.add(-(bytes as i64));
        self.account.bound.uncharge(bytes);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({:?})", self.bytes)
    }
}
