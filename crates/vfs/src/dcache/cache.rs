//! [`DentryCache`]: its parts, its roots, and looking names up.
//!
//! # Model
//!
//! | form | finds | costs |
//! |---|---|---|
//! | [`DentryCache::lookup_rcu`] | what is there and is not being changed | reads; writes nothing that others write |
//! | [`DentryCache::lookup`] | what is there, exactly | the same, and a reference |
//!
//! After a miss under RCU the caller has to use the other form. That one reads the count of renames (`rename_seq`). If a
//! name moved while it was looked for, the look-up may have missed it, and starts again.
//!
//! # Invariants
//!
//! 1. Below one directory a name is hashed once at most, since names are put into the hash and taken out
//!    under the directory's lock.
//! 2. No dentry moves without `rename`, and `rename_seq` grows with each move.
//!
//! # Locking
//!
//! *Protects*: `rename` where dentries are: moves, and which dentry a directory has; `walks` keeps threads apart that
//! go through a whole subtree. *Order*: `walks`, `rename`, dentries, hash, limbo (a leaf). *May block*:
//! look-ups never.
//!
//! # Memory ordering
//!
//! That of the hash, the seqcounts and RCU. `closing` is a hint until [`DentryCache::close`] looks at every
//! dentry, under locks.
//!
//! # Differences from Linux
//!
//! A cache has its own table, so two caches know nothing of each other. One rename lock serves all file
//! systems of a cache.

use super::dentry::{Counts, Dentry, DentryInode, Inner};
use super::name::Name;
use super::reference::DentryRef;
use crate::generation::Generation;
use crate::hash::RcuHash;
use crate::limbo::{Limbo, Reaper};
use foliocache_mm::MetadataBound;
use foliocache_mm::slab::{self, Slab};
use foliocache_sync::Arc;
use foliocache_sync::atomic::AtomicBool;
use foliocache_sync::rank::{Rank, RankedMutex, might_lock};
use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_sync::seqcount::SeqCount;
use std::ptr;

/// Bytes of a dentry, with its part of the header of its page: pages are charged.
pub const DENTRY_BYTES: u64 = 196;

/// A cache of names. See the module's header, and that of [`dcache`](super).
pub struct DentryCache<I: DentryInode> {
    pub(super) inner: Arc<Inner<I>>,
}

impl<I: DentryInode> DentryCache<I> {
    /// A cache that charges its memory to `bound`, with a table of at least so many buckets to begin with.
    pub fn new(buckets: usize, bound: Arc<dyn MetadataBound>) -> Self {
        Self {
            inner: Arc::new(Inner {
                hash: RcuHash::new(buckets, Arc::clone(&bound)),
                slab: Slab::new(Arc::clone(&bound)),
                limbo: Limbo::new(),
                rename: RankedMutex::new(()),
                rename_seq: SeqCount::new(),
                walks: RankedMutex::new(()),
                places: Arc::default(),
                bound,
                counts: Counts::default(),
                closing: AtomicBool::new(false),
            }),
        }
    }

    /// Looks a name up without taking a reference, and writes nothing that others write. Returns the dentry,
    /// which may be negative, with the number to hand to [`Dentry::read_retry`] once it has been made use
    /// of. `None` if there is none, or if it is being changed: then [`lookup`](Self::lookup) tells.
    ///
    /// Of `parent` only the address counts; that it still was a directory of that name is the caller's to
    /// check, by its own number.
    ///
    /// Context: in the read section `rcu`.
    #[doc(alias = "__d_lookup_rcu")]
    #[inline]
    pub fn lookup_rcu<'g>(
        &'g self,
        parent: &Dentry<I>,
        name: &Name<'_>,
        rcu: &'g RcuReadGuard,
    ) -> Option<(&'g Dentry<I>, u32)> {
        let (dentry, seq) = self.inner.find::<false>(parent, name, rcu)?;
        dentry.mark_referenced();
        Some((dentry, seq))
    }

    /// Looks a name up and takes a reference. `None` means that it is not cached; a name that is known not to
    /// exist has a negative dentry.
    ///
    /// Context: no lock of rank `DentryRename` or inner; does not sleep.
    #[doc(alias = "d_lookup")]
    pub fn lookup(&self, parent: &DentryRef<I>, name: &Name<'_>) -> Option<DentryRef<I>> {
        let cache = &self.inner;
        might_lock(Rank::DentryRename);
        loop {
            let renames = cache.rename_seq.read_begin();
            let rcu = rcu::read_lock();
            if let Some((dentry, seq)) = cache.find::<true>(parent, name, &rcu) {
                if let Some(found) = dentry.try_get(seq, &rcu) {
                    dentry.mark_referenced();
                    return Some(found);
                }
                // Changed since, or dead; what is dead is no longer hashed, so the next look tells.
            } else if !cache.rename_seq.read_retry(renames) {
                return None;
            }
        }
    }

    /// Changes with everything that takes a directory away from where it was found, or its dentry from
    /// memory: moves, removals, evictions. Begun before that can be seen.
    ///
    /// So as long as it does not change a dentry that was found to be a directory may be gone to again in another
    /// read section, by its bare address. A caller that remembers a number keeps the generation, too: that of another
    /// cache counts from the beginning, and may come to lie where this one was.
    pub fn places(&self) -> &Arc<Generation> {
        &self.inner.places
    }

    /// Bytes charged for pages of dentries, and for the table. Cheap.
    pub fn bytes(&self) -> u64 {
        self.inner.slab.bytes() + self.inner.hash.bytes()
    }

    /// Dentries that there is charged room for.
    pub(crate) fn spare(&self) -> u64 {
        self.inner.slab.spare()
    }

    /// Frees everything without readers that was given up, without waiting. Returns how many objects still wait.
    ///
    /// Changes do this when there is a batch, and [`shrink`](Self::shrink) does it; call it where the inodes of
    /// removed names should go soon.
    ///
    /// Context: no lock that an inode's destructor takes, and no read section.
    pub fn reap(&self) -> usize {
        self.inner.limbo.advance()
    }

    /// Has `reaper`, which calls [`reap`](Self::reap), woken when something is given up and nothing waited before.
    pub(crate) fn wake_when_retired(&self, reaper: Reaper) {
        self.inner.limbo.wake_when_retired(reaper);
    }

    /// Waits for readers, then frees what was given up before the call, but for what others have begun to free.
    ///
    /// Context: as [`reap`](Self::reap), and **sleeps**.
    pub fn flush_limbo(&self) {
        self.inner.limbo.flush();
    }

    /// Waits until everything that was given up before the call is freed, also by others.
    ///
    /// Context: as [`flush_limbo`](Self::flush_limbo).
    pub fn wait_for_limbo(&self) {
        self.inner.limbo.barrier();
    }
}

impl<I: DentryInode> Inner<I> {
    /// The dentry of this name. `WAIT`: see [`Dentry::matches`].
    #[inline(always)]
    pub(super) fn find<'g, const WAIT: bool>(
        &'g self,
        parent: &Dentry<I>,
        name: &Name<'_>,
        rcu: &'g RcuReadGuard,
    ) -> Option<(&'g Dentry<I>, u32)> {
        let mut at = 0;
        let parent = ptr::from_ref(parent);
        let matches = |dentry: &Dentry<I>| match dentry.matches::<WAIT>(parent, name) {
            Some(seq) => {
                at = seq;
                true
            }
            None => false,
        };
        let dentry = self
            .hash
            .find(name.hash_in(slab::place(parent)), matches, rcu)?;
        Some((dentry, at))
    }
}
