//! Counters whose cells pass from thread to thread, over all interleavings: no addition is lost.
//!
//! The owner of a cell adds with a plain load and a plain store, so a hand-over that orders too little shows as
//! a sum that is too small.

use std::sync::atomic::{AtomicUsize as Count, Ordering};

use foliocache_sync::model::explore;
use foliocache_sync::{Arc, ShardedCounter, thread, thread_shard};

/// A thread that begins while another one ends may inherit its number, and with it its cell.
#[test]
fn a_number_that_is_handed_on_loses_no_addition() {
    static HANDED_ON: Count = Count::new(0);
    explore(3, 100, || {
        let counter = Arc::new(ShardedCounter::new());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    counter.inc();
                    counter.inc();
                    thread_shard()
                })
            })
            .collect();
        let numbers: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(counter.sum(), 4);
        assert_eq!(counter.sum_shared(), 0);
        if numbers[0] == numbers[1] {
            HANDED_ON.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(
        HANDED_ON.load(Ordering::Relaxed) > 0,
        "no number was handed on"
    );
}

/// With two cells, the third thread shares one. It takes the cell over when its owner has ended, while another
/// thread takes the owner's number.
#[test]
fn a_cell_that_is_taken_over_loses_no_addition() {
    static TAKEN_OVER: Count = Count::new(0);
    explore(2, 50_000, || {
        let counter = Arc::new(ShardedCounter::new());
        let add = |times: usize| {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                for _ in 0..times {
                    counter.inc();
                }
                thread_shard()
            })
        };
        let first = add(1);
        // The second thread adds nothing: it only keeps a number.
        let others = [add(0), add(2)];
        first.join().unwrap();
        let last = add(1);
        let numbers = others.map(|t| t.join().unwrap());
        let last = last.join().unwrap();
        assert_eq!(counter.sum(), 4);
        // The one that shares a cell added twice, and shared only its first addition.
        if numbers[1] == 2 && last == 0 && counter.sum_shared() == 1 {
            TAKEN_OVER.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(
        TAKEN_OVER.load(Ordering::Relaxed) > 0,
        "no cell was taken over"
    );
}
