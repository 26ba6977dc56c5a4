//! Small new files: through the kernel's cache, and durable many at a time.
//!
//! # Model
//!
//! ```text
//!  last close        buffered write, times      ──▶ batch that is open: pages unstable
//!  full, or a flush  batch is closed, one syncfs ──▶ every file of it durable, or all dirty again
//!  afterwards        pages clean, out of the kernel's cache, descriptor closed
//! ```
//!
//! A flush of its own costs a small file several device writes and a wait; the kernel merges what it
//! allocates late for many files. From its last close on such a file needs nothing of this process any more.
//!
//! Every other write is entered into the open batch, too, without room. Such a file keeps its descriptor, whose
//! `fdatasync` makes it durable as well. It uses the success of a batch that was made durable for other reasons,
//! such as a round of the flusher.
//!
//! `syncfs` tells of a failed write once a descriptor that was open before it. One descriptor, opened
//! with the file system, is asked for all batches. An error that it tells may be of any file written
//! since it was asked last, so it fails the batches that the call was for and the one that is open.
//! Where `syncfs` is not known to report errors there are no batches.
//!
//! `syncfs` of XFS writes everything, and flushes the device's cache only if there is something in its log. A write over blocks
//! that a file has, in the same tick of the clock as the one before, changes no metadata: the data is in the device's cache then
//! and is lost with its power. `fdatasync` of any regular file flushes that cache. It is one of the batch that is open still, or a
//! file without a name: kept, such a file would not let the file system be remounted read-only.
//!
//! Any thread that flushes a file of a batch makes the batch durable. A thread of the file system's own
//! does so when a batch is full, and cleans the files of each batch afterwards. A thread that waits for room cleans a batch
//! meanwhile. A panic on the way counts as an error of `syncfs`.
//!
//! # Invariants
//!
//! 1. A file is entered into the open batch before it is written, and a batch is made durable after
//!    the last such write has ended.
//! 2. The bytes that wait in the kernel's cache are charged to the bound before they are written, and
//!    until the batch of the file is cleaned. There are never more than `most_bytes` of them.
//! 3. Half as many files of batches as [`KeptFds`] allows keep their descriptor until they are clean, and those that are
//!    being closed: the other half is for files that have to wait with theirs. The others are opened again, by name, to take their pages out of the kernel's cache or to
//!    write them after an error.
//!
//! # Locking
//!
//! `state` is a leaf, and not held over I/O. A thread that makes a
//! batch durable may hold `wb_lock` of a file: it waits for writes that are under way, and these wait
//! for nothing but the kernel.

use super::NodeOps;
use super::Shared;
use super::batched::{Batch, Room, TakeBack, Taken};
use super::idle::Closing;
use super::magic::{EXT4, XFS};
use super::node::DirNode;
use super::stats::count;
use super::sync_calls::SyncCall;
use foliocache_mm::{AddressSpace, Mm, PAGE_SIZE};
use foliocache_sync::rank::{LeafMutex, RankedMutexGuard};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Condvar, Weak, background, thread};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, BorrowedFd, KeptFds, OFlags, OwnedFd};
use foliocache_vfs::{SlabArc, SlabWeak};
use std::collections::VecDeque;

/// The thread's name.
const NAME: &str = "foliocache-batch";

/// The longest file that is small.
pub(super) const SMALL: u64 = 64 << 10;
/// Most bytes that wait in the kernel's cache.
const BYTES: u64 = 64 << 20;

/// Whether `syncfs(2)` of a file system with this `statfs.f_type` reports every error, by a kernel of this
/// release: tried with disks that fail. Overlay reports to the first caller only, FUSE to none, and no file
/// system before Linux 5.8.
pub(super) fn reports_errors(magic: u64, release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    matches!(magic, EXT4 | XFS) && (number(), number()) >= (Some(5), Some(8))
}

/// A batch that is not cleaned yet.
#[derive(Default)]
struct Entry {
    batch: Arc<Batch>,
    room: Taken,
    /// Of the file that was written last.
    file: Weak<OwnedFd>,
    /// Writes under way.
    writing: usize,
    /// Whether there ever was one.
    used: bool,
    /// Files to be cleaned once there is a result.
    files: Vec<SlabWeak<DirNode>>,
}

#[derive(Default)]
struct State {
    open: Entry,
    /// Closed, and not durable; the oldest first.
    closed: VecDeque<Entry>,
    /// With a result, and to be cleaned.
    settled: Vec<Entry>,
    /// A thread makes batches durable.
    syncing: bool,
    /// By all of them, and by files that are about to be entered.
    taken: Taken,
    thread: Option<thread::JoinHandle<()>>,
    stopped: bool,
}

