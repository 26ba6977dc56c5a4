//! The order in which locks nest, and the locks that check it.
//!
//! # Model
//!
//! Every lock of the project has a [`Rank`]; a thread may wait for a lock only while all locks that it holds have a
//! *lower* (outer) rank. Two threads then never wait for each other. Debug builds keep a list of the locks of each
//! thread and panic on the first acquisition that breaks the rule, naming both ranks and the places where the locks
//! were taken; the deadlock itself need not happen. Release builds only count the locks that a thread holds
//! ([`foliocache_sys::inside`]).
//!
//! - [`RankedMutex`] and [`RankedRwLock`] are locks with a rank, which is part of their type.
//! - [`acquire`] gives a [`RankToken`] to code that implements a lock by other means, a bit in a state word
//!   for instance. It keeps the token for as long as it holds the lock.
//! - Locks of the *same* rank do not nest, unless the caller has an order among them and says so with
//!   [`How::Nested`] or `lock_nested` (folio locks in ascending index; directories ancestors first,
//!   else by inode number).
//! - An attempt that does not wait (`try_lock`, [`How::Try`]) cannot deadlock and may be out of
//!   order; the lock that it took counts for later acquisitions like any other.
//!
//! # Invariants
//!
//! 1. The list of a thread holds exactly the tokens that live on it. Tokens are not `Send`; a lock that
//!    is released by another thread is handed over with [`RankToken::disown`].
//! 2. Release is in any order.
//!
//! # Locking
//!
//! This module is where the order is written down; see [`Rank`]. Checking blocks on nothing.
//!
//! # Differences from Linux
//!
//! lockdep learns the order from observed acquisitions; here it is stated, and a lock cannot be made without
//! choosing its place. There is no check of interrupt contexts, since there are none; its counterpart is
//! [`might_sleep`], which refuses to wait inside an RCU read section.

use crate::time::Duration;
use crate::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use foliocache_sys::inside::{self, Inside};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[cfg(debug_assertions)]
#[path = "rank/held.rs"]
mod held;

