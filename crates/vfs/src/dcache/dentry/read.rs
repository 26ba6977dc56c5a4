//! Reading a dentry: by look-ups under RCU, and under locks.
//!
//! # Memory ordering
//!
//! As [`dentry`](super) says.
//!
//! # Safety
//!
//! As [`dentry`](super) says.
#![allow(unsafe_code)]

use super::{Dentry, DentryInode, HASHED, INLINE};
use crate::dcache::name::Name;
use foliocache_mm::slab::SlabArc;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::prefetch;
use foliocache_sync::rcu::{self, RcuReadGuard};
use std::fmt;
use std::ptr;

impl<I: DentryInode> Dentry<I> {
    // Read by look-ups.

    /// Whether this is the dentry of that name, and if so the number of the seqcount at which it was. With
    /// `WAIT` a writer is waited for; otherwise a dentry that is being changed is none of that name.
    ///
    /// Context: in an RCU read section. The answer may be a mixture if the dentry was changed meanwhile.
    #[inline(always)]
    pub(in crate::dcache) fn matches<const WAIT: bool>(
        &self,
        parent: *const Dentry<I>,
        name: &Name<'_>,
    ) -> Option<u32> {
        let seq = if WAIT {
            self.seq.read_begin()
        } else {
            self.seq.try_read_begin()?
        };
        // Relaxed, here and in what follows: covered by the seqcount.
        let same = ptr::eq(self.parent.load(Ordering::Relaxed), parent)
            && self.flags.load(Ordering::Relaxed) & HASHED != 0
            && usize::from(self.len.load(Ordering::Relaxed)) == name.bytes().len()
            && self.same_bytes(name, seq);
        same.then_some(seq)
    }

    #[inline(always)]
    fn same_bytes(&self, name: &Name<'_>, seq: u32) -> bool {
        if name.bytes().len() <= INLINE {
            // Relaxed: covered by the seqcount.
            name.all_words(|i, word| self.words[i].load(Ordering::Relaxed) == word)
        } else {
            self.same_long(name, seq)
        }
    }

    #[inline(never)]
    fn same_long(&self, name: &Name<'_>, seq: u32) -> bool {
        // Acquire pairs with the Release in `store_name`.
        let long = self.long.load(Ordering::Acquire);
        // The pointer and the length may come from two names.
        if long.is_null() || self.seq.read_retry(seq) {
            return false;
        }
        // SAFETY: not null, and freed a grace period after it was replaced (invariant 5); the caller is in a
        // read section.
        let long = unsafe { &*long };
        *long.bytes == *name.bytes()
    }

    /// Whether it has this name and parent now.
    ///
    /// Context: under the parent's lock, or the rename lock.
    pub(in crate::dcache) fn is_named(&self, parent: *const Dentry<I>, name: &Name<'_>) -> bool {
        // Relaxed: stands still under the lock (invariant 1).
        ptr::eq(self.parent.load(Ordering::Relaxed), parent)
            && usize::from(self.len.load(Ordering::Relaxed)) == name.bytes().len()
            && self.same_bytes(name, self.seq.read_begin())
    }

