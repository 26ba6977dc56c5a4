//! Many threads on few frames: every byte where it belongs, the bound held, the counts back to zero;
//! and what reclaim keeps. `FOLIOCACHE_STRESS` multiplies the rounds.

use crate::common::{Random, Store, assert_empty, file, pattern, storage, stress_scale};
use foliocache_mm::{
    Access, AddressSpace, AddressSpaceOperations, IoSegment, Iocb, IovIter, PAGE_SIZE,
    ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const PAGE: u64 = PAGE_SIZE as u64;

fn read_at(
    file: &SlabArc<AddressSpace>,
    handle: &ReadaheadState,
    pos: u64,
    bytes: &mut [u8],
) -> usize {
    file.read(handle, &mut Iocb::at(pos), &mut IovIter::destination(bytes))
        .unwrap()
}

/// Bytes of a stripe: what one thread alone writes.
const STRIPE: u64 = 80 * PAGE + 1000;
const THREADS: u64 = 8;

/// What a thread knows of its stripe of one file.
struct Shadow {
    file: SlabArc<AddressSpace>,
    handle: ReadaheadState,
    start: u64,
    bytes: Vec<u8>,
    /// The stripe at the end of the file, whose owner alone changes the size.
    tail: bool,
}

impl Shadow {
    /// A range of the stripe: of any length within a page or two, or long.
    fn range(&self, random: &mut Random) -> (usize, usize) {
        let most = [100, 5000, STRIPE][random.below(3) as usize];
        let at = random.below(STRIPE - 1);
        let len = 1 + random.below(most.min(STRIPE - at));
        (at as usize, (at + len) as usize)
    }

    fn write(&mut self, random: &mut Random) {
        let (at, mut end) = self.range(random);
        if !self.tail {
            end = end.min(self.bytes.len());
        }
        let byte = random.below(256) as u8;
        let bytes: Vec<u8> = (at..end).map(|i| byte ^ i as u8).collect();
        let n = self
            .file
            .write(
                &mut Iocb::at(self.start + at as u64),
                &mut IovIter::source(&bytes),
            )
            .unwrap();
        assert_eq!(n, bytes.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(&bytes);
    }

    fn check(&self, at: usize, end: usize) {
        let mut bytes = vec![0xee; end - at];
        let n = read_at(&self.file, &self.handle, self.start + at as u64, &mut bytes);
        let expected = &self.bytes[at.min(self.bytes.len())..end.min(self.bytes.len())];
        assert!(n == expected.len(), "{n} bytes, not {}", expected.len());
        let wrong = (0..n).find(|&i| bytes[i] != expected[i]);
        assert_eq!(
            wrong, None,
            "at {at} to {end} of the stripe at {}",
            self.start
        );
    }

    fn punch(&mut self, random: &mut Random) {
        let (at, end) = self.range(random);
        let end = end.min(self.bytes.len());
        if at < end {
            let pos = self.start + at as u64;
            self.file.punch_hole(pos, (end - at) as u64).unwrap();
            self.bytes[at..end].fill(0);
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..40 => self.write(random),
            40..85 => {
                let (at, end) = self.range(random);
                self.check(at, end);
            }
            85..93 => self.punch(random),
            93..96 => self.file.sync().unwrap(),
            96..98 => drop(self.file.invalidate(self.start, STRIPE)),
            _ if self.tail => {
                // At least a byte stays, so that the other stripes are whole.
                let size = 1 + random.below(STRIPE - 1);
                self.file.truncate(self.start + size).unwrap();
                self.bytes.resize(size as usize, 0);
            }
            _ => drop(self.file.stats()),
        }
    }
}

/// 8 threads, each with a stripe of each of three files that do not fit together.
fn stripes(mib: u64, resize: bool, steps: u64, seed: u64) {
    let (mm, bdi) = storage(mib);
    let stores: Vec<_> = (0..3)
        .map(|who| Store::with(&pattern(who, 0, (THREADS * STRIPE) as usize)))
        .collect();
    let files: Vec<_> = stores.iter().map(|store| file(&bdi, store)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut samples, mut most) = (0u64, 0);
            while !stop.load(Ordering::Relaxed) {
                if resize {
                    let limit = [4, mib][samples as usize % 2] << 20;
                    mm.set_limit(limit).unwrap();
                    thread::sleep(std::time::Duration::from_millis(5));
                } else {
                    let usage = mm.usage();
                    assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
                    most = most.max(usage.total_bytes());
                }
                samples += 1;
                thread::yield_now();
            }
            assert!(resize || most > (mib << 20) / 2, "{most} bytes at most");
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|owner| {
                let files = &files;
                scope.spawn(move || {
                    let start = owner * STRIPE;
                    let mut random = Random::of(seed * 1000 + owner + 1);
                    let mut shadows: Vec<Shadow> = (0u8..)
                        .zip(files)
                        .map(|(who, file)| Shadow {
                            file: file.share(),
                            handle: ReadaheadState::new(),
                            start,
                            bytes: pattern(who, start, STRIPE as usize),
                            tail: owner == THREADS - 1,
                        })
                        .collect();
                    for _ in 0..steps {
                        let which = random.below(3) as usize;
                        shadows[which].step(&mut random);
                    }
                    for shadow in &shadows {
                        shadow.check(0, STRIPE as usize);
                    }
                    shadows
                        .into_iter()
                        .map(|shadow| shadow.bytes)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let stripes: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        stop.store(true, Ordering::Relaxed);
        sampler.join().unwrap();
        for (which, (file, store)) in files.iter().zip(&stores).enumerate() {
            file.sync().unwrap();
            let expected: Vec<u8> = stripes.iter().flat_map(|own| own[which].clone()).collect();
            assert!(store.content() == expected, "file {which} in the store");
            let stats = file.stats();
            let left = (
                stats.dirty_pages,
                stats.writeback_pages,
                stats.unstable_pages,
                stats.failed_pages,
            );
            assert_eq!(left, (0, 0, 0, 0));
        }
    });
    let evictions = mm.stats().files.evicted_pages;
    assert!(evictions > 0, "nothing was reclaimed");
    drop(files);
    bdi.stop();
    assert_empty(&mm);
    let usage = mm.usage();
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, usage.waiters),
        (0, 0, 0)
    );
    assert_eq!(usage.blocks_forced, 0);
}

#[test]
fn random_operations_on_stripes_within_the_bound() {
    stripes(6, false, 4000 * stress_scale(), 1);
}

#[test]
fn random_operations_while_the_bound_changes() {
    stripes(8, true, 4000 * stress_scale(), 2);
}

/// Readers of files whose every byte says where it belongs, beside eviction, rewriting, and files
/// that come and go with their frames.
#[test]
fn no_foreign_byte_is_ever_read() {
    const FILES: u8 = 4;
    const SIZE: u64 = 2 << 20;
    let (mm, bdi) = storage(4);
    let files: Vec<_> = (0..FILES)
        .map(|who| file(&bdi, &Store::with(&pattern(who, 0, SIZE as usize))))
        .collect();
    let reads = 10_000_000 * stress_scale();
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 1..=4 {
            let (files, done) = (&files, &done);
            scope.spawn(move || {
                let mut random = Random::of(seed);
                let handle = ReadaheadState::new();
                let mut bytes = [0; 16];
                while done.load(Ordering::Relaxed) < reads {
                    for _ in 0..256 {
                        let who = random.below(u64::from(FILES));
                        // A part that stays cached, and now and then any.
                        let size = if random.below(16) == 0 {
                            SIZE
                        } else {
                            SIZE / 8
                        };
                        let pos = random.below(size - 16);
                        let n = read_at(&files[who as usize], &handle, pos, &mut bytes);
                        for (at, &byte) in (pos..).zip(&bytes[..n]) {
                            let page = ((at >> 12) as u8).wrapping_mul(31);
                            let right = (at as u8) ^ page ^ (who as u8).wrapping_mul(97);
                            assert_eq!(byte, right, "byte {at} of file {who}");
                        }
                    }
                    done.fetch_add(256, Ordering::Relaxed);
                }
            });
        }
        // Rewrites what is there, drops it from the cache, and uses its frames for another file.
        let mut random = Random::of(99);
        let other = file(&bdi, &Store::with(b""));
        let noise = vec![0xa5; 64 * PAGE_SIZE];
        while done.load(Ordering::Relaxed) < reads {
            let who = random.below(u64::from(FILES));
            let victim = &files[who as usize];
            let pos = random.below(SIZE / 8 - 8 * PAGE);
            let bytes = pattern(who as u8, pos, 3 * PAGE_SIZE);
            victim
                .write(&mut Iocb::at(pos), &mut IovIter::source(&bytes))
                .unwrap();
            victim.sync().unwrap();
            victim.invalidate(pos, 8 * PAGE);
            other
                .write(&mut Iocb::at(0), &mut IovIter::source(&noise))
                .unwrap();
            other.truncate(0).unwrap();
        }
    });
    let stats = mm.stats().files;
    assert!(
        stats.evicted_pages > reads / 1000,
        "{} evictions",
        stats.evicted_pages
    );
    assert!(stats.hit_pages > reads / 4, "{} hits", stats.hit_pages);
    files.iter().for_each(|file| file.sync().unwrap());
    drop(files);
    assert_empty(&mm);
}

