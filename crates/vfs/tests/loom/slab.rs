//! Shared objects of a slab, and the slots of its pages, over the interleavings of dropping
//! threads.

use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};
use foliocache_vfs::SlabArc;
use foliocache_vfs::slab_model::Pages;

/// Its last owner writes to it at the end, and all others read it before: loom detects an overlap.
struct Object {
    value: UnsafeCell<u64>,
    /// Tells whether the object was dropped.
    _counted: Arc<()>,
}

// SAFETY: `value` is written once it has a single owner, which the model checks.
unsafe impl Send for Object {}
// SAFETY: `value` is written once it has a single owner, which the model checks.
unsafe impl Sync for Object {}

impl Object {
    fn read(&self) -> u64 {
        // SAFETY: see the impls above.
        self.value.with(|value| unsafe { *value })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: see the impls above.
        self.value.with_mut(|value| unsafe { *value = 0 });
    }
}

#[test]
fn the_last_reference_drops_an_object_without_readers() {
    explore(3, 100, || {
        let counted = Arc::new(());
        let object = SlabArc::new(Object {
            value: UnsafeCell::new(7),
            _counted: Arc::clone(&counted),
        });
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mine = object.clone();
                thread::spawn(move || {
                    let more = mine.clone();
                    drop(mine);
                    assert_eq!(more.read(), 7);
                })
            })
            .collect();
        drop(object);
        for thread in threads {
            thread.join().expect("a reader does not panic");
        }
        assert_eq!(Arc::strong_count(&counted), 1);
    });
}

#[test]
fn a_weak_reference_gives_the_object_or_nothing() {
    explore(2, 20, || {
        let counted = Arc::new(());
        let object = SlabArc::new(Object {
            value: UnsafeCell::new(7),
            _counted: Arc::clone(&counted),
        });
        let weak = SlabArc::downgrade(&object);
        let upgrades = thread::spawn(move || {
            if let Some(found) = weak.upgrade() {
                assert_eq!(found.read(), 7);
            }
        });
        let drops = thread::spawn(move || drop(object));
        upgrades.join().expect("it does not panic");
        drops.join().expect("it does not panic");
        assert_eq!(Arc::strong_count(&counted), 1);
    });
}

/// Two allocate and free: pages fill up, come back into the ring, go back to the supply and are taken again.
/// No slot has two owners, and no page is left behind.
#[test]
fn a_slot_has_one_owner() {
    explore(2, 70, || {
        let counted = Arc::new(());
        let pages = Arc::new(Pages::new());
        let watch = pages.watch();
        let object = |value| Object {
            value: UnsafeCell::new(value),
            _counted: Arc::clone(&counted),
        };
        let first = pages.alloc(object(1));
        let second = pages.alloc(object(2));
        let threads = [(first, 1, 3), (second, 2, 4)].map(|(old, was, is)| {
            let pages = Arc::clone(&pages);
            let new = object(is);
            thread::spawn(move || {
                assert_eq!(old.read(), was);
                drop(old);
                let new = pages.alloc(new);
                assert_eq!(new.read(), is);
                new
            })
        });
        let [one, other] = threads.map(|thread| thread.join().expect("it does not panic"));
        assert_eq!((one.read(), other.read()), (3, 4));
        drop(one);
        drop(pages);
        drop(other);
        assert!(!watch.is_alive(), "a page was left behind");
        assert_eq!(Arc::strong_count(&counted), 1);
    });
}

/// The slab goes while its last objects do: the pool ends with the last of them, once.
#[test]
fn a_slab_that_goes_beside_its_last_objects_leaves_no_page() {
    explore(2, 100, || {
        let pages = Pages::new();
        let watch = pages.watch();
        let objects = [(); 3].map(|()| {
            pages.alloc(Object {
                value: UnsafeCell::new(7),
                _counted: Arc::new(()),
            })
        });
        let [a, b, c] = objects;
        let closes = thread::spawn(move || drop(pages));
        let drops = thread::spawn(move || drop((a, c)));
        let drops_too = thread::spawn(move || drop(b));
        for thread in [closes, drops, drops_too] {
            thread.join().expect("it does not panic");
        }
        assert!(!watch.is_alive(), "a page was left behind");
    });
}
