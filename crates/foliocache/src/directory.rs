//! A directory seen through the cache: names, and the files behind them.
//!
//! # Model
//!
//! All paths are relative to the directory and stay in it, see [`crate::walk`]. Names are not
//! cached and not part of the bound; each call walks its path anew.
//!
//! # Differences from Linux
//!
//! Owner and mode of what is made are those of the process when the file system was made.

use foliocache_fs::DirFsStats;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{FileKind, FileSystem, Inode, OpContext, RenameMode, SetAttr};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Operation, Result};
use crate::file::File;
use crate::metadata::{Metadata, ReadDir};
use crate::mount::{Backing, Mount};
use crate::open_options::OpenOptions;
use crate::parent_only::{Forked, ParentOnly};
use crate::walk::{Found, WalkError, walk};

/// A directory seen through the cache.
///
/// Paths are relative. A path that would lead out of the directory, by `..`, as an absolute path or
/// through a symbolic link, is an [`Error::Escape`], whoever moves what meanwhile. Symbolic links
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
/// Cheap to clone. Every call may block on I/O, and none takes memory of the bound for longer than
/// it runs, except for the attributes of files that it comes across.
#[derive(Clone)]
pub struct Directory {
    place: ParentOnly<Place>,
    path: PathBuf,
}

/// A directory in its file system.
#[derive(Clone)]
struct Place {
    inode: Arc<Inode>,
    mount: Arc<Mount>,
}

impl Forked for Place {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mount.fs().map(|_| ())
    }
}

impl Directory {
    /// The directory at the top of a file system.
    pub(crate) fn root(mount: &Arc<Mount>) -> Result<Self> {
        let root = mount.fs().map(FileSystem::root);
        let inode = root.map_err(|errno| Error::Path {
            operation: Operation::Mount,
            path: mount.path().to_owned(),
            errno,
        })?;
        Ok(Self::new(mount, inode, mount.path().to_owned()))
    }

    fn new(mount: &Arc<Mount>, inode: Arc<Inode>, path: PathBuf) -> Self {
        let mount = Arc::clone(mount);
        Self {
            place: ParentOnly::new(Place { inode, mount }),
            path,
        }
    }

    fn mount(&self) -> &Mount {
        &self.place.mount
    }

    fn ctx(&self) -> &OpContext {
        self.mount().ctx()
    }

