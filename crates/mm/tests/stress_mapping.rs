//! Two files in fewer frames than either has, stored into through mappings by some threads, written, cut, punched,
//! made durable and evicted: every byte where it belongs, the bound held, nothing left. `FOLIOCACHE_STRESS` is the
//! number of seconds for each way to resolve faults.
#![cfg(not(any(loom, shuttle)))]
#![allow(missing_docs)]

mod common;

use common::{Store, assert_empty, file, pattern};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, FaultMode, Iocb, IovIter, Mm, MmConfig, PAGE_SIZE,
    ReadaheadState, Vma, VmaAccess,
};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_SIZE as u64;

/// Each has one byte in so many of both files.
const THREADS: u64 = 4;

/// Most bytes of a file.
const MOST: u64 = 24 * MIB;

fn seconds() -> u64 {
    std::env::var("FOLIOCACHE_STRESS").map_or(1, |n| n.parse().expect("a number"))
}

/// A generator of numbers, good enough to choose with.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// A file, and what its bytes are.
struct Checked {
    file: Arc<AddressSpace>,
    store: Arc<Store>,
    /// All zero beyond the size.
    bytes: Vec<AtomicU8>,
    /// Held shared for what changes one thread's bytes alone.
    size: RwLock<u64>,
}

impl Checked {
    fn new(bdi: &Arc<BackingDevInfo>, who: u8, size: u64) -> Self {
        let content = pattern(who, 0, size as usize);
        let store = Store::with(&content);
        let zeros = std::iter::repeat_n(0, (MOST - size) as usize);
        Self {
            file: file(bdi, &store),
            store,
            bytes: content
                .into_iter()
                .chain(zeros)
                .map(AtomicU8::new)
                .collect(),
            size: RwLock::new(size),
        }
    }

    fn expected(&self, pos: u64) -> u8 {
        self.bytes[pos as usize].load(Ordering::Relaxed)
    }

    fn set(&self, pos: u64, byte: u8) {
        self.bytes[pos as usize].store(byte, Ordering::Relaxed);
    }

    fn map(&self) -> Vma {
        let access = VmaAccess::ReadWrite;
        self.file.map(0, MOST as usize, access).expect("a mapping")
    }
}

/// One thread's.
struct Worker<'a> {
    files: &'a [Checked],
    vmas: Vec<Vma>,
    lane: u64,
    random: Random,
    handle: ReadaheadState,
}

