//! How models lead look-ups to paths that are rare.

use super::table::HashLink;
use super::{HashNode, RcuHash};
use foliocache_sync::atomic::Ordering;

impl<T: HashNode> RcuHash<T> {
    /// Has look-ups that go beyond the first table search under the lock at once. Otherwise it takes a
    /// preemption and a node's whole move to lead a model there.
    pub(crate) fn search_under_lock(&mut self) {
        self.strays = 0;
    }
}

impl<T> HashLink<T> {
    /// As if the node never was in a table: for a model.
    #[doc(hidden)]
    pub fn forget(&self) {
        self.hash.store(0, Ordering::Relaxed);
    }
}
