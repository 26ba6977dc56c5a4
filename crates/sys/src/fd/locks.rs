//! Locks of open files: `flock(2)`, and byte ranges.
//!
//! # Model
//!
//! Both kinds belong to the open file description, not to the process: two opens of one file exclude each other
//! within one process too, while a duplicate of a descriptor, or a forked child, shares the lock. The two kinds do
//! not see each other, except on NFS, where `flock(2)` is a lock of the whole range. Closing the last descriptor
//! unlocks.
//!
//! Range locks are Linux's *open file description locks* (`F_OFD_SETLK`). They exclude those that other processes take by `fcntl(2)`,
//! of the old kind too.
//!
//! # Safety
//!
//! The calls read and write the `struct flock` that they are given, which lives until they return.
#![allow(unsafe_code)]

use super::BorrowedFd;
use crate::Errno;
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// With whom a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// With others that have a shared lock.
    #[doc(alias("LOCK_SH", "F_RDLCK"))]
    Shared,
    /// Excludes every other lock.
    #[doc(alias("LOCK_EX", "F_WRLCK"))]
    Exclusive,
}

/// Locks the file behind `fd`: others then cannot lock it, or but share the lock, this process by another opening of it included. Does
/// not block. A fork's child shares the lock. A shared lock replaces an exclusive one of this descriptor, not atomically: if
/// another description takes an exclusive lock in between, the descriptor ends up without one.
///
/// # Errors
///
/// Those of `flock(2)`: `EWOULDBLOCK` if another description has it locked; `EBADF` for an `O_PATH`
/// descriptor.
#[doc(alias = "flock")]
pub fn try_lock(fd: BorrowedFd<'_>, kind: LockKind) -> Result<(), Errno> {
    let how = match kind {
        LockKind::Shared => FlockOperation::NonBlockingLockShared,
        LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    Ok(flock(fd, how)?)
}

/// As [`try_lock`], and waits for others.
///
/// # Errors
///
/// As [`try_lock`], without `EWOULDBLOCK`; `ENOLCK` if the kernel has no memory for it.
pub fn lock(fd: BorrowedFd<'_>, kind: LockKind) -> Result<(), Errno> {
    let how = match kind {
        LockKind::Shared => FlockOperation::LockShared,
        LockKind::Exclusive => FlockOperation::LockExclusive,
    };
    Ok(retry_on_intr(|| flock(fd, how))?)
}

/// Releases the lock of [`try_lock`], for forked children too.
///
/// # Errors
///
/// Those of `flock(2)`.
pub fn unlock(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    Ok(flock(fd, FlockOperation::Unlock)?)
}

/// Locks a range of bytes, which may lie beyond the end of the file, and replaces the descriptor's locks there.
/// Waits for other holders; a deadlock is not noticed.
///
/// # Errors
///
/// `EINVAL` for an empty range or one that begins beyond the largest offset; `EBADF` if the descriptor is not open for reading, or
/// for an exclusive lock not for writing; `ENOLCK`.
#[doc(alias = "F_OFD_SETLKW")]
pub fn lock_range(fd: BorrowedFd<'_>, range: &Range<u64>, kind: LockKind) -> Result<(), Errno> {
    let mut lock = structure(range, Some(kind))?;
    loop {
        match call(fd, libc::F_OFD_SETLKW, &mut lock) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// As [`lock_range`]. Does not wait.
///
/// # Errors
///
/// As [`lock_range`]; `EAGAIN` if another description has a part of it locked.
#[doc(alias = "F_OFD_SETLK")]
pub fn try_lock_range(fd: BorrowedFd<'_>, range: &Range<u64>, kind: LockKind) -> Result<(), Errno> {
    match call(fd, libc::F_OFD_SETLK, &mut structure(range, Some(kind))?) {
        // Both are allowed to say so.
        Err(Errno::EACCES) => Err(Errno::EAGAIN),
        done => done,
    }
}

/// Takes the locks of [`lock_range`] away from a range.
///
/// # Errors
///
/// As [`lock_range`].
pub fn unlock_range(fd: BorrowedFd<'_>, range: &Range<u64>) -> Result<(), Errno> {
    call(fd, libc::F_OFD_SETLK, &mut structure(range, None)?)
}

/// Whether another description holds a lock on a part of the range that conflicts with this kind.
/// Does not block.
///
/// # Errors
///
/// As [`lock_range`].
#[doc(alias = "F_OFD_GETLK")]
pub fn is_range_locked(
    fd: BorrowedFd<'_>,
    range: &Range<u64>,
    kind: LockKind,
) -> Result<bool, Errno> {
    let mut lock = structure(range, Some(kind))?;
    call(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// The structure of `fcntl(2)`: a lock of this kind, or none.
fn structure(range: &Range<u64>, kind: Option<LockKind>) -> Result<libc::flock, Errno> {
    let start = i64::try_from(range.start).map_err(|_| Errno::EINVAL)?;
    if range.is_empty() {
        return Err(Errno::EINVAL);
    }
    // The last lockable byte is at the largest offset, which no length reaches. A length of 0 means
    // "to the end".
    let len = match range.end > i64::MAX as u64 {
        true => 0,
        false => range.end as i64 - start,
    };
    let kind = match kind {
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    // SAFETY: the structure is plain numbers, all of which may be zero. The kernel wants `l_pid` to be.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, len);
    Ok(lock)
}

fn call(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: see the module's header.
    let called = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    Errno::result(called).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::{OFlags, OwnedFd};
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn ranges_are_locked_up_to_the_largest_offset_and_no_further() {
        let lock = |range| structure(&range, Some(LockKind::Shared)).map(|lock| lock.l_len);
        assert_eq!(lock(5..6), Ok(1));
        assert_eq!(lock(5..i64::MAX as u64), Ok(i64::MAX - 5));
        assert_eq!(lock(5..u64::MAX), Ok(0));
        assert_eq!(lock(5..5), Err(Errno::EINVAL));
        assert_eq!(lock(1 << 63..u64::MAX), Err(Errno::EINVAL));
    }

    #[test]
    fn two_openings_exclude_each_other_where_ranges_overlap() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || file.reopen().unwrap();
        let (one, other) = (open(), open());
        let (one, other) = (one.as_fd(), other.as_fd());
        lock_range(one, &(10..20), LockKind::Exclusive).unwrap();
        let try_other = |range| try_lock_range(other, &range, LockKind::Shared);
        assert_eq!(try_other(19..30), Err(Errno::EAGAIN));
        assert_eq!(try_other(20..30), Ok(()));
        assert_eq!(is_range_locked(other, &(0..11), LockKind::Shared), Ok(true));
        assert_eq!(
            is_range_locked(one, &(0..20), LockKind::Exclusive),
            Ok(false)
        );
        lock_range(one, &(10..20), LockKind::Shared).unwrap();
        assert_eq!(try_other(10..20), Ok(()));
        unlock_range(other, &(0..u64::MAX)).unwrap();
        assert_eq!(
            is_range_locked(one, &(0..u64::MAX), LockKind::Exclusive),
            Ok(false)
        );
    }

    #[test]
    fn a_byte_of_a_directory_is_locked_for_all_to_see() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || super::super::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
        let (one, two) = (open(), open());
        let lock = |fd: &OwnedFd, kind| try_lock_range(fd.as_fd(), &(7..8), kind);
        let is_locked = |fd: &OwnedFd, byte| {
            is_range_locked(fd.as_fd(), &(byte..byte + 1), LockKind::Exclusive)
        };
        lock(&one, LockKind::Shared).unwrap();
        assert_eq!(is_locked(&one, 7), Ok(false));
        assert_eq!(is_locked(&two, 7), Ok(true));
        assert_eq!(is_locked(&two, 8), Ok(false));
        lock(&two, LockKind::Shared).unwrap();
        assert_eq!(is_locked(&one, 7), Ok(true));
        unlock_range(two.as_fd(), &(7..8)).unwrap();
        drop(one);
        assert_eq!(is_locked(&two, 7), Ok(false));
        assert_eq!(lock(&two, LockKind::Exclusive), Err(Errno::EBADF));
    }
}