impl State {
    /// Whether there was anything to close.
    fn close_open(&mut self) -> bool {
        let used = self.open.used;
        if used {
            let open = std::mem::take(&mut self.open);
            self.closed.push_back(open);
        }
        used
    }

    fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        let others = self.closed.iter_mut().chain(&mut self.settled);
        std::iter::once(&mut self.open).chain(others)
    }
}

/// The batches of one file system.
pub(super) struct Batches {
    /// The descriptor for `syncfs`. Never closed before the batches are done with.
    fd: OwnedFd,
    /// Whether it is XFS.
    xfs: bool,
    /// The device that it is of.
    pub(super) dev: u64,
    kept: Arc<KeptFds>,
    most_bytes: u64,
    state: LeafMutex<State>,
    /// A result, a write that ended, room, something to do, the end.
    changed: Condvar,
}

/// A write into a batch that is under way.
pub(super) struct Writing<'a> {
    batches: &'a Batches,
    pub(super) batch: Arc<Batch>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.batches.state.lock();
        let is_open = Arc::ptr_eq(&state.open.batch, &self.batch);
        let is_it = |entry: &&mut Entry| Arc::ptr_eq(&entry.batch, &self.batch);
        // An entry that is gone already failed beside this write.
        if let Some(entry) = state.entries().find(is_it) {
            entry.writing -= 1;
        }
        drop(state);
        if !is_open {
            self.batches.changed.notify_all();
        }
    }
}

/// A call of `syncfs` for the closed batches. Dropped, it notes the result, an error if the call panicked.
struct Syncing<'a> {
    batches: &'a Batches,
    /// Closed batches that it is for.
    nr: usize,
    result: Result<(), Errno>,
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        let mut state = self.batches.state.lock();
        let covered = match self.result {
            Ok(()) => self.nr,
            Err(error) => {
                tracing::warn!(%error, "a batch of small files is not durable; it is written again");
                // The kernel tells it once, and it may be of what was written meanwhile.
                state.close_open();
                state.closed.len()
            }
        };
        for entry in state.closed.drain(..covered).collect::<Vec<_>>() {
            entry.batch.set_result(self.result);
            if entry.room.bytes > 0 {
                state.settled.push(entry);
            }
        }
        state.syncing = false;
        drop(state);
        self.batches.changed.notify_all();
    }
}

impl Batches {
    /// For the file system of `root`, of device `dev`; `None` where `syncfs` is not known to tell
    /// errors, and where there is no room for any.
    pub(super) fn new(
        mm: &Mm,
        root: BorrowedFd<'_>,
        dev: u64,
        kept: Arc<KeptFds>,
    ) -> Option<Batches> {
        let magic = fd::fs_magic(root).ok()?;
        let most_bytes = BYTES.min(mm.usage().limit_bytes / 16);
        // Tests give the errors themselves, on any file system.
        let reports = cfg!(test) || reports_errors(magic, &fd::kernel_release());
        if most_bytes < SMALL || !reports {
            return None;
        }
        Some(Batches {
            fd: fd::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY).ok()?,
            xfs: magic == XFS,
            dev,
            kept,
            most_bytes,
            state: LeafMutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Bytes that wait in the kernel's cache.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().taken.bytes
    }

    /// Room for a file of `bytes` bytes; `None` if it has to go the other way.
    ///
    /// Context: no lock held. While too much is under way, waits for the medium or cleans files of a batch.
    fn reserve(&self, shared: &Arc<Shared>, bytes: u64) -> Option<Room> {
        let mm = shared.bdi.mm();
        mm.charge_used_metadata(bytes, Duration::ZERO).ok()?;
        let mut state = self.state.lock();
        loop {
            if state.stopped || !self.start(&mut state, shared) {
                drop(state);
                shared.bdi.mm().uncharge_metadata(bytes);
                return None;
            }
            if state.taken.bytes + bytes <= self.most_bytes {
                break;
            }
            // Once: threads that wait for room would wake each other.
            if state.close_open() {
                self.changed.notify_all();
            }
            let Some(settled) = state.settled.pop() else {
                state = self.changed.wait_ranked(state);
                continue;
            };
            drop(state);
            self.clean(shared, settled);
            state = self.state.lock();
        }
        let fds = usize::from(self.kept.try_keep_within_half());
        state.taken.bytes += bytes;
        state.taken.fds += fds;
        Some(Room::new(shared.clone(), Taken { bytes, fds }))
    }

    /// Starts the thread, if it does not run.
    fn start(&self, state: &mut State, shared: &Arc<Shared>) -> bool {
        if state.thread.is_none() {
            let (panics, shared) = (shared.bdi.mm().panics(), shared.clone());
            match background::spawn(NAME, panics, move || run(&shared)) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => tracing::warn!(%error, "no thread for small files"),
            }
        }
        state.thread.is_some()
    }

