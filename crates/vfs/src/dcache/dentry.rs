//! [`Dentry`]: a name in a directory and the inode that it leads to, laid out for look-ups under RCU; and the types that
//! refer to it and to which it refers.
//!
//! # Model
//!
//! ```text
//!  bytes    line 0: read by each look-up              line 1: by long names   line 2: by no look-up
//!  0   hash link      24  parent                      64  name, 48 bytes      128  lockref
//!  8   and hash       32  inode, null: negative       112 beside the inode    136  children
//!  16  seqcount       40  stamp                       120 name beyond 64      152  siblings
//!  20  length, flags  48  name, 16 bytes                  bytes               168  cache, charge
//! ```
//!
//! A look-up that hits a name of 16 bytes or less reads one line of the dentry, a longer one two. It asks for the second in any
//! case, and with it for what comes after the inode ([`DentryInode::beside`]): so these lines come together with the inode's, and
//! not after it. The bucket mostly has asked for all of them already ([`hint`](super::hint)). Nothing on
//! these lines changes when a reference is taken, so taking references of a hot name slows down no look-up.
//!
//! These types are in one file, since each has an address of another: the dentry of its cache, the cache's hash and limbo of
//! dentries, and an inode of its dentry. The procedures over them are in the files above ([`dcache`](super)).
//! Private fields are touched here, in `read` and in `write` alone.
//!
//! **Directories.** A directory has one dentry at most while it is cached, or the tree below it would be cached twice and
//! change in one of the places only. Its inode remembers the dentry in an [`AliasSlot`].
//!
//! # Invariants
//!
//! 1. The identity of a dentry (its parent, its name and [`HASHED`]) changes in a write section of its
//!    seqcount, with its lock and its parent's lock held (both parents', in a move). So the names below a
//!    directory stand still for the holder of the directory's lock. [`HASHED`] alone is set outside: name and
//!    parent are in place by then.
//! 2. The inode changes in a write section too, under the dentry's lock.
//! 3. A dentry that lives holds a reference of its parent, and one of its inode. A root has no parent, and
//!    holds one of the cache.
//! 4. A dentry that is not hashed has references, or is being torn down.
//! 5. The memory of a dentry, an inode that a dentry gave up, and a long name that was replaced are freed
//!    after a grace period.
//! 6. A name of up to [`INLINE`] bytes is inline, the rest of its last word being zeros; `long` is
//!    null then. Else it is in `long`, which never changes itself.
//! 7. An [`AliasSlot`] holds the dentry that has the inode, from the moment the two are joined until the dentry dies
//!    or gives the inode up; null otherwise.
//! 8. An [`AliasSlot`] goes from null, or from a dead dentry, to a dentry under the cache's rename lock only.
//!
//! # Locking
//!
//! *Protects*: a dentry's lock what invariants 1 and 2 say, the list of its children, and the places
//! of the children in that list. *Order*: rank `Dentry`; parent before child; two parents as
//! [`rename`](super::rename) says. *May block*: never for long; the lock may be taken in an RCU read section.
//!
//! # Memory ordering
//!
//! Fields that the seqcount covers are read and written `Relaxed`, ordered by its fences. The target of a
//! pointer (inode, parent, long name) is published by a `Release` store and read through an `Acquire` load of
//! the same field. An [`AliasSlot`] is stored with `Release` after its dentry was made, and loaded with `Acquire` before the
//! dentry is looked at.
//!
//! # Differences from Linux
//!
//! No operations, no private data, no mount flags: the file systems here keep these in the inode. The stamp
//! lies among the lookup fields, since a walk that trusts names for some time reads it at each step. `i_dentry` lists all
//! dentries of an inode; here only a directory has a place for its one.
//!
//! # Safety
//!
//! Pointers are followed under invariants 3 and 5: through a reference, or inside a read section that began
//! before the pointer was loaded.
#![allow(unsafe_code)]

mod read;
mod write;

use super::hint::InodeHint;
use super::name::LongName;
use crate::generation::{Changing, Generation};
use crate::hash::{HashLink, HashNode, RcuHash};
use crate::limbo::Limbo;
use foliocache_mm::MetadataBound;
use foliocache_mm::slab::{Slab, SlabBox, SlabRetired};
use foliocache_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::lockref::LockRef;
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::rcu::RcuReadGuard;
use foliocache_sync::seqcount::SeqCount;
use foliocache_sync::{Arc, ShardedCounter};
use std::ptr::{self, NonNull};

/// Flag: the dentry is in the hash.
const HASHED: u8 = 1;

/// Words of an inline name. A model has fewer, since each is a place where threads may be switched.
const WORDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Bytes of the longest inline name.
pub(super) const INLINE: usize = WORDS * 8;

