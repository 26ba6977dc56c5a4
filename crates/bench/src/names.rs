//! Trees of names: ours in memory, ours over a directory, and the kernel's on a tmpfs.
//!
//! # Model
//!
//! A [`KernelTree`] is a folder on a tmpfs. [`Names`] is one of our file systems with its names cached: a memfs, or
//! a dirfs over a [`KernelTree`], so that the kernel's side finds the same names there. Ours is called with
//! [`Directory::metadata`], the kernel with `statx(2)` from a directory's descriptor: relative paths of as many
//! components.
//!
//! Callers of ours are user 1000, whose permissions are checked in each directory. By default ours checks none: the
//! source decides what the process may do. The kernel's caller is the user that runs the benchmark;
//! world-searchable directories cost it the same.

use foliocache::{Cache, Credentials, Directory};
use foliocache_sys::fd::{self, OFlags, OwnedFd};
use foliocache_sys::testing;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, Permissions};
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{BenchError, OrSetup, set_up};
use crate::place::Folder;

/// The caller of ours: a user and a group.
const USER: u32 = 1000;

/// Directories and files, made by path from the top; the directory above is there.
pub(crate) trait Make {
    /// Makes a world-searchable directory.
    fn dir(&self, path: &str) -> io::Result<()>;
    /// Makes an empty file.
    fn file(&self, path: &str) -> io::Result<()>;
}

impl Make for Path {
    fn dir(&self, path: &str) -> io::Result<()> {
        let dir = self.join(path);
        fs::create_dir(&dir)?;
        open_to_all(&dir)
    }

    fn file(&self, path: &str) -> io::Result<()> {
        fs::File::create_new(self.join(path)).map(drop)
    }
}

/// Independent of the umask.
fn open_to_all(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}

/// A folder on a tmpfs, for the kernel. Taken away with its end.
pub(crate) struct KernelTree(Folder);

impl KernelTree {
    /// An empty one.
    ///
    /// # Errors
    /// There is no tmpfs, or no helper process that would take it away.
    pub(crate) fn new(helper: &[OsString]) -> Result<Arc<Self>, BenchError> {
        let folder = Folder::in_memory(helper)?;
        open_to_all(folder.path()).setting_up("a folder on a tmpfs")?;
        Ok(Arc::new(Self(folder)))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// One thread of the kernel's side, at a directory.
pub(crate) struct KernelUser(OwnedFd);

impl KernelUser {
    /// With a new descriptor.
    pub(crate) fn at(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok(Self(fd::open(dir, flags, 0)?))
    }

    /// The attributes of the file at `path`.
    #[inline]
    pub(crate) fn stat(&self, path: &CStr) -> io::Result<()> {
        black_box(&testing::stat_path(self.0.as_fd(), black_box(path))?);
        Ok(())
    }

    /// Opens the file at `path` to be read, and closes it.
    #[inline]
    pub(crate) fn open(&self, path: &CStr) -> io::Result<()> {
        drop(testing::open_path(self.0.as_fd(), path, OFlags::RDONLY, 0)?);
        Ok(())
    }
}

/// One of our file systems with its names, and default settings but for the bound.
pub(crate) struct Names {
    directory: Directory,
    _cache: Cache,
    /// The tree below a dirfs: it is dropped last.
    _below: Option<Arc<KernelTree>>,
}

impl Names {
    /// With a bound of this many bytes: a dirfs over `below`, or an empty memfs.
    pub(crate) fn new(
        bytes: u64,
        below: Option<&Arc<KernelTree>>,
    ) -> Result<Arc<Self>, BenchError> {
        set_up("a file system of ours", || {
            let cache = Cache::builder().memory(bytes).build()?;
            Ok(Arc::new(Self {
                directory: match below {
                    Some(tree) => cache.directory(tree.path())?,
                    None => cache.memfs()?,
                },
                _cache: cache,
                _below: below.cloned(),
            }))
        })
    }

    /// A user that stats paths from `start`.
    pub(crate) fn user(self: &Arc<Self>, start: &str) -> io::Result<User> {
        let user = Credentials::new(USER, USER, &[USER]);
        let directory = self.directory.with_credentials(user);
        Ok(User {
            directory: match start {
                "" => directory,
                path => directory.open_dir(path)?,
            },
            _names: Arc::clone(self),
        })
    }
}

impl Make for Names {
    fn dir(&self, path: &str) -> io::Result<()> {
        self.directory.create_dir(path)?;
        Ok(self
            .directory
            .set_permissions(path, foliocache::Permissions::from_mode(0o755))?)
    }

    fn file(&self, path: &str) -> io::Result<()> {
        self.directory.create_new(path)?;
        Ok(())
    }
}

/// One thread of ours, at a directory. Goes before its file system.
pub(crate) struct User {
    directory: Directory,
    _names: Arc<Names>,
}

impl User {
    /// The attributes of the file at `path`.
    #[inline]
    pub(crate) fn stat(&self, path: &OsStr) -> io::Result<()> {
        black_box(&self.directory.metadata(black_box(path))?);
        Ok(())
    }

    /// Opens the file at `path` to be read, and drops it.
    #[inline]
    pub(crate) fn open(&self, path: &OsStr) -> io::Result<()> {
        drop(self.directory.open(path)?);
        Ok(())
    }
}

/// A path as the kernel wants it.
pub(crate) fn c_path(path: &str) -> CString {
    CString::new(path).expect("no path here has a NUL")
}
