//! Uncached operations: what they bring in leaves, what was there stays, and the counters say so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Iocb, IovIter, Mm,
    PAGE_SIZE, PinMode, ReadaheadState, SlabArc, UncachedStats,
};
use foliocache_sys::Errno;

const PAGE: u64 = PAGE_SIZE as u64;

/// A cache of `mib` MiB, and a file of `pages` pages in it.
fn rig(mib: u64, pages: u64) -> (Arc<Mm>, Arc<Store>, SlabArc<AddressSpace>) {
    let (mm, bdi) = storage(mib);
    let store = Store::with(&pattern(0, 0, (pages * PAGE) as usize));
    let file = file(&bdi, &store);
    (mm, store, file)
}

/// Reads `len` bytes at `pos` uncached and checks them.
fn read_uncached(file: &SlabArc<AddressSpace>, handle: &ReadaheadState, pos: u64, len: usize) {
    let mut bytes = vec![0xee; len];
    let mut iocb = Iocb {
        uncached: true,
        ..Iocb::at(pos)
    };
    let n = file.read(handle, &mut iocb, &mut IovIter::destination(&mut bytes));
    let n = n.unwrap();
    assert_eq!(n as u64, (len as u64).min(file.size() - pos));
    assert!(bytes[..n] == pattern(0, pos, n), "wrong bytes at {pos}");
}

/// The counters, which add up.
fn counted(file: &AddressSpace) -> UncachedStats {
    let stats = file.stats().uncached;
    let kept = stats.kept_present_pages + stats.kept_used_pages;
    let failed = stats.failed_locked_pages + stats.failed_held_pages;
    assert_eq!(
        stats.asked_pages,
        stats.dropped_pages + kept + failed + stats.pending_pages(),
        "{stats:?}"
    );
    stats
}

#[test]
fn uncached_scan_leaves_nothing_behind() {
    let (mm, store, file) = rig(16, 4096);
    let handle = ReadaheadState::new();
    for block in 0..256 {
        read_uncached(&file, &handle, block * 16 * PAGE, 16 * PAGE_SIZE);
    }
    let (stats, all) = (counted(&file), file.stats());
    assert_eq!(
        (stats.asked_pages, stats.dropped_pages),
        (4096, 4096),
        "{stats:?}"
    );
    assert_eq!((all.resident_pages, all.evicted_pages), (0, 0));
    assert_eq!(all.read_bytes, 4096 * PAGE, "each page is read once");
    assert!(store.reads.load(std::sync::atomic::Ordering::Relaxed) < 64);
    assert_eq!(mm.usage().in_use_pages, 0);
    assert_eq!(mm.stats().direct_reclaims, 0);
}

#[test]
fn uncached_random_reads_of_part_of_a_page_leave_nothing_behind() {
    let (_mm, _store, file) = rig(16, 1024);
    let handle = ReadaheadState::new();
    for turn in 0..100_u64 {
        let page = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 1023;
        read_uncached(&file, &handle, page * PAGE + 100, 64);
    }
    assert_eq!(file.stats().resident_pages, counted(&file).pending_pages());
    file.end_uncached(&handle);
    assert_eq!(file.stats().resident_pages, 0, "{:?}", counted(&file));
}

#[test]
fn uncached_backward_and_strided_scans_read_each_page_once() {
    let (_mm, _store, file) = rig(16, 2048);
    let handle = ReadaheadState::new();
    for block in (0..128).rev() {
        read_uncached(&file, &handle, block * 16 * PAGE, 16 * PAGE_SIZE);
    }
    assert_eq!(file.stats().resident_pages, 0, "{:?}", counted(&file));
    assert_eq!(file.stats().read_bytes, 2048 * PAGE);
    let handle = ReadaheadState::new();
    for block in 0..32 {
        read_uncached(&file, &handle, block * 64 * PAGE, 16 * PAGE_SIZE);
    }
    file.end_uncached(&handle);
    assert_eq!(file.stats().resident_pages, 0, "{:?}", counted(&file));
}

