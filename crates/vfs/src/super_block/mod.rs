//! A file system with its names in memory: walks, and the operations that change names.
//!
//! # Model
//!
//! ```text
//!  SuperBlock ──fs──▶ FileSystem: asked for what is not cached, and told of every change
//!      │
//!      └──dcache──▶ dentries ──▶ SlabArc<Inode>
//! ```
//!
//! All front doors of a file system go through one `SuperBlock`, so that its names are cached once.
//!
//! # Invariants
//!
//! 1. A change of names in a directory holds its lock exclusively, from before the call of the file system until
//!    the dentries are updated. An answer of the file system is entered into the cache with the lock held shared
//!    from before the question. So no answer overtakes a change of our own.
//! 2. A change of an inode's attributes through this holds the same lock of the inode exclusively, from before the
//!    permission check until the file system has made the change. So no one changes a file that has another owner
//!    by then.
//! 3. How long a dentry is believed counts from before the question whose answer it is.
//!
//! # Locking
//!
//! *Order*: `rename`, then the directories (ancestors first, else by address), then the file system's locks. Held
//! over its I/O.
//!
//! # Differences from Linux
//!
//! Names change behind the back of a local directory's cache. How long an answer is believed, [`Belief`] says.

mod answers;
mod ask;
mod caches;
mod change;
mod gone;
mod news;
mod observers;
mod prefix;
mod rcu_walk;
mod reference_walk;
mod removed;
mod shrink;
#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;
mod xattr;

use self::answers::Answers;
use self::caches::Caches;
pub use self::observers::Observer;
use self::observers::Observers;
pub(crate) use self::rcu_walk::{RcuAt, RcuMode};
pub(crate) use self::reference_walk::ReferenceMode;
use self::removed::{LOOK, Removed};
pub use self::shrink::InodeHolder;
use self::shrink::Shrinkable;
use crate::belief::Belief;
use crate::credentials::Credentials;
use crate::dcache::{DentryCache, DentryRef, Name};
use crate::filesystem::FileSystem;
use crate::generation::Generation;
use crate::inode::Inode;
use crate::limbo::Reaper;
use crate::types::{Attr, FileKind, OpContext, SetAttr};
use crate::walk::{Stop, WalkError};
use foliocache_mm::MetadataBound;
use foliocache_mm::slab::SlabArc;
use foliocache_mm::{Mm, Shrinker};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Buckets that the table of dentries begins with.
const BUCKETS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };

/// Walks that may meet a file that is gone from the store, for instance replaced by others, before
/// that is an error.
pub(crate) const MAX_STALE: u32 = 8;

/// A file system and its dentries.
#[doc(alias = "super_block")]
pub struct SuperBlock {
    root: DentryRef<Inode>,
    caches: Arc<Caches>,
    /// `None` in a model.
    mm: Option<Arc<Mm>>,
    permissions: Arc<Generation>,
    shrinkable: Arc<Shrinkable>,
    /// `None` if no thread could be started: then only callers free discarded objects.
    reaper: Option<Reaper>,
    /// Held by a thread that moves a name from one directory to another.
    rename: RankedMutex<{ Rank::Rename as u8 }, ()>,
    belief: Arc<Belief>,
}

/// A name with its dentry and inode.
#[derive(Clone)]
pub struct Named {
    /// The name.
    pub dentry: DentryRef<Inode>,
    /// The inode behind it.
    pub inode: SlabArc<Inode>,
}

impl Named {
    /// # Errors
    /// `ENOENT` for a negative dentry.
    pub fn new(dentry: DentryRef<Inode>) -> Result<Named, Errno> {
        let inode = dentry.inode().ok_or(Errno::ENOENT)?;
        Ok(Named { dentry, inode })
    }
}

