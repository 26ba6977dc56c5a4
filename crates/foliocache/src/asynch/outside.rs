//! Async files beside other programs: locks, looks at the source, and reads to the end.

use super::AsyncFile;
use crate::error::{Operation, Result};
use crate::file::File;
use crate::file::locks::TryLockError;
use crate::workers::Kind;

impl AsyncFile {
    /// Reads into `buf` from byte `pos` on, as far as the file goes; returns the bytes.
    ///
    /// # Errors
    /// As [`File::read_full_at`].
    pub async fn read_full_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = pos.saturating_add(done as u64);
            match self.read_at(&mut buf[done..], at).await? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    /// Looks at the source, as opening the file again does. Always done by a worker.
    ///
    /// # Errors
    /// As [`File::revalidate`].
    pub async fn revalidate(&self) -> Result<bool> {
        self.on_worker(Kind::Read, Operation::Metadata, File::revalidate)
            .await
    }

    /// Writes all that is dirty in the file to the source, without making it durable. Always done by a worker; if the future is dropped before
    /// one has begun, not at all.
    ///
    /// # Errors
    /// As [`File::write_out`].
    pub async fn write_out(&self) -> Result<()> {
        self.changed(Operation::Write, File::write_out).await
    }

    /// Locks the file for this handle alone if no other handle has a lock; a worker does it. If the future is dropped after one has
    /// begun, the handle may have the lock.
    ///
    /// There is no call that waits for others: it would keep a worker, which the holder of the lock may need. Try again later, or call
    /// [`File::lock`] of [`AsyncFile::blocking`] on a thread of your own.
    ///
    /// # Errors
    /// As [`File::try_lock`].
    #[doc(alias = "flock")]
    pub async fn try_lock(&self) -> Result<(), TryLockError> {
        self.try_locked(File::try_lock).await
    }

    /// As [`AsyncFile::try_lock`], together with other handles that do so.
    ///
    /// # Errors
    /// As [`File::try_lock_shared`].
    pub async fn try_lock_shared(&self) -> Result<(), TryLockError> {
        self.try_locked(File::try_lock_shared).await
    }

    /// Ends the lock, after what is dirty was written to the source if it was exclusive. Always done by a worker.
    ///
    /// # Errors
    /// As [`File::unlock`].
    pub async fn unlock(&self) -> Result<()> {
        self.changed(Operation::Unlock, File::unlock).await
    }

    async fn try_locked(
        &self,
        lock: fn(&File) -> Result<(), TryLockError>,
    ) -> Result<(), TryLockError> {
        let no_stragglers = self.no_stragglers(Operation::Lock).await;
        no_stragglers.map_err(TryLockError::Error)?;
        let lock = move |file: &File| match lock(file) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        };
        match self.on_worker(self.change(), Operation::Lock, lock).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(TryLockError::WouldBlock),
            Err(error) => Err(TryLockError::Error(error)),
        }
    }
}
