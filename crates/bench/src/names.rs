//! Trees of names: ours in memory, ours over a directory, and the kernel's on a tmpfs.
//!
//! # Model
//!
//! A [`KernelTree`] is a folder on a tmpfs. [`Names`] is one of our file systems with its names cached: a
//! memfs, or a dirfs over a [`KernelTree`], so that the kernel's side finds the same names there. The one
//! is asked with [`SuperBlock::stat`], the other with `statx(2)` from a directory's descriptor: relative
//! paths of as many components.
//!
//! Callers of ours are user 1000, who goes through the directories by their mode. The kernel's is whoever
//! runs the benchmark; a directory that everybody may search costs it the same.

use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sys::dir;
use foliocache_sys::fd::{self, OFlags, OwnedFd};
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    Credentials, FileSystem, Inode, Namei, OpContext, OpenFlags, OpenHow, SuperBlock, WalkError,
    WalkFlags,
};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, Permissions};
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BenchError;
use crate::place::Folder;

/// The caller of ours: a user and a group.
const USER: u32 = 1000;

/// Links are followed, and no walk leaves the tree.
const FLAGS: WalkFlags = WalkFlags {
    follow: true,
    beneath: true,
};

/// How long a dirfs believes names: longer than any run, so that what is cached stays so.
const BELIEVED: Duration = Duration::from_secs(24 * 60 * 60);

/// Directories and files, made by path from the top; the directory above is there.
pub(crate) trait Make {
    /// Makes a directory that everybody may search.
    fn dir(&self, path: &str) -> io::Result<()>;
    /// Makes an empty file.
    fn file(&self, path: &str) -> io::Result<()>;
}

/// A folder on a tmpfs, for the kernel. Taken away with its end.
pub(crate) struct KernelTree(Folder);

impl KernelTree {
    /// An empty one.
    ///
    /// # Errors
    /// There is no tmpfs, or no helper process that would take it away.
    pub(crate) fn new(helper: &[OsString]) -> Result<Arc<Self>, BenchError> {
        let tree = Self(Folder::in_memory(helper)?);
        let open = tree.open_to_all(tree.0.path());
        open.map_err(|error| BenchError::setup("a folder on a tmpfs", error))?;
        Ok(Arc::new(tree))
    }

    /// Whatever the umask is.
    fn open_to_all(&self, dir: &Path) -> io::Result<()> {
        fs::set_permissions(dir, Permissions::from_mode(0o755))
    }

    /// What stats `path`, of a directory's descriptor of its own.
    pub(crate) fn user(&self, start: &str) -> io::Result<KernelUser> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok(KernelUser(fd::open(&self.0.path().join(start), flags, 0)?))
    }
}

impl Make for KernelTree {
    fn dir(&self, path: &str) -> io::Result<()> {
        let dir = self.0.path().join(path);
        fs::create_dir(&dir)?;
        self.open_to_all(&dir)
    }

    fn file(&self, path: &str) -> io::Result<()> {
        fs::File::create_new(self.0.path().join(path)).map(drop)
    }
}

/// One thread of the kernel's side, at a directory.
pub(crate) struct KernelUser(OwnedFd);

impl KernelUser {
    /// The attributes of what `path` leads to.
    #[inline]
    pub(crate) fn stat(&self, path: &CStr) -> io::Result<()> {
        black_box(&dir::stat_path(self.0.as_fd(), black_box(path))?);
        Ok(())
    }
}

/// One of our file systems with its names.
pub(crate) struct Names {
    sb: SuperBlock,
    /// What a dirfs lies over: goes last.
    _below: Option<Arc<KernelTree>>,
}

impl Names {
    /// A memfs, empty, in so many bytes.
    pub(crate) fn memory(bytes: u64) -> Result<Arc<Self>, BenchError> {
        Self::new(bytes, None, |mm| {
            Ok(Arc::new(MemFs::new(mm).map_err(io::Error::other)?))
        })
    }

    /// A dirfs over `tree`, its caches in so many bytes.
    pub(crate) fn over(tree: &Arc<KernelTree>, bytes: u64) -> Result<Arc<Self>, BenchError> {
        let mut options = DirFsOptions::default();
        options.revalidate_after = BELIEVED;
        Self::new(bytes, Some(Arc::clone(tree)), |mm| {
            let fs = DirFs::open(mm, tree.0.path(), options).map_err(io::Error::other)?;
            Ok(Arc::new(fs))
        })
    }

    fn new(
        bytes: u64,
        below: Option<Arc<KernelTree>>,
        fs: impl FnOnce(&Arc<Mm>) -> io::Result<Arc<dyn FileSystem>>,
    ) -> Result<Arc<Self>, BenchError> {
        let mut config = MmConfig::new(bytes);
        // Whatever others on the machine need, the names stay.
        config.external_pressure = false;
        let made = Mm::new(config)
            .map_err(io::Error::other)
            .and_then(|mm| Ok(SuperBlock::new(fs(&mm)?, &mm)));
        let sb = made.map_err(|error| BenchError::setup("a file system of ours", error))?;
        Ok(Arc::new(Self { sb, _below: below }))
    }

    /// What stats paths from `start`.
    pub(crate) fn user(self: &Arc<Self>, start: &str) -> io::Result<User> {
        let found = match start {
            "" => Ok(self.sb.root().clone()),
            path => self
                .sb
                .lookup(self.sb.root(), OsStr::new(path), FLAGS, None),
        };
        Ok(User {
            start: found.map_err(failed)?,
            credentials: Credentials::new(USER, USER, &[USER]),
            names: Arc::clone(self),
        })
    }

    /// Operations by path from the top, as root.
    fn at_top(&self) -> Namei<'_> {
        Namei {
            names: &self.sb,
            start: self.sb.root(),
            beneath: FLAGS.beneath,
            ctx: OpContext::ROOT,
            credentials: None,
        }
    }
}

impl Make for Names {
    fn dir(&self, path: &str) -> io::Result<()> {
        let made = self.at_top().mkdir(OsStr::new(path), 0o755);
        made.map(drop).map_err(failed)
    }

    fn file(&self, path: &str) -> io::Result<()> {
        let how = OpenHow {
            flags: OpenFlags::READ_WRITE,
            create: true,
            exclusive: true,
            follow: false,
            mode: 0o644,
        };
        let made = self.at_top().open(OsStr::new(path), how);
        made.map(drop).map_err(failed)
    }
}

/// One thread of ours, at a directory.
pub(crate) struct User {
    start: DentryRef<Inode>,
    credentials: Credentials,
    names: Arc<Names>,
}

impl User {
    /// The attributes of what `path` leads to.
    #[inline]
    pub(crate) fn stat(&self, path: &OsStr) -> io::Result<()> {
        let sb = &self.names.sb;
        match &sb.stat(&self.start, black_box(path), FLAGS, Some(&self.credentials)) {
            Ok(attr) => {
                black_box(attr);
                Ok(())
            }
            Err(error) => Err(failed(*error)),
        }
    }
}

#[cold]
fn failed(error: WalkError) -> io::Error {
    error.errno().into()
}

/// A path as the kernel wants it.
pub(crate) fn c_path(path: &str) -> CString {
    CString::new(path).expect("no path here has a NUL")
}
