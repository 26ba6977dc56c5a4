//! Why a cache cannot be made or changed. Operations on files return an [`Errno`].

use foliocache_sys::Errno;

/// Why a cache cannot be made or changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MmError {
    /// The limit is too small, by itself ([`MIN_LIMIT`](crate::MIN_LIMIT)) or for what the cache holds.
    #[error("a limit of {limit} bytes is too small: at least {min} bytes are needed")]
    LimitTooSmall {
        /// The limit that was asked for, in bytes.
        limit: u64,
        /// The least possible, in bytes.
        min: u64,
    },
    /// The limit is larger than the machine's memory.
    #[error("a limit of {limit} bytes is larger than the {max} bytes this cache may use here")]
    LimitTooLarge {
        /// The limit that was asked for, in bytes.
        limit: u64,
        /// The most possible, in bytes: the machine's memory.
        max: u64,
    },
    /// The kernel refused something the cache needs.
    #[error("cannot set up the cache: {0}")]
    Setup(#[from] Errno),
}

impl MmError {
    /// The error number, for FUSE and C.
    pub fn errno(&self) -> Errno {
        match self {
            Self::LimitTooSmall { .. } | Self::LimitTooLarge { .. } => Errno::EINVAL,
            Self::Setup(errno) => *errno,
        }
    }
}
