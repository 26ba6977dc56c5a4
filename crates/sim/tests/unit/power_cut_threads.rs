//! Power cuts while several threads write, fsync and are written back in the background: all data
//! promised by then is there, and nothing from the future or from elsewhere.

use std::time::Duration;

use crate::common::{Handle, MIB, PAGE, PATIENCE, first_seed, scaled, storage, within};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sim::{
    Effect, Faults, FaultyBackend, Image, Lost, OpSet, Rng, Rule, When, stamp, stamped_mixed,
};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use foliocache_sys::Errno;

const THREADS: usize = 4;
const PAGES_EACH: usize = 24;
const PAGES: usize = THREADS * PAGES_EACH;
const FILE: u32 = 9;

/// The expected state of each page. Generations only grow.
struct Ledger {
    /// Promised by an fsync that returned success. Release after the fsync, Acquire by the checker
    /// before it takes an image: the promise is older than the image.
    promised: Vec<AtomicU32>,
    /// Begun to be written. Release before the write, Acquire by the checker after it took an
    /// image: the image shows nothing newer.
    begun: Vec<AtomicU32>,
    stop: AtomicBool,
    promises: AtomicU64,
    refusals: AtomicU64,
}

fn writer(ledger: &Ledger, handle: &Handle, mine: std::ops::Range<usize>, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut page = vec![0; PAGE];
    let mut generations = vec![0_u32; PAGES];
    // Relaxed: a flag that orders nothing.
    while !ledger.stop.load(Ordering::Relaxed) {
        for _ in 0..rng.between(1, 12) {
            let index = rng.between(mine.start as u64, mine.end as u64 - 1) as usize;
            let generation = generations[index] + 1;
            stamp(&mut page, FILE, index as u64, generation);
            ledger.begun[index].store(generation, Ordering::Release);
            let written = handle
                .try_write((index * PAGE) as u64, &page)
                .expect("write");
            assert_eq!(written, PAGE);
            generations[index] = generation;
        }
        if handle.fsync().is_ok() {
            for index in mine.clone() {
                ledger.promised[index].store(generations[index], Ordering::Release);
            }
            // Relaxed: a statistic.
            ledger.promises.fetch_add(1, Ordering::Relaxed);
        } else {
            // Relaxed: a statistic.
            ledger.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Cuts the power `cuts` times, while everything goes on.
fn checker(ledger: &Ledger, backend: &FaultyBackend, seed: u64, cuts: u64) {
    let mut rng = Rng::new(seed);
    for cut in 0..cuts {
        let promised: Vec<u32> = ledger
            .promised
            .iter()
            .map(|generation| generation.load(Ordering::Acquire))
            .collect();
        let image = backend.power_cut(rng.next_u64());
        assert_eq!(image.size(), (PAGES * PAGE) as u64, "cut {cut}");
        for (index, &promised) in promised.iter().enumerate() {
            let bytes = image.read_vec((index * PAGE) as u64, PAGE);
            let begun = ledger.begun[index].load(Ordering::Acquire);
            let found = stamped_mixed(&bytes, 0, FILE, index as u64);
            let fine = found.is_ok_and(|(oldest, newest)| oldest >= promised && newest <= begun);
            assert!(
                fine,
                "seed {seed}, cut {cut}, page {index}: promised {promised}, begun {begun}, found \
                 {found:?}\n{}",
                backend.faults().trace_text(60)
            );
        }
        if rng.one_in(1, 3) {
            std::thread::sleep(Duration::from_micros(rng.below(500)));
        }
    }
}

fn run(seed: u64, faults: &Faults, cuts: u64) -> (u64, u64) {
    let mut config = MmConfig::new(16 * MIB);
    // The flusher is to be busy all the time.
    config.dirty_expire = Duration::from_millis(10);
    let mm = Mm::new(config).expect("a cache");
    let bdi = storage(&mm, "threads");
    let mut image = Image::new();
    image.truncate((PAGES * PAGE) as u64);
    let backend = FaultyBackend::from_image("threads", faults, image);
    let first = Handle::open(&bdi, Arc::clone(&backend) as _, (PAGES * PAGE) as u64);
    let numbers = || (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    let ledger = Arc::new(Ledger {
        promised: numbers(),
        begun: numbers(),
        stop: AtomicBool::new(false),
        promises: AtomicU64::new(0),
        refusals: AtomicU64::new(0),
    });
    let state = {
        let (mm, faults) = (Arc::clone(&mm), faults.clone());
        move || format!("{:#?}\n{}", mm.stats(), faults.trace_text(20))
    };
    let (ledger_too, backend_too) = (Arc::clone(&ledger), Arc::clone(&backend));
    let mapping = first.mapping.clone();
    within(PATIENCE, state, move || {
        let (ledger, backend) = (&*ledger_too, &*backend_too);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|i| {
                    let handle = Handle::of(&mapping);
                    let mine = i * PAGES_EACH..(i + 1) * PAGES_EACH;
                    scope.spawn(move || writer(ledger, &handle, mine, seed * 10 + i as u64))
                })
                .collect();
            let checked = scope
                .spawn(move || checker(ledger, backend, seed, cuts))
                .join();
            // Relaxed: a flag that orders nothing.
            ledger.stop.store(true, Ordering::Relaxed);
            for writer in writers {
                writer.join().expect("a writer panicked");
            }
            if let Err(panic) = checked {
                std::panic::resume_unwind(panic);
            }
        });
    });
    // In the end everything lands, and everything is as written last.
    faults.heal();
    assert!((0..5).any(|_| first.fsync().is_ok()), "seed {seed}");
    let durable = backend.durable();
    for index in 0..PAGES {
        let newest = ledger.begun[index].load(Ordering::Acquire);
        let mut expected = vec![0; PAGE];
        stamp(&mut expected, FILE, index as u64, newest);
        assert!(
            durable.read_vec((index * PAGE) as u64, PAGE) == expected,
            "page {index}"
        );
    }
    assert_eq!(backend.broken_contract(), Vec::<String>::new());
    // Relaxed: the threads were joined.
    (
        ledger.promises.load(Ordering::Relaxed),
        ledger.refusals.load(Ordering::Relaxed),
    )
}

#[test]
fn threads_without_faults() {
    for seed in first_seed(1)..first_seed(1) + 3 {
        let (promises, refusals) = run(seed, &Faults::new(seed), scaled(400));
        println!("seed {seed}: {promises} promises");
        assert!(
            promises > 10 && refusals == 0,
            "{promises} promises, {refusals} refusals"
        );
    }
}

#[test]
fn threads_with_faults() {
    for seed in first_seed(1)..first_seed(1) + 4 {
        let faults = Faults::new(seed);
        let some = |part| When::Chance { part, whole: 100 };
        faults
            .add(Rule::new(OpSet::WRITE, Effect::Delay(Duration::from_micros(200))).when(some(20)));
        faults
            .add(Rule::new(OpSet::FLUSH, Effect::Delay(Duration::from_micros(300))).when(some(30)));
        faults.add(Rule::new(OpSet::WRITE, Effect::Torn(Errno::EIO)).when(some(5)));
        faults.add(Rule::new(OpSet::WRITE, Effect::Short).when(some(5)));
        let lost = [Lost::Data, Lost::DataAndLive][(seed % 2) as usize];
        faults.add(Rule::new(OpSet::FLUSH, Effect::Lose(Errno::EIO, lost)).when(some(10)));
        let (promises, refusals) = run(seed, &faults, scaled(400));
        println!("seed {seed}: {promises} promises, {refusals} refusals");
        assert!(
            promises > 5 && refusals > 0,
            "{promises} promises, {refusals} refusals"
        );
    }
}
