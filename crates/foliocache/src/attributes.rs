//! Attributes as they are set: permission bits and times.

use foliocache_vfs::{PERMISSION_BITS, SetAttr, SetTime};
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use crate::setters::setters;

/// The permissions of a file: which users may read, write and execute it. As [`std::fs::Permissions`].
///
/// [`PermissionsExt`] makes them of permission bits, and gives these.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use foliocache::Permissions;
/// use std::os::unix::fs::PermissionsExt;
///
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// # let dir = cache.memfs()?;
/// dir.write("key", "secret")?;
/// dir.set_permissions("key", Permissions::from_mode(0o400))?;
/// assert!(dir.metadata("key")?.permissions().readonly());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions(u32);

impl Permissions {
    /// Whether no user may write, by the bits alone.
    pub fn readonly(&self) -> bool {
        self.0 & 0o222 == 0
    }

    /// Removes write permission for all, or grants it to all.
    pub fn set_readonly(&mut self, readonly: bool) {
        match readonly {
            true => self.0 &= !0o222,
            false => self.0 |= 0o222,
        }
    }

    pub(crate) fn to_set(&self) -> SetAttr {
        SetAttr {
            mode: Some(self.0),
            ..SetAttr::default()
        }
    }
}

impl PermissionsExt for Permissions {
    fn mode(&self) -> u32 {
        self.0
    }

    fn set_mode(&mut self, mode: u32) {
        self.0 = mode & PERMISSION_BITS;
    }

    fn from_mode(mode: u32) -> Self {
        Self(mode & PERMISSION_BITS)
    }
}

/// Times of a file that are to be set; as [`std::fs::FileTimes`]. Those that are not set stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "times change nothing before `set_times`"]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Sets no time.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The time of the last access.
        set_accessed(time: SystemTime) => accessed = Some(time);

        /// The time of the last change of the data.
        set_modified(time: SystemTime) => modified = Some(time);
    }

    pub(crate) fn to_set(self) -> SetAttr {
        let at = |time: SystemTime| SetTime::At(time.into());
        SetAttr {
            atime: self.accessed.map(at),
            mtime: self.modified.map(at),
            ..SetAttr::default()
        }
    }
}

/// An owner and a group that are to be set. A value of `None` stays.
pub(crate) fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr {
        uid,
        gid,
        ..SetAttr::default()
    }
}
