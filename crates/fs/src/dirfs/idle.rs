//! Files that nobody has open and whose descriptors are still needed.
//!
//! # Model
//!
//! A file that is closed while data of it waits to be written keeps its descriptors, see
//! [`file`](super::file), and gets in line here. Whoever opens, closes or looks at a file takes a
//! step for those who wait: nobody else comes by.
//!
//! How many descriptors may be kept in this way, by files in line and by those of
//! [batches](super::batch), is counted by [`KeptFds`]. Beyond the limit each close writes files of the line first:
//! several with one `syncfs`, or two with an `fdatasync` each.
//!
//! # Invariants
//!
//! 1. A file counts from the moment it gets in line until its descriptors are closed or a handle has them, also
//!    while a close writes it. So the limit is exceeded by no more than what each closing thread has just closed.
//! 2. A file whose `idle` is set is in line or is [`Taken`].
//!
//! # Locking
//!
//! `round` comes before all locks of files and is held over I/O: one thread at a time makes files durable
//! together, and the others wait for the room that it makes. The lock of the line is a leaf. It is not taken where
//! nobody waits, so that files which have nothing to do with each other share no lock.
//!
//! # Memory ordering
//!
//! `nr` is changed under the lock and read without, `Relaxed`: who misses a file that has just got in line
//! leaves it to the next one, as if he had come a moment earlier.

use super::NodeOps;
use super::node::DirNode;
use super::state::Opens;
use super::{Shared, WritebackAtClose};
use foliocache_mm::{AddressSpace, AddressSpaceOperations};
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::{Arc, Mutex, MutexGuard, Weak};
use foliocache_sys::Errno;
use foliocache_sys::fd::KeptFds;
use foliocache_vfs::{SlabArc, SlabWeak};
use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;

/// Most files that are written back because one got in line.
const MOST_TOGETHER: usize = 256;
/// Fewest of them for which the whole file system is flushed, which may wait for data of others.
const FEWEST_TOGETHER: usize = 8;
/// Most open files of a directory that give way where a descriptor is refused.
const GIVE_WAY: usize = 64;
/// Most files that one close flushes one by one.
const MOST_ALONE: usize = 2;

/// The line.
pub(super) struct IdleFiles {
    pub(super) files: Mutex<VecDeque<SlabWeak<DirNode>>>,
    nr: AtomicUsize,
    /// Beyond what this allows, some are written back when one gets in line.
    pub(super) kept: Arc<KeptFds>,
    /// Held by the thread that makes files durable together.
    round: Mutex<()>,
}

impl IdleFiles {
    pub(super) fn new(kept: Arc<KeptFds>) -> IdleFiles {
        IdleFiles {
            files: Mutex::default(),
            nr: AtomicUsize::new(0),
            kept,
            round: Mutex::default(),
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
    fn pop(&self) -> Option<SlabWeak<DirNode>> {
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
            directory.give_way(GIVE_WAY);
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
                self.idle.kept.release(1);
                continue;
            };
            match node.file().opens.try_lock() {
                Some(opens) => self.close_or_requeue(&node, opens),
                None => self.idle.requeue(weak),
            }
        }
    }

    /// Writes back files of which too many wait with open descriptors, several of them at once where one operation of
    /// the source makes them all durable.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn limit_idle(&self) {
        let kept = &self.idle.kept;
        if !kept.too_many() {
            return;
        }
        let most = (kept.most() / 4).min(MOST_TOGETHER);
        if let Some(batches) = &self.batches
            && most >= FEWEST_TOGETHER
        {
            let _round = self.idle.round.lock();
            // Another thread may have made room meanwhile.
            if !kept.too_many() {
                return;
            }
            let files = self.take_idle(most);
            if files.len() >= FEWEST_TOGETHER {
                // All reads are on their way before one of them is waited for.
                let with_mapping = || {
                    files
                        .iter()
                        .filter_map(|file| Some((file, file.mapping()?)))
                };
                for (file, mapping) in with_mapping() {
                    file.node.read_tail(&mapping);
                }
                for (_, mapping) in with_mapping() {
                    mapping.fdatawrite();
                }
                batches.settle_open(self);
                files.into_iter().for_each(Taken::sync);
                return;
            }
        }
        let files = self.take_idle(MOST_ALONE);
        files.into_iter().for_each(Taken::sync);
    }

    /// Takes up to `most` files out of the line.
    fn take_idle(&self, most: usize) -> Vec<Taken<'_>> {
        let mut files = Vec::new();
        while files.len() < most
            && let Some(weak) = self.idle.pop()
        {
            match weak.upgrade() {
                Some(node) => files.push(Taken { shared: self, node }),
                None => self.idle.kept.release(1),
            }
        }
        files
    }

    /// A file that was taken out of the line gets in again if its descriptors are still needed.
    fn close_or_requeue(&self, node: &SlabArc<DirNode>, mut opens: MutexGuard<'_, Opens>) {
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

/// A file that was taken out of the line. When this is dropped, after a panic too, its descriptors are closed or it
/// gets in line again.
struct Taken<'a> {
    shared: &'a Shared,
    node: SlabArc<DirNode>,
}

impl Taken<'_> {
    fn mapping(&self) -> Option<Arc<AddressSpace>> {
        self.node.file().mapping()
    }

    /// Makes it durable.
    fn sync(self) {
        if let Some(mapping) = self.mapping() {
            // The error stays with the file: its folios remain dirty and its handles are told.
            let _ = mapping.sync();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let opens = self.node.file().opens.lock();
        self.shared.close_or_requeue(&self.node, opens);
    }
}

impl NodeOps {
    /// The `last` handle of the file was closed, or the last of those that may have `written`.
    ///
    /// Context: no lock held; may block on I/O.
    pub(super) fn closed(&self, last: bool, written: bool) {
        // Also after a panic.
        let closing = last.then(|| Closing(self));
        if last {
            self.sync_held();
        }
        if !self.is_unlinked() {
            if last && self.write_in_batch() {
                // The batch closes it.
                mem::forget(closing);
                return;
            }
            if written {
                match self.shared.options.writeback_at_close {
                    WritebackAtClose::Begin => self.begin_write_out(),
                    WritebackAtClose::Wait => self.write_out(),
                    WritebackAtClose::Delayed => {}
                }
            }
            if last {
                self.file().close_if_batched();
            }
        }
        if !self.is_unlinked() && self.file().any_fd().is_none() {
            // Nothing is left to close.
            mem::forget(closing);
        }
    }

    /// Has what is dirty written to the source a moment later, with the time of its last write. If all is written, sets that time.
    fn begin_write_out(&self) {
        let Some(mapping) = self.file().mapping() else {
            return;
        };
        mapping.begin_writeback();
        if mapping.stats().dirty_pages == 0 {
            // Tried again before a flush.
            let _ = self.write_inode();
        }
    }

    /// Writes what is dirty to the source, with the time of its last write, and does not flush it. What fails stays dirty.
    ///
    /// Context: no lock held; blocks on I/O.
    pub(super) fn write_out(&self) {
        if let Some(mapping) = self.file().mapping().filter(|mapping| mapping.is_dirty()) {
            mapping.fdatawrite();
            // Tried again before a flush.
            let _ = self.write_inode();
        }
    }

    /// Closes the descriptors of a file without handles, or puts it in line if they are still needed. What is not written of a file
    /// without a name goes with its inode: whoever looked it up may open it.
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

/// A file that nobody may have open any more. When this is dropped, after a panic too, its descriptors are closed or
/// it gets in line.
pub(super) struct Closing<'a>(pub(super) &'a NodeOps);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close_or_wait();
    }
}
