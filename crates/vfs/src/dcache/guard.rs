//! A dentry's lock, and what it protects besides the dentry: the list of its children.
//!
//! # Model
//!
//! ```text
//!  directory ──first──▶ child ⇄ child ⇄ child ⇄ (first)
//! ```
//!
//! The children are a ring, so that the last is at hand and the first can become the last: a walk takes the
//! first, makes it the last and has a place to go on from that no coming and going of children can lose.
//!
//! # Invariants
//!
//! 1. A dentry is in its parent's ring from the moment it has a reference of the parent until it dies or is
//!    moved. So what is in a ring lives.
//!
//! # Locking
//!
//! *Protects*: the ring, and the places of the children in it, by the lock of the directory. *Order*: see
//! [`dentry`](super::dentry).
//!
//! # Safety
//!
//! Rings are touched through a [`DentryGuard`] alone, and their pointers followed by invariant 1.
#![allow(unsafe_code)]

use super::dentry::{Children, Dentry, DentryInode, Siblings};
use foliocache_sync::lockref::LockRefGuard;
use foliocache_sync::rank::{self, How, Rank, RankToken};
use foliocache_sync::seqcount::Exclusive;
use std::ptr::{self, NonNull};

/// A dentry's lock, held.
pub(super) struct DentryGuard<'a, I: DentryInode> {
    dentry: &'a Dentry<I>,
    guard: LockRefGuard<'a>,
    // Below the guard: dropped after the lock is released.
    _token: RankToken,
}

impl<I: DentryInode> Exclusive for DentryGuard<'_, I> {}

impl<'a, I: DentryInode> DentryGuard<'a, I> {
    /// The dentry.
    pub(super) fn dentry(&self) -> &'a Dentry<I> {
        self.dentry
    }

    /// Its references: they stand still.
    pub(super) fn count(&self) -> i32 {
        self.guard.count()
    }

    /// Takes a reference, which the caller owns.
    pub(super) fn get_raw(&self) -> NonNull<Dentry<I>> {
        self.guard.get();
        NonNull::from(self.dentry)
    }

    /// Drops a reference, which may be the last.
    pub(super) fn put(&self) -> u32 {
        self.guard.put()
    }

    /// No reference is taken from now on.
    pub(super) fn mark_dead(&self) {
        self.guard.mark_dead();
    }

    /// How many children there are.
    pub(super) fn nr_children(&self) -> usize {
        // SAFETY: under the lock.
        self.dentry
            .counted
            .children
            .with(|children| unsafe { (*children).len })
    }

    /// The first child. It lives as long as the lock is held: no child leaves without it.
    pub(super) fn first_child(&self) -> Option<&'a Dentry<I>> {
        let children = &self.dentry.counted.children;
        // SAFETY: under the lock.
        let first = children.with(|children| unsafe { (*children).first });
        // SAFETY: what is in the list lives (its killer takes it out first, under this lock).
        unsafe { first.as_ref() }
    }

    /// Makes the first child the last.
    pub(super) fn rotate(&mut self) {
        let Some(first) = self.first_child() else {
            return;
        };
        let next = first.change_place(|siblings| siblings.next);
        self.children(|children| children.first = next);
    }

    /// Adds a child at the end.
    pub(super) fn link(&mut self, child: &Dentry<I>) {
        let pointer = child.as_ptr();
        let first = self.first_child();
        let (next, prev) = match first {
            None => (pointer, pointer),
            Some(first) => {
                let last = first.change_place(|siblings| siblings.prev);
                first.change_place(|siblings| siblings.prev = pointer);
                // SAFETY: in the list, as in `first_child`.
                unsafe { &*last }.change_place(|siblings| siblings.next = pointer);
                (first.as_ptr(), last)
            }
        };
        child.change_place(|siblings| *siblings = Siblings { next, prev });
        self.children(|children| {
            if children.first.is_null() {
                children.first = pointer;
            }
            children.len += 1;
        });
    }

    /// Takes a child out.
    pub(super) fn unlink(&mut self, child: &Dentry<I>) {
        let pointer = child.as_ptr();
        let (next, prev) = child.change_place(|siblings| {
            let neighbours = (siblings.next, siblings.prev);
            siblings.next = ptr::null_mut();
            siblings.prev = ptr::null_mut();
            neighbours
        });
        let alone = next == pointer;
        if !alone {
            // SAFETY: in the list, as in `first_child`.
            unsafe { &*next }.change_place(|siblings| siblings.prev = prev);
            // SAFETY: as above.
            unsafe { &*prev }.change_place(|siblings| siblings.next = next);
        }
        self.children(|children| {
            if children.first == pointer {
                children.first = if alone { ptr::null_mut() } else { next };
            }
            children.len -= 1;
        });
    }

    fn children<R>(&mut self, change: impl FnOnce(&mut Children<I>) -> R) -> R {
        // SAFETY: under the lock.
        self.dentry
            .counted
            .children
            .with_mut(|children| change(unsafe { &mut *children }))
    }
}

impl<I: DentryInode> Dentry<I> {
    /// Takes the lock while no other dentry's is held.
    #[track_caller]
    pub(super) fn lock(&self) -> DentryGuard<'_, I> {
        let token = rank::acquire(Rank::Dentry, How::Ordered);
        self.locked(self.counted.lockref.lock(), token)
    }

    /// Takes the lock while others are held, in the order that the module's header states.
    #[track_caller]
    pub(super) fn lock_nested(&self) -> DentryGuard<'_, I> {
        let token = rank::acquire(Rank::Dentry, How::Nested);
        self.locked(self.counted.lockref.lock(), token)
    }

    /// Drops a reference, or takes the lock if it is the last one.
    #[track_caller]
    pub(super) fn put_or_lock(&self) -> Option<DentryGuard<'_, I>> {
        let token = rank::acquire(Rank::Dentry, How::Ordered);
        let guard = self.counted.lockref.put_or_lock()?;
        Some(self.locked(guard, token))
    }

    fn locked<'a>(&'a self, guard: LockRefGuard<'a>, token: RankToken) -> DentryGuard<'a, I> {
        DentryGuard {
            dentry: self,
            guard,
            _token: token,
        }
    }

    /// Its place in its parent's list.
    ///
    /// Context: under the parent's lock. Calls do not nest.
    fn change_place<R>(&self, change: impl FnOnce(&mut Siblings<I>) -> R) -> R {
        // SAFETY: under the parent's lock; the closures of this module touch one dentry each.
        self.counted
            .siblings
            .with_mut(|siblings| change(unsafe { &mut *siblings }))
    }
}
