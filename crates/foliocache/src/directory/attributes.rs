//! Attributes by path: permission bits, owner, times and extended attributes.

use foliocache_vfs::SetAttr;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::Directory;
use crate::attributes::{FileTimes, Permissions, owner};
use crate::error::{Operation, Result};

impl Directory {
    /// Sets the permission bits of the file at `path`; follows symbolic links.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM`, `EROFS`, [`Error::Escape`](crate::Error::Escape), those of the backing store.
    #[doc(alias = "chmod")]
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
        self.set(path.as_ref(), &permissions.to_set(), true)
    }

    /// Sets times of the file at `path`; follows symbolic links.
    ///
    /// # Errors
    /// As [`Directory::set_permissions`].
    #[doc(alias = "utimensat")]
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.set(path.as_ref(), &times.to_set(), true)
    }

    /// Sets owner and group of the file at `path`; follows symbolic links. A value of `None` is not
    /// changed. As [`std::os::unix::fs::chown`].
    ///
    /// # Errors
    /// As [`Directory::set_permissions`].
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(path.as_ref(), &owner(uid, gid), true)
    }

    /// As [`Directory::chown`], of a symbolic link itself. As [`std::os::unix::fs::lchown`].
    ///
    /// # Errors
    /// As [`Directory::set_permissions`].
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(path.as_ref(), &owner(uid, gid), false)
    }

    fn set(&self, path: &Path, set: &SetAttr, follow: bool) -> Result<()> {
        self.run(Operation::SetMetadata, path, |namei, path| {
            namei.on_inode(path, follow, |_, inode| {
                self.rights.setattr(self.mount(), inode, set)
            })
        })
    }

    /// The value of an extended attribute of the file at `path`, such as `user.mime_type`; `None` if it has no
    /// attribute of that name. Follows symbolic links.
    ///
    /// # Errors
    /// `ENOENT`, `EOPNOTSUPP` where the store lacks such attributes, `EACCES`,
    /// [`Error::Escape`](crate::Error::Escape), those of the backing store.
    pub fn get_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>> {
        self.inode(Operation::GetXattr, path.as_ref(), |_, inode| {
            self.rights.get_xattr(self.mount(), inode, name.as_ref())
        })
    }

    /// Sets an extended attribute of the file at `path`, and replaces one of that name. Follows
    /// symbolic links.
    ///
    /// # Errors
    /// As [`Directory::get_xattr`]; `EPERM`, `EROFS`, `ENOSPC`, `ERANGE` for a name and `E2BIG` for a value that is too long.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.inode(Operation::SetXattr, path.as_ref(), |_, inode| {
            let (name, value) = (name.as_ref(), Some(value.as_ref()));
            self.rights.set_xattr(self.mount(), inode, name, value)
        })
    }

    /// Removes an extended attribute of the file at `path`; follows symbolic links.
    ///
    /// # Errors
    /// As [`Directory::set_xattr`]; `ENODATA` if there is none of that name.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.inode(Operation::SetXattr, path.as_ref(), |_, inode| {
            self.rights
                .set_xattr(self.mount(), inode, name.as_ref(), None)
        })
    }

    /// The names of the extended attributes of the file at `path`; follows symbolic links.
    ///
    /// # Errors
    /// As [`Directory::get_xattr`].
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.inode(Operation::GetXattr, path.as_ref(), |_, inode| {
            self.rights.list_xattrs(self.mount(), inode)
        })
    }
}
