//! The hand-off of the io_uring engine to its worker, by its own source text over the locks of a model.
//! A wake-up that is lost shows itself as a deadlock.
#![cfg(loom)]

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, Condvar, Mutex, thread};
use std::collections::VecDeque;

/// Replaces the module that the engine uses.
mod lock {
    pub(crate) use foliocache_sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }
}

#[path = "../../sys/src/uring/engine/handoff.rs"]
mod handoff;

const BROKEN: u32 = 5;

struct Engine {
    handoff: handoff::Handoff<usize, (), u32>,
    /// The eventfd: how often it was written.
    wakes: Mutex<u32>,
    woken: Condvar,
    /// How often each request ended.
    ended: [AtomicU64; 2],
}

impl Engine {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            handoff: handoff::Handoff::new(),
            wakes: Mutex::new(0),
            woken: Condvar::new(),
            ended: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn wake_if(&self, asleep: bool) {
        if asleep {
            *self.wakes.lock() += 1;
            self.woken.notify_one();
        }
    }

    fn end(&self, request: usize) {
        // Relaxed: read after all threads were joined.
        self.ended[request].fetch_add(1, Ordering::Relaxed);
    }

    fn end_all(&self, requests: VecDeque<usize>) {
        requests.into_iter().for_each(|request| self.end(request));
    }

    fn submit(&self, request: usize) {
        if let Err((request, error)) = self.handoff.put(request, || Ok(())) {
            assert_eq!(error, BROKEN);
            self.end(request);
        }
        self.wake_if(self.handoff.wake());
    }

    /// Works until it is closed. With `fails` it breaks down after the first look that found something.
    fn work(&self, fails: bool) {
        let mut seen = 0;
        loop {
            let (requests, closing) = self.handoff.take();
            let broken = fails && !requests.is_empty();
            if broken {
                self.end_all(self.handoff.fail(BROKEN));
            }
            self.end_all(requests);
            if closing || broken {
                return;
            }
            let mut wakes = self.wakes.lock();
            while *wakes == seen {
                wakes = self.woken.wait(wakes);
            }
            seen = *wakes;
        }
    }

    fn close(&self) {
        let (_, asleep) = self.handoff.close();
        self.wake_if(asleep);
    }

    fn check(&self) {
        let ended = |ended: &AtomicU64| ended.load(Ordering::Relaxed);
        assert!(self.ended.iter().all(|count| ended(count) == 1));
    }
}

fn submitter(engine: &Arc<Engine>, request: usize) -> thread::JoinHandle<()> {
    let engine = Arc::clone(engine);
    thread::spawn(move || engine.submit(request))
}

#[test]
fn each_request_ends_once_and_the_worker_too() {
    explore(3, 1900, || {
        let engine = Engine::new();
        let worker = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.work(false))
        };
        for submitter in [0, 1].map(|request| submitter(&engine, request)) {
            submitter.join().unwrap();
        }
        engine.close();
        worker.join().unwrap();
        engine.check();
    });
}

#[test]
fn a_worker_that_breaks_down_leaves_no_request() {
    explore(3, 600, || {
        let engine = Engine::new();
        let worker = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.work(true))
        };
        for submitter in [0, 1].map(|request| submitter(&engine, request)) {
            submitter.join().unwrap();
        }
        worker.join().unwrap();
        engine.check();
        assert_eq!(engine.handoff.failed(), Some(BROKEN));
    });
}
