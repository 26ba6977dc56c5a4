//! Large folios: how they come about, what they save, and how they come apart.

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{AddressSpace, AddressSpaceOperations, IoSegment, PAGE_SIZE, SlabArc};
use foliocache_mm::{BackingDevInfo, BdiKind, Mm, MmConfig};
use foliocache_sys::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const MIB: usize = 1 << 20;

/// A store that counts the bytes of each write, and refuses some of them.
#[derive(Default)]
struct Spots {
    store: Store,
    written: AtomicU64,
    /// A write that touches this page fails.
    bad: Mutex<Option<u64>>,
}

impl AddressSpaceOperations for Spots {
    fn read_folios(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        let bytes: usize = segments.iter().map(IoSegment::len).sum();
        if let Some(bad) = *self.bad.lock().unwrap() {
            let first = pos / PAGE_SIZE as u64;
            if (first..(pos + bytes as u64).div_ceil(PAGE_SIZE as u64)).contains(&bad) {
                return Err(Errno::EIO);
            }
        }
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.store.writepages(pos, segments)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.store.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "spots".into()
    }
}

fn spots(bdi: &Arc<BackingDevInfo>) -> (Arc<Spots>, SlabArc<AddressSpace>) {
    let store = Arc::new(Spots::default());
    let file = AddressSpace::new(bdi, Arc::clone(&store) as _, 0);
    (store, file)
}

fn pages_and_folios(file: &AddressSpace) -> (u64, u64) {
    let stats = file.stats();
    (stats.resident_pages, stats.folios)
}

