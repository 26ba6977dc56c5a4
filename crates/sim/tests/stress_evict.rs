//! Readers, writers, eviction and reuse of frames all at once: no read ever returns a byte of another
//! file or another page. `FOLIOCACHE_STRESS=30` makes it the ten million reads of a release run.

mod common;

use common::{Handle, MIB, PAGE, PATIENCE, cache, first_seed, scaled, storage, within};
use foliocache_mm::SlabArc;
use foliocache_sim::{Faults, Rng, StampBackend, stamp, stamped, stamped_mixed, words_around};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};

const FILES: u32 = 6;
/// Pages of each file: together five times the bound.
const PAGES: u64 = 2048;
const LIMIT: u64 = 10 * MIB;
const READERS: u64 = 4;
/// Most pages of one read.
const SPAN: usize = 32;

struct Shared {
    files: Vec<(SlabArc<foliocache_mm::AddressSpace>, Arc<StampBackend>)>,
    stop: AtomicBool,
    reads: AtomicU64,
}

/// Memory that was never touched: a copy into it takes a page fault for each page, which makes the
/// time between a reader's look-up and its check long enough for a frame to be taken away and used
/// again meanwhile.
#[derive(Default)]
struct Untouched {
    memory: Vec<u8>,
    used: usize,
}

impl Untouched {
    /// Too large for an allocator's reserve: each allocation is a separate mapping.
    const SIZE: usize = 36 << 20;

    fn take(&mut self, len: usize) -> &mut [u8] {
        if self.used + len > self.memory.len() {
            self.memory = Vec::new();
            self.memory = vec![0; Self::SIZE];
            self.used = 0;
        }
        self.used += len;
        &mut self.memory[self.used - len..self.used]
    }
}

/// Reads random pieces; whatever comes back must be of that file and page, of some generation.
fn reader(shared: &Shared, seed: u64, reads: u64) {
    let mut rng = Rng::new(seed);
    let handles: Vec<Handle> = shared
        .files
        .iter()
        .map(|(mapping, _)| Handle::of(mapping))
        .collect();
    let mut touched = vec![0; SPAN * PAGE];
    let mut untouched = Untouched::default();
    for _ in 0..reads {
        let file = rng.below(u64::from(FILES)) as usize;
        // Some reads in a corner that stays cached, the others anywhere.
        let hot = rng.one_in(1, 4);
        let page = rng.below(if hot { 100 } else { PAGES - SPAN as u64 });
        let (offset, pages) = match rng.below(4) {
            0 => (rng.below(PAGE as u64 / 64) as usize * 64, 0),
            1 => (0, 1),
            _ => (0, rng.between(1, SPAN as u64) as usize),
        };
        let len = if pages == 0 { 64 } else { pages * PAGE };
        let buf = match pages {
            0 | 1 => &mut touched[..len],
            _ => untouched.take(len),
        };
        let pos = page * PAGE as u64 + offset as u64;
        let read = handles[file].read_into(pos, buf).expect("read");
        assert_eq!(read, len, "the size does not change");
        let number = shared.files[file].1.file();
        for (i, bytes) in buf.chunks(PAGE).enumerate() {
            let index = page + i as u64;
            let start = if i == 0 { offset } else { 0 };
            if let Err(at) = stamped_mixed(bytes, start, number, index) {
                let words = words_around(bytes, start, number, index, at);
                panic!(
                    "a foreign byte in file {number}, page {index}, offset {at}, in a read of {pages} pages to {:p}: {words}",
                    bytes.as_ptr()
                );
            }
        }
        // Relaxed: a statistic.
        shared
            .reads
            .fetch_add(pages.max(1) as u64, Ordering::Relaxed);
    }
}

