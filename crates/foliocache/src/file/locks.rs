//! Locks of a handle: of the whole file as in `std`, and of byte ranges.
//!
//! # Model
//!
//! They are the kernel's, of the file in the source: `flock(2)`, and open file description locks of `fcntl(2)`. So they exclude
//! other handles, other caches and programs without a cache alike. The cache adds to each
//! lock: it looks at the source after it got the lock, and writes to the source before it gives the lock up.

use foliocache_sys::Errno;
use foliocache_sys::fd::LockKind;
use foliocache_vfs::{Contended, FileLocks};
use std::io;
use std::ops::{Range, RangeBounds};

use super::File;
use crate::error::{Error, Operation, Result};
use crate::range::bytes_of;

/// Why a lock was not had at once; as [`std::fs::TryLockError`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum TryLockError {
    /// The call failed.
    #[error(transparent)]
    Error(Error),
    /// Another handle has a lock that excludes it.
    #[error("another handle has it locked")]
    WouldBlock,
}

impl From<TryLockError> for io::Error {
    fn from(error: TryLockError) -> io::Error {
        match error {
            TryLockError::Error(error) => error.into(),
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
        }
    }
}

/// # Locks
///
/// As those of [`std::fs::File`]: `flock(2)` on the file in the source, held by this handle. It excludes other
/// handles in this process, other caches, and programs that lock the file without a cache. The lock is advisory: it
/// stops only those that ask for it. [`File::try_clone`] makes a handle with the same lock. The lock ends with
/// [`File::unlock`], or when the last clone is dropped; it stays with the opened file if that is renamed or
/// replaced. A forked child shares it until this process unlocks. A [file system in memory](crate::Cache::memfs)
/// has no locks: `EOPNOTSUPP`.
///
/// **The next holder sees the last one's writes**, as if both used the kernel's page cache:
///
/// - The holder of a lock sees all writes of others to the source before the lock was granted: one `statx(2)`, and
///   if there were any, the cached pages of the file are dropped. If data of this cache in the file is written but
///   not durable, and others wrote since, it is made durable first.
///   [`DirectoryOptions::exclusive`](crate::DirectoryOptions::exclusive) saves the `statx`.
/// - Before an exclusive lock ends, all that is dirty in the file is written to the source, of other handles too. It is not made durable:
///   [`File::sync_data`] does that.
///
/// A protocol with several files (a log beside its index) locks one of them. For the others call [`File::write_out`]
/// before the unlock, and [`File::revalidate`] after the lock.
///
/// **Costs**: the first lock of a handle opens a descriptor, which stays until the handle is closed; no memory of the bound. A lock is
/// one system call and the look, an unlock one call and the write. A lock of a file that is written and locked in turns by two processes
/// reads it again each time.
///
/// # Errors of locks
///
/// `EMFILE` if hardly a descriptor is left, `ENOLCK`, `EACCES` if the mode of the file has changed and no longer
/// allows to open it, `ESTALE` if others replaced a file whose pages are all cached and that has no descriptor,
/// `EBUSY` if writes by others cannot be taken over (a device may write to pages of the file, or a program stores
/// into its mapping without a pause), `ECHILD` after a fork, those of the source: then the handle has no lock.
impl File {
    /// Locks the file for this handle alone; waits for others, without end. If the handle has a lock already, that is
    /// changed as by `flock(2)`, which first gives up a shared one.
    ///
    /// Blocks a thread. A lock that two handles of one thread wait for is a deadlock that is not noticed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// # let dir = cache.directory(temporary.path())?;
    /// # dir.create("counter")?.write_all_at(&7u64.to_le_bytes(), 0)?;
    /// // Any number of processes count together.
    /// let file = dir.open_options().read(true).write(true).open("counter")?;
    /// file.lock()?;
    /// let mut count = [0; 8];
    /// file.read_exact_at(&mut count, 0)?; // what the last of them wrote
    /// let next = u64::from_le_bytes(count) + 1;
    /// file.write_all_at(&next.to_le_bytes(), 0)?;
    /// file.unlock()?; // the source has it
    /// # assert_eq!(std::fs::read(temporary.path().join("counter"))?, 8u64.to_le_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [above](#errors-of-locks).
    #[doc(alias = "flock")]
    pub fn lock(&self) -> Result<()> {
        self.lock_file(LockKind::Exclusive, Contended::Wait)
    }

    /// Locks the file shared. As [`File::lock`]. Replaces an exclusive lock: dirty data is written to the source
    /// first.
    ///
    /// # Errors
    /// See [above](#errors-of-locks).
    pub fn lock_shared(&self) -> Result<()> {
        self.lock_file(LockKind::Shared, Contended::Wait)
    }

