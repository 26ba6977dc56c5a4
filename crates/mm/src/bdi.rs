//! One file system's share of the cache: dirty accounting, throttling, and its flusher.
//!
//! # Model
//!
//! ```text
//!   pages not durable (dirty + writeback + unstable)
//!   0 ─────────── background ──────── freerun ───────────── limit
//!      nobody waits   │ flusher works    │ writers pause,      │ writers sleep until
//!                     │                  │ longer and longer   │ the flusher made room
//! ```
//!
//! The limits are shares of the bound. A file system alone with dirty pages has all of it; several
//! share it evenly, so that one whose backing store is slow or dead leaves the others theirs.
//!
//! # Invariants
//!
//! 1. A file with dirty or unstable pages is on its file system's list, which keeps it alive.
//! 2. Failed pages of all file systems together pass a quarter of the bound only by what was
//!    under way: beyond it, or once its own share of the dirty limit is used up, writes to a file
//!    system that has failed pages return its error.
//!
//! 3. Dirty pages of all file systems together leave a quarter of what memory file systems leave,
//!    but for 16 pages a file system: readers can go on however many stores hang.
//!
//! # Memory ordering
//!
//! Counts, limits and estimates are Relaxed: they steer. `on_dirty_list` against the file's page
//! counts is a Dekker pair, by two SeqCst fences, each the other's partner.
//!
//! # Locking
//!
//! *Protects*: the list of dirty files. *Order*: after `xa_lock`. *May block*: no lock here is
//! held over I/O or sleep; [`BackingDevInfo::balance_dirty_pages`] sleeps without one.

use foliocache_sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::time::Instant;
use foliocache_sync::{Arc, Condvar, Mutex};
use foliocache_sys::{Errno, clock};
use std::collections::VecDeque;
use std::time::Duration;

use crate::address_space::AddressSpace;
use crate::error::MmError;
use crate::mm::Mm;
use crate::stats::{Count, PageCounts, bump};
use crate::types::PAGE_SIZE;
use crate::writeback::Flusher;

/// What backs the files of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BdiKind {
    /// A store that pages are read from and written to.
    Storage,
    /// Nothing: the cache is the store. Pages are never written back nor evicted, and may take up
    /// to half the bound.
    Memory,
}

/// Longest pause of a throttled writer at a time.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Where the estimate of the write bandwidth starts, bytes a second.
const INITIAL_BANDWIDTH: u64 = 100 << 20;

/// One file system's dirty accounting and flusher.
#[doc(alias = "backing_dev_info")]
#[derive(Debug)]
pub struct BackingDevInfo {
    mm: Arc<Mm>,
    name: String,
    kind: BdiKind,
    pub(crate) counts: PageCounts,
    dirty_files: RankedMutex<VecDeque<Arc<AddressSpace>>>,
    pub(crate) flusher: Flusher,
    /// Bytes a second that writeback reached lately.
    bandwidth: AtomicU64,
    /// The newest error of writing to this file system; 0 when writing works.
    error: AtomicI32,
    /// Sleepers over the limit, woken when pages became durable.
    progress: (Mutex<()>, Condvar),
    stopped: AtomicBool,
}

