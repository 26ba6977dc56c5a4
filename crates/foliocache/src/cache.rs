//! The cache: its memory and its file systems.
//!
//! # Model
//!
//! A [`Cache`] keeps the file systems over directories that were opened through it, so that their
//! pages stay cached between one use and the next. Each [`Directory`] and [`File`] keeps its own
//! file system, so handles outlive the cache that they came from.
//!
//! # Invariants
//!
//! 1. No directory is served by two file systems of one cache.
//!
//! # Locking
//!
//! *Protects*: `mounts` the list of file systems, `files` the opening of files and directories, see [`single`]. *Order*: before everything below. *May block*: a
//! directory is opened under it.
//!
//! [`File`]: crate::File

mod close;
mod single;
#[cfg(feature = "testing")]
mod testing;

use foliocache_fs::{DirFs, MemFs};
use foliocache_mm::{Holder, Mm, MmStats as CacheStats};
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, OFlags, OwnedFd};
use foliocache_vfs::FileSystem;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::directory_options::DirectoryOptions;
use crate::error::{Error, Operation, Result, UnsyncedFile};
use crate::exit;
use crate::mount::VfsMount;
use crate::parent_only::{Forked, ParentOnly};
use crate::size::MemorySize;

pub use self::close::CloseError;

/// A page cache of this process, bounded in memory.
///
/// Cheap to clone; the clones are the same cache. Two caches in one process share nothing.
///
/// After `fork` the cache belongs to the parent: in the child every call gives `ECHILD`.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<ParentOnly<Inner>>,
}

// As `Directory`.
impl UnwindSafe for Cache {}
impl RefUnwindSafe for Cache {}

struct Inner {
    mm: Arc<Mm>,
    /// Held while a file is opened without its directory, or a directory.
    files: Mutex<()>,
    mounts: Mutex<Vec<Mounted>>,
    /// The same without their directories, for the exit of the process.
    at_exit: Arc<exit::Mounts>,
}

/// Device and inode number of a directory.
type Identity = (u64, u64);

/// A file system over a directory.
struct Mounted {
    /// The directory, its parent, and so on up to the root.
    ancestry: Vec<Identity>,
    mount: Arc<VfsMount>,
}

impl Forked for Inner {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mm.check_fork()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.mm.warn_of_pins();
        for used in self.mounts.lock().iter() {
            // Else it is written back when it is dropped.
            if let Some(fs) = used.mount.dirfs()
                && Arc::strong_count(&used.mount) > 1
            {
                fs.write_back();
            }
        }
    }
}

impl Cache {
    pub(crate) fn new(mm: Arc<Mm>) -> Self {
        Self {
            inner: Arc::new(ParentOnly::new(Inner {
                mm,
                files: Mutex::default(),
                mounts: Mutex::new(Vec::new()),
                at_exit: Arc::default(),
            })),
        }
    }

    fn check(&self, operation: Operation) -> Result<()> {
        let checked = self.inner.check_fork();
        checked.map_err(Error::of_cache(operation))
    }

    /// A local directory, seen through the cache.
    ///
    /// The same directory opened twice is one file system, with the options of the first call; so is a directory below, as by
    /// [`Directory::open_dir`]. Two options are different:
    /// each handle has its own [`read_only`](DirectoryOptions::read_only), and [`ignore_lock`](DirectoryOptions::ignore_lock) counts the first
    /// time that the directory is opened for writing. The file system and its cached pages stay until the cache goes.
    ///
    /// Blocks on I/O. Costs up to four threads and some hundred KiB outside the bound, and up to four threads more once async
    /// calls have to wait.
    ///
    /// # Errors
    /// A path that is no directory or may not be read. [`Error::Overlap`] for a directory above one that is in use,
    /// or below it on another mounted file system, and for one above a file that is open by [`Cache::file`].
    /// `EBUSY` if another cache, of this process or another, has it open for writing: see
    /// [`DirectoryOptions::ignore_lock`].
    pub fn directory(&self, path: impl AsRef<Path>) -> Result<Directory> {
        self.directory_with(path, DirectoryOptions::new())
    }

