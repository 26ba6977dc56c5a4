//! Operations that do not wait: answers from the cache, and `EAGAIN` otherwise.
//!
//! # Model
//!
//! ```text
//!  path ──rcu walk──▶ all of it known ──▶ attributes, an open file, an open directory
//!                        │ not
//!                        ▼
//!                      EAGAIN: the operation of the same name may wait
//! ```
//!
//! The store is not asked. The kernel's queue of changes is read, which does not wait.
//!
//! # Locking
//!
//! Locks that are held over I/O are tried only; leaves are taken.
//!
//! # Differences from Linux
//!
//! As `RESOLVE_CACHED` of `openat2`, which here also covers the last component and opening it.

use crate::credentials::Access;
use crate::filesystem::OpenDirectory;
use crate::inode::Inode;
use crate::namei::{Namei, OpenHow, stat_rcu};
use crate::open_file::OpenFile;
use crate::super_block::{Named, SuperBlock};
use crate::types::{Attr, Attributes, FileKind};
use crate::walk::{Stop, WalkError};
use foliocache_mm::slab::SlabArc;
use foliocache_sys::Errno;
use std::ffi::OsStr;

impl SuperBlock {
    /// The attributes of an inode, where they are believed. Does not wait.
    pub fn known_attr(&self, inode: &Inode) -> Option<Attr> {
        let mut attr = Attributes::default().of(0, FileKind::Unknown);
        inode.cached_attr(self.now(), &mut attr).then_some(attr)
    }
}

/// The error of a walk that found no answer in the cache.
fn again(stop: Stop) -> WalkError {
    match stop {
        Stop::Bail => Errno::EAGAIN.into(),
        Stop::Error(error) => error,
    }
}

/// Each ends as the operation without `cached` would, or with `EAGAIN` if that would have to ask or
/// to wait.
impl Namei<'_> {
    /// [`Namei::stat`].
    pub fn cached_stat(&self, path: &OsStr, follow: bool) -> Result<Attr, WalkError> {
        let mut attr = Attributes::default().of(0, FileKind::Unknown);
        let (flags, who) = (self.flags(follow), self.credentials);
        stat_rcu(self.names, self.start, path, flags, who, &mut attr).map_err(again)?;
        Ok(attr)
    }

    /// [`Namei::lookup`], with the inode.
    pub fn cached_lookup(&self, path: &OsStr, follow: bool) -> Result<Named, WalkError> {
        let found = self.lookup_rcu(path, follow).map_err(again)?;
        Ok(Named::new(found)?)
    }

    /// Whether the caller may `access` an inode, by attributes that are believed.
    fn check_cached(&self, inode: &SlabArc<Inode>, access: Access) -> Result<(), Errno> {
        match self.credentials {
            None => Ok(()),
            Some(_) if !inode.attributes().is_believed(self.names.now()) => Err(Errno::EAGAIN),
            Some(credentials) => credentials.check(inode, access),
        }
    }

    /// [`Namei::open`] of an existing file, for reading.
    pub fn cached_open(&self, path: &OsStr, how: OpenHow) -> Result<OpenFile, WalkError> {
        if how.create || how.flags.write || how.flags.truncate {
            return Err(Errno::EAGAIN.into());
        }
        let inode = self.inode_rcu(path, how.follow).map_err(again)?;
        if inode.kind() == FileKind::Regular {
            self.check_cached(&inode, Access::READ)?;
        }
        let opened = self.names.fs().open_cached(&self.ctx, &inode, how.flags);
        match opened {
            // The name must be looked up again.
            Err(Errno::ESTALE) => Err(Errno::EAGAIN.into()),
            opened => Ok(opened?),
        }
    }

    /// Opens the directory at `path` for reading:
    /// [`FileSystem::opendir`](crate::FileSystem::opendir).
    pub fn cached_opendir(&self, path: &OsStr) -> Result<Box<dyn OpenDirectory>, WalkError> {
        let named = self.cached_lookup(path, true)?;
        self.check_cached(&named.inode, Access::READ)?;
        Ok(self.names.fs().opendir_cached(&named.inode)?)
    }
}