impl BackingDevInfo {
    /// Accounting and flusher for a file system that `name` names in messages.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn new(mm: &Arc<Mm>, name: impl Into<String>, kind: BdiKind) -> Result<Arc<Self>, MmError> {
        let bdi = Arc::new(Self {
            mm: Arc::clone(mm),
            name: name.into(),
            kind,
            counts: PageCounts::default(),
            dirty_files: RankedMutex::new(Rank::BdiList, VecDeque::new()),
            flusher: Flusher::new(),
            bandwidth: AtomicU64::new(INITIAL_BANDWIDTH),
            error: AtomicI32::new(0),
            progress: (Mutex::new(()), Condvar::new()),
            stopped: AtomicBool::new(false),
        });
        if kind == BdiKind::Storage {
            bdi.flusher
                .start(Arc::downgrade(&bdi))
                .map_err(MmError::Setup)?;
            mm.add_bdi(&bdi);
        }
        Ok(bdi)
    }

    /// The cache.
    #[inline]
    pub fn mm(&self) -> &Arc<Mm> {
        &self.mm
    }

    /// The file system's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the cache itself is the store.
    #[inline]
    pub fn is_memory(&self) -> bool {
        self.kind == BdiKind::Memory
    }

    /// Files that have data not yet safely on the medium.
    pub fn dirty_files(&self) -> Vec<Arc<AddressSpace>> {
        self.dirty_files.lock().iter().cloned().collect()
    }

    /// Pages not safely on the medium: dirty, under writeback and unstable together.
    pub fn nr_not_durable(&self) -> u64 {
        self.counts.not_durable()
    }

    /// The error that writing to this file system ended with lately; `None` when it works.
    pub fn error(&self) -> Option<Errno> {
        // Relaxed: a report; the pages' own state is ordered by their locks.
        match self.error.load(Ordering::Relaxed) {
            0 => None,
            raw => Some(Errno::from_raw(raw)),
        }
    }

    /// Notes how a write or flush ended. An error stays until no page is failed any more: that
    /// another file can be written takes nothing back.
    pub(crate) fn set_error(&self, error: Option<Errno>) {
        if error.is_none() && self.counts.get(Count::Failed) > 0 {
            return;
        }
        let raw = error.map_or(0, Errno::raw);
        // Relaxed: see `error`.
        if self.error.load(Ordering::Relaxed) != raw {
            self.error.store(raw, Ordering::Relaxed);
        }
    }

    /// Puts a file on the list of dirty files, if it is not there.
    pub(crate) fn queue_dirty(&self, mapping: &Arc<AddressSpace>) {
        // Partner: the fence in `unqueue_if_durable`. Either that sees the page counted before this
        // call, or this sees the flag cleared.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence; the flag changes under the list's lock.
        if mapping.on_dirty_list.load(Ordering::Relaxed) {
            return;
        }
        let first = {
            let mut files = self.dirty_files.lock();
            if mapping.on_dirty_list.swap(true, Ordering::Relaxed) {
                return;
            }
            mapping
                .dirtied_when
                .store(clock::monotonic_ns(), Ordering::Relaxed);
            files.push_back(Arc::clone(mapping));
            if files.len() == 1 {
                self.mm.nr_dirty_bdis.fetch_add(1, Ordering::Relaxed);
            }
            files.len() == 1
        };
        if first {
            self.flusher.wake();
        }
    }

    /// The next file for the flusher, moved to the end of the list.
    pub(crate) fn next_dirty_file(&self) -> Option<Arc<AddressSpace>> {
        let mut files = self.dirty_files.lock();
        let file = files.pop_front()?;
        files.push_back(Arc::clone(&file));
        Some(file)
    }

    pub(crate) fn nr_dirty_files(&self) -> usize {
        self.dirty_files.lock().len()
    }

    /// Takes a file off the list if it is durable now. What was taken off is dropped unlocked.
    pub(crate) fn unqueue_if_durable(&self, mapping: &Arc<AddressSpace>) {
        let mut files = self.dirty_files.lock();
        if mapping.is_dirty() {
            return;
        }
        let Some(at) = files.iter().position(|file| Arc::ptr_eq(file, mapping)) else {
            return;
        };
        mapping.on_dirty_list.store(false, Ordering::Relaxed);
        mapping.dirtied_when.store(0, Ordering::Relaxed);
        let file = files.remove(at);
        if files.is_empty() {
            self.mm.nr_dirty_bdis.fetch_sub(1, Ordering::Relaxed);
        }
        drop(files);
        // Partner: the fence in `queue_dirty`.
        fence(Ordering::SeqCst);
        // A writer may have dirtied it after the look above and seen the flag still set.
        if mapping.is_dirty() {
            self.queue_dirty(mapping);
        }
        drop(file);
    }

    /// This file system's limits now, in pages: background, and where writers sleep.
    pub(crate) fn dirty_limits(&self) -> (u64, u64) {
        let frames = self.mm.frames.capacity();
        // Relaxed: counts that steer.
        let share = self.mm.nr_dirty_bdis.load(Ordering::Relaxed).max(1);
        let unevictable = self.mm.nr_unevictable.load(Ordering::Relaxed);
        let percent = |percent: u32| frames * u64::from(percent) / 100 / share;
        // What others hold and cannot write must leave readers something (invariant 3).
        let others = self
            .mm
            .counts
            .not_durable()
            .saturating_sub(self.counts.not_durable());
        let ceiling = frames.saturating_sub(unevictable) / 4 * 3;
        let config = &self.mm.config;
        let limit = percent(config.dirty_percent)
            .min(ceiling.saturating_sub(others))
            .max(16);
        let background = percent(config.dirty_background_percent)
            .min(limit / 2)
            .max(8);
        (background, limit)
    }

    /// The stored error, when this file system has failed pages and waiting for room would not
    /// end: they passed the cap of all, or its own share is used up (invariant 2).
    pub(crate) fn check_failed_cap(&self) -> Result<(), Errno> {
        if self.counts.get(Count::Failed) == 0 {
            return Ok(());
        }
        let over_cap = self.mm.counts.get(Count::Failed) >= self.mm.frames.capacity() / 4;
        if over_cap || self.counts.not_durable() >= self.dirty_limits().1 {
            return Err(self.error().unwrap_or(Errno::EIO));
        }
        Ok(())
    }

    /// Lets a writer that just dirtied `pages` pages wait its share.
    ///
    /// Context: sleeps; the caller may hold `i_rwsem`, no lock that writeback takes.
    ///
    /// # Errors
    /// The stored error of the file system when failed pages passed their cap.
    pub(crate) fn balance_dirty_pages(
        &self,
        mapping: &AddressSpace,
        pages: u64,
    ) -> Result<(), Errno> {
        let (background, limit) = self.dirty_limits();
        let freerun = (background + limit) / 2;
        let held = self.counts.not_durable();
        if held > background {
            self.flusher.wake_background();
        }
        if held <= freerun {
            return Ok(());
        }
        let start = Instant::now();
        let result = self.throttle(pages);
        bump(
            &mapping.counters.throttled_ns,
            start.elapsed().as_nanos() as u64,
        );
        result
    }

    /// Whether a writer may dirty pages now without having to pause for it. Sets the flusher to work
    /// where that is due; does not block.
    pub(crate) fn may_dirty(&self) -> bool {
        if self.is_memory() {
            return true;
        }
        let (background, limit) = self.dirty_limits();
        let held = self.counts.not_durable();
        if held > background {
            self.flusher.wake_background();
        }
        held <= (background + limit) / 2
    }

    fn throttle(&self, pages: u64) -> Result<(), Errno> {
        loop {
            self.check_failed_cap()?;
            let (background, limit) = self.dirty_limits();
            let freerun = (background + limit) / 2;
            let held = self.counts.not_durable();
            if held <= freerun {
                return Ok(());
            }
            if held < limit {
                self.wait_for_progress(held, self.pause(pages, held, freerun, limit));
                return Ok(());
            }
            // Relaxed: at worst one more turn.
            if self.stopped.load(Ordering::Relaxed) {
                return Err(self.error().unwrap_or(Errno::EIO));
            }
            self.flusher.wake_background();
            self.wait_for_progress(held, MAX_PAUSE);
        }
    }

    /// How long a writer of `pages` pages pauses: as long as the device takes for them where the
    /// zone begins, and the longer the nearer the limit is.
    fn pause(&self, pages: u64, held: u64, freerun: u64, limit: u64) -> Duration {
        // Relaxed: an estimate.
        let bandwidth = self.bandwidth.load(Ordering::Relaxed).max(1 << 16);
        let nanoseconds = pages * PAGE_SIZE as u64 * 1_000_000_000 / bandwidth;
        let left = (limit - held).max(1);
        let pause = nanoseconds.saturating_mul(limit - freerun) / left;
        Duration::from_nanos(pause).min(MAX_PAUSE)
    }

    /// Sleeps until fewer than `held` pages are left to be made durable, or `longest` is over.
    fn wait_for_progress(&self, held: u64, longest: Duration) {
        let guard = self.progress.0.lock();
        // Looked at under the lock that `note_progress` takes after the counts went down.
        if self.counts.not_durable() >= held {
            drop(self.progress.1.wait_timeout(guard, longest));
        }
    }

    /// Tells sleepers that pages became durable.
    pub(crate) fn note_progress(&self) {
        drop(self.progress.0.lock());
        self.progress.1.notify_all();
    }

    /// Takes a finished write of `bytes` bytes into the bandwidth estimate.
    pub(crate) fn note_written(&self, bytes: u64, took: Duration) {
        let nanoseconds = (took.as_nanos() as u64).max(1000);
        let now = bytes.saturating_mul(1_000_000_000) / nanoseconds;
        // Relaxed: an estimate; an update lost to another is no harm.
        let before = self.bandwidth.load(Ordering::Relaxed);
        self.bandwidth
            .store(before - before / 8 + now / 8, Ordering::Relaxed);
    }

    /// Ends the flusher. What is still dirty stays in the cache and is not written any more, and a
    /// writer that reaches the limit gets an error. Does nothing in a forked child.
    ///
    /// Context: waits for the flusher's I/O.
    pub fn stop(&self) {
        if self.mm.check_fork().is_err() {
            return;
        }
        // Relaxed: only one caller may do it; the thread is told through its lock.
        if !self.stopped.swap(true, Ordering::Relaxed) {
            self.flusher.stop();
        }
    }
}

impl Drop for BackingDevInfo {
    fn drop(&mut self) {
        self.stop();
    }
}