    /// As [`Cache::directory`], with options.
    ///
    /// # Errors
    /// As [`Cache::directory`].
    pub fn directory_with(
        &self,
        path: impl AsRef<Path>,
        options: DirectoryOptions,
    ) -> Result<Directory> {
        self.check(Operation::Mount)?;
        let mut options = options.fs;
        // The file system is writable, because another handle may be.
        let read_only = std::mem::take(&mut options.read_only);
        let ignore_lock = options.ignore_lock;
        let path = path.as_ref();
        let failed = Error::at(Operation::Mount, path);
        let ancestry = ancestry(path).map_err(failed)?;
        let _files = self.inner.files.lock();
        let mut mounts = self.inner.mounts.lock();
        let directories = || mounts.iter().filter(|used| !used.mount.of_files);
        let overlaps = |used: &&Mounted| {
            ancestry.contains(&used.ancestry[0]) || used.ancestry.contains(&ancestry[0])
        };
        if let Some(used) = directories().find(overlaps) {
            let depth = ancestry.iter().position(|above| *above == used.ancestry[0]);
            // The used directory may leave out file systems that are mounted below it.
            let is_there = |_: &usize| ancestry[0].0 == used.ancestry[0].0;
            if let Some(depth) = depth.filter(is_there) {
                if !read_only {
                    used.mount.lock(ignore_lock)?;
                }
                let top = Directory::root(&used.mount, read_only)?;
                if depth == 0 {
                    return Ok(top);
                }
                return top.open_dir(single::below(path, depth).map_err(failed)?);
            }
            return Err(Error::Overlap {
                path: path.to_owned(),
                used: used.mount.path.clone(),
            });
        }
        let held = |used: &Mounted| used.mount.dirfs()?.held_below(ancestry[0]);
        if let Some(used) = mounts.iter().find_map(held) {
            return Err(Error::Overlap {
                path: path.to_owned(),
                used: used.into(),
            });
        }
        let fs = DirFs::open(&self.inner.mm, path, options)?;
        let mount = VfsMount::of_directory(fs, path.to_owned(), false);
        if !read_only {
            mount.lock(ignore_lock)?;
        }
        let directory = Directory::root(&mount, read_only)?;
        self.inner.at_exit.lock().push(Arc::downgrade(&mount));
        mounts.push(Mounted { ancestry, mount });
        Ok(directory)
    }

    /// A new, empty file system whose only store is the cache.
    ///
    /// Its files are never written back or evicted. They may take half of the memory for pages; beyond that a write
    /// gets `ENOSPC`. The file system lives as long as a [`Directory`] or [`File`] of it.
    ///
    /// [`File`]: crate::File
    ///
    /// # Errors
    /// `ENOMEM`: no memory left in the bound.
    pub fn memfs(&self) -> Result<Directory> {
        self.check(Operation::Mount)?;
        let fs = MemFs::new(&self.inner.mm)?;
        let path = PathBuf::from(fs.kind());
        let mount = VfsMount::of_memory(fs, path);
        Directory::root(&mount, false)
    }

    /// Changes the bound on all memory, in bytes or as text such as `"512M"`.
    ///
    /// Takes effect at once: the cache takes no memory beyond a smaller bound. Blocks until as much memory as possible is given
    /// back; memory of dirty data follows when it is written. While memory outside the cache is short, the effective bound may
    /// be smaller: see [`CacheBuilder::external_pressure`](crate::CacheBuilder::external_pressure). If pins hold more than the new bound
    /// leaves them, this asks for those of [`File::pin_revocable`](crate::File::pin_revocable), the oldest first, and waits for
    /// [`CacheBuilder::pin_wait`](crate::CacheBuilder::pin_wait) at most.
    ///
    /// # Errors
    /// A size below [`MIN_MEMORY`](crate::MIN_MEMORY) or more than the machine has, or too small for the
    /// unreclaimable memory (files in memory, failed data, pins, views, locked mappings); the bound is then
    /// unchanged.
    pub fn set_memory(&self, bytes: impl MemorySize) -> Result<()> {
        self.check(Operation::SetMemory)?;
        Ok(self.inner.mm.set_limit(bytes.in_bytes()?)?)
    }

