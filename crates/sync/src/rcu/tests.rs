//! Sections nest, grace periods wait for those that are open, and slots come back.

use super::*;
use crate::atomic::{AtomicBool, AtomicPtr};
use std::sync::mpsc;

#[test]
fn sections_nest() {
    assert!(!in_read_section());
    let outer = read_lock();
    let inner = read_lock();
    let innermost = read_lock();
    drop(outer);
    assert!(in_read_section());
    drop(innermost);
    drop(inner);
    assert!(!in_read_section());
}

#[test]
fn a_cookie_waits_for_an_open_section() {
    let (opened, open) = mpsc::channel();
    let (close, closing) = mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let guard = read_lock();
        opened.send(()).expect("the test waits");
        let _ = closing.recv();
        drop(guard);
    });
    open.recv().expect("the reader sends");
    let cookie = start_poll();
    for _ in 0..100 {
        assert!(!poll(cookie));
    }
    drop(close);
    reader.join().expect("the reader does not panic");
    synchronize();
    assert!(
        poll(cookie),
        "a later grace period is over, hence so is this one"
    );
}

#[test]
fn cookies_taken_together_are_one() {
    // Other tests may start a period in between, but not on each try.
    assert!((0..1000).any(|_| start_poll() == start_poll()));
}

#[test]
fn polling_in_a_section_answers_no() {
    let guard = read_lock();
    let cookie = start_poll();
    assert!(!poll(cookie));
    drop(guard);
    synchronize();
    assert!(poll(cookie));
}

#[test]
fn synchronize_in_a_section_panics() {
    let result = std::panic::catch_unwind(|| {
        let _guard = read_lock();
        synchronize();
    });
    assert!(result.is_err());
    assert!(!in_read_section());
}

#[test]
fn threads_that_end_leave_their_slots() {
    let before = REGISTRY.lock().slots.len();
    for _ in 0..200 {
        std::thread::spawn(|| drop(read_lock()))
            .join()
            .expect("it does not panic");
    }
    let after = REGISTRY.lock().slots.len();
    // Tests running beside this one may add some.
    assert!(after < before + 100, "{before} slots became {after}");
}

#[test]
fn a_thread_reads_while_its_locals_are_destroyed() {
    struct Reads(std::sync::Arc<AtomicBool>);
    impl Drop for Reads {
        fn drop(&mut self) {
            let outer = read_lock();
            drop(read_lock());
            assert!(in_read_section());
            drop(outer);
            assert!(!in_read_section());
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread_local! {
        static READS: Cell<Option<Reads>> = const { Cell::new(None) };
    }
    for reads_before in [false, true] {
        for registers_first in [false, true] {
            let done = std::sync::Arc::new(AtomicBool::new(false));
            let reads = Reads(std::sync::Arc::clone(&done));
            std::thread::spawn(move || {
                if reads_before && registers_first {
                    drop(read_lock());
                }
                READS.set(Some(reads));
                if reads_before && !registers_first {
                    drop(read_lock());
                }
            })
            .join()
            .expect("it does not panic");
            assert!(done.load(Ordering::Relaxed));
        }
    }
    synchronize();
}

/// Readers follow a pointer and check the object; the writer swaps it, waits, and spoils the old object. The
/// objects are never freed, so that a failure is a wrong value and not undefined.
#[test]
fn readers_never_see_a_spoilt_object() {
    const LIVE: u64 = 0x6c69_7665;
    const SPOILT: u64 = 0x6465_6164;
    let scale: u64 = std::env::var("FOLIOCACHE_STRESS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let objects: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(SPOILT)).collect();
    objects[0].store(LIVE, Ordering::Relaxed);
    let shared = AtomicPtr::new((&raw const objects[0]).cast_mut());
    let stop = AtomicBool::new(false);
    let index_of = |pointer: *mut AtomicU64| {
        (pointer.addr() - objects.as_ptr().addr()) / size_of::<AtomicU64>()
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _guard = read_lock();
                    let found = &objects[index_of(shared.load(Ordering::Acquire))];
                    for _ in 0..8 {
                        assert_eq!(found.load(Ordering::Relaxed), LIVE);
                    }
                }
            });
        }
        let mut waiting = Vec::new();
        for round in 1..=2000 * scale {
            let next = &objects[round as usize % objects.len()];
            while next.load(Ordering::Relaxed) != SPOILT {
                std::thread::yield_now();
                waiting.retain(|&(cookie, old): &(GpCookie, usize)| {
                    let done = poll(cookie);
                    if done {
                        objects[old].store(SPOILT, Ordering::Relaxed);
                    }
                    !done
                });
            }
            next.store(LIVE, Ordering::Relaxed);
            let old = shared.swap((&raw const *next).cast_mut(), Ordering::AcqRel);
            if round % 16 == 0 {
                synchronize();
                objects[index_of(old)].store(SPOILT, Ordering::Relaxed);
            } else {
                waiting.push((start_poll(), index_of(old)));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
