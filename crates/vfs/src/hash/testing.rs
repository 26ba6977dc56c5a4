//! What tests and models see of the hash, and how models lead look-ups to paths that are rare.

#[cfg(loom)]
use super::table::HashLink;
use super::{HashNode, RcuHash, Stripe};
use foliocache_sync::atomic::Ordering;

impl<T: HashNode> RcuHash<T> {
    /// Has look-ups that go beyond the first table search under the lock at once. Otherwise it takes a
    /// preemption and a node's whole move to lead a model there.
    #[cfg(loom)]
    pub(crate) fn search_under_lock(&mut self) {
        self.strays = 0;
    }

    /// How often [`lock`](Self::lock) has taken a lock. Costs a load for each stripe, up to 1024.
    #[must_use]
    pub fn locks_taken(&self) -> u64 {
        let locked = |stripe: &Stripe| stripe.locked.load(Ordering::Relaxed);
        // Relaxed: a statistic.
        self.stripes.iter().map(locked).sum()
    }
}

#[cfg(loom)]
impl<T> HashLink<T> {
    /// As if the node never was in a table: for a model.
    #[doc(hidden)]
    pub fn forget(&self) {
        self.hash.store(0, Ordering::Relaxed);
    }
}
