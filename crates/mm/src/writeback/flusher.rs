//! The flusher: one thread per file system that writes dirty files back.
//!
//! # Model
//!
//! It works when the background limit is passed, when memory is short, and when data has been
//! dirty for long enough; in turns over the dirty files, so that none waits for a large one.
//!
//! # Locking
//!
//! *Protects*: the requests. *Order*: leaf. *May block*: the thread only.

use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Condvar, Mutex, Weak, thread};
use foliocache_sys::{Errno, clock};

use crate::bdi::BackingDevInfo;
use crate::stats::Count;
use foliocache_sync::atomic::Ordering;

/// Pages of one file written before it is the next file's turn: 16 MiB.
const TURN: u64 = 4096;

/// Rest of the thread after a panic of the store's code.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// The thread and what it is asked to do.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Requests>,
    wake: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    /// Something became dirty: from now on there is data to grow old.
    dirty: bool,
    /// The background limit is passed.
    background: bool,
    /// Memory is short: write, and flush early.
    memory: bool,
    stop: bool,
}

impl Flusher {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    pub(crate) fn start(&self, bdi: Weak<BackingDevInfo>) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let mut period = None;
            while let Some(requests) = shared.wait(period) {
                let Some(bdi) = bdi.upgrade() else { return };
                period = bdi.flush_round_or_survive(requests.memory);
            }
        };
        let handle = thread::Builder::new()
            .name("foliocache-flush".into())
            .spawn(run)
            .map_err(Errno::from)?;
        *self.thread.lock() = Some(handle);
        Ok(())
    }

    fn request(&self, set: impl FnOnce(&mut Requests)) {
        set(&mut self.shared.requests.lock());
        self.shared.wake.notify_one();
    }

    /// There is a first dirty file.
    pub(crate) fn wake(&self) {
        self.request(|requests| requests.dirty = true);
    }

    /// The background limit is passed.
    pub(crate) fn wake_background(&self) {
        self.request(|requests| requests.background = true);
    }

    /// Memory is short.
    pub(crate) fn wake_for_memory(&self) {
        self.request(|requests| requests.memory = true);
    }

    /// Ends the thread and waits for it, unless this is it.
    pub(crate) fn stop(&self) {
        self.request(|requests| requests.stop = true);
        let Some(handle) = self.thread.lock().take() else {
            return;
        };
        if handle.thread().id() != thread::current().id() {
            // A panic of the flusher was reported when it happened.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Sleeps until there is something to do, at most `period`; `None` to end.
    fn wait(&self, period: Option<Duration>) -> Option<Requests> {
        let mut requests = self.requests.lock();
        let idle = |r: &Requests| !(r.dirty || r.background || r.memory || r.stop);
        match period {
            Some(period) if idle(&requests) => {
                requests = self.wake.wait_timeout(requests, period).0;
            }
            Some(_) => {}
            None => {
                while idle(&requests) {
                    requests = self.wake.wait(requests);
                }
            }
        }
        let taken = std::mem::take(&mut *requests);
        requests.stop = taken.stop;
        (!taken.stop).then_some(taken)
    }
}

impl BackingDevInfo {
    /// [`Self::flush_round`], where a panic of the store's code does not end writeback: the data
    /// is dirty still, and the next round tries again.
    fn flush_round_or_survive(&self, memory: bool) -> Option<Duration> {
        let round = std::panic::AssertUnwindSafe(|| self.flush_round(memory));
        std::panic::catch_unwind(round).unwrap_or_else(|_| {
            tracing::error!(name = self.name(), "writeback panicked; it is tried again");
            self.set_error(Some(Errno::EIO));
            Some(PANIC_PAUSE)
        })
    }

    /// Goes once through the dirty files; returns how long to sleep, `None` if there is nothing to
    /// wait for.
    fn flush_round(&self, memory: bool) -> Option<Duration> {
        let expire = self.mm().config.dirty_expire;
        let mut progress = true;
        while progress {
            progress = false;
            for _ in 0..self.nr_dirty_files() {
                let file = self.next_dirty_file()?;
                let (background, limit) = self.dirty_limits();
                let over = self.nr_not_durable() > background;
                // Relaxed: changes under the list's lock; only its age matters.
                let since = file.dirtied_when.load(Ordering::Relaxed);
                let age = clock::monotonic_ns().saturating_sub(since);
                let expired = u128::from(age) >= expire.as_nanos();
                if !(memory || over || expired) {
                    continue;
                }
                let unstable = || self.counts.get(Count::Unstable);
                let full = || self.nr_not_durable() >= limit;
                let flush = || memory || expired || unstable() >= background / 2 || full();
                progress |= file.background_writeback(TURN, flush) && over && !memory;
            }
        }
        // Old enough, a retry that is due, or a request: whichever comes first.
        (self.nr_dirty_files() > 0).then(|| (expire / 5).max(Duration::from_millis(50)))
    }
}
