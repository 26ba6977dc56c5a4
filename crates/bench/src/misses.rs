//! Inodes that are not in their cache, looked up and inserted by several threads.
//!
//! # Model
//!
//! Each thread has separate numbers, and asks for each of them once in each of some caches that all share. An inode
//! here is a number with the cache's fields: a file system's work to fill it is left out, because it would hide the
//! cache's own cost.
//!
//! The cache looks under RCU first. The other form puts a first look under a lock before that, as the kernel did:
//! the benchmark's own, one of as many as the cache has at most.
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
/// Locks of the older form.
const STRIPES: usize = 1024;

/// How a miss looks first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Under RCU.
    Rcu,
    /// Under a lock.
    Locked,
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

/// The pass; see the module. `each` is the inodes of each thread in each cache.
pub(crate) fn misses(
    threads: usize,
    each: usize,
    nr_caches: usize,
    form: Form,
    counted: Counted,
) -> io::Result<f64> {
    let new = || InodeCache::new(BUCKETS, Arc::new(Unbounded));
    let caches: Vec<_> = repeat_with(new).take(nr_caches).collect();
    let stripes: Vec<_> = repeat_with(|| Mutex::new(())).take(STRIPES).collect();
    // The older form looks under a lock first.
    let stripes = matches!(form, Form::Locked).then_some(&stripes[..]);
    let start = Instant::now();
    on_threads(0..threads, |_, thread| {
        for cache in &caches {
            for ino in thread * each..(thread + 1) * each {
                miss(cache, ino as u64, stripes);
            }
        }
        Ok(())
    })?;
    let nanoseconds = start.elapsed().as_nanos() as f64;
    let stats = caches.iter().map(InodeCache::stats);
    let own = stripes.map_or(0, |_| (threads * each * nr_caches) as u64);
    Ok(match counted {
        Counted::Nanoseconds => nanoseconds / (each * nr_caches) as f64,
        Counted::Locks => (stats.map(|stats| stats.bucket_locks).sum::<u64>() + own) as f64,
        // Each is missed once, and none is evicted.
        Counted::Misses => stats.map(|stats| stats.inodes).sum::<u64>() as f64,
    })
}

fn miss(cache: &InodeCache<BareInode>, ino: u64, stripes: Option<&[Mutex<()>]>) {
    let hash = hash_ino(ino);
    let test = |inode: &BareInode| inode.ino == ino;
    if let Some(stripes) = stripes {
        let stripe = &stripes[hash as usize % STRIPES];
        let _lock = stripe.lock().unwrap_or_else(PoisonError::into_inner);
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
        for (form, locks) in [(Form::Rcu, 1), (Form::Locked, 2)] {
            let counted = |counted| misses(2, 3000, 2, form, counted).unwrap();
            assert_eq!(counted(Counted::Misses), 12_000.0);
            assert_eq!(counted(Counted::Locks), f64::from(locks) * 12_000.0);
        }
    }
}
