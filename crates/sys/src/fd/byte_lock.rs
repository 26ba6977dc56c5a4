//! Locks of a byte of a file or directory, which belong to an open file description (`F_OFD_SETLK`), and where a descriptor
//! leads.
//!
//! A descriptor that may only be read, as of a directory, can have a shared lock. That is enough to be noticed:
//! [`is_byte_locked`] tells of it.
//!
//! # Safety
//!
//! The calls read and write a `struct flock`, which lives until they return.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::{BorrowedFd, OFlags, proc_path};
use crate::Errno;

fn call(
    fd: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    byte: u64,
) -> Result<libc::flock, Errno> {
    // SAFETY: a `flock` is numbers alone, for which zeros are values.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = super::off(byte)?;
    lock.l_len = 1;
    super::retrying(|| {
        // SAFETY: `lock` is valid for reads and writes until the call returns.
        let done = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) };
        done as libc::ssize_t
    })?;
    Ok(lock)
}

/// Locks a byte of the file behind `fd`, in place of the lock that this opening of the file has there. Does not block.
/// A fork's child shares the lock.
///
/// # Errors
///
/// Those of `fcntl(2)`: `EAGAIN` where another opening has it locked; `EBADF` if `fd` is not open for writing, or for a shared
/// lock not for reading.
#[doc(alias = "F_OFD_SETLK")]
pub fn try_lock_byte(fd: BorrowedFd<'_>, byte: u64, shared: bool) -> Result<(), Errno> {
    let kind = match shared {
        true => libc::F_RDLCK,
        false => libc::F_WRLCK,
    };
    match call(fd, libc::F_OFD_SETLK, kind, byte) {
        Err(Errno::EACCES) => Err(Errno::EAGAIN),
        done => done.map(drop),
    }
}

/// Takes the lock of [`try_lock_byte`] away, from a fork's children, too.
///
/// # Errors
///
/// Those of `fcntl(2)`.
pub fn unlock_byte(fd: BorrowedFd<'_>, byte: u64) -> Result<(), Errno> {
    call(fd, libc::F_OFD_SETLK, libc::F_UNLCK, byte).map(drop)
}

/// Whether another opening of the file, or another process, has the byte locked, shared or not.
///
/// # Errors
///
/// Those of `fcntl(2)`.
#[doc(alias = "F_OFD_GETLK")]
pub fn is_byte_locked(fd: BorrowedFd<'_>, byte: u64) -> Result<bool, Errno> {
    let found = call(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?;
    Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
}

/// What a descriptor was opened for.
///
/// # Errors
///
/// Those of `fcntl(2)`.
#[doc(alias = "F_GETFL")]
pub fn access_mode(fd: BorrowedFd<'_>) -> Result<OFlags, Errno> {
    Ok(rustix::fs::fcntl_getfl(fd)?)
}

/// The path that leads to what is behind `fd`, as the kernel tells it. It may lead elsewhere by now, or nowhere.
///
/// # Errors
///
/// Those of `readlink(2)`, where there is no `/proc`.
pub fn real_path(fd: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    use std::os::unix::ffi::OsStringExt;
    let path = rustix::fs::readlink(proc_path(fd), Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::super::{AsFd, open};
    use super::*;

    #[test]
    fn a_byte_of_a_directory_is_locked_for_all_to_see() {
        let dir = tempfile::tempdir().unwrap();
        let open = || open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
        let (one, two) = (open(), open());
        let is_locked = |fd: &std::os::fd::OwnedFd, byte| is_byte_locked(fd.as_fd(), byte).unwrap();
        try_lock_byte(one.as_fd(), 7, true).unwrap();
        assert!(!is_locked(&one, 7) && is_locked(&two, 7) && !is_locked(&two, 8));
        try_lock_byte(two.as_fd(), 7, true).unwrap();
        assert!(is_locked(&one, 7));
        unlock_byte(two.as_fd(), 7).unwrap();
        drop(one);
        assert!(!is_locked(&two, 7));
        let refused = try_lock_byte(two.as_fd(), 7, false);
        assert_eq!(refused, Err(Errno::EBADF));
    }

    #[test]
    fn the_last_bytes_of_a_file_are_locked_by_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || open(file.path(), OFlags::RDWR, 0).unwrap();
        let (one, two, last) = (open(), open(), i64::MAX as u64 - 1);
        try_lock_byte(one.as_fd(), last, false).unwrap();
        assert_eq!(try_lock_byte(two.as_fd(), last, true), Err(Errno::EAGAIN));
        try_lock_byte(one.as_fd(), last, true).unwrap();
        try_lock_byte(two.as_fd(), last, true).unwrap();
        assert_eq!(try_lock_byte(one.as_fd(), last, false), Err(Errno::EAGAIN));
        assert_eq!(
            real_path(one.as_fd()).unwrap(),
            file.path().canonicalize().unwrap()
        );
        assert!(access_mode(one.as_fd()).unwrap().contains(OFlags::RDWR));
    }
}
