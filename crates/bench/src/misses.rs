//! Inodes that are not in their cache, looked up and inserted by several threads.
//!
//! # Model
//!
//! Each thread has separate numbers, and asks for each of them once in each of some caches that all share. An inode
//! here is a number with the cache's fields: a file system's work to fill it is left out, because it would hide the
//! cache's own cost.
//!
//! The cache looks under RCU first. The other forms put a first look under a lock before that, as the kernel did: one lock for all, as the
//! kernel's hash of inodes has, or one of as many as the cache has at most.
//!
//! # Safety
//!
//! The inode gives its one link.
#![allow(unsafe_code)]

use foliocache_vfs::{CachedInode, Iget, InodeCache, InodeLink, Unbounded, hash_ino};
use std::convert::Infallible;
use std::hint::black_box;
use std::io;
use std::iter::repeat_with;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::threads::on_threads;

/// Buckets that a cache begins with: a dirfs's number.
const BUCKETS: usize = 256;
/// Locks of the form with many.
const STRIPES: usize = 1024;

/// How a miss looks first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Under RCU.
    Rcu,
    /// Under one of many locks.
    Locked,
    /// Under the only lock.
    OneLock,
}

impl Form {
    /// The locks for the first look.
    fn locks(self) -> usize {
        match self {
            Self::Rcu => 0,
            Self::Locked => STRIPES,
            Self::OneLock => 1,
        }
    }
}

/// The figure of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counted {
    /// Of one thread, for each of its misses.
    Nanoseconds,
    /// Locks of buckets, of all threads.
    Locks,
    /// Misses, of all threads.
    Misses,
}

impl Counted {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns/miss",
            Self::Locks => "locks",
            Self::Misses => "misses",
        }
    }
}

/// An inode that is nothing but its number.
struct BareInode {
    link: InodeLink<BareInode>,
    ino: u64,
}

// SAFETY: the field, which nothing else uses.
unsafe impl CachedInode for BareInode {
    fn link(&self) -> &InodeLink<Self> {
        &self.link
    }
}

/// The pass; see the module. `each` is the inodes of each thread in each cache. What is timed is done `laps` times, in new caches.
pub(crate) fn misses(
    threads: usize,
    each: usize,
    nr_caches: usize,
    laps: usize,
    form: Form,
    counted: Counted,
) -> io::Result<f64> {
    let new = || InodeCache::new(BUCKETS, Arc::new(Unbounded));
    let locks: Vec<_> = repeat_with(|| Mutex::new(())).take(form.locks()).collect();
    let (mut nanoseconds, mut bucket_locks, mut inodes) = (0.0, 0, 0);
    for _ in 0..laps {
        let caches: Vec<_> = repeat_with(new).take(nr_caches).collect();
        let start = Instant::now();
        on_threads(0..threads, |_, thread| {
            for cache in &caches {
                for ino in thread * each..(thread + 1) * each {
                    miss(cache, ino as u64, &locks);
                }
            }
            Ok(())
        })?;
        nanoseconds += start.elapsed().as_nanos() as f64;
        for stats in caches.iter().map(InodeCache::stats) {
            bucket_locks += stats.bucket_locks;
            inodes += stats.inodes;
        }
    }
    let each = (each * nr_caches * laps) as u64;
    let own = if locks.is_empty() {
        0
    } else {
        threads as u64 * each
    };
    Ok(match counted {
        Counted::Nanoseconds => nanoseconds / each as f64,
        Counted::Locks => (bucket_locks + own) as f64,
        // Each is missed once, and none is evicted.
        Counted::Misses => inodes as f64,
    })
}

fn miss(cache: &InodeCache<BareInode>, ino: u64, locks: &[Mutex<()>]) {
    let hash = hash_ino(ino);
    let test = |inode: &BareInode| inode.ino == ino;
    if !locks.is_empty() {
        let lock = &locks[hash as usize % locks.len()];
        let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        black_box(cache.find(hash, test));
    }
    let make = || {
        let link = InodeLink::default();
        Ok::<_, Infallible>(BareInode { link, ino })
    };
    if let Ok(Iget::New(new)) = cache.iget(hash, test, make) {
        new.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_inode_is_missed_once() {
        for (form, locks) in [(Form::Rcu, 1), (Form::Locked, 2), (Form::OneLock, 2)] {
            let counted = |counted| misses(2, 3000, 2, 3, form, counted).unwrap();
            assert_eq!(counted(Counted::Misses), 36_000.0);
            assert_eq!(counted(Counted::Locks), f64::from(locks) * 36_000.0);
        }
    }
}
