//! Drops pages from the kernel's cache that a mapping brought there.
//!
//! # Model
//!
//! The kernel keeps the pages of a mapped file in its own cache, outside our bound. The close of
//! the last handle means that the file is no longer mapped, and the kernel is then told to drop the
//! pages. Before it does, it may have to wait for requests to this mount, so a thread that serves
//! no requests tells it.
//!
//! The kernel sends stores of programs into mappings as writes that no caller waits for. They are counted for the
//! end of the mount: `syncfs(2)` does not wait for them and need not send all of them (decision 45).
//!
//! # Memory ordering
//!
//! `writes` only counts; nothing is published through it: every access is `Relaxed`.
//!
//! # Locking
//!
//! `queue`, a [`Leaf`](foliocache_sync::rank::Rank::Leaf), protects the inode numbers that wait for the thread.

use crate::device::Device;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::time::{Duration, Instant, sleep};
use foliocache_sync::{Arc, Condvar};
use std::collections::VecDeque;

/// Most queued inodes. Pages of further ones are left to the kernel's own reclaim.
const MAX_WAITING: usize = 4096;

/// If no write came for this long, the kernel sends none.
const QUIET: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Queue {
    /// Inodes, and whether to drop their pages; else the attributes alone.
    waiting: VecDeque<(u64, bool)>,
    stopped: bool,
}

/// The queue of inodes whose pages the kernel is to drop.
#[derive(Default)]
pub(crate) struct KernelPages {
    queue: LeafMutex<Queue>,
    wake: Condvar,
    /// Writes from the kernel's cache: those under way in the lower half, all that ever came in the
    /// upper.
    writes: AtomicU64,
}

/// A write from the kernel's cache, until its answer.
pub(crate) struct CacheWrite(Arc<KernelPages>);

impl Drop for CacheWrite {
    fn drop(&mut self) {
        // Relaxed: see the module's header.
        self.0.writes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl KernelPages {
    /// A write from the kernel's cache arrived.
    pub(crate) fn write_begins(self: &Arc<Self>) -> CacheWrite {
        // Relaxed: see the module's header.
        self.writes.fetch_add(1 << 32 | 1, Ordering::Relaxed);
        CacheWrite(Arc::clone(self))
    }

    /// Writes from the kernel's cache that have come so far.
    pub(crate) fn writes_begun(&self) -> u32 {
        // Relaxed: see the module's header.
        (self.writes.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Waits until no write from the kernel's cache is under way, and either more than `begun` have come or none
    /// comes. Returns whether any came.
    pub(crate) fn wait_for_writes(&self, begun: u32) -> bool {
        let mut quiet_since = Instant::now();
        loop {
            // Relaxed: see the module's header.
            let under_way = self.writes.load(Ordering::Relaxed) as u32 > 0;
            let came = self.writes_begun() != begun;
            if under_way {
                quiet_since = Instant::now();
            } else if came || quiet_since.elapsed() >= QUIET {
                return came;
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// Has the kernel drop the pages of this inode, which is no longer mapped.
    pub(crate) fn drop_pages(&self, ino: u64) {
        self.push(ino, true);
    }

    /// Has the kernel ask for this inode's attributes again.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        self.push(ino, false);
    }

    fn push(&self, ino: u64, pages: bool) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() < MAX_WAITING && !queue.stopped {
            queue.waiting.push_back((ino, pages));
            self.wake.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.wake.notify_one();
    }

    /// The thread's work, until [`stop`](Self::stop).
    pub(crate) fn run(&self, device: &Device) {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return;
            }
            let Some((ino, pages)) = queue.waiting.pop_front() else {
                queue = self.wake.wait_ranked(queue);
                continue;
            };
            drop(queue);
            if let Err(error) = device.forget_attributes(ino, pages) {
                tracing::debug!(%ino, %error, "the kernel did not drop what it holds");
            }
            queue = self.queue.lock();
        }
    }
}
