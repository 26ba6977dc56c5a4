//! Async directories: the calls of [`Directory`] as futures.
//!
//! # Model
//!
//! ```text
//!   poll: is all of the answer known, and believed? ──yes──▶ ready, nothing was asked and nobody waited for
//!     │ no, or names are to be changed
//!     ▼
//!   a worker makes the blocking call
//! ```
//!
//! # Invariants
//!
//! As those of [`AsyncFile`]; stragglers are changes of names.

use foliocache_fs::DirFsStats as DirectoryStats;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::RenameMode;
use std::ffi::OsStr;
use std::fmt;
use std::future::poll_fn;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};

use super::read_dir::AsyncReadDir;
use crate::attributes::{FileTimes, Permissions};
use crate::directory::Directory;
use crate::error::{Operation, Result};
use crate::metadata::Metadata;
use crate::parent_only::ParentOnly;
use crate::workers::{AsyncStats, Kind, Offload, Stragglers};

/// A directory whose calls are futures.
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
///     let new = dir.create("settings.new").await?;
///     new.append_all("colour = blue\n").await?;
///     new.sync_all().await?;
///     dir.rename("settings.new", "settings").await?;
///     dir.sync().await?; // after a crash there are the old settings or the new ones
///     assert_eq!(dir.metadata("settings").await?.len(), 14);
///     Ok::<(), foliocache::Error>(())
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # What is ready at the first poll
///
/// [`metadata`](AsyncDirectory::metadata), [`open`](AsyncDirectory::open) for reading,
/// [`open_dir`](AsyncDirectory::open_dir) and [`read_dir`](AsyncDirectory::read_dir) are, where the cache knows the answer:
/// names and attributes that are believed, files that are in the cache as a whole, directories that were read before. The
/// answer is as fresh as that of the blocking call; the kernel's queue of changes is read, which does not wait.
/// All else takes a trip to a worker, some 40 µs: each change of a name, and whatever asks the source.
///
/// # Dropping futures
///
/// A future may be dropped at any time. What no worker had begun is not done; a change that it had begun is, as a whole,
/// and whatever changes or syncs something through this `AsyncDirectory` or a clone of it afterwards waits for that.
///
/// Workers are shared with the [async files](AsyncFile) of the file system.
#[derive(Clone)]
pub struct AsyncDirectory {
    pub(super) directory: Directory,
    pub(super) offload: Arc<ParentOnly<Offload>>,
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

    /// The directory's path, for messages.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// As [`Directory::stats`]; does not wait.
    ///
    /// # Errors
    /// As there.
    pub fn stats(&self) -> Result<Option<DirectoryStats>> {
        self.directory.stats()
    }