/// Declares the ranks, and the list that has each of them at its number.
macro_rules! ranks {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$about:meta])* $rank:ident,)* }) => {
        $(#[$meta])*
        $vis enum $name { $($(#[$about])* $rank,)* }

        const RANKS: &[$name] = &[$($name::$rank,)*];
    };
}

ranks! {
    /// The place of a lock in the order: a thread takes them from the top of this list to its bottom.
    ///
    /// Down to [`Moves`](Self::Moves) they may be held for as long as I/O takes, and waiting for one
    /// counts as sleeping. From [`DentryWalk`](Self::DentryWalk) on they are held for a bounded number of
    /// instructions, and may be taken inside an RCU read section.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Rank {
        /// The place where a directory is read; its entries are handed over under it.
        #[doc(alias = "f_pos_lock")]
        Stream,
        /// One per file system: a name moves from one directory to another.
        #[doc(alias = "s_vfs_rename_mutex")]
        Rename,
        /// The names of a directory; several at once ancestors first, else by address.
        #[doc(alias = "i_rwsem")]
        Names,
        /// The making of a regular file's address space, at its first opening.
        Mapping,
        /// Reclaim's knowledge of a file system's caches; reclaim only tries it.
        Shrinker,
        /// One per file system: closed files that keep descriptors become durable together.
        IdleFiles,
        /// The handles of a regular file: opening, closing, comparing it with the source.
        Opens,
        /// Tables of a file system: names, directories, the list of open files.
        Namespace,
        /// One per file system: a thread writes dirty data back because the store is short of room.
        Space,
        /// An inode's `i_rwsem`: shared for overwrites, exclusive for changes of the size.
        #[doc(alias = "i_rwsem")]
        IRwsem,
        /// One per mapping: a single flush at a time.
        FlushLock,
        /// One per mapping: a single writeback pass at a time.
        WritebackLock,
        /// Keeps truncate and hole punch apart from the filling of the mapping.
        #[doc(alias = "invalidate_lock")]
        InvalidateLock,
        /// The lock bit of a folio; several at once in ascending index.
        #[doc(alias = "folio_lock")]
        FolioLock,
        /// The windows of one file.
        #[doc(alias = "i_mmap_rwsem")]
        IMmap,
        /// The setting of a file's modification time in the source.
        Stamping,
        /// The calls that make a file durable, of which the kernel tells an error once.
        Syncing,
        /// One per file system: shared over a move or removal of names in the source, exclusive for the search of a node that
        /// was not found where it was seen last.
        Moves,
        /// Going through a subtree of the dentry cache.
        DentryWalk,
        /// Where the dentries of a cache are: moves, and the dentry that a directory has.
        #[doc(alias = "rename_lock")]
        DentryRename,
        /// A dentry's lock; several at once as `vfs::dcache` states, parent before child.
        #[doc(alias = "d_lock")]
        Dentry,
        /// A part of the hash of the inode or dentry cache. While it is held only [`Leaf`](Self::Leaf) locks
        /// are taken.
        #[doc(alias = "inode_hash_lock")]
        HashBucket,
        /// The write side of a mapping's index.
        #[doc(alias = "xa_lock")]
        XaLock,
        /// The lists of dirty mappings of a backing device.
        BdiList,
        /// The queues of reclaim.
        #[doc(alias = "lru_lock")]
        LruLock,
        /// The free list of folio descriptors.
        FolioPool,
        /// The buddy allocator and the table of blocks.
        Frames,
        /// A thread's own list of free frames or nodes.
        Magazine,
        /// The callers that wait for the memory bound.
        Budget,
        /// A bucket of a [`WaitTable`](crate::wait::WaitTable).
        WaitTable,
        /// The streams of one handle.
        Readahead,
        /// The attributes of an inode, as they are changed.
        Attributes,
        /// The place where a node of the source was seen last.
        Location,
        /// Work that is to be done for a file, and what was seen of it in the source.
        FileIo,
        /// The observers of a file system, while they are told.
        Observers,
        /// Takes no other lock while held, but may wait for a sequence counter.
        Leaf,
        /// A sequence counter that is odd: its readers wait, whatever they hold.
        #[doc(alias = "seqcount_t")]
        SeqCount,
    }
}

impl Rank {
    /// Whether waiting for a lock of this rank counts as sleeping, and so is forbidden in an RCU read
    /// section.
    pub const fn sleeps(self) -> bool {
        (self as u8) < (Rank::DentryWalk as u8)
    }
}

/// Proof that this thread holds a lock of some rank; dropping it says that the lock is released.
///
/// Not `Send`: the list of held locks belongs to the thread. It may be moved between functions, be
/// stored, and be dropped in any order. In release builds it has no size, and counts only how many there are.
#[derive(Debug)]
#[must_use = "the lock counts as released when its token is dropped"]
pub struct RankToken {
    #[cfg(debug_assertions)]
    id: u64,
    /// No fault of a mapping can be resolved on this thread.
    _inside: Inside,
    /// Not `Send`, yet `Sync`.
    _thread: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

impl RankToken {
    /// Takes the lock off this thread's list without releasing it: another thread will. That thread may
    /// call [`acquire`] with [`How::Try`] to have it on its own list.
    pub fn disown(self) {
        drop(self);
    }
}

#[cfg(debug_assertions)]
impl Drop for RankToken {
    fn drop(&mut self) {
        held::remove(self.id);
    }
}

/// How a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The thread waits for it; only locks of outer ranks may be held.
    Ordered,
    /// The thread waits for it; locks of the same rank may be held too. All callers take them in one order, ascending
    /// index for example.
    Nested,
    /// It was taken without waiting, and may be out of order; or it was [disowned](RankToken::disown), and is taken over.
    Try,
}

/// Says that this thread is about to wait for a lock of this rank, or that it has one. Call it before waiting, so that an
/// inversion panics instead of deadlocking.
///
/// # Panics
///
/// In debug builds, if the thread waits and holds a lock of an inner rank, or of the same one unless `how` allows that; or is in
/// an RCU read section and the rank sleeps.
#[track_caller]
#[inline(always)]
pub fn acquire(rank: Rank, how: How) -> RankToken {
    if cfg!(debug_assertions) && how != How::Try && rank.sleeps() {
        might_sleep();
    }
    RankToken {
        #[cfg(debug_assertions)]
        id: held::push(rank, how),
        _inside: inside::enter(),
        _thread: PhantomData,
    }
}

/// Checks that this thread could wait for a lock of this rank now, as a function does that waits for it
/// on some paths only.
///
/// # Panics
///
/// In debug builds, when the thread holds a lock of the same or an inner rank.
#[track_caller]
#[inline(always)]
pub fn might_lock(rank: Rank) {
    #[cfg(debug_assertions)]
    held::check(rank, How::Ordered);
    #[cfg(not(debug_assertions))]
    let _ = rank;
}

/// Checks that this thread may sleep: it is in no RCU read section.
///
/// # Panics
///
/// In debug builds, inside a read section.
#[track_caller]
#[inline(always)]
pub fn might_sleep() {
    #[cfg(debug_assertions)]
    if crate::rcu::in_read_section() && !crate::thread::panicking() {
        panic!("sleeping inside an RCU read section");
    }
}

/// The rank with a number. A number that is none does not compile.
const fn rank_of<const RANK: u8>() -> Rank {
    const { RANKS[RANK as usize] }
}

/// Checks that a lock may be waited for, and takes it.
#[track_caller]
#[inline(always)]
fn hold<const RANK: u8, G>(how: How, lock: impl FnOnce() -> G) -> Ranked<G> {
    let token = acquire(rank_of::<RANK>(), how);
    Ranked {
        guard: lock(),
        token,
    }
}

/// For a lock that was taken without waiting, if it was.
#[track_caller]
#[inline(always)]
fn tried<const RANK: u8, G>(guard: Option<G>) -> Option<Ranked<G>> {
    let guard = guard?;
    let token = acquire(rank_of::<RANK>(), How::Try);
    Some(Ranked { guard, token })
}

/// A held lock with a rank. Not `Send`.
#[derive(Debug)]
pub struct Ranked<G> {
    guard: G,
    // Below the guard: dropped after the lock is released.
    token: RankToken,
}

/// A held [`RankedMutex`].
pub type RankedMutexGuard<'a, T> = Ranked<MutexGuard<'a, T>>;
/// A [`RankedRwLock`] held shared.
pub type RankedReadGuard<'a, T> = Ranked<RwLockReadGuard<'a, T>>;
/// A [`RankedRwLock`] held exclusively.
pub type RankedWriteGuard<'a, T> = Ranked<RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;
    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A [`Mutex`] with a place in the lock order, the number of its [`Rank`]. In debug builds, waiting for it panics on a rank
/// inversion, and in an RCU read section if the rank sleeps.
#[derive(Debug, Default)]
pub struct RankedMutex<const RANK: u8, T> {
    inner: Mutex<T>,
}

/// A mutex of rank [`Leaf`](Rank::Leaf).
pub type LeafMutex<T> = RankedMutex<{ Rank::Leaf as u8 }, T>;

impl<const RANK: u8, T> RankedMutex<RANK, T> {
    const_unless_loom! {
        /// A mutex that is not held. `const` except under loom.
        pub fn new(value: T) -> Self {
            Self { inner: Mutex::new(value) }
        }
    }

    /// Waits for the mutex and takes it. May block.
    #[track_caller]
    #[inline]
    pub fn lock(&self) -> RankedMutexGuard<'_, T> {
        hold::<RANK, _>(How::Ordered, || self.inner.lock())
    }

    /// Like [`lock`](Self::lock), with locks of the same rank held in an order of the caller's.
    #[track_caller]
    #[inline]
    pub fn lock_nested(&self) -> RankedMutexGuard<'_, T> {
        hold::<RANK, _>(How::Nested, || self.inner.lock())
    }

    /// Takes the mutex if nobody holds it; may be out of order.
    #[track_caller]
    #[inline]
    pub fn try_lock(&self) -> Option<RankedMutexGuard<'_, T>> {
        tried::<RANK, _>(self.inner.try_lock())
    }
}

