//! [`RcuHash`]: an intrusive hash table, looked up under RCU, changed under small locks, that grows
//! without a pause.
//!
//! # Model
//!
//! A node carries a [`HashLink`]; the table is an array of chains. A chain ends in a *marker*, an odd
//! word that names its bucket and its table.
//!
//! ```text
//!  table ──▶ [ • | • | • | • ]  ──next──▶ [ • | • | • | • | • | • | • | • ]     while it grows
//!              │   └▶ n ─▶ n ─▶ marker      │
//!              └▶ marker: moved             └▶ n ─▶ marker
//! ```
//!
//! When one of its stripes gets crowded the table wants to grow. [`RcuHash::tend`], which its owner calls after
//! insertions and with no lock held, asks the bound for an array of twice the size and links it as `next`; from
//! then on insertions go there, and every `tend` moves a few buckets more. The last one makes `next` the table; the
//! old array is freed after a grace period. If the bound refuses, the chains get longer, and the bound is asked
//! again when they are half as long again.
//!
//! A bucket moves node by node, from the tail: the node is put before the new chain, and then removed from the old
//! one. A reader on it continues into the new chain, which costs nothing: there was nothing behind the tail.
//!
//! # Invariants
//!
//! 1. A node in the table is in one chain, that of its hash, in the table or in `next`; for the moment
//!    between the two steps of its move it is in both. A look-up that goes through the table first and
//!    through `next` then meets every node that was there throughout.
//! 2. A node or array found in a read section stays valid to its end: it is freed a grace period after it was
//!    unpublished (the contract of [`Bucket::insert`]).
//! 3. A look-up that ends in another marker than that of its chain was carried elsewhere by a node that
//!    moved, and may have missed something: it starts over, and after a few times looks under the lock.
//! 4. There are no more stripes than buckets in any table, both powers of two: all buckets that a hash
//!    ever falls into belong to one stripe.
//! 5. At most one table is retired, and none starts to grow before it is freed (`grow`).
//!
//! # Locking
//!
//! *Protects*: a stripe's lock the chains of its buckets, in all tables. *Order*: rank
//! [`HashBucket`](Rank::HashBucket); `retired` is a leaf. *May block*: look-ups never sleep;
//! [`RcuHash::tend`] may reclaim memory.
//!
//! # Memory ordering
//!
//! Every pointer to a node is stored with `Release` and loaded with `Acquire`: partners. A reader that meets a node
//! sees it as it was inserted. A reader that *misses* a node in the table because it has moved has loaded the
//! pointer or the marker that bypasses it, which was stored after `next` was: it sees `next`, and in it the node.
//! `table` and `next` are stored with `Release` after the array was made, and loaded with `Acquire`.
//!
//! # Differences from Linux
//!
//! `inode_hashtable` and `dentry_hashtable` are sized at boot and have one lock, or a lock bit in each
//! bucket. The way of moving is that of `rhashtable`, which grows from a worker and all at once; here
//! each insertion moves a few buckets.
//!
//! # Safety
//!
//! Raw pointers to nodes and arrays are followed in read sections or under the stripe's lock, by
//! invariant 2.
#![allow(unsafe_code)]

use std::iter;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use foliocache_sync::rank::{LeafMutex, Rank, RankedMutex, RankedMutexGuard, might_lock};
use foliocache_sync::rcu::{self, RcuReadGuard};

use foliocache_mm::MetadataBound;
use grow::{Retired, WANTS_TO_GROW, crowded};
use table::{Table, Walk, is_end};

/// Stripes at most.
const MAX_STRIPES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 1024 };
/// Look-ups that go astray before one takes the lock.
const STRAYS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 3 };
/// A part of the hash values: one lock for all buckets that they fall into.
#[derive(Default)]
struct Stripe {
    lock: RankedMutex<{ Rank::HashBucket as u8 }, ()>,
    /// Nodes in these buckets. Changed under the lock.
    len: AtomicU32,
    /// How often the lock was taken by [`RcuHash::lock`]. Changed under it.
    locked: AtomicU64,
}

