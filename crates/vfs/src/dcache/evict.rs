//! Giving memory back: a clock hand, and the end of a subtree or of all.
//!
//! # Model
//!
//! The hand goes round the pages of the slab, so that pages come free. A dentry with references stays, and with it
//! the directories above, whose references their children are. One that was looked up since the hand came by gets a
//! second chance: its mark is cleared. The rest die, and with them the few that would keep their page
//! ([`Slab::shrink`](foliocache_mm::slab::Slab::shrink)). A directory whose last child went is unused from then on, and is met in one
//! of the next rounds.
//!
//! [`DentryCache::prune`] and [`DentryCache::invalidate`] go through a subtree instead, along the lists of
//! children: down with a reference of each directory on the way, a piece of a list at a time under
//! its lock, those visited going to the end of the list. A child that was there when its list was begun is visited
//! once, in whatever order children come and go.
//!
//! # Locking
//!
//! *Order*: `walks`, then a directory's dentry and its child's. *May block*: [`DentryCache::shrink`] takes no
//! lock that sleeps and drops inodes with none held, so memory reclaim may call it, with any lock that an
//! inode's destructor does not take. The subtree walks exclude each other for as long as they take.
//!
//! # Differences from Linux
//!
//! A clock instead of lists by file system: an unused dentry costs no list operation, and a look-up no more
//! than a mark. Unmounting goes round the hash instead of down the tree.

use super::cache::DentryCache;
use super::dentry::{Dentry, DentryInode, INLINE, Inner};
use super::name::{LongName, Name, NewName};
use super::reference::{DentryRef, HeldRefs, bury, kill, lock_with_parent, put, tear_down, unhash};
use foliocache_mm::slab::{SlabArc, Slot};
use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sync::rcu;

/// The charge of a long name besides its bytes, in two allocations.
const LONG_NAME_BYTES: u64 = 80;
/// Dentries to evict when there is no room for one.
const MAKE_ROOM: usize = 64;
/// Buckets that are gone over in one read section.
const PIECE: usize = if cfg!(any(loom, shuttle)) { 2 } else { 32 };
/// Children that are visited while their directory stays locked.
const BATCH: usize = 32;

/// Is told of a directory, a name in it, and what that led to.
pub type Tell<'a, I> = &'a dyn Fn(&I, &[u8], SlabArc<I>);

/// Tells of a name that is found.
///
/// Context: both are locked.
fn tell_of<I: DentryInode>(dir: &Dentry<I>, dentry: &Dentry<I>, tell: Tell<'_, I>) {
    let rcu = rcu::read_lock();
    if dentry.is_hashed()
        && let Some((dir, inode)) = dir.inode_rcu(&rcu).zip(dentry.inode())
    {
        let mut name = Vec::new();
        dentry.append_name(&mut name);
        tell(dir, &name, inode);
    }
}

impl<I: DentryInode> DentryCache<I> {
    /// Evicts up to about so many unused dentries, those first that were not looked up for a round of the
    /// clock hand. Fewer where most are in use: the work is in proportion to `nr`. Returns how many it evicted; their memory, and their inodes, are free once their readers are
    /// gone, which is tried at the end.
    ///
    /// Context: no lock of rank `Dentry` or inner, none that an inode's destructor takes, and no read section.
    /// Does not sleep: memory reclaim may call it.
    #[doc(alias = "prune_dcache_sb")]
    pub fn shrink(&self, nr: usize) -> usize {
        self.inner.shrink(nr)
    }

    /// Drops a reference and evicts the dentry if that was the last one, with the directories above that are unused
    /// then; returns whether it did.
    ///
    /// Context: as for [`shrink`](Self::shrink).
    pub fn evict(&self, dentry: DentryRef<I>) -> bool {
        put(dentry.into_raw(), true)
    }

    /// Evicts everything that is unused; returns how many dentries that was.
    ///
    /// Context: as for [`shrink`](Self::shrink).
    #[doc(alias = "shrink_dcache_sb")]
    pub fn evict_all(&self) -> usize {
        let mut all = 0;
        loop {
            let evicted = self.inner.evict_round();
            self.inner.limbo.advance();
            if evicted == 0 {
                return all;
            }
            all += evicted;
        }
    }

    /// Evicts all unused dentries below a dentry; returns how many that was.
    ///
    /// Context: as for [`shrink`](Self::shrink), and none of rank `DentryWalk` or inner.
    #[doc(alias = "shrink_dcache_parent")]
    pub fn prune(&self, dentry: &DentryRef<I>) -> usize {
        let evicted = self.inner.walk(dentry, None);
        self.inner.limbo.advance();
        evicted
    }

    /// Unhashes a dentry and everything below it, since the directory has changed outside. Unused ones go;
    /// the others stay usable by their holders, and are found no more until they are added again. Tells of each name that
    /// led to an inode, before look-ups stop to find it: in which directory, and the inode.
    ///
    /// Context: as for [`prune`](Self::prune). `tell` is called with dentries locked: it takes leaf locks at most.
    #[doc(alias = "d_invalidate")]
    #[doc(alias = "d_drop")]
    pub fn invalidate(&self, dentry: &DentryRef<I>, tell: Tell<'_, I>) {
        {
            let rcu = rcu::read_lock();
            let (parent, mut guard) = lock_with_parent(dentry, &rcu);
            if let Some(parent) = &parent {
                tell_of(parent.dentry(), dentry, tell);
            }
            unhash(&mut guard);
        }
        self.inner.walk(dentry, Some(tell));
        self.inner.limbo.advance();
    }

