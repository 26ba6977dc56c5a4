//! One file system of a cache.
//!
//! # Model
//!
//! ```text
//!  Cache ─┐
//!  Directory ─┼─▶ VfsMount ─▶ DirFs or MemFs
//!  File ─┘
//! ```
//!
//! A mount lives as long as anything holds it; the last holder to let go writes dirty data back.

use foliocache_fs::{DirFs, DirFsError, MemFs};
use foliocache_mm::BackingDevInfo;
use foliocache_sync::background::Panics;
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::{FileSystem, OpContext, SuperBlock};
use std::path::PathBuf;

use crate::error::{FailedFile, UnsyncedFile};
use crate::parent_only::{Forked, ParentOnly};
use crate::workers::Offload;

/// The file system below.
pub(crate) enum Backing {
    Directory(Arc<DirFs>),
    Memory(Arc<MemFs>),
}

/// The files, and their names in memory.
struct Names {
    super_block: Arc<SuperBlock>,
    backing: Backing,
}

/// One file system.
pub(crate) struct VfsMount {
    names: ParentOnly<Names>,
    /// The user of every operation: this process, as it was when the mount was made.
    pub(crate) ctx: OpContext,
    /// Where it is, for messages.
    pub(crate) path: PathBuf,
    /// It serves single files, and locks them one by one. Otherwise it was opened as a directory, and is locked as a whole.
    pub(crate) of_files: bool,
    /// Workers and buffers of its async files; made for the first one, and gone with the last.
    offload: Mutex<Weak<ParentOnly<Offload>>>,
}

impl Backing {
    fn bdi(&self) -> &Arc<BackingDevInfo> {
        match self {
            Self::Directory(fs) => fs.bdi(),
            Self::Memory(fs) => fs.bdi(),
        }
    }
}

impl Forked for Names {
    fn check_fork(&self) -> Result<(), Errno> {
        self.backing.bdi().mm().check_fork()
    }
}

impl VfsMount {
    pub(crate) fn new(backing: Backing, path: PathBuf, of_files: bool) -> Arc<Self> {
        let process = credentials::current();
        let fs: Arc<dyn FileSystem> = match &backing {
            Backing::Directory(fs) => fs.clone(),
            Backing::Memory(fs) => fs.clone(),
        };
        let super_block = Arc::new(SuperBlock::new(fs, backing.bdi().mm()));
        Arc::new(Self {
            names: ParentOnly::new(Names {
                super_block,
                backing,
            }),
            ctx: OpContext {
                uid: process.uid,
                gid: process.gid,
                pid: process.pid,
                umask: process.umask,
            },
            path,
            of_files,
            offload: Mutex::default(),
        })
    }

    /// The file system with its names, unless this is a forked child.
    pub(crate) fn super_block(&self) -> Result<&Arc<SuperBlock>, Errno> {
        self.names.check_fork()?;
        Ok(&self.names.super_block)
    }

    /// A number that no other file system alive in this process has.
    pub(crate) fn dev(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    /// Workers and buffers for async callers.
    ///
    /// # Errors
    /// `ENOMEM` if the bound leaves no room for the buffers; `ECHILD` after a fork.
    pub(crate) fn offload(&self) -> Result<Arc<ParentOnly<Offload>>, Errno> {
        let mm = self.backing().bdi().mm();
        // Before the lock, which a thread of the parent may have held.
        mm.check_fork()?;
        let mut cell = self.offload.lock();
        if let Some(offload) = cell.upgrade() {
            return Ok(offload);
        }
        let offload = Arc::new(ParentOnly::new(Offload::new(mm)?));
        *cell = Arc::downgrade(&offload);
        Ok(offload)
    }

    /// Keeps other caches from writing to the source, see [`DirFs::lock`].
    pub(crate) fn lock(&self, ignore: bool) -> Result<(), DirFsError> {
        match self.backing() {
            Backing::Directory(fs) => fs.lock(ignore),
            Backing::Memory(_) => Ok(()),
        }
    }

    /// A file that is open without its directory and lies below this one, see [`DirFs::held_below`].
    pub(crate) fn held_below(&self, directory: (u64, u64)) -> Option<String> {
        match self.backing() {
            Backing::Directory(fs) => fs.held_below(directory),
            Backing::Memory(_) => None,
        }
    }

    /// The record of panics in the cache's threads.
    pub(crate) fn panics(&self) -> &Panics {
        self.backing().bdi().mm().panics()
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.names.backing
    }

    /// Makes all files and names durable; returns the files that failed.
    pub(crate) fn sync(&self) -> Vec<FailedFile> {
        let failed_files = self.backing().bdi().sync().into_iter();
        let mut failed: Vec<_> = failed_files
            .map(|(mapping, errno)| FailedFile {
                ranges: mapping.failed_ranges(),
                errno,
                file: mapping.name(),
            })
            .collect();
        let names = self.super_block().and_then(|names| names.fs().sync_fs());
        if let Err(errno) = names
            && failed.is_empty()
        {
            failed.push(FailedFile {
                file: self.path.display().to_string(),
                ranges: Vec::new(),
                errno,
            });
        }
        failed
    }

    /// Makes everything durable at the end of the cache, unless writing fails, see [`DirFs::write_back`].
    pub(crate) fn write_back(&self) {
        if let Backing::Directory(fs) = self.backing() {
            fs.write_back();
        }
    }

    /// Writes and flushes that are left, by page. Takes no lock.
    pub(crate) fn steps_left(&self) -> u64 {
        self.backing().bdi().steps_left()
    }

    /// Files with data that is not durable.
    pub(crate) fn unsynced_files(&self) -> impl Iterator<Item = UnsyncedFile> {
        let files = self.backing().bdi().dirty_files().into_iter();
        files.filter_map(|mapping| {
            let bytes = mapping.bytes_not_durable();
            (bytes > 0).then(|| UnsyncedFile {
                file: mapping.name(),
                bytes,
                errno: mapping.writeback_error(),
            })
        })
    }

    /// Gives up all data that is not durable.
    pub(crate) fn discard_unsynced(&self) {
        self.backing().bdi().discard_all();
    }
}