    /// Gives room back.
    fn release(&self, mm: &Mm, room: Taken) {
        let mut state = self.state.lock();
        state.taken.bytes -= room.bytes;
        state.taken.fds -= room.fds;
        drop(state);
        self.kept.release(room.fds);
        mm.uncharge_metadata(room.bytes);
        self.changed.notify_all();
    }

    /// A write by `file` into the batch that is open; with `room`, of a file that is new to it.
    pub(super) fn enter(&self, room: Option<Room>, file: Weak<OwnedFd>) -> Writing<'_> {
        let mut state = self.state.lock();
        let open = &mut state.open;
        open.writing += 1;
        open.used = true;
        open.file = file;
        if let Some(taken) = room.map(Room::take_over) {
            open.room.bytes += taken.bytes;
            open.room.fds += taken.fds;
        }
        let batch = open.batch.clone();
        let full = open.room.bytes >= self.most_bytes / 2;
        if full {
            state.close_open();
        }
        drop(state);
        if full {
            self.changed.notify_all();
        }
        Writing {
            batches: self,
            batch,
        }
    }

    /// Makes a batch durable.
    ///
    /// Context: no lock of this module. May block on I/O.
    ///
    /// # Errors
    /// That of `syncfs(2)`: every file of the batch is to be written again.
    pub(super) fn settle(&self, shared: &Shared, batch: &Arc<Batch>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = batch.result() {
                return result;
            }
            if state.syncing {
                state = self.changed.wait_ranked(state);
                continue;
            }
            if Arc::ptr_eq(&state.open.batch, batch) {
                state.close_open();
            }
            state = self.sync_closed(shared, state);
        }
    }

    /// Makes everything durable that is in a batch. Each batch has its result afterwards.
    ///
    /// Context: as [`Batches::settle`].
    pub(super) fn settle_open(&self, shared: &Shared) {
        let open = {
            let state = self.state.lock();
            state.open.used.then(|| state.open.batch.clone())
        };
        if let Some(batch) = open {
            let _ = self.settle(shared, &batch);
        }
    }

    /// Makes the closed batches durable, and notes the result.
    fn sync_closed<'a>(
        &'a self,
        shared: &Shared,
        mut state: RankedMutexGuard<'a, State>,
    ) -> RankedMutexGuard<'a, State> {
        state.syncing = true;
        let nr = state.closed.len();
        // A batch that is closed gets no further writes.
        let written = |entry: &Entry| {
            entry.writing > 0 && !foliocache_sync::planted!(batch_synced_beside_its_writes)
        };
        while state.closed.iter().take(nr).any(written) {
            state = self.changed.wait_ranked(state);
        }
        let mut covered = state.closed.iter().take(nr);
        let file = covered.find_map(|entry| entry.file.upgrade());
        drop(state);
        let mut syncing = Syncing {
            batches: self,
            nr,
            result: Err(Errno::EIO),
        };
        let forgotten = shared.forgotten.begin();
        let calls = &shared.sync_calls;
        let synced = calls.make(SyncCall::FileSystem, &self.fd, self.dev);
        syncing.result = synced.and_then(|()| self.flush_device(file));
        if foliocache_sync::planted!(failed_batch_taken_for_durable) {
            syncing.result = Ok(());
        }
        if let (Ok(()), Some(begun)) = (syncing.result, forgotten) {
            shared.forgotten.end(begun);
        }
        count(&shared.counters.batch_flushes);
        drop(syncing);
        self.state.lock()
    }

    /// Flushes the device's cache where `syncfs` may not have, by a `file` or a new one.
    fn flush_device(&self, file: Option<Arc<OwnedFd>>) -> Result<(), Errno> {
        if !self.xfs || foliocache_sync::planted!(device_not_flushed) {
            return Ok(());
        }
        fd::fdatasync(self.fd_to_flush(file.as_deref())?.as_fd())
    }

    /// A descriptor that is asked for errors here alone, of `file` if it can be opened again: the kernel tells an error once a descriptor, and
    /// that of the file has to tell the file's own flush.
    pub(super) fn fd_to_flush(&self, file: Option<&OwnedFd>) -> Result<OwnedFd, Errno> {
        let reopened = file.and_then(|file| fd::reopen(file.as_fd(), OFlags::RDONLY).ok());
        let new = || fd::reopen(self.fd.as_fd(), OFlags::RDWR | OFlags::TMPFILE);
        reopened.map_or_else(new, Ok)
    }

    /// Ends the thread. There are no batches afterwards.
    ///
    /// Context: waits for I/O.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let thread = state.thread.take();
        drop(state);
        self.changed.notify_all();
        if let Some(thread) = thread {
            // A panic in it is caught.
            let _ = thread.join();
        }
    }

    /// Cleans the files of a batch that has its result, and gives its room back.
    fn clean(&self, shared: &Shared, entry: Entry) {
        let mm = shared.bdi.mm();
        for node in entry
            .files
            .iter()
            .filter_map(SlabWeak::upgrade)
            .map(NodeOps)
        {
            // After a panic its pages are not clean yet, and it waits in line for the flusher.
            let _ = mm.panics().catch(NAME, || node.clean_after_batch());
        }
        self.release(mm, entry.room);
    }

    /// Has a file cleaned with its batch; false if that is under way, or over.
    fn clean_later(&self, batch: &Arc<Batch>, file: SlabWeak<DirNode>) -> bool {
        let mut state = self.state.lock();
        let is_it = |entry: &&mut Entry| Arc::ptr_eq(&entry.batch, batch);
        let entry = state.entries().find(is_it);
        entry.map(|entry| entry.files.push(file)).is_some()
    }

    /// The batch that the thread is to clean next; `None` at the end.
    fn next(&self, shared: &Shared) -> Option<Entry> {
        let mut state = self.state.lock();
        loop {
            if !state.closed.is_empty() && !state.syncing {
                state = self.sync_closed(shared, state);
                continue;
            }
            if let Some(settled) = state.settled.pop() {
                return Some(settled);
            }
            if state.stopped && !state.syncing {
                return None;
            }
            state = self.changed.wait_ranked(state);
        }
    }
}

