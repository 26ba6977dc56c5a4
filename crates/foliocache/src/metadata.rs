//! Attributes of files as they are read.

use foliocache_vfs::{Attr, FileKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::SystemTime;

use crate::attributes::Permissions;
use crate::error::{Error, Result};

/// The attributes of a file, directory or symbolic link; as [`std::fs::Metadata`].
///
/// [`MetadataExt`] gives owner, number of the inode and the like. Its `dev` is a number of the file system in this process,
/// not that of the device below; its `ino` is the number of the inode in this cache.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::unix::fs::MetadataExt;
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let dir = cache.memfs()?;
/// dir.write("list", "one\n")?;
/// let metadata = dir.metadata("list")?;
/// assert!(metadata.is_file() && metadata.len() == 4);
/// println!("changed {:?}, of user {}", metadata.modified()?, metadata.uid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
    dev: u64,
}

impl Metadata {
    /// `attr` of a file in the file system with the number `dev`.
    pub(crate) fn new(attr: Attr, dev: u64) -> Self {
        Self { attr, dev }
    }

    /// The kind of the file.
    pub fn file_type(&self) -> FileKind {
        self.attr.kind
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.attr.kind.is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind.is_dir()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.attr.kind.is_symlink()
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no collection")]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// The permissions: which users may read, write and execute the file.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.attr.mode)
    }

    /// Last change of the data.
    ///
    /// # Errors
    /// None: the result is that of `std`.
    pub fn modified(&self) -> Result<SystemTime> {
        Ok(self.attr.mtime.into())
    }

    /// Last access, as far as the file system keeps it. A read from the source moves it, a hit does not.
    ///
    /// # Errors
    /// None: the result is that of `std`.
    pub fn accessed(&self) -> Result<SystemTime> {
        Ok(self.attr.atime.into())
    }

    /// Creation.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system does not know it.
    pub fn created(&self) -> Result<SystemTime> {
        let created = self.attr.btime.map(SystemTime::from);
        created.ok_or(Error::Unsupported(
            "the file system keeps no time of creation",
        ))
    }

    /// Everything there is, in the file systems' own terms.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }
}

/// Methods that return parts of the attributes.
macro_rules! fields {
    ($attr:ident; $($(#[$about:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$about])* fn $name(&self) -> $type {
            let $attr = &self.attr;
            $value
        })*
    };
}

impl MetadataExt for Metadata {
    fn dev(&self) -> u64 {
        self.dev
    }

    fields! {
        attr;
        ino: u64 = attr.ino;
        /// Kind and permission bits.
        mode: u32 = attr.kind.mode_bits() | attr.mode;
        nlink: u64 = attr.nlink.into();
        uid: u32 = attr.uid;
        gid: u32 = attr.gid;
        rdev: u64 = attr.rdev.raw();
        size: u64 = attr.size;
        atime: i64 = attr.atime.sec;
        atime_nsec: i64 = attr.atime.nsec.into();
        mtime: i64 = attr.mtime.sec;
        mtime_nsec: i64 = attr.mtime.nsec.into();
        ctime: i64 = attr.ctime.sec;
        ctime_nsec: i64 = attr.ctime.nsec.into();
        blksize: u64 = attr.blksize.into();
        blocks: u64 = attr.blocks;
    }
}
