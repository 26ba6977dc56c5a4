//! [`InodeCache`]: the inodes in memory, one for each identity, found under RCU.
//!
//! # Model
//!
//! ```text
//!             miss                            unlock
//!  iget ──────────────▶ NEW, in the hash ──────────────▶ filled ──┬─ shrink ──▶ gone ──▶ limbo ──▶ freed
//!   │ hit                 │ dropped without: failed               └─ remove ──▶
//!   └──▶ a reference      └──▶ gone
//! ```
//!
//! An inode is a [`SlabArc`] of the file system's own type, in which an [`InodeLink`] is embedded; the cache owns
//! one reference. A hit takes a reference under RCU and no lock. A miss makes the inode first, then locks one
//! bucket, looks again and inserts it, marked new; its maker fills it and [unlocks](NewInode::unlock) it, and a
//! finder waits for that.
//!
//! There is no list of unused inodes. A clock hand goes round the slab ([`InodeCache::shrink`]): it spares inodes
//! that were found since its last pass, leaves held ones alone, and asks the file system about the others.
//!
//! # For network stores
//!
//! The local file systems fill an inode before it is inserted and unlock it at once. Network stores, whose inodes
//! are filled with I/O, need the rest: an inode that is being filled (NEW), the wait for it, and a filling that
//! fails.
//!
//! # Callbacks
//!
//! | callback | called | restrictions |
//! |---|---|---|
//! | `test` | several times, in a read section, with or without the bucket's lock | may not block, nor take any but leaf locks; under RCU it may see an inode that is being filled, evicted, or gone: it goes by what does not change from before the insertion |
//! | `make` | once at most, on a miss, with no lock | may block; what it returns may be thrown away, if another thread came first |
//! | `judge` | under the bucket's lock | may not block, and takes only leaf locks; the inode has no holders, so only background work changes it |
//!
//! # Invariants
//!
//! 1. There are never two inodes of one identity that can be found: insertion looks again under the
//!    bucket's lock, and an inode is unhashed under it.
//! 2. A reference returned by a look-up is to a completely filled inode.
//! 3. Each inode lies in the cache's slab, whose pages are charged.
//!
//! The protocol of references and eviction is in [`link`].
//!
//! # Locking
//!
//! A bucket's lock ([`Rank::HashBucket`](foliocache_sync::rank::Rank::HashBucket)), in bounded sections.
//! All methods may be called with outer locks held, and sleep only where they say so. All are called outside read
//! sections.
//!
//! # Differences from Linux
//!
//! - `I_CREATING`, `I_SYNC`, `I_WILL_FREE` and their waits are not there: a dirty inode is not evicted.
//! - References are `SlabArc`s: `iput` is a drop, and the last one does nothing but make the inode unused.
//! - `igrab` is a clone; there is no `ilookup` that fails on an inode that is being freed.
//!
//! # Safety
//!
//! The cache's references are raw pointers in the hash, by invariant 1 of [`link`].
#![allow(unsafe_code)]

use std::ops::Deref;

use foliocache_sync::rcu;
use foliocache_sync::wait::WaitTable;
use foliocache_sync::{Arc, ShardedCounter};

use crate::hash::{Bucket, HashLink, HashNode, RcuHash};
use crate::limbo::Limbo;
use foliocache_mm::MetadataBound;
use foliocache_mm::slab::{self, SharedSlab, SlabArc, SlabRetired};
use link::Fill;

mod evict;
mod link;
#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;

pub use link::InodeLink;
#[cfg(any(loom, shuttle, feature = "testing"))]
pub use testing::InodeCacheStats;

const WAIT_BUCKETS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 32 };

/// An inode of an [`InodeCache`].
///
/// # Safety
///
/// `link` gives the same link each time, one that is part of the inode and used for nothing else.
pub unsafe trait CachedInode: Send + Sync + Sized {
    /// The inode's link.
    fn link(&self) -> &InodeLink<Self>;
}

// SAFETY: the link's link.
unsafe impl<T: CachedInode> HashNode for T {
    type Hint = ();

    #[inline(always)]
    fn link(&self) -> &HashLink<Self> {
        &CachedInode::link(self).hash
    }
}

/// The inodes of one file system.
pub struct InodeCache<T: CachedInode> {
    hash: RcuHash<T>,
    /// References of the cache's own, of inodes that are out of the hash.
    limbo: Limbo<SlabRetired<T>>,
    waits: WaitTable,
    slab: SharedSlab<T>,
    waited: ShardedCounter,
    evicted: ShardedCounter,
}

