//! Files that are replaced in the store while the kernel uses them.
//!
//! # Model
//!
//! A kernel that gets `ESTALE` for a path walks it once more and asks for each name. It does not repeat `fstat`,
//! and does not say which program a query of attributes is for. So an open file answers every query with its last
//! known attributes. A `stat` of its old name may get them too, until the kernel is told of the new file.

use crate::conn::{FuseConn, Within};
use crate::entry::Entry;
use foliocache_sys::Errno;
use foliocache_vfs::{Attr, Inode, SlabArc};
use std::ffi::OsStr;

/// Most look-ups of one name whose file keeps being replaced.
const MOST: u32 = 8;

impl FuseConn {
    /// The attributes of an inode; the last known ones for an open file that can no longer be
    /// found.
    pub(crate) fn attributes_now(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        // A kernel that opens files without a request does not say which are open.
        match self.kernel_opens || self.nodes.is_open(inode.ino()) {
            true => self.fs().getattr_open(inode),
            false => self.fs().getattr(inode),
        }
    }

    /// As [`FuseConn::lookup_present`], repeated if the file was replaced before its attributes
    /// were read.
    pub(crate) fn lookup_replaced(
        &self,
        within: &Within,
        name: &OsStr,
    ) -> Result<(Entry, SlabArc<Inode>), Errno> {
        for _ in 1..MOST {
            match self.lookup_present(within, name) {
                Err(Errno::ESTALE) => {}
                done => return done,
            }
        }
        self.lookup_present(within, name)
    }
}
