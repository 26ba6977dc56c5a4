//! The allowed states of each file: numbers that processes share.
//!
//! # Model
//!
//! Each file has one writer. It counts a version as *begun* before its first change, as *complete* when the last
//! one has returned, and as *synced* if it is complete and an fsync was among its changes. A reader that notes the
//! complete version before it opens the file, and the begun version after it has read, knows which versions it may
//! have seen.
//!
//! # Memory ordering
//!
//! All words are read and written `SeqCst`, in `get` and `set`: the store of a writer is the partner of the load of a reader,
//! and there are system calls between them anyhow.
//!
//! # Safety
//!
//! The mapping is of a whole [`Words`], which consists of atomic words, for which any value is valid. It is
//! unmapped by `drop`, after the last borrow.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Files that a ledger has room for.
pub const FILES: usize = 32;

/// The numbers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The newest version that may be there in part.
    pub begun: u64,
    /// The newest version that is whole.
    pub complete: u64,
    /// The newest version that is whole and synced.
    pub synced: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Words {
    ending: AtomicU64,
    capabilities: AtomicU64,
    looks: AtomicU64,
    allowed: AtomicU64,
    /// Begun, complete, synced.
    files: [[AtomicU64; 3]; FILES],
}

fn get(word: &AtomicU64) -> u64 {
    // See the module.
    word.load(Ordering::SeqCst)
}

fn set(word: &AtomicU64, value: u64) {
    // See the module.
    word.store(value, Ordering::SeqCst);
}

fn add(word: &AtomicU64) {
    // See the module.
    word.fetch_add(1, Ordering::SeqCst);
}

/// The numbers of all files, in a file that processes map.
#[derive(Debug)]
pub struct Ledger {
    words: NonNull<Words>,
}

// SAFETY: the words are atomic, and mapped as long as the value lives.
unsafe impl Send for Ledger {}
// SAFETY: the words are atomic, and mapped as long as the value lives.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// The ledger in a file, which is made if it is not there.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn open(path: &Path) -> io::Result<Ledger> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).open(path)?;
        file.set_len(size_of::<Words>() as u64)?;
        Ledger::map(&file)
    }

    fn map(file: &File) -> io::Result<Ledger> {
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let (null, len) = (std::ptr::null_mut(), size_of::<Words>());
        // SAFETY: the kernel chooses the place.
        let at = unsafe { mmap(null, len, read_write, shared, file, 0) }?;
        let words = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ledger { words })
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped, of the length of `Words`, and page-aligned.
        unsafe { self.words.as_ref() }
    }

    /// The numbers of a file.
    pub fn entry(&self, file: u64) -> Entry {
        let [begun, complete, synced] = &self.words().files[file as usize];
        Entry {
            begun: get(begun),
            complete: get(complete),
            synced: get(synced),
        }
    }

    /// Begins the next version of a file, and returns its number.
    pub fn begin(&self, file: u64) -> u64 {
        let version = self.entry(file).begun + 1;
        set(&self.words().files[file as usize][0], version);
        version
    }

    /// A version is whole.
    pub fn complete(&self, file: u64, version: u64, synced: bool) {
        let [_, complete, last_synced] = &self.words().files[file as usize];
        set(complete, version);
        if synced {
            set(last_synced, version);
        }
    }

    /// Whether all workers must stop.
    pub fn is_ending(&self) -> bool {
        get(&self.words().ending) != 0
    }

    /// Makes all workers stop, or go on.
    pub fn set_ending(&self, ending: bool) {
        set(&self.words().ending, u64::from(ending));
    }

    /// Whether files have capabilities: that takes root.
    pub fn has_capabilities(&self) -> bool {
        get(&self.words().capabilities) != 0
    }

    /// Says whether files have capabilities, before there are any.
    pub fn set_capabilities(&self, have: bool) {
        set(&self.words().capabilities, u64::from(have));
    }

    /// Counts a look at a file.
    pub fn looked(&self) {
        add(&self.words().looks);
    }

    /// Counts something that is wrong, and allowed where it was seen.
    pub fn allowed(&self) {
        add(&self.words().allowed);
    }

    /// Looks at files, and how many of them saw something that is wrong and allowed.
    pub fn looks(&self) -> (u64, u64) {
        (get(&self.words().looks), get(&self.words().allowed))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no longer borrowed.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), size_of::<Words>()) };
    }
}
