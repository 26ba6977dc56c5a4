//! [`Dentry`]: a name in a directory and the inode that it leads to, laid out for look-ups under RCU.
//!
//! # Model
//!
//! ```text
//!  bytes    line 0: read by each look-up              line 1: by long names   line 2: by nobody else
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
//! # Invariants
//!
//! 1. What identifies a dentry, its parent, its name and [`HASHED`], changes in a write section of its
//!    seqcount, with its lock and its parent's lock held (both parents', in a move). So the names below a
//!    directory stand still for whoever holds the directory's lock. [`HASHED`] alone is set outside: name and
//!    parent are in place by then.
//! 2. The inode changes in a write section too, under the dentry's lock.
//! 3. A dentry that lives holds a reference of its parent, and one of its inode. A root has no parent, and
//!    holds one of the cache.
//! 4. A dentry that is not hashed has references, or is being torn down.
//! 5. The memory of a dentry, an inode that a dentry gave up, and a long name that was replaced are freed
//!    after a grace period.
//! 6. A name of up to [`INLINE`] bytes is inline, the rest of its last word being zeros; `long` is
//!    null then. Else it is in `long`, which never changes itself.
//!
//! # Locking
//!
//! *Protects*: a dentry's lock what invariants 1 and 2 say, the list of its children, and the places
//! of the children in that list. *Order*: rank `Dentry`; parent before child; two parents as
//! [`rename`](super::rename) says. *May block*: never for long; the lock may be taken in an RCU read section.
//!
//! # Memory ordering
//!
//! What a seqcount covers is read and written `Relaxed`, ordered by the seqcount's fences. What is behind a
//! pointer (inode, parent, long name) is published by a `Release` store and read through an `Acquire` load of
//! the same field.
//!
//! # Differences from Linux
//!
//! No operations, no private data, no mount flags: the file systems here keep these in the inode. The stamp
//! lies among the lookup fields, since a walk that trusts names for some time reads it at each step.
//!
//! # Safety
//!
//! Pointers are followed under invariants 3 and 5: through a reference, or inside a read section that began
//! before the pointer was loaded.
#![allow(unsafe_code)]

use super::cache::Inner;
use super::guard::{Children, Siblings};
use super::hint::{InodeHint, beside};
use super::inode::DentryInode;
use super::name::{LongName, Name, NewName};
use super::reference::DentryRef;
use crate::hash::{HashLink, HashNode};
use crate::slab::{SlabArc, SlabBox, SlabRetired, Slot};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::lockref::LockRef;
use foliocache_sync::rank::{Rank, might_lock};
use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_sync::seqcount::SeqCount;
use std::fmt;
use std::ptr::{self, NonNull};

/// Flag: the dentry is in the hash.
const HASHED: u8 = 1;

/// Words of an inline name. A model has fewer, since each is a place where threads may be switched.
const WORDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Bytes of the longest inline name.
pub(super) const INLINE: usize = WORDS * 8;

/// A name in a directory. See the module's header.
///
/// A `&Dentry` comes from a [`DentryRef`], which counts, or from a look-up under RCU, which does not; what
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
    pub(super) beside: AtomicPtr<()>,
    /// Invariant 6.
    long: AtomicPtr<LongName>,
    pub(super) counted: Counted<I>,
}