/// Overwrites pages of its files with increasing generations; its reads must return its last
/// writes.
fn writer(shared: &Shared, seed: u64, mine: std::ops::Range<usize>) {
    let mut rng = Rng::new(seed);
    let handles: Vec<Handle> = shared
        .files
        .iter()
        .map(|(mapping, _)| Handle::of(mapping))
        .collect();
    let mut newest = vec![vec![1_u32; PAGES as usize]; shared.files.len()];
    let mut page = vec![0; PAGE];
    // Relaxed: a flag that orders nothing.
    while !shared.stop.load(Ordering::Relaxed) {
        let file = rng.between(mine.start as u64, mine.end as u64 - 1) as usize;
        let number = shared.files[file].1.file();
        let index = rng.below(PAGES);
        let slot = &mut newest[file][index as usize];
        let pos = index * PAGE as u64;
        match rng.below(8) {
            0 => {
                handles[file]
                    .mapping
                    .punch_hole(pos, PAGE as u64)
                    .expect("punch");
                *slot = 0;
            }
            1..=4 => {
                *slot = rng.between(2, 1 << 30) as u32;
                stamp(&mut page, number, index, *slot);
                handles[file].write(pos, &page);
            }
            _ => {
                let read = handles[file].read_into(pos, &mut page).expect("read");
                assert_eq!(read, PAGE);
                let found = stamped(&page, 0, number, index);
                assert_eq!(found, Ok(*slot), "file {number} page {index}");
            }
        }
        if rng.one_in(1, 5000) {
            handles[file].fsync().expect("fsync");
        }
    }
    for file in mine {
        let number = shared.files[file].1.file();
        for (index, &expected) in newest[file].iter().enumerate() {
            let read = handles[file]
                .read_into((index * PAGE) as u64, &mut page)
                .expect("read");
            assert_eq!(read, PAGE);
            assert_eq!(
                stamped(&page, 0, number, index as u64),
                Ok(expected),
                "at the end"
            );
        }
        handles[file].fsync().expect("fsync");
        for (index, &expected) in newest[file].iter().enumerate() {
            let kept = shared.files[file].1.generation(index as u64);
            assert_eq!(kept, expected, "file {number} page {index} in the store");
        }
    }
}

#[test]
fn no_foreign_byte() {
    let mm = cache(LIMIT);
    let faults = Faults::new(0);
    let bdi = storage(&mm, "stamped");
    let files = (0..FILES)
        .map(|file| {
            let backend = StampBackend::with_generation(file, PAGES as usize, 1, &faults);
            let mapping = foliocache_mm::AddressSpace::new(
                &bdi,
                Arc::clone(&backend) as _,
                PAGES * PAGE as u64,
            );
            // The writer goes on while its pages are written out.
            backend.expect_overwrites();
            (mapping, backend)
        })
        .collect();
    let shared = Arc::new(Shared {
        files,
        stop: AtomicBool::new(false),
        reads: AtomicU64::new(0),
    });
    // A read of many pages looks each of them up by itself: nine look-ups a call.
    let reads = scaled(36_000) / READERS;
    let seed = first_seed(1);
    let state = {
        let mm = Arc::clone(&mm);
        move || format!("{:#?}", mm.stats())
    };
    let patience = PATIENCE * (scaled(1) as u32).max(1);
    let shared_too = Arc::clone(&shared);
    within(patience, state, move || {
        let shared = shared_too;
        std::thread::scope(|scope| {
            let shared = &shared;
            let readers: Vec<_> = (0..READERS)
                .map(|i| scope.spawn(move || reader(shared, seed * 1000 + i, reads)))
                .collect();
            // Three files are only read, three also written.
            let writer = scope.spawn(move || writer(shared, seed, 3..6));
            let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
            // Relaxed: a flag that orders nothing.
            shared.stop.store(true, Ordering::Relaxed);
            let written = writer.join();
            for result in results {
                result.expect("a reader panicked");
            }
            written.expect("the writer panicked");
        });
    });
    let stats = mm.stats();
    let mixed: u64 = shared.files.iter().map(|file| file.1.mixed_writes()).sum();
    println!(
        "{} reads of a page, {mixed} pages overwritten while they were written out\n{stats:#?}",
        shared.reads.load(Ordering::Relaxed)
    );
    assert!(
        stats.files.evicted_pages > PAGES,
        "there was too little eviction"
    );
    assert!(stats.memory.total_bytes() <= LIMIT);
    for (_, backend) in &shared.files {
        assert_eq!(backend.wrong_writes(), Vec::<String>::new());
    }
}
