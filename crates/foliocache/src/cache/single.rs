//! Files without their directories: by any path, or by a descriptor.
//!
//! # Model
//!
//! ```text
//!  path ──▶ the kernel follows it ──▶ real directory and name
//!             a directory that the cache has open lies above ──▶ opened through that one
//!             else ──▶ a file system over the top of the mounted file system, which locks files one by one
//! ```
//!
//! One such file system for each mounted file system of the machine: so a file has one inode, whatever its path.
//!
//! # Invariants
//!
//! 1. A file that is open through the cache has one inode: before a file is opened by name, the file systems look
//!    for its device and number.
//! 2. No directory is opened around a file that is held, see [`DirFs::held_below`].
//!
//! # Locking
//!
//! `Inner::files` is held while a file is opened here, and while a directory is; before `Inner::mounts`. *May block*: on the
//! I/O of opening.

use foliocache_fs::{DirFs, DirFsError, DirFsOptions};
use foliocache_sync::Arc;
use foliocache_sys::fd::{self, AsFd, FileKind, OFlags, OwnedFd, Stat};
use foliocache_sys::{Errno, dir};
use foliocache_vfs::{OpenFile, OpenFlags, OpenHow};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Cache, Identity, Mounted, ancestry_of};
use crate::directory::Directory;
use crate::error::{Error, Operation, Result};
use crate::file::File;
use crate::file_options::FileOptions;
use crate::mount::VfsMount;
use crate::open_how;
use crate::rights::Rights;

/// How often a path is followed again that others change meanwhile.
const MAX_RACES: usize = 16;
/// As the kernel's.
const MAX_LINKS: usize = 40;

/// A name in a directory.
struct Name {
    /// The real path of the directory.
    directory: PathBuf,
    name: OsString,
    /// The directory, and all above it.
    above: Vec<Identity>,
}

impl Name {
    fn of(directory: OwnedFd, name: OsString) -> Result<Self, Errno> {
        Ok(Self {
            directory: fd::real_path(directory.as_fd())?,
            name,
            above: ancestry_of(directory)?,
        })
    }

    /// The present location of `file`.
    fn of_file(file: &OwnedFd) -> Result<Self, Errno> {
        let path = fd::real_path(file.as_fd())?;
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EISDIR);
        };
        let directory = fd::open(directory, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        Self::of(directory, name.to_owned())
    }

    fn error(&self, errno: Errno) -> Error {
        Error::at(Operation::Open, &self.directory.join(&self.name))(errno)
    }

    /// The path from the directory that is `depth` above.
    fn path_below(&self, depth: usize) -> Result<PathBuf, Errno> {
        let mut path = last_names(&self.directory, depth)?;
        path.push(&self.name);
        Ok(path)
    }

    /// How far above the top is of the mounted file system, as far as it may be read.
    fn top(&self) -> usize {
        let dev = self.above[0].0;
        let same = self.above.iter().take_while(|above| above.0 == dev);
        let may_read = |depth: &usize| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let path = self.directory.ancestors().nth(*depth);
            path.is_some_and(|path| fd::open(path, flags, 0).is_ok())
        };
        (0..same.count()).rev().find(may_read).unwrap_or(0)
    }
}

/// The last `depth` names of a real path.
fn last_names(path: &Path, depth: usize) -> Result<PathBuf, Errno> {
    let names: Vec<_> = path.iter().skip(1).collect();
    let first = names.len().checked_sub(depth).ok_or(Errno::ENOENT)?;
    Ok(names[first..].iter().collect())
}

/// The path of a directory relative to its ancestor, `depth` levels up.
pub(super) fn below(directory: &Path, depth: usize) -> Result<PathBuf, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = fd::open(directory, flags, 0)?;
    last_names(&fd::real_path(directory.as_fd())?, depth)
}

