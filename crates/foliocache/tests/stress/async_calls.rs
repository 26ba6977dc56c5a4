//! Futures dropped at every await point, by many threads, over a store that is slow and fails:
//! nothing leaks, nothing is lost, and every byte is one that was meant to be there.
//!
//! Each thread has a private stripe of the file, not aligned to pages, so that threads meet in
//! pages but not in bytes. For every byte of its stripe it knows the allowed values: after a
//! completed write only the written one, after a dropped or failed write the old one too.

use crate::common::executor::give_up_after;
use crate::common::stores::Background;
use crate::common::{PAGE, cache};
use foliocache::{Advice, AsyncFile, Cache, Errno, Result};
use foliocache_mm::AddressSpaceOperations;
use foliocache_sim::{Effect, Faults, FaultyBackend, OpSet, Rng, Rule, When};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: u64 = 4;

/// Bytes of a stripe; several pages and a bit.
const STRIPE: u64 = 40 * PAGE as u64 + 777;

/// More polls than any operation here needs.
const ALL: usize = 10_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |n| n.parse().expect("a number"))
}

fn stress() -> u64 {
    number("FOLIOCACHE_STRESS", 1)
}

/// One thread's stripe, and its expected contents.
struct Stripe {
    file: AsyncFile,
    start: u64,
    rng: Rng,
    may_be: Vec<BTreeSet<u8>>,
    /// Operations that were given up while they waited.
    given_up: u64,
}

impl Stripe {
    fn new(file: AsyncFile, at: u64) -> Self {
        Self {
            file,
            start: at * STRIPE,
            rng: Rng::new(number("FOLIOCACHE_SEED", 0).wrapping_mul(1000) + at + 1),
            may_be: vec![BTreeSet::from([0]); STRIPE as usize],
            given_up: 0,
        }
    }

    /// How often to poll before giving up: every small number comes, and often there is no giving up.
    fn patience(&mut self) -> usize {
        match self.rng.below(3) {
            0 => ALL,
            _ => self.rng.below(6) as usize,
        }
    }

    fn range(&mut self) -> (u64, usize) {
        let longest = match self.rng.below(4) {
            0 => STRIPE,
            1 => 3 * PAGE as u64,
            _ => 300,
        };
        let from = self.rng.below(STRIPE);
        let len = 1 + self.rng.below(longest.min(STRIPE - from));
        (from, len as usize)
    }

    fn write(&mut self) {
        let (from, len) = self.range();
        let value = 1 + self.rng.below(255) as u8;
        let polls = self.patience();
        let result = {
            // The memory goes with the future: a later access would touch freed memory.
            let bytes = vec![value; len];
            give_up_after(polls, self.file.write_at(&bytes, self.start + from))
        };
        let done = match result {
            Some(Ok(n)) => n,
            Some(Err(_)) => 0,
            None => {
                self.given_up += 1;
                0
            }
        };
        for (at, may_be) in self.may_be[from as usize..][..len].iter_mut().enumerate() {
            if at < done {
                may_be.clear();
            }
            may_be.insert(value);
        }
    }

    fn read(&mut self) {
        let (from, len) = self.range();
        let polls = self.patience();
        let mut bytes = vec![0; len];
        match give_up_after(polls, self.file.read_at(&mut bytes, self.start + from)) {
            Some(Ok(n)) => self.check(from, &bytes[..n]),
            Some(Err(error)) => assert_eq!(error.errno(), Errno::EIO),
            None => self.given_up += 1,
        }
    }

    fn check(&self, from: u64, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            let at = from as usize + at;
            let may_be = &self.may_be[at];
            assert!(
                may_be.contains(byte),
                "byte {at}: {byte} is none of {may_be:?}"
            );
        }
    }

    fn sync(&mut self) {
        let polls = self.patience();
        match give_up_after(polls, self.file.sync_data()) {
            Some(_) => {}
            None => self.given_up += 1,
        }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0 => self.sync(),
            1 => {
                // Clean pages go, so that there are misses.
                self.file.blocking().advise(Advice::DontNeed, ..).unwrap();
            }
            2..10 => self.read(),
            _ => self.write(),
        }
    }

    /// Everything that may still be under way is over, and stays so.
    fn settle(&mut self) {
        let synced: Result<()> = give_up_after(ALL, self.file.sync_data()).unwrap();
        // Earlier failures; the next one reports none.
        drop(synced);
        give_up_after(ALL, self.file.sync_data()).unwrap().unwrap();
        let mut bytes = vec![0; STRIPE as usize];
        give_up_after(ALL, self.file.read_exact_at(&mut bytes, self.start))
            .unwrap()
            .unwrap();
        self.check(0, &bytes);
        for (may_be, byte) in self.may_be.iter_mut().zip(bytes) {
            *may_be = BTreeSet::from([byte]);
        }
    }
}

