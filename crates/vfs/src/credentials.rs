//! The caller of a path walk, and its permissions.
//!
//! # Model
//!
//! The file systems below check no permissions. A front door whose callers differ gives [`Credentials`]
//! with each call, and mode, owner and group decide as in the kernel; one whose callers are all the
//! process itself gives none, and the backing store decides.
//!
//! # Differences from Linux
//!
//! - Privilege is one bit, not a set of capabilities.
//! - Access control lists are not consulted: where the backing store has them, the group bits of the mode are their
//!   upper limit.
//! - `fs.protected_hardlinks` and its kin, which restrict links and sticky directories further, are not read.
//! - A write by a user outside the file's group leaves `S_ISGID` on a file without group execute, where it has no
//!   effect. A mount clears it ([`written_mode`](crate::written_mode)).

use crate::attr::{AttrCell, cleared_set_id};
use crate::inode::Inode;
use crate::types::{Attr, FileKind, OpContext, S_ISGID, S_ISVTX, SetAttr, SetTime};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::ffi::OsStr;

/// A user, a group and further groups. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "cred")]
pub struct Credentials {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    privileged: bool,
}

/// The requested access to an inode: bits of [`Access`] as in the mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Reading, or listing a directory.
    pub const READ: Access = Access(4);
    /// Writing, or changing the names in a directory.
    pub const WRITE: Access = Access(2);
    /// Executing, or going through a directory.
    #[doc(alias = "MAY_EXEC")]
    pub const EXECUTE: Access = Access(1);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl Credentials {
    /// A user without privilege, unless it is user 0.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: groups.into(),
            privileged: uid == 0,
        }
    }

    /// Whether they are the same to a permission check. May take equal ones for different.
    #[inline(always)]
    pub(crate) fn same(&self, other: &Credentials) -> bool {
        self.uid == other.uid
            && self.gid == other.gid
            && self.privileged == other.privileged
            && (Arc::ptr_eq(&self.groups, &other.groups)
                || (self.groups.is_empty() && other.groups.is_empty()))
    }

    /// Differs for most users.
    #[inline(always)]
    pub(crate) fn tag(&self) -> u64 {
        u64::from(self.uid) << 24 | 1
    }

    /// For creating files, and for clearing set-id bits.
    pub fn context(&self, pid: u32, umask: u32) -> OpContext {
        OpContext {
            uid: self.uid,
            gid: self.gid,
            pid,
            umask,
        }
    }

    /// Whether permissions do not bind them.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// Whether they belong to a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the mode allows all of `access`. A privileged user may do everything except execute a regular file
    /// without any execute bit.
    ///
    /// Takes no lock and writes nothing.
    ///
    /// # Errors
    /// `EACCES`.
    #[doc(alias = "inode_permission")]
    #[inline]
    pub fn check(&self, inode: &Inode, access: Access) -> Result<(), Errno> {
        if self.allows(inode.attributes(), access) || self.overrides(inode, access) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// As [`Credentials::check`], of a directory that has no inode.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check_uncached(&self, dir: &Attr, access: Access) -> Result<(), Errno> {
        let allowed = self.privileged || self.allows_class((dir.mode, dir.uid, dir.gid), access);
        allowed.then_some(()).ok_or(Errno::EACCES)
    }

    #[inline(always)]
    fn allows(&self, attributes: &AttrCell, access: Access) -> bool {
        // Most directories are searchable by all users.
        let everybody = access.0 * 0o111;
        attributes.mode() & everybody == everybody || self.allows_class(attributes.owner(), access)
    }

    fn allows_class(&self, (mode, uid, gid): (u32, u32, u32), access: Access) -> bool {
        let shift = if uid == self.uid {
            6
        } else if self.in_group(gid) && !foliocache_sync::planted!(group_rights_not_asked) {
            3
        } else {
            0
        };
        mode >> shift & access.0 == access.0
    }

    #[cold]
    fn overrides(&self, inode: &Inode, access: Access) -> bool {
        let (mode, ..) = inode.attributes().owner();
        self.privileged
            && (access.0 & Access::EXECUTE.0 == 0 || inode.is_directory() || mode & 0o111 != 0)
    }

    /// The mode of a new file in `dir`. A creator outside the group that it inherits from the directory cannot set
    /// set-group-id.
    #[doc(alias = "mode_strip_sgid")]
    pub(crate) fn new_mode(&self, dir: &Inode, kind: FileKind, mode: u32) -> u32 {
        let (above, _, gid) = dir.attributes().owner();
        let set_group_id = S_ISGID | 0o010;
        let strips = kind != FileKind::Directory
            && mode & set_group_id == set_group_id
            && above & S_ISGID != 0
            && !self.may_set_group_id(gid);
        if strips { mode & !S_ISGID } else { mode }
    }

    #[doc(alias = "in_group_or_capable")]
    fn may_set_group_id(&self, gid: u32) -> bool {
        self.privileged || self.in_group(gid)
    }

    /// Whether they may set these attributes; returns the attributes to set.
    ///
    /// # Errors
    /// `EPERM`; `EACCES` for the size and for times that become the present.
    #[doc(alias = "setattr_prepare")]
    pub(crate) fn check_set(&self, inode: &Inode, set: &SetAttr) -> Result<SetAttr, Errno> {
        let mut set = *set;
        let (mode, owner, group) = inode.attributes().owner();
        let owns = owner == self.uid;
        if set.size.is_some() {
            match inode.kind() {
                FileKind::Regular => self.check(inode, Access::WRITE)?,
                FileKind::Directory => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
        }
        if let (Some(SetTime::Now), Some(SetTime::Now)) = (set.atime, set.mtime) {
            if self.check_owner(inode).is_err() {
                self.check(inode, Access::WRITE)?;
            }
        } else if set.atime.is_some() || set.mtime.is_some() {
            self.check_owner(inode)?;
        }
        if let Some(uid) = set.uid
            && !(self.privileged || owns && uid == owner)
        {
            return Err(Errno::EPERM);
        }
        if let Some(gid) = set.gid
            && !(self.privileged || owns && (gid == group || self.in_group(gid)))
        {
            return Err(Errno::EPERM);
        }
        if let Some(mode) = &mut set.mode {
            self.check_owner(inode)?;
            let may = self.may_set_group_id(set.gid.unwrap_or(group));
            if !may && !foliocache_sync::planted!(set_group_id_kept) {
                *mode &= !S_ISGID;
            }
        } else if inode.kind() != FileKind::Directory && inode.kind() != FileKind::Symlink {
            let gives = set.uid.is_some() || set.gid.is_some();
            let cuts = set.size.is_some() && !self.privileged;
            let mut left = mode;
            if gives || cuts {
                left = cleared_set_id(mode);
                if !self.may_set_group_id(group) {
                    left &= !S_ISGID;
                }
            }
            set.mode = (left != mode).then_some(left);
        }
        Ok(set)
    }

    /// Whether they may change mode and times of an inode, as its owner or a privileged user.
    ///
    /// # Errors
    /// `EPERM`.
    #[doc(alias = "inode_owner_or_capable")]
    pub fn check_owner(&self, inode: &Inode) -> Result<(), Errno> {
        let (_, owner, _) = inode.attributes().owner();
        match owner == self.uid || self.privileged {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// Whether they may read or change an extended attribute: `user.*` as the data of files and directories, access
    /// control lists as their owner. All others are readable by all and changeable by privileged users, except
    /// `trusted.*`, which only privileged users see.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`; `ENODATA` for reading a hidden attribute.
    #[doc(alias = "xattr_permission")]
    pub fn check_xattr(&self, inode: &Inode, name: &OsStr, write: bool) -> Result<(), Errno> {
        let name = name.as_encoded_bytes();
        let hidden = if write { Errno::EPERM } else { Errno::ENODATA };
        if name.starts_with(b"user.") {
            let (mode, ..) = inode.attributes().owner();
            if !matches!(inode.kind(), FileKind::Regular | FileKind::Directory) {
                return Err(hidden);
            }
            if write && inode.is_directory() && mode & S_ISVTX != 0 {
                self.check_owner(inode)?;
            }
            self.check(inode, if write { Access::WRITE } else { Access::READ })
        } else if name.starts_with(b"trusted.") {
            self.privileged.then_some(()).ok_or(hidden)
        } else if write && name.starts_with(b"system.posix_acl_") {
            self.check_owner(inode)
        } else if write && !self.privileged {
            Err(Errno::EPERM)
        } else {
            Ok(())
        }
    }

    /// Whether they may make names in a directory.
    ///
    /// # Errors
    /// `EACCES`.
    #[doc(alias = "may_create")]
    pub fn check_create(&self, dir: &Inode) -> Result<(), Errno> {
        self.check(dir, Access::WRITE.and(Access::EXECUTE))
    }

    /// Whether they may take the name of `victim` out of a directory, or give it to another: in a sticky
    /// one that is up to the owners of the two.
    ///
    /// # Errors
    /// `EACCES`, `EPERM` in a sticky directory.
    #[doc(alias = "may_delete")]
    pub fn check_delete(&self, dir: &Inode, victim: &Inode) -> Result<(), Errno> {
        self.check_create(dir)?;
        let (mode, owner, _) = dir.attributes().owner();
        if mode & S_ISVTX == 0 || owner == self.uid || self.privileged {
            return Ok(());
        }
        match victim.attributes().owner() {
            (_, owner, _) if owner == self.uid => Ok(()),
            _ => Err(Errno::EPERM),
        }
    }
}