    /// Appends the name to `text`.
    ///
    /// Context: under the lock, or the rename lock.
    pub(in crate::dcache) fn append_name(&self, text: &mut Vec<u8>) {
        // Relaxed, here and below: stands still under either lock.
        let len = usize::from(self.len.load(Ordering::Relaxed));
        // Acquire pairs with the Release in `store_name`, which may have been under another lock.
        let long = self.long.load(Ordering::Acquire);
        // SAFETY: null or owned by the field, which does not change under the caller's lock.
        if let Some(long) = unsafe { long.as_ref() } {
            text.extend_from_slice(&long.bytes);
            return;
        }
        let end = text.len() + len;
        for word in &self.words {
            text.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        text.truncate(end);
    }

    /// The inode as a number, to be compared.
    pub(in crate::dcache) fn inode_ptr(&self) -> *const I {
        // Relaxed: not followed.
        self.inode.load(Ordering::Relaxed)
    }

    pub(in crate::dcache) fn parent_ptr(&self) -> *mut Dentry<I> {
        // Acquire pairs with the Release in `store_name`.
        self.parent.load(Ordering::Acquire)
    }

    /// Whether it is a directory's.
    pub(in crate::dcache) fn is_dir(&self) -> bool {
        let rcu = rcu::read_lock();
        self.inode_rcu(&rcu).is_some_and(I::is_dir)
    }

    // Read by walkers under RCU.

    /// The number to hand to [`read_retry`](Self::read_retry); waits, spinning, for a change in progress.
    /// For where a walk begins; a look-up returns the number of what it found.
    #[inline]
    pub fn read_begin(&self) -> u32 {
        self.seq.read_begin()
    }

    /// Whether the dentry was renamed, unhashed, or got or lost its inode since `seq`: then what was read
    /// since is worth nothing.
    #[doc(alias = "read_seqcount_retry")]
    #[inline]
    #[must_use = "what was read may be torn"]
    pub fn read_retry(&self, seq: u32) -> bool {
        self.seq.read_retry(seq) && !foliocache_sync::planted!(half_a_rename_seen)
    }

    /// The inode, or `None` in a negative dentry. Valid as long as the read section; whether it belongs to
    /// the name, [`read_retry`](Self::read_retry) says.
    #[inline]
    pub fn inode_rcu<'g>(&self, _rcu: &'g RcuReadGuard) -> Option<&'g I> {
        // Acquire pairs with the Release in `replace_inode`.
        let inode = self.inode.load(Ordering::Acquire);
        // SAFETY: an inode that the dentry gives up is dropped a grace period later (invariant 5).
        unsafe { inode.as_ref() }
    }

    /// The directory, or `None` at a root. Valid as long as the read section; whether it is the directory of
    /// the name, [`read_retry`](Self::read_retry) says.
    #[inline]
    pub fn parent_rcu<'g>(&self, _rcu: &'g RcuReadGuard) -> Option<&'g Dentry<I>> {
        // SAFETY: a parent is freed a grace period after its last child left it or was unhashed, so not
        // before the end of this section (invariants 3 and 5).
        unsafe { self.parent_ptr().as_ref() }
    }

    /// Whether it says that there is no such name.
    #[inline]
    pub fn is_negative(&self) -> bool {
        self.inode_ptr().is_null()
    }

    /// Whether look-ups find it.
    #[inline]
    pub fn is_hashed(&self) -> bool {
        // Relaxed: a hint, or covered by the seqcount.
        self.flags.load(Ordering::Relaxed) & HASHED != 0
    }

    /// Until when it holds, on the clock of the caller of [`believe`](Self::believe); 0 before the first call.
    #[doc(alias = "d_time")]
    #[inline]
    pub fn believed_until(&self) -> u64 {
        // Relaxed: a number for itself.
        self.believed_until.load(Ordering::Relaxed)
    }

    /// References at some moment, a child's included: for tests and messages.
    #[doc(alias = "d_count")]
    pub fn count(&self) -> i32 {
        self.counted.lockref.count()
    }

    /// A reference of the inode. `None` if the dentry is negative now, or just gave up the inode's last reference.
    #[doc(alias = "d_inode")]
    pub fn inode(&self) -> Option<SlabArc<I>> {
        let rcu = rcu::read_lock();
        let inode = self.inode_rcu(&rcu)?;
        // SAFETY: what the dentry gives up is kept for the readers of this section.
        unsafe { SlabArc::try_from_borrow(inode) }
    }

    /// A reference of the inode that it had at `seq`, or `None` if it was changed since.
    #[inline]
    pub fn try_inode(&self, seq: u32, rcu: &RcuReadGuard) -> Option<SlabArc<I>> {
        // SAFETY: what the dentry gives up is kept for the readers of this section.
        let inode = unsafe { SlabArc::try_from_borrow(self.inode_rcu(rcu)?) }?;
        (!self.read_retry(seq)).then_some(inode)
    }

    /// Asks the processor for the lines beside the inode, which a look-up that found the dentry reads next: see
    /// [`DentryInode::beside`].
    #[inline(always)]
    pub fn prefetch_beside(&self) {
        // A model has no processor, and each load is a place where threads may be switched.
        if cfg!(not(any(loom, shuttle))) {
            // Relaxed: a hint.
            let beside = self.beside.load(Ordering::Relaxed);
            prefetch(beside);
            prefetch(beside.wrapping_byte_add(64));
        }
    }
}

impl<I: DentryInode> fmt::Debug for Dentry<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dentry")
            .field("count", &self.count())
            .field("hashed", &self.is_hashed())
            .field("negative", &self.is_negative())
            .finish_non_exhaustive()
    }
}
