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
//! `syncfs` tells of a failed write once a descriptor that was open before it. One descriptor, opened
//! with the file system, is asked for all batches. An error that it tells may be of any file written
//! since it was asked last, so it fails the batches that the call was for and the one that is open.
//! Where `syncfs` is not known to tell errors there are no batches.
//!
//! Any thread that flushes a file of a batch makes the batch durable. A thread of the file system's own
//! does so when a batch is full, and cleans the files of each batch afterwards.
//!
//! # Invariants
//!
//! 1. A file is entered into the open batch before it is written, and a batch is made durable after
//!    the last such write has ended.
//! 2. The bytes that wait in the kernel's cache are charged to the bound before they are written, and
//!    until the batch of the file is cleaned. There are never more than `most_bytes` of them.
//! 3. A file of a batch keeps its descriptor until its pages are clean. There are at most
//!    `2 * most_files` such files, and those being closed.
//!
//! # Locking
//!
//! `state` is a leaf, and so is a batch's list of files. Neither is held over I/O. A thread that makes a
//! batch durable may hold `wb_lock` of a file: it waits for writes that are under way, and these wait
//! for nothing but the kernel.

use super::Shared;
use super::node::DirNode;
use super::stats::count;
use foliocache_mm::{AddressSpace, Mm, PAGE_SIZE};
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::{Arc, Condvar, Mutex, MutexGuard, Weak, thread};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, BorrowedFd, OFlags, OwnedFd};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The longest file that is small.
pub(super) const SMALL: u64 = 64 << 10;
/// Files that fill a batch.
const FILES: usize = 1000;
/// Most bytes that wait in the kernel's cache.
const BYTES: u64 = 16 << 20;

/// `statfs.f_type` of ext2, ext3 and ext4.
const EXT4_MAGIC: u64 = 0xef53;
/// `statfs.f_type` of XFS.
const XFS_MAGIC: u64 = 0x5846_5342;

/// Whether `syncfs(2)` of a file system with this `statfs.f_type` tells of every error: tried with disks
/// that fail. Overlay tells the first who asks, FUSE nobody.
pub(super) fn tells_of_errors(magic: u64) -> bool {
    matches!(magic, EXT4_MAGIC | XFS_MAGIC)
}

/// Files that become durable together.
pub(super) struct Batch {
    result: OnceLock<Result<(), Errno>>,
    /// What is to be cleaned afterwards; `None` once that is under way.
    files: Mutex<Option<Vec<Weak<DirNode>>>>,
}

/// A batch that is not cleaned yet.
struct Entry {
    batch: Arc<Batch>,
    files: usize,
    bytes: u64,
    /// Writes under way.
    writing: usize,
    /// Whether there ever was one.
    used: bool,
}

impl Entry {
    fn new() -> Entry {
        Entry {
            batch: Arc::new(Batch {
                result: OnceLock::new(),
                files: Mutex::new(Some(Vec::new())),
            }),
            files: 0,
            bytes: 0,
            writing: 0,
            used: false,
        }
    }
}

struct State {
    open: Entry,
    /// Closed, and not durable; the oldest first.
    closed: VecDeque<Entry>,
    /// With a result, and to be cleaned.
    settled: Vec<Entry>,
    /// Somebody makes batches durable.
    syncing: bool,
    /// Bytes and files of all of them, and of files that are about to be entered.
    bytes: u64,
    files: usize,
    thread: Option<thread::JoinHandle<()>>,
    stopped: bool,
}

impl State {
    fn close_open(&mut self) {
        if self.open.used {
            let open = std::mem::replace(&mut self.open, Entry::new());
            self.closed.push_back(open);
        }
    }

    fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        let others = self.closed.iter_mut().chain(&mut self.settled);
        std::iter::once(&mut self.open).chain(others)
    }
}

/// While it lives everything that is written goes into batches.
pub(super) struct Collecting<'a>(&'a Batches);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        // Relaxed: see the field.
        self.0.collecting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The batches of one file system.
pub(super) struct Batches {
    /// What `syncfs` is asked with. Never closed before the batches are done with.
    fd: OwnedFd,
    /// The device that it is of.
    dev: u64,
    most_files: usize,
    most_bytes: u64,
    state: Mutex<State>,
    /// Callers that make everything durable: all that is written goes into batches. Relaxed everywhere:
    /// who misses it flushes a file by itself.
    collecting: AtomicUsize,
    /// A result, a write that ended, room, something to do, the end.
    changed: Condvar,
}

