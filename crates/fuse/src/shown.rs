//! Owners and modes that the mount shows in place of the source's.
//!
//! # Model
//!
//! The replacement is visible to programs, and the kernel checks permissions by it. The source keeps its own values: a new file
//! belongs to its creator there, and `chown` and `chmod` change the source, but not what is shown.
//!
//! # Invariants
//!
//! 1. While anything is replaced, `chmod` sets no set-id bit. Otherwise a user who is shown as the owner of root's file could make
//!    it a set-user-id program of root.

use fuser::FileAttr;

/// The permission bits that a mask applies to.
const PERMISSIONS: u16 = 0o777;
/// The bits that run a program as its owner or group.
const SET_ID: u32 = 0o6000;

/// Owner, group and permissions that replace those of all files. `None` keeps the file's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown {
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// All permissions are shown but those in this mask. Set-id and sticky bits are not shown, and access control lists are
    /// ignored.
    pub umask: Option<u16>,
}

impl Shown {
    /// Attributes as they are shown.
    pub(crate) fn attr(&self, attr: FileAttr) -> FileAttr {
        FileAttr {
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            perm: match self.umask {
                Some(umask) => PERMISSIONS & !umask,
                None => attr.perm,
            },
            ..attr
        }
    }

    /// The mode that is set when a program asks for `mode`.
    pub(crate) fn mode_to_set(&self, mode: u32) -> u32 {
        match self {
            Shown {
                uid: None,
                gid: None,
                umask: None,
            } => mode,
            _ => mode & !SET_ID,
        }
    }

    /// Whether access control lists are ignored.
    pub(crate) fn hides_lists(&self) -> bool {
        self.umask.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use std::time::Duration;

    #[test]
    fn owner_and_mode_are_replaced_where_that_is_said() {
        let own = FileAttr {
            uid: 1,
            gid: 2,
            perm: 0o7751,
            ..Entry::absent(Duration::ZERO).attr
        };
        let shown = |uid, gid, umask| {
            let attr = Shown { uid, gid, umask }.attr(own);
            (attr.uid, attr.gid, attr.perm)
        };
        assert_eq!(shown(None, None, None), (1, 2, 0o7751));
        assert_eq!(shown(Some(0), Some(7), None), (0, 7, 0o7751));
        assert_eq!(shown(None, None, Some(0o027)), (1, 2, 0o750));
    }

    #[test]
    fn no_set_id_bit_is_set_where_another_owner_is_shown() {
        let uid = Shown {
            uid: Some(1000),
            ..Shown::default()
        };
        assert_eq!(uid.mode_to_set(0o7755), 0o1755);
        assert_eq!(Shown::default().mode_to_set(0o7755), 0o7755);
    }
}
