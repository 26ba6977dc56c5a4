//! Shared objects of a slab, over the interleavings of who drops them.
#![cfg(loom)]

use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::{Arc, thread};
use foliocache_vfs::{SharedSlab, SlabArc};

/// Its owner writes to it at the end, and everybody reads before: loom sees if the two may meet.
struct Object {
    value: UnsafeCell<u64>,
    /// Tells whether the object was dropped.
    _counted: Arc<()>,
}

// SAFETY: `value` is written once it is nobody else's: what the model checks.
unsafe impl Send for Object {}
// SAFETY: as above.
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
fn the_last_reference_drops_what_nobody_reads() {
    loom::model(|| {
        let counted = Arc::new(());
        let object = SharedSlab::new().alloc(Object {
            value: UnsafeCell::new(7),
            _counted: Arc::clone(&counted),
        });
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mine = SlabArc::clone(&object);
                thread::spawn(move || {
                    let more = SlabArc::clone(&mine);
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
