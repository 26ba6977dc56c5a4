//! Why a cache cannot be made or changed. Operations on files return an [`Errno`].

use foliocache_sys::Errno;

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
