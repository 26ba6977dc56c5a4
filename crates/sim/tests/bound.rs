//! The bound is a law: eight threads dirty four times as much as fits, over a slow store, and at no
//! moment does the cache or the process hold more.

mod common;

use std::time::Duration;

use common::{Handle, MIB, PAGE, PATIENCE, cache, eventually, scaled, storage, within};
use foliocache_mm::Mm;
use foliocache_sim::{Effect, Faults, OpSet, Rng, Rule, StampBackend, When, stamp, stamped};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use foliocache_sys::Errno;
use foliocache_sys::memory::Resident;

const THREADS: u32 = 8;

/// Memory that the process may hold beyond the bound: heap and stacks of the test's threads, which
/// grow while they run.
const SLACK: u64 = 3 * MIB / 2;

fn process_anon_bytes() -> Result<u64, Errno> {
    Ok(Resident::of_process()?.anonymous)
}

/// Watches the bound until it is dropped.
struct Watch {
    stop: Arc<AtomicBool>,
    peaks: Arc<Peaks>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Peaks {
    usage: AtomicU64,
    anon: AtomicU64,
    samples: AtomicU64,
}

impl Watch {
    fn new(mm: &Arc<Mm>, base: u64) -> Self {
        let (stop, peaks) = (Arc::new(AtomicBool::new(false)), Arc::new(Peaks::default()));
        let thread = {
            let (mm, stop, peaks) = (Arc::clone(mm), Arc::clone(&stop), Arc::clone(&peaks));
            // Relaxed: figures read after the thread was joined, and a flag that orders nothing.
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let anon = process_anon_bytes().expect("smaps").saturating_sub(base);
                    peaks
                        .usage
                        .fetch_max(mm.usage().total_bytes(), Ordering::Relaxed);
                    peaks.anon.fetch_max(anon, Ordering::Relaxed);
                    peaks.samples.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        Self {
            stop,
            peaks,
            thread: Some(thread),
        }
    }

    /// Ends the watch; the most that was held, by the cache's count and by the kernel's.
    fn peaks(mut self) -> (u64, u64) {
        self.end();
        // Relaxed: statistics, read after the thread has ended.
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        assert!(
            read(&self.peaks.samples) > 10,
            "too few looks to say anything"
        );
        (read(&self.peaks.usage), read(&self.peaks.anon))
    }

    fn end(&mut self) {
        // Relaxed: the flag publishes nothing else.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the watch does not panic");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// A store that takes its time.
fn slow(seed: u64) -> Faults {
    let faults = Faults::new(seed);
    let delay = |us| Effect::Delay(Duration::from_micros(us));
    faults.add(Rule::new(OpSet::WRITE | OpSet::READ, delay(300)));
    let sometimes = When::Chance { part: 1, whole: 20 };
    faults.add(Rule::new(OpSet::CHANGES, delay(5000)).when(sometimes));
    faults
}

/// Writes `pages` pages of each thread's own file, in pieces of one to eight pages at random places,
/// each place once, and reads some back on the way.
fn load(files: Vec<(Handle, Arc<StampBackend>)>, pages: u64, generation: u32) -> Vec<Handle> {
    let threads: Vec<_> = files
        .into_iter()
        .map(|(handle, backend)| {
            std::thread::spawn(move || {
                let file = backend.file();
                let mut rng = Rng::new(u64::from(file) + u64::from(generation) * 100);
                let mut buf = vec![0; 8 * PAGE];
                let mut at = 0;
                while at < pages {
                    let n = rng.between(1, 8).min(pages - at);
                    let bytes = &mut buf[..n as usize * PAGE];
                    for (i, page) in bytes.chunks_mut(PAGE).enumerate() {
                        stamp(page, file, at + i as u64, generation);
                    }
                    handle.write(at * PAGE as u64, bytes);
                    at += n;
                    let back = rng.below(at);
                    let page = &mut buf[..PAGE];
                    let read = handle.read_into(back * PAGE as u64, page).expect("read");
                    assert_eq!(read, PAGE);
                    assert_eq!(stamped(page, 0, file, back), Ok(generation), "page {back}");
                }
                handle
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("a writer panicked"))
        .collect()
}

fn files(mm: &Arc<Mm>, faults: &Faults, pages: u64) -> Vec<(Handle, Arc<StampBackend>)> {
    let bdi = storage(mm, "slow");
    (0..THREADS)
        .map(|file| {
            let backend = StampBackend::new(file, pages as usize, faults);
            (Handle::open(&bdi, Arc::clone(&backend) as _, 0), backend)
        })
        .collect()
}

fn again(handles: Vec<Handle>, backends: &[Arc<StampBackend>]) -> Vec<(Handle, Arc<StampBackend>)> {
    handles.into_iter().zip(backends.iter().cloned()).collect()
}

/// Every page of every file, through the cache and in the store.
fn verify(handles: &[Handle], backends: &[Arc<StampBackend>], pages: u64, generation: u32) {
    let mut page = vec![0; PAGE];
    for (handle, backend) in handles.iter().zip(backends) {
        handle.fsync().expect("fsync");
        assert_eq!(backend.wrong_writes(), Vec::<String>::new());
        for index in 0..pages {
            let file = backend.file();
            assert_eq!(
                backend.generation(index),
                generation,
                "file {file} page {index}"
            );
            let read = handle
                .read_into(index * PAGE as u64, &mut page)
                .expect("read");
            assert_eq!(read, PAGE);
            assert_eq!(
                stamped(&page, 0, file, index),
                Ok(generation),
                "{file}: {index}"
            );
        }
    }
}

fn state(mm: &Arc<Mm>, faults: &Faults) -> impl Fn() -> String + use<> {
    let (mm, faults) = (Arc::clone(mm), faults.clone());
    move || format!("{:#?}\n{}", mm.stats(), faults.trace_text(10))
}

/// Everything in one test: the kernel counts the whole process, so no other test may run beside it.
#[test]
fn the_bound_holds() {
    dirty_four_times_the_bound();
    the_limit_changes_under_load();
}

fn dirty_four_times_the_bound() {
    const LIMIT: u64 = 32 * MIB;
    let pages = scaled(4 * LIMIT / PAGE as u64 / u64::from(THREADS));
    let faults = slow(1);
    // A first, small run brings the heap and the threads' arenas into being.
    warm_up();
    let mm = cache(LIMIT);
    let files = files(&mm, &faults, pages);
    let backends: Vec<_> = files
        .iter()
        .map(|(_, backend)| Arc::clone(backend))
        .collect();
    // Memory that the cache holds now counts against the bound, not as base.
    let base = process_anon_bytes()
        .expect("smaps")
        .saturating_sub(mm.usage().total_bytes());
    let watch = Watch::new(&mm, base);
    let handles = within(PATIENCE, state(&mm, &faults), move || {
        let handles = load(files, pages, 1);
        // Overwrite everything: now folios are found, evicted, read and written in turns.
        let handles = load(again(handles, &backends), pages, 2);
        verify(&handles, &backends, pages, 2);
        handles
    });
    let (usage, anon) = watch.peaks();
    println!("of {LIMIT}: {usage} by the cache's count, {anon} by the kernel's");
    assert!(usage <= LIMIT, "the cache counted {usage}");
    assert!(
        anon <= LIMIT + SLACK,
        "the process held {anon} more than before"
    );
    let stats = mm.stats();
    assert_eq!(stats.memory.blocks_forced, 0, "{stats:#?}");
    assert!(stats.files.evicted_pages > 0, "{stats:#?}");
    drop(handles);
    let empty = eventually(PATIENCE, || mm.usage().in_use_pages == 0);
    assert!(empty, "frames are left behind: {:#?}", mm.usage());
}

fn warm_up() {
    let faults = slow(2);
    let mm = cache(8 * MIB);
    let files = files(&mm, &faults, 512);
    drop(load(files, 512, 1));
}

fn the_limit_changes_under_load() {
    const HIGH: u64 = 48 * MIB;
    const LOW: u64 = 16 * MIB;
    let pages = scaled(2 * HIGH / PAGE as u64 / u64::from(THREADS));
    let faults = slow(3);
    let mm = cache(HIGH);
    let files = files(&mm, &faults, pages);
    let backends: Vec<_> = files
        .iter()
        .map(|(_, backend)| Arc::clone(backend))
        .collect();
    let base = process_anon_bytes()
        .expect("smaps")
        .saturating_sub(mm.usage().total_bytes());
    let done = Arc::new(AtomicBool::new(false));
    // Relaxed throughout: a flag that orders nothing.
    let changer = {
        let (mm, done) = (Arc::clone(&mm), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut changes = 0;
            while !done.load(Ordering::Relaxed) || changes < 4 {
                let limit = if changes % 2 == 0 { LOW } else { HIGH };
                mm.set_limit(limit).expect("a limit in range");
                let kept = eventually(PATIENCE, || mm.usage().total_bytes() <= limit);
                assert!(kept, "still over {limit}: {:#?}", mm.usage());
                std::thread::sleep(Duration::from_millis(150));
                let usage = mm.usage();
                assert!(usage.total_bytes() <= limit, "{usage:#?}");
                changes += 1;
            }
            changes
        })
    };
    let handles = {
        let backends = backends.clone();
        within(PATIENCE, state(&mm, &faults), move || {
            let handles = load(files, pages, 1);
            load(again(handles, &backends), pages, 2)
        })
    };
    done.store(true, Ordering::Relaxed);
    let changes = changer.join().expect("the limit's changer panicked");
    println!("{changes} changes of the limit");
    // Whole blocks are returned, as the kernel sees too.
    mm.set_limit(LOW).expect("a limit in range");
    let mut last = (0, 0);
    let given_back = eventually(PATIENCE, || {
        last = (
            mm.usage().total_bytes(),
            process_anon_bytes().expect("smaps").saturating_sub(base),
        );
        last.0 <= LOW && last.1 <= LOW + SLACK
    });
    assert!(
        given_back,
        "of {LOW}: {} counted, {} held\n{:#?}",
        last.0,
        last.1,
        mm.usage()
    );
    within(PATIENCE, state(&mm, &faults), move || {
        verify(&handles, &backends, pages, 2)
    });
    assert!(mm.usage().total_bytes() <= LOW);
}