impl SuperBlock {
    /// Caches the names of a file system. Their memory is charged to the bound of `mm`, and given up while memory
    /// is short, see [`Shrinker`].
    pub fn new(fs: Arc<dyn FileSystem>, mm: &Arc<Mm>) -> SuperBlock {
        let mut new = Self::of(fs, mm.clone());
        new.mm = Some(mm.clone());
        let shrinker: Weak<dyn Shrinker> = Arc::downgrade(&new.shrinkable) as _;
        mm.add_shrinker(shrinker);
        let reaped = Arc::downgrade(&new.shrinkable);
        let reap = move || reaped.upgrade().map_or(0, |shrinkable| shrinkable.reap());
        let period = new.has_news().then_some(LOOK);
        new.reaper = Reaper::start(mm.panics(), period, reap).ok();
        if let Some(reaper) = &new.reaper {
            new.caches.dcache.wake_when_retired(reaper.clone());
            new.caches.removed.wake_when_added(reaper.clone());
        }
        new
    }

    fn of(fs: Arc<dyn FileSystem>, bound: Arc<dyn MetadataBound>) -> SuperBlock {
        let dcache = DentryCache::new(BUCKETS, bound);
        let root = dcache.make_root(fs.root());
        let belief = fs.belief();
        let permissions = fs.permissions().clone();
        let caches = Arc::new(Caches {
            dcache,
            fs,
            observers: Observers::default(),
            removed: Removed::default(),
            answers: Answers::default(),
        });
        let listener = Arc::downgrade(&caches);
        belief.listen(listener);
        SuperBlock {
            root,
            shrinkable: Arc::new(Shrinkable::new(&caches)),
            caches,
            mm: None,
            permissions,
            reaper: None,
            rename: RankedMutex::new(()),
            belief,
        }
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.caches.fs
    }

    /// The directory at the top.
    pub fn root(&self) -> &DentryRef<Inode> {
        &self.root
    }

    /// Drops a reference of an inode; its file is gone from the store when this returns if it has no name and that
    /// was the last reference.
    ///
    /// Context: no lock; may block on I/O.
    pub fn put(&self, inode: impl Into<Option<SlabArc<Inode>>>) {
        if let Some(inode) = inode.into() {
            Inode::put(inode);
        }
        if let Some(reaper) = &self.reaper {
            reaper.wake();
        }
    }

    /// The cache whose bound names are charged to.
    pub fn mm(&self) -> &Arc<Mm> {
        self.mm.as_ref().expect("names outside a model have one")
    }

    /// Adds a holder of inodes, which is asked for them when memory is short, for as long as it
    /// lives.
    pub fn add_holder(&self, holder: Weak<dyn InodeHolder>) {
        self.shrinkable.add_holder(holder);
    }

    /// Gives up names and inodes that the caller held, unless they have other holders. Their memory is free when
    /// this returns.
    ///
    /// Context: no lock; waits for RCU readers.
    pub fn give_up(&self, gone: Vec<Named>) {
        if gone.is_empty() {
            return;
        }
        let mut inodes = Vec::with_capacity(gone.len());
        for Named { dentry, inode } in gone {
            self.caches.dcache.evict(dentry);
            inodes.push(inode);
        }
        // Dead dentries have their inodes until then.
        self.caches.dcache.wait_for_limbo();
        self.caches.fs.evict_inodes(inodes);
    }

    pub(crate) fn dcache(&self) -> &DentryCache<Inode> {
        &self.caches.dcache
    }

    /// Of the permissions of directories.
    #[inline(always)]
    pub(crate) fn permissions(&self) -> &Generation {
        &self.permissions
    }