#[test]
fn a_long_write_makes_large_folios_and_one_write_of_the_store() {
    let (mm, bdi) = storage(256);
    let (store, file) = spots(&bdi);
    let bytes = pattern(1, 0, 4 * MIB);
    write(&file, 0, &bytes);
    assert_eq!(pages_and_folios(&file), (1024, 2), "two folios of 2 MiB");
    file.sync().unwrap();
    assert_eq!(store.store.writes.load(Ordering::Relaxed), 1);
    assert!(store.store.content() == bytes);
    assert!(read(&file, 0, 5 * MIB) == bytes);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_small_overwrite_of_a_large_folio_reads_nothing_and_writes_its_page() {
    let (_mm, bdi) = storage(256);
    let (store, file) = spots(&bdi);
    let mut bytes = pattern(1, 0, 2 * MIB);
    write(&file, 0, &bytes);
    file.sync().unwrap();
    let before = store.written.load(Ordering::Relaxed);
    let piece = pattern(2, 7 * MIB as u64, PAGE_SIZE);
    write(&file, MIB as u64, &piece);
    file.sync().unwrap();
    bytes[MIB..MIB + PAGE_SIZE].copy_from_slice(&piece);
    assert_eq!(store.store.reads.load(Ordering::Relaxed), 0);
    let written = store.written.load(Ordering::Relaxed) - before;
    assert_eq!(written, PAGE_SIZE as u64, "for one page");
    assert!(store.store.content() == bytes);
    // Split until a grain is a page: 1 MiB, 512 KiB, and 256 KiB twice.
    assert_eq!(pages_and_folios(&file), (512, 4));
}

/// A store whose next truncation waits.
#[derive(Default)]
struct Gate {
    store: Store,
    /// Whether a truncation is under way, and whether it may end.
    inside: AtomicU64,
    open: AtomicU64,
}

impl AddressSpaceOperations for Gate {
    fn read_folios(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.store.writepages(pos, segments)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.store.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.inside.store(1, Ordering::SeqCst);
        while self.open.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a gate".into()
    }
}

#[test]
fn a_write_within_one_folio_waits_for_nobody_who_changes_the_size() {
    let (mm, bdi) = storage(64);
    let gate = Arc::new(Gate::default());
    let file = AddressSpace::new(&bdi, Arc::clone(&gate) as _, 0);
    let mut expected = pattern(1, 0, 16 * PAGE_SIZE);
    write(&file, 0, &expected);
    assert_eq!(pages_and_folios(&file), (16, 1));
    let grower = {
        let file = file.share();
        std::thread::spawn(move || file.truncate(1 << 20).unwrap())
    };
    while gate.inside.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // Whoever takes `i_rwsem` now waits for the gate, and the test for ever.
    for (pos, len) in [
        (0, 2 * PAGE_SIZE),
        (4000, 200),
        (3 * PAGE_SIZE + 5, 4 * PAGE_SIZE),
        (0, 16 * PAGE_SIZE),
    ] {
        let bytes = pattern(2, pos as u64, len);
        write(&file, pos as u64, &bytes);
        expected[pos..pos + len].copy_from_slice(&bytes);
        assert!(read(&file, 0, 16 * PAGE_SIZE) == expected);
    }
    gate.open.store(1, Ordering::SeqCst);
    grower.join().unwrap();
    file.sync().unwrap();
    assert!(gate.store.content()[..16 * PAGE_SIZE] == expected);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_write_within_the_part_of_a_folio_that_is_there_is_kept() {
    let (mm, bdi) = storage(64);
    let store = Arc::new(Store::default());
    let file = file(&bdi, &store);
    // The last folio is larger than what was appended of it.
    let mut expected = pattern(1, 0, 45 * PAGE_SIZE);
    for page in expected.chunks(PAGE_SIZE) {
        write(&file, file.size(), page);
    }
    assert!(file.stats().resident_pages > 45);
    for (pos, len) in [
        (40 * PAGE_SIZE + 1, 2 * PAGE_SIZE),
        (43 * PAGE_SIZE, 2 * PAGE_SIZE),
        (44 * PAGE_SIZE + 9, 50),
    ] {
        let bytes = pattern(3, pos as u64, len);
        write(&file, pos as u64, &bytes);
        expected[pos..pos + len].copy_from_slice(&bytes);
        assert!(read(&file, 0, 50 * PAGE_SIZE) == expected);
    }
    file.sync().unwrap();
    assert!(store.content() == expected);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn small_appends_grow_the_folios_and_random_writes_do_not() {
    let (_mm, bdi) = storage(256);
    let (_, appended) = spots(&bdi);
    let bytes = pattern(3, 0, 8 * MIB);
    for (at, piece) in bytes.chunks(PAGE_SIZE).enumerate() {
        write(&appended, (at * PAGE_SIZE) as u64, piece);
    }
    let (pages, folios) = pages_and_folios(&appended);
    assert!(folios < pages / 16, "{folios} folios of {pages} pages");
    assert!(pages <= 2048 + 512, "{pages} pages for 2048");
    assert!(read(&appended, 0, 8 * MIB) == bytes);

    let store = Store::with(&vec![0; 8 * MIB]);
    let random = file(&bdi, &store);
    for step in 0..512_u64 {
        write(
            &random,
            step * 7919 % 2048 * PAGE_SIZE as u64,
            &bytes[..PAGE_SIZE],
        );
    }
    assert_eq!(pages_and_folios(&random), (512, 512));
    assert_eq!(store.reads.load(Ordering::Relaxed), 0, "whole pages");
}

#[test]
fn odd_pieces_appended_are_all_there() {
    let (_mm, bdi) = storage(64);
    let (store, file) = spots(&bdi);
    let bytes = pattern(4, 0, 3 * MIB + 777);
    let (mut at, mut step) = (0, 1);
    while at < bytes.len() {
        let len = (step * 2741 % 30_011 + 1).min(bytes.len() - at);
        write(&file, at as u64, &bytes[at..at + len]);
        (at, step) = (at + len, step + 1);
    }
    assert!(read(&file, 0, 4 * MIB) == bytes);
    file.sync().unwrap();
    assert!(store.store.content() == bytes);
}

#[test]
fn a_folio_is_at_most_a_64th_of_the_bound() {
    let (mm, bdi) = storage(16);
    let (_, file) = spots(&bdi);
    write(&file, 0, &pattern(5, 0, MIB));
    let (pages, folios) = pages_and_folios(&file);
    let largest = mm.frames().capacity() / 64;
    assert!(folios >= pages / largest && folios < 16, "{folios} folios");
}

#[test]
fn a_cut_in_a_large_folio_keeps_what_is_before_it_alone() {
    let (mm, bdi) = storage(256);
    let (store, file) = spots(&bdi);
    let bytes = pattern(6, 0, 2 * MIB);
    write(&file, 0, &bytes);
    let size = 700_001;
    file.truncate(size).unwrap();
    assert_eq!(file.nr_pages(), size.div_ceil(PAGE_SIZE as u64));
    assert!(read(&file, 0, 2 * MIB) == bytes[..size as usize]);
    file.truncate(2 * MIB as u64).unwrap();
    let mut expected = bytes[..size as usize].to_vec();
    expected.resize(2 * MIB, 0);
    assert!(read(&file, 0, 2 * MIB) == expected);
    file.sync().unwrap();
    assert!(store.store.content() == expected);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_hole_in_a_large_folio_gives_its_pages_back() {
    let (mm, bdi) = storage(256);
    let (store, file) = spots(&bdi);
    let mut bytes = pattern(7, 0, 2 * MIB);
    write(&file, 0, &bytes);
    for (pos, len) in [(100_000, 900_000), (1_500_000, 30), (2 * MIB - 5000, 5000)] {
        file.punch_hole(pos as u64, len as u64).unwrap();
        bytes[pos..pos + len].fill(0);
        assert!(read(&file, 0, 2 * MIB) == bytes);
    }
    let whole = (1_000_000 / PAGE_SIZE - 100_000_usize.div_ceil(PAGE_SIZE)) as u64;
    // Reading brought the holes in again as clean pages.
    file.invalidate(0, u64::MAX);
    assert!(file.nr_pages() <= 512 - whole, "{} pages", file.nr_pages());
    file.sync().unwrap();
    assert!(store.store.content() == bytes);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn only_the_written_page_of_a_large_folio_is_reported_failed() {
    for pages in [2, 16, 512] {
        let (_mm, bdi) = storage(256);
        let (store, file) = spots(&bdi);
        write(&file, 0, &pattern(8, 0, pages * PAGE_SIZE));
        file.sync().unwrap();
        *store.bad.lock().unwrap() = Some(0);
        write(&file, 5, &[1; 10]);
        file.sync().unwrap_err();
        let failed = file.failed_ranges();
        assert_eq!(failed, [0..4096_u64; 1], "of {pages} pages");
        assert_eq!(file.discard_failed(), failed);
    }
}

#[test]
fn a_bad_spot_in_a_large_folio_keeps_its_own_page_from_the_store() {
    let (_mm, bdi) = storage(256);
    let (store, file) = spots(&bdi);
    let bytes = pattern(8, 0, 2 * MIB);
    *store.bad.lock().unwrap() = Some(200);
    write(&file, 0, &bytes);
    file.sync().unwrap_err();
    // Each pass halves further.
    while file
        .failed_ranges()
        .iter()
        .map(|range| range.end - range.start)
        .sum::<u64>()
        > 4096
    {
        file.sync().unwrap_err();
    }
    let location = 200 * 4096..201 * 4096;
    assert!(
        file.failed_ranges()
            .into_iter()
            .eq(std::iter::once(location))
    );
    let stored = store.store.content();
    assert!(stored[..200 * 4096] == bytes[..200 * 4096]);
    assert!(stored[201 * 4096..] == bytes[201 * 4096..]);
    *store.bad.lock().unwrap() = None;
    file.sync().unwrap();
    assert!(store.store.content() == bytes);
}

#[test]
fn memory_in_pieces_makes_smaller_folios_at_once() {
    let (mm, bdi) = storage(32);
    let (_, scattered) = spots(&bdi);
    let capacity = mm.frames().capacity();
    let page = pattern(9, 0, PAGE_SIZE);
    // Every second page of the file, so that no two are of one folio.
    for at in 0..capacity * 7 / 8 {
        write(&scattered, 2 * at * PAGE_SIZE as u64, &page);
        if at % 256 == 255 {
            scattered.sync().unwrap();
        }
    }
    scattered.sync().unwrap();
    let (_, large) = spots(&bdi);
    let bytes = pattern(10, 0, 4 * MIB);
    write(&large, 0, &bytes);
    assert!(read(&large, 0, 4 * MIB) == bytes);
    assert_eq!(large.nr_pages(), 1024);
}

#[test]
fn a_memory_file_system_has_large_folios_and_holes() {
    let mm = Mm::new(MmConfig::new(256 << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).unwrap();
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    let bytes = pattern(11, 0, 2 * MIB);
    write(&file, 4 * MIB as u64, &bytes);
    assert_eq!(pages_and_folios(&file), (512, 1));
    file.truncate(5 * MIB as u64 + 5).unwrap();
    file.truncate(6 * MIB as u64).unwrap();
    let mut expected = vec![0; 6 * MIB];
    expected[4 * MIB..5 * MIB + 5].copy_from_slice(&bytes[..MIB + 5]);
    assert!(read(&file, 0, 8 * MIB) == expected);
    drop(file);
    assert_empty(&mm);
}
