//! Readahead as a store sees it: how many reads, how large, and what of it is used.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use crate::common::{pattern, storage};
use foliocache_mm::{
    Access, AddressSpace, AddressSpaceOperations, FileStats, IoSegment, Iocb, IovIter, Mm,
    PAGE_SIZE, ReadDone, ReadMode, ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;

/// A read that was started.
struct Started {
    pos: u64,
    segments: Vec<IoSegment<'static>>,
    done: ReadDone,
}

/// A file whose bytes tell where they are, read on a thread of its own where the cache lets it.
struct Tape {
    size: u64,
    /// First page and pages of each read.
    reads: Arc<Mutex<Vec<(u64, u64)>>>,
    failing: Arc<AtomicBool>,
    /// Reads that their caller waited for.
    waited: AtomicUsize,
    device: mpsc::Sender<Started>,
}

impl Tape {
    fn new(pages: u64) -> Arc<Self> {
        let (device, queue) = mpsc::channel::<Started>();
        let (reads, failing) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let tape = Self {
            size: pages * PAGE_SIZE as u64,
            reads: Arc::clone(&reads),
            failing: Arc::clone(&failing),
            waited: AtomicUsize::new(0),
            device,
        };
        let size = tape.size;
        std::thread::spawn(move || {
            for Started {
                pos,
                segments,
                done,
            } in queue
            {
                done(serve(size, &reads, &failing, pos, &segments));
            }
        });
        Arc::new(tape)
    }
}

fn serve(
    size: u64,
    reads: &Mutex<Vec<(u64, u64)>>,
    failing: &AtomicBool,
    pos: u64,
    segments: &[IoSegment<'_>],
) -> Result<usize, Errno> {
    if failing.load(Ordering::Relaxed) {
        return Err(Errno::EIO);
    }
    let mut at = pos;
    for segment in segments {
        let len = segment.len().min((size - at) as usize);
        segment.copy_from(0, &pattern(0, at, len));
        at += len as u64;
    }
    let pages = (at - pos).div_ceil(PAGE_SIZE as u64);
    reads.lock().unwrap().push((pos >> 12, pages));
    Ok((at - pos) as usize)
}

impl AddressSpaceOperations for Tape {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.waited.fetch_add(1, Ordering::Relaxed);
        serve(self.size, &self.reads, &self.failing, pos, segments)
    }

    fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        let started = Started {
            pos,
            segments: segments.to_vec(),
            done,
        };
        self.device.send(started).unwrap();
    }

    fn read_mode(&self) -> ReadMode {
        ReadMode::Background
    }

    fn writepages(&self, _: u64, _: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Err(Errno::EIO)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EIO)
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EIO)
    }

    fn describe(&self) -> String {
        "a tape".into()
    }
}

/// A cache of `mib` MiB and a file of `pages` pages in it.
struct Rig {
    mm: Arc<Mm>,
    tape: Arc<Tape>,
    file: SlabArc<AddressSpace>,
}

impl Rig {
    fn new(mib: u64, pages: u64) -> Self {
        let (mm, bdi) = storage(mib);
        let tape = Tape::new(pages);
        let ops = Arc::clone(&tape) as Arc<dyn AddressSpaceOperations>;
        let file = AddressSpace::new(&bdi, ops, tape.size);
        Self { mm, tape, file }
    }

    /// Reads `pages` pages from `first` on and checks them.
    fn read(&self, handle: &ReadaheadState, first: u64, pages: u64) {
        let pos = first * PAGE_SIZE as u64;
        let mut bytes = vec![0xee; pages as usize * PAGE_SIZE];
        let n = self
            .file
            .read(
                handle,
                &mut Iocb::at(pos),
                &mut IovIter::destination(&mut bytes),
            )
            .unwrap();
        assert_eq!(n, bytes.len());
        assert!(bytes == pattern(0, pos, n), "wrong bytes at page {first}");
    }