/// A store of any size that keeps nothing: each page is full of its own number.
struct Endless;

impl AddressSpaceOperations for Endless {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut at = pos;
        for segment in segments {
            for offset in (0..segment.len()).step_by(PAGE_SIZE) {
                let page = [(at / PAGE) as u8; PAGE_SIZE];
                segment.copy_from(offset, &page);
                at += PAGE;
            }
        }
        Ok((at - pos) as usize)
    }

    fn writepages(&self, _: u64, _: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Err(Errno::EROFS)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn describe(&self) -> String {
        "an endless store".into()
    }
}

fn read_page(file: &SlabArc<AddressSpace>, handle: &ReadaheadState, page: u64) {
    let mut bytes = [0; PAGE_SIZE];
    assert_eq!(read_at(file, handle, page * PAGE, &mut bytes), PAGE_SIZE);
    assert_eq!(bytes, [page as u8; PAGE_SIZE]);
}

#[test]
fn a_scan_leaves_the_hot_set_alone() {
    let (mm, bdi) = storage(16);
    let capacity = mm.usage().capacity_pages;
    let [hot_pages, scan_pages] = [capacity / 2, 8 * capacity];
    let [hot, scan] = [hot_pages, scan_pages]
        .map(|pages| AddressSpace::new(&bdi, Arc::new(Endless), pages * PAGE));
    let [hot_handle, scan_handle] = [ReadaheadState::new(), ReadaheadState::new()];
    hot_handle.advise(Access::Random);
    for _ in 0..3 {
        (0..hot_pages).for_each(|page| read_page(&hot, &hot_handle, page));
    }
    let before = hot.stats();
    let mut random = Random::of(5);
    for page in 0..scan_pages {
        read_page(&scan, &scan_handle, page);
        read_page(&hot, &hot_handle, random.below(hot_pages));
    }
    let after = hot.stats();
    let (hits, misses) = (
        after.hit_pages - before.hit_pages,
        after.missed_pages - before.missed_pages,
    );
    let ratio = hits as f64 / (hits + misses) as f64;
    assert!(ratio > 0.95, "{hits} hits, {misses} misses");
    assert!(
        scan.stats().evicted_pages > 6 * capacity,
        "the scan made room for itself"
    );
    let usage = mm.usage();
    assert!(usage.total_bytes() <= usage.limit_bytes);
}

