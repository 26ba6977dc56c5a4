//! The inodes in memory, by number and by identity.
//!
//! # Model
//!
//! An inode stays in the table while somebody holds it, while a front door remembers look-ups of
//! it, while data of it is on the way to the backing store, and while pages of it are cached. The
//! rest is taken out by a clock hand: every insertion moves it on by a few inodes, so there is no
//! pause and what is useless does not outnumber what is in use for long. When the memory bound has
//! no room for one inode more, the hand goes all the way round and takes those with cached pages
//! too.
//!
//! # Invariants
//!
//! 1. While an inode is in the table, a look-up of its identity finds it: there are never two
//!    inodes for one file.
//! 2. `clock` names every inode of `by_ino` once, besides numbers that are gone.
//! 3. An inode is taken out only under the lock and with one reference, the table's own: nobody
//!    else holds it, and only the table can give it to anybody.
//!
//! # Locking
//!
//! One lock, below those of the namespace. Inodes are dropped after it is released, because a drop
//! frees folios.

use foliocache_mm::{AddressSpace, Mm};
use foliocache_sync::{Arc, Mutex};
use foliocache_vfs::{FileKind, Inode};
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Memory that an inode is charged for, in bytes: the inode, the address space of a regular file,
/// the private part, and its places in the tables.
pub(crate) fn inode_bytes(kind: FileKind) -> u64 {
    let mapping = match kind {
        FileKind::Regular => AddressSpace::memory_bytes(),
        _ => 0,
    };
    (size_of::<Inode>() + mapping + 768) as u64
}

/// Inodes that the hand passes at each insertion.
const STEP: usize = 4;

/// Numbers that stand for no inode number of the backing store.
const SYNTHETIC: u64 = 1 << 63;

struct Slot<K> {
    inode: Arc<Inode>,
    /// `None` once the identity may belong to another file.
    identity: Option<K>,
    /// Bytes charged to the bound; 0 if there was no room.
    charged: u64,
}

struct Inner<K> {
    by_ino: HashMap<u64, Slot<K>>,
    by_identity: HashMap<K, u64>,
    clock: VecDeque<u64>,
    next_synthetic: u64,
    uncharged: u64,
}

/// Inodes by number and by identity `K`.
pub(crate) struct InodeTable<K> {
    inner: Mutex<Inner<K>>,
    mm: Arc<Mm>,
}

