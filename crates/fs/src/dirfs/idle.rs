//! Files that nobody has open and whose descriptors are still needed.
//!
//! # Model
//!
//! A file that is closed while data of it waits to be written keeps its descriptors, see
//! [`file`](super::file), and gets in line here. Whoever opens, closes or looks at a file takes a
//! step for those who wait: nobody else comes by.
//!
//! How many descriptors may be kept in this way, by files in line and by those of
//! [batches](super::batch), is counted by [`KeptFds`].
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

use super::NodeOps;
use super::Shared;
use super::node::DirNode;
use super::state::{FileState, Opens};
use foliocache_mm::AddressSpace;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::{Arc, Mutex, MutexGuard, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fd::KeptFds;
use foliocache_vfs::{SlabArc, SlabWeak};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Most files that are written back because one got in line.
const MOST_TOGETHER: usize = 256;
/// Fewest of them for which the whole file system is flushed, which may wait for data of others.
const FEWEST_TOGETHER: usize = 8;

/// The line.
pub(super) struct IdleFiles {
    pub(super) files: Mutex<VecDeque<SlabWeak<DirNode>>>,
    nr: AtomicUsize,
    /// Beyond what this allows, some are written back when one gets in line.
    kept: Arc<KeptFds>,
}

impl IdleFiles {
    pub(super) fn new(kept: Arc<KeptFds>) -> IdleFiles {
        IdleFiles {
            files: Mutex::default(),
            nr: AtomicUsize::new(0),
            kept,
        }
    }

    /// Context: the file's `idle` just set, under its `opens`.
    pub(super) fn push(&self, file: SlabWeak<DirNode>) {
        let mut files = self.files.lock();
        files.push_back(file);
        self.kept.keep();
        // Relaxed: see the module's header.
        self.nr.store(files.len(), Ordering::Relaxed);
    }

    /// The first in line.
    fn pop(&self) -> Option<SlabWeak<DirNode>> {
        // Relaxed: see the module's header.
        if self.nr.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut files = self.files.lock();
        let first = files.pop_front()?;
        self.kept.release(1);
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

/// The directories of the process, which share its limit of open files. The lock is a leaf.
static DIRECTORIES: Mutex<VecDeque<Weak<Shared>>> = Mutex::new(VecDeque::new());

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
            directory.path_fds.clear();
            directory.close_all_idle();
        }
        open()
    }

    /// Keeps the descriptor of a node, in the place of another directory's where all together keep too many.
    pub(super) fn keep_path(&self, node: u64, fd: &Arc<OwnedFd>) {
        if !self.path_fds.insert(node, fd) && directories().iter().any(|all| all.path_fds.evict()) {
            self.path_fds.insert(node, fd);
        }
    }

    /// Closes the descriptors of every idle file whose data is safe.
    pub(super) fn close_all_idle(&self) {
        self.close_idle(self.idle.len());
    }

    /// Looks at `n` idle files and closes the descriptors of those whose data is safe.
    pub(super) fn close_idle(&self, n: usize) {
        for weak in (0..n).map_while(|_| self.idle.pop()) {
            let Some(node) = weak.upgrade() else {
                continue;
            };
            match node.file().opens.try_lock() {
                Some(opens) => self.close_or_requeue(weak, node.file(), opens),
                None => self.idle.push(weak),
            }
        }
    }

    /// Writes back files of which too many wait with open descriptors, several of them at once: one operation of the
    /// source may make them all durable.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn limit_idle(&self) {
        if !self.idle.kept.too_many() {
            return;
        }
        let most = (self.idle.kept.most() / 4).clamp(2, MOST_TOGETHER);
        let first = (0..most).map_while(|_| self.idle.pop());
        let files: Vec<_> = first
            .filter_map(|weak| weak.upgrade().map(|node| (weak, node)))
            .map(|(weak, node)| (weak, node.file().mapping(), node))
            .collect();
        if let Some(batches) = &self.batches
            && files.len() >= FEWEST_TOGETHER
        {
            // All reads are on their way before one of them is waited for.
            for (_, mapping, node) in &files {
                mapping.iter().for_each(|mapping| node.read_tail(mapping));
            }
            let mappings = files.iter().filter_map(|(_, mapping, _)| mapping.as_ref());
            mappings.for_each(AddressSpace::fdatawrite);
            batches.settle_open(self);
        }
        for (weak, mapping, node) in files {
            if let Some(mapping) = mapping {
                // The error stays with the file: its folios remain dirty and its handles are told.
                let _ = mapping.sync();
            }
            self.close_or_requeue(weak, node.file(), node.file().opens.lock());
        }
    }

    /// A file that was taken out of the line gets in again if its descriptors are still needed.
    fn close_or_requeue(
        &self,
        weak: SlabWeak<DirNode>,
        file: &FileState,
        mut opens: MutexGuard<'_, Opens>,
    ) {
        opens.idle = opens.handles == 0 && !file.close();
        if opens.idle {
            self.idle.push(weak);
        }
    }
}

impl NodeOps {
    /// Closes the descriptors of a file without handles, or puts it in line if they are still needed.
    ///
    /// Context: takes `opens`.
    pub(super) fn close_or_wait(&self) {
        let file = self.file();
        let mut opens = file.opens.lock();
        if opens.handles > 0 {
            return;
        }
        if self.is_unlinked() {
            file.discard();
        } else if !file.close() && !opens.idle {
            opens.idle = true;
            self.shared.idle.push(SlabArc::downgrade(&self.0));
        }
    }
}
