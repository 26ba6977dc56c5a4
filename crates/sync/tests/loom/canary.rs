//! Models that loom must find wrong: if one of them passes, loom is not looking.

use foliocache_sync::atomic::{AtomicUsize, Ordering, fence};
use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, Condvar, Mutex, thread};

/// The heart of RCU, with or without its barriers: a reader announces itself and reads, a writer unpublishes,
/// looks for the announcement, and reuses the object if there is none.
fn announce_and_look(barriers: bool) {
    struct Shared {
        announced: AtomicUsize,
        published: AtomicUsize,
        object: UnsafeCell<usize>,
    }
    // SAFETY: the protocol below, which the model judges.
    unsafe impl Sync for Shared {}
    // SAFETY: the protocol below, which the model judges.
    unsafe impl Send for Shared {}

    explore(3, 30, move || {
        let shared = Arc::new(Shared {
            announced: AtomicUsize::new(0),
            published: AtomicUsize::new(1),
            object: UnsafeCell::new(10),
        });
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            other.announced.store(1, Ordering::Relaxed);
            if barriers {
                fence(Ordering::SeqCst);
            }
            if other.published.load(Ordering::Acquire) == 1 {
                // SAFETY: announced, and still published.
                assert_eq!(other.object.with(|pointer| unsafe { *pointer }), 10);
            }
            other.announced.store(0, Ordering::Release);
        });
        let writer = thread::spawn(move || {
            shared.published.store(0, Ordering::Release);
            if barriers {
                fence(Ordering::SeqCst);
            }
            if shared.announced.load(Ordering::Acquire) == 0 {
                // SAFETY: unpublished, and no reader has announced itself.
                shared.object.with_mut(|pointer| unsafe { *pointer = 99 });
            }
        });
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn rcu_with_its_barriers_is_right() {
    announce_and_look(true);
}

#[test]
#[should_panic]
fn rcu_without_its_barriers_is_found_wrong() {
    announce_and_look(false);
}

#[test]
#[should_panic]
fn a_lost_wake_up_is_found() {
    explore(3, 2, || {
        let state = Arc::new((Mutex::new(()), Condvar::new(), AtomicUsize::new(0)));
        let other = Arc::clone(&state);
        let waker = thread::spawn(move || {
            other.2.store(1, Ordering::Release);
            // Wrong: not under the mutex, so it may fall between the waiter's look and its sleep.
            other.1.notify_all();
        });
        let mut guard = state.0.lock();
        while state.2.load(Ordering::Acquire) == 0 {
            guard = state.1.wait(guard);
        }
        drop(guard);
        waker.join().unwrap();
    });
}

#[test]
#[should_panic]
fn a_missing_release_is_found() {
    struct Shared {
        ready: AtomicUsize,
        object: UnsafeCell<usize>,
    }
    // SAFETY: the protocol below, which is wrong on purpose.
    unsafe impl Sync for Shared {}
    // SAFETY: the protocol below, which the model judges.
    unsafe impl Send for Shared {}

    explore(3, 2, || {
        let shared = Arc::new(Shared {
            ready: AtomicUsize::new(0),
            object: UnsafeCell::new(0),
        });
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            // SAFETY: not published yet.
            other.object.with_mut(|pointer| unsafe { *pointer = 1 });
            other.ready.store(1, Ordering::Relaxed);
        });
        if shared.ready.load(Ordering::Acquire) == 1 {
            // SAFETY: wrong on purpose: the store above does not publish.
            shared.object.with(|pointer| unsafe { *pointer });
        }
        writer.join().unwrap();
    });
}