impl Condvar {
    /// [`wait`](Self::wait) for a ranked mutex. It keeps its place on the list of held locks meanwhile.
    ///
    /// # Panics
    ///
    /// In debug builds, inside an RCU read section.
    #[track_caller]
    pub fn wait_ranked<'a, T>(&self, guard: RankedMutexGuard<'a, T>) -> RankedMutexGuard<'a, T> {
        might_sleep();
        self.wait_ranked_short(guard)
    }

    /// [`wait_ranked`](Self::wait_ranked) for a condition that takes a bounded number of instructions.
    #[track_caller]
    pub(crate) fn wait_ranked_short<'a, T>(
        &self,
        guard: RankedMutexGuard<'a, T>,
    ) -> RankedMutexGuard<'a, T> {
        let Ranked { guard, token } = guard;
        let guard = self.wait(guard);
        Ranked { guard, token }
    }

    /// [`wait_timeout`](Self::wait_timeout) for a ranked mutex; the time is never up in a model.
    ///
    /// # Panics
    ///
    /// In debug builds, inside an RCU read section.
    #[track_caller]
    pub fn wait_timeout_ranked<'a, T>(
        &self,
        guard: RankedMutexGuard<'a, T>,
        timeout: Duration,
    ) -> (RankedMutexGuard<'a, T>, bool) {
        might_sleep();
        let Ranked { guard, token } = guard;
        let (guard, timed_out) = self.wait_timeout(guard, timeout);
        (Ranked { guard, token }, timed_out)
    }
}

