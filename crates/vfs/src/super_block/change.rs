//! Changes of names: first in the file system, then in the dentries.
//!
//! # Locking
//!
//! The names of each directory that changes, exclusively, over the file system's I/O; for a move between
//! directories the file system's `rename` before them. See [`super`]. Data that is to be written first is written without them.

mod written;

use self::written::Written;
use super::SuperBlock;
use crate::credentials::{Access, Credentials};
use crate::dcache::{DentryRef, Name, comes_first};
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::types::{FileKind, New, OpContext, OpenFlags, Remove, RenameMode, S_ISVTX};
use foliocache_mm::slab::SlabArc;
use foliocache_sync::rcu;
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// The mode of a file that `credentials` create in `dir`.
fn new_mode(credentials: Option<&Credentials>, dir: &Inode, kind: FileKind, mode: u32) -> u32 {
    credentials.map_or(mode, |credentials| credentials.new_mode(dir, kind, mode))
}

/// Changes of names. Errors are those of the [`FileSystem`](crate::FileSystem)'s operation, and `EACCES` and `EPERM` if
/// `credentials` do not allow it.
impl SuperBlock {
    /// Runs a change of the names in `dir` that makes `name` lead to an inode.
    fn add_name(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
        make: impl FnOnce(&SlabArc<Inode>) -> Result<SlabArc<Inode>, Errno>,
    ) -> Result<DentryRef<Inode>, Errno> {
        Self::forgetting_stale(&[dir], || {
            let inode = Self::directory(dir)?;
            let _names = inode.names().write();
            if let Some(credentials) = credentials
                && let Err(error) = self
                    .renew(&inode)
                    .and_then(|()| credentials.check_create(&inode))
            {
                // An existing name is the first error.
                return match self.caches.fs.lookup(&inode, name) {
                    Ok(_) => {
                        self.forget_absent(dir, &Name::new(name.as_bytes()));
                        Err(Errno::EEXIST)
                    }
                    Err(_) => Err(error),
                };
            }
            let (asked, doubts) = (self.now(), inode.attributes().doubts());
            let until = self.belief.until_ours(&inode, asked, true);
            let made = make(&inode);
            inode.attributes().doubt();
            if made.is_ok() {
                self.tell_of_name(&inode, name);
            }
            let name = Name::new(name.as_bytes());
            if let Err(Errno::EEXIST) = made {
                self.forget_absent(dir, &name);
            }
            let added = self.caches.dcache.add(dir, &name, Some(made?));
            let (dentry, displaced) = added?;
            Self::believe_ours(&dentry, &inode, doubts, until);
            let doubts = doubts.wrapping_add(1);
            self.caches
                .expect_displaced(&inode, name.bytes(), doubts, &displaced);
            Ok(dentry)
        })
    }

    /// A name was made from outside. Context: the names of `dir` locked.
    fn forget_absent(&self, dir: &DentryRef<Inode>, name: &Name<'_>) {
        if let Some(dentry) = self.caches.dcache.lookup(dir, name)
            && dentry.is_negative()
        {
            self.caches.invalidate(&dentry);
        }
    }

    /// Believes the state of a name in `dir` after our own change, unless another change was reported before the
    /// dentry was updated.
    ///
    /// Context: we have doubted once since `doubts` was taken.
    fn believe_ours(dentry: &DentryRef<Inode>, dir: &Inode, doubts: u32, until: u64) {
        let believe = || dentry.believe(until);
        dir.attributes()
            .unless_doubted(doubts.wrapping_add(1), believe);
    }

    /// Makes a regular file and opens it, see [`FileSystem::create`](crate::FileSystem::create).
    pub fn create(
        &self,
        ctx: &OpContext,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
        credentials: Option<&Credentials>,
    ) -> Result<(OpenFile, DentryRef<Inode>), Errno> {
        let mut file = None;
        let dentry = self.add_name(dir, name, credentials, |inode| {
            let mode = new_mode(credentials, inode, FileKind::Regular, mode);
            let made = file.insert(self.caches.fs.create(ctx, inode, name, mode, flags)?);
            Ok(made.inode().clone())
        })?;
        Ok((file.expect("made"), dentry))
    }

    /// Makes an object, see [`FileSystem::make`](crate::FileSystem::make).
    pub fn make(
        &self,
        ctx: &OpContext,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        new: New<'_>,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Errno> {
        self.add_name(dir, name, credentials, |inode| {
            let mut new = new;
            match &mut new {
                New::Node { kind, mode, .. } => *mode = new_mode(credentials, inode, *kind, *mode),
                // Set-id bits are the parent's to hand down.
                New::Directory { mode } => *mode &= 0o777 | S_ISVTX,
                New::Symlink(_) => {}
            }
            self.caches.fs.make(ctx, inode, name, new)
        })
    }

