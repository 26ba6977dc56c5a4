//! The inodes of a source in memory, by identity.
//!
//! # Model
//!
//! An inode is found by who its file is ([`Identity`]), hashed by the source's inode number, which is the
//! inode's own number, too, unless that is taken: by the root's, by a file of another device, or by
//! one that is gone from the source and still open here. Then it gets a synthetic one.
//!
//! An inode that nobody holds stays while memory is free. It is evicted for want of memory, unless pages
//! of it are cached or on their way to the source.
//!
//! # Invariants
//!
//! 1. No two inodes that can be found have one identity.
//! 2. No two live inodes have one number, apart from files that were replaced from outside and found at
//!    the same moment by two threads.
//!
//! # Locking
//!
//! The lock of `orphans` is a leaf, taken only while there are any.
//!
//! # Memory ordering
//!
//! `next_synthetic` hands out numbers that need only differ: `Relaxed`. `nr_orphans` is changed under the
//! lock; an insertion that reads it without looks for a number which the source has given to a new
//! file, long after the old one lost its name.

use super::node::{DirNode, Identity};
use foliocache_mm::Mm;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::{Arc, Mutex};
use foliocache_vfs::{Iget, Inode, InodeCache, SlabArc, hash_ino};
use std::cell::Cell;
use std::collections::HashSet;
use std::convert::Infallible;

/// Buckets that the hash begins with.
const BUCKETS: usize = 256;

/// Numbers from here on stand for no inode number of the source.
const SYNTHETIC: u64 = 1 << 63;

/// See the module's header.
pub(super) struct Inodes {
    pub(super) cache: InodeCache<Inode>,
    next_synthetic: AtomicU64,
    orphans: Arc<Orphans>,
}

/// Numbers of inodes that live on without a name.
#[derive(Default)]
pub(super) struct Orphans {
    numbers: Mutex<HashSet<u64>>,
    nr: AtomicU64,
}

impl Orphans {
    fn insert(&self, ino: u64) {
        let mut numbers = self.numbers.lock();
        numbers.insert(ino);
        // Relaxed: see the module's header.
        self.nr.store(numbers.len() as u64, Ordering::Relaxed);
    }

    /// The inode is gone for good.
    pub(super) fn remove(&self, ino: u64) {
        let mut numbers = self.numbers.lock();
        numbers.remove(&ino);
        // Relaxed: see the module's header.
        self.nr.store(numbers.len() as u64, Ordering::Relaxed);
    }

    fn contains(&self, ino: u64) -> bool {
        // Relaxed: see the module's header.
        self.nr.load(Ordering::Relaxed) > 0 && self.numbers.lock().contains(&ino)
    }
}

fn identity(inode: &Inode) -> Option<&Identity> {
    DirNode::of(inode).ok().map(|node| &node.identity)
}

impl Inodes {
    pub(super) fn new(mm: &Arc<Mm>) -> Inodes {
        Inodes {
            cache: InodeCache::new(BUCKETS, mm.clone()),
            next_synthetic: AtomicU64::new(SYNTHETIC),
            orphans: Arc::default(),
        }
    }

    pub(super) fn find(&self, wanted: &Identity) -> Option<SlabArc<Inode>> {
        let is_it = |inode: &Inode| identity(inode) == Some(wanted);
        self.cache.find(hash_ino(wanted.ino), is_it)
    }

    /// The inode of an identity, made by `make` with its number if there is none. The number is `number`
    /// unless that is taken.
    pub(super) fn find_or_insert(
        &self,
        wanted: Identity,
        number: Option<u64>,
        make: impl FnOnce(u64) -> Inode,
    ) -> SlabArc<Inode> {
        let taken = Cell::new(false);
        let is_it = |inode: &Inode| {
            let found = identity(inode) == Some(&wanted);
            taken.set(taken.get() || (!found && Some(inode.ino()) == number));
            found
        };
        let found = self.cache.iget(hash_ino(wanted.ino), is_it, || {
            let free = |ino: &u64| !taken.get() && !self.orphans.contains(*ino);
            // Relaxed: see the module's header.
            let synthetic = || self.next_synthetic.fetch_add(1, Ordering::Relaxed);
            let inode = make(number.filter(free).unwrap_or_else(synthetic));
            Ok::<_, Infallible>(inode)
        });
        match found {
            Ok(Iget::Found(inode)) => inode,
            Ok(Iget::New(new)) => new.unlock(),
            Err(never) => match never {},
        }
    }

    /// The file of this inode is gone from the source, which may give its identity to another.
    pub(super) fn orphan(&self, inode: &SlabArc<Inode>) {
        if let Ok(node) = DirNode::of(inode)
            && node.orphaned.set(Arc::downgrade(&self.orphans)).is_ok()
        {
            self.orphans.insert(inode.ino());
        }
        self.cache.remove(inode);
    }

    /// Evicts about so many inodes that nobody holds and that nothing would be lost with; how many.
    pub(super) fn shrink(&self, nr: usize) -> usize {
        let evicted = self.cache.shrink(nr, judge);
        self.cache.wait_for_limbo();
        evicted
    }

    /// Evicts those of `inodes` that nobody else holds and that nothing would be lost with.
    pub(super) fn evict(&self, inodes: Vec<SlabArc<Inode>>) {
        for inode in inodes {
            self.cache.evict(inode, judge);
        }
        self.cache.wait_for_limbo();
    }
}

/// Whether nothing would be lost with an inode that nobody holds.
fn judge(inode: &Inode) -> bool {
    let node = DirNode::of(inode).ok();
    let busy = node.is_some_and(DirNode::is_busy);
    let pages = inode
        .mapping()
        .is_some_and(|mapping| mapping.nr_pages() > 0 || mapping.is_dirty());
    if busy || pages {
        return false;
    }
    if let Some(node) = node {
        node.note_eviction();
    }
    true
}