/// A loop that the small queue cannot hold, beside pages that were hot once: it comes back soon
/// after it left, is known by its shadow entries, and takes the place of what nobody uses.
#[test]
fn a_loop_is_promoted_by_its_refaults() {
    let (mm, bdi) = storage(16);
    let capacity = mm.usage().capacity_pages;
    let [old_pages, loop_pages] = [capacity, capacity / 4];
    let [old, round] = [old_pages, loop_pages]
        .map(|pages| AddressSpace::new(&bdi, Arc::new(Endless), pages * PAGE));
    let handle = ReadaheadState::new();
    handle.advise(Access::Random);
    // Used three times, so that they fill the main queue.
    for page in 0..old_pages {
        (0..3).for_each(|_| read_page(&old, &handle, page));
    }
    let mut misses = Vec::new();
    for _ in 0..8 {
        let before = round.stats().missed_pages;
        (0..loop_pages).for_each(|page| read_page(&round, &handle, page));
        misses.push(round.stats().missed_pages - before);
    }
    let stats = round.stats();
    assert_eq!(misses[0], loop_pages, "{misses:?}");
    assert!(
        stats.refaults >= loop_pages / 2,
        "{} refaults, {misses:?}",
        stats.refaults
    );
    assert!(misses[7] < loop_pages / 20, "{misses:?}");
}

/// Every page of it comes back after it left, all alike: were each to push out another, none would
/// be there when it is used.
#[test]
fn a_loop_larger_than_the_cache_hits_for_the_most_part() {
    let (mm, bdi) = storage(16);
    let loop_pages = mm.usage().capacity_pages * 11 / 10;
    let round = AddressSpace::new(&bdi, Arc::new(Endless), loop_pages * PAGE);
    let handle = ReadaheadState::new();
    handle.advise(Access::Random);
    let mut misses = Vec::new();
    for _ in 0..8 {
        let before = round.stats().missed_pages;
        (0..loop_pages).for_each(|page| read_page(&round, &handle, page));
        misses.push(round.stats().missed_pages - before);
    }
    assert_eq!(misses[0], loop_pages, "{misses:?}");
    assert!(misses[7] < loop_pages / 2, "{misses:?} of {loop_pages}");
}