    /// The directory's path, for messages: below the path that the file system was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn error(&self, operation: Operation, path: &Path, errno: Errno) -> Error {
        Error::Path {
            operation,
            path: self.path.join(path),
            errno,
        }
    }

    /// Walks `path` and hands what it found to `act`.
    fn at<T>(
        &self,
        operation: Operation,
        path: &Path,
        follow: bool,
        act: impl FnOnce(&dyn FileSystem, Found) -> Result<T, Errno>,
    ) -> Result<T> {
        let walked = || -> Result<T, WalkError> {
            let fs = self.mount().fs()?;
            let found = walk(fs, &self.place.inode, path.as_os_str(), follow)?;
            Ok(act(fs, found)?)
        };
        walked().map_err(|error| match error {
            WalkError::Errno(errno) => self.error(operation, path, errno),
            WalkError::Escape => Error::Escape {
                operation,
                path: path.to_owned(),
                directory: self.path.clone(),
            },
        })
    }

    /// How a file is to be opened.
    pub fn open_options(&self) -> OpenOptions<'_> {
        OpenOptions::new(self)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_options().read(true).open(path)
    }

    /// Opens a file for reading and writing; makes it if it is not there, cuts it to nothing if it
    /// is.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        let options = self.open_options().read(true).write(true).create(true);
        options.truncate(true).open(path)
    }

    /// Makes a file that must not be there yet, and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        let options = self.open_options().read(true).write(true);
        options.create_new(true).open(path)
    }

    /// Opens a file for writing at its end; makes it if it is not there.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn append(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_options().append(true).create(true).open(path)
    }

    pub(crate) fn open_with(&self, path: &Path, options: &OpenOptions<'_>) -> Result<File> {
        let operation = match options.create || options.create_new {
            true => Operation::Create,
            false => Operation::Open,
        };
        let follow = !options.create_new;
        let open = self.at(operation, path, follow, |fs, found| {
            let flags = options.flags()?;
            match (found.inode, found.name) {
                (Some(_), _) if options.create_new => Err(Errno::EEXIST),
                (Some(inode), _) => fs.open(self.ctx(), &inode, flags),
                (None, Some(name)) if options.create || options.create_new => {
                    if found.wants_directory {
                        return Err(Errno::EISDIR);
                    }
                    let exclusive = options.create_new;
                    fs.create(
                        self.ctx(),
                        &found.parent,
                        &name,
                        options.mode,
                        flags,
                        exclusive,
                    )
                }
                (None, _) => Err(Errno::ENOENT),
            }
        })?;
        Ok(File::new(open, &self.place.mount, self.path.join(path)))
    }

    /// A directory below this one, as one of its own: paths given to it do not leave it.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ELOOP`, [`Error::Escape`], those of the backing store.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let inode = self.at(Operation::Open, path, true, |_, found| {
            let inode = found.inode.ok_or(Errno::ENOENT)?;
            match inode.kind() {
                FileKind::Directory => Ok(inode),
                _ => Err(Errno::ENOTDIR),
            }
        })?;
        Ok(Self::new(&self.place.mount, inode, self.path.join(path)))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `ENOSPC`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(
            Operation::CreateDir,
            path.as_ref(),
            false,
            |fs, found| match (found.inode, found.name) {
                (None, Some(name)) => {
                    fs.mkdir(self.ctx(), &found.parent, &name, 0o777)?;
                    Ok(())
                }
                _ => Err(Errno::EEXIST),
            },
        )
    }

    /// Makes a directory and those that lead to it, as far as they are not there.
    ///
    /// # Errors
    /// As [`Directory::create_dir`], but an existing directory is none.
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

    /// Takes a name away from what is no directory. A file that is open lives on until it is
    /// closed.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(
            Operation::Remove,
            path.as_ref(),
            false,
            |fs, found| match found.name {
                Some(_) if found.inode.is_none() => Err(Errno::ENOENT),
                Some(name) => fs.unlink(&found.parent, &name),
                None => Err(Errno::EISDIR),
            },
        )
    }

    /// Takes an empty directory away.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(
            Operation::Remove,
            path.as_ref(),
            false,
            |fs, found| match found.name {
                Some(_) if found.inode.is_none() => Err(Errno::ENOENT),
                Some(name) => fs.rmdir(&found.parent, &name),
                None => Err(Errno::EINVAL),
            },
        )
    }

    /// Moves a name, atomically; what had the new name loses it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EINVAL` for a directory moved into itself,
    /// `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_to(from, self, to)
    }

    /// As [`Directory::rename`], to another directory of the same file system.
    ///
    /// # Errors
    /// As [`Directory::rename`]; `EXDEV` for another file system.
    pub fn rename_to(
        &self,
        from: impl AsRef<Path>,
        directory: &Self,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.two_names(
            Operation::Rename,
            from,
            directory,
            to,
            |fs, old, new, name| {
                let (old_name, inode) = old.name.zip(old.inode).ok_or(Errno::EBUSY)?;
                if new.wants_directory && inode.kind() != FileKind::Directory {
                    return Err(Errno::ENOTDIR);
                }
                let mode = RenameMode::Replace;
                fs.rename(&old.parent, &old_name, &new.parent, name, mode)
            },
        )
    }

    /// Gives the file `existing` another name.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EPERM` for a directory, `EROFS`, [`Error::Escape`], those of the
    /// backing store.
    pub fn hard_link(&self, existing: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        let (existing, new) = (existing.as_ref(), new.as_ref());
        self.two_names(
            Operation::HardLink,
            existing,
            self,
            new,
            |fs, old, new, name| {
                let inode = old.inode.ok_or(Errno::ENOENT)?;
                match new.inode {
                    Some(_) => Err(Errno::EEXIST),
                    None => fs.link(&inode, &new.parent, name),
                }
            },
        )
    }

    /// Walks two paths, the second to a name that need not be there.
    fn two_names(
        &self,
        operation: Operation,
        from: &Path,
        directory: &Self,
        to: &Path,
        act: impl FnOnce(&dyn FileSystem, Found, &Found, &OsStr) -> Result<(), Errno>,
    ) -> Result<()> {
        let old = self.at(operation, from, false, |_, found| {
            match found.name.is_some() && found.inode.is_none() {
                true => Err(Errno::ENOENT),
                false => Ok(found),
            }
        })?;
        directory.at(operation, to, false, |fs, found| {
            if !Arc::ptr_eq(&self.place.mount, &directory.place.mount) {
                return Err(Errno::EXDEV);
            }
            let name = found.name.as_deref().ok_or(Errno::EBUSY)?;
            act(fs, old, &found, name)
        })
    }

    /// Makes a symbolic link at `link` that holds `target`, which is not looked at now.
    ///
    /// # Errors
    /// `EEXIST`, `ENAMETOOLONG`, `ENOSPC`, `EROFS`, [`Error::Escape`] for `link`, those of the
    /// backing store.
    pub fn symlink(&self, target: impl AsRef<OsStr>, link: impl AsRef<Path>) -> Result<()> {
        self.at(
            Operation::Symlink,
            link.as_ref(),
            false,
            |fs, found| match (found.inode, found.name) {
                (None, Some(_)) if found.wants_directory => Err(Errno::ENOENT),
                (None, Some(name)) => {
                    fs.symlink(self.ctx(), &found.parent, &name, target.as_ref())?;
                    Ok(())
                }
                _ => Err(Errno::EEXIST),
            },
        )
    }

    /// What a symbolic link holds.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL` for what is no symbolic link, [`Error::Escape`], those of the backing
    /// store.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.at(Operation::ReadLink, path.as_ref(), false, |fs, found| {
            let inode = found.inode.ok_or(Errno::ENOENT)?;
            Ok(fs.readlink(&inode)?.into())
        })
    }

    /// The attributes of what `path` leads to, symbolic links followed.
    ///
    /// # Errors
    /// `ENOENT`, `ELOOP`, [`Error::Escape`], those of the backing store.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), true)
    }

    /// The attributes of what `path` names, be it a symbolic link.
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), false)
    }

    fn stat(&self, path: &Path, follow: bool) -> Result<Metadata> {
        self.at(Operation::Metadata, path, follow, |fs, found| {
            let inode = found.inode.ok_or(Errno::ENOENT)?;
            fs.getattr(&inode).map(Metadata)
        })
    }

    /// Sets the permission bits of what `path` leads to.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM`, `EROFS`, [`Error::Escape`], those of the backing store.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.at(Operation::SetMetadata, path.as_ref(), true, |fs, found| {
            let inode = found.inode.ok_or(Errno::ENOENT)?;
            let set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            fs.setattr(self.ctx(), &inode, &set).map(|_| ())
        })
    }

    /// The entries of a directory; `"."` is this one.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, [`Error::Escape`], those of the backing store.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let stream = self.at(Operation::ReadDir, path, true, |fs, found| {
            fs.opendir(&found.inode.ok_or(Errno::ENOENT)?)
        })?;
        let mount = Arc::clone(&self.place.mount);
        Ok(ReadDir::new(stream, mount, self.path.join(path)))
    }

    /// Makes the names in this directory durable: what was made, renamed and removed in it before
    /// the call. The files behind them have [`File::sync_all`]; [`Cache::sync`] does everything.
    ///
    /// # Errors
    /// Those of the backing store.
    ///
    /// [`Cache::sync`]: crate::Cache::sync
    pub fn sync(&self) -> Result<()> {
        self.at(Operation::Sync, Path::new("."), true, |fs, _| {
            fs.opendir(&self.place.inode)?.fsync()
        })
    }

    /// What the file system under a local directory did, and what was refused to it; `None` for a
    /// file system in memory.
    ///
    /// # Errors
    /// `ECHILD` after a fork.
    pub fn io_stats(&self) -> Result<Option<DirFsStats>> {
        self.at(Operation::Stats, Path::new("."), true, |_, _| {
            Ok(match self.mount().backing() {
                Backing::Directory(fs) => Some(fs.stats()),
                Backing::Memory(_) => None,
            })
        })
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
