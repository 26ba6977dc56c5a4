//! Open files and directories by the number that the kernel knows.
//!
//! # Locking
//!
//! The lock protects the table alone and is never held across an operation of the file system:
//! what is dropped is dropped after it.

use foliocache_mm::MetadataCharge;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use foliocache_sync::{Arc, RwLock};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, OpenDirectory, OpenFile};
use std::collections::HashMap;

/// What a handle takes besides its open file: the heap's, and its place in the table.
pub(crate) const HANDLE_BYTES: u64 = 192;

/// An open file of the kernel's.
pub(crate) struct FileHandle {
    pub(crate) _charge: MetadataCharge,
    pub(crate) file: OpenFile,
    /// The kernel read pages into its own cache through this handle: somebody mapped the file.
    pub(crate) mapped: AtomicBool,
}

/// An open directory of the kernel's.
pub(crate) struct DirHandle {
    pub(crate) _charge: MetadataCharge,
    pub(crate) dentry: DentryRef<Inode>,
    pub(crate) directory: Box<dyn OpenDirectory>,
}

/// What is open, by number. A number is never used twice.
pub(crate) struct Handles<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Self {
        Handles {
            open: RwLock::new(HashMap::new()),
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
