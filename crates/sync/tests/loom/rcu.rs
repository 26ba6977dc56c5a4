//! RCU over all interleavings: a reader sees the old object or the new one, and never one that was given
//! away.
//!
//! The objects are loom cells, so "given away" is a write to the cell: loom reports a reader that is not
//! ordered with it.

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, rcu, thread};

struct Published {
    current: AtomicUsize,
    objects: [UnsafeCell<usize>; 2],
}

// SAFETY: readers access only the object that `current` named inside their read section; the writer writes an
// object before it publishes it, and after a grace period. The model checks that this suffices.
unsafe impl Sync for Published {}
// SAFETY: the protocol of readers and writer, which the model checks.
unsafe impl Send for Published {}

const SPOILT: usize = 99;

impl Published {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            current: AtomicUsize::new(0),
            objects: [UnsafeCell::new(10), UnsafeCell::new(SPOILT)],
        })
    }

    fn read(&self) -> usize {
        // Acquire pairs with the Release in `publish`.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: the protocol of the type.
        self.objects[current].with(|pointer| unsafe { *pointer })
    }

    fn write(&self, index: usize, value: usize) {
        // SAFETY: the protocol of the type.
        self.objects[index].with_mut(|pointer| unsafe { *pointer = value });
    }

    fn publish(&self, index: usize) {
        // Release pairs with the Acquire in `read`.
        self.current.store(index, Ordering::Release);
    }
}

#[test]
fn a_grace_period_outlasts_the_readers_before_it() {
    explore(3, 80, || {
        let shared = Published::new();
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            let _guard = rcu::read_lock();
            let value = other.read();
            assert!(value == 10 || value == 20, "{value}");
        });
        let writer = thread::spawn(move || {
            shared.write(1, 20);
            shared.publish(1);
            rcu::synchronize();
            shared.write(0, SPOILT);
        });
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn sections_that_follow_and_nest_are_covered() {
    explore(2, 300, || {
        let shared = Published::new();
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            drop(rcu::read_lock());
            let outer = rcu::read_lock();
            let inner = rcu::read_lock();
            drop(outer);
            let value = other.read();
            assert!(value == 10 || value == 20, "{value}");
            drop(inner);
        });
        let writer = thread::spawn(move || {
            shared.write(1, 20);
            shared.publish(1);
            rcu::synchronize();
            shared.write(0, SPOILT);
        });
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

/// One thread unpublishes and takes the cookie, another one drives the grace periods.
#[test]
fn a_cookie_may_be_driven_by_others() {
    explore(2, 600, || {
        let shared = Published::new();
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            let _guard = rcu::read_lock();
            let value = other.read();
            assert!(value == 10 || value == 20, "{value}");
        });
        let driver = thread::spawn(|| {
            rcu::poll(rcu::start_poll());
        });
        let writer = thread::spawn(move || {
            shared.write(1, 20);
            shared.publish(1);
            let cookie = rcu::start_poll();
            while !rcu::poll(cookie) {
                thread::yield_now();
            }
            shared.write(0, SPOILT);
        });
        reader.join().unwrap();
        driver.join().unwrap();
        writer.join().unwrap();
    });
}

/// A cookie taken inside a section of one's own does not end before it.
#[test]
fn a_cookie_in_a_section_waits_for_it() {
    explore(3, 100, || {
        let poller = thread::spawn(|| rcu::poll(rcu::start_poll()));
        let reader = thread::spawn(|| {
            let guard = rcu::read_lock();
            let cookie = rcu::start_poll();
            assert!(!rcu::poll(cookie));
            drop(guard);
            cookie
        });
        poller.join().unwrap();
        assert!(rcu::poll(reader.join().unwrap()));
    });
}
