//! Directories that are read without their names being cached.
//!
//! # Model
//!
//! ```text
//!  FileSystem::open_uncached ──▶ UncachedDir ──read──▶ UncachedEntries: names, with their attributes
//!                                    └──open──▶ UncachedDir below
//! ```
//!
//! A pass over a whole tree looks at each name once. If the names entered the cache, they would push out those that others
//! use. So no dentry and no inode is made. Attributes of a file whose inode is in memory come from there:
//! its data may not be in the store yet.
//!
//! The store is asked for attributes in the order of inode numbers, in which most stores keep them.

use crate::types::{Attr, FileKind};
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// A directory whose names are read and not cached. From [`FileSystem::open_uncached`](crate::FileSystem::open_uncached).
pub trait UncachedDir: Send + Sync {
    /// The directory's own attributes, as they were when it was opened.
    fn attr(&self) -> Attr;

    /// Replaces `entries` by those that come next, without `.` and `..`. An entry that is there throughout is read once.
    /// At the end there are none, and no more. Callers take turns.
    ///
    /// # Errors
    /// Those of the backing store. Entries that were read before are lost.
    fn read(&self, entries: &mut UncachedEntries) -> Result<(), Errno>;

    /// Opens a directory in this one. A symbolic link is not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`; `ESTALE` if this directory was moved and its descriptor had to be closed; those of
    /// the backing store.
    fn open(&self, name: &OsStr) -> Result<Box<dyn UncachedDir>, Errno>;
}

/// Entries with their attributes. Their names lie in one piece of memory.
#[derive(Debug, Default)]
pub struct UncachedEntries {
    names: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    ino: u64,
    name: Range<usize>,
    kind: FileKind,
    attr: Result<Attr, Errno>,
}

/// One of [`UncachedEntries`].
#[derive(Clone, Copy, Debug)]
pub struct UncachedEntry<'a> {
    /// The name, one component.
    pub name: &'a OsStr,
    /// The kind: that of the attributes, or as far as the directory says.
    pub kind: FileKind,
    /// The attributes, or why there are none: `ENOENT` if the name went meanwhile.
    pub attr: Result<Attr, Errno>,
}

impl UncachedEntries {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry at a place below [`UncachedEntries::len`].
    pub fn get(&self, place: usize) -> Option<UncachedEntry<'_>> {
        let entry = self.entries.get(place)?;
        Some(UncachedEntry {
            name: OsStr::from_bytes(&self.names[entry.name.clone()]),
            kind: entry.attr.map_or(entry.kind, |attr| attr.kind),
            attr: entry.attr,
        })
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
    }

    /// Adds one whose attributes are not known yet.
    pub fn push(&mut self, ino: u64, kind: FileKind, name: &OsStr) {
        let start = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.entries.push(Entry {
            ino,
            name: start..self.names.len(),
            kind,
            attr: Err(Errno::ENODATA),
        });
    }

    /// Puts them in the order of the numbers of their inodes and asks for the attributes of each, by name.
    pub fn ask(&mut self, mut attr: impl FnMut(&OsStr) -> Result<Attr, Errno>) {
        self.entries.sort_unstable_by_key(|entry| entry.ino);
        for entry in &mut self.entries {
            entry.attr = attr(OsStr::from_bytes(&self.names[entry.name.clone()]));
        }
    }
}