/// An [`RwLock`] with a place in the lock order. Shared and exclusive acquisitions are checked alike, as those of
/// [`RankedMutex`]: a waiting writer makes shared ones wait for each other.
#[derive(Debug, Default)]
pub struct RankedRwLock<const RANK: u8, T> {
    inner: RwLock<T>,
}

impl<const RANK: u8, T> RankedRwLock<RANK, T> {
    const_unless_loom! {
        /// A lock that is not held. `const` except under loom.
        pub fn new(value: T) -> Self {
            Self { inner: RwLock::new(value) }
        }
    }

    /// Takes the lock shared, once there is no exclusive holder. May block.
    #[track_caller]
    #[inline]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        hold::<RANK, _>(How::Ordered, || self.inner.read())
    }

    /// Takes the lock exclusively, once it is free. May block.
    #[track_caller]
    #[inline]
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        hold::<RANK, _>(How::Ordered, || self.inner.write())
    }

    /// Like [`write`](Self::write), with locks of the same rank held in an order of the caller's.
    #[track_caller]
    #[inline]
    pub fn write_nested(&self) -> RankedWriteGuard<'_, T> {
        hold::<RANK, _>(How::Nested, || self.inner.write())
    }

    /// Takes the lock shared unless it has an exclusive holder; may be out of order.
    #[track_caller]
    #[inline]
    pub fn try_read(&self) -> Option<RankedReadGuard<'_, T>> {
        tried::<RANK, _>(self.inner.try_read())
    }

    /// Takes the lock exclusively if it is free; may be out of order.
    #[track_caller]
    #[inline]
    pub fn try_write(&self) -> Option<RankedWriteGuard<'_, T>> {
        tried::<RANK, _>(self.inner.try_write())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "rank/tests.rs"]
mod tests;
