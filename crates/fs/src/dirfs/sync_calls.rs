//! The system calls that make things durable: one place, so that tests can delay them and make them fail.

use foliocache_sys::Errno;
#[cfg(test)]
use foliocache_sys::fd::BorrowedFd;
use foliocache_sys::fd::{self, AsFd};

/// A call that makes something durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncCall {
    /// `fdatasync(2)` of a file.
    Data,
    /// `fsync(2)` of a file.
    File,
    /// `fsync(2)` of a directory.
    Directory,
    /// `syncfs(2)` for a batch.
    FileSystem,
}

/// What a test runs before each call; an error is returned in the call's place.
#[cfg(test)]
type Before =
    foliocache_sync::Arc<dyn Fn(SyncCall, BorrowedFd<'_>) -> Result<(), Errno> + Send + Sync>;

/// The calls of one `dirfs`.
#[derive(Default)]
pub(super) struct SyncCalls {
    #[cfg(test)]
    before: foliocache_sync::Mutex<Option<Before>>,
}

impl SyncCalls {
    /// Runs `before` ahead of each call from now on.
    #[cfg(test)]
    pub(super) fn intercept(
        &self,
        before: impl Fn(SyncCall, BorrowedFd<'_>) -> Result<(), Errno> + Send + Sync + 'static,
    ) {
        *self.before.lock() = Some(foliocache_sync::Arc::new(before));
    }

    /// Makes a call, with any descriptor of the file system for [`SyncCall::FileSystem`].
    ///
    /// # Errors
    /// Those of the call.
    pub(super) fn make(&self, call: SyncCall, fd: &impl AsFd) -> Result<(), Errno> {
        let fd = fd.as_fd();
        #[cfg(test)]
        {
            let before = self.before.lock().clone();
            before.map_or(Ok(()), |before| before(call, fd))?;
        }
        match call {
            SyncCall::Data => fd::fdatasync(fd),
            SyncCall::File | SyncCall::Directory => fd::fsync(fd),
            SyncCall::FileSystem => fd::syncfs(fd),
        }
    }
}
