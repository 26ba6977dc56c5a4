//! Extended attributes, with a caller's credentials.
//!
//! # Locking
//!
//! Changes hold the inode's lock of names and attributes from before the check of the permission on, see [`super`].

use super::SuperBlock;
use crate::credentials::Credentials;
use crate::inode::Inode;
use crate::types::XattrMode;
use foliocache_mm::slab::SlabArc;
use foliocache_sys::Errno;
use std::ffi::OsStr;

/// Errors are those of the [`FileSystem`](crate::FileSystem)'s operation of the same name, and those of
/// [`Credentials::check_xattr`].
impl SuperBlock {
    /// The value of an extended attribute.
    pub fn getxattr(
        &self,
        inode: &SlabArc<Inode>,
        name: &OsStr,
        credentials: Option<&Credentials>,
    ) -> Result<Vec<u8>, Errno> {
        self.permit(inode, credentials, |by| by.check_xattr(inode, name, false))?;
        self.fs().getxattr(inode, name)
    }

    /// Sets an extended attribute, or takes it away.
    pub fn setxattr(
        &self,
        inode: &SlabArc<Inode>,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: XattrMode,
        credentials: Option<&Credentials>,
    ) -> Result<(), Errno> {
        let attributes = inode.names().write();
        self.permit(inode, credentials, |by| by.check_xattr(inode, name, true))?;
        let done = self.fs().setxattr(inode, name, value, mode);
        drop(attributes);
        self.tell_of_writer(inode);
        done
    }
}
