//! The lockref over all interleavings: one thread drops the last reference, and a dead object is
//! not revived.

use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::lockref::LockRef;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

struct Object {
    lockref: LockRef,
    /// Read by whoever has a reference, written by whoever tears the object down.
    content: UnsafeCell<usize>,
}

// SAFETY: the content is read with a reference, and written under the lock with no other reference. The model
// checks that this suffices.
unsafe impl Sync for Object {}
// SAFETY: the content is read with a reference and written without any, which the model checks.
unsafe impl Send for Object {}

impl Object {
    fn new(count: u32) -> Arc<Self> {
        Arc::new(Self {
            lockref: LockRef::new(count),
            content: UnsafeCell::new(1),
        })
    }

    fn look(&self) {
        // SAFETY: the caller has a reference.
        assert_eq!(self.content.with(|pointer| unsafe { *pointer }), 1);
    }

    fn put(&self) -> bool {
        let Some(guard) = self.lockref.put_or_lock() else {
            return false;
        };
        guard.mark_dead();
        // SAFETY: it was the last reference, and the object is dead.
        self.content.with_mut(|pointer| unsafe { *pointer = 0 });
        true
    }
}

#[test]
fn one_thread_drops_the_last_reference() {
    explore(3, 10, || {
        let object = Object::new(2);
        let other = Arc::clone(&object);
        let thread = thread::spawn(move || {
            other.look();
            other.put()
        });
        let here = Arc::clone(&object);
        let second = thread::spawn(move || {
            here.look();
            here.put()
        });
        assert!(second.join().unwrap() != thread.join().unwrap());
        assert!(object.lockref.count() < 0);
    });
}

#[test]
fn the_dead_are_not_revived() {
    explore(3, 100, || {
        let object = Object::new(1);
        let other = Arc::clone(&object);
        let finder = thread::spawn(move || {
            let found = other.lockref.get_not_dead();
            if found {
                other.look();
                other.put();
            }
        });
        let here = Arc::clone(&object);
        let owner = thread::spawn(move || {
            here.look();
            here.put();
        });
        finder.join().unwrap();
        owner.join().unwrap();
        assert!(object.lockref.count() < 0);
    });
}

#[test]
fn the_count_stands_still_under_the_lock() {
    explore(3, 300, || {
        let object = Object::new(1);
        let other = Arc::clone(&object);
        let thread = thread::spawn(move || {
            other.lockref.get();
            assert!(other.lockref.put_or_lock().is_none(), "it is not the last");
        });
        let here = Arc::clone(&object);
        let locker = thread::spawn(move || {
            let guard = here.lockref.lock();
            let before = guard.count();
            guard.get();
            assert_eq!(guard.count(), before + 1);
            guard.put();
            assert_eq!(guard.count(), before);
        });
        locker.join().unwrap();
        thread.join().unwrap();
        assert_eq!(object.lockref.count(), 1);
    });
}

#[test]
fn three_contend() {
    explore(2, 4000, || {
        let object = Object::new(1);
        let finders = [0, 1].map(|_| {
            let object = Arc::clone(&object);
            thread::spawn(move || {
                if object.lockref.get_not_dead() {
                    object.look();
                    object.put();
                }
            })
        });
        let owns = Arc::clone(&object);
        let owner = thread::spawn(move || {
            owns.put();
        });
        for thread in finders.into_iter().chain([owner]) {
            thread.join().unwrap();
        }
        assert!(object.lockref.count() < 0);
    });
}
