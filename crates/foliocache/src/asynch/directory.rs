//! Async directories: look-ups as futures, and any other call on a worker.
//!
//! # Model
//!
//! ```text
//!   look-up   all of the answer is known, and believed ──▶ ready at the first poll, without a question or a wait
//!             else ──▶ a worker makes the blocking call
//!   run       a worker runs the caller's closure
//! ```
//!
//! # Invariants
//!
//! As those of [`AsyncFile`]; stragglers are closures of [`AsyncDirectory::run`].

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::fmt;
use std::future::poll_fn;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;

use super::AsyncFile;
use crate::directory::{DirEntry, Directory};
use crate::error::{Operation, Result};
use crate::metadata::Metadata;
use crate::parent_only::ParentOnly;
use crate::workers::{AsyncStats, Kind, Offload, Stragglers};

/// A directory for async callers: look-ups are futures, and [`run`](AsyncDirectory::run) makes any other call.
///
/// Cheap to clone. Made by [`Directory::into_async`]. The futures run on any executor, are [`Send`], and do nothing before
/// their first poll. Errors are those of the calls of [`Directory`] with the same names.
///
/// ```
/// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = pin!(future);
/// #     loop {
/// #         let context = &mut Context::from_waker(Waker::noop());
/// #         if let Poll::Ready(output) = future.as_mut().poll(context) { return output; }
/// #         std::thread::yield_now();
/// #     }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// let dir = cache.memfs()?.into_async()?;
/// block_on(async {
///     let new = dir.run(|dir| dir.create("settings.new")?.into_async()).await?;
///     new.append_all("colour = blue\n").await?;
///     new.sync_all().await?;
///     dir.run(|dir| {
///         dir.rename("settings.new", "settings")?;
///         dir.sync() // after a crash there are the old settings or the new ones
///     })
///     .await?;
///     assert_eq!(dir.metadata("settings").await?.len(), 14);
///     Ok::<(), foliocache::Error>(())
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Ready at the first poll
///
/// [`metadata`](AsyncDirectory::metadata), [`exists`](AsyncDirectory::exists), [`open`](AsyncDirectory::open),
/// [`open_dir`](AsyncDirectory::open_dir) and [`read_dir`](AsyncDirectory::read_dir) are ready at the first poll if the cache
/// knows the answer: names and attributes that are believed, files that are in the cache as a whole, directories of up to 256 entries
/// that were read before. The answer is as fresh as that of the blocking call; the kernel's queue of changes is read, which does not
/// wait. Other calls take a trip to a worker, some 40 µs.
///
/// # Dropping futures
///
/// A future may be dropped at any time. If no worker had begun its call, nothing is done. If a worker had begun it, the worker finishes
/// it, and later calls of [`run`](AsyncDirectory::run) through this `AsyncDirectory`, its clones and the directories opened from it
/// wait for that.
///
/// Workers are shared with the [async files](AsyncFile) of the file system.
#[derive(Clone)]
pub struct AsyncDirectory {
    directory: Directory,
    offload: Arc<ParentOnly<Offload>>,
    stragglers: Arc<Stragglers>,
}

// As `Directory`.
impl UnwindSafe for AsyncDirectory {}
impl RefUnwindSafe for AsyncDirectory {}

impl Directory {
    /// This directory, for async callers.
    ///
    /// The first one of a file system, or the first async file, charges buffers to the bound, for as long as there is one.
    /// May block for a moment to make room for them; no I/O.
    ///
    /// # Errors
    /// `ENOMEM` if the bound leaves no room for the buffers, `ECHILD` after a fork.
    pub fn into_async(self) -> Result<AsyncDirectory> {
        Ok(AsyncDirectory {
            offload: self.offload()?,
            directory: self,
            stragglers: Arc::default(),
        })
    }
}

impl AsyncDirectory {
    /// The same directory for calls that block.
    pub fn blocking(&self) -> &Directory {
        &self.directory
    }

