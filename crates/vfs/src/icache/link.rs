//! What an inode carries for the cache: its hash link and its state word.
//!
//! # Model
//!
//! ```text
//! bit 0          NEW         being filled: finders wait until it is clear
//! bit 1          FREEING     somebody decides, under the bucket's lock, whether to evict it
//! bit 2          GONE        out of the hash for good: evicted, removed, or its filling failed
//! bit 3          REFERENCED  found since the clock's hand passed
//! bit 4          WAITERS     somebody may sleep until NEW is clear
//! bits 32 to 63  pins        finders that are about to take a reference
//! ```
//!
//! A reference is a [`SlabArc`]; the cache owns one. Under RCU alone nobody may clone it, since the cache
//! could give its own up between the look and the clone. So a finder and an evictor do this:
//!
//! ```text
//! finder (read section)                evictor (bucket's lock)
//!   1  FREEING, GONE clear?              A  pins == 0, NEW, FREEING, GONE clear?
//!      pins += 1, in the same step          set FREEING, in the same step
//!   2  count of the SlabArc += 1         B  count of the SlabArc == 1?   no: clear FREEING, keep it
//!   3  pins -= 1                         C  judge it; unhash it, set GONE
//! ```
//!
//! # Invariants
//!
//! 1. The cache's own reference is given up by who took the inode out of the hash, under the bucket's
//!    lock, and dropped a grace period later. So the count is at least one as long as a reader can be
//!    at the inode.
//! 2. FREEING is set and cleared under the bucket's lock, within a bounded number of steps. GONE is set
//!    under it and never cleared. With the lock in hand, what is in the hash is neither.
//! 3. References come from 2, from a look-up under the bucket's lock, or from other references.
//! 4. NEW is set until the filling ends, and never again.
//!
//! # Memory ordering
//!
//! Claim: if the evictor reads 1 in B, there is no reference but the cache's, and none will come.
//!
//! - Step 1 and step A change one word, so one is before the other. A before 1: the finder sees FREEING
//!   (or GONE) and takes none. 1 before A, and then also 3, as A wants no pins: 3 is `Release` and A is
//!   `Acquire`, so 2 happens before B. The same holds for references that a look-up under the bucket's
//!   lock took, by the lock.
//! - Hence B reads what the last such 2 wrote, or a later value. A reference that is not the cache's
//!   descends from these by clones, and each clone is made by the holder of one that is counted.
//!   So as long as any is left the count is at least 2: a value of 1, later than all of 2, means
//!   that none is left, and none to clone from.
//! - An `Acquire` fence after B pairs with the `Release` with which the others were dropped: judge sees
//!   what their holders did (made it dirty, for instance).
//!
//! Clearing NEW is `Release` and every look at it that lets a finder on is `Acquire`: it sees what was
//! filled in. Waiting and waking is [`LockBits`]'s.
//!
//! The argument is about counts as `std` keeps them: strong ones. Nobody may keep a `Weak` of an inode to
//! upgrade it: B does not see it.
//!
//! # Differences from Linux
//!
//! `i_count` and `I_FREEING` live under `i_lock`, which finders take. A finder that met `I_FREEING`
//! goes to sleep until the inode is gone, and was never woken if the wake-up had come before it slept:
//! upstream had to look whether the inode is still hashed. Here nobody sleeps for an inode that is
//! being freed: its finder takes the bucket's lock, behind which the decision has been made.
//!
//! # Safety
//!
//! The count of the `SlabArc` is raised by step 2, by invariant 1.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
use foliocache_sync::wait::{LockBits, WaitTable};

use crate::hash::{HashLink, HashNode};
use crate::limbo::LimboItem;
use crate::retired::Retired;
use crate::slab::{self, SlabArc};

const NEW: u64 = 1;
const FREEING: u64 = 1 << 1;
const GONE: u64 = 1 << 2;
const REFERENCED: u64 = 1 << 3;
const WAITERS: u64 = 1 << 4;
const PIN: u64 = 1 << 32;
const PINS: u64 = !(PIN - 1);

const FILLING: LockBits = LockBits {
    locked: NEW,
    waiters: WAITERS,
};

/// What an inode carries for the cache that it is in; part of the inode, and made with it.
pub struct InodeLink<T> {
    pub(super) hash: HashLink<T>,
    state: AtomicU64,
    #[cfg(loom)]
    steps: AtomicU64,
}

/// What can be in an [`InodeCache`](super::InodeCache), as a `SlabArc`.
///
/// # Safety
///
/// `link` gives the same link each time, one that is part of the inode and used for nothing else.
pub unsafe trait CachedInode: Send + Sync + Sized {
    /// The inode's link.
    fn link(&self) -> &InodeLink<Self>;

