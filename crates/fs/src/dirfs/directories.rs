//! The directories of the process, which share its limit of open files.

use super::Shared;
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, OFlags, OwnedFd};
use std::collections::VecDeque;

/// Closes descriptors where the process has none left.
pub(super) trait CloseUnneeded {
    /// Closes all that can be closed. Takes no lock that is waited for.
    fn close_unneeded(&self);
}

/// The directories of the process, which share its limit of open files. The lock is a leaf.
static DIRECTORIES: LeafMutex<VecDeque<Weak<Shared>>> = LeafMutex::new(VecDeque::new());

/// Enters a directory that was opened.
pub(super) fn register(shared: &Arc<Shared>) {
    let mut directories = DIRECTORIES.lock();
    directories.retain(|directory| directory.strong_count() > 0);
    directories.push_back(Arc::downgrade(shared));
}

/// All directories, each once; next time the second is the first.
fn directories() -> Vec<Arc<Shared>> {
    let mut directories = DIRECTORIES.lock();
    let all = directories.iter().filter_map(Weak::upgrade).collect();
    if !directories.is_empty() {
        directories.rotate_left(1);
    }
    all
}

impl Shared {
    /// Runs a call that makes a descriptor. If there is none to be had it is run once more after all that can be
    /// closed was closed, in all directories of the process. Takes no lock that is waited for.
    pub(super) fn with_room<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(Errno::EMFILE | Errno::ENFILE) => {}
            done => return done,
        }
        for directory in directories() {
            directory.close_unneeded();
        }
        open()
    }

    /// A new descriptor of the source itself.
    pub(super) fn reopen_root(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.with_room(|| fd::reopen(self.root.as_fd(), flags))
    }

    /// Keeps the descriptor of a node, in the place of another directory's where all together keep too many.
    pub(super) fn keep_path(&self, node: u64, fd: &Arc<OwnedFd>) {
        if !self.path_fds.insert(node, fd) && directories().iter().any(|all| all.path_fds.evict()) {
            self.path_fds.insert(node, fd);
        }
    }
}
