//! A file system with its names in memory: walks, and the operations that change names.
//!
//! # Model
//!
//! ```text
//!  SuperBlock ──fs──▶ FileSystem: asked for what is not cached, and told of every change
//!      │
//!      └──dcache──▶ dentries ──▶ Arc<Inode>
//! ```
//!
//! All front doors of a file system go through one `SuperBlock`, so that its names are cached once.
//!
//! # Invariants
//!
//! 1. Whoever changes the names of a directory holds its lock exclusively, from before the file system is
//!    told until the dentries say the same; whoever puts an answer of the file system into the cache holds
//!    it shared from before the question. So no answer overtakes a change of our own.
//! 2. A dentry's stamp is from before the question whose answer it is.
//!
//! # Locking
//!
//! *Order*: `rename`, then the directories (the one above first, else by address), then what the file
//! system takes. Held over its I/O.
//!
//! # Differences from Linux
//!
//! Names change behind the back of a local directory's cache. How long an answer is believed is the file
//! system's to say ([`FileSystem::validity`]), and that is all: nobody watches the directories.

use crate::credentials::Credentials;
use crate::dcache::{DENTRY_BYTES, Dentry, DentryCache, DentryRef, DentryStats, Name};
use crate::filesystem::{FileSystem, Validity};
use crate::inode::{Inode, inode_bytes};
use crate::open_file::OpenFile;
use crate::types::{Attr, Device, FileKind, OpContext, OpenFlags, RenameMode};
use crate::walk::{RcuMode, ReferenceMode, Stop, WalkError, WalkFlags, Walked, walk};
use foliocache_mm::{Mm, Shrinker};
use foliocache_sync::rank::{Rank, RankedMutex, RankedRwLock};
use foliocache_sync::{Arc, Weak, rcu};
use foliocache_sys::Errno;
use foliocache_sys::clock::coarse_monotonic_ms;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;

/// Buckets that the table of dentries begins with.
const BUCKETS: usize = 256;

/// Walks that come upon directories that are gone from the store, before that is an error.
const MAX_STALE: u32 = 3;

/// A file system and its dentries.
#[doc(alias = "super_block")]
pub struct SuperBlock {
    root: DentryRef<Inode>,
    caches: Arc<Caches>,
    shrinkable: Arc<Shrinkable>,
    /// Held by whoever moves a name from one directory to another.
    rename: RankedMutex<()>,
    /// How long an answer is believed, in milliseconds: that there is such a name, and that there is
    /// not; `u64::MAX` for ever.
    validity: [u64; 2],
}

/// What takes memory.
struct Caches {
    dcache: DentryCache<Inode>,
    fs: Arc<dyn FileSystem>,
}

/// What memory reclaim knows of a `SuperBlock`; nothing once that is dropped.
///
/// Reclaim uses the caches under the lock and takes no reference out of it, so that it never is the last to
/// let go of a file system, whose end may need memory.
struct Shrinkable {
    caches: RankedRwLock<Option<Arc<Caches>>>,
}

impl Shrinker for Shrinkable {
    fn bytes(&self) -> u64 {
        let Some(caches) = self.caches.try_read() else {
            return 0;
        };
        let caches = caches.as_ref();
        caches.map_or(0, |caches| caches.dcache.bytes() + caches.fs.inode_bytes())
    }

    fn shrink(&self, bytes: u64) {
        if let Some(caches) = self.caches.try_read()
            && let Some(caches) = caches.as_ref()
        {
            // A dentry keeps its inode: they go together.
            let each = DENTRY_BYTES + inode_bytes(FileKind::Regular);
            let nr = usize::try_from(bytes.div_ceil(each)).unwrap_or(usize::MAX);
            caches.dcache.shrink(nr);
            caches.fs.shrink_inodes(nr);
        }
    }
}

/// A name with what it leads to.
#[derive(Clone)]
pub struct Named {
    /// The name.
    pub dentry: DentryRef<Inode>,
    /// What it leads to.
    pub inode: Arc<Inode>,
}