    /// Statistics of the cache, for all files together. Visits every file: not for a hot path.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn stats(&self) -> Result<CacheStats> {
        self.check(Operation::Stats)?;
        Ok(self.inner.mm.stats())
    }

    /// Views and pins that keep memory in place, for up to `most` folios. After the bound was made smaller, each keeps a block of
    /// 2 MiB from being given back, until the last one in its block goes. Visits the descriptor of every folio: not for a
    /// hot path.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn holders(&self, most: usize) -> Result<Vec<Holder>> {
        self.check(Operation::Stats)?;
        Ok(self.inner.mm.holders(most))
    }

    /// Makes durable all changes before the call, of files and names, in every directory of the cache. Blocks for the I/O.
    ///
    /// # Errors
    /// [`Error::NotDurable`], which names every file that failed. The others are durable. Failed data stays dirty and is retried.
    pub fn sync(&self) -> Result<()> {
        self.check(Operation::Sync)?;
        let mounts = self.mounts();
        let left_out = usize::from(foliocache_sync::planted!(one_directory_not_synced));
        let failed = mounts.iter().skip(left_out).flat_map(|mount| mount.sync());
        let failed: Vec<_> = failed.collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::NotDurable(failed)),
        }
    }

    /// The pinned ranges of all files. Visits every file: not for a hot path.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn pinned(&self) -> Result<Vec<Holder>> {
        self.check(Operation::Stats)?;
        Ok(self.inner.mm.pinned(usize::MAX))
    }

    fn mounts(&self) -> Vec<Arc<VfsMount>> {
        let mounts = self.inner.mounts.lock();
        mounts.iter().map(|used| Arc::clone(&used.mount)).collect()
    }

    /// Files of all directories of the cache with data that is not durable yet. Visits each file with such data; does not wait for I/O.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn unsynced_files(&self) -> Result<Vec<UnsyncedFile>> {
        self.check(Operation::Stats)?;
        let mounts = self.mounts();
        let unsynced = mounts.iter().flat_map(|mount| mount.unsynced_files());
        Ok(unsynced.collect())
    }

    /// Gives up all data of all directories that is not durable. **It is lost.** Use it to end when a store no longer takes data.
    /// [`File::discard_failed`] gives up the failed data of one file.
    ///
    /// [`File::discard_failed`]: crate::File::discard_failed
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn discard_unsynced(&self) -> Result<()> {
        self.check(Operation::Discard)?;
        for mount in self.mounts() {
            mount.bdi().discard_all();
        }
        Ok(())
    }

    /// Writes everything back when the process exits, in all directories of the cache: by [`std::process::exit`], `exit(3)` or the
    /// end of `main`. It does so even if the cache was leaked, is a `static`, or is still used by threads and files. One call is
    /// enough.
    ///
    /// The exit waits for it, but at most 10 s while nothing is written or flushed. Files that could not be written are listed on
    /// standard error; the exit status does not change. A process that is killed, aborts or calls `_exit(2)` writes nothing back, and
    /// neither does a forked child.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::OnceLock;
    ///
    /// static CACHE: OnceLock<foliocache::Cache> = OnceLock::new();
    ///
    /// let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// cache.close_on_exit()?;
    /// CACHE.set(cache).expect("once"); // never dropped
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ENOMEM`; `ECHILD` after a fork.
    #[doc(alias = "atexit")]
    pub fn close_on_exit(&self) -> Result<()> {
        self.check(Operation::Sync)?;
        exit::register(&self.inner.at_exit)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Cache");
        if self.inner.check_fork().is_ok() {
            debug.field("memory", &self.inner.mm.usage());
        }
        debug.finish_non_exhaustive()
    }
}

/// The identities of the directory at `path` and of all directories above it.
fn ancestry(path: &Path) -> Result<Vec<Identity>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    ancestry_of(fd::open(path, flags, 0)?)
}

/// As [`ancestry`], of an open directory.
fn ancestry_of(mut directory: OwnedFd) -> Result<Vec<Identity>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut ancestry = Vec::new();
    loop {
        let stat = fd::fstat(directory.as_fd())?;
        let identity = (stat.dev.raw(), stat.ino);
        if ancestry.contains(&identity) {
            return Ok(ancestry);
        }
        ancestry.push(identity);
        let above = PathBuf::from(fd::proc_path(directory.as_fd())).join("..");
        // Without the right to look there, or without /proc, the rest is unknown.
        let Ok(above) = fd::open(&above, flags, 0) else {
            return Ok(ancestry);
        };
        directory = above;
    }
}