impl TakeBack for Shared {
    fn take_back(&self, taken: Taken) {
        if let Some(batches) = &self.batches {
            batches.release(self.bdi.mm(), taken);
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.kept.release(self.state.lock().taken.fds);
    }
}

/// The thread.
fn run(shared: &Arc<Shared>) {
    let Some(batches) = &shared.batches else {
        return;
    };
    while let Some(settled) = batches.next(shared) {
        batches.clean(shared, settled);
    }
}

impl NodeOps {
    /// Writes a file that was just closed for the last time, if it is small and new: into the open batch if there
    /// is room and none of its data is written yet. Returns whether it did that. Waits for a write that is under way.
    ///
    /// Context: no lock held. May wait for the medium.
    pub(super) fn write_in_batch(&self) -> bool {
        let file = self.file();
        let Some(batches) = &self.shared.batches else {
            return false;
        };
        let fresh = {
            let mut io = file.io.lock();
            if !std::mem::take(&mut io.new) {
                return false;
            }
            io.fresh.is_some()
        };
        let small = |mapping: &SlabArc<AddressSpace>| mapping.size() <= SMALL && mapping.is_dirty();
        let Some(mapping) = file.mapping().filter(small) else {
            return false;
        };
        let bytes = mapping.size().next_multiple_of(PAGE_SIZE as u64);
        let mut room = match fresh && batches.dev == self.identity.dev {
            true => batches.reserve(&self.shared, bytes),
            false => None,
        };
        let keeps = room.as_ref().is_some_and(Room::keeps_descriptor);
        {
            let mut io = file.io.lock();
            // Unless the flusher has written it since.
            if io.fresh.is_some() {
                std::mem::swap(&mut io.room, &mut room);
            }
        }
        mapping.fdatawrite();
        let mut io = file.io.lock();
        let left = io.room.take();
        let batched = io.batched.first().filter(|batched| batched.small);
        let batch = batched.map(|batched| batched.batch.clone());
        drop(io);
        drop(left);
        let Some(batch) = batch else { return false };
        if !keeps {
            file.close_batched();
            if file.any_fd().is_some() {
                // Something besides the batch needs it.
                self.close_or_wait();
            }
        }
        if !batches.clean_later(&batch, SlabArc::downgrade(&self.0)) {
            self.clean_after_batch();
        }
        true
    }

    /// The batch of the file has its result: its pages become clean and its descriptor is closed, or it
    /// waits to be written again.
    fn clean_after_batch(&self) {
        let _closing = Closing(self);
        if !self.is_unlinked() {
            // Its pages leave the kernel's cache by a descriptor. Without one they stay until the kernel needs them.
            let _ = self.descriptors(false);
        }
        if let Some(mapping) = self.file().mapping() {
            // An error stays with the file.
            let _ = mapping.flush_written();
        }
    }
}
