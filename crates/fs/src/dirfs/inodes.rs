//! The inodes of a source in memory, by identity.
//!
//! # Model
//!
//! An inode is found by the [`Identity`] of its file, hashed by the source's inode number. That is the inode's own number too,
//! unless it is taken: by the root, or by a file that is gone from the source and still open here. Then the inode gets a
//! synthetic number.
//!
//! ```text
//!  source's device       number            that of the source
//!  another device        1 │ which, from 1: 15 bits │ number: 48 bits
//!  neither of these      1 │ 0                      │ counted up
//! ```
//!
//! A mount has one device number for all that it shows, so files of other devices, mounted below the source, get numbers of
//! their own. They are the same whenever the file is looked up: two names of a file are known by its number.
//!
//! An inode without holders stays while memory is free. It is evicted when memory is short, unless pages
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
//! The lock of `others` is a leaf, taken for files of other devices.
//!
//! # Memory ordering
//!
//! `next_synthetic` hands out numbers that need only differ: `Relaxed`.

use super::identity::Identity;
use super::node::DirNode;
use super::orphans::Orphans;
use foliocache_mm::Mm;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_vfs::{Iget, Inode, InodeCache, ROOT_INO, SlabArc, hash_ino};
use std::cell::Cell;
use std::collections::HashSet;
use std::convert::Infallible;

/// Buckets that the hash begins with.
const BUCKETS: usize = 256;

/// Numbers from here on stand for no inode number of the source.
const SYNTHETIC: u64 = 1 << 63;

/// Bits for the number of a file of another device.
const NUMBER_BITS: u32 = 48;

/// Other devices that have numbers of their own, most.
const DEVICES: usize = 1 << 15;

/// See the module's header.
pub(super) struct Inodes {
    pub(super) cache: InodeCache<Inode>,
    numbers: Arc<Numbers>,
    next_synthetic: AtomicU64,
    orphans: Arc<Orphans>,
}

/// The number of a file by its device and its number there.
pub(super) struct Numbers {
    /// The source's device.
    dev: u64,
    others: LeafMutex<Vec<u64>>,
}

impl Numbers {
    /// The number of a file, if it has one that stays: `None` where another device has too large a number, or there are too
    /// many devices.
    pub(super) fn of(&self, dev: u64, ino: u64) -> Option<u64> {
        if dev == self.dev {
            return (ino != ROOT_INO).then_some(ino);
        }
        let mut others = self.others.lock();
        let known = others.iter().position(|&other| other == dev);
        let place = known.unwrap_or(others.len()) + 1;
        if known.is_none() && place < DEVICES {
            others.push(dev);
        }
        (place < DEVICES && ino >> NUMBER_BITS == 0)
            .then_some(SYNTHETIC | (place as u64) << NUMBER_BITS | ino)
    }

    /// The devices besides the source's that files were seen of.
    pub(super) fn other_devices(&self) -> HashSet<u64> {
        self.others.lock().iter().copied().collect()
    }
}

fn identity(inode: &Inode) -> Option<&Identity> {
    DirNode::of(inode).ok().map(|node| &node.identity)
}

impl Inodes {
    /// Of a source that lies on the device `dev`.
    pub(super) fn new(mm: &Arc<Mm>, dev: u64) -> Inodes {
        Inodes {
            cache: InodeCache::new(BUCKETS, mm.clone()),
            numbers: Arc::new(Numbers {
                dev,
                others: LeafMutex::default(),
            }),
            next_synthetic: AtomicU64::new(SYNTHETIC),
            orphans: Arc::default(),
        }
    }

    pub(super) fn find(&self, wanted: &Identity) -> Option<SlabArc<Inode>> {
        let is_it = |inode: &Inode| identity(inode) == Some(wanted);
        self.cache.find(hash_ino(wanted.ino), is_it)
    }

    /// The numbers of files.
    pub(super) fn numbers(&self) -> &Arc<Numbers> {
        &self.numbers
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

    /// Evicts about `nr` inodes without holders, if nothing is lost with them; returns how many.
    pub(super) fn shrink(&self, nr: usize) -> usize {
        let evicted = self.cache.shrink(nr, judge);
        self.cache.flush_limbo();
        evicted
    }

    /// Evicts those of `inodes` that have no other holder, if nothing is lost with them.
    pub(super) fn evict(&self, inodes: Vec<SlabArc<Inode>>) {
        for inode in inodes {
            self.cache.evict(inode, judge);
        }
        self.cache.wait_for_limbo();
    }
}

/// Whether nothing is lost with an inode without holders.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_devices_have_numbers_that_stay() {
        let numbers = Numbers {
            dev: 7,
            others: LeafMutex::default(),
        };
        assert_eq!(numbers.of(7, 42), Some(42));
        assert_eq!(numbers.of(7, ROOT_INO), None, "the root's");
        let found: Vec<_> = [(8, 1), (9, 1), (8, 2), (9, 2), (8, (1 << 48) - 1)]
            .map(|(dev, ino)| (dev, ino, numbers.of(dev, ino).unwrap()))
            .into();
        for (place, &(dev, ino, number)) in found.iter().enumerate() {
            assert!(number > SYNTHETIC);
            assert_eq!(numbers.of(dev, ino), Some(number));
            assert!(found[..place].iter().all(|&(_, _, other)| other != number));
        }
        assert_eq!(numbers.of(8, 1 << 48), None, "too large");
        for dev in 100..2 * DEVICES as u64 {
            let _ = numbers.of(dev, 1);
        }
        assert_eq!(numbers.of(1 << 40, 1), None, "too many");
        assert_eq!(numbers.of(9, 2), Some(found[3].2));
        assert!(numbers.others.lock().len() < DEVICES);
    }
}