/// The table; see the module's documentation.
pub struct RcuHash<T: HashNode> {
    /// A `Box`; freed through `retired`.
    table: AtomicPtr<Table<T>>,
    stripes: Box<[Stripe]>,
    /// Nodes in a stripe above which the table wants to grow.
    crowded: AtomicU32,
    /// Work for [`tend`](Self::tend), so that without any it costs one load.
    attention: AtomicU32,
    /// A thread is asking the bound, and starting to grow.
    growing: AtomicBool,
    retired: LeafMutex<Option<Retired<T>>>,
    bound: Arc<dyn MetadataBound>,
    /// Bytes charged to the bound.
    charged: AtomicU64,
    /// In place of [`STRAYS`].
    #[cfg(loom)]
    strays: usize,
    /// Shared as the nodes are: not by itself.
    _nodes: PhantomData<*const T>,
}

// SAFETY: through the table a thread reaches nodes that others inserted, and hints, which are `Send
// + Sync`.
unsafe impl<T: HashNode + Send + Sync> Send for RcuHash<T> {}
// SAFETY: as for `Send`: a thread reaches nodes of others, which are `Send + Sync`; all changes are
// made under the stripes' locks.
unsafe impl<T: HashNode + Send + Sync> Sync for RcuHash<T> {}

impl<T: HashNode> RcuHash<T> {
    /// A table of at least this many buckets. Its [`bytes`](Self::bytes) are charged, if there is
    /// room.
    #[must_use]
    pub fn new(buckets: usize, bound: Arc<dyn MetadataBound>) -> Self {
        let buckets = buckets.next_power_of_two();
        let stripes = buckets.min(MAX_STRIPES);
        let bytes = Table::<T>::bytes(buckets) + (stripes * size_of::<Stripe>()) as u64;
        let charged = if bound.charge(bytes) { bytes } else { 0 };
        Self {
            table: AtomicPtr::new(Box::into_raw(Table::new(buckets, 0))),
            stripes: (0..stripes).map(|_| Stripe::default()).collect(),
            crowded: AtomicU32::new(crowded(buckets, stripes)),
            attention: AtomicU32::new(0),
            growing: AtomicBool::new(false),
            retired: LeafMutex::new(None),
            bound,
            charged: AtomicU64::new(charged),
            #[cfg(loom)]
            strays: STRAYS,
            _nodes: PhantomData,
        }
    }

    #[inline(always)]
    fn table<'g>(&'g self, _rcu: &'g RcuReadGuard) -> &'g Table<T> {
        // Acquire pairs with the Release store in `finish`.
        // SAFETY: never null; freed a grace period after another took its place, and we are in a read
        // section.
        unsafe { &*self.table.load(Ordering::Acquire) }
    }

