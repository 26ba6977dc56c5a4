//! A directory's own operations on its names: adding and removing.
//!
//! # Model
//!
//! ```text
//!                add(None)                    add(Some(inode))
//!                    │                              │
//!                    ▼                              ▼
//!                negative                       positive
//!                    ▲   delete, no other holder    │
//!                    └──────────────────────────────┤ delete, with other holders
//!                                                   ▼
//!                                               unhashed: found no more, usable by its holders
//! ```
//!
//! The file system's answer is what counts. Where a name is cached with another inode than `add` brings, or
//! as missing, the directory has changed outside: the old dentry is unhashed and the new one takes its place.
//! A directory that is cached elsewhere has moved outside: its dentry moves here, with all below it.
//!
//! **No room.** A dentry is charged before it is made. If the bound refuses, unused dentries are evicted, their
//! readers waited for, and the bound asked again. If it still refuses, the dentry is made all the same, but
//! not hashed: a *one-off*, which is gone with its last reference. So there are no more of those than
//! there are callers and open files, and no operation fails for want of room in this cache.
//!
//! # Locking
//!
//! The caller holds the directory's lock (its inode's, of an outer rank): shared for `add`, exclusive for `delete`. *Order*: the parent's dentry, then the child; for directories
//! the rename lock before both. *May block*: charging reclaims memory, and may wait for readers.
//!
//! # Differences from Linux
//!
//! `d_add`, `d_splice_alias`, `d_exact_alias` and `d_alloc_parallel` are one function. Two look-ups of one
//! missing name both ask the file system; the second answer is dropped. The old directory of a
//! directory that moved is not locked, since its lock protects nothing here.
//!
//! # Safety
//!
//! Dentries are put into the hash, whose contract is invariant 5 of [`Dentry`].
#![allow(unsafe_code)]

use super::cache::DentryCache;
use super::dentry::{DeferredFree, Dentry, DentryInode, Inner};
use super::name::{Name, NewName};
use super::reference::{DentryRef, forget_alias, lock_with_parent, name_gone, unhash};
use super::rename::How;
use foliocache_mm::slab::{self, SlabArc, SlabBox};
use foliocache_sync::Arc;
use foliocache_sync::rcu;
use foliocache_sys::Errno;
use std::ptr::{self, NonNull};

impl<I: DentryInode> DentryCache<I> {
    /// The root of a file system: it has no name and no parent, and lives as long as it is referenced. The
    /// inode has no dentry yet.
    ///
    /// Context: as [`add`](Self::add), but for the directory's lock.
    #[doc(alias = "d_make_root")]
    pub fn make_root(&self, inode: SlabArc<I>) -> DentryRef<I> {
        let cache = &self.inner;
        let (slot, charged) = cache.reserve();
        let name = NewName {
            name: Name::new(b""),
            long: None,
        };
        // The root's reference of the cache (invariant 3 of `Dentry`), until `bury` takes it back.
        let held = Arc::into_raw(Arc::clone(cache)).cast_mut();
        let held = NonNull::new(held).expect("an Arc is not null");
        let root = Dentry::new(
            slot,
            (held, ptr::null_mut()),
            name,
            Some(inode.clone()),
            charged,
        );
        // SAFETY: the reference with which it was made.
        let root = unsafe { DentryRef::from_raw(root.into_raw()) };
        cache.counts.dentries.inc();
        if inode.is_dir() {
            let _renaming = cache.rename.lock();
            inode.alias().replace(ptr::null_mut(), root.as_ptr());
        }
        root
    }

    /// Puts the file system's answer for a name into the cache: the inode that it leads to, or that there is
    /// none. Returns the dentry, which is the one that was there if it says the same, and the dentries that had to make way.
    ///
    /// # Errors
    ///
    /// `ELOOP` if the inode is a directory above `parent`, or `parent` itself.
    ///
    /// Context: `parent`'s directory is locked, shared at least, since before the file system was asked. No
    /// other lock that an inode's destructor takes; no read section. May reclaim memory, and **sleep**.
    #[doc(alias = "d_add")]
    #[doc(alias = "d_splice_alias")]
    pub fn add(
        &self,
        parent: &DentryRef<I>,
        name: &Name<'_>,
        inode: Option<SlabArc<I>>,
    ) -> Result<(DentryRef<I>, Vec<DentryRef<I>>), Errno> {
        let cache = &self.inner;
        let is_dir = inode.as_deref().is_some_and(I::is_dir);
        let new = cache.make(parent, name, inode);
        let added = if is_dir {
            cache.add_directory(parent, name, new)
        } else {
            Ok(cache.insert(parent, name, new))
        };
        cache.hash.tend();
        cache.limbo.tend();
        // The caller drops what was displaced, with no lock held.
        added.map(|added| (added.dentry, added.displaced))
    }

    /// The dentry of a directory, unless it has none at the moment.
    ///
    /// Context: no lock of rank `Dentry` or inner.
    pub fn of_directory(&self, inode: &I) -> Option<DentryRef<I>> {
        Inner::alias_of(inode)
    }

    /// Notes that the name was removed. If the caller alone has the dentry it becomes negative; otherwise it is
    /// unhashed, and keeps its inode for its holders.
    ///
    /// A directory is expected to be empty: negative dentries below it are evicted first.
    ///
    /// Context: as for [`add`](Self::add), the directory locked exclusively.
    #[doc(alias = "d_delete")]
    pub fn delete(&self, dentry: &DentryRef<I>) {
        if dentry.inode().is_some_and(|inode| inode.is_dir()) {
            self.prune(dentry);
        }
        drop(self.inner.take_inode(dentry));
        self.inner.limbo.tend();
    }
}

