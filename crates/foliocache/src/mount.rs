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
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_sys::{Errno, credentials};
use foliocache_vfs::{FileSystem, OpContext, SuperBlock};
use std::path::PathBuf;

use crate::error::{FailedFile, UnsyncedFile};
use crate::parent_only::{Forked, ParentOnly};
use crate::workers::Offload;

/// The files, and their names in memory.
struct Names {
    super_block: Arc<SuperBlock>,
    bdi: Arc<BackingDevInfo>,
    /// The file system below, unless it is in memory.
    dirfs: Option<Arc<DirFs>>,
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

impl Forked for Names {
    fn check_fork(&self) -> Result<(), Errno> {
        self.bdi.mm().check_fork()
    }
}

impl VfsMount {
    pub(crate) fn of_directory(fs: DirFs, path: PathBuf, of_files: bool) -> Arc<Self> {
        let (bdi, fs) = (fs.bdi().clone(), Arc::new(fs));
        Self::new(fs.clone(), bdi, Some(fs), path, of_files)
    }

    pub(crate) fn of_memory(fs: MemFs, path: PathBuf) -> Arc<Self> {
        let bdi = fs.bdi().clone();
        Self::new(Arc::new(fs), bdi, None, path, false)
    }

    fn new(
        fs: Arc<dyn FileSystem>,
        bdi: Arc<BackingDevInfo>,
        dirfs: Option<Arc<DirFs>>,
        path: PathBuf,
        of_files: bool,
    ) -> Arc<Self> {
        let names = Names {
            super_block: Arc::new(SuperBlock::new(fs, bdi.mm())),
            bdi,
            dirfs,
        };
        Arc::new(Self {
            names: ParentOnly::new(names),
            ctx: credentials::current(),
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
        let mm = self.bdi().mm();
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
        self.dirfs().map_or(Ok(()), |fs| fs.lock(ignore))
    }

    /// The local directory, unless the files are in memory.
    pub(crate) fn dirfs(&self) -> Option<&DirFs> {
        self.names.dirfs.as_deref()
    }

    pub(crate) fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.names.bdi
    }

    /// Makes all files and names durable; returns the files that failed.
    pub(crate) fn sync(&self) -> Vec<FailedFile> {
        let failed_files = self.bdi().sync().into_iter();
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

    /// Files with data that is not durable.
    pub(crate) fn unsynced_files(&self) -> impl Iterator<Item = UnsyncedFile> {
        let files = self.bdi().dirty_files().into_iter();
        files.filter_map(|mapping| {
            let bytes = mapping.bytes_not_durable();
            (bytes > 0).then(|| UnsyncedFile {
                file: mapping.name(),
                bytes,
                errno: mapping.writeback_error(),
            })
        })
    }
}