/// What changes together with the count.
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

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use std::mem::offset_of;

    struct Probe;
    impl DentryInode for Probe {
        fn is_dir(&self) -> bool {
            false
        }
        fn alias(&self) -> &super::inode::AliasSlot<Self> {
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

impl<I: DentryInode> Dentry<I> {
    /// A dentry that nobody can find yet, with one reference; not linked to its parent.
    pub(super) fn new(
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

    /// A root, with one reference.
    pub(super) fn new_root(
        cache: Arc<Inner<I>>,
        slot: Slot<Self>,
        inode: SlabArc<I>,
        charged: bool,
    ) -> DentryRef<I> {
        let name = NewName {
            name: Name::new(b""),
            long: None,
        };
        // The root's reference (invariant 3), until `bury` takes it back.
        let cache = Arc::into_raw(cache).cast_mut();
        let cache = NonNull::new(cache).expect("an Arc is not null");
        let root = Self::new(slot, (cache, ptr::null_mut()), name, Some(inode), charged);
        // SAFETY: the reference with which it was made.
        unsafe { DentryRef::from_raw(root.into_raw()) }
    }

    /// The address.
    pub(super) fn as_ptr(&self) -> *mut Self {
        ptr::from_ref(self).cast_mut()
    }

    pub(super) fn cache(&self) -> &Inner<I> {
        // SAFETY: invariant 3: a reference of the cache is held by the root above, which lives as long as
        // anything below it.
        unsafe { self.counted.cache.as_ref() }
    }

    // What look-ups compare.

    /// Whether this is the dentry of that name, and if so the number of the seqcount at which it was. With
    /// `WAIT` a writer is waited for; otherwise a dentry that is being changed is none of that name.
    ///
    /// Context: in an RCU read section. The answer may be a mixture if the dentry was changed meanwhile.
    #[inline(always)]
    pub(super) fn matches<const WAIT: bool>(
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
    pub(super) fn is_named(&self, parent: *const Dentry<I>, name: &Name<'_>) -> bool {
        // Relaxed: stands still under the lock (invariant 1).
        ptr::eq(self.parent.load(Ordering::Relaxed), parent)
            && usize::from(self.len.load(Ordering::Relaxed)) == name.bytes().len()
            && self.same_bytes(name, self.seq.read_begin())
    }

    /// Notes that somebody used it.
    #[inline(always)]
    pub(super) fn mark_referenced(&self) {
        // Relaxed: a hint to the clock. Looking first keeps the line shared.
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last call.
    pub(super) fn take_referenced(&self) -> bool {
        // Relaxed: a hint; that a use between the two is overlooked does not matter.
        let referenced = self.referenced.load(Ordering::Relaxed);
        if referenced {
            self.referenced.store(false, Ordering::Relaxed);
        }
        referenced
    }

    // What changes.

    /// Writes parent and name; returns what was the long name. The bucket is the caller's business.
    ///
    /// Context: in a write section, or nobody can find the dentry.
    pub(super) fn store_name(
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

    /// Appends the name to `text`.
    ///
    /// Context: under the lock, or the rename lock.
    pub(super) fn append_name(&self, text: &mut Vec<u8>) {
        // Relaxed, here and below: stands still under either lock.
        let len = usize::from(self.len.load(Ordering::Relaxed));
        // Acquire pairs with the Release in `store_name`, which may have been under another lock.
        let long = self.long.load(Ordering::Acquire);
        // SAFETY: null or owned by the field, which nobody changes meanwhile.
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

    /// Changes name and parent with another dentry.
    ///
    /// Context: in write sections of both.
    pub(super) fn swap_names(&self, other: &Self) {
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

    /// Takes the long name out of a dentry that nobody else has.
    pub(super) fn take_long(&self) -> Option<Box<LongName>> {
        // Relaxed: nobody else has it.
        let long = self.long.load(Ordering::Relaxed);
        self.long.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`, and owned by the field until now.
        (!long.is_null()).then(|| unsafe { Box::from_raw(long) })
    }

    pub(super) fn set_hashed(&self, hashed: bool) {
        // Relaxed: covered by the seqcount; the lock's holder alone writes it.
        self.flags
            .store(if hashed { HASHED } else { 0 }, Ordering::Relaxed);
    }

    /// Puts another inode in; returns the old one, which may be dropped after a grace period.
    ///
    /// Context: in a write section.
    pub(super) fn replace_inode(&self, inode: Option<SlabArc<I>>) -> Option<SlabArc<I>> {
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
    pub(super) fn retire_inode(&self) -> Option<SlabRetired<I>> {
        // Acquire pairs with the Release in `replace_inode`.
        let inode = NonNull::new(self.inode.load(Ordering::Acquire))?;
        // SAFETY: the field's own reference, which is not taken again.
        Some(unsafe { SlabArc::from_raw(inode) }.retire())
    }

    pub(super) fn forget_inode(&self) {
        // Relaxed: nobody else has the dentry.
        self.inode.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// The inode as a number, to be compared.
    pub(super) fn inode_ptr(&self) -> *const I {
        // Relaxed: not followed.
        self.inode.load(Ordering::Relaxed)
    }

    pub(super) fn parent_ptr(&self) -> *mut Dentry<I> {
        // Acquire pairs with the Release in `store_name`.
        self.parent.load(Ordering::Acquire)
    }

    // What walkers under RCU use.

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

    /// Until when it holds, on the clock that the caller of [`believe`](Self::believe) has chosen; 0 if nobody
    /// said.
    #[doc(alias = "d_time")]
    #[inline]
    pub fn believed_until(&self) -> u64 {
        // Relaxed: a number for itself.
        self.believed_until.load(Ordering::Relaxed)
    }

    /// Notes that what it says holds until `until`.
    #[inline]
    pub fn believe(&self, until: u64) {
        // Relaxed: a number for itself. Looking first keeps the line shared.
        if self.believed_until.load(Ordering::Relaxed) != until {
            self.believed_until.store(until, Ordering::Relaxed);
        }
    }

    /// References at some moment, a child's included: for tests and messages.
    #[doc(alias = "d_count")]
    pub fn count(&self) -> i32 {
        self.counted.lockref.count()
    }

    /// Takes a reference of what a look-up under RCU found at `seq`, so that it may be used after the read
    /// section. `None` if it has changed since.
    #[doc(alias = "legitimize_path")]
    #[inline]
    pub fn try_get(&self, seq: u32, _rcu: &RcuReadGuard) -> Option<DentryRef<I>> {
        let dentry = self.get_not_dead()?;
        // Dropped again if it changed: it may be another name by now.
        (!self.seq.read_retry(seq)).then_some(dentry)
    }

    /// A reference of the inode, or `None` if the dentry is negative now; none of one that the dentry gave up and
    /// nobody else has.
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

    /// Whether it is a directory's.
    pub(super) fn is_dir(&self) -> bool {
        let rcu = rcu::read_lock();
        self.inode_rcu(&rcu).is_some_and(I::is_dir)
    }

    /// Takes a reference unless it is dead.
    ///
    /// Context: in an RCU read section, or something else keeps the memory.
    #[track_caller]
    pub(super) fn get_not_dead(&self) -> Option<DentryRef<I>> {
        // It waits for the lock if somebody holds it.
        might_lock(Rank::Dentry);
        // SAFETY: the reference just taken.
        self.counted
            .lockref
            .get_not_dead()
            .then(|| unsafe { DentryRef::from_raw(NonNull::from(self)) })
    }
}

fn into_raw<I>(inode: Option<SlabArc<I>>) -> *mut I {
    inode.map_or(ptr::null_mut(), |inode| inode.into_raw().as_ptr())
}

impl<I: DentryInode> Drop for Dentry<I> {
    fn drop(&mut self) {
        // Nobody else has it: freed after a grace period, or never found.
        drop(self.replace_inode(None));
        // Relaxed: as above.
        let long = self.long.load(Ordering::Relaxed);
        if !long.is_null() {
            // SAFETY: it was made by `Box::into_raw`, and the field owns it.
            drop(unsafe { Box::from_raw(long) });
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
