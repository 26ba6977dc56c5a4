//! Files that others replace in the store while the kernel uses them.
//!
//! # Model
//!
//! A kernel that gets `ESTALE` for a path walks it once more and asks for each name. `fstat` it does not repeat, and it does
//! not say for whom it asks for attributes. So a file that is open answers with the attributes that were known last, for
//! whoever asks. A `stat` by its old name may get them, too, until the kernel is told of the new file.

use crate::conn::{FuseConn, Within};
use crate::entry::Entry;
use foliocache_sys::Errno;
use foliocache_vfs::{Attr, Inode, SlabArc};
use std::ffi::OsStr;

/// Look-ups of one name whose file others replace meanwhile, most.
const MOST: u32 = 8;

impl FuseConn {
    /// The attributes of an inode; those that were known last, of an open file that can no longer be found.
    pub(crate) fn attributes_now(&self, inode: &SlabArc<Inode>) -> Result<Attr, Errno> {
        // A kernel that opens files by itself does not say which are open.
        match self.kernel_opens || self.nodes.is_open(inode.ino()) {
            true => self.fs().getattr_open(inode),
            false => self.fs().getattr(inode),
        }
    }

    /// As [`FuseConn::lookup_present`], again if others replaced what it found before it was asked for its attributes.
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
