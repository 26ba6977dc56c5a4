//! The background reclaimer: a thread that keeps free frames above the low watermark, gives back what
//! is held beyond the limit, and moves folios together when larger chunks are missing.
//!
//! # Locking
//!
//! *Protects*: the request flags. *Order*: leaf. *May block*: the thread only. `giving_back` lets one thread at
//! a time give memory back; *order*: before every lock of memory, held over waits for folios and for RCU.

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Condvar, Mutex, MutexGuard, background, thread};
use foliocache_sys::Errno;

use super::compact::{self, Passes};
use crate::mm::Mm;

/// Frames evicted before the thread looks at the watermarks again.
const BATCH: usize = 128;

/// How often the thread looks at the limit and the node pool unasked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often it tries to give back what is held beyond the limit: data is being written meanwhile.
const EXCESS_PERIOD: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Background {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    giving_back: Mutex<()>,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Requests>,
    wake: Condvar,
    /// A wake-up is on its way: the fast path asks without the lock.
    woken: AtomicBool,
}

#[derive(Debug, Default)]
struct Requests {
    work: bool,
    stop: bool,
}

impl Background {
    /// Starts the thread, which holds the cache only while it works.
    pub(crate) fn start(&self, mm: &Arc<Mm>) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let panics = mm.panics();
        let mm = Arc::downgrade(mm);
        let run = move || {
            let mut period = PERIOD;
            let mut passes = Passes::default();
            while shared.wait(period) {
                let Some(mm) = mm.upgrade() else { return };
                period = mm.balance(&mut passes);
            }
        };
        let handle = background::spawn("foliocache-reclaim", panics, run).map_err(Errno::from)?;
        *self.thread.lock() = Some(handle);
        Ok(())
    }

    /// Waits for whoever else gives memory back.
    ///
    /// Context: may block for as long as that takes; no lock that freeing memory could need.
    pub(crate) fn giving_back(&self) -> MutexGuard<'_, ()> {
        self.giving_back.lock()
    }

    /// As [`Background::giving_back`]; `None` if somebody does so now.
    pub(crate) fn try_giving_back(&self) -> Option<MutexGuard<'_, ()>> {
        self.giving_back.try_lock()
    }

    /// Asks for work. Cheap when asked already.
    pub(crate) fn wake(&self) {
        // Relaxed: the flag only saves lock acquisitions; a wake-up that is missed because the
        // thread clears it now is made good by its next look at the watermarks, or its period.
        if self.shared.woken.swap(true, Ordering::Relaxed) {
            return;
        }
        self.shared.requests.lock().work = true;
        self.shared.wake.notify_one();
    }

    /// Stops the thread and waits for it, unless this is the thread.
    pub(crate) fn stop(&self) {
        self.shared.requests.lock().stop = true;
        self.shared.wake.notify_one();
        let Some(handle) = self.thread.lock().take() else {
            return;
        };
        if handle.thread().id() != thread::current().id() {
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Sleeps until there is work, at most `period`; false when the thread is to end.
    fn wait(&self, period: Duration) -> bool {
        let mut requests = self.requests.lock();
        if !requests.work && !requests.stop {
            requests = self.wake.wait_timeout(requests, period).0;
        }
        requests.work = false;
        // Relaxed: see `wake`.
        self.woken.store(false, Ordering::Relaxed);
        !requests.stop
    }
}

impl Mm {
    /// One round of the background reclaimer; returns how long it may sleep unasked.
    fn balance(&self, passes: &mut Passes) -> Duration {
        self.nodes.advance();
        let mut period = PERIOD;
        if self.frames.excess() > 0 {
            if let Some(alone) = self.background.try_giving_back() {
                self.give_back_excess(alone);
            }
            if self.frames.excess() > 0 {
                // Most of what stayed waits to be written.
                self.request_writeback();
                period = EXCESS_PERIOD;
            }
        }
        let nodes = self.nodes.stats();
        if self.frames.below_high(0) && nodes.free > nodes.nodes / 2 {
            // Files that were sparse or large are gone: what their indexes had serves as frames.
            self.nodes.shrink();
        }
        if self.frames.below_high(0) {
            self.shrink_caches(u64::MAX);
        }
        self.make_room_ahead();
        while self.frames.below_high(self.spare_for_compaction()) {
            if self.shrink_lru(BATCH) == 0 {
                // Nothing clean: writeback has been asked for and will make some.
                break;
            }
        }
        self.compact(passes);
        match self.frames.is_fragmented() {
            true => period.min(compact::PAUSE),
            false => period,
        }
    }
}
