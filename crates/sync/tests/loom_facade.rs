//! The locks and the lazy cell of the facade, over all interleavings.
#![cfg(loom)]

use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::cell::{OnceLock, UnsafeCell};
use foliocache_sync::{Arc, Condvar, Mutex, RwLock, global, thread};

#[test]
fn a_mutex_excludes() {
    loom::model(|| {
        let counter = Arc::new(Mutex::new(0));
        let other = Arc::clone(&counter);
        let thread = thread::spawn(move || *other.lock() += 1);
        if let Some(mut guard) = counter.try_lock() {
            *guard += 1;
        } else {
            *counter.lock() += 1;
        }
        thread.join().unwrap();
        assert_eq!(*counter.lock(), 2);
    });
}

#[test]
fn a_condvar_wakes() {
    loom::model(|| {
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&state);
        let thread = thread::spawn(move || {
            *other.0.lock() = true;
            other.1.notify_all();
        });
        let mut guard = state.0.lock();
        while !*guard {
            guard = state.1.wait(guard);
        }
        drop(guard);
        thread.join().unwrap();
    });
}

#[test]
fn a_writer_excludes_readers() {
    loom::model(|| {
        let pair = Arc::new(RwLock::new((0, 0)));
        let other = Arc::clone(&pair);
        let thread = thread::spawn(move || {
            let mut guard = other.write();
            guard.0 += 1;
            guard.1 += 1;
        });
        let guard = pair.read();
        assert_eq!(guard.0, guard.1);
        drop(guard);
        thread.join().unwrap();
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
    loom::model(|| {
        let read = || {
            let cell = ONCE.get_or_init(make);
            // SAFETY: nobody writes once the cell is made.
            assert_eq!(cell.with(|pointer| unsafe { *pointer }), 7);
        };
        let thread = thread::spawn(read);
        read();
        thread.join().unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}
