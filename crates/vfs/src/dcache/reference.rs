//! [`DentryRef`], a counted pointer, and the end of a dentry whose last one goes.
//!
//! # Model
//!
//! ```text
//!  last reference dropped ── hashed ──▶ unused: stays in the cache, and the clock hand may take it
//!                         └─ unhashed ─▶ dead ──▶ limbo ──▶ freed
//!                                          └─ its reference of the parent is dropped, and so on upwards
//! ```
//!
//! # Invariants
//!
//! 1. A dentry dies under its parent's lock and its own, with no reference but its killer's: it is unhashed,
//!    marked dead and taken off the parent's list in one go. So the holder of a directory's lock finds no dead
//!    child, and the holder of a dentry's lock sees it either whole or dead.
//! 2. Only the killer of a dentry puts it into the limbo and then drops the reference of
//!    the parent: in a loop, not in a recursion.
//!
//! # Locking
//!
//! *Order*: the parent's lock, then the dentry's. The parent of a dentry that is not locked may change, so it
//! is read, locked and then looked at again; the read section keeps its memory meanwhile. *May block*: never
//! for long; references may be dropped in a read section and with any lock outer to rank `Dentry` held.
//!
//! # Differences from Linux
//!
//! `dput` locks the dentry first and then tries its parent; here the parent comes first, always, which is
//! slower only for names that are removed while in use.
//!
//! # Safety
//!
//! A `DentryRef` counts, so its dentry lives.
#![allow(unsafe_code)]

use super::dentry::{DeadDentry, DeferredFree, Dentry, DentryInode, Inner};
use super::guard::DentryGuard;
use foliocache_mm::slab;
use foliocache_sync::Arc;
use foliocache_sync::rank::{Rank, might_lock};
use foliocache_sync::rcu::{self, RcuReadGuard};
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// A reference of a dentry. While there is one the dentry stays, and so do all directories above it.
///
/// Dropping it never blocks, and is right in a read section too; a dentry that is still found by its name stays
/// in the cache. Only the very last reference of a cache whose handle is gone frees the cache, which sleeps.
pub struct DentryRef<I: DentryInode> {
    /// Counted.
    dentry: NonNull<Dentry<I>>,
}

// SAFETY: a dentry is `Send` and `Sync`, and its count is atomic.
unsafe impl<I: DentryInode> Send for DentryRef<I> {}
// SAFETY: as above.
unsafe impl<I: DentryInode> Sync for DentryRef<I> {}

impl<I: DentryInode> DentryRef<I> {
    /// Takes over a reference.
    ///
    /// # Safety
    ///
    /// The caller has one, and has it no longer.
    pub(super) unsafe fn from_raw(dentry: NonNull<Dentry<I>>) -> Self {
        Self { dentry }
    }

    /// The reference, not dropped.
    pub(super) fn into_raw(self) -> NonNull<Dentry<I>> {
        mem::ManuallyDrop::new(self).dentry
    }

    /// The directory, or `None` at a root.
    #[doc(alias = "dget_parent")]
    pub fn parent(&self) -> Option<Self> {
        let rcu = rcu::read_lock();
        loop {
            let parent = self.parent_rcu(&rcu)?;
            // Dead if the dentry was moved, and the directory removed, since the line above.
            if let Some(parent) = parent.get_not_dead()
                && ptr::eq(self.parent_ptr(), parent.dentry.as_ptr())
            {
                return Some(parent);
            }
        }
    }

    /// The name in the directory; empty at a root.
    pub fn name(&self) -> Vec<u8> {
        let guard = self.lock();
        let mut name = Vec::new();
        guard.dentry().append_name(&mut name);
        name
    }

    /// Whether both are of the same dentry.
    pub fn same(&self, other: &Self) -> bool {
        self.dentry == other.dentry
    }
}

impl<I: DentryInode> Deref for DentryRef<I> {
    type Target = Dentry<I>;
    #[inline]
    fn deref(&self) -> &Dentry<I> {
        // SAFETY: it is counted.
        unsafe { self.dentry.as_ref() }
    }
}

impl<I: DentryInode> Clone for DentryRef<I> {
    #[doc(alias = "dget")]
    #[inline]
    fn clone(&self) -> Self {
        self.counted.lockref.get();
        Self {
            dentry: self.dentry,
        }
    }
}