/// A name in a directory. See the module's header.
///
/// A `&Dentry` comes from a [`DentryRef`](super::DentryRef), which counts, or from a look-up under RCU, which does not; what
/// was read through the latter counts only if [`read_retry`](Self::read_retry) says no afterwards.
#[repr(C, align(64))]
pub struct Dentry<I: DentryInode> {
    pub(super) link: HashLink<Dentry<I>>,
    pub(super) seq: SeqCount,
    len: AtomicU16,
    /// Looked up since the clock hand came by. Written only where it changes.
    referenced: AtomicBool,
    flags: AtomicU8,
    parent: AtomicPtr<Dentry<I>>,
    /// A reference of a `SlabArc`; null in a negative dentry.
    inode: AtomicPtr<I>,
    believed_until: AtomicU64,
    words: [AtomicU64; WORDS],
    /// [`DentryInode::beside`] of the inode: a hint, which is never followed.
    beside: AtomicPtr<()>,
    /// Invariant 6.
    long: AtomicPtr<LongName>,
    pub(super) counted: Counted<I>,
}

/// The part that changes together with the count.
#[repr(C, align(64))]
pub(super) struct Counted<I: DentryInode> {
    pub(super) lockref: LockRef,
    /// Under the lock.
    pub(super) children: UnsafeCell<Children<I>>,
    /// Its place among its siblings: under the parent's lock.
    pub(super) siblings: UnsafeCell<Siblings<I>>,
    /// Invariant 3: the root above holds a reference.
    pub(super) cache: NonNull<Inner<I>>,
    /// Whether the bound had room for it.
    pub(super) charged: bool,
}

/// The ring of a directory's children: the first child's `prev` is the last.
pub(super) struct Children<I: DentryInode> {
    pub(super) first: *mut Dentry<I>,
    pub(super) len: usize,
}

/// The neighbours of a dentry in that ring.
pub(super) struct Siblings<I: DentryInode> {
    pub(super) next: *mut Dentry<I>,
    pub(super) prev: *mut Dentry<I>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    struct Probe;
    impl DentryInode for Probe {
        fn is_dir(&self) -> bool {
            false
        }
        fn alias(&self) -> &AliasSlot<Self> {
            unreachable!()
        }
    }
    type Ours = Dentry<Probe>;

    assert!(size_of::<Ours>() == 192 && align_of::<Ours>() == 64);
    // All that a look-up of a short name reads is on the first line, the name's 16 bytes included.
    assert!(offset_of!(Ours, link) == 0);
    assert!(offset_of!(Ours, believed_until) == 40);
    assert!(offset_of!(Ours, words) == 48);
    // The second ends with the name; the count begins the third.
    assert!(offset_of!(Ours, long) + 8 == 128);
    assert!(offset_of!(Ours, counted) == 128);
    assert!(INLINE == 64);
};

// SAFETY: all fields are atomics, or reached under locks (see the module's header); the inodes it shares
// are `Send + Sync` by the trait's bounds.
unsafe impl<I: DentryInode> Send for Dentry<I> {}
// SAFETY: as above.
unsafe impl<I: DentryInode> Sync for Dentry<I> {}

impl<I: DentryInode> Dentry<I> {
    /// The address.
    pub(super) fn as_ptr(&self) -> *mut Self {
        ptr::from_ref(self).cast_mut()
    }

    pub(super) fn cache(&self) -> &Inner<I> {
        // SAFETY: invariant 3: a reference of the cache is held by the root above, which lives as long as
        // anything below it.
        unsafe { self.counted.cache.as_ref() }
    }
}

// SAFETY: `link` returns the same field each time, and nothing else uses it.
unsafe impl<I: DentryInode> HashNode for Dentry<I> {
    type Hint = InodeHint;

    #[inline(always)]
    fn link(&self) -> &HashLink<Self> {
        &self.link
    }

    #[inline(always)]
    fn store_hint(&self, hint: &InodeHint) {
        // Relaxed: hints.
        let inode = self.inode.load(Ordering::Relaxed);
        hint.store(inode, self.beside.load(Ordering::Relaxed));
    }

    #[inline(always)]
    fn prefetch(hint: &InodeHint) {
        hint.prefetch();
    }
}

impl<I: DentryInode> Children<I> {
    pub(super) fn none() -> Self {
        Self {
            first: ptr::null_mut(),
            len: 0,
        }
    }
}

impl<I: DentryInode> Siblings<I> {
    pub(super) fn none() -> Self {
        Self {
            next: ptr::null_mut(),
            prev: ptr::null_mut(),
        }
    }
}