    #[inline(always)]
    fn next<'g>(&'g self, table: &'g Table<T>, _rcu: &'g RcuReadGuard) -> Option<&'g Table<T>> {
        // Acquire pairs with the Release store in `start_growing`.
        let next = table.next.load(Ordering::Acquire);
        // SAFETY: null, or a table that is freed a grace period after `table` was unpublished.
        unsafe { next.as_ref() }
    }

    /// The tables in which a node may be; the last is inserted into.
    fn tables<'g>(&'g self, rcu: &'g RcuReadGuard) -> impl Iterator<Item = &'g Table<T>> {
        iter::successors(Some(self.table(rcu)), |table| self.next(table, rcu))
    }

    /// The node with this hash for which `matches` returns true. Takes no lock, unless moving nodes led the look-up
    /// astray several times.
    ///
    /// `matches` is called only with nodes of exactly this hash. It may see one that was removed meanwhile, may be
    /// called twice with one, and may not block.
    ///
    /// A node that is in the table throughout is found. One that is removed and inserted again, under
    /// another hash for instance, may be missed, while it makes no look-up miss another.
    ///
    /// Context: in a read section; no lock of rank `HashBucket` or inner.
    #[inline]
    pub fn find<'g>(
        &'g self,
        hash: u64,
        mut matches: impl FnMut(&'g T) -> bool,
        rcu: &'g RcuReadGuard,
    ) -> Option<&'g T> {
        let table = self.table(rcu);
        // SAFETY: `'g` is bounded by the guard.
        match unsafe { table.search(hash, &mut matches) } {
            Walk::Found(node) => Some(node),
            Walk::End if self.next(table, rcu).is_none() => None,
            _ => self.find_slow(hash, &mut matches, rcu),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_slow<'g>(
        &'g self,
        hash: u64,
        matches: &mut impl FnMut(&'g T) -> bool,
        rcu: &'g RcuReadGuard,
    ) -> Option<&'g T> {
        might_lock(Rank::HashBucket);
        #[cfg(not(loom))]
        let strays = STRAYS;
        #[cfg(loom)]
        let strays = self.strays;
        for _ in 0..strays {
            let mut strayed = false;
            for table in self.tables(rcu) {
                // SAFETY: `'g` is bounded by the guard.
                match unsafe { table.search(hash, matches) } {
                    Walk::Found(node) => return Some(node),
                    Walk::End => (),
                    Walk::Strayed => strayed = true,
                }
            }
            if !strayed {
                return None;
            }
        }
        let _bucket = self.lock(hash);
        // SAFETY: `'g` is bounded by the guard. Nothing strays: the lock is held.
        self.tables(rcu)
            .find_map(|table| match unsafe { table.search(hash, matches) } {
                Walk::Found(node) => Some(node),
                Walk::End | Walk::Strayed => None,
            })
    }

    /// Locks the bucket of a hash, for a change.
    ///
    /// Context: no lock of rank `HashBucket` or inner; may be in a read section.
    #[track_caller]
    pub fn lock(&self, hash: u64) -> Bucket<'_, T> {
        let rcu = rcu::read_lock();
        let stripe = &self.stripes[hash as usize & (self.stripes.len() - 1)];
        let guard = stripe.lock.lock();
        // Relaxed: changed under the lock alone; others read it as a statistic.
        let locked = stripe.locked.load(Ordering::Relaxed);
        stripe.locked.store(locked + 1, Ordering::Relaxed);
        Bucket {
            table: self,
            hash,
            stripe,
            _guard: guard,
            rcu,
        }
    }

    /// Calls `visit` with the nodes whose hashes fall into the buckets `part` of a table of `of` buckets, as many as
    /// there [were](Self::buckets) at some time, without their lock: one may be met that was removed meanwhile, or twice,
    /// and `visit` may remove it. Each node is met that was there throughout.
    pub fn scan<'g>(
        &'g self,
        part: Range<usize>,
        of: usize,
        mut visit: impl FnMut(&'g T),
        rcu: &'g RcuReadGuard,
    ) {
        for table in self.tables(rcu) {
            for bucket in part.clone() {
                for bucket in (bucket..table.heads.len()).step_by(of) {
                    // SAFETY: `'g` is bounded by the guard.
                    unsafe { table.each(bucket, &mut visit) };
                }
            }
        }
    }

    /// Nodes in the table, at some moment. Costs a load for each stripe, up to 1024.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "without a caller")]
    pub fn len(&self) -> usize {
        let len = |stripe: &Stripe| stripe.len.load(Ordering::Relaxed) as usize;
        // Relaxed: a statistic.
        self.stripes.iter().map(len).sum()
    }

    /// Buckets now.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.table(&rcu::read_lock()).heads.len()
    }

    /// Bytes that are charged to the bound for arrays and locks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Relaxed: a statistic.
        self.charged.load(Ordering::Relaxed)
    }

    /// Takes all nodes out, for the owner to free.
    pub fn drain(&mut self, mut take: impl FnMut(NonNull<T>)) {
        // No read section, in which `take` could not sleep: the exclusive borrow excludes look-ups.
        let mut table = self.table.load(Ordering::Acquire);
        // SAFETY: null or a table of this hash. Only a change frees one, and that borrows the hash.
        while let Some(at) = unsafe { table.as_ref() } {
            for head in &at.heads {
                // Acquire, above and below: as in `search`, though the exclusive borrow has ordered it already.
                let mut next = head.first.swap(ptr::null_mut(), Ordering::Acquire);
                while let Some(node) = NonNull::new(next).filter(|node| !is_end(node.as_ptr())) {
                    // SAFETY: a node of the table is valid (invariant 2), and `take` has not got it
                    // yet.
                    next = unsafe { node.as_ref() }.link().next.load(Ordering::Acquire);
                    take(node);
                }
            }
            table = at.next.load(Ordering::Acquire);
        }
        for stripe in &self.stripes {
            // Relaxed: borrowed exclusively.
            stripe.len.store(0, Ordering::Relaxed);
        }
    }
}

