//! Moves: a dentry goes to another name with all that is below it.
//!
//! # Model
//!
//! ```text
//!  rename lock, rename_seq odd
//!    both directories' locks, then the dentry's and the target's
//!      the target is unhashed                          (or, in an exchange, goes the other way)
//!      the dentry is unhashed
//!      seqcount odd: new parent and name; seqcount even
//!      into the hash
//!      from one list of children to the other
//! ```
//!
//! All that is below moves along, since it refers to its parent by address.
//!
//! A look-up under RCU sees the dentry under the old name, under the new one, or not at all, and never a
//! mixture: the number it has does not stand when it checks. A look-up with a reference that finds nothing
//! starts over if `rename_seq` has moved.
//!
//! # Invariants
//!
//! 1. Parents change under the rename lock alone, so that its holder may walk upwards.
//! 2. No dentry is moved below itself.
//!
//! # Locking
//!
//! The caller holds both directories' locks exclusively, except in [`How::Splice`]. *Order*: the rename lock;
//! then the two parents, one that is above the other first, and otherwise by address; then the dentry and the
//! target. Others lock a parent and its child only, and no parent changes under a lock that is held, so
//! that threads do not wait in a circle. A look-up may wait for a dentry's seqcount under the lock of a stripe of
//! the hash, so no seqcount is odd while a stripe's lock is taken. *May block*: never for long.
//!
//! # Memory ordering
//!
//! That of the seqcounts.
//!
//! # Differences from Linux
//!
//! The target of a rename does not become negative; it is unhashed, and the name is the moved dentry's. The
//! old name is then not cached at all.
//!
//! # Safety
//!
//! References are handed from one parent to the other.
#![allow(unsafe_code)]

use super::cache::DentryCache;
use super::dentry::{DeferredFree, Dentry, DentryInode, Inner};
use super::guard::DentryGuard;
use super::name::{Name, NewName};
use super::reference::{DentryRef, unhash};
use foliocache_mm::slab;
use foliocache_sync::rank::{Rank, RankedMutexGuard};
use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_sys::Errno;
use std::iter;
use std::ptr::{self, NonNull};

/// Why a dentry moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It was renamed.
    Rename,
    /// It was exchanged with another.
    Exchange,
    /// It is a directory that turned up somewhere else. It is hashed again if it was not.
    Splice,
}

impl<I: DentryInode> DentryCache<I> {
    /// Notes that `from` was renamed to `to_name` in `to_parent`, or exchanged with what has that name. All that is
    /// below moves along. A dentry that had the name before is unhashed, and stays usable for its holders.
    ///
    /// # Errors
    ///
    /// `ELOOP` if one of the two would come to lie below itself, or if `from` is a root: then
    /// nothing has changed here.
    ///
    /// Context: both directories are locked exclusively. No other lock that an inode's destructor takes; no
    /// read section. May reclaim memory, and **sleep**.
    #[doc(alias = "d_move")]
    #[doc(alias = "d_exchange")]
    pub fn rename(
        &self,
        from: &DentryRef<I>,
        to_parent: &DentryRef<I>,
        to_name: &Name<'_>,
        exchange: bool,
    ) -> Result<(), Errno> {
        let cache = &self.inner;
        let name = cache.new_name(*to_name);
        let how = if exchange { How::Exchange } else { How::Rename };
        let displaced = {
            let mut renaming = cache.rename.lock();
            cache.move_to(&mut renaming, from, to_parent, name, how)
        }?;
        for dentry in &displaced {
            // A directory that was replaced was empty; what says so keeps it.
            if !dentry.is_hashed() && dentry.parent_ptr() == to_parent.as_ptr() {
                self.prune(dentry);
            }
        }
        drop(displaced);
        cache.hash.tend();
        cache.limbo.tend();
        Ok(())
    }
}

/// The locks of both directories of a move; `to` is `None` if they are the same one.
struct Parents<'a, I: DentryInode> {
    from: DentryGuard<'a, I>,
    to: Option<DentryGuard<'a, I>>,
}

impl<'a, I: DentryInode> Parents<'a, I> {
    /// Context: the rename lock is held.
    fn lock(from: &'a Dentry<I>, to: &'a Dentry<I>, rcu: &RcuReadGuard) -> Self {
        if ptr::eq(from, to) {
            return Self {
                from: from.lock(),
                to: None,
            };
        }
        if comes_first(from, to, rcu) {
            let from = from.lock();
            let to = Some(to.lock_nested());
            Self { from, to }
        } else {
            let to = Some(to.lock());
            let from = from.lock_nested();
            Self { from, to }
        }
    }

    fn to(&mut self) -> &mut DentryGuard<'a, I> {
        self.to.as_mut().unwrap_or(&mut self.from)
    }

    fn differ(&self) -> bool {
        self.to.is_some()
    }
}

/// Whether `above` is a directory on the way from the root to `dentry`, itself not included.
///
/// Context: the rename lock is held.
fn is_above<I: DentryInode>(above: &Dentry<I>, dentry: &Dentry<I>, rcu: &RcuReadGuard) -> bool {
    let mut above_it = iter::successors(dentry.parent_rcu(rcu), |at| at.parent_rcu(rcu));
    above_it.any(|at| ptr::eq(at, above))
}