#[test]
fn uncached_reads_keep_pages_cached_before() {
    let (_mm, _store, file) = rig(16, 1024);
    read(&file, 100 * PAGE, 200 * PAGE_SIZE);
    let resident = file.stats().resident_pages;
    let handle = ReadaheadState::new();
    for block in 0..64 {
        read_uncached(&file, &handle, block * 16 * PAGE, 16 * PAGE_SIZE);
    }
    let stats = counted(&file);
    assert_eq!(file.stats().resident_pages, resident);
    assert_eq!(stats.kept_present_pages, resident, "{stats:?}");
    assert_eq!(stats.dropped_pages, 1024 - resident, "{stats:?}");
    assert_eq!(
        (stats.asked_pages, stats.pending_pages()),
        (1024, 0),
        "{stats:?}"
    );
}

/// Has `act` use page 8, which was read ahead of an uncached reader, and the reader go on; the pages that stay.
fn kept_by(act: impl Fn(&SlabArc<AddressSpace>)) -> u64 {
    let (_mm, _store, file) = rig(16, 1024);
    let handle = ReadaheadState::new();
    read_uncached(&file, &handle, 0, 8 * PAGE_SIZE);
    assert!(counted(&file).pending_pages() >= 8, "nothing is read ahead");
    act(&file);
    for block in 1..128 {
        let mut bytes = vec![0; 8 * PAGE_SIZE];
        let mut iocb = Iocb {
            uncached: true,
            ..Iocb::at(block * 8 * PAGE)
        };
        let mut iter = IovIter::destination(&mut bytes);
        file.read(&handle, &mut iocb, &mut iter).unwrap();
    }
    let stats = counted(&file);
    assert_eq!(stats.pending_pages(), 0, "{stats:?}");
    assert_eq!(
        file.stats().resident_pages,
        stats.kept_used_pages,
        "{stats:?}"
    );
    assert_eq!(file.stats().read_bytes, 1024 * PAGE, "one fetch");
    stats.kept_used_pages
}

#[test]
fn first_ordinary_use_keeps_the_folio() {
    assert_eq!(kept_by(|_| {}), 0);
    assert_eq!(kept_by(|file| drop(read(file, 8 * PAGE, 10))), 16);
    assert_eq!(kept_by(|file| write(file, 8 * PAGE, b"new")), 16);
    assert_eq!(kept_by(|file| file.populate(8 * PAGE, PAGE).unwrap()), 16);
    let in_place = |file: &SlabArc<AddressSpace>| {
        let read = file.read_in_place(&ReadaheadState::new(), &Iocb::at(8 * PAGE), 10, <[u8]>::len);
        assert_eq!(read, Some(10));
    };
    assert_eq!(kept_by(in_place), 16);
    let pin = |file: &SlabArc<AddressSpace>| {
        let pinned = file.pin(&ReadaheadState::new(), 8 * PAGE..9 * PAGE, PinMode::READ);
        drop(pinned.expect("a pin"));
    };
    assert_eq!(kept_by(pin), 16);
}

#[test]
fn closed_handle_drops_what_it_read_ahead() {
    let (_mm, _store, file) = rig(16, 1024);
    let handle = ReadaheadState::new();
    read_uncached(&file, &handle, 0, 8 * PAGE_SIZE);
    assert!(file.stats().resident_pages > 0);
    file.end_uncached(&handle);
    let stats = counted(&file);
    assert_eq!(
        (file.stats().resident_pages, stats.pending_pages()),
        (0, 0),
        "{stats:?}"
    );
}

/// Uncached streams through 51,000 pages, each ended soon after it began.
fn begin_streams(file: &SlabArc<AddressSpace>) {
    for turn in 1..200_u64 {
        let handle = ReadaheadState::new();
        for block in 0..4 {
            let pos = (turn * 256 + block * 8) * PAGE;
            read_uncached(file, &handle, pos, 8 * PAGE_SIZE);
        }
    }
}

