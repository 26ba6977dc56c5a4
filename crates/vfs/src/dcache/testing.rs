//! What tests see of the dentry cache.

use super::cache::DentryCache;
use super::dentry::DentryInode;
#[cfg(loom)]
use foliocache_mm::MetadataBound;
#[cfg(loom)]
use foliocache_sync::Arc;

/// Counts of a cache; see [`DentryCache::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DentryStats {
    /// Dentries, roots and what is no longer found included.
    pub dentries: u64,
    /// Those that say that there is no such name.
    pub negative: u64,
    /// Things given up that wait for a grace period.
    pub limbo: u64,
    /// Bytes of the hash table.
    pub table_bytes: u64,
    /// Dentries that the clock hand took.
    pub evicted: u64,
    /// Pages of dentries that the clock hand passed.
    pub scanned: u64,
    /// Dentries that the bound had no room for, so that they were not kept.
    pub one_offs: u64,
}

impl<I: DentryInode> DentryCache<I> {
    /// A cache whose look-ups search under the hash's lock while the table grows.
    #[cfg(loom)]
    pub fn searched_under_lock(buckets: usize, bound: Arc<dyn MetadataBound>) -> Self {
        let mut cache = Self::new(buckets, bound);
        let inner = Arc::get_mut(&mut cache.inner).expect("a cache without roots");
        inner.hash.search_under_lock();
        cache
    }

    /// Counts what the cache holds and did. Adds up many counters: not for a hot path.
    pub fn stats(&self) -> DentryStats {
        let counts = &self.inner.counts;
        DentryStats {
            dentries: counts.dentries.sum_positive(),
            negative: counts.negative.sum_positive(),
            limbo: self.inner.limbo.len() as u64,
            table_bytes: self.inner.hash.bytes(),
            evicted: counts.evicted.sum_positive(),
            scanned: self.inner.slab.passed(),
            one_offs: counts.one_offs.sum_positive(),
        }
    }
}
