//! A directory seen through the cache: names, and the files behind them.
//!
//! # Model
//!
//! All paths are relative to the directory and stay in it. Names and attributes are cached, as part of the bound. A
//! change by others in a local directory is noticed within some 10 ms if the kernel reports it, and after
//! [`revalidate_after`](crate::DirectoryOptions::revalidate_after) otherwise. `docs/guide/sharing.md` has the
//! details.
//!
//! # Differences from Linux
//!
//! New files get the owner and umask that the process had when the file system was made.

mod attributes;
mod cached;
mod contents;
mod entries;
mod links;
mod open_options;
mod tree;

use foliocache_fs::{DirFs, DirFsStats as DirectoryStats};
use foliocache_sync::Arc;
use foliocache_sync::background::Panics;
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Credentials, Inode, Namei, New, SlabArc, StatFs, SuperBlock, WalkError};
use std::ffi::OsStr;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};

use crate::error::{Error, Operation, Result};
use crate::joined::joined;
use crate::metadata::Metadata;
use crate::mount::VfsMount;
use crate::parent_only::{Forked, ParentOnly};
use crate::rights::Rights;

pub use self::entries::{DirEntry, ReadDir};
pub use self::open_options::OpenOptions;

/// A directory seen through the cache.
///
/// Paths are relative. A path that would lead out of the directory, by `..`, as an absolute path or
/// through a symbolic link, is an [`Error::Escape`], even if directories move meanwhile. Symbolic links
/// that stay inside are followed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// let dir = cache.memfs()?;
/// dir.create_dir_all("logs/today")?;
/// dir.append("logs/today/app")?.append(b"started\n")?;
/// let logs = dir.open_dir("logs")?;
/// for entry in logs.read_dir("today")? {
///     println!("{:?}", entry?.file_name());
/// }
/// let error = logs.open("../secret").unwrap_err();
/// assert!(matches!(error, foliocache::Error::Escape { .. }));
/// # Ok(())
/// # }
/// ```
///
/// Names and meanings are those of `std::fs`: `docs/guide/porting.md` in the repository shows how to move a program here.
///
/// Cheap to clone. Every call may block on I/O. Names, attributes and pages of files stay cached after it, until their memory is
/// needed. An open file keeps some hundred bytes of the bound.
#[derive(Clone)]
pub struct Directory {
    vfs_path: ParentOnly<VfsPath>,
    rights: Rights,
    path: PathBuf,
}

// The library runs no code of its callers under its locks, so a panic of theirs leaves nothing half done.
impl UnwindSafe for Directory {}
impl RefUnwindSafe for Directory {}

/// A directory in its file system.
#[derive(Clone)]
struct VfsPath {
    dentry: DentryRef<Inode>,
    mount: Arc<VfsMount>,
}

impl Forked for VfsPath {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mount.super_block().map(|_| ())
    }
}

impl Directory {
    /// The directory at the top of a file system.
    pub(crate) fn root(mount: &Arc<VfsMount>, read_only: bool) -> Result<Self> {
        let root = mount.super_block().map(|names| names.root().clone());
        let dentry = root.map_err(Error::at(Operation::Mount, &mount.path))?;
        let mount = Arc::clone(mount);
        let path = mount.path.clone();
        Ok(Self {
            vfs_path: ParentOnly::new(VfsPath { dentry, mount }),
            rights: Rights {
                credentials: None,
                read_only,
            },
            path,
        })
    }

