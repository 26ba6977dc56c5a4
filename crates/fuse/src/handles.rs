//! Open files and directories by the number that the kernel knows.
//!
//! # Locking
//!
//! The lock protects its table alone and is never held across an operation of the file system:
//! what is dropped is dropped after it.

use crate::conn::TTL;
use foliocache_mm::MetadataCharge;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use foliocache_sync::time::Instant;
use foliocache_sync::{Arc, Mutex, RwLock};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{Inode, OpContext, OpenDirectory, OpenFile};
use fuser::{FileHandle as Fh, INodeNo};
use std::collections::HashMap;

/// What a handle takes besides its open file: the heap's, and its place in the table.
pub(crate) const HANDLE_BYTES: u64 = 192;

/// What the kernel uses without having opened it; no handle has this number.
pub(crate) const NO_HANDLE: u64 = 0;

/// Directories that are read without a handle, most.
const LISTED: usize = 8;

/// Counts of changes of names, which directories share by number.
const COUNTS: usize = 32;

/// A file as the kernel names it in a request for data.
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

/// An open file of the kernel's.
pub(crate) struct FileHandle {
    pub(crate) _charge: MetadataCharge,
    pub(crate) file: OpenFile,
    /// The kernel read pages into its own cache through this handle: somebody mapped the file.
    pub(crate) mapped: AtomicBool,
    /// Those of `open(2)`; none if the kernel did not open it.
    pub(crate) flags: i32,
}

impl FileHandle {
    /// The handle of a file that was just opened. From here on the kernel says whose writes take
    /// set-id bits away.
    pub(crate) fn new(file: OpenFile, charge: MetadataCharge) -> FileHandle {
        FileHandle {
            _charge: charge,
            file: file.writing_as(OpContext::ROOT),
            mapped: AtomicBool::new(false),
            flags: 0,
        }
    }
}

/// An open directory of the kernel's.
pub(crate) struct DirHandle {
    pub(crate) _charge: MetadataCharge,
    pub(crate) dentry: DentryRef<Inode>,
    pub(crate) directory: Box<dyn OpenDirectory>,
}

/// A directory that the kernel reads without having opened it, between two requests.
pub(crate) struct Reading {
    pub(crate) handle: DirHandle,
    ino: u64,
    /// Changes of its names that were known before it was opened.
    changes: u32,
    /// When it was opened, if changes of its names by others are not told.
    untold_since: Option<Instant>,
}

/// Where the readings of [`Reading`]s go on.
///
/// An open directory may show the names that were there when it was opened. So a reading is kept only until a name in
/// the directory changes: a later reading that comes to the same place must list a name that was made before it began.
/// Without a kept reading the directory is opened again, which costs an opening and a seek for each request. Readings that
/// nobody continues give way to others.
///
/// # Invariants
///
/// A kept reading was opened after the last change of a name in its directory, as far as changes are told, and else at
/// most [`TTL`] ago.
#[derive(Default)]
pub(crate) struct Listed(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Where each goes on, the oldest first.
    readings: Vec<(u64, Reading)>,
    /// Changes of names. Directories may share a count.
    changes: [u32; COUNTS],
}

impl Kept {
    /// Takes out the readings that are chosen.
    fn remove(&mut self, choose: impl Fn(&Reading) -> bool) -> Vec<(u64, Reading)> {
        let chosen = self.readings.extract_if(.., |(_, reading)| choose(reading));
        chosen.collect()
    }
}

fn count_of(ino: u64) -> usize {
    (ino % COUNTS as u64) as usize
}

impl Listed {
    /// The reading of the directory `ino` that stopped at `offset`.
    pub(crate) fn take(&self, ino: u64, offset: u64) -> Option<Reading> {
        let mut kept = self.0.lock();
        let found = |(at, reading): &(u64, Reading)| (reading.ino, *at) == (ino, offset);
        let place = kept.readings.iter().rposition(found)?;
        let (_, reading) = kept.readings.remove(place);
        drop(kept);
        let holds = |since: Instant| since.elapsed() < TTL;
        reading.untold_since.is_none_or(holds).then_some(reading)
    }

    /// Opens a directory to be read; `told` if changes of its names by others are told from now on.
    pub(crate) fn open(
        &self,
        ino: u64,
        told: bool,
        open: impl FnOnce() -> Result<DirHandle, Errno>,
    ) -> Result<Reading, Errno> {
        let changes = self.0.lock().changes[count_of(ino)];
        let untold_since = (!told).then(Instant::now);
        Ok(Reading {
            handle: open()?,
            ino,
            changes,
            untold_since,
        })
    }

    /// Keeps a reading, which stopped at `offset`, unless a name changed since the directory was opened.
    pub(crate) fn put(&self, reading: Reading, offset: u64) {
        let mut kept = self.0.lock();
        if kept.changes[count_of(reading.ino)] != reading.changes {
            drop(kept);
            drop(reading);
            return;
        }
        let oldest = (kept.readings.len() == LISTED).then(|| kept.readings.remove(0));
        kept.readings.push((offset, reading));
        drop(kept);
        drop(oldest);
    }

    /// A name in the directory `ino` changed.
    pub(crate) fn names_changed(&self, ino: u64) {
        let mut kept = self.0.lock();
        let count = count_of(ino);
        kept.changes[count] = kept.changes[count].wrapping_add(1);
        let gone = kept.remove(|reading| count_of(reading.ino) == count);
        drop(kept);
        drop(gone);
    }

    /// Any name may have changed.
    pub(crate) fn all_changed(&self) {
        let mut kept = self.0.lock();
        for count in &mut kept.changes {
            *count = count.wrapping_add(1);
        }
        let gone = kept.remove(|_| true);
        drop(kept);
        drop(gone);
    }

    /// The kernel forgot the directory `ino`.
    pub(crate) fn end(&self, ino: u64) {
        let gone = self.0.lock().remove(|reading| reading.ino == ino);
        drop(gone);
    }

    /// How many readings are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().readings.len()
    }
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