impl<T: HashNode> Drop for RcuHash<T> {
    fn drop(&mut self) {
        // Relaxed: borrowed exclusively, which excludes look-ups.
        let mut table = self.table.load(Ordering::Relaxed);
        while !table.is_null() {
            // SAFETY: made by `Box::into_raw`; the retired one is none of these.
            let owned = unsafe { Box::from_raw(table) };
            // Relaxed: borrowed exclusively.
            table = owned.next.load(Ordering::Relaxed);
        }
        self.bound.uncharge(self.charged.load(Ordering::Relaxed));
    }
}

/// The locked bucket of a hash.
#[must_use = "the lock is released when it is dropped"]
pub struct Bucket<'a, T: HashNode> {
    table: &'a RcuHash<T>,
    hash: u64,
    stripe: &'a Stripe,
    _guard: RankedMutexGuard<'a, ()>,
    // Below the guard: dropped after it. Keeps the arrays.
    rcu: RcuReadGuard,
}

impl<T: HashNode> Bucket<'_, T> {
    /// The node with this hash for which `matches` says yes; it stays in the table as long as the lock is
    /// held. `matches` may take leaf locks only.
    pub fn find<'b>(&'b self, mut matches: impl FnMut(&'b T) -> bool) -> Option<&'b T> {
        let mut tables = self.table.tables(&self.rcu);
        // SAFETY: `'b` is bounded by the read section in `self`. Nothing strays: the lock is held.
        tables.find_map(
            |table| match unsafe { table.search(self.hash, &mut matches) } {
                Walk::Found(node) => Some(node),
                Walk::End | Walk::Strayed => None,
            },
        )
    }

    /// Inserts a node under this hash.
    ///
    /// # Safety
    ///
    /// The node is in no table. It stays where it is, and valid, until a grace period has passed that
    /// began after it was removed, or until the table is dropped.
    pub unsafe fn insert(&mut self, node: NonNull<T>) {
        // SAFETY: valid, by the caller's contract.
        let link = unsafe { node.as_ref() }.link();
        // Relaxed: the Release in `push` publishes it.
        link.hash.store(self.hash, Ordering::Relaxed);
        let newest = self.table.tables(&self.rcu).last();
        newest.expect("there is one").push(node, link);
        // Relaxed: changed under the lock alone.
        let len = self.stripe.len.load(Ordering::Relaxed) + 1;
        self.stripe.len.store(len, Ordering::Relaxed);
        // Relaxed: hints, as in `tend`.
        if len > self.table.crowded.load(Ordering::Relaxed) {
            let attention = self.table.attention.load(Ordering::Relaxed);
            if attention & WANTS_TO_GROW == 0 {
                let table = self.table;
                table.attention.fetch_or(WANTS_TO_GROW, Ordering::Relaxed);
            }
        }
    }

    /// Removes a node of this hash; false if it was not in the table. Its link is unchanged, for readers that stand
    /// on it: it may be freed after a grace period. It may be inserted again at once.
    pub fn remove(&mut self, node: &T) -> bool {
        let mut tables = self.table.tables(&self.rcu);
        let found = tables.any(|table| table.unlink(table.bucket_of(self.hash), node));
        if found {
            // Relaxed: changed under the lock alone.
            let len = self.stripe.len.load(Ordering::Relaxed);
            self.stripe.len.store(len - 1, Ordering::Relaxed);
        }
        found
    }
}

mod grow;
mod table;
#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;

pub use table::{HashLink, HashNode};

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "hash/tests.rs"]
mod tests;