/// The result of [`InodeCache::iget`] and its variants.
pub enum Iget<'a, T: CachedInode> {
    /// It was there, filled.
    Found(SlabArc<T>),
    /// It is new: the caller fills it.
    New(NewInode<'a, T>),
}

/// The hash of a number.
#[must_use]
#[inline]
pub fn hash_ino(ino: u64) -> u64 {
    // A multiplication spreads upwards, and the table goes by the low bits.
    let product = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

impl<T: CachedInode> InodeCache<T> {
    /// An empty cache, with a hash of at least this many buckets at first.
    #[must_use]
    pub fn new(buckets: usize, bound: Arc<dyn MetadataBound>) -> Self {
        Self {
            hash: RcuHash::new(buckets, Arc::clone(&bound)),
            limbo: Limbo::new(),
            waits: WaitTable::with_buckets(WAIT_BUCKETS),
            slab: SharedSlab::new(bound),
            waited: ShardedCounter::new(),
            evicted: ShardedCounter::new(),
        }
    }

    /// The inode with this hash for which `test` says yes, with a reference. Takes no lock, but where it
    /// meets an eviction.
    ///
    /// Context: no read section; sleeps while the inode is being filled.
    #[doc(alias = "ilookup5")]
    pub fn find(&self, hash: u64, test: impl Fn(&T) -> bool) -> Option<SlabArc<T>> {
        loop {
            let inode = self.grab(hash, &test)?;
            if self.is_filled(&inode) {
                return Some(inode);
            }
            // Its filling failed.
        }
    }

    /// The inode with this hash for which `test` says yes, or a new one that `make` makes, with that hash and
    /// so that `test` would say yes. A hit takes no lock, and a miss one.
    ///
    /// Context: no read section, and no lock that `make`, the bound, or a filling thread needs; sleeps while
    /// another thread fills the inode. Never called with another [`NewInode`] in hand, unless all callers use one
    /// order.
    ///
    /// # Errors
    ///
    /// The error of `make`.
    #[doc(alias = "iget5_locked_rcu")]
    pub fn iget<E>(
        &self,
        hash: u64,
        test: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Iget<'_, T>, E> {
        if let Some(inode) = self.find(hash, &test) {
            return Ok(Iget::Found(inode));
        }
        Ok(self.insert(hash, &test, make()?))
    }

    /// Inserts `made` unless there is one by now, which is waited for.
    fn insert(&self, hash: u64, test: &impl Fn(&T) -> bool, made: T) -> Iget<'_, T> {
        let made = self.slab.alloc(made);
        loop {
            let mut bucket = self.hash.lock(hash);
            let Some(inode) = self.grab_locked(&bucket, test) else {
                // SAFETY: in no table, since it was in no cache. The reference keeps it until it was removed
                // and a grace period is over (invariant 1 of `link`).
                unsafe { bucket.insert(made.clone().into_raw()) };
                // SAFETY: in the slab, and hidden when it is taken out.
                unsafe { slab::publish(&*made) };
                drop(bucket);
                self.hash.tend();
                return Iget::New(NewInode {
                    cache: self,
                    inode: Some(made),
                });
            };
            drop(bucket);
            if self.is_filled(&inode) {
                return Iget::Found(inode);
            }
        }
    }

    /// Takes a reference of the present inode, filled or not.
    #[inline]
    fn grab(&self, hash: u64, test: &impl Fn(&T) -> bool) -> Option<SlabArc<T>> {
        {
            let rcu = rcu::read_lock();
            let inode = self.hash.find(hash, test, &rcu)?;
            CachedInode::link(inode).touch();
            // SAFETY: found in this section (invariant 1 of `link`).
            let reference = unsafe { SlabArc::try_from_borrow(inode) };
            let gone = CachedInode::link(inode).is_gone();
            if reference.is_some() && (!gone || foliocache_sync::planted!(removed_inode_found)) {
                return reference;
            }
        }
        // It is being evicted, or it is gone and another may be there: all that is decided behind the lock.
        self.grab_locked(&self.hash.lock(hash), test)
    }

    fn grab_locked(
        &self,
        bucket: &Bucket<'_, T>,
        test: &impl Fn(&T) -> bool,
    ) -> Option<SlabArc<T>> {
        let inode = bucket.find(test)?;
        CachedInode::link(inode).touch();
        // SAFETY: in the hash, under the bucket's lock: the cache's reference exists, and is not
        // frozen.
        Some(unsafe { SlabArc::from_borrow(inode) })
    }

    /// Waits until the filling is over; returns whether it succeeded.
    #[inline]
    fn is_filled(&self, inode: &SlabArc<T>) -> bool {
        let link = CachedInode::link(&**inode);
        let fill = match link.fill() {
            Fill::New => {
                self.waited.inc();
                link.wait_filled(&self.waits)
            }
            fill => fill,
        };
        fill == Fill::Filled
    }

    /// Takes an inode out whose identity is gone: later look-ups miss, holders keep it. False if it was not
    /// there any more.
    ///
    /// Context: no read section; may wait for readers, and drop other inodes.
    #[doc(alias = "remove_inode_hash")]
    pub fn remove(&self, inode: &SlabArc<T>) -> bool {
        let mut bucket = self.hash.lock(CachedInode::link(&**inode).hash.hash());
        if !bucket.remove(inode) {
            return false;
        }
        Self::note_gone(inode);
        drop(bucket);
        // SAFETY: from `insert`, and just taken out.
        let own = unsafe { SlabArc::adopt(&**inode) };
        self.limbo.retire(own.retire());
        self.limbo.tend();
        true
    }

    /// An inode was taken out of the hash.
    ///
    /// Context: the bucket's lock, or exclusive access to the cache.
    fn note_gone(inode: &T) {
        CachedInode::link(inode).set_gone();
        // SAFETY: in the slab.
        unsafe { slab::hide(inode) };
    }

    /// All filled inodes that exist throughout the call, with references; in no order.
    #[must_use]
    pub fn all(&self) -> Vec<SlabArc<T>> {
        let mut found = Vec::new();
        let rcu = rcu::read_lock();
        let visit = |inode: &T| {
            // SAFETY: met in this section.
            found.extend(unsafe { SlabArc::try_from_borrow(inode) });
        };
        let buckets = self.hash.buckets();
        self.hash.scan(0..buckets, buckets, visit, &rcu);
        drop(rcu);
        found.retain(|inode| CachedInode::link(&**inode).fill() == Fill::Filled);
        found
    }

    /// Inodes that can be found, at some moment. Costs a load for each part of the hash, up to 1024.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "without a caller")]
    pub fn len(&self) -> usize {
        self.hash.len()
    }

    /// Bytes charged for the pages that inodes lie in. One load.
    #[must_use]
    pub fn inode_bytes(&self) -> u64 {
        self.slab.0.bytes()
    }

    /// Inodes that fit into charged memory.
    #[must_use]
    pub fn spare(&self) -> u64 {
        self.slab.0.spare()
    }

    /// Inodes in pages that the bound had no room for.
    #[must_use]
    pub fn uncharged(&self) -> u64 {
        self.slab.0.uncharged()
    }
}

