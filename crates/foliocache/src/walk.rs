//! From a relative path to an inode, without ever leaving the directory it starts in.
//!
//! # Model
//!
//! ```text
//!  pending:  "c" "b" "a"      names still to look up, the next one last
//!  stack:    root ▸ a ▸ b     the directories walked through; `..` goes back by one
//! ```
//!
//! Names are looked up one by one, each in the inode that the last look-up gave. A symbolic link is
//! replaced by the names that it holds, which start where the link lies.
//!
//! # Invariants
//!
//! 1. The stack begins with the directory that the walk started in, and every other inode on it
//!    came from a look-up in the one before. `..` on the first is an escape, and so is an absolute
//!    path: wherever names are moved meanwhile, the walk does not come out above its start.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{FileKind, FileSystem, Inode};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Symbolic links followed before a walk is taken to be endless, as in the kernel.
const MAX_LINKS: usize = 40;

/// Longest path or target of a symbolic link, in bytes.
const MAX_PATH: usize = 4096;

/// Why a walk ended early.
pub(crate) enum WalkError {
    /// A look-up failed.
    Errno(Errno),
    /// The path leads out of the directory.
    Escape,
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Where a walk ended.
pub(crate) struct Found {
    /// The directory that holds the last name.
    pub(crate) parent: Arc<Inode>,
    /// The last name; `None` if the path ends with `.` or `..`.
    pub(crate) name: Option<OsString>,
    /// What the last name leads to; `None` if nothing has that name.
    pub(crate) inode: Option<Arc<Inode>>,
    /// Whether the path ends with a slash, so that only a directory will do.
    pub(crate) wants_directory: bool,
}

/// Walks `path` from `root`; with `follow` a symbolic link at the end is followed, too.
pub(crate) fn walk(
    fs: &dyn FileSystem,
    root: &Arc<Inode>,
    path: &OsStr,
    follow: bool,
) -> Result<Found, WalkError> {
    let mut pending = Vec::new();
    let mut wants_directory = push(&mut pending, path)?;
    let mut stack = vec![Arc::clone(root)];
    let mut links = 0;
    while let Some(name) = pending.pop() {
        let last = pending.is_empty();
        let dir = stack.last().expect("invariant 1");
        if dir.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        match name.as_bytes() {
            b"." => continue,
            b".." => {
                if stack.len() == 1 {
                    return Err(WalkError::Escape);
                }
                stack.pop();
                continue;
            }
            _ => {}
        }
        let found = |inode| Found {
            parent: Arc::clone(dir),
            name: Some(name.clone()),
            inode,
            wants_directory,
        };
        let inode = match fs.lookup(dir, &name) {
            Ok(inode) => inode,
            Err(Errno::ENOENT) if last => return Ok(found(None)),
            Err(errno) => return Err(errno.into()),
        };
        if inode.kind() == FileKind::Symlink && (!last || follow || wants_directory) {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::ELOOP.into());
            }
            let slash = push(&mut pending, &fs.readlink(&inode)?)?;
            wants_directory |= last && slash;
            continue;
        }
        if last {
            if wants_directory && inode.kind() != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            return Ok(found(Some(inode)));
        }
        stack.push(inode);
    }
    let dir = stack.pop().expect("invariant 1");
    Ok(Found {
        parent: Arc::clone(&dir),
        name: None,
        inode: Some(dir),
        wants_directory: true,
    })
}

/// Puts the names of `path` before those that are pending; whether it ends with a slash.
fn push(pending: &mut Vec<OsString>, path: &OsStr) -> Result<bool, WalkError> {
    let bytes = path.as_bytes();
    match bytes {
        [] => return Err(Errno::ENOENT.into()),
        [b'/', ..] => return Err(WalkError::Escape),
        _ if bytes.len() >= MAX_PATH => return Err(Errno::ENAMETOOLONG.into()),
        _ => {}
    }
    let names = bytes.split(|&byte| byte == b'/').rev();
    pending.extend(
        names
            .filter(|name| !name.is_empty())
            .map(|name| OsStr::from_bytes(name).to_owned()),
    );
    Ok(bytes.last() == Some(&b'/'))
}
