//! The rights of a handle, and the changes of attributes that they allow.

use foliocache_sys::Errno;
use foliocache_vfs::{Credentials, Inode, OpContext, SetAttr, SlabArc, SuperBlock, XattrMode};
use std::ffi::{OsStr, OsString};

use crate::mount::VfsMount;

/// The user for which a handle acts, and whether it may change anything.
#[derive(Clone, Default)]
pub(crate) struct Rights {
    /// Without them no permissions are checked: the backing store decides.
    pub(crate) credentials: Option<Credentials>,
    /// Nothing may be changed.
    pub(crate) read_only: bool,
}

impl Rights {
    pub(crate) fn ctx(&self, mount: &VfsMount) -> OpContext {
        let process = mount.ctx;
        match &self.credentials {
            Some(credentials) => credentials.context(process.pid, process.umask),
            None => process,
        }
    }

    /// The file system, for a change.
    fn writable<'a>(&self, mount: &'a VfsMount) -> Result<&'a SuperBlock, Errno> {
        let names = mount.super_block()?;
        match self.read_only {
            true => Err(Errno::EROFS),
            false => Ok(names),
        }
    }

    pub(crate) fn setattr(
        &self,
        mount: &VfsMount,
        inode: &SlabArc<Inode>,
        set: &SetAttr,
    ) -> Result<(), Errno> {
        let (names, credentials) = (self.writable(mount)?, self.credentials.as_ref());
        let done = names.setattr(&self.ctx(mount), inode, set, credentials);
        done.map(drop)
    }

    /// `None` if there is no attribute of that name.
    pub(crate) fn get_xattr(
        &self,
        mount: &VfsMount,
        inode: &SlabArc<Inode>,
        name: &OsStr,
    ) -> Result<Option<Vec<u8>>, Errno> {
        let names = mount.super_block()?;
        match names.getxattr(inode, name, self.credentials.as_ref()) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::ENODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Takes the attribute away without a value.
    pub(crate) fn set_xattr(
        &self,
        mount: &VfsMount,
        inode: &SlabArc<Inode>,
        name: &OsStr,
        value: Option<&[u8]>,
    ) -> Result<(), Errno> {
        let (names, credentials) = (self.writable(mount)?, self.credentials.as_ref());
        names.setxattr(inode, name, value, XattrMode::Set, credentials)
    }

    /// The names that the holder of the handle sees.
    pub(crate) fn list_xattrs(
        &self,
        mount: &VfsMount,
        inode: &SlabArc<Inode>,
    ) -> Result<Vec<OsString>, Errno> {
        let mut names = mount.super_block()?.fs().listxattr(inode)?;
        if let Some(credentials) = &self.credentials
            && !credentials.is_privileged()
        {
            names.retain(|name| !name.as_encoded_bytes().starts_with(b"trusted."));
        }
        Ok(names)
    }
}
