//! An object that is published without a barrier: if this passes, Miri is not looking. `cargo xtask test` runs it as a step that
//! must fail.
#![cfg(miri)]
#![allow(unsafe_code, reason = "it is wrong on purpose")]

use std::sync::atomic::{AtomicBool, Ordering};

struct Shared {
    ready: AtomicBool,
    object: std::cell::UnsafeCell<u32>,
}

// SAFETY: wrong on purpose.
unsafe impl Sync for Shared {}

#[test]
fn an_object_is_published_without_a_barrier() {
    static SHARED: Shared = Shared {
        ready: AtomicBool::new(false),
        object: std::cell::UnsafeCell::new(0),
    };
    let writer = std::thread::spawn(|| {
        // SAFETY: not published yet.
        unsafe { SHARED.object.get().write(1) };
        // Relaxed is the mistake.
        SHARED.ready.store(true, Ordering::Relaxed);
    });
    while !SHARED.ready.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    // SAFETY: wrong on purpose.
    assert_eq!(unsafe { SHARED.object.get().read() }, 1);
    writer.join().unwrap();
}