impl<K: Copy + Eq + Hash> InodeTable<K> {
    pub(crate) fn new(mm: &Arc<Mm>) -> InodeTable<K> {
        InodeTable {
            inner: Mutex::new(Inner {
                by_ino: HashMap::new(),
                by_identity: HashMap::new(),
                clock: VecDeque::new(),
                next_synthetic: SYNTHETIC,
                uncharged: 0,
            }),
            mm: mm.clone(),
        }
    }

    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.inner
            .lock()
            .by_ino
            .get(&ino)
            .map(|slot| slot.inode.clone())
    }

    pub(crate) fn find(&self, identity: &K) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        let ino = inner.by_identity.get(identity)?;
        inner.by_ino.get(ino).map(|slot| slot.inode.clone())
    }

    /// The inode of `identity`, made by `make` with its number if there is none. The number is
    /// `wanted` unless that is taken.
    pub(crate) fn find_or_insert(
        &self,
        identity: K,
        wanted: Option<u64>,
        kind: FileKind,
        make: impl FnOnce(u64) -> Arc<Inode>,
    ) -> Arc<Inode> {
        if let Some(inode) = self.find(&identity) {
            return inode;
        }
        let charged = self.charge(inode_bytes(kind));
        let mut gone = Vec::new();
        let mut inner = self.inner.lock();
        let found = inner
            .by_identity
            .get(&identity)
            .and_then(|ino| inner.by_ino.get(ino));
        if let Some(slot) = found {
            let inode = slot.inode.clone();
            drop(inner);
            self.mm.uncharge_metadata(charged);
            return inode;
        }
        inner.turn(STEP, false, &mut gone);
        let ino = match wanted {
            Some(ino) if !inner.by_ino.contains_key(&ino) => ino,
            _ => {
                inner.next_synthetic += 1;
                inner.next_synthetic
            }
        };
        let inode = make(ino);
        inner.by_identity.insert(identity, ino);
        inner.by_ino.insert(
            ino,
            Slot {
                inode: inode.clone(),
                identity: Some(identity),
                charged,
            },
        );
        inner.clock.push_back(ino);
        inner.uncharged += u64::from(charged == 0);
        drop(inner);
        self.drop_slots(gone);
        inode
    }

    /// Charges one inode to the bound, at the price of others if need be; the bytes, or 0.
    fn charge(&self, bytes: u64) -> u64 {
        if self.mm.charge_metadata(bytes).is_ok() {
            return bytes;
        }
        let mut gone = Vec::new();
        {
            let mut inner = self.inner.lock();
            let all = inner.clock.len();
            inner.turn(all, true, &mut gone);
        }
        self.drop_slots(gone);
        if self.mm.charge_metadata(bytes).is_ok() {
            bytes
        } else {
            0
        }
    }

    fn drop_slots(&self, slots: Vec<Slot<K>>) {
        for slot in slots {
            let charged = slot.charged;
            drop(slot);
            self.mm.uncharge_metadata(charged);
        }
    }

    /// The file of this identity is gone from the backing store, which may give the identity to
    /// another; the inode stays findable by number.
    pub(crate) fn forget_identity(&self, identity: &K) {
        let mut inner = self.inner.lock();
        if let Some(ino) = inner.by_identity.remove(identity)
            && let Some(slot) = inner.by_ino.get_mut(&ino)
        {
            slot.identity = None;
        }
    }

    pub(crate) fn remember(&self, inode: &Inode, nlookup: u64) {
        let _inner = self.inner.lock();
        inode.set_lookups(inode.lookups() + nlookup);
    }

    /// Takes look-ups back; the inode, if none is left and its file is gone.
    pub(crate) fn forget(&self, ino: u64, nlookup: u64) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        let slot = inner.by_ino.get(&ino)?;
        slot.inode
            .set_lookups(slot.inode.lookups().saturating_sub(nlookup));
        (slot.inode.lookups() == 0 && slot.identity.is_none()).then(|| slot.inode.clone())
    }

    /// All inodes, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.inner
            .lock()
            .by_ino
            .values()
            .map(|slot| slot.inode.clone())
            .collect()
    }

    /// Inodes in the table, and how many of them the bound had no room for.
    pub(crate) fn len(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.by_ino.len() as u64, inner.uncharged)
    }
}

impl<K: Copy + Eq + Hash> Inner<K> {
    /// Moves the hand on by `steps` inodes and takes out those that nobody needs; with `cached`
    /// those whose clean pages are in the cache too.
    fn turn(&mut self, steps: usize, cached: bool, gone: &mut Vec<Slot<K>>) {
        for _ in 0..steps {
            let Some(ino) = self.clock.pop_front() else {
                return;
            };
            let Some(slot) = self.by_ino.get(&ino) else {
                continue;
            };
            if !slot.is_unused(cached) {
                self.clock.push_back(ino);
                continue;
            }
            let slot = self.by_ino.remove(&ino).expect("it was there just now");
            if let Some(identity) = &slot.identity {
                self.by_identity.remove(identity);
            }
            self.uncharged -= u64::from(slot.charged == 0);
            gone.push(slot);
        }
    }
}

impl<K> Slot<K> {
    fn is_unused(&self, cached: bool) -> bool {
        // Invariant 3; nobody can take a reference while the caller holds the lock.
        Arc::strong_count(&self.inode) == 1
            && self.inode.lookups() == 0
            && (self.identity.is_none() || !self.inode.ops().is_busy())
            && self.inode.mapping().is_none_or(|mapping| {
                // An unlinked file's pages are of no use to anybody.
                let keep = self.identity.is_some() && !cached && mapping.nr_pages() > 0;
                !keep && (self.identity.is_none() || !mapping.is_dirty())
            })
    }
}

impl<K> Drop for InodeTable<K> {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let charged = inner.by_ino.values().map(|slot| slot.charged).sum();
        inner.by_ino.clear();
        self.mm.uncharge_metadata(charged);
    }
}
