//! A look-up that only tests make.

use super::Namei;
use crate::inode::Inode;
use crate::walk::{Stop, WalkError};
use foliocache_mm::slab::SlabArc;
use std::ffi::OsStr;

impl Namei<'_> {
    /// The inode at `path`.
    pub fn inode(&self, path: &OsStr, follow: bool) -> Result<SlabArc<Inode>, WalkError> {
        match self.inode_rcu(path, follow) {
            Err(Stop::Bail) => Ok(self.walk_with_references(path, follow, false)?.at.inode),
            Err(Stop::Error(error)) => Err(error),
            Ok(inode) => Ok(inode),
        }
    }
}