/// Room for a file in the kernel's cache.
pub(super) struct Room {
    shared: Arc<Shared>,
    /// 0 once the room is a batch's.
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(batches) = &self.shared.batches
            && self.bytes > 0
        {
            batches.release(self.shared.bdi.mm(), self.bytes, 1);
        }
    }
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

impl Batches {
    /// For the file system of `root`, of device `dev`; `None` where `syncfs` is not known to tell
    /// errors, and where there is no room for any.
    pub(super) fn new(
        mm: &Mm,
        root: BorrowedFd<'_>,
        dev: u64,
        idle_files: usize,
    ) -> Option<Batches> {
        // Tests give the errors themselves, on any file system.
        let tells = cfg!(test) || fd::fs_magic(root).is_ok_and(tells_of_errors);
        let most_bytes = BYTES.min(mm.usage().limit / 16);
        let most_files = FILES.min(idle_files / 2);
        if !tells || most_bytes < SMALL || most_files == 0 {
            return None;
        }
        Some(Batches {
            fd: fd::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY).ok()?,
            dev,
            most_files,
            most_bytes,
            state: Mutex::new(State {
                open: Entry::new(),
                closed: VecDeque::new(),
                settled: Vec::new(),
                syncing: false,
                bytes: 0,
                files: 0,
                thread: None,
                stopped: false,
            }),
            collecting: AtomicUsize::new(0),
            changed: Condvar::new(),
        })
    }

    /// Begins to make everything durable.
    pub(super) fn collect(&self) -> Collecting<'_> {
        // Relaxed: see the field.
        self.collecting.fetch_add(1, Ordering::Relaxed);
        Collecting(self)
    }

    /// Whether a write of any size to a file of device `dev` goes into a batch.
    pub(super) fn collects(&self, dev: u64) -> bool {
        // Relaxed: see the field.
        self.dev == dev && self.collecting.load(Ordering::Relaxed) > 0
    }

    /// Bytes that wait in the kernel's cache.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Room for a file of `bytes` bytes; `None` if it has to go the other way.
    ///
    /// Context: no lock held. Waits for the medium while too much is under way.
    fn reserve(&self, shared: &Arc<Shared>, bytes: u64) -> Option<Room> {
        shared.bdi.mm().charge_metadata(bytes).ok()?;
        let mut state = self.state.lock();
        loop {
            if state.stopped || !self.start(&mut state, shared) {
                drop(state);
                shared.bdi.mm().uncharge_metadata(bytes);
                return None;
            }
            if state.bytes + bytes <= self.most_bytes && state.files < 2 * self.most_files {
                break;
            }
            state.close_open();
            self.changed.notify_all();
            state = self.changed.wait(state);
        }
        state.bytes += bytes;
        state.files += 1;
        Some(Room {
            shared: shared.clone(),
            bytes,
        })
    }

    /// Starts the thread, if it does not run.
    fn start(&self, state: &mut State, shared: &Arc<Shared>) -> bool {
        if state.thread.is_none() {
            let shared = shared.clone();
            let started = thread::Builder::new()
                .name("foliocache-batch".into())
                .spawn(move || run(&shared));
            match started {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => tracing::warn!(%error, "no thread for small files"),
            }
        }
        state.thread.is_some()
    }

    /// Gives room back.
    fn release(&self, mm: &Mm, bytes: u64, files: usize) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        state.files -= files;
        drop(state);
        mm.uncharge_metadata(bytes);
        self.changed.notify_all();
    }

    /// A write into the batch that is open; with `room`, of a file that is new to it.
    pub(super) fn enter(&self, mut room: Option<Room>) -> Writing<'_> {
        let mut state = self.state.lock();
        let open = &mut state.open;
        open.writing += 1;
        open.used = true;
        if let Some(room) = &mut room {
            open.files += 1;
            // The batch's from here on.
            open.bytes += std::mem::take(&mut room.bytes);
        }
        let batch = open.batch.clone();
        let full = open.files >= self.most_files || open.bytes >= self.most_bytes / 2;
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
            if let Some(&result) = batch.result.get() {
                return result;
            }
            if state.syncing {
                state = self.changed.wait(state);
                continue;
            }
            if Arc::ptr_eq(&state.open.batch, batch) {
                state.close_open();
            }
            state = self.sync_closed(shared, state);
        }
    }

    /// Makes the closed batches durable, and notes the result.
    fn sync_closed<'a>(
        &'a self,
        shared: &Shared,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        state.syncing = true;
        let nr = state.closed.len();
        // A batch that is closed gets no further writes.
        while state.closed.iter().take(nr).any(|entry| entry.writing > 0) {
            state = self.changed.wait(state);
        }
        drop(state);
        let forgotten = shared.forgotten.begin();
        let result = shared.sync_calls.syncfs(self.fd.as_fd());
        if let (Ok(()), Some(begun)) = (result, forgotten) {
            shared.forgotten.end(begun);
        }
        count(&shared.counters.batch_flushes);
        let mut state = self.state.lock();
        let covered = match result {
            Ok(()) => nr,
            Err(error) => {
                tracing::warn!(%error, "a batch of small files is not durable; it is written again");
                // The kernel tells it once, and it may be of what was written meanwhile.
                state.close_open();
                state.closed.len()
            }
        };
        for entry in state.closed.drain(..covered).collect::<Vec<_>>() {
            let noted = entry.batch.result.set(result);
            debug_assert!(noted.is_ok(), "one result for each batch");
            state.settled.push(entry);
        }
        state.syncing = false;
        self.changed.notify_all();
        state
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
            // It catches what panics.
            let _ = thread.join();
        }
    }

    /// What the thread does next; `None` at the end.
    fn next(&self, shared: &Shared) -> Option<Vec<Entry>> {
        let mut state = self.state.lock();
        loop {
            if !state.settled.is_empty() {
                return Some(std::mem::take(&mut state.settled));
            }
            if !state.closed.is_empty() && !state.syncing {
                state = self.sync_closed(shared, state);
                continue;
            }
            if state.stopped && !state.syncing {
                return None;
            }
            state = self.changed.wait(state);
        }
    }
}

