//! Threads of the cache that resolve faults, where the program's own do not.
//!
//! # Model
//!
//! One waits in the kernel, some wait for it. A thread that takes a fault while no other waits starts one more, so
//! that faults that wait for I/O hold up no others.
//!
//! # Locking
//!
//! `next` is held while its thread waits in the kernel. Nothing is taken under it.

use crate::paging::Userfaultfd;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_sys::event::Event;
use foliocache_sys::userfaultfd::Fault;
use std::io;

/// Threads that wait for faults while there are none: more come as all of them have one.
const LISTENING: usize = 4;

/// The cache, for a listener, which keeps it no longer than for one fault.
pub(crate) trait Resolve: Send + Sync {
    /// Resolves a fault, in a thread of the cache's.
    fn resolve(&self, address: usize, write: bool);

    /// Has one more thread take faults, if there may be one.
    fn listen(&self, listener: Arc<Listener>) -> io::Result<()>;
}

/// Where threads of the cache take faults from.
///
/// # Memory ordering
///
/// Relaxed: the count alone is looked at.
pub(crate) struct Listener {
    /// One thread waits in the kernel, the others for it.
    next: Mutex<()>,
    waiting: AtomicUsize,
    faults: Arc<Userfaultfd>,
    stop: Arc<Event>,
    cache: Weak<dyn Resolve>,
}

impl Listener {
    pub(crate) fn new(
        cache: Weak<dyn Resolve>,
        faults: &Arc<Userfaultfd>,
        stop: &Arc<Event>,
    ) -> Self {
        Self {
            next: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            faults: Arc::clone(faults),
            stop: Arc::clone(stop),
            cache,
        }
    }

    /// Waits for the next fault, or for the end.
    fn next_fault(&self) -> Option<Fault> {
        let _first = self.next.lock();
        loop {
            match self.faults.wait(self.stop.fd()) {
                Ok(true) => return None,
                Ok(false) => {}
                Err(error) => panic!("cannot wait for faults: {error}"),
            }
            if let Ok(Some(fault)) = self.faults.next_fault() {
                return Some(fault);
            }
        }
    }

    /// Resolves faults until the end, or until enough other threads wait for some.
    pub(crate) fn run(self: Arc<Self>, panics: &Panics) {
        while self.joins() {
            let fault = self.next_fault();
            let last = self.waiting.fetch_sub(1, Ordering::Relaxed) == 1;
            let (Some(fault), Some(cache)) = (fault, self.cache.upgrade()) else {
                return;
            };
            // At the limit, or without a thread, others have to wait until this one comes back.
            if last && let Err(error) = cache.listen(Arc::clone(&self)) {
                tracing::warn!(%error, "no further thread for faults");
            }
            panics.catch("foliocache-fault", || {
                cache.resolve(fault.address, fault.write())
            });
        }
    }

    /// Counts one more thread that waits, unless there are enough.
    fn joins(&self) -> bool {
        let more = |waiting| (waiting < LISTENING).then_some(waiting + 1);
        let joined = (self.waiting).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        joined.is_ok()
    }
}