    /// As [`File::lock`], but does not wait for others. May block on I/O.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another handle has a lock; others see [above](#errors-of-locks).
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        try_lock(|| self.lock_file(LockKind::Exclusive, Contended::Fail))
    }

    /// As [`File::lock_shared`], but does not wait for others. May block on I/O.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another handle has an exclusive lock; others see [above](#errors-of-locks).
    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        try_lock(|| self.lock_file(LockKind::Shared, Contended::Fail))
    }

    /// Releases the lock of the whole file. If it was exclusive, dirty data is written to the source first. Does
    /// nothing without a lock. Blocks for the write.
    ///
    /// # Errors
    /// Those of writing to the source, such as `ENOSPC`: then the lock stays. Dropping the handle still ends it,
    /// and the data is retried as after any failed write. `ECHILD` after a fork.
    pub fn unlock(&self) -> Result<()> {
        self.with(Operation::Unlock, |_| {
            let locks = self.known_locks();
            locks.map_or(Ok(()), |locks| locks.unlock(None))
        })
    }

    /// Locks a range of bytes, which may lie beyond the end of the file, and replaces the handle's
    /// locks there; waits for other holders without a time limit.
    ///
    /// These are *open file description locks* (`F_OFD_SETLKW`): like those of the whole file they belong to the handle. They exclude the
    /// ranges that other programs lock with `fcntl(2)`, and know nothing of [`File::lock`]. Any number of handles may have a shared lock of
    /// a byte, or one an exclusive one. A deadlock is not noticed.
    ///
    /// A range lock has the same effects as a lock of the file, on the whole file whatever the range: after it is
    /// taken the source is checked for changes. Once the handle has had an exclusive one, each
    /// [`File::unlock_range`] and each change to a shared lock writes dirty data first.
    ///
    /// # Errors
    /// `EBADF` for a shared lock of a handle that is not open for reading, or an exclusive one if it is not open for writing;
    /// `EINVAL` for an empty range or one that begins beyond the largest offset; others see [above](#errors-of-locks): then the handle
    /// has no lock of the range.
    #[doc(alias = "F_OFD_SETLKW")]
    pub fn lock_range(&self, range: impl RangeBounds<u64>, kind: LockKind) -> Result<()> {
        self.lock_bytes(&bytes_of(range, u64::MAX), kind, Contended::Wait)
    }

    /// As [`File::lock_range`], but does not wait for others. May block on I/O.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another handle has a lock in the range; others as [`File::lock_range`].
    #[doc(alias = "F_OFD_SETLK")]
    pub fn try_lock_range(
        &self,
        range: impl RangeBounds<u64>,
        kind: LockKind,
    ) -> Result<(), TryLockError> {
        let range = bytes_of(range, u64::MAX);
        try_lock(|| self.lock_bytes(&range, kind, Contended::Fail))
    }

    /// Releases the handle's locks of [`File::lock_range`] in a range. Does nothing without any. As
    /// [`File::unlock`].
    ///
    /// # Errors
    /// As [`File::unlock`]; `EINVAL` as [`File::lock_range`].
    pub fn unlock_range(&self, range: impl RangeBounds<u64>) -> Result<()> {
        let range = bytes_of(range, u64::MAX);
        self.with_range(Operation::Unlock, &range, |range| {
            let locks = self.known_locks();
            locks.map_or(Ok(()), |locks| locks.unlock(Some(range)))
        })
    }

    /// Whether another handle has a lock in the range that would exclude one of this kind. The answer may be old when it comes.
    /// Opens the descriptor of the locks; does not wait for others.
    ///
    /// # Errors
    /// As [`File::lock_range`].
    #[doc(alias = "F_OFD_GETLK")]
    pub fn is_range_locked(&self, range: impl RangeBounds<u64>, kind: LockKind) -> Result<bool> {
        let range = bytes_of(range, u64::MAX);
        self.with_range(Operation::Lock, &range, |range| {
            self.locks()?.is_range_locked(range, kind)
        })
    }

    fn lock_file(&self, kind: LockKind, contended: Contended) -> Result<()> {
        self.with(Operation::Lock, |_| {
            self.locks()?.lock(None, kind, contended)
        })
    }

    fn lock_bytes(&self, range: &Range<u64>, kind: LockKind, contended: Contended) -> Result<()> {
        self.with_range(Operation::Lock, range, |range| {
            self.locks()?.lock(Some(range), kind, contended)
        })
    }

    fn with_range<T>(
        &self,
        operation: Operation,
        range: &Range<u64>,
        act: impl FnOnce(&Range<u64>) -> Result<T, Errno>,
    ) -> Result<T> {
        let done = self.check_fork().and_then(|()| act(range));
        done.map_err(|errno| Error::File {
            operation,
            path: self.path().to_owned(),
            range: range.clone(),
            errno,
        })
    }

    fn known_locks(&self) -> Option<&dyn FileLocks> {
        self.description.get()?.known_locks()
    }

    fn locks(&self) -> Result<&dyn FileLocks, Errno> {
        self.description().locks(&self.open)
    }
}

/// Tells a lock of another handle apart from a failure.
fn try_lock(lock: impl FnOnce() -> Result<()>) -> Result<(), TryLockError> {
    lock().map_err(|error| match error.errno() {
        Errno::EAGAIN => TryLockError::WouldBlock,
        _ => TryLockError::Error(error),
    })
}