/// Whether `a` is locked before `b`: it is above it, or at a lower address and not below it.
///
/// Context: no directory changes its place above another meanwhile.
pub(crate) fn comes_first<I: DentryInode>(
    a: &Dentry<I>,
    b: &Dentry<I>,
    rcu: &RcuReadGuard,
) -> bool {
    is_above(a, b, rcu)
        || (!is_above(b, a, rcu) && slab::place(a.as_ptr()) < slab::place(b.as_ptr()))
}

impl<I: DentryInode> Inner<I> {
    /// Moves a dentry. Returns what was displaced, to be dropped when no lock is held.
    pub(super) fn move_to(
        &self,
        renaming: &mut RankedMutexGuard<'_, ()>,
        dentry: &DentryRef<I>,
        to: &DentryRef<I>,
        name: NewName<'_>,
        how: How,
    ) -> Result<Vec<DentryRef<I>>, Errno> {
        let rcu = rcu::read_lock();
        let Some(from) = dentry.parent_rcu(&rcu) else {
            return Err(Errno::ELOOP);
        };
        if dentry.same(to) || is_above(dentry, to, &rcu) {
            return Err(Errno::ELOOP);
        }
        let mut displaced = Vec::new();
        let mut parents = Parents::lock(from, to, &rcu);
        let was_hashed = dentry.is_hashed();
        if !was_hashed && how != How::Splice {
            // The name that moved away may be cached a second time.
            displaced.extend(self.unhash_twin(&mut parents.from, dentry));
        }
        let target = self.find::<true>(to, &name.name, &rcu).map(|found| found.0);
        let target = target.filter(|target| !ptr::eq(*target, &**dentry));
        if target.is_some_and(|target| is_above(target, dentry, &rcu)) {
            return Err(Errno::ELOOP);
        }
        let _changing = self.changing_place(dentry);
        let _exchanging = target.and_then(|target| self.changing_place(target));
        let moving = self.rename_seq.write_ranked(renaming, Rank::DentryRename);
        match target {
            Some(target) if how == How::Exchange && was_hashed => {
                self.exchange(&mut parents, dentry, target);
            }
            _ => {
                if let Some(target) = target {
                    let mut guard = target.lock_nested();
                    displaced.push(guard.get());
                    unhash(&mut guard);
                }
                let hashed = was_hashed || (how == How::Splice && dentry.counted.charged);
                displaced.extend(self.put_below(&mut parents, dentry, name, hashed));
            }
        }
        drop(moving);
        Ok(displaced)
    }

    /// Unhashes the dentry that is found by the name of one that is not hashed, a one-off for instance.
    ///
    /// Context: the lock of its parent is held.
    pub(super) fn unhash_twin(
        &self,
        parent: &mut DentryGuard<'_, I>,
        dentry: &Dentry<I>,
    ) -> Option<DentryRef<I>> {
        let mut name = Vec::new();
        dentry.append_name(&mut name);
        let rcu = rcu::read_lock();
        let (twin, _) = self.find::<true>(parent.dentry(), &Name::new(&name), &rcu)?;
        let mut guard = twin.lock_nested();
        let twin = guard.get();
        unhash(&mut guard);
        Some(twin)
    }

    /// Gives a dentry its new name and parent; returns the reference of the old parent, if it is another.
    fn put_below(
        &self,
        parents: &mut Parents<'_, I>,
        dentry: &Dentry<I>,
        name: NewName<'_>,
        hashed: bool,
    ) -> Option<DentryRef<I>> {
        let to = parents.to().dentry().as_ptr();
        let hash = name.name.hash_in(slab::place(to));
        let mut guard = dentry.lock_nested();
        unhash(&mut guard);
        let writing = dentry.seq.write(&mut guard);
        let long = dentry.store_name(to, name);
        drop(writing);
        if hashed {
            self.hash_in(dentry, hash);
        }
        if let Some(long) = long {
            self.limbo.retire(DeferredFree::Name(long));
        }
        if !parents.differ() {
            return None;
        }
        parents.from.unlink(dentry);
        parents.to().link(dentry);
        // The child's reference of its parent: a new one here, the old one to be dropped.
        let _ = parents.to().get().into_raw();
        // SAFETY: the dentry held it, and holds the other now.
        Some(unsafe { DentryRef::from_raw(NonNull::from(parents.from.dentry())) })
    }

    /// Changes the names and places of two dentries that are hashed.
    fn exchange(&self, parents: &mut Parents<'_, I>, dentry: &Dentry<I>, target: &Dentry<I>) {
        let (here, there) = (dentry.link.hash(), target.link.hash());
        let mut guard = dentry.lock_nested();
        let mut target_guard = target.lock_nested();
        unhash(&mut guard);
        unhash(&mut target_guard);
        let writing = dentry.seq.write(&mut guard);
        let target_writing = target.seq.write(&mut target_guard);
        dentry.swap_names(target);
        drop(target_writing);
        drop(writing);
        self.hash_in(dentry, there);
        self.hash_in(target, here);
        if parents.differ() {
            parents.from.unlink(dentry);
            parents.to().unlink(target);
            parents.to().link(dentry);
            // Each takes over the other's reference of the parent.
            parents.from.link(target);
        }
    }
}
