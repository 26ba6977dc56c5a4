//! The slot where a signal handler finds the resolver of a fault, as its own source text over a model's atomics: a
//! resolver that was found stays alive until its use ends, even if it is removed meanwhile.
//!
//! # Safety
//!
//! Memory is touched in the ways whose order is under test; loom fails the model where two of them may meet.
#![cfg(loom)]
#![allow(unsafe_code)]

use foliocache_sync::cell::UnsafeCell;
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, thread};

/// Replaces the module of the same name.
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

// SAFETY: the model tests exactly this.
unsafe impl Send for Watched {}
// SAFETY: the model tests exactly this.
unsafe impl Sync for Watched {}

impl Value {
    fn new() -> Value {
        Value(Arc::new(Watched(UnsafeCell::new(true))))
    }

    fn is_alive(&self) -> bool {
        // SAFETY: it has not been removed yet, which loom checks.
        self.0.0.with(|alive| unsafe { *alive })
    }

    fn end(&self) {
        // SAFETY: its last use is over, which loom checks.
        self.0.0.with_mut(|alive| unsafe { *alive = false });
    }
}

fn slot() -> Arc<Slot<Value>> {
    Arc::new(Slot {
        value: AtomicPtr::new(std::ptr::null_mut()),
        uses: AtomicUsize::new(0),
    })
}

/// A fault. Returns whether it found a resolver, which stays alive until the end.
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