impl<I: DentryInode> Drop for DentryRef<I> {
    #[doc(alias = "dput")]
    #[inline]
    fn drop(&mut self) {
        put(self.dentry, false);
    }
}

impl<I: DentryInode> fmt::Debug for DentryRef<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DentryRef").field(&**self).finish()
    }
}

impl<I: DentryInode> Dentry<I> {
    /// Takes a reference of what a look-up under RCU found at `seq`, so that it may be used after the read
    /// section. `None` if it has changed since.
    #[doc(alias = "legitimize_path")]
    #[inline]
    pub fn try_get(&self, seq: u32, _rcu: &RcuReadGuard) -> Option<DentryRef<I>> {
        let dentry = self.get_not_dead()?;
        // Dropped again if it changed: it may be another name by now.
        (!self.seq.read_retry(seq)).then_some(dentry)
    }

    /// Takes a reference unless it is dead.
    ///
    /// Context: in an RCU read section, or something else keeps the memory.
    #[track_caller]
    pub(super) fn get_not_dead(&self) -> Option<DentryRef<I>> {
        // It waits for the lock if another thread holds it.
        might_lock(Rank::Dentry);
        // SAFETY: the reference just taken.
        self.counted
            .lockref
            .get_not_dead()
            .then(|| unsafe { DentryRef::from_raw(NonNull::from(self)) })
    }
}

impl<I: DentryInode> DentryGuard<'_, I> {
    /// Takes a reference.
    pub(super) fn get(&self) -> DentryRef<I> {
        // SAFETY: the reference just taken.
        unsafe { DentryRef::from_raw(self.get_raw()) }
    }
}

/// The references that a dead dentry held.
pub(super) struct HeldRefs<I: DentryInode> {
    parent: Option<DentryRef<I>>,
    /// A root's.
    cache: Option<Arc<Inner<I>>>,
}

impl<I: DentryInode> HeldRefs<I> {
    /// Drops them. With `evict`, directories that are unused now go too.
    pub(super) fn put(self, evict: bool) {
        if let Some(parent) = self.parent {
            put(parent.into_raw(), evict);
        }
        drop(self.cache);
    }
}

/// Drops a reference. If the dentry dies, drops its reference of the parent too, and so on upwards. Returns whether the
/// first one died.
pub(super) fn put<I: DentryInode>(dentry: NonNull<Dentry<I>>, evict: bool) -> bool {
    let mut died = false;
    let mut at = Some(dentry);
    let mut cache = None;
    while let Some(dentry) = at.take() {
        // SAFETY: the reference to be dropped.
        let dentry = unsafe { dentry.as_ref() };
        if let Some(left) = put_one(dentry, evict) {
            died = true;
            at = left.parent.map(DentryRef::into_raw);
            cache = left.cache;
        }
    }
    // Last of all: the loop used it.
    drop(cache);
    died
}

/// Drops a reference. If the dentry dies, returns the references that it held.
#[inline]
fn put_one<I: DentryInode>(dentry: &Dentry<I>, evict: bool) -> Option<HeldRefs<I>> {
    // `DentryCache::close` waits for it; and the dentry may go once it is unlocked.
    let rcu = rcu::read_lock();
    let guard = dentry.put_or_lock()?;
    if dentry.is_hashed() && !evict && !dentry.cache().is_closing() {
        guard.put();
        return None;
    }
    drop(guard);
    drop(rcu);
    // Others may take references until the locks are held again, as long as this one is there.
    kill(dentry, 1)
}

/// Locks a dentry's parent, if it has one, and the dentry.
pub(super) fn lock_with_parent<'a, I: DentryInode>(
    dentry: &'a Dentry<I>,
    rcu: &'a RcuReadGuard,
) -> (Option<DentryGuard<'a, I>>, DentryGuard<'a, I>) {
    loop {
        let Some(parent) = dentry.parent_rcu(rcu) else {
            // A root stays one.
            return (None, dentry.lock());
        };
        let guard = parent.lock();
        // It cannot be moved away while its parent is locked.
        if ptr::eq(dentry.parent_ptr(), parent) {
            return (Some(guard), dentry.lock_nested());
        }
    }
}

