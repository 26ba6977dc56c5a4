//! The backend.
//!
//! # Model
//!
//! ```text
//!  redb ──read, write, set_len──▶ File: the cache        no lock here, no system call on a hit
//!       ──sync_data─────────────▶ File::sync_data        Ok means durable
//!       ──ranges────────────────▶ File::try_lock_range   OFD locks of the file in the source
//!                                 File::try_lock         flock: as redb before 4.3 locks
//! ```
//!
//! # Invariants
//!
//! 1. What is in `held` is locked in the source. So `close` finds every lock that is left.

use foliocache::{Cache, Directory, File, FileOptions, LockKind, TryLockError};
use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A range as redb names it.
type Bounds = (Bound<u64>, Bound<u64>);

/// Where redb's lock bytes begin: see "Lock bytes" in its design document.
const LOCK_BASE: u64 = 1 << 62;
/// A writer of many holds it as long as it has the database open.
const SHARED_WRITER: Bounds = byte(LOCK_BASE + 1);
/// The same of a reader beside writers.
const SHARED_READER: Bounds = byte(LOCK_BASE + 2);
/// A byte that redb leaves to backends, and that this one never locks.
const PROBE: Bounds = byte(LOCK_BASE + 896);
/// The first range of an only writer, or of a reader that allows none.
const WHOLE: Bounds = (Bound::Included(LOCK_BASE + 1024), Bound::Unbounded);

const fn byte(byte: u64) -> Bounds {
    (Bound::Included(byte), Bound::Included(byte))
}

/// redb's storage in a [`File`] of a cache.
///
/// As redb's own `FileBackend`, with the same locks: processes with either exclude each other. What is different:
///
/// - Reads of cached pages make no system call. Memory is bounded by the [`Cache`], whatever the size of the database.
/// - **A failed `sync_data` loses nothing.** Data that could not be written stays in the cache, dirty, and is tried again. redb
///   refuses further work after an error, and the database is to be opened anew, as always; it then sees all that it wrote.
/// - What is written without durability (`Durability::None`) is in the memory of this process until it is written back, some seconds
///   later. If the process is killed, redb goes back to the last durable commit, as after a power cut.
///
/// Calls block. Each call that misses takes memory of the bound, and waits for it if it must.
///
/// # Errors
///
/// Errors are [`io::Error`]s with the text of [`foliocache::Error`]: operation, file, range, cause. [`cause`] gives the error itself.
///
/// # Several processes
///
/// A cache keeps others from the file that it has open for writing ([`Cache::file`]). So of redb's modes
/// `ConcurrencyMode::ExclusiveWriter`, the default, needs nothing else. In the other modes several processes have the file open at a
/// time: open it with [`FileOptions::ignore_lock`] and [`FolioBackend::new`]. redb's locks then order the processes, and with each of
/// them this one sees what others wrote. It reads all pages again that it had cached, whenever others wrote.
#[derive(Debug)]
pub struct FolioBackend {
    file: File,
    held: Mutex<Held>,
}

/// The locks of the backend.
#[derive(Debug, Default)]
struct Held {
    ranges: Vec<Bounds>,
    whole_file: bool,
}

impl FolioBackend {
    /// A backend over a file that is open for reading and writing, or for reading if the database is opened so. The file must not be
    /// open with `append`.
    pub fn new(file: File) -> Self {
        Self {
            file,
            held: Mutex::default(),
        }
    }

    /// Opens the file at `path`, absolute or relative to the working directory; makes it if it is not there. The name of a new file is
    /// durable then. Blocks on I/O.
    ///
    /// ```no_run
    /// # let cache = foliocache::Cache::builder().build()?;
    /// let backend = foliocache_redb::FolioBackend::create(&cache, "/var/lib/app/accounts.redb")?;
    /// let db = redb::Builder::new().create_with_backend(backend)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Cache::file`]; `EBUSY` if another cache, or a redb without one, has the file open.
    pub fn create(cache: &Cache, path: impl AsRef<Path>) -> foliocache::Result<Self> {
        let mut options = FileOptions::new();
        options.read(true).write(true).create(true);
        Self::with_durable_name(cache.file(path, &options)?)
    }

    /// Opens the file at `path`, which must be there. As [`FolioBackend::create`].
    ///
    /// # Errors
    /// As [`FolioBackend::create`]; `ENOENT`.
    pub fn open(cache: &Cache, path: impl AsRef<Path>) -> foliocache::Result<Self> {
        let mut options = FileOptions::new();
        options.read(true).write(true);
        Ok(Self::new(cache.file(path, &options)?))
    }

    /// Opens the file at `path` for [`Builder::open_read_only_with_backend`](redb::Builder::open_read_only_with_backend). Blocks on I/O.
    ///
    /// # Errors
    /// Those of [`Cache::file`].
    pub fn open_read_only(cache: &Cache, path: impl AsRef<Path>) -> foliocache::Result<Self> {
        Ok(Self::new(cache.file(path, FileOptions::new().read(true))?))
    }

    /// Opens `name` in a directory of the cache; makes it if it is not there. As [`FolioBackend::create`], but the whole directory
    /// is locked, as [`Cache::directory`] does.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`](foliocache::OpenOptions::open).
    pub fn create_in(directory: &Directory, name: impl AsRef<Path>) -> foliocache::Result<Self> {
        let mut options = directory.open_options();
        options.read(true).write(true).create(true);
        Self::with_durable_name(options.open(name)?)
    }

