//! Attributes of an open file: permission bits, owner, times and extended attributes.

use foliocache_vfs::SetAttr;
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use super::File;
use crate::attributes::{FileTimes, Permissions, owner};
use crate::error::{Operation, Result};

/// None of these needs a file that is open for writing, as in the kernel.
impl File {
    /// Sets the permission bits.
    ///
    /// # Errors
    /// `EPERM`, `EROFS` if the [`Directory`](crate::Directory) was opened read-only, `ECHILD` after a fork, those of the
    /// backing store.
    #[doc(alias = "fchmod")]
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        self.set(&permissions.to_set())
    }

    /// Sets times.
    ///
    /// # Errors
    /// As [`File::set_permissions`].
    #[doc(alias = "futimens")]
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.set(&times.to_set())
    }

    /// Sets the time of the last change of the data.
    ///
    /// # Errors
    /// As [`File::set_permissions`].
    pub fn set_modified(&self, time: SystemTime) -> Result<()> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// Sets owner and group. A value of `None` is not changed. As [`std::os::unix::fs::fchown`].
    ///
    /// # Errors
    /// As [`File::set_permissions`].
    #[doc(alias = "fchown")]
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(&owner(uid, gid))
    }

    fn set(&self, set: &SetAttr) -> Result<()> {
        self.with(Operation::SetMetadata, |open| {
            self.rights.setattr(&self.mount, open.inode(), set)
        })
    }

    /// The value of an extended attribute; `None` if there is none of that name.
    ///
    /// # Errors
    /// As [`Directory::get_xattr`](crate::Directory::get_xattr).
    pub fn get_xattr(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        self.with(Operation::GetXattr, |open| {
            self.rights
                .get_xattr(&self.mount, open.inode(), name.as_ref())
        })
    }

    /// Sets an extended attribute, whether or not there is one of that name.
    ///
    /// # Errors
    /// As [`Directory::set_xattr`](crate::Directory::set_xattr).
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>) -> Result<()> {
        self.with(Operation::SetXattr, |open| {
            let (name, value) = (name.as_ref(), Some(value.as_ref()));
            self.rights
                .set_xattr(&self.mount, open.inode(), name, value)
        })
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    /// As [`Directory::remove_xattr`](crate::Directory::remove_xattr).
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.with(Operation::SetXattr, |open| {
            self.rights
                .set_xattr(&self.mount, open.inode(), name.as_ref(), None)
        })
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// As [`Directory::list_xattrs`](crate::Directory::list_xattrs).
    pub fn list_xattrs(&self) -> Result<Vec<OsString>> {
        self.with(Operation::GetXattr, |open| {
            self.rights.list_xattrs(&self.mount, open.inode())
        })
    }
}
