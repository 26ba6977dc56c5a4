//! The system calls that make things durable: one place, so that tests can delay them and make them fail.

use foliocache_sys::Errno;
use foliocache_sys::fd::{self, BorrowedFd};

/// Which call is about to be made.
#[cfg(test)]
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

    #[cfg(test)]
    fn before(&self, call: SyncCall, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let before = self.before.lock().clone();
        before.map_or(Ok(()), |before| before(call, fd))
    }

    pub(super) fn fdatasync(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        #[cfg(test)]
        self.before(SyncCall::Data, file)?;
        fd::fdatasync(file)
    }

    pub(super) fn fsync(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        #[cfg(test)]
        self.before(SyncCall::File, file)?;
        fd::fsync(file)
    }

    pub(super) fn fsync_directory(&self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        #[cfg(test)]
        self.before(SyncCall::Directory, directory)?;
        fd::fsync(directory)
    }

    pub(super) fn syncfs(&self, any: BorrowedFd<'_>) -> Result<(), Errno> {
        #[cfg(test)]
        self.before(SyncCall::FileSystem, any)?;
        fd::syncfs(any)
    }
}
