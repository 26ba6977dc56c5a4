//! Background threads: the reclaimer of a cache, and the flusher of each file system.
//!
//! # Locking
//!
//! *Protects*: the requests. *Order*: leaf. *May block*: the thread only.
//!
//! # Memory ordering
//!
//! `asked` goes up with Release and down with Acquire, partners of one another: the round that follows sees what
//! callers did before they found it up and so took no lock.

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::background::{self, Panics};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Condvar, Mutex, thread};
use foliocache_sys::Errno;

/// A thread that works in rounds, when it is asked to and now and then.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Requests>,
    wake: Condvar,
    /// A wake-up is on its way: many ask, and it costs a system call.
    asked: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    work: bool,
    memory: bool,
    stop: bool,
}

impl Worker {
    /// Starts the thread, unless it runs. It holds `owner` only while it works. `round` learns whether memory is short, and
    /// says after what time the next is due unasked; the first is after `period`.
    pub(crate) fn start<T: Send + Sync + 'static>(
        &self,
        name: &'static str,
        mut period: Option<Duration>,
        panics: &Arc<Panics>,
        owner: &Arc<T>,
        mut round: impl FnMut(&T, bool) -> Option<Duration> + Send + 'static,
    ) -> Result<(), Errno> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        let (shared, owner) = (Arc::clone(&self.shared), Arc::downgrade(owner));
        let run = move || {
            while let Some(memory) = shared.wait(period) {
                let Some(owner) = owner.upgrade() else { return };
                period = round(&owner, memory);
            }
        };
        *thread = Some(background::spawn(name, panics, run)?);
        Ok(())
    }

    /// Asks for a round. Cheap when asked already.
    pub(crate) fn wake(&self) {
        if !self.shared.asked.swap(true, Ordering::Release) {
            self.shared.requests.lock().work = true;
            self.shared.wake.notify_one();
        }
    }

    pub(crate) fn wake_for_memory(&self) {
        let asked = std::mem::replace(&mut self.shared.requests.lock().memory, true);
        if !asked {
            self.shared.wake.notify_one();
        }
    }

    /// Whether the caller runs on the thread.
    pub(crate) fn is_current(&self) -> bool {
        let thread = self.thread.lock();
        (thread.as_ref()).is_some_and(|handle| handle.thread().id() == thread::current().id())
    }

    /// Ends the thread and waits for it, unless this is it.
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
    /// Sleeps until there is something to do, at most `period`; whether memory is short, `None` to end.
    fn wait(&self, period: Option<Duration>) -> Option<bool> {
        let mut requests = self.requests.lock();
        let idle = |r: &Requests| !(r.work || r.memory || r.stop);
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
        self.asked.swap(false, Ordering::Acquire);
        let taken = std::mem::take(&mut *requests);
        requests.stop = taken.stop;
        (!taken.stop).then_some(taken.memory)
    }
}
