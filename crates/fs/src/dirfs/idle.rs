//! Files that nobody has open and whose descriptors are still needed.
//!
//! # Model
//!
//! A file that is closed while data of it waits to be written keeps its descriptors, see
//! [`file`](super::file), and gets in line here. Whoever opens, closes or looks at a file takes a
//! step for those who wait: nobody else comes by.
//!
//! # Locking
//!
//! The lock of the line is a leaf. It is not taken where nobody waits, so that files which have nothing
//! to do with each other share no lock.
//!
//! # Memory ordering
//!
//! `nr` is changed under the lock and read without, `Relaxed`: who misses a file that has just got in line
//! leaves it to the next one, as if he had come a moment earlier.

use super::Shared;
use super::node::DirNode;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::{Arc, Mutex, Weak};
use std::collections::VecDeque;

/// The line.
pub(super) struct IdleFiles {
    files: Mutex<VecDeque<Weak<DirNode>>>,
    nr: AtomicUsize,
    /// Files beyond which one is written back for each that gets in line.
    most: usize,
}

impl IdleFiles {
    pub(super) fn new(most: usize) -> IdleFiles {
        IdleFiles {
            files: Mutex::default(),
            nr: AtomicUsize::new(0),
            most,
        }
    }

    /// Context: the file's `idle` just set, under its `opens`.
    pub(super) fn push(&self, file: Weak<DirNode>) {
        let mut files = self.files.lock();
        files.push_back(file);
        // Relaxed: see the module's header.
        self.nr.store(files.len(), Ordering::Relaxed);
    }

    /// The first, if more than `keep` wait.
    fn pop_beyond(&self, keep: usize) -> Option<Weak<DirNode>> {
        // Relaxed: see the module's header.
        if self.nr.load(Ordering::Relaxed) <= keep {
            return None;
        }
        let mut files = self.files.lock();
        let first = (files.len() > keep).then(|| files.pop_front()).flatten();
        // Relaxed: see the module's header.
        self.nr.store(files.len(), Ordering::Relaxed);
        first
    }

    fn len(&self) -> usize {
        self.files.lock().len()
    }

    /// Runs something while the lock is held.
    #[cfg(test)]
    pub(super) fn locked<R>(&self, run: impl FnOnce() -> R) -> R {
        let _files = self.files.lock();
        run()
    }
}

impl Shared {
    /// Closes what can be closed, for somebody who got `EMFILE`. Takes no lock that is waited for.
    pub(super) fn make_room(&self) {
        self.path_fds.clear();
        self.close_all_idle();
    }

    /// Closes the descriptors of every idle file whose data is safe.
    pub(super) fn close_all_idle(&self) {
        self.close_idle(self.idle.len());
    }

    /// Looks at `n` idle files and closes the descriptors of those whose data is safe.
    pub(super) fn close_idle(&self, n: usize) {
        for _ in 0..n {
            let Some(weak) = self.idle.pop_beyond(0) else {
                return;
            };
            let Some(node) = weak.upgrade() else {
                continue;
            };
            let Some(mut opens) = node.file().opens.try_lock() else {
                self.idle.push(weak);
                continue;
            };
            if opens.handles > 0 || node.file().close() {
                opens.idle = false;
            } else {
                self.idle.push(weak);
            }
        }
    }

    /// Writes back files of which too many wait with open descriptors.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn limit_idle(&self) {
        for _ in 0..2 {
            let Some(weak) = self.idle.pop_beyond(self.idle.most) else {
                return;
            };
            let Some(node) = weak.upgrade() else {
                continue;
            };
            if let Some(mapping) = node.file().mapping() {
                // The error stays with the file: its folios remain dirty and its handles are told.
                let _ = mapping.sync();
            }
            let mut opens = node.file().opens.lock();
            if opens.handles > 0 || node.file().close() {
                opens.idle = false;
            } else {
                self.idle.push(weak);
            }
        }
    }
}

impl DirNode {
    /// Closes the descriptors of a file without handles, or puts it in line if they are still needed.
    ///
    /// Context: takes `opens`.
    pub(super) fn close_or_wait(self: &Arc<Self>) {
        let file = self.file();
        let mut opens = file.opens.lock();
        if opens.handles > 0 {
            return;
        }
        if self.is_unlinked() {
            file.discard();
        } else if !file.close() && !opens.idle {
            opens.idle = true;
            self.shared.idle.push(Arc::downgrade(self));
        }
    }
}