/// A dentry that is in its place now.
pub(super) struct Added<I: DentryInode> {
    dentry: DentryRef<I>,
    /// Displaced dentries, to be dropped when no lock is held.
    displaced: Vec<DentryRef<I>>,
    /// The new dentry, if it was not needed.
    _unneeded: Option<SlabBox<Dentry<I>>>,
}

impl<I: DentryInode> Inner<I> {
    /// Makes a dentry.
    ///
    /// Context: as [`reserve`](Self::reserve).
    fn make(
        &self,
        parent: &DentryRef<I>,
        name: &Name<'_>,
        inode: Option<SlabArc<I>>,
    ) -> SlabBox<Dentry<I>> {
        let name = self.new_name(*name);
        let (slot, charged) = self.reserve();
        if !charged {
            self.counts.one_offs.inc();
        }
        let dir = (parent.counted.cache, parent.as_ptr());
        Dentry::new(slot, dir, name, inode, charged)
    }

    /// Puts a new dentry into its place, unless one that says the same is there.
    fn insert(
        &self,
        parent: &DentryRef<I>,
        name: &Name<'_>,
        dentry: SlabBox<Dentry<I>>,
    ) -> Added<I> {
        let mut displaced = Vec::new();
        let is_dir = dentry.is_dir();
        let mut parent_guard = parent.lock();
        {
            let rcu = rcu::read_lock();
            if let Some((old, _)) = self.find::<true>(parent, name, &rcu) {
                let mut guard = old.lock_nested();
                // A directory that is here already was found as its inode's alias.
                if old.inode_ptr() == dentry.inode_ptr() && !is_dir {
                    return Added {
                        dentry: guard.get(),
                        displaced,
                        _unneeded: Some(dentry),
                    };
                }
                displaced.push(guard.get());
                unhash(&mut guard);
            }
        }
        // Before another thread can find it, and take it away again.
        self.counts.dentries.inc();
        if dentry.is_negative() {
            self.counts.negative.inc();
        }
        let dentry = dentry.into_raw();
        // SAFETY: the reference with which it was made.
        let added = unsafe { DentryRef::from_raw(dentry) };
        // The reference that a child holds of its parent, until `bury` takes it back.
        let _ = parent_guard.get().into_raw();
        parent_guard.link(&added);
        // SAFETY: in the slab; `bury` hides it, and the limbo keeps it for a grace period.
        unsafe { slab::publish(&*added) };
        if added.counted.charged {
            self.hash_in(&added, name.hash_in(slab::place(added.parent_ptr())));
        }
        Added {
            dentry: added,
            displaced,
            _unneeded: None,
        }
    }

    /// Puts a directory into its place: the dentry that its inode has, or the new one.
    fn add_directory(
        &self,
        parent: &DentryRef<I>,
        name: &Name<'_>,
        new: SlabBox<Dentry<I>>,
    ) -> Result<Added<I>, Errno> {
        let Some(inode) = new.inode() else {
            unreachable!("a directory has an inode")
        };
        let mut renaming = self.rename.lock();
        match Self::alias_of(&inode) {
            None => {
                Self::set_alias(&inode, &new);
                Ok(self.insert(parent, name, new))
            }
            Some(alias) => {
                debug_assert!(ptr::eq(alias.cache(), self), "an inode in two caches");
                let name = NewName {
                    name: *name,
                    long: new.take_long(),
                };
                let in_place = alias.is_hashed() && alias.is_named(parent.as_ptr(), &name.name);
                let displaced = if in_place {
                    Vec::new()
                } else {
                    self.move_to(&mut renaming, &alias, parent, name, How::Splice)?
                };
                Ok(Added {
                    dentry: alias,
                    displaced,
                    _unneeded: Some(new),
                })
            }
        }
    }

    /// The dentry of a directory, if it has one.
    ///
    /// Context: no dentry's lock is held. Under the rename lock it gets none meanwhile.
    fn alias_of(inode: &I) -> Option<DentryRef<I>> {
        let rcu = rcu::read_lock();
        let alias = inode.alias().load(&rcu);
        // SAFETY: null, or freed a grace period after it left the slot, which it does when it dies.
        unsafe { alias.as_ref() }.and_then(Dentry::get_not_dead)
    }

    /// Makes a dentry the one of a directory that has none.
    ///
    /// Context: the rename lock is held.
    fn set_alias(inode: &I, dentry: &Dentry<I>) {
        let rcu = rcu::read_lock();
        let slot = inode.alias();
        // There may be a dead one, whose killer is about to clear the slot, but only if it is faster.
        while !slot.replace(slot.load(&rcu), dentry.as_ptr()) {}
    }

    /// Makes a dentry negative, or unhashes it; returns another dentry that went by its name.
    fn take_inode(&self, dentry: &DentryRef<I>) -> Option<DentryRef<I>> {
        let mut old = None;
        let twin;
        {
            let rcu = rcu::read_lock();
            let (mut parent, mut guard) = lock_with_parent(dentry, &rcu);
            if !dentry.is_hashed() {
                drop(guard);
                twin = parent.as_mut().and_then(|p| self.unhash_twin(p, dentry));
            } else {
                twin = None;
                if guard.count() > 1 {
                    unhash(&mut guard);
                } else if !dentry.is_negative() {
                    let _changing = self.changing_place(dentry);
                    forget_alias(dentry);
                    name_gone(dentry);
                    let writing = dentry.seq.write(&mut guard);
                    old = dentry.replace_inode(None);
                    drop(writing);
                }
            }
        }
        if let Some(inode) = old {
            self.counts.negative.inc();
            self.limbo.retire(DeferredFree::Inode(inode.retire()));
        }
        twin
    }
}
