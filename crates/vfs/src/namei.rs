//! Operations by path, as the system calls of the same names, relative to a directory.
//!
//! # Model
//!
//! ```text
//!  path ──walk──▶ directory, last name ──▶ SuperBlock's operation on the two
//! ```
//!
//! The last name of an operation that makes, moves or removes it is not followed, even with a trailing slash.
//! Errors are checked in the kernel's order, so that a call with several faults gets the same error.
//!
//! # Locking
//!
//! That of [`SuperBlock`]. Between the walk and the operation nothing is held: the operation is on the directory
//! that the walk found, even if it has moved since.

#[cfg(any(loom, shuttle, feature = "testing"))]
mod testing;

use crate::credentials::{Access, Credentials};
use crate::dcache::{DentryRef, Name};
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::super_block::{MAX_STALE, Named, RcuAt, RcuMode, ReferenceMode, SuperBlock};
use crate::types::{
    Attr, Attributes, FileKind, New, OpContext, OpenFlags, Remove, RenameMode, SetAttr,
};
use crate::walk::{Last, Stop, WalkError, WalkFlags, Walked, walk};
use foliocache_mm::slab::SlabArc;
use foliocache_sync::rcu::{self, RcuReadGuard};
use foliocache_sys::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// Times that an open which makes its file begins again since others make the name and take it away, at most.
const MAX_RACES: u32 = 40;

/// Where paths begin, and on whose behalf they are walked.
#[derive(Clone, Copy)]
#[doc(alias = "nameidata")]
pub struct Namei<'a> {
    /// The file system.
    pub names: &'a SuperBlock,
    /// Where relative paths begin.
    pub start: &'a DentryRef<Inode>,
    /// Whether paths have to stay below the start.
    pub beneath: bool,
    /// For creating files.
    pub ctx: OpContext,
    /// The caller's; without credentials no permissions are checked.
    pub credentials: Option<&'a Credentials>,
}

/// How a file is opened by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[doc(alias = "open_how")]
pub struct OpenHow {
    /// The access mode and flags of the open.
    pub flags: OpenFlags,
    /// It is made if it is not there.
    pub create: bool,
    /// With `create`: it must not be there.
    pub exclusive: bool,
    /// A symbolic link at the end of the path is followed.
    pub follow: bool,
    /// Permission bits of a file that is made.
    pub mode: u32,
}

impl Walked<Named> {
    /// The directory and the last name in it, where it is one.
    fn normal(self, otherwise: Errno) -> Result<(Named, OsString), Errno> {
        match self.last {
            Last::Normal(name) => Ok((self.at, name)),
            _ => Err(otherwise),
        }
    }
}

