//! One cache at a time writes to a source.
//!
//! # Model
//!
//! Two caches know nothing of what the other holds: what one writes back late undoes what was made durable through the other
//! since. So who may write locks the source's directory (flock(2)), until the file system is gone and all is written back, or
//! the process. Readers lock nothing.
//!
//! A cache of a directory above or below is not noticed, nor is one on another machine.

use super::{DirFs, DirFsError};
use foliocache_mm::Mm;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, OFlags, OwnedFd};
use std::path::PathBuf;

/// The lock, until this is dropped.
pub(super) struct SourceLock {
    dir: OwnedFd,
    mm: Arc<Mm>,
}

impl Drop for SourceLock {
    fn drop(&mut self) {
        // A child has it only as long as the parent.
        if self.mm.check_fork().is_ok() {
            // Children may hold the descriptor still.
            let _ = fd::unlock(self.dir.as_fd());
        }
    }
}

impl DirFs {
    /// Keeps others from [locking](DirFs::lock) the source as long as this lives. To be called before anything is
    /// written; does nothing the second time. A source that may not be read or knows no locks is not locked.
    ///
    /// # Errors
    /// [`DirFsError::Locked`], unless that is to be [ignored](super::DirFsOptions::ignore_lock).
    pub fn lock(&self) -> Result<(), DirFsError> {
        let mut lock = self.lock.lock();
        if lock.is_some() {
            return Ok(());
        }
        let source = &self.shared.name;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let locked = fd::reopen(self.shared.root.as_fd(), flags)
            .and_then(|dir| fd::try_lock(dir.as_fd()).map(|()| dir));
        match locked {
            Ok(dir) => {
                let mm = self.shared.bdi.mm().clone();
                *lock = Some(SourceLock { dir, mm });
            }
            Err(Errno::EAGAIN) if !self.shared.options.ignore_lock => {
                let path = PathBuf::from(source);
                return Err(DirFsError::Locked { path });
            }
            Err(Errno::EAGAIN) => {
                tracing::warn!(
                    source,
                    "another cache writes to this directory: what one of them writes may undo what the other made durable"
                );
            }
            Err(errno) => tracing::debug!(source, %errno, "the source cannot be locked"),
        }
        Ok(())
    }
}