    /// The present, see [`Belief::now`].
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.belief.now()
    }

    /// Runs `act` on the result of a look-up, again if it has gone from the store since.
    pub(crate) fn unless_stale<R>(
        &self,
        mut act: impl FnMut() -> Result<(DentryRef<Inode>, Result<R, Errno>), WalkError>,
    ) -> Result<R, WalkError> {
        for _ in 0..MAX_STALE {
            let (dentry, done) = act()?;
            match done {
                // Another file may have the name now.
                Err(Errno::ESTALE) => self.caches.invalidate(&dentry),
                done => return Ok(done?),
            }
        }
        Err(Errno::ESTALE.into())
    }

    /// Runs an operation on `dentries`. If it fails because one of them is gone from the store, their names are asked
    /// for again. They keep their places, since not all of them need be gone.
    pub(crate) fn forgetting_stale<R>(
        dentries: &[&DentryRef<Inode>],
        act: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let done = act();
        if matches!(done, Err(Errno::ESTALE)) {
            dentries.iter().for_each(|dentry| dentry.believe(0));
        }
        done
    }

    /// The file with `name` in `dir`. Always asks the file system: for a front door whose caller revalidates its
    /// own cache.
    ///
    /// # Errors
    /// Those of [`FileSystem::lookup`].
    pub fn lookup_name(&self, dir: &DentryRef<Inode>, name: &OsStr) -> Result<Named, Errno> {
        self.lookup_attributes(dir, name).map(|(named, _)| named)
    }

    /// As [`SuperBlock::lookup_name`], and whether the attributes in memory are those of that
    /// answer.
    ///
    /// # Errors
    /// As [`SuperBlock::lookup_name`].
    pub fn lookup_attributes(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
    ) -> Result<(Named, bool), Errno> {
        let inode = Self::directory(dir)?;
        let (found, told) = match name.as_bytes() {
            b"." => (dir.clone(), false),
            b".." => (dir.parent().unwrap_or_else(|| dir.clone()), false),
            bytes => {
                let _names = inode.names().read();
                self.ask(dir, &inode, &Name::new(bytes))?
            }
        };
        Ok((Named::new(found)?, told))
    }

    /// The cached answer about a name in a directory, while it is believed.
    pub(crate) fn cached_child(
        &self,
        dir: &Named,
        name: &Name<'_>,
        now: u64,
    ) -> Option<DentryRef<Inode>> {
        let dentry = self.caches.dcache.lookup(&dir.dentry, name)?;
        (now < dentry.believed_until()).then_some(dentry)
    }

    /// The file with a name in a directory, from the cache or else from the file system.
    pub(crate) fn lookup_child(
        &self,
        dir: &Named,
        name: &Name<'_>,
        now: u64,
    ) -> Result<Named, Stop> {
        let cached = || self.cached_child(dir, name, now);
        if let Some(dentry) = cached() {
            return Ok(Named::new(dentry)?);
        }
        let _names = dir.inode.names().read();
        // Another thread may have asked while this one waited.
        if let Some(dentry) = cached() {
            return Ok(Named::new(dentry)?);
        }
        let asked = self.ask(&dir.dentry, &dir.inode, name);
        let (dentry, _) = self.or_walk_again(&dir.dentry, asked)?;
        Ok(Named::new(dentry)?)
    }

    /// The result of an operation on a file that a walk came to. If the file is gone from the store, its dentry goes, and the
    /// walk begins again.
    pub(crate) fn or_walk_again<R>(
        &self,
        dentry: &DentryRef<Inode>,
        done: Result<R, Errno>,
    ) -> Result<R, Stop> {
        match done {
            Err(Errno::ESTALE) => {
                self.caches.invalidate(dentry);
                Err(Stop::Bail)
            }
            done => Ok(done?),
        }
    }

    /// Changes attributes, see [`FileSystem::setattr`].
    ///
    /// # Errors
    /// Those of [`FileSystem::setattr`]; `EPERM` and `EACCES` if `credentials` may not.
    #[doc(alias = "notify_change")]
    pub fn setattr(
        &self,
        ctx: &OpContext,
        inode: &SlabArc<Inode>,
        set: &SetAttr,
        credentials: Option<&Credentials>,
    ) -> Result<Attr, Errno> {
        // From the check on, which reads attributes that other threads change.
        let attributes = inode.names().write();
        let set = match credentials {
            Some(credentials) => {
                self.renew(inode)?;
                credentials.check_set(inode, set)?
            }
            None => *set,
        };
        let done = self.caches.fs.setattr(ctx, inode, &set);
        drop(attributes);
        self.tell_of_writer(inode);
        done
    }

    /// The inode of a directory.
    pub(crate) fn directory(dir: &DentryRef<Inode>) -> Result<SlabArc<Inode>, Errno> {
        let inode = dir.inode().ok_or(Errno::ENOENT)?;
        match inode.kind() {
            FileKind::Directory => Ok(inode),
            _ => Err(Errno::ENOTDIR),
        }
    }
}

impl Drop for SuperBlock {
    fn drop(&mut self) {
        self.shrinkable.end();
        self.caches.dcache.close();
        if let Some(reaper) = &self.reaper {
            reaper.stop();
        }
    }
}