    /// Gives `inode` another name, see [`FileSystem::link`](crate::FileSystem::link).
    pub fn link(
        &self,
        inode: &SlabArc<Inode>,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<DentryRef<Inode>, Errno> {
        self.add_name(dir, name, credentials, |dir| {
            self.caches.fs.link(inode, dir, name)?;
            Ok(inode.clone())
        })
    }

    /// Removes a name, see [`FileSystem::remove`](crate::FileSystem::remove).
    pub fn remove(
        &self,
        dir: &DentryRef<Inode>,
        name: &OsStr,
        what: Remove,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        Self::forgetting_stale(&[dir], || {
            let inode = Self::directory(dir)?;
            let names = inode.names().write();
            self.check_delete(&inode, name, credentials)?;
            let (asked, doubts) = (self.now(), inode.attributes().doubts());
            let until = self.belief.until_ours(&inode, asked, false);
            let removed = self.caches.fs.remove(&inode, name, what);
            inode.attributes().doubt();
            if removed.is_ok() {
                self.tell_of_name(&inode, name);
            }
            let mut gone = None;
            if let Some(dentry) = self.caches.dcache.lookup(dir, &Name::new(name.as_bytes())) {
                match removed {
                    Ok(()) => {
                        gone = dentry.inode();
                        // Another file may have been removed.
                        if let Some(gone) = &gone {
                            self.caches.expect(&inode, name.as_bytes(), gone);
                        }
                        dentry.believe(0);
                        self.caches.dcache.delete(&dentry);
                        Self::believe_ours(&dentry, &inode, doubts, until);
                    }
                    // The name was changed from outside.
                    Err(Errno::ENOENT | Errno::ESTALE) => self.caches.invalidate(&dentry),
                    Err(_) => {}
                }
            }
            drop(names);
            self.put(gone);
            removed
        })
    }

    /// Whether `credentials` may take `name` away from a directory. Context: its names locked.
    fn check_delete(
        &self,
        dir: &SlabArc<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        match credentials {
            None => Ok(()),
            Some(credentials) => {
                let victim = self.caches.fs.lookup(dir, name)?;
                self.renew(dir)?;
                self.renew(&victim)?;
                credentials.check_delete(dir, &victim)
            }
        }
    }

    /// Whether `credentials` may move a name; errors in the names themselves come first. Context: the names of both
    /// directories locked.
    fn check_rename(
        &self,
        (from_dir, from): (&DentryRef<Inode>, &OsStr),
        (to_dir, to): (&DentryRef<Inode>, &OsStr),
        mode: RenameMode,
        credentials: &Credentials,
    ) -> Result<(), Errno> {
        let (from_inode, to_inode) = (Self::directory(from_dir)?, Self::directory(to_dir)?);
        let moved = self.caches.fs.lookup(&from_inode, from)?;
        let target = match self.caches.fs.lookup(&to_inode, to) {
            Err(Errno::ENOENT) => None,
            found => Some(found?),
        };
        let exchange = mode == RenameMode::Exchange;
        match &target {
            Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            _ => {}
        }
        if Self::is_at_or_below(to_dir, &moved) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target {
            if Self::is_at_or_below(from_dir, target) {
                return Err(if exchange {
                    Errno::EINVAL
                } else {
                    Errno::ENOTEMPTY
                });
            }
            if SlabArc::ptr_eq(target, &moved) {
                return Ok(());
            }
        }
        self.check_delete(&from_inode, from, Some(credentials))?;
        match &target {
            None => {
                self.renew(&to_inode)?;
                credentials.check_create(&to_inode)?;
            }
            Some(target) => {
                self.check_delete(&to_inode, to, Some(credentials))?;
                match (moved.is_directory(), target.is_directory()) {
                    (true, false) if !exchange => return Err(Errno::ENOTDIR),
                    (false, true) if !exchange => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
        }
        if !SlabArc::ptr_eq(&from_inode, &to_inode) {
            // Its `..` changes.
            let exchanged = target.as_ref().filter(|_| exchange);
            for inode in iter::once(&moved).chain(exchanged) {
                if inode.is_directory() {
                    self.check(inode, Access::WRITE, Some(credentials))?;
                }
            }
        }
        Ok(())
    }

    /// Whether `dir` is a directory or below it.
    fn is_at_or_below(dir: &DentryRef<Inode>, above: &SlabArc<Inode>) -> bool {
        let rcu = rcu::read_lock();
        let mut upwards = iter::successors(Some(&**dir), |dir| dir.parent_rcu(&rcu));
        upwards.any(|dir| {
            dir.inode_rcu(&rcu)
                .is_some_and(|inode| ptr::eq(inode, &**above))
        })
    }

    /// Moves a name, see [`FileSystem::rename`](crate::FileSystem::rename).
    pub fn rename(
        &self,
        from_dir: &DentryRef<Inode>,
        from: &OsStr,
        to_dir: &DentryRef<Inode>,
        to: &OsStr,
        mode: RenameMode,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        let mut written = Written::default();
        let (old, new) = ((from_dir, from), (to_dir, to));
        Self::forgetting_stale(&[from_dir, to_dir], || {
            loop {
                let files = self.try_rename(old, new, mode, credentials, &mut written)?;
                if files.is_empty() {
                    return Ok(());
                }
                written.write(files)?;
            }
        })
    }

    /// Moves a name, or returns the files that are to be written first, see [`written`].
    fn try_rename(
        &self,
        (from_dir, from): (&DentryRef<Inode>, &OsStr),
        (to_dir, to): (&DentryRef<Inode>, &OsStr),
        mode: RenameMode,
        credentials: Option<&Credentials>,
        written: &mut Written,
    ) -> Result<Vec<SlabArc<Inode>>, Errno> {
        let (from_inode, to_inode) = (Self::directory(from_dir)?, Self::directory(to_dir)?);
        let one = SlabArc::ptr_eq(&from_inode, &to_inode);
        // With it no directory changes its place above another.
        let rename = (!one).then(|| self.rename.lock());
        let (first, second) = match one || comes_first(from_dir, to_dir, &rcu::read_lock()) {
            true => (&from_inode, &to_inode),
            false => (&to_inode, &from_inode),
        };
        let first_names = first.names().write();
        let second_names = (!one).then(|| second.names().write_nested());
        if let Some(credentials) = credentials {
            self.check_rename((from_dir, from), (to_dir, to), mode, credentials)?;
        }
        let (old, new) = (Name::new(from.as_bytes()), Name::new(to.as_bytes()));
        let asked = self.now();
        // The moved file is looked up before the move: an open directory moves along.
        let moved = self.known(from_dir, &from_inode, &old)?;
        let files = self.to_be_written(&moved, (to_dir, &to_inode, &new), mode, written)?;
        if !files.is_empty() {
            return Ok(files);
        }
        let exchange = mode == RenameMode::Exchange;
        let target = match exchange {
            true => Some(self.known(to_dir, &to_inode, &new)?),
            false => self.caches.dcache.lookup(to_dir, &new),
        };
        let replaced = target.as_ref().and_then(|target| target.inode());
        let belief = |dir: &SlabArc<Inode>| {
            let until = self.belief.until_ours(dir, asked, true);
            (dir.attributes().doubts(), until)
        };
        let (from_belief, to_belief) = (belief(&from_inode), belief(&to_inode));
        let renamed = self
            .caches
            .fs
            .rename(&from_inode, from, &to_inode, to, mode);
        from_inode.attributes().doubt();
        if !one {
            to_inode.attributes().doubt();
        }
        match renamed {
            Ok(()) => {
                self.tell_of_name(&from_inode, from);
                self.tell_of_name(&to_inode, to);
                // Two names of one file stay as they are, as does a name that is moved to itself.
                let both = replaced.as_ref().zip(moved.inode());
                let same = both.is_some_and(|(old, new)| SlabArc::ptr_eq(old, &new));
                // Another file may have been replaced.
                if let Some(replaced) = &replaced {
                    self.caches.expect(&to_inode, to.as_bytes(), replaced);
                }
                // A replaced file goes with its last reference.
                let exchanged = target.filter(|_| exchange);
                // At their new places changes may or may not be reported.
                for moved in iter::once(&moved).chain(&exchanged) {
                    moved.believe(0);
                }
                let renamed = |moved| self.caches.dcache.rename(moved, to_dir, &new, exchange);
                if !same && renamed(&moved).is_err() {
                    self.caches.invalidate(&moved);
                }
                let there = (&moved, &to_inode, to_belief);
                let here = exchanged
                    .iter()
                    .map(|moved| (moved, &from_inode, from_belief));
                for (moved, dir, (doubts, until)) in iter::once(there).chain(here).filter(|_| !same)
                {
                    Self::believe_ours(moved, dir, doubts, until);
                    if let Some(inode) = moved.inode() {
                        inode.attributes().unwatched();
                    }
                }
            }
            // The name was changed from outside.
            Err(Errno::ENOENT | Errno::ESTALE) => {
                self.caches.invalidate(&moved);
                if let Some(target) = target {
                    self.caches.invalidate(&target);
                }
            }
            Err(_) => {}
        }
        drop((first_names, second_names, rename));
        self.put(replaced);
        renamed.map(|()| Vec::new())
    }

    /// The dentry of an existing name. Context: the names of `dir` locked.
    pub(super) fn known(
        &self,
        dir: &DentryRef<Inode>,
        inode: &SlabArc<Inode>,
        name: &Name<'_>,
    ) -> Result<DentryRef<Inode>, Errno> {
        let now = self.now();
        let found = match self.caches.dcache.lookup(dir, name) {
            Some(found) if !found.is_negative() && now < found.believed_until() => found,
            _ => self.ask(dir, inode, name)?.0,
        };
        match found.is_negative() {
            true => Err(Errno::ENOENT),
            false => Ok(found),
        }
    }
}
