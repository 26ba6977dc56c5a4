//! Prints the cost of a look-up: nanoseconds a load with everything in the nearest cache, with and
//! without the read section.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use foliocache_sync::rcu;
use foliocache_xarray::XArray;

#[path = "../tests/common/heap.rs"]
mod heap;

use heap::{value, value_of};

/// Loads that are timed together: short, so that some are not interrupted on a busy machine.
const ROUNDS: u64 = 50_000;
/// How often; the fastest counts.
const SLICES: u32 = 300;

fn filled(pages: u64) -> XArray {
    let pool = heap::pool(usize::MAX);
    let xa = XArray::new(Arc::clone(&pool));
    for index in 0..pages {
        let mut preload = pool
            .preload(xa.nodes_needed_range(index, index, &rcu::read_lock()))
            .expect("the heap has more");
        xa.lock()
            .insert(index, 0, value(index as usize), &mut preload)
            .expect("the index is vacant");
    }
    xa
}

fn measure(name: &str, mut each: impl FnMut(u64)) {
    let best = (0..SLICES)
        .map(|_| {
            let start = Instant::now();
            (0..ROUNDS).for_each(&mut each);
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    let best = best.as_secs_f64() * 1e9 / ROUNDS as f64;
    println!("{name:<52} {best:6.2} ns");
}

fn main() {
    let small = filled(64);
    let large = filled(4096);
    let huge = filled(1 << 18);
    let rcu = rcu::read_lock();
    measure("load, index 0 of 64", |_| {
        black_box(small.load(black_box(0), &rcu));
    });
    measure("load, any index of 64", |round| {
        black_box(small.load(round % 64, &rcu));
    });
    measure("load, any index of 4096 (2 levels)", |round| {
        black_box(large.load(round % 4096, &rcu));
    });
    measure("load, 4096 of 262144 indices (3 levels)", |round| {
        black_box(huge.load(round % 4096, &rcu));
    });
    measure("load_slot, reload, index 0 of 64", |_| {
        let slot = small.load_slot(black_box(0), &rcu);
        black_box(slot.is_some_and(|(_, slot)| slot.holds()));
    });
    // A chain: the index of one load comes from the load before, as in latency.
    let mut index = 0;
    measure("load after load (latency), 2 levels", |_| {
        let entry = large.load(index, &rcu).map_or(0, value_of);
        index = (entry as u64 + 1) & 4095;
    });
    drop(rcu);
    measure("read_lock, load, unlock, index 0 of 64", |_| {
        let rcu = rcu::read_lock();
        black_box(small.load(black_box(0), &rcu));
    });
    let ranges = (0..200).map(|round| {
        let rcu = rcu::read_lock();
        let first = round * 1024;
        let start = Instant::now();
        let mut next = first;
        while let Some(found) = huge.find(next, first + 511, None, &rcu) {
            next = black_box(found).last() + 1;
        }
        start.elapsed()
    });
    let best = ranges.min().unwrap_or_default().as_secs_f64() * 1e9 / 512.0;
    println!(
        "{:<52} {best:6.2} ns",
        "find, 512 entries in ascending order, an entry (3 levels)"
    );
    let start = Instant::now();
    let pages = 1 << 18;
    let filled = filled(pages);
    println!(
        "{:<52} {:6.2} ns",
        "preload, lock, insert, ascending, an entry",
        start.elapsed().as_secs_f64() * 1e9 / pages as f64
    );
    drop(filled);
}
