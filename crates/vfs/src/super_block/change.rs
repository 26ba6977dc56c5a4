//! Changes of names: the file system is told first, then the dentries.
//!
//! # Locking
//!
//! The names of each directory that changes, exclusively, over the file system's I/O; for a move between
//! directories the file system's `rename` before them. See [`super`].

use super::SuperBlock;
use crate::credentials::Credentials;
use crate::dcache::{DentryRef, Name};
use crate::inode::Inode;
use crate::open_file::OpenFile;
use crate::types::{Device, FileKind, OpContext, OpenFlags, RenameMode};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

impl SuperBlock {
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
