//! Changing a dentry, in write sections of its seqcount or while it has one owner.
//!
//! # Memory ordering
//!
//! As [`dentry`](super) says.
//!
//! # Safety
//!
//! The fields `inode` and `long` own what they point to.
#![allow(unsafe_code)]

use super::{Children, Counted, Dentry, DentryInode, HASHED, Inner, Siblings};
use crate::dcache::name::{LongName, NewName};
use crate::hash::HashLink;
use foliocache_mm::slab::{SlabArc, SlabBox, SlabRetired, Slot};
use foliocache_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::lockref::LockRef;
use foliocache_sync::seqcount::SeqCount;
use std::ptr::{self, NonNull};

impl<I: DentryInode> Dentry<I> {
    /// A dentry that cannot be found yet, with one reference; not linked to its parent.
    pub(in crate::dcache) fn new(
        slot: Slot<Self>,
        (cache, parent): (NonNull<Inner<I>>, *mut Dentry<I>),
        name: NewName<'_>,
        inode: Option<SlabArc<I>>,
        charged: bool,
    ) -> SlabBox<Self> {
        let beside = AtomicPtr::new(beside(&inode));
        let dentry = slot.fill(Self {
            link: HashLink::default(),
            seq: SeqCount::new(),
            len: AtomicU16::new(0),
            referenced: AtomicBool::new(false),
            flags: AtomicU8::new(0),
            parent: AtomicPtr::new(parent),
            inode: AtomicPtr::new(into_raw(inode)),
            believed_until: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            beside,
            long: AtomicPtr::new(ptr::null_mut()),
            counted: Counted {
                lockref: LockRef::new(1),
                children: UnsafeCell::new(Children::none()),
                siblings: UnsafeCell::new(Siblings::none()),
                cache,
                charged,
            },
        });
        dentry.store_name(parent, name);
        dentry
    }

    /// Writes parent and name; returns what was the long name. The bucket is the caller's business.
    ///
    /// Context: in a write section, or before the dentry can be found.
    pub(in crate::dcache) fn store_name(
        &self,
        parent: *mut Dentry<I>,
        name: NewName<'_>,
    ) -> Option<Box<LongName>> {
        let NewName { name, long } = name;
        // Relaxed: covered by the seqcount, but for what is behind the pointers.
        self.len.store(name.bytes().len() as u16, Ordering::Relaxed);
        // Release pairs with the Acquire in `parent_rcu`.
        self.parent.store(parent, Ordering::Release);
        if long.is_none() {
            name.all_words(|i, word| {
                self.words[i].store(word, Ordering::Relaxed);
                true
            });
        }
        let long = long.map_or(ptr::null_mut(), Box::into_raw);
        // Release pairs with the Acquire in `same_long`.
        let old = self.long.swap(long, Ordering::AcqRel);
        // SAFETY: it was made by `Box::into_raw`, and the field owned it.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }

    /// Changes name and parent with another dentry.
    ///
    /// Context: in write sections of both.
    pub(in crate::dcache) fn swap_names(&self, other: &Self) {
        // Relaxed: covered by the seqcounts, but for what is behind the pointers.
        for (a, b) in self.words.iter().zip(&other.words) {
            let word = a.load(Ordering::Relaxed);
            a.store(b.load(Ordering::Relaxed), Ordering::Relaxed);
            b.store(word, Ordering::Relaxed);
        }
        let len = self.len.load(Ordering::Relaxed);
        self.len
            .store(other.len.load(Ordering::Relaxed), Ordering::Relaxed);
        other.len.store(len, Ordering::Relaxed);
        // Release pairs with the Acquire in `same_long` and `parent_rcu`; Acquire hands on what others
        // stored.
        let long = self.long.load(Ordering::Acquire);
        self.long
            .store(other.long.load(Ordering::Acquire), Ordering::Release);
        other.long.store(long, Ordering::Release);
        let parent = self.parent.load(Ordering::Acquire);
        self.parent
            .store(other.parent.load(Ordering::Acquire), Ordering::Release);
        other.parent.store(parent, Ordering::Release);
    }

    /// Takes the long name out of a dentry that this thread alone has.
    pub(in crate::dcache) fn take_long(&self) -> Option<Box<LongName>> {
        // Relaxed: no other thread has it.
        let long = self.long.load(Ordering::Relaxed);
        self.long.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`, and owned by the field until now.
        (!long.is_null()).then(|| unsafe { Box::from_raw(long) })
    }

    pub(in crate::dcache) fn set_hashed(&self, hashed: bool) {
        // Relaxed: covered by the seqcount; the lock's holder alone writes it.
        self.flags
            .store(if hashed { HASHED } else { 0 }, Ordering::Relaxed);
    }

    /// Puts another inode in; returns the old one, which may be dropped after a grace period.
    ///
    /// Context: in a write section.
    pub(in crate::dcache) fn replace_inode(&self, inode: Option<SlabArc<I>>) -> Option<SlabArc<I>> {
        // Relaxed: a hint.
        self.beside.store(beside(&inode), Ordering::Relaxed);
        // Release pairs with the Acquire in `inode_rcu`; Acquire, since the old one will be dropped.
        let old = self.inode.swap(into_raw(inode), Ordering::AcqRel);
        // SAFETY: the field owned this reference.
        NonNull::new(old).map(|old| unsafe { SlabArc::from_raw(old) })
    }

    /// Gives the reference of the inode up, which readers still find: it is kept whole until
    /// [`forget_inode`](Self::forget_inode).
    ///
    /// Context: after the dentry's death, once.
    pub(in crate::dcache) fn retire_inode(&self) -> Option<SlabRetired<I>> {
        // Acquire pairs with the Release in `replace_inode`.
        let inode = NonNull::new(self.inode.load(Ordering::Acquire))?;
        // SAFETY: the field's own reference, which is not taken again.
        Some(unsafe { SlabArc::from_raw(inode) }.retire())
    }

    pub(in crate::dcache) fn forget_inode(&self) {
        // Relaxed: no other thread has the dentry.
        self.inode.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Notes that it was used.
    #[inline(always)]
    pub(in crate::dcache) fn mark_referenced(&self) {
        // Relaxed: a hint to the clock. Looking first keeps the line shared.
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last call.
    pub(in crate::dcache) fn take_referenced(&self) -> bool {
        // Relaxed: a hint; that a use between the two is overlooked does not matter.
        let referenced = self.referenced.load(Ordering::Relaxed);
        if referenced {
            self.referenced.store(false, Ordering::Relaxed);
        }
        referenced
    }

    /// Notes that what it says holds until `until`.
    #[inline]
    pub fn believe(&self, until: u64) {
        // Relaxed: a number for itself. Looking first keeps the line shared.
        if self.believed_until.load(Ordering::Relaxed) != until {
            self.believed_until.store(until, Ordering::Relaxed);
        }
    }
}

fn into_raw<I>(inode: Option<SlabArc<I>>) -> *mut I {
    inode.map_or(ptr::null_mut(), |inode| inode.into_raw().as_ptr())
}

/// [`DentryInode::beside`] of an inode, null without one.
fn beside<I: DentryInode>(inode: &Option<SlabArc<I>>) -> *mut () {
    let beside = inode.as_ref().map(|inode| inode.beside());
    beside.map_or(ptr::null_mut(), <*const ()>::cast_mut)
}

impl<I: DentryInode> Drop for Dentry<I> {
    fn drop(&mut self) {
        // No other thread has it: it is freed after a grace period, or was never found.
        drop(self.replace_inode(None));
        drop(self.take_long());
    }
}