    /// Figures once no read is on its way any more.
    fn settled(&self) -> FileStats {
        let mut before = self.file.stats();
        loop {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let now = self.file.stats();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    fn nr_reads(&self) -> usize {
        self.tape.reads.lock().unwrap().len()
    }

    fn pages_read(&self) -> u64 {
        self.tape.reads.lock().unwrap().iter().map(|r| r.1).sum()
    }
}

const STREAM: u64 = 2048;

#[test]
fn sixteen_interleaved_streams_are_read_as_one_after_the_other() {
    let alone = Rig::new(64, 16 * STREAM);
    let handle = ReadaheadState::new();
    for at in (0..16 * STREAM).step_by(16) {
        alone.read(&handle, at, 16);
    }
    let one_handle = Rig::new(64, 16 * STREAM);
    let many_handles = Rig::new(64, 16 * STREAM);
    let handle = ReadaheadState::new();
    let handles: Vec<_> = (0..16).map(|_| ReadaheadState::new()).collect();
    for at in (0..STREAM).step_by(16) {
        for (stream, own) in handles.iter().enumerate() {
            let page = stream as u64 * STREAM + at;
            one_handle.read(&handle, page, 16);
            many_handles.read(own, page, 16);
        }
    }
    for rig in [&one_handle, &many_handles] {
        let stats = rig.settled();
        assert!(
            stats.missed_pages <= 16 * 8 * 16,
            "{} misses",
            stats.missed_pages
        );
        // Each stream begins small and shares the budget with fifteen others.
        let (reads, few) = (rig.nr_reads(), alone.nr_reads());
        assert!(reads <= 8 * few.max(64), "{reads} reads, {few} for one");
        let pages = rig.pages_read();
        assert!(pages <= 17 * STREAM, "{pages} pages were read");
        assert!(
            pages / reads as u64 >= 32,
            "{} pages a read",
            pages / reads as u64
        );
    }
}

#[test]
fn a_sequential_reader_meets_its_pages_on_their_way_or_there() {
    let rig = Rig::new(64, 32_768);
    let handle = ReadaheadState::new();
    for at in (0..32_768).step_by(4) {
        rig.read(&handle, at, 4);
    }
    let stats = rig.settled();
    assert!(stats.missed_pages <= 200, "{} misses", stats.missed_pages);
    assert_eq!(
        stats.read_bytes,
        32_768 * PAGE_SIZE as u64,
        "each page once"
    );
    assert!(rig.nr_reads() <= 32_768 / 64, "{} reads", rig.nr_reads());
    assert_eq!(stats.readahead_wasted_pages, 0);
    assert_eq!(stats.readahead_pages, stats.readahead_used_pages);
}

#[test]
fn a_backward_reader_is_read_ahead_of() {
    let rig = Rig::new(64, 8_192);
    let handle = ReadaheadState::new();
    for step in 1..=(8_192 / 8) {
        rig.read(&handle, 8_192 - 8 * step, 8);
    }
    let stats = rig.settled();
    assert!(stats.missed_pages <= 100, "{} misses", stats.missed_pages);
    assert_eq!(rig.pages_read(), 8_192);
    assert!(rig.nr_reads() <= 8_192 / 32, "{} reads", rig.nr_reads());
}

#[test]
fn a_strided_reader_is_read_ahead_of_without_the_gaps() {
    for stride in [40, -40] {
        let rig = Rig::new(64, 40_000);
        let handle = ReadaheadState::new();
        for element in 0..900i64 {
            let base = if stride > 0 { 100 } else { 39_000 };
            rig.read(&handle, (base + element * stride) as u64, 4);
        }
        let stats = rig.settled();
        assert!(stats.missed_pages <= 200, "{} misses", stats.missed_pages);
        let pages = rig.pages_read();
        assert!(pages <= 4 * (900 + 100), "{pages} pages for {}", 4 * 900);
    }
}

#[test]
fn random_reads_bring_in_what_they_asked_for() {
    let rig = Rig::new(64, 100_000);
    let handle = ReadaheadState::new();
    let mut state = 0x9e37_79b9u64;
    for _ in 0..2_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        rig.read(&handle, (state >> 33) % 25_000 * 4, 4);
    }
    let stats = rig.settled();
    assert_eq!(rig.pages_read() * PAGE_SIZE as u64, stats.read_bytes);
    assert!(rig.pages_read() <= 2_000 * 4, "{} pages", rig.pages_read());
    assert_eq!(stats.readahead_pages, 0);
}

#[test]
fn pages_read_ahead_are_counted_as_used_or_wasted_and_no_third_thing() {
    let rig = Rig::new(16, 200_000);
    let handle = ReadaheadState::new();
    // Left after a few pages each, in a cache that has to evict.
    for chunk in 0..300 {
        for at in (0..48).step_by(4) {
            rig.read(&handle, chunk * 600 + at, 4);
        }
    }
    let before = rig.settled();
    assert!(before.readahead_wasted_pages > 0, "{before:?}");
    let unused =
        before.readahead_pages - before.readahead_used_pages - before.readahead_wasted_pages;
    assert!(unused <= before.resident_pages, "{before:?}");
    drop(handle);
    assert_eq!(rig.mm.stats().readahead_leased_pages, 0);
    // The wasted pages were taken into account: less is wasted by more of the same.
    let first = before.readahead_wasted_pages + unused;
    assert!(first <= 300 * 64, "{first} pages for 300 ends of streams");
    let Rig { mm, tape, file } = rig;
    drop(file);
    crate::common::assert_empty(&mm);
    let after = mm.stats().files;
    assert_eq!(
        after.readahead_pages,
        after.readahead_used_pages + after.readahead_wasted_pages
    );
    drop(tape);
}

#[test]
fn a_read_over_pages_that_are_there_waits_once_for_those_between_them() {
    for random in [false, true] {
        let rig = Rig::new(64, 4_096);
        let handle = ReadaheadState::new();
        if random {
            handle.advise(Access::Random);
        }
        for page in [8, 24, 40] {
            rig.read(&handle, 1_024 + page, 1);
        }
        let before = rig.settled();
        let waited = rig.tape.waited.load(Ordering::Relaxed);
        rig.read(&handle, 1_024, 64);
        assert_eq!(rig.tape.waited.load(Ordering::Relaxed) - waited, 1);
        let stats = rig.settled();
        assert_eq!(stats.hit_pages - before.hit_pages, 3, "{stats:?}");
        let missed = stats.missed_pages - before.missed_pages;
        let first_uses = stats.readahead_first_used_pages - before.readahead_first_used_pages;
        assert_eq!((missed, first_uses), (8, 64 - 8 - 3), "{stats:?}");
    }
}

#[test]
fn nothing_is_read_twice_by_a_second_pass() {
    let rig = Rig::new(64, 4_096);
    let handle = ReadaheadState::new();
    for _ in 0..2 {
        for at in (0..4_096).step_by(16) {
            rig.read(&handle, at, 16);
        }
    }
    rig.settled();
    assert_eq!(rig.pages_read(), 4_096);
}

#[test]
fn advice_of_random_access_reads_what_is_asked_for() {
    let rig = Rig::new(64, 4_096);
    let handle = ReadaheadState::new();
    handle.advise(Access::Random);
    for at in 0..64 {
        rig.read(&handle, at, 1);
    }
    assert_eq!(rig.settled().readahead_pages, 0);
    assert_eq!((rig.nr_reads(), rig.pages_read()), (64, 64));
}

#[test]
fn a_failed_read_ahead_is_an_error_of_nobody_but_who_needs_the_page() {
    let rig = Rig::new(64, 4_096);
    let handle = ReadaheadState::new();
    for at in (0..64).step_by(4) {
        rig.read(&handle, at, 4);
    }
    rig.settled();
    rig.tape.failing.store(true, Ordering::Relaxed);
    let mut page = vec![0; PAGE_SIZE];
    let mut at = 64;
    let failed = loop {
        let mut iter = IovIter::destination(&mut page);
        match rig
            .file
            .read(&handle, &mut Iocb::at(at * PAGE_SIZE as u64), &mut iter)
        {
            Ok(_) => at += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(failed, Errno::EIO);
    rig.tape.failing.store(false, Ordering::Relaxed);
    rig.settled();
    for at in (at..4_096 - 4).step_by(4) {
        rig.read(&handle, at, 4);
    }
}

/// Reads pages `from..to`, `step` at a time.
fn stream(rig: &Rig, handle: &ReadaheadState, from: u64, to: u64, step: u64) {
    for at in (from..to).step_by(step as usize) {
        rig.read(handle, at, step.min(to - at));
    }
}

#[test]
fn a_scan_of_more_than_the_cache_takes_its_room_from_itself() {
    let rig = Rig::new(64, 65_536);
    let (mm, tape) = (&rig.mm, Tape::new(6_144));
    let ops = Arc::clone(&tape) as Arc<dyn AddressSpaceOperations>;
    let other = Rig {
        mm: Arc::clone(mm),
        file: AddressSpace::new(rig.file.bdi(), ops, tape.size),
        tape,
    };
    // Used once each, which nothing but the age of what is around them would protect.
    stream(&other, &ReadaheadState::new(), 0, 6_144, 64);
    stream(&rig, &ReadaheadState::new(), 0, 65_536, 64);
    let kept = other.settled().resident_pages;
    assert!(kept >= 3_000, "{kept} of 6144 pages are left");
    let scan = rig.settled();
    assert!(scan.evicted_pages >= 65_536 - 16_384, "{scan:?}");
    assert_eq!(rig.pages_read(), 65_536);
}

#[test]
fn a_reader_close_behind_a_scan_reads_nothing_again() {
    let rig = Rig::new(64, 65_536);
    let handles = [ReadaheadState::new(), ReadaheadState::new()];
    let behind = 256;
    for at in (0..65_536 + behind).step_by(8) {
        if at < 65_536 {
            rig.read(&handles[0], at, 8);
        }
        if at >= behind {
            rig.read(&handles[1], at - behind, 8);
        }
    }
    rig.settled();
    let twice = rig.pages_read() - 65_536;
    // All but a few thousand would be, were the first reader's pages gone when it leaves them.
    assert!(twice <= 65_536 / 16, "{twice} pages were read twice");
}

#[test]
fn a_loop_over_more_than_the_cache_hits_what_stayed() {
    let rig = Rig::new(64, 20_000);
    let handle = ReadaheadState::new();
    stream(&rig, &handle, 0, 20_000, 16);
    rig.settled();
    const ROUNDS: u64 = 8;
    let before = rig.pages_read();
    for _ in 0..ROUNDS {
        stream(&rig, &handle, 0, 20_000, 16);
        rig.settled();
    }
    let read = (rig.pages_read() - before) / ROUNDS;
    // 15,800 pages fit: 4,200 have to be read each time.
    assert!(
        read <= 8_000,
        "{read} of 20000 pages were read in each round"
    );
}

/// Hits, first uses of readahead and misses since `before`.
fn lookups(rig: &Rig, before: &FileStats) -> (u64, u64, u64) {
    let now = rig.settled();
    (
        now.hit_pages - before.hit_pages,
        now.readahead_first_used_pages - before.readahead_first_used_pages,
        now.missed_pages - before.missed_pages,
    )
}

#[test]
fn a_cold_sequential_pass_has_no_hits_and_a_second_one_nothing_else() {
    const PAGES: u64 = 4_096;
    for step in [1, 4, 16, 64, 256] {
        let rig = Rig::new(64, PAGES);
        stream(&rig, &ReadaheadState::new(), 0, PAGES, step);
        let (hits, first_uses, misses) = lookups(&rig, &FileStats::default());
        assert_eq!(hits + first_uses + misses, PAGES, "{step} pages a read");
        assert!(hits <= PAGES / 50, "{hits} hits, {step} pages a read");
        let cold = rig.settled();
        assert!(cold.hit_ratio() < 0.02, "{cold}");
        stream(&rig, &ReadaheadState::new(), 0, PAGES, step);
        assert_eq!(lookups(&rig, &cold), (PAGES, 0, 0), "{step} pages a read");
    }
}

#[test]
fn short_reads_of_a_page_that_was_read_ahead_are_hits_after_the_first() {
    let rig = Rig::new(64, 512);
    let handle = ReadaheadState::new();
    let mut bytes = [0; 256];
    for pos in (0..512 * PAGE_SIZE as u64).step_by(bytes.len()) {
        let to = &mut IovIter::destination(&mut bytes);
        assert_eq!(rig.file.read(&handle, &mut Iocb::at(pos), to), Ok(256));
    }
    let (hits, first_uses, misses) = lookups(&rig, &FileStats::default());
    assert_eq!(first_uses + misses, 512);
    assert_eq!(hits, 512 * 15);
}

#[test]
fn random_reads_are_misses_and_then_hits() {
    let rig = Rig::new(64, 4_096);
    let handle = ReadaheadState::new();
    handle.advise(Access::Random);
    // Each 16 pages, of which the first two are there already, far from one another.
    let firsts: Vec<_> = (0..64).map(|n| n * 37 % 64 * 64).collect();
    for &first in &firsts {
        rig.read(&handle, first, 2);
    }
    let before = rig.settled();
    assert_eq!(
        (before.hit_pages, before.readahead_first_used_pages),
        (0, 0),
        "{before}"
    );
    assert_eq!(before.missed_pages, 128);
    for &first in &firsts {
        rig.read(&handle, first, 16);
    }
    assert_eq!(lookups(&rig, &before), (128, 0, 64 * 14));
    let before = rig.settled();
    for &first in &firsts {
        rig.read(&handle, first, 16);
    }
    assert_eq!(lookups(&rig, &before), (64 * 16, 0, 0));
}

#[test]
fn views_and_reads_in_place_count_like_reads() {
    const PAGES: u64 = 2_048;
    let rig = Rig::new(64, PAGES);
    let end = PAGES * PAGE_SIZE as u64;
    let in_views = || {
        let (handle, mut iocb) = (ReadaheadState::new(), Iocb::at(0));
        while iocb.pos < end {
            rig.file.view(&handle, &mut iocb, 4 * PAGE_SIZE).unwrap();
        }
    };
    in_views();
    let (hits, first_uses, misses) = lookups(&rig, &FileStats::default());
    assert_eq!(hits + first_uses + misses, PAGES);
    assert!(hits <= PAGES / 50, "{hits} hits of views");
    let cold = rig.settled();
    in_views();
    assert_eq!(lookups(&rig, &cold), (PAGES, 0, 0));

    let rig = Rig::new(64, PAGES);
    let in_place = || {
        let handle = ReadaheadState::new();
        for pos in (0..end).step_by(4 * PAGE_SIZE) {
            // As a mount reads: in place, or else what is missing is brought in and it tries again.
            let mut iocb = Iocb::at(pos);
            for _ in 0..8 {
                let read = rig
                    .file
                    .read_in_place(&handle, &iocb, 4 * PAGE_SIZE, <[u8]>::len);
                if read.is_some() {
                    break;
                }
                let missing = rig.file.fetch(&handle, &mut iocb, 4 * PAGE_SIZE as u64);
                missing.unwrap();
            }
        }
    };
    in_place();
    let (hits, first_uses, misses) = lookups(&rig, &FileStats::default());
    assert!(hits <= PAGES / 50, "{hits} hits in place");
    assert!(
        first_uses + misses >= PAGES * 9 / 10,
        "{first_uses} {misses}"
    );
    let cold = rig.settled();
    in_place();
    let (hits, first_uses, misses) = lookups(&rig, &cold);
    assert_eq!((first_uses, misses), (0, 0));
    assert!(hits >= PAGES * 9 / 10, "{hits} hits");
}
