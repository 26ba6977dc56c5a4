//! Open files and directories by the kernel's handle number.
//!
//! # Locking
//!
//! `open`, a [`Leaf`](Rank::Leaf), protects its table. Handles are used and dropped after it is released.

use foliocache_mm::MetadataCharge;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use foliocache_sync::rank::{Rank, RankedRwLock};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, OpContext, OpenDirectory, OpenFile};
use fuser::{FileHandle as Fh, INodeNo};
use std::collections::HashMap;

/// Memory of a handle besides its open file: on the heap and in the table.
pub(crate) const HANDLE_BYTES: u64 = 192;

/// The handle number in requests for files that the kernel uses without an `OPEN`; no handle has
/// it.
pub(crate) const NO_HANDLE: u64 = 0;

/// A file as a data request names it.
#[derive(Clone, Copy)]
pub(crate) struct FileId {
    pub(crate) ino: u64,
    /// [`NO_HANDLE`] if the kernel did not open it.
    pub(crate) fh: u64,
}

impl FileId {
    pub(crate) fn new(ino: INodeNo, fh: Fh) -> FileId {
        FileId {
            ino: ino.0,
            fh: fh.0,
        }
    }
}

/// A file that the kernel has open.
pub(crate) struct FileHandle {
    pub(crate) _charge: MetadataCharge,
    pub(crate) file: OpenFile,
    /// The kernel read pages into its cache through this handle: a program mapped the file.
    pub(crate) mapped: AtomicBool,
    /// The flags of `open(2)`; none if the kernel did not open it.
    pub(crate) flags: i32,
}

impl FileHandle {
    /// The handle of a file that was just opened. From now on each write request says whether it
    /// clears set-id bits.
    pub(crate) fn new(file: OpenFile, charge: MetadataCharge) -> FileHandle {
        FileHandle {
            _charge: charge,
            file: file.writing_as(OpContext::ROOT),
            mapped: AtomicBool::new(false),
            flags: 0,
        }
    }
}

/// A directory that the kernel has open.
pub(crate) struct DirHandle {
    pub(crate) _charge: MetadataCharge,
    pub(crate) dentry: DentryRef<Inode>,
    pub(crate) directory: Box<dyn OpenDirectory>,
}

/// The open files or directories, by number. A number is never used twice.
pub(crate) struct Handles<T> {
    open: RankedRwLock<{ Rank::Leaf as u8 }, HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Self {
        Handles {
            open: RankedRwLock::new(HashMap::new()),
            next: AtomicU64::new(1),
        }
    }

    pub(crate) fn insert(&self, handle: T) -> u64 {
        // Relaxed: numbers need only differ.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(number, Arc::new(handle));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        self.open.read().get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        let mut open = self.open.write();
        let removed = open.remove(&number);
        if open.capacity() > 4 * open.len() + 64 {
            let room = 2 * open.len();
            open.shrink_to(room);
        }
        removed
    }
}
