//! A directory of a walk whose names are not cached.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Access, Entries, Found, UncachedDir};

use super::{Walk, WalkEntry};
use crate::error::{Operation, Result};

/// The entries of such a directory, as they are read.
pub(super) struct Uncached {
    dir: Arc<dyn UncachedDir>,
    entries: Entries,
    ended: bool,
}

impl Uncached {
    pub(super) fn new(dir: &Arc<dyn UncachedDir>) -> Self {
        Self {
            dir: Arc::clone(dir),
            entries: Entries::default(),
            ended: false,
        }
    }

    /// The next entry. An error is the last one.
    pub(super) fn next(&mut self) -> Option<Result<Found<'_>, Errno>> {
        if self.entries.is_used_up() && !self.ended {
            if let Err(errno) = self.dir.read(&mut self.entries) {
                self.entries.clear();
                self.ended = true;
                return Some(Err(errno));
            }
            self.ended = self.entries.is_empty();
        }
        self.entries.take().map(Ok)
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