    /// The same directory with the credentials of another user. Mode, owner and group decide, as in the kernel, on
    /// every operation through it and through everything opened from it, and new files belong to that user. Access
    /// control lists do not count, nor do capabilities of users other than 0. Without credentials the backing store
    /// decides what this process may do.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// let dir = cache.memfs()?;
    /// dir.open_options().write(true).create(true).mode(0o600).open("mine")?;
    /// let guest = dir.with_credentials(foliocache::Credentials::new(1000, 1000, &[]));
    /// assert_eq!(guest.open("mine").unwrap_err().errno(), foliocache::Errno::EACCES);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_credentials(&self, credentials: Credentials) -> Self {
        let mut directory = self.clone();
        directory.rights.credentials = Some(credentials);
        directory
    }

    /// The file system whose top this is, and whether it was opened read-only. `None` for a directory below, and with credentials.
    /// For the front doors above this crate.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    #[doc(hidden)]
    pub fn whole_file_system(&self) -> Result<Option<(Arc<SuperBlock>, bool)>> {
        let names = self.mount().super_block();
        let names = names.map_err(|errno| self.error(Operation::Mount, Path::new(""), errno))?;
        let top = std::ptr::eq(&**names.root(), &*self.vfs_path.dentry);
        let whole = top && self.rights.credentials.is_none();
        Ok(whole.then(|| (Arc::clone(names), self.rights.read_only)))
    }

    /// `ECHILD` in a forked child.
    pub(crate) fn check_fork(&self) -> Result<(), Errno> {
        self.vfs_path.check_fork()
    }

    fn mount(&self) -> &VfsMount {
        &self.vfs_path.mount
    }

    /// The directory's path, for messages: below the path that the file system was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record of panics in the cache's threads.
    pub(crate) fn panics(&self) -> &Panics {
        self.mount().bdi().mm().panics()
    }

    pub(crate) fn error(&self, operation: Operation, path: &Path, errno: Errno) -> Error {
        Error::at(operation, &self.join(path))(errno)
    }

    /// Operations by path from here, which do not leave this directory.
    fn namei<'a>(&'a self, names: &'a SuperBlock) -> Namei<'a> {
        Namei {
            names,
            start: &self.vfs_path.dentry,
            beneath: true,
            ctx: self.rights.ctx(self.mount()),
            credentials: self.rights.credentials.as_ref(),
        }
    }

    /// Runs `act` from this directory; a path that leads out of it is a distinct error.
    fn run<T>(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&Namei<'_>, &OsStr) -> Result<T, WalkError>,
    ) -> Result<T> {
        let done = match self.mount().super_block() {
            Ok(_) if self.rights.read_only && operation.changes_names() => Err(Errno::EROFS.into()),
            Ok(names) => act(&self.namei(names), path.as_os_str()),
            Err(errno) => Err(errno.into()),
        };
        done.map_err(|error| match error {
            WalkError::Errno(errno) => self.error(operation, path, errno),
            WalkError::Escape => Error::Escape {
                operation,
                path: path.to_owned(),
                directory: self.path.clone(),
            },
        })
    }

    /// The full path of `path`, for messages.
    fn join(&self, path: &Path) -> PathBuf {
        joined(&self.path, path)
    }

    /// Walks `path` to an inode, symbolic links followed, and hands it to `act`.
    fn inode<T>(
        &self,
        operation: Operation,
        path: &Path,
        mut act: impl FnMut(&SuperBlock, &SlabArc<Inode>) -> Result<T, Errno>,
    ) -> Result<T> {
        self.run(operation, path, |namei, path| {
            namei.on_inode(path, true, |_, inode| act(namei.names, inode))
        })
    }

    /// A directory below this one. Paths given to it do not leave it.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ELOOP`, [`Error::Escape`], those of the backing store.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        self.open_below(path.as_ref(), true)
    }

    pub(crate) fn open_below(&self, path: &Path, follow: bool) -> Result<Self> {
        self.below(Operation::Open, path, follow)
    }

    fn below(&self, operation: Operation, path: &Path, follow: bool) -> Result<Self> {
        let dentry = self.run(operation, path, |namei, path| {
            let dentry = namei.lookup(path, follow)?;
            match dentry.inode() {
                Some(inode) if inode.is_directory() => Ok(dentry),
                Some(_) => Err(Errno::ENOTDIR.into()),
                None => Err(Errno::ENOENT.into()),
            }
        })?;
        Ok(self.at(dentry, path))
    }

    /// The directory `dentry`, at `path`.
    fn at(&self, dentry: DentryRef<Inode>, path: &Path) -> Self {
        let mount = Arc::clone(&self.vfs_path.mount);
        Self {
            vfs_path: ParentOnly::new(VfsPath { dentry, mount }),
            rights: self.rights.clone(),
            path: self.join(path),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `ENOSPC`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run(Operation::CreateDir, path.as_ref(), |namei, path| {
            namei.make(path, New::Directory { mode: 0o777 }).map(drop)
        })
    }

    /// Makes a directory and all missing directories above it.
    ///
    /// # Errors
    /// As [`Directory::create_dir`], but an existing directory is no error.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.create_dir(path) {
            Err(error) if error.errno() == Errno::EEXIST => match self.metadata(path) {
                Ok(there) if there.is_dir() => Ok(()),
                _ => Err(error),
            },
            Err(error) if error.errno() == Errno::ENOENT => match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => {
                    self.create_dir_all(parent)?;
                    match self.create_dir(path) {
                        Err(error) if error.errno() == Errno::EEXIST => Ok(()),
                        made => made,
                    }
                }
                _ => Err(error),
            },
            made => made,
        }
    }

    /// Removes a name that is not a directory's. An open file lives on until it is closed.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run(Operation::Remove, path.as_ref(), |namei, path| {
            namei.unlink(path)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run(Operation::Remove, path.as_ref(), |namei, path| {
            namei.rmdir(path)
        })
    }

    /// The attributes of the file at `path`; symbolic links are followed.
    ///
    /// # Errors
    /// `ENOENT`, `ELOOP`, [`Error::Escape`], those of the backing store.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), true)
    }

    /// The attributes of the file at `path`, or of the symbolic link itself.
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), false)
    }

    pub(crate) fn stat(&self, path: &Path, follow: bool) -> Result<Metadata> {
        self.run(Operation::Metadata, path, |namei, path| {
            Ok(Metadata::new(namei.stat(path, follow)?, self.mount().dev()))
        })
    }

    /// Makes all names durable that were made, renamed or removed in this directory before the call. For the files themselves use
    /// [`File::sync_all`](crate::File::sync_all), for everything [`Cache::sync`].
    ///
    /// # Errors
    /// Those of the backing store.
    ///
    /// [`Cache::sync`]: crate::Cache::sync
    pub fn sync(&self) -> Result<()> {
        self.inode(Operation::Sync, Path::new("."), |names, inode| {
            names.fs().opendir(inode)?.fsync()
        })
    }

    /// How much room the file system has. Dirty data in the cache counts as used.
    ///
    /// # Errors
    /// Those of the backing store.
    #[doc(alias = "statvfs")]
    pub fn statfs(&self) -> Result<StatFs> {
        self.inode(Operation::StatFs, Path::new("."), |names, _| {
            names.fs().statfs()
        })
    }

    /// Statistics of the file system over a local directory, with the features that the kernel refused. `None` for a file system
    /// in memory. Does not wait for the directory.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn stats(&self) -> Result<Option<DirectoryStats>> {
        let names = self.mount().super_block();
        names.map_err(|errno| self.error(Operation::Stats, Path::new("."), errno))?;
        Ok(self.mount().dirfs().map(DirFs::stats))
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