/// Streams that begin and end leave little, which makes room for others first, while a device may write `pinned` pages
/// of another file.
fn leave_over_beside(pinned: u64) {
    let (mm, bdi) = storage(16);
    let store = Store::with(&pattern(0, 0, 65536 * PAGE_SIZE));
    let few = 3000 - pinned;
    let few_store = Store::with(&pattern(0, 0, (few * PAGE) as usize));
    let (scanned, cached) = (file(&bdi, &store), file(&bdi, &few_store));
    let written = file(&bdi, &Store::with(&pattern(0, 0, (pinned * PAGE) as usize)));
    let pin = (pinned > 0).then(|| {
        let pin = written.pin(&ReadaheadState::new(), 0..pinned * PAGE, PinMode::WRITE);
        pin.expect("a pin")
    });
    begin_streams(&scanned);
    let left = counted(&scanned).pending_pages();
    assert!(
        left > 0 && left <= mm.usage().limit_bytes / PAGE / 8,
        "{left}"
    );
    cached.populate(0, u64::MAX).unwrap();
    assert_eq!(cached.stats().resident_pages, few);
    let cached_more = file(&bdi, &store);
    let free = (mm.usage().limit_bytes - mm.usage().total_bytes()) / PAGE;
    cached_more.populate(0, (free + left / 2) * PAGE).unwrap();
    // In this order: the background reclaimer may be at work still.
    let evictions = cached.stats().evicted_pages;
    let stats = counted(&scanned);
    assert!(stats.pending_pages() < left, "{stats:?}");
    // What another thread was just about to evict is not there for who looks meanwhile.
    let start = Instant::now();
    while evictions > 0 && counted(&scanned).pending_pages() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{evictions}, {:?}",
            counted(&scanned)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(pin);
}

#[test]
fn pages_left_by_uncached_reads_are_bounded_and_evicted_first() {
    leave_over_beside(0);
}

#[test]
fn pages_left_by_uncached_reads_are_evicted_first_beside_write_pinned_pages() {
    leave_over_beside(1000);
}

#[test]
fn truncate_counts_what_it_takes() {
    let (_mm, _store, file) = rig(16, 1024);
    let handle = ReadaheadState::new();
    read_uncached(&file, &handle, 0, 8 * PAGE_SIZE);
    assert!(counted(&file).pending_pages() > 0);
    file.truncate(0).unwrap();
    let stats = counted(&file);
    assert_eq!(stats.pending_pages(), 0, "{stats:?}");
    assert_eq!(
        stats.asked_pages,
        stats.dropped_pages + stats.failed_held_pages,
        "{stats:?}"
    );
}

/// Uncached and ordinary readers and writers of one range, in a cache that is too small for it.
#[test]
fn beside_ordinary_readers_every_page_is_counted_once() {
    let (_mm, _store, file) = rig(8, 4096);
    std::thread::scope(|scope| {
        for who in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                let handle = ReadaheadState::new();
                let mut random = who + 1;
                for turn in 0..400 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let block = match who % 2 {
                        0 => turn % 256,
                        _ => random >> 33 & 255,
                    };
                    let pos = block * 16 * PAGE;
                    if who < 2 {
                        read_uncached(file, &handle, pos, 16 * PAGE_SIZE);
                    } else {
                        assert!(read(file, pos, 5000) == pattern(0, pos, 5000));
                    }
                }
                file.end_uncached(&handle);
            });
        }
    });
    let stats = counted(&file);
    assert!(stats.dropped_pages > 0, "{stats:?}");
    file.invalidate(0, u64::MAX);
    let stats = counted(&file);
    assert_eq!(
        (file.stats().resident_pages, stats.pending_pages()),
        (0, 0),
        "{stats:?}"
    );
}

/// A store that takes its time, knows who writes, and fails when it is told to.
#[derive(Default)]
struct Slow {
    store: Store,
    /// How long a write takes. None begins while this is locked.
    pause: Mutex<Duration>,
    writers: Mutex<Vec<ThreadId>>,
    failing: AtomicBool,
    flushed: AtomicU64,
}

impl AddressSpaceOperations for Slow {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let pause = *self.pause.lock().unwrap();
        std::thread::sleep(pause);
        self.writers
            .lock()
            .unwrap()
            .push(std::thread::current().id());
        match self.failing.load(Ordering::Relaxed) {
            true => Err(Errno::EIO),
            false => self.store.writepages(pos, segments),
        }
    }

    fn flush(&self) -> Result<(), Errno> {
        self.flushed.fetch_add(1, Ordering::Relaxed);
        self.store.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "slow".into()
    }
}

/// A cache of `mib` MiB and an empty file over a slow store.
fn slow_rig(mib: u64) -> (Arc<Mm>, Arc<Slow>, SlabArc<AddressSpace>) {
    let (mm, bdi) = storage(mib);
    let slow = Arc::new(Slow::default());
    let ops = Arc::clone(&slow) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(&bdi, ops, 0);
    (mm, slow, file)
}

