//! Directories: opening, making, removing and reading names below a directory descriptor.
//!
//! # Model
//!
//! A name handed to a function here is **one component**: not empty, not `.` or `..`, without `/`
//! and without NUL; anything else is refused before the kernel sees it (`ENOENT` for an empty
//! name, `EINVAL` otherwise). A symbolic link in the last place is never followed. So no name
//! leads out of the directory it is looked up in. Names that are too long are left to the kernel
//! (`ENAMETOOLONG`).
//!
//! Directory descriptors may be `O_PATH` ones, except for [`DirReader`], which opens the directory
//! again by itself.
//!
//! # Safety
//!
//! One call (`getdents64`) hands the kernel a buffer that this module owns.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};

use crate::Errno;
use crate::fd::{self, FileKind, Stat, uninterrupted};

pub mod mount;
mod reader;

pub use reader::{DirEntry, DirReader, entries, read_entries, seek};

/// `name`, if it is one component.
///
/// # Errors
///
/// `ENOENT` for an empty name; `EINVAL` for `.`, `..` and names with `/`. Those with NUL get it from the call.
fn component(name: &OsStr) -> Result<&OsStr, Errno> {
    match name.as_bytes() {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EINVAL),
        bytes if bytes.contains(&b'/') => Err(Errno::EINVAL),
        _ => Ok(name),
    }
}

fn mode_of(mode: u32) -> Mode {
    Mode::from_raw_mode(mode)
}

/// Opens `name` in `dir`, close-on-exec, never following a symbolic link: with `OFlags::PATH` the link itself is
/// opened. `mode` is used with `OFlags::CREATE` and is subject to the umask. May block.
///
/// # Errors
///
/// Those of `openat(2)`; `ELOOP` when the name is a symbolic link, `ENOTDIR` with `OFlags::DIRECTORY`.
pub fn openat(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    let name = component(name)?;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    uninterrupted(|| fs::openat(dir, name, flags, mode_of(mode)))
}

/// The attributes of `name` in `dir`. A symbolic link is not followed. May block.
///
/// # Errors
///
/// Those of `statx(2)`.
pub fn fstatat(dir: BorrowedFd<'_>, name: &OsStr) -> Result<Stat, Errno> {
    let name = component(name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    fd::stat_at(dir, name, flags)
}

/// Makes a directory; `mode` is subject to the umask. May block.
///
/// # Errors
///
/// Those of `mkdirat(2)`.
pub fn mkdirat(dir: BorrowedFd<'_>, name: &OsStr, mode: u32) -> Result<(), Errno> {
    let name = component(name)?;
    uninterrupted(|| fs::mkdirat(dir, name, mode_of(mode)))
}

/// Makes a file, pipe, socket or device node; `mode` is subject to the umask. `rdev` (a `dev_t`)
/// counts for devices only. May block.
///
/// # Errors
///
/// Those of `mknodat(2)`; `EINVAL` for directories, links and [`FileKind::Unknown`].
pub fn mknodat(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    kind: FileKind,
    mode: u32,
    rdev: u64,
) -> Result<(), Errno> {
    let name = component(name)?;
    if let FileKind::Directory | FileKind::Symlink | FileKind::Unknown = kind {
        return Err(Errno::EINVAL);
    }
    let kind = fs::FileType::from_raw_mode(kind.mode_bits());
    uninterrupted(|| fs::mknodat(dir, name, kind, mode_of(mode), rdev))
}

/// Makes a symbolic link `name` in `dir` that holds `target`, which may be any path. May block.
///
/// # Errors
///
/// Those of `symlinkat(2)`; `EINVAL` for a target with NUL.
pub fn symlinkat(target: &OsStr, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let name = component(name)?;
    uninterrupted(|| fs::symlinkat(target, dir, name))
}

/// The target of the symbolic link `link`, an `O_PATH` descriptor of the link itself. May block.
///
/// # Errors
///
/// Those of `readlinkat(2)`; `ENOENT` when it is no link.
pub fn readlink_fd(link: BorrowedFd<'_>) -> Result<OsString, Errno> {
    let target = fs::readlinkat(link, c"", Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()))
}

/// Gives the file behind `file` (which may be an `O_PATH` or an `O_TMPFILE` descriptor) the name
/// `new` in `new_dir`. May block.
///
/// # Errors
///
/// Those of `linkat(2)`; `ENOENT` for a file whose last name is gone.
pub fn link_fd(file: BorrowedFd<'_>, new_dir: BorrowedFd<'_>, new: &OsStr) -> Result<(), Errno> {
    let new = component(new)?;
    // By /proc, since AT_EMPTY_PATH wants a privilege.
    let path = fd::proc_path(file);
    Ok(fs::linkat(
        fs::CWD,
        path,
        new_dir,
        new,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

/// Removes the name of something that is not a directory. May block.
///
/// # Errors
///
/// Those of `unlinkat(2)`.
pub fn unlinkat(dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let name = component(name)?;
    uninterrupted(|| fs::unlinkat(dir, name, AtFlags::empty()))
}

/// Removes an empty directory. May block.
///
/// # Errors
///
/// Those of `unlinkat(2)`; `ENOTEMPTY` when something is in it.
pub fn rmdirat(dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let name = component(name)?;
    uninterrupted(|| fs::unlinkat(dir, name, AtFlags::REMOVEDIR))
}

/// How `rename` treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replaces the target.
    #[default]
    Replace,
    /// `EEXIST`.
    #[doc(alias = "RENAME_NOREPLACE")]
    NoReplace,
    /// The two names change places; both must exist.
    #[doc(alias = "RENAME_EXCHANGE")]
    Exchange,
    /// As [`RenameMode::Replace`], and a whiteout takes the old name: a character device with the number 0:0, which
    /// hides a name in an overlay of directories. `EINVAL` where the file system makes none.
    #[doc(alias = "RENAME_WHITEOUT")]
    Whiteout,
}

/// Renames `old` in `old_dir` to `new` in `new_dir`. May block.
///
/// # Errors
///
/// Those of `renameat2(2)`; `EINVAL` where the file system lacks the asked kind.
pub fn renameat2(
    old_dir: BorrowedFd<'_>,
    old: &OsStr,
    new_dir: BorrowedFd<'_>,
    new: &OsStr,
    how: RenameMode,
) -> Result<(), Errno> {
    let (old, new) = (component(old)?, component(new)?);
    let flags = match how {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
        RenameMode::Whiteout => RenameFlags::WHITEOUT,
    };
    uninterrupted(|| fs::renameat_with(old_dir, old, new_dir, new, flags))
}