impl<T: CachedInode> Drop for InodeCache<T> {
    fn drop(&mut self) {
        // There are no look-ups: they would borrow the cache.
        self.hash.drain(|inode| {
            // SAFETY: from `insert`, and just taken out.
            let inode = unsafe { SlabArc::from_raw(inode) };
            Self::note_gone(&inode);
        });
    }
}

/// An inode that this thread fills. Look-ups of it wait.
///
/// [`unlock`](Self::unlock) marks it filled. Dropping it without that means that the filling failed: it leaves the
/// cache, and its waiters look again.
#[must_use = "dropping it says that the filling failed"]
pub struct NewInode<'a, T: CachedInode> {
    cache: &'a InodeCache<T>,
    inode: Option<SlabArc<T>>,
}

impl<T: CachedInode> NewInode<'_, T> {
    /// Marks it filled, and wakes its waiters.
    #[doc(alias = "unlock_new_inode")]
    pub fn unlock(mut self) -> SlabArc<T> {
        let inode = self.inode.take().expect("there until this or the drop");
        CachedInode::link(&*inode).end_filling(&self.cache.waits);
        inode
    }
}

impl<T: CachedInode> Deref for NewInode<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inode.as_ref().expect("there until `unlock`")
    }
}

impl<T: CachedInode> Drop for NewInode<'_, T> {
    #[doc(alias = "iget_failed")]
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else {
            return;
        };
        // Out of the hash before the waiters wake: they look again, and must not find it.
        self.cache.remove(&inode);
        CachedInode::link(&*inode).end_filling(&self.cache.waits);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