    /// Ends the cache: nothing is kept from now on. Evicts what is unused; the rest goes with its references.
    /// Returns how many dentries are left.
    ///
    /// Context: as [`reap`](Self::reap), and **sleeps**.
    pub fn close(&self) -> u64 {
        // Relaxed: the grace period orders it.
        self.inner.closing.store(true, Ordering::Relaxed);
        // A drop of a last reference looks at `closing` and leaves the dentry unused in one read section. So after
        // this, each dentry that was left unused before is found below.
        rcu::synchronize();
        self.evict_all();
        self.inner.counts.dentries.sum_positive()
    }
}

impl<I: DentryInode> Drop for DentryCache<I> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<I: DentryInode> Inner<I> {
    /// Memory for a dentry, evicting others if there is no room, and whether it is charged.
    ///
    /// Context: no lock of rank `Dentry` or inner, and no read section; **sleeps**, for readers.
    pub(super) fn reserve(&self) -> (Slot<Dentry<I>>, bool) {
        match self.make_room_for(|| self.slab.reserve()) {
            Some(slot) => (slot, true),
            None => (self.slab.reserve_uncharged(), false),
        }
    }

    /// Tries to charge something, evicting dentries if there is no room.
    fn make_room_for<T>(&self, charge: impl Fn() -> Option<T>) -> Option<T> {
        if let Some(charged) = charge() {
            return Some(charged);
        }
        let evicted = self.shrink(MAKE_ROOM);
        if evicted > 0 {
            // Evicted, but not yet free.
            self.limbo.flush();
        }
        charge()
    }

    /// Makes a name ready to be put into a dentry.
    ///
    /// Context: as [`reserve`](Self::reserve).
    pub(super) fn new_name<'a>(&self, name: Name<'a>) -> NewName<'a> {
        let len = name.bytes().len();
        debug_assert!(len <= crate::MAX_NAME, "longer than a name may be");
        let long = (len > INLINE).then(|| {
            let bytes = LONG_NAME_BYTES + len as u64;
            let charged = self.make_room_for(|| self.bound.charge(bytes).then_some(()));
            Box::new(LongName {
                bytes: name.bytes().into(),
                charged: charged.map_or(0, |()| bytes),
                bound: Arc::clone(&self.bound),
            })
        });
        NewName { name, long }
    }

    /// See [`DentryCache::shrink`].
    pub(super) fn shrink(&self, nr: usize) -> usize {
        let held = |dentry: &Dentry<I>| dentry.count() != 0;
        let evict = |dentry: &Dentry<I>| kill(dentry, 0).map(|left| left.put(false)).is_some();
        let evicted = self
            .slab
            .shrink(nr, true, held, Dentry::take_referenced, evict);
        self.counts.evicted.add(evicted as i64);
        self.limbo.advance();
        evicted
    }

    /// Evicts all dentries that it finds unused, and the directories above that are unused then. Returns how many it found.
    fn evict_round(&self) -> usize {
        let (buckets, mut evicted) = (self.hash.buckets(), 0);
        for first in (0..buckets).step_by(PIECE) {
            let rcu = rcu::read_lock();
            let mut unused: Vec<&Dentry<I>> = Vec::new();
            let part = first..buckets.min(first + PIECE);
            let look = |dentry| unused.push(dentry);
            self.hash.scan(part, buckets, look, &rcu);
            unused.retain(|dentry| dentry.count() == 0);
            let dead = unused.into_iter().filter_map(|dentry| kill(dentry, 0));
            evicted += dead.map(|left| left.put(true)).count();
        }
        evicted
    }

    /// Goes through all dentries below `top` and evicts those that are unused. With `unhash_all` it tells of the others and
    /// unhashes them. Returns how many it evicted.
    fn walk(&self, top: &DentryRef<I>, unhash_all: Option<Tell<'_, I>>) -> usize {
        let nr_children = top.lock().nr_children();
        if nr_children == 0 {
            return 0;
        }
        let _walking = self.walks.lock();
        let mut evicted = 0;
        // The directories on the way down, and how many of their children are still to be visited.
        let mut way = vec![(top.clone(), nr_children)];
        while let Some((dir, left)) = way.last_mut() {
            let (down, dead) = visit(dir, left, unhash_all);
            evicted += dead.len();
            for left in dead {
                left.put(false);
            }
            if let Some(down) = down {
                way.push(down);
            } else if *left == 0
                && let Some((dir, _)) = way.pop()
                && !way.is_empty()
            {
                // Its children may have been all that held it.
                evicted += usize::from(put(dir.into_raw(), true));
            }
        }
        evicted
    }
}

/// A directory, and how many of its children are to be visited.
type Visit<I> = (DentryRef<I>, usize);

/// Visits some of the `left` children of a directory: evicts those that are unused. Stops at the first one that
/// has children itself, and returns it, with what the dead left.
fn visit<I: DentryInode>(
    dir: &DentryRef<I>,
    left: &mut usize,
    unhash_all: Option<Tell<'_, I>>,
) -> (Option<Visit<I>>, Vec<HeldRefs<I>>) {
    let mut dead = Vec::new();
    let mut guard = dir.lock();
    for _ in 0..BATCH.min(*left) {
        let Some(child) = guard.first_child() else {
            *left = 0;
            break;
        };
        *left -= 1;
        guard.rotate();
        let mut child_guard = child.lock_nested();
        if let Some(tell) = unhash_all {
            tell_of(dir, child, tell);
        }
        if child_guard.count() == 0 {
            tear_down(Some(&mut guard), child_guard);
            dead.push(bury(child));
            continue;
        }
        if unhash_all.is_some() {
            // It has references.
            unhash(&mut child_guard);
        }
        let nr_children = child_guard.nr_children();
        if nr_children > 0 {
            return (Some((child_guard.get(), nr_children)), dead);
        }
    }
    (None, dead)
}
