//! [`Reaper`]: a thread that frees what a file system has given up, once nobody reads it any more.
//!
//! # Model
//!
//! Callers free what they gave up when enough of it waits, or when they need the memory. The rest
//! would wait for ever in an idle process, and a file that nobody can open would keep its space. So when something
//! is given up and nothing waited before, this thread wakes up, and looks every [`PERIOD`] until nothing waits. The
//! first look comes a period after the wake-up: a wake-up and a grace period for each name that goes would cost
//! more than the name.
//!
//! # Locking
//!
//! No lock of its own. The thread blocks for whatever dropping an inode does.
//!
//! # Memory ordering
//!
//! `stop` is stored with `Release` before the thread is unparked, and loaded with `Acquire`: what the owner did
//! before is over. To unpark is to release, too: the thread sees what was given up before, and looks again if it
//! was on its way to sleep.
//!
//! # Differences from Linux
//!
//! The threads of `call_rcu` serve the whole kernel. Here each file system has one, so that a store that does
//! not answer holds up no other.

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::{self, Panics};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::time::{Duration, sleep};
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use std::task::{Wake, Waker};

/// Time between two looks: some grace periods of an idle process.
const PERIOD: Duration = Duration::from_millis(1);

/// The thread, which ends soon after this is dropped.
pub(crate) struct Reaper(Arc<Shared>);

#[derive(Default)]
struct Shared {
    thread: OnceLock<thread::Thread>,
    stop: AtomicBool,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

impl Reaper {
    /// Starts the thread. It calls `reap`, which frees what it can without waiting and returns how much still
    /// waits. What a panic kept it from freeing is looked at again.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn start(
        panics: &Arc<Panics>,
        reap: impl Fn() -> usize + Send + 'static,
    ) -> Result<Reaper, Errno> {
        let shared = Arc::<Shared>::default();
        let in_thread = Arc::clone(&shared);
        let run = move || {
            // Acquire pairs with the Release in `drop`.
            while !in_thread.stop.load(Ordering::Acquire) {
                if reap() == 0 {
                    thread::park();
                }
                // After a wake-up, too: what is given up one by one is freed together.
                sleep(PERIOD);
            }
        };
        let handle = background::spawn("foliocache-reap", panics, run).map_err(Errno::from)?;
        let _ = shared.thread.set(handle.thread().clone());
        Ok(Reaper(shared))
    }

    /// What wakes the thread. Takes no lock, so it may be used in a read section.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.0.wake_by_ref();
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // Release pairs with the Acquire in the thread.
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::atomic::AtomicU64;

    #[test]
    fn the_reaper_outlives_panics_and_counts_them() {
        let panics = Arc::new(Panics::new(|_, _| {}));
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        // What a call that panics left is still there for the next.
        let reap = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => panic!("injected by the test"),
            call => usize::from(call < 5),
        };
        let _reaper = Reaper::start(&panics, reap).expect("a thread");
        while calls.load(Ordering::Relaxed) < 6 {
            sleep(PERIOD);
        }
        assert_eq!(panics.count(), 2);
    }
}
