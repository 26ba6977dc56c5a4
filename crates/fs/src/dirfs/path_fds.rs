//! Descriptors that stand for names: a bounded cache of `O_PATH` descriptors.
//!
//! # Model
//!
//! A node of the directory tree needs a descriptor for every operation on it. Opening one takes a
//! walk from the root, so the last few hundred are kept, with a second chance for those that were
//! used since the hand last passed. They are spread over shards by their nodes' numbers, so that threads which
//! open different files seldom wait for each other.
//!
//! # Invariants
//!
//! 1. Each shard holds its part of the capacity at most, and those of all directories together what
//!    [`KeptFds`] allows; a descriptor that a caller still uses is closed when the caller is done.
//! 2. A shard's `queue` names every key of `fds` once, besides keys that are gone.
//!
//! # Locking
//!
//! One lock a shard, innermost, never held across a system call other than `close`.

use foliocache_sync::rank::{LeafMutex, RankedMutexGuard};
use foliocache_sync::{Arc, CachePadded};
use foliocache_sys::fd::KeptFds;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

/// Least descriptors that are worth a shard.
const SHARD: usize = 32;
/// Most shards.
const SHARDS: usize = 16;

struct CachedFd {
    fd: Arc<OwnedFd>,
    referenced: bool,
}

struct Shard {
    fds: HashMap<u64, CachedFd>,
    queue: VecDeque<u64>,
    capacity: usize,
}

/// The cache; keys are node numbers that are never used twice.
pub(super) struct PathFds {
    shards: Box<[CachePadded<LeafMutex<Shard>>]>,
    /// Shared with those of other directories.
    kept: KeptFds,
}

impl PathFds {
    /// For `capacity` descriptors at most.
    pub(super) fn new(capacity: usize, kept: KeptFds) -> PathFds {
        let capacity = capacity.min(kept.most());
        let shards = (capacity / SHARD).clamp(1, SHARDS);
        let shard = |at: usize| {
            CachePadded::new(LeafMutex::new(Shard {
                fds: HashMap::new(),
                queue: VecDeque::new(),
                capacity: (capacity.max(1) + at) / shards,
            }))
        };
        PathFds {
            shards: (0..shards).map(shard).collect(),
            kept,
        }
    }

    fn shard(&self, key: u64) -> RankedMutexGuard<'_, Shard> {
        self.shards[(key % self.shards.len() as u64) as usize].lock()
    }

    pub(super) fn get(&self, key: u64) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(key);
        let fd = shard.fds.get_mut(&key)?;
        fd.referenced = true;
        Some(fd.fd.clone())
    }

    /// Keeps `fd` for `key`, unless one is kept already. False if directories keep too many together.
    pub(super) fn insert(&self, key: u64, fd: &Arc<OwnedFd>) -> bool {
        let mut evicted = None;
        let mut shard = self.shard(key);
        if shard.fds.contains_key(&key) {
            return true;
        }
        if shard.fds.len() >= shard.capacity {
            // Its place among those of all directories is the new one's.
            evicted = shard.evict();
        } else if !self.kept.try_keep() {
            return false;
        }
        shard.fds.insert(
            key,
            CachedFd {
                fd: fd.clone(),
                referenced: false,
            },
        );
        shard.queue.push_back(key);
        // Keys of nodes that are gone would pile up where nothing is ever evicted.
        if shard.queue.len() > 2 * shard.capacity + 16 {
            let Shard { fds, queue, .. } = &mut *shard;
            queue.retain(|key| fds.contains_key(key));
        }
        drop(shard);
        drop(evicted);
        true
    }

    pub(super) fn remove(&self, key: u64) {
        let removed = self.shard(key).fds.remove(&key);
        self.kept.release(removed.iter().len());
    }

    /// Closes one of the fullest shard, if there is one.
    pub(super) fn evict(&self) -> bool {
        let len = |shard: &&CachePadded<LeafMutex<Shard>>| shard.lock().fds.len();
        let fullest = self.shards.iter().max_by_key(len);
        let evicted = fullest.and_then(|shard| shard.lock().evict());
        self.kept.release(evicted.iter().len());
        evicted.is_some()
    }

    /// Closes the descriptors that are not in use, to make room after `EMFILE`.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.queue.clear();
            let fds = std::mem::take(&mut shard.fds);
            drop(shard);
            self.kept.release(fds.len());
        }
    }

    pub(super) fn len(&self) -> usize {
        let len = |shard: &CachePadded<LeafMutex<Shard>>| shard.lock().fds.len();
        self.shards.iter().map(len).sum()
    }
}

impl Drop for PathFds {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Shard {
    fn evict(&mut self) -> Option<CachedFd> {
        while let Some(key) = self.queue.pop_front() {
            match self.fds.get_mut(&key) {
                None => {}
                Some(fd) if fd.referenced => {
                    fd.referenced = false;
                    self.queue.push_back(key);
                }
                Some(_) => return self.fds.remove(&key),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PathFds {
        /// Runs something while all locks are held.
        pub(in crate::dirfs) fn locked<R>(&self, run: impl FnOnce() -> R) -> R {
            let _shards: Vec<_> = self
                .shards
                .iter()
                .map(|shard| shard.lock_nested())
                .collect();
            run()
        }
    }

    fn fd() -> Arc<OwnedFd> {
        Arc::new(tempfile::tempfile().expect("a file").into())
    }

    #[test]
    fn holds_no_more_than_its_capacity_and_spares_used_descriptors() {
        let cache = PathFds::new(4, KeptFds::own(100));
        for key in 0..4 {
            cache.insert(key, &fd());
        }
        assert!(cache.get(0).is_some());
        cache.insert(4, &fd());
        assert_eq!(cache.len(), 4);
        assert!(cache.get(0).is_some(), "used, so spared");
        assert!(cache.get(1).is_none(), "the oldest unused one went");
        for key in 5..1000 {
            cache.insert(key, &fd());
            cache.remove(key);
        }
        assert!(cache.shards[0].lock().queue.len() <= 2 * 4 + 17);
        cache.clear();
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn the_shards_together_hold_the_capacity() {
        for capacity in [1, 31, 32, 100, 512, 513, 8191] {
            let cache = PathFds::new(capacity, KeptFds::own(10_000));
            let sum: usize = cache.shards.iter().map(|shard| shard.lock().capacity).sum();
            assert_eq!(sum, capacity);
        }
        let cache = PathFds::new(100, KeptFds::own(100));
        for key in 0..1000 {
            cache.insert(key, &fd());
        }
        assert_eq!(cache.len(), 100);
        assert!(cache.get(999).is_some() && cache.get(0).is_none());
        cache.remove(999);
        assert!(cache.get(999).is_none());
        cache.clear();
        assert_eq!(cache.len(), 0);
    }
}