/// Errors are those of [`Namei::lookup`] and of the [`SuperBlock`]'s operation of the same name.
impl Namei<'_> {
    pub(crate) fn flags(&self, follow: bool) -> WalkFlags {
        let beneath = self.beneath;
        WalkFlags { follow, beneath }
    }

    /// The file at `path`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`, those of the file system.
    pub fn lookup(&self, path: &OsStr, follow: bool) -> Result<DentryRef<Inode>, WalkError> {
        match self.lookup_rcu(path, follow) {
            Err(Stop::Bail) => Ok(self.walk_with_references(path, follow, false)?.at.dentry),
            Err(Stop::Error(error)) => Err(error),
            Ok(dentry) => Ok(dentry),
        }
    }

    pub(crate) fn lookup_rcu(&self, path: &OsStr, follow: bool) -> Result<DentryRef<Inode>, Stop> {
        self.walk_rcu(path, follow, |end, rcu| end.dentry.try_get(end.seq(), rcu))
    }

    /// As [`Namei::lookup_rcu`], for the inode alone: the dentry's count does not change.
    pub(crate) fn inode_rcu(&self, path: &OsStr, follow: bool) -> Result<SlabArc<Inode>, Stop> {
        self.walk_rcu(path, follow, |end, rcu| {
            end.dentry.try_inode(end.seq(), rcu)
        })
    }

    /// Runs `get`, which takes a reference, at the end of a walk under RCU.
    #[inline(always)]
    fn walk_rcu<R>(
        &self,
        path: &OsStr,
        follow: bool,
        get: impl FnOnce(&RcuAt<'_>, &RcuReadGuard) -> Option<R>,
    ) -> Result<R, Stop> {
        let now = self.names.now();
        let rcu = rcu::read_lock();
        let mode = RcuMode::new(self.names, self.credentials, now, &rcu);
        let end = mode.walk(self.start, path.as_bytes(), self.flags(follow))?;
        end.inode.prefetch();
        get(&end, &rcu).ok_or(Stop::Bail)
    }

    /// Walks with references. With `to_last`, to the directory of the last name.
    fn walk_with_references(
        &self,
        path: &OsStr,
        follow: bool,
        to_last: bool,
    ) -> Result<Walked<Named>, WalkError> {
        let flags = self.flags(follow);
        walk_with_references(
            self.names,
            self.start,
            path,
            flags,
            self.credentials,
            to_last,
        )
    }

    /// Runs `act` on the file at `path`, again if it has gone from the store since it was looked
    /// up.
    pub fn on_inode<R>(
        &self,
        path: &OsStr,
        follow: bool,
        mut act: impl FnMut(&DentryRef<Inode>, &SlabArc<Inode>) -> Result<R, Errno>,
    ) -> Result<R, WalkError> {
        self.names.unless_stale(|| {
            let named = Named::new(self.lookup(path, follow)?)?;
            let done = act(&named.dentry, &named.inode);
            Ok((named.dentry, done))
        })
    }

    /// Runs `act` again if a directory that it walked to is gone from the store since it was looked up: it is known no more.
    #[doc(alias = "retry_estale")]
    fn unless_stale<R>(
        &self,
        mut act: impl FnMut() -> Result<R, WalkError>,
    ) -> Result<R, WalkError> {
        for _ in 1..MAX_STALE {
            match act() {
                Err(WalkError::Errno(Errno::ESTALE)) => {}
                done => return done,
            }
        }
        act()
    }

    /// The attributes of the file at `path`.
    ///
    /// If all of it is cached, this takes no lock and no reference, and writes nothing that others write. Otherwise it
    /// may block on I/O.
    #[inline(always)]
    pub fn stat(&self, path: &OsStr, follow: bool) -> Result<Attr, WalkError> {
        // Filled in where it is returned: to copy it from another place takes a fifth of a cached call. The parts of `self`
        // stay in registers: behind a reference they would be stored and loaded.
        let mut result = Ok(Attributes::default().of(0, FileKind::Unknown));
        if let Ok(attr) = &mut result {
            let flags = self.flags(follow);
            let done = stat_to(self.names, self.start, path, flags, self.credentials, attr);
            if let Err(error) = done {
                result = Err(error);
            }
        }
        result
    }

    /// The target of the symbolic link `path`.
    ///
    /// # Errors
    /// `EINVAL` unless it is a symbolic link.
    pub fn readlink(&self, path: &OsStr) -> Result<OsString, WalkError> {
        self.on_inode(path, false, |_, inode| self.names.fs().readlink(inode))
    }

    /// The directory of the last name; with `follow`, after following symbolic links at the end.
    fn parent(&self, path: &OsStr, follow: bool) -> Result<Walked<Named>, WalkError> {
        self.walk_with_references(path, follow, true)
    }

    /// Whether something is known to have the last name.
    fn is_cached(&self, dir: &Named, name: &OsStr) -> bool {
        let name = Name::new(name.as_encoded_bytes());
        let cached = self.names.cached_child(dir, &name, self.names.now());
        cached.is_some_and(|dentry| !dentry.is_negative())
    }

    /// The file with the last name, from the cache or else from the file system.
    fn child(&self, dir: &Named, name: &OsStr) -> Result<Named, Errno> {
        let name = Name::new(name.as_encoded_bytes());
        match self.names.lookup_child(dir, &name, self.names.now()) {
            Ok(found) => Ok(found),
            Err(Stop::Error(error)) => Err(error.errno()),
            Err(Stop::Bail) => Err(Errno::ESTALE),
        }
    }

    /// The directory and the name for something that is to be made.
    #[doc(alias = "filename_create")]
    fn place_for(
        &self,
        path: &OsStr,
        directory: bool,
    ) -> Result<(DentryRef<Inode>, OsString), WalkError> {
        let parent = self.parent(path, false)?;
        let slash = parent.wants_directory;
        let (dir, name) = parent.normal(Errno::EEXIST)?;
        if slash && !directory {
            // Nothing but a directory can be made there.
            self.child(&dir, &name)?;
            return Err(Errno::EEXIST.into());
        }
        Ok((dir.dentry, name))
    }

    /// Makes an object.
    pub fn make(&self, path: &OsStr, new: New<'_>) -> Result<DentryRef<Inode>, WalkError> {
        if let New::Symlink(target) = new {
            match target.len() {
                0 => return Err(Errno::ENOENT.into()),
                crate::walk::MAX_PATH.. => return Err(Errno::ENAMETOOLONG.into()),
                _ => {}
            }
        }
        self.unless_stale(|| {
            let (dir, name) = self.place_for(path, matches!(new, New::Directory { .. }))?;
            let (names, who) = (self.names, self.credentials);
            Ok(names.make(&self.ctx, &dir, &name, new, who)?)
        })
    }

    /// Gives the file at `existing` the further name `new`, which is a path from `target`.
    ///
    /// # Errors
    /// `EXDEV` if `target` is in another file system, or has other credentials.
    pub fn link(
        &self,
        existing: &OsStr,
        follow: bool,
        target: &Namei<'_>,
        new: &OsStr,
    ) -> Result<DentryRef<Inode>, WalkError> {
        self.unless_stale(|| {
            let existing = Named::new(self.lookup(existing, follow)?)?;
            let (dir, name) = target.place_for(new, false)?;
            self.check_together(target)?;
            Ok(SuperBlock::forgetting_stale(&[&existing.dentry], || {
                (self.names).link(&existing.inode, &dir, &name, self.credentials)
            })?)
        })
    }

    /// Whether one operation may use both. Neither may act with the other's credentials beyond its own: they are
    /// separate, as two mounts are.
    fn check_together(&self, target: &Namei<'_>) -> Result<(), Errno> {
        match ptr::eq(self.names, target.names) && self.credentials == target.credentials {
            true => Ok(()),
            false => Err(Errno::EXDEV),
        }
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, path: &OsStr) -> Result<(), WalkError> {
        self.unless_stale(|| {
            let parent = self.parent(path, false)?;
            let slash = parent.wants_directory;
            let (dir, name) = parent.normal(Errno::EISDIR)?;
            if slash {
                let there = self.child(&dir, &name)?;
                return match there.inode.is_directory() {
                    true => Err(Errno::EISDIR.into()),
                    false => Err(Errno::ENOTDIR.into()),
                };
            }
            Ok((self.names).remove(&dir.dentry, &name, Remove::File, self.credentials)?)
        })
    }

    /// Takes an empty directory away.
    pub fn rmdir(&self, path: &OsStr) -> Result<(), WalkError> {
        self.unless_stale(|| {
            let parent = self.parent(path, false)?;
            let otherwise = match parent.last {
                Last::Root => Errno::EBUSY,
                Last::DotDot => Errno::ENOTEMPTY,
                Last::Dot | Last::Normal(_) => Errno::EINVAL,
            };
            let (dir, name) = parent.normal(otherwise)?;
            let what = Remove::Directory;
            Ok((self.names).remove(&dir.dentry, &name, what, self.credentials)?)
        })
    }

    /// Moves the name `from` to `to`, which is a path from `target`.
    ///
    /// # Errors
    /// `EXDEV` if `target` is in another file system, or has other credentials.
    pub fn rename(
        &self,
        from: &OsStr,
        target: &Namei<'_>,
        to: &OsStr,
        mode: RenameMode,
    ) -> Result<(), WalkError> {
        self.unless_stale(|| self.try_rename(from, target, to, mode))
    }

    fn try_rename(
        &self,
        from: &OsStr,
        target: &Namei<'_>,
        to: &OsStr,
        mode: RenameMode,
    ) -> Result<(), WalkError> {
        let old = self.parent(from, false)?;
        let new = target.parent(to, false)?;
        self.check_together(target)?;
        let (old_slash, new_slash) = (old.wants_directory, new.wants_directory);
        let (old_dir, old_name) = old.normal(Errno::EBUSY)?;
        let (new_dir, new_name) = new.normal(match mode {
            RenameMode::NoReplace => Errno::EEXIST,
            _ => Errno::EBUSY,
        })?;
        if old_slash || new_slash {
            self.check_slashes(
                (&old_dir, &old_name, old_slash),
                (&new_dir, &new_name, new_slash),
                mode,
            )?;
        }
        self.names.rename(
            &old_dir.dentry,
            &old_name,
            &new_dir.dentry,
            &new_name,
            mode,
            self.credentials,
        )?;
        Ok(())
    }

    /// Slashes come after the names of directories alone.
    fn check_slashes(
        &self,
        old: (&Named, &OsStr, bool),
        new: (&Named, &OsStr, bool),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let moved = self.child(old.0, old.1)?;
        let exchange = mode == RenameMode::Exchange;
        match self.child(new.0, new.1) {
            Ok(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
            Ok(there) if exchange && new.2 && !there.inode.is_directory() => {
                return Err(Errno::ENOTDIR);
            }
            Err(Errno::ENOENT) if !exchange => {}
            found => {
                found?;
            }
        }
        match !moved.inode.is_directory() && (old.2 || (new.2 && !exchange)) {
            true => Err(Errno::ENOTDIR),
            false => Ok(()),
        }
    }

    /// Opens a regular file, and creates it if requested.
    ///
    /// # Errors
    /// Those of [`FileSystem::open`](crate::FileSystem::open), [`SuperBlock::create`] and
    /// [`Namei::lookup`].
    #[doc(alias = "path_openat")]
    pub fn open(&self, path: &OsStr, how: OpenHow) -> Result<OpenFile, WalkError> {
        if !how.create {
            match self.cached_open(path, how) {
                Err(WalkError::Errno(Errno::EAGAIN)) => {}
                done => return done,
            }
            return self.names.unless_stale(|| {
                let named = Named::new(self.lookup(path, how.follow)?)?;
                let opened = self.open_named(&named, how.flags);
                Ok((named.dentry, opened))
            });
        }
        self.unless_stale(|| self.open_or_create(path, how))
    }

    fn open_or_create(&self, path: &OsStr, how: OpenHow) -> Result<OpenFile, WalkError> {
        let mut follow = false;
        for _ in 0..MAX_RACES {
            let parent = self.parent(path, follow)?;
            let slash = parent.wants_directory;
            let (dir, name) = parent.normal(match how.exclusive {
                true => Errno::EEXIST,
                false => Errno::EISDIR,
            })?;
            if slash {
                return Err(Errno::EISDIR.into());
            }
            // Made without a look-up first, unless a file is known to be there.
            let mut refused = Errno::EEXIST;
            if how.exclusive || !self.is_cached(&dir, &name) {
                let (names, who) = (self.names, self.credentials);
                match names.create(&self.ctx, &dir.dentry, &name, how.mode, how.flags, who) {
                    Err(error) if !how.exclusive => refused = error,
                    made => return Ok(made?.0),
                }
            }
            match self.child(&dir, &name) {
                Ok(there) if there.inode.kind() == FileKind::Symlink && how.follow => follow = true,
                Ok(there) => {
                    return Ok(SuperBlock::forgetting_stale(&[&there.dentry], || {
                        self.open_named(&there, how.flags)
                    })?);
                }
                // The name was removed from outside since.
                Err(Errno::ENOENT) if refused == Errno::EEXIST => {}
                Err(Errno::ENOENT) => return Err(refused.into()),
                Err(error) => return Err(error.into()),
            }
        }
        // As if it had existed, and gone before the open.
        Err(Errno::ENOENT.into())
    }

    fn open_named(&self, named: &Named, flags: OpenFlags) -> Result<OpenFile, Errno> {
        let inode = &named.inode;
        if let Some(credentials) = self.credentials
            && inode.kind() == FileKind::Regular
        {
            let access = match (flags.read, flags.write || flags.truncate) {
                (true, true) => Access::READ.and(Access::WRITE),
                (false, true) => Access::WRITE,
                _ => Access::READ,
            };
            // The mode may change with the size.
            let _attributes = flags.truncate.then(|| inode.names().write());
            self.names.check(inode, access, Some(credentials))?;
            if flags.truncate {
                let cut = SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                };
                // The file system does not know the caller's groups.
                let mode = credentials.check_set(inode, &cut)?.mode;
                let file = self.names.open(&self.ctx, named, flags)?;
                if mode.is_some() {
                    let set = SetAttr {
                        mode,
                        ..SetAttr::default()
                    };
                    self.names.fs().setattr(&self.ctx, inode, &set)?;
                }
                return Ok(file);
            }
        }
        self.names.open(&self.ctx, named, flags)
    }
}

