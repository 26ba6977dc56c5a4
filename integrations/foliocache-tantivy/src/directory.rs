//! tantivy's directory over one of the cache.

use foliocache::{Cache, Directory, DirectoryOptions, Errno, Error, File, TryLockError};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tantivy::directory::error::{
    DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError,
};
use tantivy::directory::{DirectoryLock, FileHandle, Lock, WatchCallback, WatchHandle, WritePtr};

use crate::error::{self, io_error};
use crate::handle::Handle;
use crate::stats::{Counters, ReadStats};
use crate::watch::{META, Watch};
use crate::write::Writer;

/// The length of a range from which on it is mapped, unless the caller says otherwise.
const MAP_FROM: usize = 1 << 20;

/// A directory with an index, through the cache. Clones are the same directory.
///
/// Nobody else may change the files of the index while it is open, as with tantivy's `MmapDirectory`: mapped files are handed out as
/// plain slices. The cache refuses to open a directory for writing that another cache has open for writing.
///
/// A child of `fork` must not touch the index.
#[derive(Clone)]
pub struct FoliocacheDirectory {
    directory: Directory,
    map_from: Option<usize>,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
}

/// What files and writers of a directory share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) counters: Counters,
    /// Files that have a writer.
    being_written: Mutex<HashSet<PathBuf>>,
    /// The kernel lets this process map no file.
    cannot_map: AtomicBool,
}

impl Shared {
    fn being_written(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        let set = self.being_written.lock();
        set.unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer of a file is gone.
    pub(crate) fn written(&self, path: &Path) {
        self.being_written().remove(path);
    }

    pub(crate) fn may_map(&self, path: &Path) -> bool {
        // Relaxed: a thread that reads an old value only tries once more.
        !self.cannot_map.load(Ordering::Relaxed) && !self.being_written().contains(path)
    }

    /// A file could not be mapped. Says so the first time if it is for good.
    pub(crate) fn not_mapped(&self, error: &Error) {
        let for_good = matches!(
            error.errno(),
            Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::EOPNOTSUPP
        );
        // Relaxed: see `may_map`.
        if for_good && !self.cannot_map.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "long reads of the index are copied outside the memory bound");
        }
    }
}

