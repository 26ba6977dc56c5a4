//! A look-up that only tests make, and what they see of others.

use super::Namei;
use crate::inode::Inode;
use crate::super_block::RcuMode;
use crate::walk::{Stop, WalkError};
use foliocache_mm::slab::SlabArc;
use foliocache_sync::rcu;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Namei<'_> {
    /// The inode at `path`.
    pub fn inode(&self, path: &OsStr, follow: bool) -> Result<SlabArc<Inode>, WalkError> {
        match self.inode_rcu(path, follow) {
            Err(Stop::Bail) => Ok(self.walk_with_references(path, follow, false)?.at.inode),
            Err(Stop::Error(error)) => Err(error),
            Ok(inode) => Ok(inode),
        }
    }

    /// Whether this thread remembers the directory of `path`: for tests, which could not see it otherwise.
    pub fn remembers(&self, path: &OsStr) -> bool {
        let now = self.names.now();
        let rcu = rcu::read_lock();
        let mode = RcuMode::new(self.names, self.credentials, now, &rcu);
        mode.remembers(self.start, path.as_bytes())
    }
}
