//! [`MapError`]: why a file cannot be mapped.

use foliocache_sys::Errno;
use foliocache_sys::userfaultfd::OpenError;

use crate::frames::RangeError;

/// Why a file cannot be mapped.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The process may not resolve page faults, or the kernel does not support it.
    #[error(transparent)]
    Faults(#[from] OpenError),
    /// The cache's address space for mapped files is used up.
    #[error(
        "no room for a mapping of {wanted} bytes in the {space} bytes of addresses for mapped files"
    )]
    NoSpace {
        /// Bytes asked for, beyond those that the file has.
        wanted: u64,
        /// Bytes that all mapped files may have together.
        space: u64,
    },
    /// The cache's address space for mappings is used up.
    #[error("no addresses for a mapping of {wanted} bytes")]
    NoAddresses {
        /// Bytes asked for.
        wanted: u64,
    },
    /// The process has as many mappings as the kernel allows.
    #[error("too many mappings: vm.max_map_count is the most that a process may have")]
    TooManyMappings,
    /// Mappings already hold as much memory as they may.
    #[error(
        "cannot keep {wanted} more bytes in memory: mappings hold {held} already, of at most {most}"
    )]
    TooMuchHeld {
        /// Bytes asked for, less those that are held already.
        wanted: u64,
        /// Bytes that mappings hold.
        held: u64,
        /// The most that they may hold, half the memory for pages.
        most: u64,
    },
    /// A short use of the file did not end for seconds: the store hangs, or is very slow. A later call goes on where this
    /// one stopped.
    #[error("the file is in use for too long, by {holder}")]
    Busy {
        /// The use.
        holder: String,
    },
    /// The bound is too small for mapped files.
    #[error(
        "a limit of {limit} bytes is too small for mapped files: at least {min} bytes are needed"
    )]
    LimitTooSmall {
        /// The limit, in bytes.
        limit: u64,
        /// The least possible, in bytes.
        min: u64,
    },
    /// Another error.
    #[error("{0}")]
    Failed(#[from] Errno),
}

impl From<RangeError> for MapError {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::NoSpace { wanted, space } => MapError::NoSpace { wanted, space },
            RangeError::Failed(errno) => MapError::Failed(errno),
        }
    }
}

impl MapError {
    /// The error number, for FUSE and C.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Faults(OpenError::Forbidden) => Errno::EPERM,
            Self::Faults(OpenError::Unsupported) => Errno::EOPNOTSUPP,
            Self::Faults(OpenError::Failed(errno)) | Self::Failed(errno) => *errno,
            Self::NoSpace { .. } => Errno::EFBIG,
            Self::NoAddresses { .. } | Self::TooManyMappings | Self::LimitTooSmall { .. } => {
                Errno::ENOMEM
            }
            Self::TooMuchHeld { .. } => Errno::ENOBUFS,
            Self::Busy { .. } => Errno::EBUSY,
        }
    }
}