impl Worker<'_> {
    /// Some of the thread's bytes within `size`: alone, a page's, or a run.
    fn bytes(&mut self, size: u64) -> impl Iterator<Item = u64> + use<> {
        let at = self.random.below(size) / THREADS * THREADS + self.lane;
        let (n, step) = match self.random.below(8) {
            0..4 => (1, 1),
            4..6 => (10, THREADS * 7),
            _ => (self.random.below(100), PAGE),
        };
        (0..n)
            .map(move |i| at + i * step)
            .filter(move |&at| at < size)
    }

    fn check(&self, which: usize, pos: u64, found: u8, how: &str) {
        let expected = self.files[which].expected(pos);
        assert_eq!(
            found,
            expected,
            "{how} byte {pos} of file {which}, page {}",
            pos / PAGE
        );
    }

    fn step(&mut self) {
        let which = self.random.below(2) as usize;
        match self.random.below(1000) {
            0..960 => self.share(which),
            960..968 => self.vmas[which] = self.files[which].map(),
            _ => self.change_all(which),
        }
    }

    /// Does something to the thread's own bytes.
    fn share(&mut self, which: usize) {
        let files = self.files;
        let checked = &files[which];
        let size = *checked.size.read().expect("no panic");
        let guard = checked.size.read().expect("no panic");
        if *guard != size || size == 0 {
            return;
        }
        let address = self.vmas[which].address();
        match self.random.below(100) {
            0..40 => {
                for pos in self.bytes(size) {
                    // SAFETY: inside the mapping and the file, whose end stays.
                    let found = unsafe { address.wrapping_add(pos as usize).read_volatile() };
                    self.check(which, pos, found, "load of");
                }
            }
            40..75 => {
                let byte = self.random.below(256) as u8;
                for pos in self.bytes(size) {
                    // SAFETY: as above; nobody else changes the byte.
                    unsafe { address.wrapping_add(pos as usize).write_volatile(byte) };
                    checked.set(pos, byte);
                }
            }
            75..78 => {
                // Beyond the end in the last page: as if it had never been.
                let at = size / THREADS * THREADS + self.lane;
                if at >= size && at / PAGE == (size - 1) / PAGE {
                    // SAFETY: inside the mapping and a page of the file.
                    unsafe { address.wrapping_add(at as usize).write_volatile(0xbb) };
                }
            }
            78..86 => {
                let byte = self.random.below(256) as u8;
                for pos in self.bytes(size) {
                    let mut iter = IovIter::source(std::slice::from_ref(&byte));
                    let written = checked.file.write(&mut Iocb::at(pos), &mut iter);
                    assert_eq!(written, Ok(1));
                    checked.set(pos, byte);
                }
            }
            86..94 => {
                let pos = self.random.below(size);
                let mut bytes = vec![0; (1 + self.random.below(20 * PAGE)) as usize];
                let mut iter = IovIter::destination(&mut bytes);
                let read = checked
                    .file
                    .read(&self.handle, &mut Iocb::at(pos), &mut iter);
                let read = read.expect("read") as u64;
                assert_eq!(read, (size - pos).min(bytes.len() as u64));
                for at in (pos..pos + read).filter(|at| at % THREADS == self.lane) {
                    self.check(which, at, bytes[(at - pos) as usize], "read of");
                }
            }
            94..96 => {
                let start = self.random.below(size);
                let end = (start + self.random.below(64 * PAGE)).min(size);
                let write = self.random.below(2) == 0;
                let populated = self.vmas[which].populate(start as usize..end as usize, write);
                populated.expect("it is in the file");
            }
            96 => checked.file.sync().expect("sync"),
            97 => checked.file.fdatawrite(),
            _ => {
                let start = self.random.below(size);
                checked.file.invalidate(start, self.random.below(size) + 1);
            }
        }
    }

    /// Does something to everybody's bytes.
    fn change_all(&mut self, which: usize) {
        let (target, other) = (&self.files[which], &self.files[1 - which]);
        // Both always in the same order.
        let mut sizes: Vec<_> = self
            .files
            .iter()
            .map(|checked| checked.size.write())
            .collect();
        let other_size = **sizes[1 - which].as_ref().expect("no panic");
        let size: &mut u64 = sizes[which].as_mut().expect("no panic");
        match self.random.below(8) {
            0..4 => {
                // Mostly by little.
                let new = match self.random.below(3) {
                    0 => self.random.below(MOST),
                    1 => *size - self.random.below(10 * PAGE).min(*size),
                    _ => (*size + self.random.below(10 * PAGE)).min(MOST),
                };
                target.file.truncate(new).expect("truncate");
                (new..*size).for_each(|at| target.set(at, 0));
                *size = new;
            }
            4..6 if *size > 0 => {
                let start = self.random.below(*size);
                let end = (start + 1 + self.random.below(40 * PAGE)).min(*size);
                target.file.punch_hole(start, end - start).expect("punch");
                (start..end).for_each(|at| target.set(at, 0));
            }
            6 if other_size > 0 => {
                // From the other's mapping.
                let from = self.random.below(other_size);
                let len = (1 + self.random.below(100 * PAGE)).min(other_size - from);
                let to = self.random.below(MOST - len);
                let address = self.vmas[1 - which].address().wrapping_add(from as usize);
                // SAFETY: inside the mapping and the file, which nobody changes.
                let source = unsafe { std::slice::from_raw_parts(address, len as usize) };
                let mut iter = IovIter::source(source);
                let written = target.file.write(&mut Iocb::at(to), &mut iter);
                assert_eq!(written, Ok(len as usize));
                for at in 0..len {
                    target.set(to + at, other.expected(from + at));
                }
                *size = (*size).max(to + len);
            }
            _ => {
                let to = self.random.below(MOST - 600 * PAGE);
                let bytes = pattern(self.random.below(256) as u8, to, (600 * PAGE) as usize);
                let mut iter = IovIter::source(&bytes);
                let written = target.file.write(&mut Iocb::at(to), &mut iter);
                assert_eq!(written, Ok(bytes.len()));
                for (at, byte) in (to..).zip(&bytes) {
                    target.set(at, *byte);
                }
                *size = (*size).max(to + bytes.len() as u64);
            }
        }
    }
}