/// The state that all dentries of a cache share. Lives as long as the handle and the roots.
pub(super) struct Inner<I: DentryInode> {
    pub(super) hash: RcuHash<Dentry<I>>,
    pub(super) slab: Slab<Dentry<I>>,
    pub(super) limbo: Limbo<DeferredFree<I>>,
    pub(super) rename: RankedMutex<{ Rank::DentryRename as u8 }, ()>,
    pub(super) rename_seq: SeqCount,
    pub(super) walks: RankedMutex<{ Rank::DentryWalk as u8 }, ()>,
    /// Of the places of directories.
    pub(super) places: Arc<Generation>,
    pub(super) bound: Arc<dyn MetadataBound>,
    pub(super) counts: Counts,
    /// Nothing is kept any more.
    pub(super) closing: AtomicBool,
}

/// The counters behind [`DentryStats`](super::DentryStats).
#[derive(Default)]
pub(super) struct Counts {
    pub(super) dentries: ShardedCounter,
    pub(super) negative: ShardedCounter,
    pub(super) evicted: ShardedCounter,
    pub(super) one_offs: ShardedCounter,
}

impl<I: DentryInode> Inner<I> {
    /// To be held while a dentry is taken away from where it can be found, if it is a directory's.
    ///
    /// Context: something keeps the dentry.
    pub(super) fn changing_place(&self, dentry: &Dentry<I>) -> Option<Changing<'_>> {
        let told = dentry.is_dir() && !foliocache_sync::planted!(way_outlives_a_move);
        told.then(|| self.places.begin())
    }

    pub(super) fn is_closing(&self) -> bool {
        // Relaxed: see `DentryCache::close`.
        self.closing.load(Ordering::Relaxed)
    }
}

/// A thing that the cache gave up and readers under RCU may still look at: it waits in the limbo, which drops it with no lock
/// held, since an inode's destructor may do much.
#[expect(dead_code, reason = "what is in it is kept until it is dropped")]
pub(super) enum DeferredFree<I: DentryInode> {
    /// A dead dentry, with its inode and its long name.
    Dentry(DeadDentry<I>),
    /// The inode that a dentry led to.
    Inode(SlabRetired<I>),
    /// The long name that a dentry had.
    Name(Box<LongName>),
}

/// A dead dentry, owned, and its inode. Not a `SlabBox`: readers still have it.
pub(super) struct DeadDentry<I: DentryInode> {
    pub(super) dentry: NonNull<Dentry<I>>,
    pub(super) _inode: Option<SlabRetired<I>>,
}

// SAFETY: it owns a dentry, which is `Send`.
unsafe impl<I: DentryInode> Send for DeadDentry<I> {}

impl<I: DentryInode> Drop for DeadDentry<I> {
    fn drop(&mut self) {
        // SAFETY: dead, unhashed and unlinked by `tear_down`, and `bury` took it over from its caller. Its readers
        // are gone.
        let dentry = unsafe { SlabBox::from_raw(self.dentry) };
        dentry.forget_inode();
    }
}

/// An inode as the dentry cache sees it.
///
/// The cache keeps references of inodes ([`SlabArc`](crate::SlabArc)). References that it has given up it keeps for its readers, until
/// whichever call finds the grace period over, outside its locks.
pub trait DentryInode: Send + Sync + Sized + 'static {
    /// Whether it is a directory. Never changes.
    fn is_dir(&self) -> bool;

    /// Where the cache remembers the dentry of a directory. Always the same slot.
    fn alias(&self) -> &AliasSlot<Self>;

    /// Where two cache lines are that look-ups read besides the inode, if there are any. Always the same.
    fn beside(&self) -> *const () {
        ptr::null()
    }

    /// A dentry that look-ups found does not lead to it any more.
    ///
    /// Context: the dentry's lock; takes leaf locks at most.
    fn name_gone(&self) {}
}

/// The dentry of a directory, as its inode remembers it. Belongs to one [`DentryCache`](super::DentryCache).
#[doc(alias = "i_dentry")]
pub struct AliasSlot<I: DentryInode> {
    dentry: AtomicPtr<Dentry<I>>,
}

impl<I: DentryInode> AliasSlot<I> {
    /// The dentry, which may be dead. Valid as long as the read section.
    pub(super) fn load(&self, _rcu: &RcuReadGuard) -> *mut Dentry<I> {
        // Acquire pairs with the Release in `replace`.
        self.dentry.load(Ordering::Acquire)
    }

    /// Puts `next` in place of `current`; returns whether that was still there.
    pub(super) fn replace(&self, current: *mut Dentry<I>, next: *mut Dentry<I>) -> bool {
        // Release pairs with the Acquire in `load`. Relaxed on failure: the caller looks again.
        self.dentry
            .compare_exchange(current, next, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

impl<I: DentryInode> Default for AliasSlot<I> {
    /// A slot for an inode without a dentry.
    fn default() -> Self {
        Self {
            dentry: AtomicPtr::new(ptr::null_mut()),
        }
    }
}
