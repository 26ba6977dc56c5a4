//! The locks and the lazy cell of the facade, over all interleavings.

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::cell::{OnceLock, UnsafeCell};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, Condvar, Mutex, RwLock, global, thread};

#[test]
fn a_mutex_excludes() {
    explore(3, 7, || {
        let counter = Arc::new(Mutex::new(0));
        let (locks, tries) = (Arc::clone(&counter), Arc::clone(&counter));
        let thread = thread::spawn(move || *locks.lock() += 1);
        let tries = thread::spawn(move || {
            if let Some(mut guard) = tries.try_lock() {
                *guard += 1;
            } else {
                *tries.lock() += 1;
            }
        });
        thread.join().unwrap();
        tries.join().unwrap();
        assert_eq!(*counter.lock(), 2);
    });
}

#[test]
fn a_condvar_wakes() {
    explore(3, 8, || {
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&state);
        let thread = thread::spawn(move || {
            *other.0.lock() = true;
            other.1.notify_all();
        });
        let waiter = thread::spawn(move || {
            let mut guard = state.0.lock();
            while !*guard {
                guard = state.1.wait(guard);
            }
        });
        thread.join().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn a_writer_excludes_readers() {
    explore(3, 7, || {
        let pair = Arc::new(RwLock::new((0, 0)));
        let other = Arc::clone(&pair);
        let thread = thread::spawn(move || {
            let mut guard = other.write();
            guard.0 += 1;
            guard.1 += 1;
        });
        let reader = thread::spawn(move || {
            let guard = pair.read();
            assert_eq!(guard.0, guard.1);
        });
        thread.join().unwrap();
        reader.join().unwrap();
    });
}

global! {
    static ONCE: OnceLock<UnsafeCell<usize>> = OnceLock::new();
}
global! {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
}

fn make() -> UnsafeCell<usize> {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let cell = UnsafeCell::new(0);
    // SAFETY: the cell is this function's own.
    cell.with_mut(|pointer| unsafe { *pointer = 7 });
    cell
}

#[test]
fn a_lazy_cell_is_made_once_and_published() {
    explore(3, 10, || {
        let read = || {
            let cell = ONCE.get_or_init(make);
            // SAFETY: there are no writers once the cell is made.
            assert_eq!(cell.with(|pointer| unsafe { *pointer }), 7);
        };
        let threads = [thread::spawn(read), thread::spawn(read)];
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}