/// Tears a dentry down if it has no more than `own` references, which are the caller's (0 or 1). If it has
/// more, the caller's is dropped. A dentry that is dead already is left alone.
///
/// Context: with no reference, in a read section.
pub(super) fn kill<I: DentryInode>(dentry: &Dentry<I>, own: i32) -> Option<HeldRefs<I>> {
    let rcu = rcu::read_lock();
    let (parent, guard) = lock_with_parent(dentry, &rcu);
    if guard.count() != own {
        if own > 0 {
            guard.put();
        }
        return None;
    }
    let mut parent = parent;
    tear_down(parent.as_mut(), guard);
    drop(parent);
    drop(rcu);
    Some(bury(dentry))
}

/// Unhashes a dentry, marks it dead and takes it off its parent's list.
pub(super) fn tear_down<I: DentryInode>(
    parent: Option<&mut DentryGuard<'_, I>>,
    mut guard: DentryGuard<'_, I>,
) {
    let dentry = guard.dentry();
    debug_assert!(guard.first_child().is_none(), "children are references");
    let _changing = dentry.cache().changing_place(dentry);
    // First unhashed, then dead: a look-up that finds it dead and looks again does not find it.
    unhash(&mut guard);
    guard.mark_dead();
    if let Some(parent) = parent {
        parent.unlink(dentry);
    }
    forget_alias(dentry);
}

/// Puts a dead dentry into the limbo, and returns the references that it held.
///
/// Context: after [`tear_down`], by the same caller.
pub(super) fn bury<I: DentryInode>(dentry: &Dentry<I>) -> HeldRefs<I> {
    let left = HeldRefs {
        // SAFETY: the dentry's own reference (invariant 3 of `Dentry`), which is dropped here alone.
        parent: NonNull::new(dentry.parent_ptr()).map(|p| unsafe { DentryRef::from_raw(p) }),
        // SAFETY: a root's reference of the cache, as above.
        cache: dentry
            .parent_ptr()
            .is_null()
            .then(|| unsafe { Arc::from_raw(dentry.counted.cache.as_ptr()) }),
    };
    let cache = dentry.cache();
    cache.counts.dentries.dec();
    if dentry.is_negative() {
        cache.counts.negative.dec();
    }
    // SAFETY: in the slab.
    unsafe { slab::hide(dentry) };
    let dead = DeadDentry {
        dentry: NonNull::from(dentry),
        _inode: dentry.retire_inode(),
    };
    cache.limbo.retire(DeferredFree::Dentry(dead));
    left
}

impl<I: DentryInode> Inner<I> {
    /// Puts a dentry into the table.
    ///
    /// Context: its parent's lock, and its own unless it cannot be found yet; no write section is open. It is in no
    /// table.
    pub(super) fn hash_in(&self, dentry: &Dentry<I>, hash: u64) {
        dentry.set_hashed(true);
        let mut bucket = self.hash.lock(hash);
        // SAFETY: not in the table, by the context; freed a grace period after it was unhashed (invariant 5 of
        // `Dentry`).
        unsafe { bucket.insert(NonNull::from(dentry)) };
    }
}

/// Takes a dentry out of the hash, so that look-ups do not find it any more; returns whether it was there.
///
/// Context: its parent's lock is held too. Unless it has references, it must be torn down at once.
pub(super) fn unhash<I: DentryInode>(guard: &mut DentryGuard<'_, I>) -> bool {
    let dentry = guard.dentry();
    if !dentry.is_hashed() {
        return false;
    }
    let _changing = dentry.cache().changing_place(dentry);
    // A look-up at the new number sees that it is not hashed; one at the old number starts over.
    let writing = dentry.seq.write(guard);
    dentry.set_hashed(false);
    drop(writing);
    name_gone(dentry);
    let removed = dentry.cache().hash.lock(dentry.link.hash()).remove(dentry);
    debug_assert!(removed, "a hashed dentry is in the hash");
    true
}

/// Tells the inode that look-ups do not find it by this dentry any more.
pub(super) fn name_gone<I: DentryInode>(dentry: &Dentry<I>) {
    if let Some(inode) = dentry.inode_rcu(&rcu::read_lock()) {
        inode.name_gone();
    }
}

/// Lets a directory's inode forget the dentry.
///
/// Context: under the dentry's lock, or alone with it.
pub(super) fn forget_alias<I: DentryInode>(dentry: &Dentry<I>) {
    let rcu = rcu::read_lock();
    if let Some(inode) = dentry.inode_rcu(&rcu)
        && inode.is_dir()
    {
        inode.alias().replace(dentry.as_ptr(), ptr::null_mut());
    }
}
