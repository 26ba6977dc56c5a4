//! What others removed from the store: it is given up soon, and with it its space there.
//!
//! # Model
//!
//! A descriptor that is kept for a file keeps its blocks, too. A removal through this process closes it. Of one by others
//! somebody tells, at a moment at which nobody may wait: the name gets in line here, and the file system's
//! [reaper](crate::limbo::Reaper) asks for each what became of it ([`FileSystem::give_up_removed`]). In a process
//! that asks for no names, the reaper reads the news every [`LOOK`].
//!
//! What is not told stays until the cache makes room, as does what is beyond [`MOST`].
//!
//! # Locking
//!
//! The line is a leaf. The reaper asks without it.
//!
//! [`FileSystem::give_up_removed`]: crate::FileSystem::give_up_removed

use super::shrink::Caches;
use crate::dcache::DentryRef;
use crate::inode::Inode;
use crate::limbo::Reaper;
use foliocache_sync::Mutex;
use foliocache_sync::cell::OnceLock;
use foliocache_sync::time::Duration;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// How often the reaper reads the news of a process that asks for nothing.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Names that wait at most.
const MOST: usize = 16 << 10;

/// Names that were taken away, with what they led to.
#[derive(Default)]
pub(super) struct Removed {
    line: Mutex<Vec<DentryRef<Inode>>>,
    /// `None` where callers alone free what was given up: then nothing waits here.
    reaper: OnceLock<Reaper>,
}

impl Removed {
    /// Has `reaper`, which calls [`Caches::give_up_removed`], woken for what gets in line.
    pub(super) fn wake_when_added(&self, reaper: Reaper) {
        let _ = self.reaper.set(reaper);
    }

    /// Does not wait.
    pub(super) fn add(&self, dentry: DentryRef<Inode>) {
        let Some(reaper) = self.reaper.get() else {
            return;
        };
        let mut line = self.line.lock();
        if line.len() < MOST {
            line.push(dentry);
            drop(line);
            reaper.wake();
        }
    }
}

impl Caches {
    /// Gives up what of the line is gone.
    ///
    /// Context: [`FileSystem::give_up_removed`](crate::FileSystem::give_up_removed).
    pub(super) fn give_up_removed(&self) {
        let line = std::mem::take(&mut *self.removed.line.lock());
        let mut gone = Vec::new();
        for dentry in line {
            let inode = dentry.inode();
            if let Some(inode) = inode.filter(|inode| self.fs.give_up_removed(inode)) {
                if inode.is_directory() && dentry.is_hashed() {
                    self.tell_of_directory(&dentry);
                }
                self.dcache.invalidate(&dentry);
                gone.push(inode);
            }
        }
        if !gone.is_empty() {
            // Dead dentries have their inodes until then.
            self.dcache.wait_for_limbo();
            self.fs.evict_inodes(gone);
        }
    }

    fn tell_of_directory(&self, gone: &DentryRef<Inode>) {
        let Some(dir) = gone.parent().and_then(|parent| parent.inode()) else {
            return;
        };
        let name = gone.name();
        let name = OsStr::from_bytes(&name);
        self.observers
            .each(|observer| observer.directory_is_gone(&dir, name));
    }
}