fn rules(faults: &Faults) {
    let sometimes = |whole| When::Chance { part: 1, whole };
    let slow = Effect::Delay(Duration::from_micros(300));
    faults.add(Rule::new(OpSet::ALL, slow).when(sometimes(2)));
    faults.add(Rule::new(OpSet::READ, Effect::Fail(Errno::EIO)).when(sometimes(15)));
    faults.add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)).when(sometimes(15)));
    faults.add(Rule::new(OpSet::WRITE, Effect::Short).when(sometimes(10)));
    faults.add(Rule::new(OpSet::FLUSH, Effect::Fail(Errno::EIO)).when(sometimes(10)));
}

/// Whether the bound held, looked at all the time.
fn watch(cache: &Cache, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let memory = cache.stats().unwrap().memory;
        assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn dropping_futures_at_every_await_point_leaks_nothing_and_loses_nothing() {
    give_up_at_every_await_point(|store| store);
}

#[test]
fn dropping_futures_over_a_store_that_reads_in_the_background_loses_nothing() {
    give_up_at_every_await_point(|store| Background::new(store));
}

fn give_up_at_every_await_point(
    over: impl FnOnce(Arc<FaultyBackend>) -> Arc<dyn AddressSpaceOperations>,
) {
    let (cache, faults) = (cache(8), Faults::new(1));
    let store = FaultyBackend::new("store", &faults);
    let size = THREADS * STRIPE;
    let files = cache
        .open_store(over(store.clone()), size, THREADS as usize)
        .unwrap();
    let mut stripes: Vec<Stripe> = files
        .into_iter()
        .zip(0..)
        .map(|(file, at)| Stripe::new(file.into_async().unwrap(), at))
        .collect();
    let memory_before = cache.stats().unwrap().memory;
    let rounds = 2 * stress();
    for round in 0..rounds {
        rules(&faults);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| watch(&cache, &over));
            let threads: Vec<_> = stripes
                .iter_mut()
                .map(|stripe| scope.spawn(|| (0..150).for_each(|_| stripe.step())))
                .collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            over.store(true, Ordering::Relaxed);
            for result in results {
                result.unwrap();
            }
        });
        faults.heal();
        stripes.iter_mut().for_each(Stripe::settle);
        // The store equals the cache, and no folio is locked for good.
        for stripe in &stripes {
            let bytes = store.durable().read_vec(stripe.start, STRIPE as usize);
            stripe.check(0, &bytes);
        }
        println!(
            "round {round}: {:?}",
            stripes[0].file.worker_stats().unwrap()
        );
    }
    let given_up: u64 = stripes.iter().map(|stripe| stripe.given_up).sum();
    assert!(
        given_up > 20,
        "only {given_up} futures were given up: nothing is shown"
    );
    // A read in the background may be beside a truncate, whose pages are waited for afterwards.
    let mut broken = store.broken_contract();
    broken.retain(|what| !what.contains("beside a Read") && !what.starts_with("Read of"));
    assert_eq!(broken, [""; 0]);
    let stats = stripes[0].file.worker_stats().unwrap();
    assert!(stats.workers <= 4, "{stats:?}");
    let start = Instant::now();
    // The last tasks let go of their buffers and reservations.
    loop {
        let (buffered, memory) = (
            stripes[0].file.worker_stats().unwrap().buffered_bytes,
            cache.stats().unwrap().memory,
        );
        if buffered == 0 && memory.reserved_pages == 0 {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{buffered} {memory:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
    stripes[0]
        .file
        .blocking()
        .advise(Advice::DontNeed, ..)
        .unwrap();
    assert_eq!(
        cache.stats().unwrap().files.resident_pages,
        0,
        "every page could go"
    );
    assert_eq!(
        cache.stats().unwrap().memory.in_use_pages,
        memory_before.in_use_pages
    );
    drop(stripes);
    cache.close().unwrap();
    // The file has no other holder.
    while Arc::strong_count(&store) > 1 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the store still has a holder"
        );
        thread::sleep(Duration::from_millis(1));
    }
}