impl Named {
    /// # Errors
    /// `ENOENT` for a negative dentry.
    pub fn new(dentry: DentryRef<Inode>) -> Result<Named, Errno> {
        let inode = dentry.inode().ok_or(Errno::ENOENT)?;
        Ok(Named { dentry, inode })
    }
}

/// Where a path leads.
pub struct Found {
    /// The directory that holds the last name; the place itself if the path ends with `.` or `..`.
    pub parent: DentryRef<Inode>,
    /// The last name; `None` if the path ends with `.` or `..`.
    pub name: Option<OsString>,
    /// What the last name leads to; `None` if nothing has that name.
    pub dentry: Option<DentryRef<Inode>>,
    /// Whether the path ends with a slash, so that only a directory will do.
    pub wants_directory: bool,
}

impl Found {
    /// What the last name leads to.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn inode(&self) -> Result<Arc<Inode>, Errno> {
        self.dentry
            .as_ref()
            .and_then(|dentry| dentry.inode())
            .ok_or(Errno::ENOENT)
    }
}

impl SuperBlock {
    /// A file system whose names are cached from now on. What they take is charged to the bound of `mm`, and
    /// given up while memory is short, see [`Shrinker`].
    pub fn new(fs: Arc<dyn FileSystem>, mm: &Arc<Mm>) -> SuperBlock {
        let dcache = DentryCache::new(BUCKETS, mm.clone());
        let root = dcache.make_root(fs.root());
        let Validity { present, absent } = fs.validity();
        let validity =
            [present, absent].map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let caches = Arc::new(Caches { dcache, fs });
        let shrinkable = Arc::new(Shrinkable {
            caches: RankedRwLock::new(Rank::Shrinker, Some(caches.clone())),
        });
        let shrinker: Weak<dyn Shrinker> = Arc::downgrade(&shrinkable) as _;
        mm.add_shrinker(shrinker);
        SuperBlock {
            root,
            caches,
            shrinkable,
            rename: RankedMutex::new(Rank::Rename, ()),
            validity,
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

    /// Frees what was given up, by whoever dropped the last reference of it a moment ago, as far as nobody
    /// reads it any more: a file that has no name leaves the store with its inode.
    pub fn reap(&self) {
        self.caches.dcache.reap();
        self.caches.fs.reap();
    }

    /// What the cache of names holds and did.
    pub fn dentry_stats(&self) -> DentryStats {
        self.caches.dcache.stats()
    }

    pub(crate) fn dcache(&self) -> &DentryCache<Inode> {
        &self.caches.dcache
    }

    /// Whether a dentry, found with an inode or without, holds at `now`.
    #[inline(always)]
    pub(crate) fn believes(&self, dentry: &Dentry<Inode>, negative: bool, now: u64) -> bool {
        let after = self.validity[usize::from(negative)];
        after == u64::MAX || now < dentry.stamp().saturating_add(after)
    }

    /// The present, where anything depends on it.
    #[inline]
    fn now(&self) -> u64 {
        match self.validity {
            [u64::MAX, u64::MAX] => 0,
            _ => coarse_monotonic_ms(),
        }
    }

    /// The attributes of what `path` leads to, from `start`.
    ///
    /// Where all of it is cached no lock is taken, no reference, and nothing is written that others
    /// write; else it may block on I/O.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`, those of the file system.
    pub fn stat(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<Attr, WalkError> {
        let now = self.now();
        match self.stat_rcu(start, path, flags, credentials, now) {
            Err(Stop::Bail) => self.stat_slow_path(start, path, flags, credentials),
            Err(Stop::Error(error)) => Err(error),
            Ok(attr) => Ok(attr),
        }
    }

    #[inline]
    fn stat_rcu(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
        now: u64,
    ) -> Result<Attr, Stop> {
        let rcu = rcu::read_lock();
        let mut mode = RcuMode {
            sb: self,
            credentials,
            now,
            rcu: &rcu,
        };
        let start = mode.at(start).ok_or(Stop::Bail)?;
        let end = walk(&mut mode, start, path.as_bytes(), flags, false)?;
        let end = end.at.ok_or(Stop::Bail)?;
        let attr = end.inode.ops().cached_attr(end.inode, now);
        match attr {
            Some(attr) if !end.dentry.read_retry(end.seq) => Ok(attr),
            _ => Err(Stop::Bail),
        }
    }

    #[cold]
    fn stat_slow_path(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<Attr, WalkError> {
        for _ in 0..MAX_STALE {
            let end = self.walk_with_references(start, path, flags, credentials, false)?;
            let Some(end) = end.at else { break };
            match self.caches.fs.getattr(&end.inode) {
                // Gone from the store since it was looked up: what has the name now?
                Err(Errno::ESTALE) => self.caches.dcache.invalidate(&end.dentry),
                done => return Ok(done?),
            }
        }
        Err(Errno::ESTALE.into())
    }

    /// What `path` leads to, from `start`.
    ///
    /// # Errors
    /// As [`SuperBlock::stat`].
    pub fn lookup(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, WalkError> {
        match self.lookup_rcu(start, path, flags, credentials) {
            Err(Stop::Bail) => {}
            Err(Stop::Error(error)) => return Err(error),
            Ok(dentry) => return Ok(dentry),
        }
        let end = self.walk_with_references(start, path, flags, credentials, false)?;
        Ok(end.at.ok_or(Errno::ENOENT)?.dentry)
    }

    fn lookup_rcu(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Stop> {
        let rcu = rcu::read_lock();
        let mut mode = RcuMode {
            sb: self,
            credentials,
            now: self.now(),
            rcu: &rcu,
        };
        let start = mode.at(start).ok_or(Stop::Bail)?;
        let end = walk(&mut mode, start, path.as_bytes(), flags, false)?;
        let end = end.at.ok_or(Stop::Bail)?;
        end.dentry.try_get(end.seq, &rcu).ok_or(Stop::Bail)
    }

    /// Where `path` leads, from `start`; the last name need not be there.
    ///
    /// # Errors
    /// As [`SuperBlock::stat`], apart from `ENOENT` for the last name.
    #[doc(alias = "LOOKUP_PARENT")]
    pub fn find(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
    ) -> Result<Found, WalkError> {
        let walked = self.walk_with_references(start, path, flags, credentials, true)?;
        let dentry = walked.at.map(|at| at.dentry);
        let (parent, name) = match (walked.parent, &dentry) {
            (Some(parent), _) => (parent.dentry, Some(OsString::from_vec(walked.name))),
            (None, Some(dentry)) => (dentry.clone(), None),
            (None, None) => return Err(Errno::ENOENT.into()),
        };
        Ok(Found {
            parent,
            name,
            dentry,
            wants_directory: walked.wants_directory,
        })
    }

    fn walk_with_references(
        &self,
        start: &DentryRef<Inode>,
        path: &OsStr,
        flags: WalkFlags,
        credentials: Option<&Credentials>,
        keep: bool,
    ) -> Result<Walked<Named>, WalkError> {
        for _ in 0..MAX_STALE {
            let mut mode = ReferenceMode::new(self, credentials, self.now());
            let start = Named::new(start.clone())?;
            match walk(&mut mode, start, path.as_bytes(), flags, keep) {
                Ok(walked) => return Ok(walked),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Bail) => {}
            }
        }
        Err(Errno::ESTALE.into())
    }

    /// What `name` in `dir` leads to. Always asks the file system: for a front door whose caller has a cache
    /// of its own and comes to renew it.
    ///
    /// # Errors
    /// Those of [`FileSystem::lookup`].
    pub fn lookup_name(&self, dir: &DentryRef<Inode>, name: &OsStr) -> Result<Named, Errno> {
        let inode = Self::directory(dir)?;
        let found = match name.as_bytes() {
            b"." => dir.clone(),
            b".." => dir.parent().unwrap_or_else(|| dir.clone()),
            bytes => {
                let _names = inode.names().read();
                self.ask(
                    &Named {
                        dentry: dir.clone(),
                        inode: inode.clone(),
                    },
                    &Name::new(bytes),
                )?
            }
        };
        Named::new(found)
    }

    /// What a name in a directory leads to, by the cache or else by the file system.
    pub(crate) fn lookup_child(
        &self,
        dir: &Named,
        name: &Name<'_>,
        now: u64,
    ) -> Result<Named, Stop> {
        let cached = || {
            let dentry = self.caches.dcache.lookup(&dir.dentry, name)?;
            let believed = self.believes(&dentry, dentry.is_negative(), now);
            believed.then_some(dentry)
        };
        if let Some(dentry) = cached() {
            return Ok(Named::new(dentry)?);
        }
        let _names = dir.inode.names().read();
        // Somebody else may have asked while we waited.
        if let Some(dentry) = cached() {
            return Ok(Named::new(dentry)?);
        }
        match self.ask(dir, name) {
            Ok(dentry) => Ok(Named::new(dentry)?),
            // The directory itself is not where it was: it is looked up anew.
            Err(Errno::ESTALE) => {
                self.caches.dcache.invalidate(&dir.dentry);
                Err(Stop::Bail)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the file system for a name in a directory and enters what it says, which may be that there is
    /// none.
    ///
    /// Context: the directory's names locked, shared at least.
    fn ask(&self, dir: &Named, name: &Name<'_>) -> Result<DentryRef<Inode>, Errno> {
        let asked = self.now();
        let name_str = OsStr::from_bytes(name.bytes());
        let inode = match self.caches.fs.lookup(&dir.inode, name_str) {
            Ok(inode) => Some(inode),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        self.enter(&dir.dentry, name, inode, asked)
    }

    /// Puts an answer of the file system, asked for at `asked`, into the cache.
    ///
    /// Context: the directory's names locked.
    fn enter(
        &self,
        dir: &DentryRef<Inode>,
        name: &Name<'_>,
        inode: Option<Arc<Inode>>,
        asked: u64,
    ) -> Result<DentryRef<Inode>, Errno> {
        // Something in the store leads back to a directory above: a bind mount, say.
        let dentry = self
            .caches
            .dcache
            .add(dir, name, inode)
            .map_err(|_| Errno::ELOOP)?;
        dentry.refresh(asked);
        Ok(dentry)
    }

    /// The inode of a directory.
    fn directory(dir: &DentryRef<Inode>) -> Result<Arc<Inode>, Errno> {
        let inode = dir.inode().ok_or(Errno::ENOENT)?;
        match inode.kind() {
            FileKind::Directory => Ok(inode),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Runs a change of the names in `dir` by which `name` comes to lead to an inode.
    fn make<R>(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
        make: impl FnOnce(&Arc<Inode>) -> Result<(R, Arc<Inode>), Errno>,
    ) -> Result<(R, DentryRef<Inode>), Errno> {
        let inode = Self::directory(dir)?;
        let _names = inode.names().write();
        if let Some(credentials) = credentials {
            credentials.check_create(&inode)?;
        }
        let asked = self.now();
        let (result, made) = make(&inode)?;
        inode.attributes().doubt();
        let dentry = self.enter(dir, &Name::new(name.as_bytes()), Some(made), asked)?;
        Ok((result, dentry))
    }

    /// Makes a regular file and opens it, see [`FileSystem::create`].
    ///
    /// # Errors
    /// Those of [`FileSystem::create`]; `EACCES` if `credentials` may not make names in `dir`.
    #[expect(clippy::too_many_arguments, reason = "as the file system's own")]
    pub fn create(
        &self,
        ctx: &OpContext,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
        exclusive: bool,
        credentials: Option<&Credentials>,
    ) -> Result<(OpenFile, DentryRef<Inode>), Errno> {
        self.make(dir, name, credentials, |inode| {
            let file = self
                .caches
                .fs
                .create(ctx, inode, name, mode, flags, exclusive)?;
            let made = file.inode().clone();
            Ok((file, made))
        })
    }

    /// Makes a node, see [`FileSystem::mknod`].
    ///
    /// # Errors
    /// Those of [`FileSystem::mknod`]; `EACCES` as [`SuperBlock::create`].
    #[expect(clippy::too_many_arguments, reason = "as the file system's own")]
    pub fn mknod(
        &self,
        ctx: &OpContext,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        kind: FileKind,
        mode: u32,
        rdev: Device,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Errno> {
        let made = self.make(dir, name, credentials, |inode| {
            Ok((
                (),
                self.caches.fs.mknod(ctx, inode, name, kind, mode, rdev)?,
            ))
        })?;
        Ok(made.1)
    }

    /// Makes a directory, see [`FileSystem::mkdir`].
    ///
    /// # Errors
    /// Those of [`FileSystem::mkdir`]; `EACCES` as [`SuperBlock::create`].
    pub fn mkdir(
        &self,
        ctx: &OpContext,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        mode: u32,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Errno> {
        let made = self.make(dir, name, credentials, |inode| {
            Ok(((), self.caches.fs.mkdir(ctx, inode, name, mode)?))
        })?;
        Ok(made.1)
    }

    /// Makes a symbolic link, see [`FileSystem::symlink`].
    ///
    /// # Errors
    /// Those of [`FileSystem::symlink`]; `EACCES` as [`SuperBlock::create`].
    pub fn symlink(
        &self,
        ctx: &OpContext,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        target: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Errno> {
        let made = self.make(dir, name, credentials, |inode| {
            Ok(((), self.caches.fs.symlink(ctx, inode, name, target)?))
        })?;
        Ok(made.1)
    }

    /// Gives `inode` another name, see [`FileSystem::link`].
    ///
    /// # Errors
    /// Those of [`FileSystem::link`]; `EACCES` as [`SuperBlock::create`].
    pub fn link(
        &self,
        inode: &Arc<Inode>,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Errno> {
        let made = self.make(dir, name, credentials, |dir| {
            self.caches.fs.link(inode, dir, name)?;
            Ok(((), Arc::clone(inode)))
        })?;
        Ok(made.1)
    }

    /// Takes a name away from what is no directory, see [`FileSystem::unlink`].
    ///
    /// # Errors
    /// Those of [`FileSystem::unlink`]; `EACCES` and `EPERM` if `credentials` may not.
    pub fn unlink(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        self.remove(dir, name, credentials, |inode| {
            self.caches.fs.unlink(inode, name)
        })
    }

    /// Takes an empty directory away, see [`FileSystem::rmdir`].
    ///
    /// # Errors
    /// Those of [`FileSystem::rmdir`]; `EACCES` and `EPERM` if `credentials` may not.
    pub fn rmdir(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        self.remove(dir, name, credentials, |inode| {
            self.caches.fs.rmdir(inode, name)
        })
    }

    fn remove(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
        remove: impl FnOnce(&Arc<Inode>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let inode = Self::directory(dir)?;
        let _names = inode.names().write();
        self.check_delete(&inode, name, credentials)?;
        let asked = self.now();
        let removed = remove(&inode);
        inode.attributes().doubt();
        if let Some(dentry) = self.caches.dcache.lookup(dir, &Name::new(name.as_bytes())) {
            match removed {
                Ok(()) => {
                    dentry.refresh(asked);
                    self.caches.dcache.delete(&dentry);
                }
                // Somebody else was faster, outside.
                Err(Errno::ENOENT | Errno::ESTALE) => self.caches.dcache.invalidate(&dentry),
                Err(_) => {}
            }
        }
        removed
    }

    /// Whether `credentials` may take `name` away from a directory. Context: its names locked.
    fn check_delete(
        &self,
        dir: &Arc<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        match credentials {
            None => Ok(()),
            Some(credentials) => {
                credentials.check_create(dir)?;
                credentials.check_delete(dir, &*self.caches.fs.lookup(dir, name)?)
            }
        }
    }

    /// Moves a name, see [`FileSystem::rename`].
    ///
    /// # Errors
    /// Those of [`FileSystem::rename`]; `EACCES` and `EPERM` if `credentials` may not.
    pub fn rename(
        &self,
        from_dir: &DentryRef<Inode>,
        from: &OsStr,
        to_dir: &DentryRef<Inode>,
        to: &OsStr,
        mode: RenameMode,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        let (from_inode, to_inode) = (Self::directory(from_dir)?, Self::directory(to_dir)?);
        let one = Arc::ptr_eq(&from_inode, &to_inode);
        // With it no directory changes its place above another.
        let _rename = (!one).then(|| self.rename.lock());
        let (first, second) = match one || Self::comes_first(from_dir, to_dir) {
            true => (&from_inode, &to_inode),
            false => (&to_inode, &from_inode),
        };
        let _first = first.names().write();
        let _second = (!one).then(|| second.names().write_nested());
        self.check_delete(&from_inode, from, credentials)?;
        match self.check_delete(&to_inode, to, credentials) {
            Err(Errno::ENOENT) if mode != RenameMode::Exchange => {}
            checked => checked?,
        }
        let asked = self.now();
        let renamed = self
            .caches
            .fs
            .rename(&from_inode, from, &to_inode, to, mode);
        from_inode.attributes().doubt();
        to_inode.attributes().doubt();
        let (from, to) = (Name::new(from.as_bytes()), Name::new(to.as_bytes()));
        let source = self.caches.dcache.lookup(from_dir, &from);
        if renamed.is_ok() && one && from == to {
            return Ok(());
        }
        let moved = source.filter(|source| source.inode().is_some());
        match (renamed, moved) {
            (Ok(()), Some(moved)) => {
                let exchange = mode == RenameMode::Exchange;
                // Two names of one file stay as they are.
                let target = self.caches.dcache.lookup(to_dir, &to);
                let same = target.is_some_and(|target| {
                    let (target, moved) = (target.inode(), moved.inode());
                    target.zip(moved).is_some_and(|(a, b)| Arc::ptr_eq(&a, &b))
                });
                if !same
                    && self
                        .caches
                        .dcache
                        .rename(&moved, to_dir, &to, exchange)
                        .is_err()
                {
                    self.caches.dcache.invalidate(&moved);
                }
                moved.refresh(asked);
            }
            (Ok(()) | Err(Errno::ENOENT | Errno::ESTALE), _) => {
                for (dir, name) in [(from_dir, &from), (to_dir, &to)] {
                    if let Some(dentry) = self.caches.dcache.lookup(dir, name) {
                        self.caches.dcache.invalidate(&dentry);
                    }
                }
            }
            (Err(_), _) => {}
        }
        renamed
    }

    /// Whether the names of `a` are locked before those of `b`: it is above it, or at a lower address and
    /// not below it. Context: `rename` held.
    fn comes_first(a: &DentryRef<Inode>, b: &DentryRef<Inode>) -> bool {
        let is_above = |above: &DentryRef<Inode>, below: &DentryRef<Inode>| {
            let mut at = below.parent();
            while let Some(here) = at {
                if ptr::eq(&*here, &**above) {
                    return true;
                }
                at = here.parent();
            }
            false
        };
        is_above(a, b) || (!is_above(b, a) && ptr::from_ref(&**a) < ptr::from_ref(&**b))
    }
}

impl Drop for SuperBlock {
    fn drop(&mut self) {
        *self.shrinkable.caches.write() = None;
        self.caches.dcache.close();
    }
}

impl fmt::Debug for SuperBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuperBlock")
            .field("kind", &self.caches.fs.kind())
            .finish_non_exhaustive()
    }
}
