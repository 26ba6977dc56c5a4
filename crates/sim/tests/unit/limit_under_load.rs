//! A new limit is honoured at once, also while readers and writers keep every page of the old one in
//! use.

use std::time::{Duration, Instant};

use crate::common::{Handle, MIB, PAGE, PATIENCE, cache, scaled, storage, within};
use foliocache_mm::Mm;
use foliocache_sim::{Faults, Rng, StampBackend, stamp, stamped_mixed};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BOUND: u64 = 64 * MIB;
const THREADS: u64 = 4;

/// The promise is a second; the rest allows for a busy machine.
const HONOURED: Duration = Duration::from_secs(3);

/// The progress of the threads.
#[derive(Default)]
struct Work {
    done: AtomicU64,
    stop: AtomicBool,
}

/// Reads and writes until stopped: pieces of 1 to 16 pages anywhere in the file, or, on even threads, 256 KiB after
/// 256 KiB, which makes folios large. Every page read must be one that was written there.
fn work(handle: &Handle, backend: &StampBackend, pages: u64, seed: u64, work: &Work) {
    const STRIDE: u64 = 64;
    let mut rng = Rng::new(seed);
    let mut buf = vec![0; STRIDE as usize * PAGE];
    let mut next = seed * pages / THREADS;
    // Relaxed throughout: a flag and a count that order nothing.
    while !work.stop.load(Ordering::Relaxed) {
        let (first, n) = if seed.is_multiple_of(2) {
            next = (next + STRIDE) % (pages - STRIDE);
            (next, STRIDE)
        } else {
            let n = rng.between(1, 16);
            (rng.below(pages - n), n)
        };
        let bytes = &mut buf[..n as usize * PAGE];
        let file = backend.file();
        if rng.below(3) == 0 {
            let generation = rng.between(1, 1 << 20) as u32;
            for (i, page) in bytes.chunks_mut(PAGE).enumerate() {
                stamp(page, file, first + i as u64, generation);
            }
            handle.write(first * PAGE as u64, bytes);
        } else {
            let read = handle.read_into(first * PAGE as u64, bytes).expect("read");
            assert_eq!(read, bytes.len());
            for (i, page) in bytes.chunks(PAGE).enumerate() {
                let index = first + i as u64;
                assert!(
                    stamped_mixed(page, 0, file, index).is_ok(),
                    "page {index} has bytes of another"
                );
            }
        }
        work.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until `n` more pieces of work were done: no thread is stuck.
fn go_on(mm: &Mm, work: &Work, n: u64) {
    let (start, from) = (Instant::now(), work.done.load(Ordering::Relaxed));
    while work.done.load(Ordering::Relaxed) < from + n {
        assert!(start.elapsed() < PATIENCE, "{:#?}", mm.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sets the limit; how long it takes until no more than that is held.
fn shrink(mm: &Mm, limit: u64) -> Duration {
    let start = Instant::now();
    mm.set_limit(limit).expect("a limit in range");
    while mm.usage().total_bytes() > limit {
        assert!(start.elapsed() < HONOURED, "{:#?}", mm.usage());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(start.elapsed() < HONOURED, "{:?}", start.elapsed());
    start.elapsed()
}

#[test]
fn a_smaller_limit_is_honoured_within_a_second_under_load() {
    let mm = cache(BOUND);
    let faults = Faults::new(1);
    let pages = 4 * BOUND / PAGE as u64;
    let backend = StampBackend::new(1, pages as usize, &faults);
    backend.expect_overwrites();
    let handle = Handle::open(&storage(&mm, "fast"), Arc::clone(&backend) as _, 0);
    handle
        .mapping
        .truncate(pages * PAGE as u64)
        .expect("a size");
    let shared = Arc::new(Work::default());
    let threads: Vec<_> = (0..THREADS)
        .map(|seed| {
            let handle = Handle::of(&handle.mapping);
            let (backend, shared) = (Arc::clone(&backend), Arc::clone(&shared));
            std::thread::spawn(move || work(&handle, &backend, pages, seed, &shared))
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for _ in 0..scaled(4) {
        // Until the cache is full.
        go_on(&mm, &shared, 1000);
        let full = || mm.usage().available_pages < mm.usage().capacity_pages / 8;
        while !full() {
            go_on(&mm, &shared, 10);
        }
        slowest = slowest.max(shrink(&mm, BOUND / 2));
        go_on(&mm, &shared, 200);
        assert!(mm.usage().total_bytes() <= BOUND / 2, "{:#?}", mm.usage());
        mm.set_limit(BOUND).expect("a limit in range");
    }
    println!("honoured after {slowest:?} at most");
    shared.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a reader or writer panicked");
    }
    let state = {
        let mm = Arc::clone(&mm);
        move || format!("{:#?}", mm.stats())
    };
    within(PATIENCE, state, move || {
        handle.fsync().expect("fsync");
        assert_eq!(backend.wrong_writes(), Vec::<String>::new());
    });
}