    /// The requests that were given to the workers of the file system.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn worker_stats(&self) -> Result<AsyncStats> {
        self.check(Operation::Stats, Path::new(""))?;
        Ok(self.offload.stats())
    }

    /// A directory below this one, as one of its own: paths given to it do not leave it. Ready at the first poll where it is
    /// known.
    ///
    /// # Errors
    /// As [`Directory::open_dir`].
    pub async fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let directory = match self.directory.open_dir_cached(path) {
            Some(found) => found?,
            None => {
                let open = |directory: &Directory, path: &Path| directory.open_dir(path);
                self.on_worker(Kind::Read, Operation::Open, path, open)
                    .await?
            }
        };
        Ok(Self {
            directory,
            offload: Arc::clone(&self.offload),
            stragglers: Arc::clone(&self.stragglers),
        })
    }

    /// The attributes of what `path` leads to, symbolic links followed. Ready at the first poll, without a system call,
    /// where the names on the way and the attributes are known and believed; else a worker asks.
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    #[doc(alias = "stat")]
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), true).await
    }

    /// The attributes of what `path` names, be it a symbolic link. As [`AsyncDirectory::metadata`].
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    #[doc(alias = "lstat")]
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), false).await
    }

    /// Whether anything is at the end of `path`, symbolic links followed. As [`AsyncDirectory::metadata`].
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
        match self.directory.metadata_cached(path, follow) {
            Some(known) => known,
            None => {
                let stat = move |directory: &Directory, path: &Path| directory.stat(path, follow);
                self.on_worker(Kind::Read, Operation::Metadata, path, stat)
                    .await
            }
        }
    }

    /// The entries of a directory; `"."` is this one. Ready at the first poll for a directory that was read to its end
    /// before, and in which no name changed since; so are its entries then. Else a worker opens it and reads the first of
    /// them.
    ///
    /// # Errors
    /// As [`Directory::read_dir`].
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<AsyncReadDir> {
        let path = path.as_ref();
        let entries = match self.directory.read_dir_cached(path) {
            Some(entries) => entries?,
            None => {
                let open = |directory: &Directory, path: &Path| {
                    let mut entries = directory.read_dir(path)?;
                    entries.read_ahead();
                    Ok(entries)
                };
                self.on_worker(Kind::Read, Operation::ReadDir, path, open)
                    .await?
            }
        };
        let path = self.path().join(path);
        Ok(AsyncReadDir::new(entries, Arc::clone(&self.offload), path))
    }

    /// What a symbolic link holds. Always by a worker.
    ///
    /// # Errors
    /// As [`Directory::read_link`].
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let read = |directory: &Directory, path: &Path| directory.read_link(path);
        self.on_worker(Kind::Read, Operation::ReadLink, path.as_ref(), read)
            .await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Directory::create_dir`].
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let make = |directory: &Directory, path: &Path| directory.create_dir(path);
        self.changed(Operation::CreateDir, path.as_ref(), make)
            .await
    }

    /// Makes a directory and those that lead to it, as far as they are not there.
    ///
    /// # Errors
    /// As [`Directory::create_dir_all`].
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let make = |directory: &Directory, path: &Path| directory.create_dir_all(path);
        self.changed(Operation::CreateDir, path.as_ref(), make)
            .await
    }

    /// Takes a name away from what is no directory. A file that is open lives on until it is closed.
    ///
    /// # Errors
    /// As [`Directory::remove_file`].
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let remove = |directory: &Directory, path: &Path| directory.remove_file(path);
        self.changed(Operation::Remove, path.as_ref(), remove).await
    }

    /// Takes an empty directory away.
    ///
    /// # Errors
    /// As [`Directory::remove_dir`].
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let remove = |directory: &Directory, path: &Path| directory.remove_dir(path);
        self.changed(Operation::Remove, path.as_ref(), remove).await
    }

    /// Takes a directory away with all that is in it. A worker is at it for as long as that takes.
    ///
    /// # Errors
    /// As [`Directory::remove_dir_all`].
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let remove = |directory: &Directory, path: &Path| directory.remove_dir_all(path);
        self.changed(Operation::Remove, path.as_ref(), remove).await
    }

    /// Moves a name, atomically; what had the new name loses it.
    ///
    /// # Errors
    /// As [`Directory::rename`].
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace).await
    }

    /// As [`AsyncDirectory::rename`]; `mode` says what becomes of what has the new name.
    ///
    /// # Errors
    /// As [`Directory::rename_with`].
    pub async fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mode: RenameMode,
    ) -> Result<()> {
        let to = to.as_ref().to_owned();
        let rename =
            move |directory: &Directory, from: &Path| directory.rename_with(from, &to, mode);
        self.changed(Operation::Rename, from.as_ref(), rename).await
    }

    /// As [`AsyncDirectory::rename`], to another directory of the same file system.
    ///
    /// # Errors
    /// As [`Directory::rename_to`].
    pub async fn rename_to(
        &self,
        from: impl AsRef<Path>,
        directory: &Self,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref().to_owned());
        directory.no_stragglers(Operation::Rename, &to).await?;
        let target = directory.directory.clone();
        let rename =
            move |directory: &Directory, from: &Path| directory.rename_to(from, &target, &to);
        self.changed(Operation::Rename, from, rename).await
    }

    /// Gives the file `existing` another name.
    ///
    /// # Errors
    /// As [`Directory::hard_link`].
    pub async fn hard_link(&self, existing: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        let new = new.as_ref().to_owned();
        let link =
            move |directory: &Directory, existing: &Path| directory.hard_link(existing, &new);
        self.changed(Operation::HardLink, existing.as_ref(), link)
            .await
    }

    /// Makes a symbolic link at `link` that holds `target`.
    ///
    /// # Errors
    /// As [`Directory::symlink`].
    pub async fn symlink(&self, target: impl AsRef<OsStr>, link: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().to_owned();
        let make = move |directory: &Directory, link: &Path| directory.symlink(&target, link);
        self.changed(Operation::Symlink, link.as_ref(), make).await
    }

    /// Sets the permission bits of what `path` leads to.
    ///
    /// # Errors
    /// As [`Directory::set_permissions`].
    pub async fn set_permissions(
        &self,
        path: impl AsRef<Path>,
        permissions: Permissions,
    ) -> Result<()> {
        let set = move |directory: &Directory, path: &Path| {
            directory.set_permissions(path, permissions.clone())
        };
        self.changed(Operation::SetMetadata, path.as_ref(), set)
            .await
    }

    /// Sets times of what `path` leads to.
    ///
    /// # Errors
    /// As [`Directory::set_times`].
    pub async fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        let set = move |directory: &Directory, path: &Path| directory.set_times(path, times);
        self.changed(Operation::SetMetadata, path.as_ref(), set)
            .await
    }

    /// Makes the names in this directory durable: what was made, renamed and removed in it before the call. A sync that was
    /// polled once is done, also if its future is dropped.
    ///
    /// # Errors
    /// As [`Directory::sync`].
    #[doc(alias = "fsync")]
    pub async fn sync(&self) -> Result<()> {
        let path = Path::new("");
        self.no_stragglers(Operation::Sync, path).await?;
        let sync = |directory: &Directory, _: &Path| directory.sync();
        self.on_worker(Kind::Always, Operation::Sync, path, sync)
            .await
    }

    fn check(&self, operation: Operation, path: &Path) -> Result<()> {
        let checked = self.directory.check_fork();
        checked.map_err(|errno| self.directory.error(operation, path, errno))
    }

    /// Waits until no change of names is under way whose future was dropped; `ECHILD` in a forked child.
    async fn no_stragglers(&self, operation: Operation, path: &Path) -> Result<()> {
        self.check(operation, path)?;
        poll_fn(|context| self.stragglers.poll_none(context)).await;
        Ok(())
    }

    /// Has a worker change names.
    pub(super) async fn changed<V: Send + 'static>(
        &self,
        operation: Operation,
        path: &Path,
        change: impl FnMut(&Directory, &Path) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        self.no_stragglers(operation, path).await?;
        let kind = Kind::Change(Arc::clone(&self.stragglers));
        self.on_worker(kind, operation, path, change).await
    }

    /// Has a worker make a call that may block.
    pub(super) async fn on_worker<V: Send + 'static>(
        &self,
        kind: Kind,
        operation: Operation,
        path: &Path,
        mut call: impl FnMut(&Directory, &Path) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        // A child has no directory that could be cloned.
        self.check(operation, path)?;
        let (directory, of) = (self.directory.clone(), path.to_owned());
        let task = Box::new(move || Ok(call(&directory, &of)));
        let done = match self.offload.submit(kind, task) {
            Ok(pending) => pending.await,
            Err(errno) => Err(errno),
        };
        done.unwrap_or_else(|errno| Err(self.directory.error(operation, path, errno)))
    }
}

impl fmt::Debug for AsyncDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.fmt(f)
    }
}