    /// The file: `try_clone` it for statistics before redb gets the backend.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A file without bytes may be new, and redb makes only data durable.
    fn with_durable_name(file: File) -> foliocache::Result<Self> {
        if file.is_empty() {
            file.sync_all()?;
        }
        Ok(Self::new(file))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the range was locked; not if somebody else has a lock in it.
    fn try_lock(&self, range: Bounds, kind: LockKind) -> io::Result<bool> {
        check(range)?;
        let with_whole_file = range == WHOLE || range == SHARED_WRITER || range == SHARED_READER;
        if with_whole_file {
            let kind = match range {
                WHOLE => kind,
                _ => LockKind::Shared,
            };
            if !self.try_lock_whole_file(kind)? {
                return Ok(false);
            }
        }
        let locked = had(self.file.try_lock_range(range, kind));
        match locked {
            Ok(true) => self.held().ranges.push(range),
            _ if with_whole_file => self.unlock_whole_file()?,
            _ => {}
        }
        locked
    }

    /// redb before 4.3 locks the file with flock(2). As `FileBackend` does, those versions are excluded as well as can be: without
    /// such locks, or where they are the same as those of ranges (NFS), this does nothing. Whether nobody else is in the way.
    fn try_lock_whole_file(&self, kind: LockKind) -> io::Result<bool> {
        let locked = had(match kind {
            LockKind::Exclusive => self.file.try_lock(),
            LockKind::Shared => self.file.try_lock_shared(),
        });
        match locked {
            Ok(true) => {
                self.held().whole_file = true;
                let probe = self.file.is_range_locked(PROBE, LockKind::Exclusive);
                if !matches!(probe, Ok(false)) {
                    self.unlock_whole_file()?;
                }
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(_) => Ok(true),
        }
    }

    fn unlock_whole_file(&self) -> io::Result<()> {
        let mut held = self.held();
        if held.whole_file {
            self.file.unlock().map_err(io_error)?;
            held.whole_file = false;
        }
        Ok(())
    }

    fn lock(&self, range: Bounds, kind: LockKind) -> Result<(), BackendError> {
        check(range)?;
        self.file.lock_range(range, kind).map_err(io_error)?;
        self.held().ranges.push(range);
        Ok(())
    }
}

impl StorageBackend for FolioBackend {
    fn len(&self) -> io::Result<u64> {
        // Not `File::len`: another process may have made it longer.
        Ok(self.file.metadata().map_err(io_error)?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset).map_err(io_error)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(io_error)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().map_err(io_error)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset).map_err(io_error)
    }

    /// Ends all locks. If data of a `Durability::None` commit cannot be written, that is the error, and locks may stay
    /// until the backend is dropped.
    fn close(&self) -> io::Result<()> {
        let mut result = Ok(());
        for range in std::mem::take(&mut self.held().ranges) {
            result = result.and(self.file.unlock_range(range).map_err(io_error));
        }
        result.and(self.unlock_whole_file())
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(self.try_lock((start, end), LockKind::Exclusive)?)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        Ok(self.try_lock((start, end), LockKind::Shared)?)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.lock((start, end), LockKind::Exclusive)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.lock((start, end), LockKind::Shared)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        let range = (start, end);
        check(range)?;
        // A lock whose end failed stays in the list, for `close`.
        self.file.unlock_range(range).map_err(io_error)?;
        let mut held = self.held();
        if let Some(at) = held.ranges.iter().position(|held| *held == range) {
            held.ranges.swap_remove(at);
        }
        drop(held);
        if range == WHOLE || range == SHARED_WRITER || range == SHARED_READER {
            self.unlock_whole_file()?;
        }
        Ok(())
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        let range = (start, end);
        check(range)?;
        let locked = self.file.is_range_locked(range, LockKind::Exclusive);
        Ok(locked.map_err(io_error)?)
    }
}

/// Refuses empty ranges, and ends beyond the largest offset that a file can have.
fn check(range: Bounds) -> io::Result<()> {
    let start = match range.0 {
        Bound::Included(start) => Some(start),
        Bound::Excluded(start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let last = match range.1 {
        Bound::Included(last) => Some(last),
        Bound::Excluded(end) => end.checked_sub(1),
        Bound::Unbounded => Some(i64::MAX as u64),
    };
    let is_range = |(start, last): (u64, u64)| start <= last && last <= i64::MAX as u64;
    match start.zip(last).is_some_and(is_range) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a file has no such range of bytes to lock",
        )),
    }
}

/// Whether a lock was had.
fn had(result: Result<(), TryLockError>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(io_error(error)),
    }
}

/// With the kind that `std::fs` would give, and the error itself inside.
fn io_error(error: foliocache::Error) -> io::Error {
    let kind = io::Error::from(error.clone()).kind();
    io::Error::new(kind, error)
}

/// The cache's own error in one that redb reports: operation, file, range and number.
///
/// ```no_run
/// # let db: redb::Database = todo!();
/// # let transaction = db.begin_write()?;
/// if let Err(redb::CommitError::Storage(redb::StorageError::Io(error))) = transaction.commit()
///     && let Some(cause) = foliocache_redb::cause(&error)
/// {
///     eprintln!("{cause}"); // cannot sync /var/lib/app/accounts.redb, bytes 0..4096: …
///     println!("{}", cause.errno());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cause(error: &io::Error) -> Option<&foliocache::Error> {
    error.get_ref()?.downcast_ref()
}