/// The lock that is had is the file's. It goes with the handle.
struct Locked(#[expect(dead_code, reason = "held")] File);

impl FoliocacheDirectory {
    /// The directory at `path`, for reading and writing.
    ///
    /// # Errors
    /// `DoesNotExist`, `NotADirectory`, and an `IoError` for everything else, among it `EBUSY` if another cache has the directory
    /// open for writing.
    pub fn open(cache: &Cache, path: impl AsRef<Path>) -> Result<Self, OpenDirectoryError> {
        Self::open_with(cache, path.as_ref(), DirectoryOptions::new())
    }

    /// The directory at `path`, for searching beside a writer in another process. Asks the source whenever a file is opened, so
    /// that a reload sees the newest commit.
    ///
    /// A reload takes a lock, whose file the writer made. Without that file it fails.
    ///
    /// # Errors
    /// As [`FoliocacheDirectory::open`], but for `EBUSY`.
    pub fn open_read_only(
        cache: &Cache,
        path: impl AsRef<Path>,
    ) -> Result<Self, OpenDirectoryError> {
        let options = DirectoryOptions::new()
            .read_only(true)
            .revalidate_after(Duration::ZERO);
        Self::open_with(cache, path.as_ref(), options)
    }

    fn open_with(
        cache: &Cache,
        path: &Path,
        options: DirectoryOptions,
    ) -> Result<Self, OpenDirectoryError> {
        let opened = cache.directory_with(path, options);
        let directory = opened.map_err(|error| error::open_directory(error, path))?;
        Ok(Self::new(directory))
    }

    /// A directory that is open already. It must be one of a local directory: files in memory have no locks.
    pub fn new(directory: Directory) -> Self {
        Self {
            watch: Arc::new(Watch::new(directory.clone())),
            directory,
            map_from: Some(MAP_FROM),
            shared: Arc::default(),
        }
    }

    /// The length of a range in bytes from which on it is mapped, not copied, if no view has it without a copy. `None` maps nothing:
    /// then ranges for which the bound has no room are copied to the heap, outside the bound. 1 MiB unless said.
    ///
    /// A page of a mapping that cannot be read is a SIGBUS. See `docs/mapping.md` in the repository for the rights that
    /// mappings need.
    #[must_use]
    pub fn map_from(mut self, bytes: impl Into<Option<usize>>) -> Self {
        self.map_from = bytes.into();
        self
    }

    /// How reads were served, of this directory and its clones.
    pub fn read_stats(&self) -> ReadStats {
        self.shared.counters.read()
    }

    /// A new file beside `path`. Its name begins with a dot, so that tantivy does not manage it.
    fn create_beside(&self, path: &Path) -> foliocache::Result<(PathBuf, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        loop {
            // Relaxed: the numbers differ, and order nothing.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let beside = format!(".{name}.{}-{number}.tmp", std::process::id());
            let beside = path.with_file_name(beside);
            match self.directory.create_new(&beside) {
                Ok(file) => return Ok((beside, file)),
                // Left behind by a process that was killed and had the same number.
                Err(error) if error.errno() == Errno::EEXIST => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn lock_file(&self, path: &Path) -> foliocache::Result<File> {
        let mut options = self.directory.open_options();
        match options.read(true).write(true).create(true).open(path) {
            Err(error) if error.errno() == Errno::EROFS => self.directory.open(path),
            opened => opened,
        }
    }
}

impl tantivy::Directory for FoliocacheDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let opened = self.directory.open(path);
        let file = opened.map_err(|error| error::open_read(error, path))?;
        let handle = Handle::new(file, path.to_owned(), self.map_from, &self.shared);
        let handle =
            handle.map_err(|error| OpenReadError::wrap_io_error(error, path.to_owned()))?;
        Ok(Arc::new(handle))
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let removed = self.directory.remove_file(path);
        removed.map_err(|error| error::delete(error, path))
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        let exists = self.directory.exists(path);
        exists.map_err(|error| error::open_read(error, path))
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        // Under the lock: a file that a reader finds has its writer in the set.
        let mut being_written = self.shared.being_written();
        let created = self.directory.create_new(path);
        let file = created.map_err(|error| error::open_write(error, path))?;
        being_written.insert(path.to_owned());
        drop(being_written);
        let writer = Writer::new(file, path.to_owned(), &self.shared);
        Ok(BufWriter::new(Box::new(writer)))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        let read = self.directory.read(path);
        read.map_err(|error| error::open_read(error, path))
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let (beside, file) = self.create_beside(path).map_err(io_error)?;
        let put = file
            .write_all_at(data, 0)
            .and_then(|()| file.sync_data())
            .and_then(|()| self.directory.rename(&beside, path));
        if let Err(error) = put {
            // The first error is the one to tell.
            drop(self.directory.remove_file(&beside));
            return Err(io_error(error));
        }
        if path == Path::new(META) {
            file.sync_all().map_err(io_error)?;
            self.watch.committed(data);
        }
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync().map_err(io_error)
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        let failed = |error| LockError::wrap_io_error(io_error(error));
        let file = self.lock_file(&lock.filepath).map_err(failed)?;
        if lock.is_blocking {
            file.lock().map_err(failed)?;
        } else {
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => LockError::LockBusy,
                TryLockError::Error(error) => failed(error),
            })?;
        }
        Ok(DirectoryLock::from(Box::new(Locked(file))))
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        Watch::subscribe(&self.watch, callback)
    }
}

impl fmt::Debug for FoliocacheDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoliocacheDirectory")
            .field("path", &self.directory.path())
            .field("map_from", &self.map_from)
            .finish_non_exhaustive()
    }
}