    /// Its number: the identity that `iget` goes by. Does not change.
    fn ino(&self) -> u64;

    /// Where the references are counted that the cache has given up and that wait for readers, if they are.
    fn retired(&self) -> Option<&Retired> {
        None
    }
}

impl<T: CachedInode> LimboItem for SlabArc<T> {
    fn enter(&self) {
        (**self).retired().into_iter().for_each(Retired::enter);
    }

    fn leave(&self) {
        (**self).retired().into_iter().for_each(Retired::leave);
    }
}

// SAFETY: the link's link.
unsafe impl<T: CachedInode> HashNode for T {
    #[inline(always)]
    fn link(&self) -> &HashLink<Self> {
        &CachedInode::link(self).hash
    }
}

/// What a finder met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Somebody fills it.
    New,
    Filled,
    /// It is out of the hash: what was filled in was not enough, or it was removed meanwhile.
    Gone,
}

impl<T> InodeLink<T> {
    /// The link of an inode that is in no cache: new.
    #[must_use]
    pub fn new() -> Self {
        Self {
            hash: HashLink::new(),
            state: AtomicU64::new(NEW),
            #[cfg(loom)]
            steps: AtomicU64::new(0),
        }
    }

    /// Whether a finder is about to take a reference.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        // Acquire pairs with the Release in `unpin`: step 2.
        self.state.load(Ordering::Acquire) & PINS != 0
    }

    /// Whether the inode is out of its cache for good, or never was in one that it could still be found in.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Relaxed: no more than an answer.
        self.state.load(Ordering::Relaxed) & GONE != 0
    }

    /// The word, where nothing is concluded from it that is not made sure of later.
    #[inline(always)]
    fn peek(&self) -> u64 {
        // Relaxed: see above.
        let state = self.state.load(Ordering::Relaxed);
        // As in `own` of `hash::table`.
        #[cfg(loom)]
        self.state.fetch_or(0, Ordering::Relaxed);
        state
    }

    /// Step 1; false if the inode is being evicted, or gone. `touch` notes that it was found.
    #[inline]
    fn pin(&self, touch: bool) -> bool {
        let mark = if touch { REFERENCED } else { 0 };
        // The exchange decides, or the bucket's lock does.
        let mut state = self.peek();
        loop {
            if state & (FREEING | GONE) != 0 {
                return false;
            }
            let next = (state + PIN) | mark;
            // Acquire pairs with the Release that clears NEW. Relaxed on failure: only tried again.
            match self.state.compare_exchange_weak(
                state,
                next,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(newer) => state = newer,
            }
        }
    }

    /// Step 3.
    #[inline]
    fn unpin(&self) {
        // Release pairs with the Acquire in `freeze`: step 2.
        self.state.fetch_sub(PIN, Ordering::Release);
    }

    /// Step A; false if somebody is about to take a reference, or it is not to be evicted as it is.
    ///
    /// Context: the bucket's lock.
    fn freeze(&self) -> bool {
        // The exchange decides.
        let state = self.peek();
        // Acquire pairs with the Release in `unpin`. Relaxed on failure: nothing is done then.
        state & (PINS | NEW | FREEING | GONE) == 0
            && self
                .state
                .compare_exchange(state, state | FREEING, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Keeps it after all.
    ///
    /// Context: the bucket's lock; `freeze` said yes.
    fn thaw(&self) {
        // Relaxed: nothing was changed that a finder must see.
        self.state.fetch_and(!FREEING, Ordering::Relaxed);
    }

    /// Says that it is out of the hash for good.
    ///
    /// Context: the bucket's lock, under which it was taken out.
    pub(super) fn set_gone(&self) {
        // Relaxed: who sees it goes to the bucket's lock, or lets the inode be.
        self.state.fetch_or(GONE, Ordering::Relaxed);
    }

    /// In a model, a point at which another thread may run: it does not see the steps that an `Arc` makes.
    #[inline(always)]
    fn step(&self) {
        #[cfg(loom)]
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// In a model, checks the claim of the module's header: what is read in B is what the last finder's
    /// step 2 wrote, or later.
    #[inline(always)]
    fn check_steps(&self) {
        #[cfg(loom)]
        {
            let read = self.steps.load(Ordering::Relaxed);
            // An exchange reads the last value, whatever the orderings.
            let last = self.steps.fetch_add(0, Ordering::Relaxed);
            assert_eq!(read, last, "a count that misses a reference");
        }
    }

    /// Ends the filling, and wakes who waits for that.
    pub(super) fn end_filling(&self, waits: &WaitTable) {
        FILLING.clear(&self.state, waits, NEW);
    }

    #[inline]
    pub(super) fn fill(&self) -> Fill {
        // Acquire pairs with the Release in `end_filling`.
        fill_of(self.state.load(Ordering::Acquire))
    }

    /// Sleeps until the filling is over. The caller has a reference.
    #[cold]
    pub(super) fn wait_filled(&self, waits: &WaitTable) -> Fill {
        fill_of(FILLING.wait_clear(&self.state, waits, NEW))
    }

    /// For a finder that takes no reference: notes that it was found, if that is not noted yet.
    #[inline]
    pub(super) fn touch(&self) {
        // Relaxed, both: only the clock's hand looks at it.
        if self.state.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.state.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Whether nobody fills it, evicts it or is about to take a reference. A hint.
    pub(super) fn is_idle(&self) -> bool {
        self.peek() & (PINS | NEW | FREEING | GONE) == 0
    }

    /// Whether it was found since the last call.
    pub(super) fn take_referenced(&self) -> bool {
        // Relaxed below: a hint, as this is; `freeze` decides.
        let referenced = self.peek() & REFERENCED != 0;
        if referenced {
            self.state.fetch_and(!REFERENCED, Ordering::Relaxed);
        }
        referenced
    }
}

fn fill_of(state: u64) -> Fill {
    match state {
        _ if state & NEW != 0 => Fill::New,
        _ if state & GONE != 0 => Fill::Gone,
        _ => Fill::Filled,
    }
}

impl<T> Default for InodeLink<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for InodeLink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for people.
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("InodeLink")
            .field("fill", &fill_of(state))
            .field("referenced", &(state & REFERENCED != 0))
            .finish_non_exhaustive()
    }
}

/// What the cache holds of an inode: a reference made a pointer. Given back by [`from_cache`].
pub(super) fn to_cache<T>(inode: SlabArc<T>) -> NonNull<T> {
    inode.into_raw()
}

/// The cache's own reference, of an inode that is gone from now on.
///
/// # Safety
///
/// The caller has just taken the inode out of the hash (invariant 1), under the bucket's lock, or alone. The
/// reference is dropped a grace period later, if there are readers.
pub(super) unsafe fn from_cache<T: CachedInode>(inode: &T) -> SlabArc<T> {
    CachedInode::link(inode).set_gone();
    // SAFETY: in a slab, since it comes from `to_cache`.
    unsafe { slab::hide(inode) };
    // SAFETY: from `to_cache`, and nobody else takes it: the caller's contract.
    unsafe { SlabArc::adopt(inode) }
}

/// Takes a reference of an inode found under RCU; `None` if it is being evicted, or gone. `touch` has the hand
/// spare it once.
///
/// # Safety
///
/// The inode was found in the hash in the read section that the caller is still in.
#[inline]
pub(super) unsafe fn get<T: CachedInode>(inode: &T, touch: bool) -> Option<SlabArc<T>> {
    let link = CachedInode::link(inode);
    if !link.pin(touch) {
        return None;
    }
    link.step();
    // SAFETY: the caller's contract, and invariant 1.
    let reference = unsafe { get_counted(inode) };
    link.unpin();
    Some(reference)
}

/// Takes a reference, by one that somebody keeps meanwhile.
///
/// # Safety
///
/// The inode is in a `SlabArc`, whose count is one or more, as the cache's own reference is there: by
/// invariant 1, with a pin or under the bucket's lock.
#[inline]
pub(super) unsafe fn get_counted<T: CachedInode>(inode: &T) -> SlabArc<T> {
    // SAFETY: the caller's contract.
    unsafe { SlabArc::from_borrow(inode) }
}

/// References of an inode, at some moment. A hint.
///
/// # Safety
///
/// As for [`get`], or the caller has a reference.
pub(super) unsafe fn count<T: CachedInode>(inode: &T) -> usize {
    // SAFETY: the caller's contract.
    unsafe { SlabArc::count_of(inode) }
}

/// Steps A and B: whether nobody has a reference but the cache, and `ours` by the caller, nor gets one
/// before [`thaw`].
///
/// # Safety
///
/// The inode is in the hash, and the caller holds its bucket's lock.
pub(super) unsafe fn freeze<T: CachedInode>(inode: &T, ours: usize) -> bool {
    let link = CachedInode::link(inode);
    if !link.freeze() {
        return false;
    }
    link.check_steps();
    // SAFETY: invariant 1.
    if unsafe { count(inode) } == 1 + ours {
        // Pairs with the Release of those who dropped their references.
        fence(Ordering::Acquire);
        link.step();
        return true;
    }
    link.thaw();
    false
}

/// Takes a [`freeze`] back.
pub(super) fn thaw<T: CachedInode>(inode: &T) {
    CachedInode::link(inode).thaw();
}
