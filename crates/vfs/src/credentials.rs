//! On whose behalf a path is walked, and what they may do.
//!
//! # Model
//!
//! The file systems below check no permissions. A front door whose callers differ gives [`Credentials`]
//! with each call, and mode, owner and group decide as in the kernel; one whose callers are all the
//! process itself gives none, and the backing store decides.
//!
//! # Differences from Linux
//!
//! Privilege is one bit, not a set of capabilities. Access control lists are not looked at: where the
//! backing store has them, the group bits of the mode are what they allow at most.

use crate::attr::AttrCell;
use crate::inode::Inode;
use crate::types::{OpContext, S_ISVTX};
use foliocache_sync::Arc;
use foliocache_sys::Errno;

/// A user, a group and further groups. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "cred")]
pub struct Credentials {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    privileged: bool,
}

/// What is to be done with an inode: bits of [`Access`] as in the mode of a file.
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

    /// For what is made, and for clearing set-id bits.
    pub fn context(&self, pid: u32, umask: u32) -> OpContext {
        OpContext {
            uid: self.uid,
            gid: self.gid,
            pid,
            umask,
        }
    }

    /// Whether nothing but the set-id bits restrains them.
    pub fn privileged(&self) -> bool {
        self.privileged
    }

    /// Whether they belong to a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the mode lets them do all of `access`. A privileged user may do everything but execute
    /// a regular file that nobody may execute.
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

    #[inline(always)]
    fn allows(&self, attributes: &AttrCell, access: Access) -> bool {
        // Most directories may be searched by everybody.
        let everybody = access.0 * 0o111;
        attributes.mode() & everybody == everybody || self.allows_class(attributes, access)
    }

    fn allows_class(&self, attributes: &AttrCell, access: Access) -> bool {
        let (mode, uid, gid) = attributes.owner();
        let shift = if uid == self.uid {
            6
        } else if self.in_group(gid) {
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

    /// Whether they may change mode and times of an inode: those of its owner, or of a privileged user.
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