    /// The requests that were given to the workers of the file system.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn worker_stats(&self) -> Result<AsyncStats> {
        self.check(Operation::Stats, Path::new(""))?;
        Ok(self.offload.stats())
    }

    /// Runs `call` on a worker of the file system, with the directory. It may make any blocking call: create files, rename,
    /// remove, sync. As `spawn_blocking` of tokio, with three differences: it needs no runtime, it takes one of the few threads of the
    /// file system, and calls through one `AsyncDirectory` are not reordered if a future is dropped.
    ///
    /// ```
    /// # async fn example(dir: &foliocache::AsyncDirectory) -> foliocache::Result<()> {
    /// // A file for async calls.
    /// let log = dir
    ///     .run(|dir| dir.open_options().read(true).append(true).create(true).open("log")?.into_async())
    ///     .await?;
    /// // Several changes in one trip.
    /// dir.run(|dir| {
    ///     dir.create_dir_all("archive/2026")?;
    ///     dir.rename("log.1", "archive/2026/log")
    /// })
    /// .await?;
    /// // A large directory in pieces.
    /// let mut entries = dir.run(|dir| dir.read_dir("archive")).await?;
    /// loop {
    ///     let next = dir.run(move |_| {
    ///         let piece = entries.by_ref().take(1000).collect::<foliocache::Result<Vec<_>>>()?;
    ///         Ok((piece, entries))
    ///     });
    ///     let (piece, rest) = next.await?;
    ///     if piece.is_empty() {
    ///         break;
    ///     }
    ///     entries = rest;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// At most three such calls run at a time, so a call that takes long delays those of others. Never wait in it for another
    /// future or for a lock of a file: the call that would wake it may need the same worker.
    ///
    /// # Errors
    /// That of `call`; `EIO` if `call` panics; the kernel's error if no thread can be started; `ECHILD` after a fork.
    #[doc(alias = "spawn_blocking")]
    pub async fn run<V: Send + 'static>(
        &self,
        call: impl FnOnce(&Directory) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        let path = Path::new("");
        self.check(Operation::Run, path)?;
        poll_fn(|context| self.stragglers.poll_none(context)).await;
        let kind = Kind::Change(Arc::clone(&self.stragglers));
        self.on_worker(kind, Operation::Run, path, |directory, _| call(directory))
            .await
    }

    /// Opens a file for reading. Ready at the first poll for a file that is in the cache as a whole, was opened before, and of which no
    /// change was reported since. For other ways of opening use [`run`](AsyncDirectory::run).
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<AsyncFile> {
        let path = path.as_ref();
        let known = self.directory.open_cached(path);
        let open = |directory: &Directory, path: &Path| directory.open(path);
        let file = self.known_or(known, Operation::Open, path, open).await?;
        Ok(AsyncFile::new(file, Arc::clone(&self.offload)))
    }

    /// A directory below this one. Paths given to it do not leave it. Ready at the first poll if it is known.
    ///
    /// # Errors
    /// As [`Directory::open_dir`].
    pub async fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let known = self.directory.open_dir_cached(path);
        let open = |directory: &Directory, path: &Path| directory.open_dir(path);
        let directory = self.known_or(known, Operation::Open, path, open).await?;
        Ok(Self {
            directory,
            offload: Arc::clone(&self.offload),
            stragglers: Arc::clone(&self.stragglers),
        })
    }

    /// The attributes of the file at `path`; symbolic links are followed. Ready at the first poll, without a system call,
    /// if the names on the way and the attributes are known and believed; else a worker asks.
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    #[doc(alias = "stat")]
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), true).await
    }

    /// The attributes of the file at `path`, or of the symbolic link itself. As [`AsyncDirectory::metadata`].
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    #[doc(alias = "lstat")]
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), false).await
    }

    /// Whether `path` exists; symbolic links are followed. As [`AsyncDirectory::metadata`].
    ///
    /// # Errors
    /// As [`Directory::exists`].
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Errno::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn stat(&self, path: &Path, follow: bool) -> Result<Metadata> {
        let known = self.directory.metadata_cached(path, follow);
        let stat = move |directory: &Directory, path: &Path| directory.stat(path, follow);
        self.known_or(known, Operation::Metadata, path, stat).await
    }

    /// All entries of a directory, without `.` and `..`; `"."` is this one. They take memory outside the bound: a large directory is
    /// better read in pieces, by [`run`](AsyncDirectory::run).
    ///
    /// Ready at the first poll for a directory of up to 256 entries that was read to its end before, and in which no name changed
    /// since. Else a worker reads it.
    ///
    /// # Errors
    /// As [`Directory::read_dir`], and the first error of an entry.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        let path = path.as_ref();
        let known = self.directory.read_dir_cached(path);
        let read = |directory: &Directory, path: &Path| directory.read_dir(path)?.collect();
        self.known_or(known, Operation::ReadDir, path, read).await
    }

    fn check(&self, operation: Operation, path: &Path) -> Result<()> {
        let checked = self.directory.check_fork();
        checked.map_err(|errno| self.directory.error(operation, path, errno))
    }

    /// The known result; without one a worker calls.
    async fn known_or<V: Send + 'static>(
        &self,
        known: Option<Result<V>>,
        operation: Operation,
        path: &Path,
        call: impl FnOnce(&Directory, &Path) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        match known {
            Some(known) => known,
            None => self.on_worker(Kind::Read, operation, path, call).await,
        }
    }

    /// Has a worker make a call that may block.
    async fn on_worker<V: Send + 'static>(
        &self,
        kind: Kind,
        operation: Operation,
        path: &Path,
        call: impl FnOnce(&Directory, &Path) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        // A child has no directory that could be cloned.
        self.check(operation, path)?;
        let (directory, of) = (self.directory.clone(), path.to_owned());
        let done = self.offload.call(kind, move || call(&directory, &of)).await;
        done.unwrap_or_else(|errno| Err(self.directory.error(operation, path, errno)))
    }
}

impl fmt::Debug for AsyncDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.fmt(f)
    }
}
