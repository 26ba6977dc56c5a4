//! Errors of the cache as those of opendal.

use foliocache::Errno;
use opendal::{Error, ErrorKind};

/// The error with its kind, its text and its cause. It is temporary if the call may succeed a moment later.
pub(crate) fn of(error: foliocache::Error) -> Error {
    let errno = error.errno();
    let kind = match errno {
        Errno::ENOENT => ErrorKind::NotFound,
        Errno::EACCES | Errno::EPERM | Errno::EROFS => ErrorKind::PermissionDenied,
        Errno::EEXIST => ErrorKind::AlreadyExists,
        Errno::EISDIR => ErrorKind::IsADirectory,
        Errno::ENOTDIR => ErrorKind::NotADirectory,
        // Out of the directory.
        Errno::EXDEV => ErrorKind::PermissionDenied,
        Errno::ENOTEMPTY => ErrorKind::Conflict,
        _ => ErrorKind::Unexpected,
    };
    let is_temporary = matches!(
        errno,
        Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM | Errno::ENOBUFS | Errno::EBUSY
    );
    let made = Error::new(kind, error.to_string()).set_source(error);
    made.with_temporary(is_temporary)
}

/// The directory can do no such thing.
pub(crate) fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "a local directory cannot do this")
}
