//! Closed files whose descriptors are still needed.
//!
//! # Model
//!
//! A file that is closed while data of it waits to be written keeps its descriptors, see
//! [`file`](super::file), and gets in line here. Each open, close or look at a file takes a
//! step for those in line: no thread does it for them.
//!
//! How many descriptors may be kept in this way, by files in line and by those of
//! [batches](super::batch), is counted by [`KeptFds`]. Beyond the limit each close writes files of the line first, see
//! [`last_close`](super::last_close).
//!
//! # Invariants
//!
//! 1. A file counts from the moment it gets in line until its descriptors are closed or a handle has them, also
//!    while a close writes it. So the limit is exceeded by no more than what each closing thread has just closed.
//! 2. A file whose `idle` is set is in line or was taken out by [`last_close`](super::last_close).
//!
//! # Locking
//!
//! `round` comes before all locks of files and is held over I/O: one thread at a time makes files durable
//! together, and the others wait for the room that it makes. The lock of the line is a leaf. It is not taken while
//! the line is empty, so that files which have nothing to do with each other share no lock.
//!
//! # Memory ordering
//!
//! `nr` is changed under the lock and read without, `Relaxed`: a thread that misses a file which has just got in
//! line leaves it to the next thread, as if it had come a moment earlier.

use super::node::{DirNode, Location};
use super::state::Opens;
use super::{NodeOps, Shared};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::rank::{LeafMutex, Rank, RankedMutex, RankedMutexGuard};
use foliocache_sys::fd::KeptFds;
use foliocache_vfs::{SlabArc, SlabWeak};
use std::collections::VecDeque;

/// The line.
pub(super) struct IdleFiles {
    pub(super) files: LeafMutex<VecDeque<SlabWeak<DirNode>>>,
    nr: AtomicUsize,
    /// Beyond what this allows, some are written back when one gets in line.
    pub(super) kept: Arc<KeptFds>,
    /// Held by the thread that makes files durable together.
    pub(super) round: RankedMutex<{ Rank::IdleFiles as u8 }, ()>,
}

impl IdleFiles {
    pub(super) fn new(kept: Arc<KeptFds>) -> IdleFiles {
        IdleFiles {
            files: LeafMutex::default(),
            nr: AtomicUsize::new(0),
            kept,
            round: RankedMutex::default(),
        }
    }

    /// Context: the file's `idle` just set, under its `opens`.
    pub(super) fn push(&self, file: SlabWeak<DirNode>) {
        self.kept.keep();
        self.requeue(file);
    }

    /// A file that counts already.
    fn requeue(&self, file: SlabWeak<DirNode>) {
        let mut files = self.files.lock();
        files.push_back(file);
        // Relaxed: see the module's header.
        self.nr.store(files.len(), Ordering::Relaxed);
    }

    /// The first in line. It still counts.
    pub(super) fn pop(&self) -> Option<SlabWeak<DirNode>> {
        // Relaxed: see the module's header.
        if self.nr.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut files = self.files.lock();
        let first = files.pop_front()?;
        // Relaxed: see the module's header.
        self.nr.store(files.len(), Ordering::Relaxed);
        Some(first)
    }

    fn len(&self) -> usize {
        self.files.lock().len()
    }
}

impl Drop for IdleFiles {
    fn drop(&mut self) {
        self.kept.release(self.len());
    }
}

impl Shared {
    /// Closes the descriptors of every idle file whose data is safe.
    pub(super) fn close_all_idle(&self) {
        self.close_idle(self.idle.len());
    }

    /// Looks at `n` idle files and closes the descriptors of those whose data is safe.
    pub(super) fn close_idle(&self, n: usize) {
        for weak in (0..n).map_while(|_| self.idle.pop()) {
            let Some(node) = weak.upgrade() else {
                self.idle.kept.release(1);
                continue;
            };
            match node.file().opens.try_lock() {
                Some(opens) => self.close_or_requeue(&node, opens),
                None => self.idle.requeue(weak),
            }
        }
    }

    /// A file that was taken out of the line gets in again if its descriptors are still needed.
    pub(super) fn close_or_requeue(
        &self,
        node: &SlabArc<DirNode>,
        mut opens: RankedMutexGuard<'_, Opens>,
    ) {
        opens.idle = opens.handles == 0 && !node.file().close();
        match opens.idle {
            true => self.idle.requeue(SlabArc::downgrade(node)),
            false => {
                node.unpin(Some(&opens));
                node.let_go(&opens);
                self.idle.kept.release(1);
            }
        }
    }
}

impl DirNode {
    /// Lets go of a file that has no handle and is durable as a whole.
    ///
    /// Context: `opens` held.
    pub(super) fn let_go(&self, opens: &Opens) {
        let Some((held, file)) = self.shared.held.as_ref().zip(self.regular()) else {
            return;
        };
        let dirty = file.mapping().is_some_and(|mapping| mapping.is_dirty());
        if opens.handles > 0 || file.has_descriptors() || dirty {
            return;
        }
        held.forget(self.id);
        let is_nameless = matches!(
            &*self.location.lock(),
            Location::Pinned(_) | Location::Detached
        );
        if is_nameless
            && let Some(inodes) = self.shared.shortage.inodes()
            && let Some(inode) = inodes.find(&self.identity)
        {
            inodes.orphan(&inode);
            // The inode itself may wait for readers.
            self.shared.path_fds.remove(self.id);
            self.detach();
        }
    }
}

impl NodeOps {
    /// Closes the descriptors of a file without handles, or puts it in line if they are still needed. Unwritten data of a file
    /// without a name goes with its inode: a caller that looked it up before may open it.
    ///
    /// Context: takes `opens`.
    pub(super) fn close_or_wait(&self) {
        let file = self.file();
        let mut opens = file.opens.lock();
        if opens.handles > 0 {
            return;
        }
        if self.is_unlinked() && foliocache_sync::planted!(data_given_up_at_the_last_close) {
            file.discard(true);
        }
        if file.close() {
            self.unpin(Some(&opens));
        } else if !opens.idle {
            opens.idle = true;
            self.shared.idle.push(SlabArc::downgrade(&self.0));
        }
    }
}

/// A file that may have no handle any more. When this is dropped, after a panic too, its descriptors are closed or
/// it gets in line.
pub(super) struct Closing<'a>(pub(super) &'a NodeOps);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close_or_wait();
    }
}
