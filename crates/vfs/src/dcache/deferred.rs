//! [`DeferredFree`]: what the dentry cache gave up and readers under RCU may still look at.
//!
//! # Model
//!
//! It waits in the cache's [`Limbo`](crate::limbo::Limbo), which drops it after a grace period, with no lock
//! held: an inode's destructor may do much.
//!
//! # Safety
//!
//! A dead dentry is owned by its [`DeadDentry`].
#![allow(unsafe_code)]

use super::dentry::Dentry;
use super::inode::DentryInode;
use super::name::LongName;
use crate::limbo::LimboItem;
use crate::retired::Retired;
use crate::slab::{SlabArc, SlabBox};
use std::ptr::NonNull;

/// Something that readers may still look at.
#[expect(dead_code, reason = "what is in it is kept until it is dropped")]
pub(super) enum DeferredFree<I: DentryInode> {
    /// A dead dentry, with its inode and its long name.
    Dentry(DeadDentry<I>),
    /// What a dentry led to.
    Inode(SlabArc<I>),
    /// What a dentry was called.
    Name(Box<LongName>),
}

impl<I: DentryInode> DeferredFree<I> {
    /// Has the inode whose reference this is count it.
    fn count(&self, change: fn(&Retired)) {
        let inode = match self {
            Self::Dentry(dead) => {
                // SAFETY: the contract of `DeadDentry::new`.
                let dentry = unsafe { dead.dentry.as_ref() };
                // SAFETY: null, or the dentry's own reference.
                unsafe { dentry.inode_ptr().as_ref() }
            }
            Self::Inode(inode) => Some(&**inode),
            Self::Name(_) => None,
        };
        if let Some(retired) = inode.and_then(I::retired) {
            change(retired);
        }
    }
}

impl<I: DentryInode> LimboItem for DeferredFree<I> {
    fn enter(&self) {
        self.count(Retired::enter);
    }

    fn leave(&self) {
        self.count(Retired::leave);
    }
}

/// A dead dentry, owned. Not a `SlabBox`: readers still have it.
pub(super) struct DeadDentry<I: DentryInode> {
    dentry: NonNull<Dentry<I>>,
}

// SAFETY: it owns a dentry, which is `Send`.
unsafe impl<I: DentryInode> Send for DeadDentry<I> {}

impl<I: DentryInode> DeadDentry<I> {
    /// Takes over a dentry.
    ///
    /// # Safety
    ///
    /// It was given up by a `SlabBox`, is dead, unhashed and unlinked, and nobody else frees it. The value is dropped
    /// a grace period later.
    pub(super) unsafe fn new(dentry: NonNull<Dentry<I>>) -> Self {
        Self { dentry }
    }
}

impl<I: DentryInode> Drop for DeadDentry<I> {
    fn drop(&mut self) {
        // SAFETY: the contract of `new`.
        drop(unsafe { SlabBox::from_raw(self.dentry) });
    }
}
