//! A directory of a walk whose names are not cached.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Access, Attr, FileKind, UncachedDir, UncachedEntries};
use std::ffi::OsStr;

use super::{Walk, WalkEntry};
use crate::error::{Operation, Result};

/// An entry of a directory.
pub(super) struct Found<'a> {
    pub(super) name: &'a OsStr,
    pub(super) kind: FileKind,
    /// Its attributes, if they were asked for.
    pub(super) attr: Option<Result<Attr, Errno>>,
}

/// The entries of such a directory, as they are read.
pub(super) struct Uncached {
    dir: Arc<dyn UncachedDir>,
    entries: UncachedEntries,
    /// The entry to be taken next.
    next: usize,
    ended: bool,
}

impl Uncached {
    pub(super) fn new(dir: &Arc<dyn UncachedDir>) -> Self {
        Self {
            dir: Arc::clone(dir),
            entries: UncachedEntries::default(),
            next: 0,
            ended: false,
        }
    }

    /// The next entry. An error is the last one.
    pub(super) fn next(&mut self) -> Option<Result<Found<'_>, Errno>> {
        if self.next == self.entries.len() && !self.ended {
            self.next = 0;
            if let Err(errno) = self.dir.read(&mut self.entries) {
                self.entries.clear();
                self.ended = true;
                return Some(Err(errno));
            }
            self.ended = self.entries.is_empty();
        }
        let entry = self.entries.get(self.next)?;
        self.next += 1;
        Some(Ok(Found {
            name: entry.name,
            kind: entry.kind,
            attr: Some(entry.attr),
        }))
    }
}

impl Walk {
    /// Opens a directory that was found in `above`.
    pub(super) fn open_uncached(
        entry: &WalkEntry,
        above: &dyn UncachedDir,
    ) -> Result<Box<dyn UncachedDir>> {
        let from = &entry.from;
        let open = || {
            let name = entry.path.file_name().ok_or(Errno::ENOENT)?;
            let dir = above.open(name)?;
            // As an ordinary walk, which goes through it to read it.
            from.check_uncached(&dir.attr(), Access::READ.and(Access::EXECUTE))?;
            Ok(dir)
        };
        open().map_err(|errno| from.error(Operation::ReadDir, entry.name(), errno))
    }
}
