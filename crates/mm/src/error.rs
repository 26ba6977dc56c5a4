//! Errors of file operations: what failed, where in which file, and why.

use std::fmt;

use foliocache_sys::Errno;

/// What an operation was about to do when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoOperation {
    /// Reading a range.
    Read,
    /// Writing a range.
    Write,
    /// Changing the size.
    Truncate,
    /// Making a hole.
    PunchHole,
    /// Making data durable.
    Fsync,
}

impl fmt::Display for IoOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Truncate => "truncate",
            Self::PunchHole => "punch a hole in",
            Self::Fsync => "fsync",
        })
    }
}

/// An operation on a file that failed: the file, the range and the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {file}, {len} bytes at {pos}: {errno}")]
#[non_exhaustive]
pub struct IoError {
    /// What was being done.
    pub operation: IoOperation,
    /// The file, as its file system names it.
    pub file: String,
    /// First byte of the range.
    pub pos: u64,
    /// Bytes of the range; 0 where the whole file is meant.
    pub len: u64,
    /// The cause.
    pub errno: Errno,
}

impl IoError {
    /// The error number, for FUSE and C.
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

/// Why a cache cannot be made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MmError {
    /// The limit is not one this machine can hold, or memory could not be reserved.
    #[error(transparent)]
    Frames(#[from] crate::frames::FramesError),
    /// The kernel refused something the cache needs.
    #[error("cannot set up the cache: {0}")]
    Setup(#[source] Errno),
}

impl MmError {
    /// The error number, for FUSE and C.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Frames(error) => error.errno(),
            Self::Setup(errno) => *errno,
        }
    }
}
