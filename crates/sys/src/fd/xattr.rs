//! Extended attributes of an open file.
//!
//! # Model
//!
//! All functions work on ordinary and on `O_PATH` descriptors: the latter are named through
//! `/proc`. Values and name lists are copied out whole.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use rustix::fs::{self, XattrFlags};
use rustix::io::Errno as Raw;

use super::proc_path;
use crate::Errno;

/// When [`set`] may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Always.
    Any,
    /// Only when the attribute is not there (else `EEXIST`).
    Create,
    /// Only when the attribute is there (else `ENODATA`).
    Replace,
}

/// Runs the call on the descriptor and, when that is an `O_PATH` one, on its path.
fn either<T>(
    fd: BorrowedFd<'_>,
    on_fd: impl FnOnce() -> Result<T, Raw>,
    on_path: impl FnOnce(&str) -> Result<T, Raw>,
) -> Result<T, Raw> {
    match on_fd() {
        Err(Raw::BADF) => on_path(&proc_path(fd)),
        done => done,
    }
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

/// The value of an attribute. May block.
///
/// # Errors
///
/// `ENODATA` when it is not there; `EOPNOTSUPP` where the file system has none.
pub fn get(fd: BorrowedFd<'_>, name: &CStr) -> Result<Vec<u8>, Errno> {
    sized(
        || {
            let on_fd = || fs::fgetxattr_query(fd, name);
            either(fd, on_fd, |path| fs::getxattr_query(path, name))
        },
        // Both calls want the buffer, so not through `either`.
        |buf| match fs::fgetxattr(fd, name, &mut *buf) {
            Err(Raw::BADF) => fs::getxattr(proc_path(fd), name, buf),
            done => done,
        },
    )
}

/// The names of all attributes. May block.
///
/// # Errors
///
/// `EOPNOTSUPP` where the file system has none.
pub fn list(fd: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let names = sized(
        || {
            let on_fd = || fs::flistxattr_query(fd);
            either(fd, on_fd, |path| fs::listxattr_query(path))
        },
        |buf| match fs::flistxattr(fd, &mut *buf) {
            Err(Raw::BADF) => fs::listxattr(proc_path(fd), buf),
            done => done,
        },
    )?;
    Ok(names
        .split_inclusive(|&byte| byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
        .map(CStr::to_owned)
        .collect())
}

/// Sets an attribute. May block.
///
/// # Errors
///
/// See [`SetXattr`]; `ENOSPC`, `E2BIG` or `ERANGE` when it does not fit; `EOPNOTSUPP` where the
/// file system has none.
pub fn set(fd: BorrowedFd<'_>, name: &CStr, value: &[u8], how: SetXattr) -> Result<(), Errno> {
    let flags = match how {
        SetXattr::Any => XattrFlags::empty(),
        SetXattr::Create => XattrFlags::CREATE,
        SetXattr::Replace => XattrFlags::REPLACE,
    };
    Ok(either(
        fd,
        || fs::fsetxattr(fd, name, value, flags),
        |path| fs::setxattr(path, name, value, flags),
    )?)
}

/// Removes an attribute. May block.
///
/// # Errors
///
/// `ENODATA` when it is not there.
pub fn remove(fd: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    Ok(either(
        fd,
        || fs::fremovexattr(fd, name),
        |path| fs::removexattr(path, name),
    )?)
}