/// The place of the file at `path`, which may be missing; with its attributes, if it exists.
fn follow(path: &Path, how: &OpenHow) -> Result<(Name, Option<Stat>), Errno> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        if !how.exclusive {
            match fd::open(&path, OFlags::PATH, 0) {
                Ok(file) => {
                    let stat = fd::fstat(file.as_fd())?;
                    return Ok((Name::of_file(&file)?, Some(stat)));
                }
                Err(Errno::ENOENT) if how.create => {}
                Err(errno) => return Err(errno),
            }
        }
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(Errno::ENOENT);
        }
        let name = path.file_name().filter(|_| !bytes.ends_with(b"/"));
        let name = name.ok_or(Errno::EISDIR)?.to_owned();
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        let directory = fd::open(above, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        if !how.exclusive
            && let Ok(there) = fd::open(&path, OFlags::PATH | OFlags::NOFOLLOW, 0)
            && fd::fstat(there.as_fd())?.kind == FileKind::Symlink
        {
            let target = dir::readlink_fd(there.as_fd())?;
            path = fd::real_path(directory.as_fd())?.join(target);
            continue;
        }
        return Ok((Name::of(directory, name)?, None));
    }
    Err(Errno::ELOOP)
}

impl Cache {
    /// A file by its path, absolute or relative to the working directory, without its directory.
    ///
    /// Symbolic links are followed. The same file is opened once, whatever its paths: by another link, another mount or through a
    /// [`Directory`] that the cache has open; the handles share its pages. Below such a directory the file is opened
    /// through it, with its options and its lock.
    ///
    /// Else the file alone is locked, from its first handle that may write until its last handle is closed and all of it is
    /// durable. So caches of other processes may have other files of the same directory. Readers lock nothing. The lock is an OFD lock
    /// (`fcntl(2)`) of the last byte but one that a file may have: programs can have `flock` and `fcntl` locks of the file beside it.
    ///
    /// Names are looked up from the top of the mounted file system, so a file that gave up its descriptor is found
    /// again by its real path. A file whose directory is moved or removed meanwhile still works while it has a
    /// descriptor.
    ///
    /// Blocks on I/O. Dropping the last handle blocks until the file is written back and flushed; data that failed
    /// stays dirty and locked, and is retried. The first file of a mounted file system costs as much as
    /// [`Cache::directory`]. Each further one takes some hundred bytes of the bound, and each directory on its path
    /// about 3 KiB, most of it for watching. Descriptors: up to two for the file's data, one for its lock, and one
    /// for each directory above locked files; these are not given up when descriptors are short.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`](crate::OpenOptions::open). `EBUSY` ([`Error::Directory`]) if another cache, of this process or another,
    /// has the file or a directory above it open for writing: see [`FileOptions::ignore_lock`]. `EMFILE`. `ECHILD` after a fork.
    pub fn file(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File> {
        let path = path.as_ref();
        let operation = open_how::operation(&options.how);
        self.check(operation)?;
        let failed = Error::at(operation, path);
        let how = open_how::checked(options.how).map_err(failed)?;
        let _files = self.inner.files.lock();
        for _ in 0..MAX_RACES {
            let (name, stat) = follow(path, &how).map_err(failed)?;
            let how = OpenHow {
                create: how.create && stat.is_none(),
                ..how
            };
            let opened = self.open_name(&name, stat.as_ref(), how, options.ignore_lock);
            let is_gone = |error: &Error| error.errno() == Errno::ENOENT && stat.is_some();
            let (open, mount) = match opened {
                // A name that others change: a link by now, or another file.
                Err(error) if matches!(error.errno(), Errno::ESTALE | Errno::ELOOP) => {
                    continue;
                }
                Err(error) if is_gone(&error) => continue,
                Err(Error::Path { errno, .. }) => return Err(failed(errno)),
                opened => opened?,
            };
            if how.flags.truncate {
                open.truncate_at_open().map_err(failed)?;
            }
            let path = path.to_owned();
            return Ok(File::new(open, &mount, Rights::default(), path));
        }
        Err(failed(Errno::ESTALE))
    }

    /// Takes over a descriptor of a regular file, such as a [`std::fs::File`], that was opened elsewhere, for
    /// instance by another process. Its access mode decides which operations the handle allows. Caching replaces
    /// `O_DIRECT`.
    ///
    /// As [`Cache::file`]: the same file as by its names, with the same lock. If a name leads to it, the file is opened by
    /// that, and the descriptor is closed, with locks that belong to it. Else the descriptor is kept while the file is open.
    ///
    /// Blocks on I/O.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an `O_PATH` descriptor, and for one of no regular file. `EACCES` if it was opened for writing alone, and
    /// may not be opened for reading. Those of [`Cache::file`].
    pub fn adopt(&self, file: impl Into<OwnedFd>) -> Result<File> {
        self.adopt_descriptor(file.into())
    }

    fn adopt_descriptor(&self, file: OwnedFd) -> Result<File> {
        self.check(Operation::Open)?;
        let path = fd::real_path(file.as_fd()).unwrap_or_default();
        let failed = Error::at(Operation::Open, &path);
        let mode = fd::access_mode(file.as_fd()).map_err(failed)?;
        if mode.contains(OFlags::PATH) {
            let why = "an O_PATH descriptor cannot be adopted: it is open neither for reading nor for writing";
            return Err(Error::Unsupported(why));
        }
        let stat = fd::fstat(file.as_fd()).map_err(failed)?;
        if stat.kind != FileKind::Regular {
            let why = "only a descriptor of a regular file can be adopted";
            return Err(Error::Unsupported(why));
        }
        let mut how = open_how::nothing();
        how.flags = OpenFlags {
            read: !mode.contains(OFlags::WRONLY),
            write: mode.intersects(OFlags::WRONLY | OFlags::RDWR),
            append: mode.contains(OFlags::APPEND),
            ..how.flags
        };
        let _files = self.inner.files.lock();
        let found = match named_as(&path, &stat) {
            Some(name) => self.open_name(&name, Some(&stat), how, false),
            None => Err(failed(Errno::ENOENT)),
        };
        let (open, mount) = match found {
            Err(error @ (Error::Path { .. } | Error::Escape { .. })) => match error.errno() {
                Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ECHILD => return Err(error),
                _ => self.open_nameless(file, &stat, how.flags, failed)?,
            },
            found => found?,
        };
        Ok(File::new(open, &mount, Rights::default(), path))
    }

    /// Opens the file at `name`, or the one with the attributes `stat`, and holds it.
    fn open_name(
        &self,
        name: &Name,
        stat: Option<&Stat>,
        how: OpenHow,
        ignore_lock: bool,
    ) -> Result<(OpenFile, Arc<VfsMount>)> {
        let (mount, below) = self.source_of(name)?;
        let known = |stat| self.open_known(stat, how, Some(&mount));
        if let Some((open, mount)) = stat.and_then(known) {
            let open = open.map_err(|errno| name.error(errno))?;
            hold(&mount, &open, name, ignore_lock)?;
            return Ok((open, mount));
        }
        if !mount.of_files && how.flags.write {
            mount.lock(ignore_lock)?;
        }
        let top = Directory::root(&mount, false)?;
        let mut how = OpenHow {
            follow: false,
            ..how
        };
        // Not before it is locked.
        how.flags.truncate = false;
        let open = top.open_how(Operation::Open, &below, how)?;
        if let Some((fs, stat)) = mount.dirfs().zip(stat)
            && !fs.is_inode_of(open.inode(), stat)
        {
            return Err(name.error(Errno::ESTALE));
        }
        hold(&mount, &open, name, ignore_lock)?;
        Ok((open, mount))
    }

    /// Opens a file that is open through any file system but `except`, by its inode.
    fn open_known(
        &self,
        stat: &Stat,
        how: OpenHow,
        except: Option<&Arc<VfsMount>>,
    ) -> Option<(Result<OpenFile, Errno>, Arc<VfsMount>)> {
        let flags = OpenFlags {
            truncate: false,
            ..how.flags
        };
        let (mount, inode) = {
            let mounts = self.inner.mounts.lock();
            let mut others = mounts
                .iter()
                .filter(|used| !except.is_some_and(|it| Arc::ptr_eq(it, &used.mount)));
            others.find_map(|used| {
                let inode = used.mount.dirfs()?.inode_in_use(stat)?;
                Some((Arc::clone(&used.mount), inode))
            })?
        };
        let open = mount.super_block().and_then(|names| {
            let open = names.fs().open(&mount.ctx, &inode, flags)?;
            if flags.write {
                names.tell_of_writer(&inode);
            }
            Ok(open)
        });
        Some((open, mount))
    }

    /// The file system that a name is looked up in, and the path from its top.
    fn source_of(&self, name: &Name) -> Result<(Arc<VfsMount>, PathBuf)> {
        let failed = |errno| name.error(errno);
        let mut mounts = self.inner.mounts.lock();
        let place = |used: &Mounted| {
            let top = name
                .above
                .iter()
                .position(|above| *above == used.ancestry[0]);
            Some((Arc::clone(&used.mount), top?))
        };
        let mut directories = mounts.iter().filter(|used| !used.mount.of_files);
        if let Some((mount, depth)) = directories.find_map(place) {
            return Ok((mount, name.path_below(depth).map_err(failed)?));
        }
        let depth = name.top();
        let below = name.path_below(depth).map_err(failed)?;
        let top = name.above[depth];
        let is_it = |used: &&Mounted| used.mount.of_files && used.ancestry[0] == top;
        let mount = match mounts.iter().find(is_it) {
            Some(used) => Arc::clone(&used.mount),
            None => {
                let path = name.directory.ancestors().nth(depth);
                let path = path.unwrap_or(Path::new("/"));
                self.mount_for_files(&mut mounts, path, name.above[depth..].to_vec())?
            }
        };
        Ok((mount, below))
    }

    /// A new file system that locks files one by one.
    fn mount_for_files(
        &self,
        mounts: &mut Vec<Mounted>,
        path: &Path,
        ancestry: Vec<Identity>,
    ) -> Result<Arc<VfsMount>> {
        let mut options = DirFsOptions::default();
        options.lock_files = true;
        let fs = DirFs::open(&self.inner.mm, path, options)?;
        let mount = VfsMount::of_directory(fs, path.to_owned(), true);
        self.inner.at_exit.lock().push(Arc::downgrade(&mount));
        mounts.push(Mounted {
            ancestry,
            mount: Arc::clone(&mount),
        });
        Ok(mount)
    }

    /// Opens a file that no name leads to, and holds it.
    fn open_nameless(
        &self,
        file: OwnedFd,
        stat: &Stat,
        flags: OpenFlags,
        failed: impl Fn(Errno) -> Error,
    ) -> Result<(OpenFile, Arc<VfsMount>)> {
        let nowhere = Name {
            directory: PathBuf::from("/"),
            name: OsString::new(),
            above: Vec::new(),
        };
        let how = OpenHow {
            flags,
            ..open_how::nothing()
        };
        if let Some((open, mount)) = self.open_known(stat, how, None) {
            let held = open.map_err(&failed).and_then(|open| {
                hold(&mount, &open, &nowhere, false)?;
                Ok(open)
            });
            match held {
                // It was just let go of.
                Err(error) if error.errno() == Errno::ESTALE => {}
                held => return Ok((held?, mount)),
            }
        }
        let mount = {
            let mut mounts = self.inner.mounts.lock();
            let dev = stat.dev.raw();
            let of_files = || mounts.iter().filter(|used| used.mount.of_files);
            let same = of_files().find(|used| used.ancestry[0].0 == dev);
            // Any other will do: it knows files of other devices.
            match same.or_else(|| of_files().next()) {
                Some(used) => Arc::clone(&used.mount),
                None => {
                    let root = Path::new("/");
                    let above = super::ancestry(root).map_err(&failed)?;
                    self.mount_for_files(&mut mounts, root, above)?
                }
            }
        };
        let fs = mount.dirfs().ok_or_else(|| failed(Errno::EXDEV))?;
        let open = fs.open_nameless(&mount.ctx, file, flags).map_err(&failed)?;
        hold(&mount, &open, &nowhere, false)?;
        Ok((open, mount))
    }
}

/// The name that the path of a descriptor says, if it leads to the file with these attributes.
fn named_as(path: &Path, stat: &Stat) -> Option<Name> {
    let there = fd::open(path, OFlags::PATH | OFlags::NOFOLLOW, 0).ok()?;
    let found = fd::fstat(there.as_fd()).ok()?;
    let same = (found.dev.raw(), found.ino) == (stat.dev.raw(), stat.ino);
    same.then(|| Name::of_file(&there).ok()).flatten()
}

/// Keeps others from writing to a file that was opened, as long as that is needed.
fn hold(mount: &VfsMount, open: &OpenFile, name: &Name, ignore_lock: bool) -> Result<()> {
    let (writes, Some(fs)) = (open.flags().write, mount.dirfs()) else {
        return Ok(());
    };
    if writes && !mount.of_files {
        return Ok(fs.lock(ignore_lock)?);
    }
    let held = fs.hold_file(open.inode(), &name.above, writes, ignore_lock);
    held.map_err(|error| match error {
        DirFsError::Open { path, errno } => Error::at(Operation::Open, &path)(errno),
        error => error.into(),
    })
}