fn write_uncached(file: &SlabArc<AddressSpace>, pos: u64, bytes: &[u8]) {
    let mut iocb = Iocb {
        uncached: true,
        ..Iocb::at(pos)
    };
    let n = file.write(&mut iocb, &mut IovIter::source(bytes)).unwrap();
    assert_eq!(n, bytes.len());
}

/// Waits until `reached` holds.
fn wait_until(file: &AddressSpace, reached: impl Fn(&UncachedStats) -> bool) {
    let start = Instant::now();
    while !reached(&file.stats().uncached) {
        assert!(start.elapsed().as_secs() < 20, "{:?}", file.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn uncached_writes_leave_nothing_once_they_are_durable() {
    let (mm, slow, file) = slow_rig(64);
    let bytes = pattern(0, 0, 16 << 20);
    for (at, block) in bytes.chunks(64 << 10).enumerate() {
        write_uncached(&file, (at * block.len()) as u64, block);
    }
    // Nobody asks: the flusher writes, flushes, and what it flushed goes.
    wait_until(&file, |stats| stats.pending_pages() == 0);
    let stats = counted(&file);
    // Folios at the end of the file have room for more than was written.
    assert!(
        stats.asked_pages >= 4096 && stats.asked_pages == stats.dropped_pages,
        "{stats:?}"
    );
    assert_eq!(
        (file.stats().resident_pages, mm.usage().in_use_pages),
        (0, 0)
    );
    assert!(slow.store.content() == bytes);
    assert!(slow.flushed.load(Ordering::Relaxed) > 0);
    let me = std::thread::current().id();
    assert!(
        !slow.writers.lock().unwrap().contains(&me),
        "written inline"
    );
    assert!(read(&file, 0, bytes.len()) == bytes);
}

#[test]
fn little_that_is_written_uncached_leaves_soon() {
    let (_mm, slow, file) = slow_rig(64);
    let held = slow.pause.lock().unwrap();
    write_uncached(&file, 0, b"little");
    write_uncached(&file, 6, b", and a little more");
    drop(held);
    wait_until(&file, |stats| stats.pending_pages() == 0);
    assert_eq!(
        (counted(&file).dropped_pages, file.stats().resident_pages),
        (1, 0)
    );
    assert!(read(&file, 0, 100) == b"little, and a little more");
}

#[test]
fn pages_that_were_cached_stay_when_they_are_written_uncached() {
    let (_mm, slow, file) = slow_rig(64);
    write(&file, 0, &pattern(0, 0, 64 * PAGE_SIZE));
    file.sync().unwrap();
    write_uncached(&file, 32 * PAGE, &pattern(1, 0, 64 * PAGE_SIZE));
    file.sync().unwrap();
    wait_until(&file, |stats| stats.pending_pages() == 0);
    let stats = counted(&file);
    assert_eq!(
        (stats.kept_present_pages, stats.dropped_pages),
        (32, 32),
        "{stats:?}"
    );
    assert_eq!(file.stats().resident_pages, 64);
    assert!(slow.store.content()[32 * PAGE_SIZE..] == pattern(1, 0, 64 * PAGE_SIZE));
}

#[test]
fn pages_used_before_they_are_durable_stay_cached() {
    let (_mm, slow, file) = slow_rig(64);
    let held = slow.pause.lock().unwrap();
    for page in 0..3 {
        write_uncached(&file, page * 16 * PAGE, &[1; PAGE_SIZE]);
    }
    write(&file, 16 * PAGE, &[2; 10]);
    assert!(read(&file, 0, 10) == [1; 10]);
    drop(held);
    file.sync().unwrap();
    wait_until(&file, |stats| stats.pending_pages() == 0);
    let stats = counted(&file);
    assert_eq!(
        (stats.kept_used_pages, stats.dropped_pages),
        (2, 1),
        "{stats:?}"
    );
    assert_eq!(file.stats().resident_pages, 2);
    assert!(read(&file, 16 * PAGE, 11) == [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn page_dirtied_again_beside_its_write_is_dropped_after_the_next() {
    let (_mm, slow, file) = slow_rig(64);
    *slow.pause.lock().unwrap() = Duration::from_millis(100);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.sync().unwrap();
            }
        });
        for turn in 0..20 {
            write_uncached(&file, 0, &[turn; 2 * PAGE_SIZE]);
            std::thread::sleep(Duration::from_millis(30));
            assert!(read_back(&file) == [turn; 2 * PAGE_SIZE], "turn {turn}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    file.sync().unwrap();
    wait_until(&file, |stats| stats.pending_pages() == 0);
    assert_eq!(file.stats().resident_pages, 0, "{:?}", counted(&file));
    assert!(slow.store.content() == [19; 2 * PAGE_SIZE]);
}

/// Reads two pages uncached.
fn read_back(file: &SlabArc<AddressSpace>) -> Vec<u8> {
    let mut bytes = vec![0; 2 * PAGE_SIZE];
    let mut iocb = Iocb {
        uncached: true,
        ..Iocb::at(0)
    };
    let mut iter = IovIter::destination(&mut bytes);
    file.read(&ReadaheadState::new(), &mut iocb, &mut iter)
        .unwrap();
    bytes
}

#[test]
fn uncached_data_whose_write_failed_stays_until_it_is_written() {
    let (_mm, slow, file) = slow_rig(64);
    slow.failing.store(true, Ordering::Relaxed);
    let bytes = pattern(0, 0, 512 * PAGE_SIZE);
    write_uncached(&file, 0, &bytes);
    assert_eq!(file.sync(), Err(Errno::EIO));
    let stats = file.stats();
    assert_eq!(
        (stats.dirty_pages, stats.failed_pages, stats.resident_pages),
        (512, 512, 512)
    );
    assert_eq!(counted(&file).pending_pages(), 512);
    assert!(read_back(&file) == bytes[..2 * PAGE_SIZE]);
    slow.failing.store(false, Ordering::Relaxed);
    file.sync().unwrap();
    wait_until(&file, |stats| stats.pending_pages() == 0);
    assert_eq!(file.stats().resident_pages, 0);
    assert!(slow.store.content() == bytes);
}

#[test]
fn pages_left_by_uncached_reads_are_reclaimed_beside_unwritable_data() {
    let (mm, slow, unwritten) = slow_rig(16);
    slow.failing.store(true, Ordering::Relaxed);
    write(&unwritten, 0, &pattern(0, 0, 890 * PAGE_SIZE));
    assert_eq!(unwritten.sync(), Err(Errno::EIO));
    let bdi = BackingDevInfo::new(&mm, "others", BdiKind::Storage).expect("a file system");
    let store = Store::with(&pattern(0, 0, 65536 * PAGE_SIZE));
    let (written, scanned, used) = (file(&bdi, &store), file(&bdi, &store), file(&bdi, &store));
    let pin = written.pin(&ReadaheadState::new(), 0..1780 * PAGE, PinMode::WRITE);
    let pin = pin.expect("a pin");
    begin_streams(&scanned);
    assert!(counted(&scanned).pending_pages() > 0);
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(read(&used, 0, 300 * PAGE_SIZE)));
    let read = is_done.recv_timeout(Duration::from_secs(10));
    assert!(
        read == Ok(pattern(0, 0, 300 * PAGE_SIZE)),
        "{:?}",
        mm.stats()
    );
    drop(pin);
    slow.failing.store(false, Ordering::Relaxed);
}

#[test]
fn uncached_writer_is_held_to_twice_the_background_limit() {
    let (mm, slow, file) = slow_rig(64);
    *slow.pause.lock().unwrap() = Duration::from_millis(10);
    let background = mm.frames().capacity() / 10;
    let block = pattern(0, 0, 256 << 10);
    for at in 0..256 {
        write_uncached(&file, at * block.len() as u64, &block);
        let held = file.stats().resident_pages;
        assert!(held <= 2 * background + 64 + 512, "{held} of {background}");
    }
    assert!(!file.stats().throttled.is_zero());
    // One long write, and some that do not wait.
    write_uncached(&file, 0, &pattern(0, 0, 48 << 20));
    *slow.pause.lock().unwrap() = Duration::from_millis(500);
    let mut iocb = Iocb {
        uncached: true,
        nowait: true,
        ..Iocb::at(file.size())
    };
    let mut write = || file.write(&mut iocb, &mut IovIter::source(&block));
    assert!((0..200).any(|_| write() == Err(Errno::EAGAIN)));
    assert!(file.stats().resident_pages <= 2 * background + 64 + 512);
    *slow.pause.lock().unwrap() = Duration::ZERO;
}
