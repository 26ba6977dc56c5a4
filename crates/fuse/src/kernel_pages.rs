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
//! `queue`, a [`Leaf`](Rank::Leaf), protects the inode numbers that wait for the thread.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::background::{self, Panics};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::thread::JoinHandle;
use foliocache_sync::time::{Duration, Instant, sleep};
use foliocache_sync::{Arc, Condvar};
use fuser::{INodeNo, Notifier};
use std::collections::VecDeque;

/// Most queued inodes. Pages of further ones are left to the kernel's own reclaim.
const MAX_WAITING: usize = 4096;

/// If no write came for this long, the kernel sends none.
const QUIET: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Queue {
    /// Inodes, with the offset from which to drop their pages; a negative offset means the
    /// attributes alone.
    waiting: VecDeque<(INodeNo, i64)>,
    stopped: bool,
}

/// The queue of inodes whose pages the kernel is to drop.
pub(crate) struct KernelPages {
    queue: RankedMutex<Queue>,
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

impl Default for KernelPages {
    fn default() -> KernelPages {
        KernelPages {
            queue: RankedMutex::new(Rank::Leaf, Queue::default()),
            wake: Condvar::new(),
            writes: AtomicU64::new(0),
        }
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
        self.push(ino, 0);
    }

    /// Has the kernel ask for this inode's attributes again.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        self.push(ino, -1);
    }

    fn push(&self, ino: u64, offset: i64) {
        let mut queue = self.queue.lock();
        if queue.waiting.len() < MAX_WAITING && !queue.stopped {
            queue.waiting.push_back((INodeNo(ino), offset));
            self.wake.notify_one();
        }
    }

    /// Starts the thread.
    pub(crate) fn start(
        self: &Arc<Self>,
        notifier: Notifier,
        panics: &Arc<Panics>,
    ) -> std::io::Result<JoinHandle<()>> {
        let pages = Arc::clone(self);
        background::spawn("kernel-pages", panics, move || pages.run(&notifier))
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.wake.notify_one();
    }

    fn run(&self, notifier: &Notifier) {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return;
            }
            let Some((ino, offset)) = queue.waiting.pop_front() else {
                queue = self.wake.wait_ranked(queue);
                continue;
            };
            drop(queue);
            if let Err(error) = notifier.inval_inode(ino, offset, 0) {
                tracing::debug!(%ino, %error, "the kernel did not drop what it holds");
            }
            queue = self.queue.lock();
        }
    }
}
