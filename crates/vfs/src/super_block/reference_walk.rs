//! The mode of a walk with references: asks the file system for names that are not cached.
//!
//! # Model
//!
//! A place is a reference of a dentry and of its inode. The way that the walk came is kept, so that `..`
//! leads back, also if directories are moved meanwhile.

use super::{Named, SuperBlock};
use crate::credentials::{Access, Credentials};
use crate::dcache::Name;
use crate::types::FileKind;
use crate::walk::{Mode, Stop};
use foliocache_sys::Errno;
use std::os::unix::ffi::OsStringExt;

/// Walks where the file system leads.
pub(crate) struct ReferenceMode<'a> {
    sb: &'a SuperBlock,
    credentials: Option<&'a Credentials>,
    now: u64,
    way: Vec<Named>,
}

impl<'a> ReferenceMode<'a> {
    pub(crate) fn new(
        sb: &'a SuperBlock,
        credentials: Option<&'a Credentials>,
        now: u64,
    ) -> ReferenceMode<'a> {
        ReferenceMode {
            sb,
            credentials,
            now,
            way: Vec::new(),
        }
    }
}

impl Mode for ReferenceMode<'_> {
    type At = Named;
    type Target = Vec<u8>;

    fn kind(&self, at: &Named) -> FileKind {
        at.inode.kind()
    }

    fn may_search(&mut self, dir: &Named) -> Result<(), Stop> {
        let checked = (self.sb).check(&dir.inode, Access::EXECUTE, self.credentials);
        self.sb.or_walk_again(&dir.dentry, checked)
    }

    fn child(&mut self, dir: &Named, name: &Name<'_>) -> Result<Named, Stop> {
        self.sb.lookup_child(dir, name, self.now)
    }

    /// In a directory that is gone there is nothing, whatever its name.
    fn too_long(&self, dir: &Named) -> Stop {
        match self.sb.fs().getattr(&dir.inode) {
            Ok(attr) if attr.nlink == 0 => Errno::ENOENT.into(),
            _ => Errno::ENAMETOOLONG.into(),
        }
    }

    fn parent(&mut self, dir: &Named) -> Result<Named, Stop> {
        match dir.dentry.parent() {
            Some(parent) => Ok(Named::new(parent)?),
            None => Ok(dir.clone()),
        }
    }

    fn root(&mut self) -> Result<Named, Stop> {
        self.way.clear();
        Ok(Named::new(self.sb.root().clone())?)
    }

    fn target(&mut self, link: &Named) -> Result<Vec<u8>, Stop> {
        let target = self.sb.fs().readlink(&link.inode);
        let target = self.sb.or_walk_again(&link.dentry, target)?;
        Ok(target.into_vec())
    }

    fn down(&mut self, dir: Named) {
        self.way.push(dir);
    }

    fn up(&mut self) -> Result<Option<Named>, Stop> {
        Ok(self.way.pop())
    }
}