/// The thread.
fn run(shared: &Arc<Shared>) {
    let Some(batches) = &shared.batches else {
        return;
    };
    while let Some(settled) = batches.next(shared) {
        for entry in settled {
            let files = entry.batch.files.lock().take().unwrap_or_default();
            for node in files.iter().filter_map(Weak::upgrade) {
                let clean = AssertUnwindSafe(|| node.clean_after_batch());
                if catch_unwind(clean).is_err() {
                    // Its pages are not clean yet: the flusher comes by.
                    tracing::error!(file = node.display_path(), "cleaning a file panicked");
                }
            }
            batches.release(shared.bdi.mm(), entry.bytes, entry.files);
        }
    }
}

impl DirNode {
    /// Writes a file that was just closed for the last time into the open batch, if it is small and new;
    /// whether it did.
    ///
    /// Context: no lock held. May wait for the medium.
    pub(super) fn write_in_batch(self: &Arc<Self>) -> bool {
        let file = self.file();
        let Some(batches) = &self.shared.batches else {
            return false;
        };
        let Some(mapping) = file.mapping().filter(|mapping| self.is_for_batch(mapping)) else {
            return false;
        };
        let bytes = mapping.size().next_multiple_of(PAGE_SIZE as u64);
        let Some(room) = batches.reserve(&self.shared, bytes) else {
            return false;
        };
        {
            let mut io = file.io.lock();
            if !io.fresh {
                return false;
            }
            io.room = Some(room);
        }
        mapping.fdatawrite();
        let mut io = file.io.lock();
        let left = io.room.take();
        let batch = io.batched.last().map(|batched| batched.batch.clone());
        drop(io);
        drop(left);
        let Some(batch) = batch else { return false };
        let mut files = batch.files.lock();
        if let Some(files) = &mut *files {
            files.push(Arc::downgrade(self));
            return true;
        }
        drop(files);
        self.clean_after_batch();
        true
    }

    fn is_for_batch(&self, mapping: &AddressSpace) -> bool {
        let fresh = || self.file().io.lock().fresh;
        let dev = self.shared.batches.as_ref().map(|batches| batches.dev);
        fresh() && mapping.size() <= SMALL && mapping.is_dirty() && dev == Some(self.identity.dev)
    }

    /// The batch of the file has its result: its pages become clean and its descriptor is closed, or it
    /// waits to be written again.
    fn clean_after_batch(self: &Arc<Self>) {
        let file = self.file();
        if let Some(mapping) = file.mapping() {
            mapping.flush_written();
        }
        self.close_or_wait();
    }
}
