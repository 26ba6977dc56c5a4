//! Where a signal handler finds what resolves a fault, by its own source text over the atomics of a model: what was
//! found stays until its use ends, whoever removes it.
//!
//! # Safety
//!
//! Memory is touched in the ways whose order is under test; loom fails the model where two of them may meet.
#![cfg(loom)]
#![allow(unsafe_code)]

use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

/// What the module has in its place.
mod lock {
    pub(crate) use foliocache_sync::atomic;
}

#[path = "../../sys/src/userfaultfd/slot.rs"]
mod slot;

use lock::atomic::{AtomicPtr, AtomicUsize};
use slot::Slot;

/// A registered value: memory that a fault reads until its end, and that a removal writes, as freeing does.
#[derive(Clone)]
struct Value(Arc<Watched>);

struct Watched(UnsafeCell<bool>);

// SAFETY: what is tested.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Value {
    fn new() -> Value {
        Value(Arc::new(Watched(UnsafeCell::new(true))))
    }

    fn is_alive(&self) -> bool {
        // SAFETY: no removal yet, which is what loom checks.
        self.0.0.with(|alive| unsafe { *alive })
    }

    fn end(&self) {
        // SAFETY: no use any more, which is what loom checks.
        self.0.0.with_mut(|alive| unsafe { *alive = false });
    }
}

fn slot() -> Arc<Slot<Value>> {
    Arc::new(Slot {
        value: AtomicPtr::new(std::ptr::null_mut()),
        uses: AtomicUsize::new(0),
    })
}

/// A fault: whether it found something. What it found is alive until the end.
fn fault(slot: &Slot<Value>) -> bool {
    let Some((counted, value)) = slot.begin(|value| Some(value.clone())) else {
        return false;
    };
    thread::yield_now();
    assert!(value.is_alive(), "removed while it is in use");
    drop(counted);
    true
}

fn remove(slot: &Slot<Value>, value: &Value) {
    let closed = slot.close();
    while slot.is_used(0) {
        thread::yield_now();
    }
    value.end();
    // SAFETY: closed, and no longer used.
    unsafe { slot.free(closed) };
}

#[test]
fn a_value_found_by_a_fault_lives_until_the_fault_ends() {
    explore(3, 40_000, || {
        let slot = slot();
        let value = Value::new();
        assert!(slot.publish(Box::new(value.clone())).is_ok());
        let faults = [(); 2].map(|()| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || fault(&slot))
        });
        let remover = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || remove(&slot, &value))
        };
        for fault in faults {
            fault.join().unwrap();
        }
        remover.join().unwrap();
        assert!(!fault(&slot), "nothing is left");
    });
}

#[test]
fn a_slot_is_used_again_beside_a_late_fault() {
    explore(3, 1000, || {
        let slot = slot();
        let first = Value::new();
        assert!(slot.publish(Box::new(first.clone())).is_ok());
        let late = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || (fault(&slot), fault(&slot)))
        };
        let remover = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                remove(&slot, &first);
                let second = Value::new();
                assert!(slot.publish(Box::new(second.clone())).is_ok());
                let third = slot.publish(Box::new(Value::new()));
                assert!(third.is_err(), "it is taken");
                second
            })
        };
        late.join().unwrap();
        let second = remover.join().unwrap();
        assert!(fault(&slot));
        remove(&slot, &second);
    });
}
