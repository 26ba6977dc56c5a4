//! Entries of a directory that were read ahead.

use crate::types::{Attr, FileKind};
use foliocache_sys::Errno;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// Entries that are taken one after another. Their names lie in one piece of memory.
#[derive(Debug, Default)]
pub struct Entries {
    names: Vec<u8>,
    entries: Vec<Entry>,
    /// Of the entries in their order, once they were asked for.
    attrs: Vec<Result<Attr, Errno>>,
    /// The entry to be taken next.
    next: usize,
}

#[derive(Debug)]
struct Entry {
    ino: u64,
    name: Range<usize>,
    kind: FileKind,
}

/// One of [`Entries`].
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The name, one component.
    pub name: &'a OsStr,
    /// The kind: that of the attributes, or as far as the directory says.
    pub kind: FileKind,
    /// The attributes, if they were asked for, or why there are none: `ENOENT` if the name went meanwhile.
    pub attr: Option<Result<Attr, Errno>>,
}

impl Entries {
    /// How many there are, those that were taken included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether all were taken.
    pub fn is_used_up(&self) -> bool {
        self.next == self.entries.len()
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<Found<'_>> {
        let entry = self.entries.get(self.next)?;
        let attr = self.attrs.get(self.next).copied();
        self.next += 1;
        Some(Found {
            name: OsStr::from_bytes(&self.names[entry.name.clone()]),
            kind: attr
                .and_then(Result::ok)
                .map_or(entry.kind, |attr| attr.kind),
            attr,
        })
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
        self.attrs.clear();
        self.next = 0;
    }

    /// Adds one whose attributes are not known yet.
    pub fn push(&mut self, ino: u64, kind: FileKind, name: &OsStr) {
        let start = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        let name = start..self.names.len();
        self.entries.push(Entry { ino, name, kind });
    }

    /// Puts them in the order of the numbers of their inodes and asks for the attributes of each, by name.
    pub fn ask(&mut self, mut attr: impl FnMut(&OsStr) -> Result<Attr, Errno>) {
        self.entries.sort_unstable_by_key(|entry| entry.ino);
        let name = |entry: &Entry| OsStr::from_bytes(&self.names[entry.name.clone()]);
        let asked = self.entries.iter().map(|entry| attr(name(entry)));
        self.attrs.extend(asked);
    }
}