fn stress(mode: FaultMode, resize: bool, time: Duration) {
    let mut config = MmConfig::new(16 * MIB);
    config.fault_mode = mode;
    config.external_pressure = false;
    let mm = Mm::new(config).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
    let files = [
        Checked::new(&bdi, 1, MOST),
        Checked::new(&bdi, 2, 9 * MIB + 77),
    ];
    let (steps, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|lane| {
                let (files, steps, stop) = (&files, &steps, &stop);
                scope.spawn(move || {
                    let mut worker = Worker {
                        vmas: files.iter().map(Checked::map).collect(),
                        files,
                        lane,
                        random: Random(lane * 1000 + 1),
                        handle: ReadaheadState::new(),
                    };
                    while !stop.load(Ordering::Relaxed) {
                        worker.step();
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let start = Instant::now();
        let (mut seen, mut progress, mut turn) = (0, Instant::now(), 0);
        while !workers.iter().all(|worker| worker.is_finished()) {
            let usage = mm.usage();
            if resize {
                turn += 1;
                mm.set_limit([16, 20, 17, 32][turn % 4] * MIB)
                    .expect("a limit");
                thread::sleep(Duration::from_millis(5));
            } else if usage.total() > usage.limit {
                eprintln!("beyond the bound: {usage:?}");
                std::process::abort();
            }
            let now = steps.load(Ordering::Relaxed);
            if now != seen {
                (seen, progress) = (now, Instant::now());
            }
            if progress.elapsed().as_secs() > 60 {
                // Threads that hang cannot be joined.
                eprintln!("nobody gets on after {now} steps: {:?}", mm.stats());
                std::process::abort();
            }
            if start.elapsed() > time || workers.iter().any(|worker| worker.is_finished()) {
                stop.store(true, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_micros(100));
        }
        for worker in workers {
            worker.join().expect("a worker");
        }
    });
    let steps = steps.into_inner();
    for (which, checked) in files.iter().enumerate() {
        checked.file.sync().expect("sync");
        let size = *checked.size.read().expect("no panic");
        let stored = checked.store.content();
        assert_eq!(stored.len() as u64, size);
        let wrong = (0..size).find(|&at| stored[at as usize] != checked.expected(at));
        assert_eq!(
            wrong, None,
            "in the store of file {which}, after {steps} steps"
        );
        let stats = checked.file.stats();
        let left = (stats.dirty, stats.writeback, stats.unstable, stats.failed);
        assert_eq!(left, (0, 0, 0, 0));
    }
    let stats = mm.stats();
    assert!(stats.files.evictions > 0, "{stats:?}");
    drop(files);
    // Frames that are leaving are in use.
    assert_empty(&mm);
    let usage = mm.usage();
    assert_eq!((usage.reserved, usage.waiters), (0, 0));
    println!(
        "{mode:?}, resize {resize}: {steps} steps, {:?}",
        stats.files
    );
}

/// A quarter of it while the limit goes up and down.
fn stress_in(mode: FaultMode) {
    let time = Duration::from_millis(1000 * seconds());
    stress(mode, false, time * 3 / 4);
    stress(mode, true, time / 4);
}

#[test]
fn mappings_under_stress_with_faults_resolved_by_threads() {
    stress_in(FaultMode::Thread);
}

#[test]
fn mappings_under_stress_with_faults_resolved_inline() {
    stress_in(FaultMode::Inline);
}
