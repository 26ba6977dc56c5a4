//! Thread numbers while threads come and go. The tests take turns, since they share the numbers of the
//! process.
#![cfg(not(any(loom, shuttle)))]

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

use foliocache_sync::{LazyCounter, ShardedCounter, shard_count, thread_shard};

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` on a new thread, and returns when the destructors of the thread's locals have run. The end of a
/// scope does not wait for those.
fn on_a_thread(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(f).join().expect("it does not panic"));
}

#[test]
fn threads_that_ended_leave_their_cells_to_those_that_live() {
    let _alone = alone();
    let counter = ShardedCounter::new();
    for _ in 0..40 {
        on_a_thread(|| counter.inc());
    }
    assert_eq!(
        counter.sum_shared(),
        0,
        "one thread at a time needs one cell"
    );
    let live = shard_count().min(2);
    let barrier = Barrier::new(live);
    std::thread::scope(|scope| {
        for _ in 0..live {
            scope.spawn(|| {
                counter.inc();
                barrier.wait();
                for _ in 0..1000 {
                    counter.inc();
                }
            });
        }
    });
    assert_eq!(counter.sum_shared(), 0, "additions that met in one cell");
    assert_eq!(counter.sum(), 40 + 1001 * live as i64);
}

#[test]
fn a_crowd_that_has_ended_keeps_no_cell() {
    const CROWD: usize = 100;
    let _alone = alone();
    let counter = ShardedCounter::new();
    let barrier = Barrier::new(CROWD);
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                scope.spawn(|| {
                    // All are numbered before one adds, so that any of them may come first.
                    thread_shard();
                    barrier.wait();
                    counter.inc();
                })
            })
            .collect();
        for thread in crowd {
            thread.join().expect("it does not panic");
        }
    });
    on_a_thread(|| {
        for _ in 0..1000 {
            counter.inc();
        }
    });
    let shared = counter.sum_shared();
    on_a_thread(|| {
        for _ in 0..1000 {
            counter.inc();
        }
    });
    assert_eq!(counter.sum_shared(), shared, "the cell is owned again");
    assert_eq!(counter.sum(), CROWD as i64 + 2000);
}

/// Adds when the locals of its thread are destroyed, before or after the thread's number is returned.
struct AddsAtTheEnd(Arc<Counters>);

struct Counters {
    sharded: ShardedCounter,
    lazy: LazyCounter,
    /// Which numbers threads have.
    had: Vec<AtomicBool>,
}

impl Drop for AddsAtTheEnd {
    fn drop(&mut self) {
        self.0.sharded.inc();
        self.0.lazy.add(1);
        assert_eq!(thread_shard(), thread_shard());
    }
}

#[test]
fn thousands_of_short_threads_lose_no_addition_and_share_no_number() {
    thread_local! {
        static EARLY: RefCell<Option<AddsAtTheEnd>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<AddsAtTheEnd>> = const { RefCell::new(None) };
    }
    const THREADS: usize = 4000;
    const ADDITIONS: usize = 20;
    const AT_ONCE: usize = 8;
    let _alone = alone();
    let counters = Arc::new(Counters {
        sharded: ShardedCounter::new(),
        lazy: LazyCounter::new(),
        had: (0..64).map(|_| AtomicBool::new(false)).collect(),
    });
    let run = |counters: &Arc<Counters>| {
        // Destroyed after the number is returned, as it was made first.
        EARLY.set(Some(AddsAtTheEnd(Arc::clone(counters))));
        let number = thread_shard();
        LATE.set(Some(AddsAtTheEnd(Arc::clone(counters))));
        assert!(
            !counters.had[number].swap(true, Ordering::Relaxed),
            "two threads have number {number}"
        );
        for _ in 0..ADDITIONS {
            counters.sharded.inc();
            if counters.lazy.add(1) {
                counters.lazy.spread();
            }
        }
        counters.had[number].store(false, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for _ in 0..THREADS / AT_ONCE {
                    on_a_thread(|| run(&counters));
                }
            });
        }
    });
    let expected = (THREADS * (ADDITIONS + 2)) as i64;
    assert_eq!(counters.sharded.sum(), expected);
    assert_eq!(counters.lazy.sum(), expected);
}
