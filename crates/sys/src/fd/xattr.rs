//! Extended attributes of an open file.
//!
//! # Model
//!
//! The calls that take a descriptor refuse `O_PATH` ones: such a file is named through `/proc`, which takes several
//! times as long. Values and name lists are copied out whole.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, XattrFlags};
use rustix::io::Errno as Raw;

use super::proc_path;
use crate::Errno;

/// Whether setting an extended attribute may create or replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Sets it either way.
    #[default]
    Set,
    /// `EEXIST` if it is there.
    #[doc(alias = "XATTR_CREATE")]
    Create,
    /// `ENODATA` if it is not there.
    #[doc(alias = "XATTR_REPLACE")]
    Replace,
}

/// Asks for the size first, then for the bytes, again when they grew in between.
fn sized(
    size: impl Fn() -> Result<usize, Raw>,
    fill: impl Fn(&mut [u8]) -> Result<usize, Raw>,
) -> Result<Vec<u8>, Errno> {
    loop {
        let mut buf = vec![0; size()?];
        if buf.is_empty() {
            return Ok(buf);
        }
        match fill(&mut buf) {
            Ok(n) => {
                buf.truncate(n);
                return Ok(buf);
            }
            Err(Raw::RANGE) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The answer of a call by descriptor, or of one by path if the descriptor is an `O_PATH` one.
fn either<R>(
    by_fd: impl FnOnce() -> Result<R, Errno>,
    by_path: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, Errno> {
    match by_fd() {
        Err(Errno::EBADF) => by_path(),
        done => done,
    }
}

/// The value of an attribute. May block.
///
/// # Errors
///
/// `ENODATA` when it is not there; `EOPNOTSUPP` where the file system has none.
pub fn get(fd: BorrowedFd<'_>, name: &OsStr) -> Result<Vec<u8>, Errno> {
    let by_fd = || {
        sized(
            || fs::fgetxattr_query(fd, name),
            |buf| fs::fgetxattr(fd, name, buf),
        )
    };
    either(by_fd, || {
        let path = &proc_path(fd);
        sized(
            || fs::getxattr_query(path, name),
            |buf| fs::getxattr(path, name, buf),
        )
    })
}

/// The names of all attributes. May block.
///
/// # Errors
///
/// `EOPNOTSUPP` where the file system has none.
pub fn list(fd: BorrowedFd<'_>) -> Result<Vec<OsString>, Errno> {
    let by_fd = || sized(|| fs::flistxattr_query(fd), |buf| fs::flistxattr(fd, buf));
    let names = either(by_fd, || {
        let path = &proc_path(fd);
        sized(|| fs::listxattr_query(path), |buf| fs::listxattr(path, buf))
    })?;
    let names = names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names
        .map(|name| OsStr::from_bytes(name).to_owned())
        .collect())
}

/// Sets an attribute. May block.
///
/// # Errors
///
/// See [`XattrMode`]; `ENOSPC`, `E2BIG` or `ERANGE` when it does not fit; `EOPNOTSUPP` where the
/// file system has none.
pub fn set(fd: BorrowedFd<'_>, name: &OsStr, value: &[u8], mode: XattrMode) -> Result<(), Errno> {
    let flags = match mode {
        XattrMode::Set => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    either(
        || Ok(fs::fsetxattr(fd, name, value, flags)?),
        || Ok(fs::setxattr(proc_path(fd), name, value, flags)?),
    )
}

/// Removes an attribute. May block.
///
/// # Errors
///
/// `ENODATA` when it is not there.
pub fn remove(fd: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    either(
        || Ok(fs::fremovexattr(fd, name)?),
        || Ok(fs::removexattr(proc_path(fd), name)?),
    )
}