/// As [`Namei::stat`].
#[inline(never)]
fn stat_to(
    names: &SuperBlock,
    start: &DentryRef<Inode>,
    path: &OsStr,
    flags: WalkFlags,
    credentials: Option<&Credentials>,
    attr: &mut Attr,
) -> Result<(), WalkError> {
    match stat_rcu(names, start, path, flags, credentials, attr) {
        Err(Stop::Bail) => {
            *attr = stat_slow_path(names, start, path, flags, credentials)?;
            Ok(())
        }
        Err(Stop::Error(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// As [`stat_to`], from the cache alone.
#[inline(always)]
pub(crate) fn stat_rcu(
    names: &SuperBlock,
    start: &DentryRef<Inode>,
    path: &OsStr,
    flags: WalkFlags,
    credentials: Option<&Credentials>,
    attr: &mut Attr,
) -> Result<(), Stop> {
    let now = names.now();
    let rcu = rcu::read_lock();
    let mode = RcuMode::new(names, credentials, now, &rcu);
    let end = mode.walk(start, path.as_bytes(), flags)?;
    let known = end.inode.cached_attr(now, attr);
    match known && !end.has_changed() {
        true => Ok(()),
        false => Err(Stop::Bail),
    }
}

#[cold]
fn stat_slow_path(
    names: &SuperBlock,
    start: &DentryRef<Inode>,
    path: &OsStr,
    flags: WalkFlags,
    credentials: Option<&Credentials>,
) -> Result<Attr, WalkError> {
    names.unless_stale(|| {
        let walked = walk_with_references(names, start, path, flags, credentials, false)?;
        let attr = names.getattr(&walked.at);
        Ok((walked.at.dentry, attr))
    })
}

/// As [`Namei::walk_with_references`].
fn walk_with_references(
    names: &SuperBlock,
    start: &DentryRef<Inode>,
    path: &OsStr,
    flags: WalkFlags,
    credentials: Option<&Credentials>,
    to_last: bool,
) -> Result<Walked<Named>, WalkError> {
    let path = path.as_bytes();
    // Each time the directory is forgotten that was not where it was, which may be due to the one above it.
    let depth = path.split(|&byte| byte == b'/').count() as u32;
    for _ in 0..MAX_STALE + depth {
        let mut mode = ReferenceMode::new(names, credentials, names.now());
        let start = Named::new(start.clone())?;
        match walk(&mut mode, start, path, flags, to_last) {
            Ok(walked) => return Ok(walked),
            Err(Stop::Error(error)) => return Err(error),
            Err(Stop::Bail) => {}
        }
    }
    Err(Errno::ESTALE.into())
}
