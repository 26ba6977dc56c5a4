//! Data that must be in the source before a name or a privilege is.
//!
//! # Model
//!
//! Data reaches the source later than the call that wrote it. Two changes must not overtake it:
//!
//! - a rename that takes the place of another file, see `SuperBlock::rename`: a reader of the source, or the next mount after a
//!   kill, would find neither the old content nor the new one;
//! - privileges. The kernel takes set-id bits and file capabilities away with every write to the file, and the late one is such a
//!   write.
//!
//! So data that was written before is written out first, and writes under way are waited for. A later write takes privileges
//! away as on any file system.
//!
//! # Locking
//!
//! As [`file`](super::file) says. Nothing of ours is held over the I/O, but the lock of the attributes by callers.

use super::NodeOps;
use super::idle::Closing;
use foliocache_mm::AddressSpaceOperations;
use foliocache_sys::Errno;
use foliocache_vfs::{FileKind, Inode, S_ISGID, S_ISUID, SetAttr};
use std::ffi::OsStr;
use std::mem;

/// Whether a change of attributes gives privileges that a write takes away.
pub(super) fn gives_privileges(set: &SetAttr) -> bool {
    set.mode.is_some_and(|mode| mode & (S_ISUID | S_ISGID) != 0)
}

/// Whether an extended attribute is about privileges: file capabilities, labels and signatures of the content, access control
/// lists, which change the mode.
pub(super) fn is_of_privileges(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"security.") || name.starts_with(b"system.posix_acl_")
}

/// Writes what is dirty before privileges are set, if the inode has data.
///
/// # Errors
/// Those of the source: the privileges are not to be set then.
pub(super) fn write_before_privileges(inode: &Inode) -> Result<(), Errno> {
    match inode.kind() {
        FileKind::Regular if !foliocache_sync::planted!(privileges_before_data) => {
            NodeOps::of(inode)?.write_and_wait()
        }
        _ => Ok(()),
    }
}

impl NodeOps {
    /// Has the source get all that was written before the call, with the time of its last write; does not flush it.
    ///
    /// Context: no lock that a write of the file takes; blocks on I/O.
    ///
    /// # Errors
    /// Those of the source: data that it did not take stays dirty, and handles get the error. `ECHILD` after a fork.
    pub(super) fn write_and_wait(&self) -> Result<(), Errno> {
        self.shared.bdi.mm().check_fork()?;
        let Some(mapping) = self.file().mapping() else {
            return Ok(());
        };
        if !mapping.has_unwritten() {
            return Ok(());
        }
        // Also after a panic: a file without handles has no other call that closes the descriptors that this opens.
        let closing = Closing(self);
        if !self.is_unlinked() && self.write_in_batch() && !mapping.has_unwritten() {
            // The batch closes it.
            mem::forget(closing);
            return Ok(());
        }
        mapping.write_and_wait()?;
        // Tried again before a flush.
        let _ = self.write_inode();
        Ok(())
    }
}
