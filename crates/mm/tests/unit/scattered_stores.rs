//! Small stores here and there in large folios, as a database makes them: what is written back for them, and how.

use crate::common::{Random, Store, assert_empty, pattern, read, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, Extent, IoSegment, Mm, MmConfig,
    PAGE_SIZE, PinMode, ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_SIZE as u64;

/// A step before a write.
type Before = Box<dyn FnMut() + Send>;

/// A store that counts what it is given.
#[derive(Default)]
struct Counting {
    store: Store,
    /// How many extents each call had.
    calls: Mutex<Vec<usize>>,
    bytes: AtomicU64,
    before: Mutex<Option<Before>>,
}

impl AddressSpaceOperations for Counting {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        if let Some(mut before) = self.before.lock().unwrap().take() {
            before();
        }
        let bytes: usize = segments.iter().map(IoSegment::len).sum();
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.store.writepages(pos, segments)
    }

    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        self.calls.lock().unwrap().push(extents.len());
        for extent in extents {
            extent.written = Some(self.writepages(extent.pos, extent.segments()));
        }
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
        "a store that counts".into()
    }
}

struct Case {
    mm: Arc<Mm>,
    _bdi: Arc<BackingDevInfo>,
    store: Arc<Counting>,
    file: SlabArc<AddressSpace>,
}

impl Case {
    /// A file of `mib` MiB in folios of 1 MiB, durable. Nothing is written but for those who ask.
    fn of(mib: u64) -> Case {
        let mut config = MmConfig::new(256 * MIB);
        config.dirty_expire = Duration::from_secs(3600);
        (config.dirty_background_percent, config.dirty_percent) = (80, 90);
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        let store = Arc::new(Counting::default());
        let file = AddressSpace::new(&bdi, Arc::clone(&store) as _, 0);
        for pos in (0..mib * MIB).step_by(MIB as usize) {
            write(&file, pos, &pattern(1, pos, MIB as usize));
        }
        file.sync().unwrap();
        assert_eq!(file.stats().folios, mib);
        store.calls.lock().unwrap().clear();
        store.bytes.store(0, Ordering::Relaxed);
        Case {
            mm,
            _bdi: bdi,
            store,
            file,
        }
    }

    fn written(&self) -> u64 {
        self.store.bytes.swap(0, Ordering::Relaxed)
    }

    fn assert_durable(&self, expected: &[u8]) {
        self.file.sync().unwrap();
        assert!(self.store.store.content() == expected);
        assert!(read(&self.file, 0, expected.len()) == expected);
    }
}

#[test]
fn scattered_stores_write_back_their_pages_alone() {
    let case = Case::of(8);
    let mut expected = pattern(1, 0, 8 << 20);
    let mut random = Random::of(1);
    let mut pages = std::collections::HashSet::new();
    for _ in 0..200 {
        let page = random.below(8 * MIB / PAGE);
        pages.insert(page);
        // Not always all of a page.
        let len = [PAGE_SIZE, 100][random.below(2) as usize];
        let bytes = pattern(2, page * PAGE, len);
        write(&case.file, page * PAGE, &bytes);
        let at = (page * PAGE) as usize;
        expected[at..at + len].copy_from_slice(&bytes);
    }
    case.assert_durable(&expected);
    assert_eq!(case.written(), pages.len() as u64 * PAGE);
    assert_eq!(case.store.store.reads.load(Ordering::Relaxed), 0);
    drop(case.file);
    assert_empty(&case.mm);
}

#[test]
fn a_store_across_two_folios_or_their_parts_writes_back_its_pages_alone() {
    let case = Case::of(4);
    let mut expected = pattern(1, 0, 4 << 20);
    // Across folios, across the halves of one, and across parts of a half.
    for pos in [MIB, 2 * MIB + MIB / 2, 3 * MIB + MIB / 4] {
        let (pos, len) = (pos - PAGE, 2 * PAGE_SIZE);
        let bytes = pattern(3, pos, len);
        write(&case.file, pos, &bytes);
        expected[pos as usize..pos as usize + len].copy_from_slice(&bytes);
    }
    case.assert_durable(&expected);
    assert_eq!(case.written(), 3 * 2 * PAGE);
}

#[test]
fn a_store_of_whole_grains_leaves_a_large_folio_whole() {
    let case = Case::of(2);
    let mut expected = pattern(1, 0, 2 << 20);
    let bytes = pattern(4, 5 * (16 << 10), 48 << 10);
    write(&case.file, 5 * (16 << 10), &bytes);
    expected[5 * (16 << 10)..8 * (16 << 10)].copy_from_slice(&bytes);
    case.assert_durable(&expected);
    assert_eq!(case.written(), 48 << 10);
    assert_eq!(case.file.stats().folios, 2);
}

#[test]
fn a_folio_that_is_in_use_stays_whole_and_writes_back_its_grain() {
    let case = Case::of(1);
    let mut expected = pattern(1, 0, 1 << 20);
    let handle = ReadaheadState::new();
    let pin = case.file.pin(&handle, 0..MIB, PinMode::READ).unwrap();
    write(&case.file, 9 * PAGE, b"stored while a device reads");
    expected[9 * PAGE_SIZE..9 * PAGE_SIZE + 27].copy_from_slice(b"stored while a device reads");
    case.assert_durable(&expected);
    assert_eq!((case.written(), case.file.stats().folios), (16 << 10, 1));
    drop(pin);
    write(&case.file, 9 * PAGE, b"stored when no device does.");
    expected[9 * PAGE_SIZE..9 * PAGE_SIZE + 27].copy_from_slice(b"stored when no device does.");
    case.assert_durable(&expected);
    assert_eq!(case.written(), PAGE);
}

#[test]
fn a_store_to_a_large_folio_that_is_being_written_is_written_again() {
    let case = Case::of(1);
    write(&case.file, 0, &pattern(2, 0, 1 << 20));
    let mut expected = pattern(2, 0, 1 << 20);
    let file = SlabArc::downgrade(&case.file);
    *case.store.before.lock().unwrap() = Some(Box::new(move || {
        let file = file.upgrade().expect("it is being written");
        write(&file, 100 * PAGE, &[b'n'; 100]);
    }));
    case.file.sync().unwrap();
    assert!(case.file.bytes_not_durable() > 0, "it is dirty again");
    expected[100 * PAGE_SIZE..100 * PAGE_SIZE + 100].fill(b'n');
    case.assert_durable(&expected);
    assert_eq!(case.file.bytes_not_durable(), 0);
}

#[test]
fn scattered_pages_of_many_folios_are_written_together() {
    let case = Case::of(80);
    // One page of each folio: together the folios have 20,480 pages, of which 80 are dirty.
    for pos in (0..80 * MIB).step_by(MIB as usize) {
        write(&case.file, pos + 7 * PAGE, &pattern(5, pos, PAGE_SIZE));
    }
    case.file.sync().unwrap();
    assert_eq!(*case.store.calls.lock().unwrap(), [80]);
    assert_eq!(case.written(), 80 * PAGE);
}

#[test]
fn stores_syncs_and_cuts_beside_splits_lose_nothing() {
    const THREADS: u64 = 3;
    let case = Case::of(6);
    let done = AtomicBool::new(false);
    let file = &case.file;
    // Each thread has pages of its own; a page has a round's number throughout.
    let rounds = thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|who| {
                scope.spawn(move || {
                    let mut random = Random::of(who + 1);
                    let mut last = vec![None; (4 * MIB / PAGE) as usize];
                    for round in 0..2000_u64 {
                        let page = random.below(4 * MIB / PAGE / THREADS) * THREADS + who;
                        write(file, page * PAGE, &[round as u8; PAGE_SIZE]);
                        last[page as usize] = Some(round as u8);
                    }
                    last
                })
            })
            .collect();
        let others = [
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    file.sync().unwrap();
                }
            }),
            scope.spawn(|| {
                // What is cut is not what the writers have.
                while !done.load(Ordering::Relaxed) {
                    file.truncate(4 * MIB + PAGE).unwrap();
                    write(file, 4 * MIB, &pattern(6, 4 * MIB, MIB as usize));
                    write(file, 4 * MIB + 77 * PAGE, &[9; 100]);
                }
            }),
        ];
        let rounds: Vec<_> = writers.into_iter().map(|it| it.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|other| other.join().unwrap());
        rounds
    });
    file.sync().unwrap();
    let stored = case.store.store.content();
    let cached = read(file, 0, 4 << 20);
    for page in 0..4 * MIB / PAGE {
        let at = (page * PAGE) as usize;
        let expected = match rounds[(page % THREADS) as usize][page as usize] {
            Some(round) => vec![round; PAGE_SIZE],
            None => pattern(1, page * PAGE, PAGE_SIZE),
        };
        assert!(stored[at..at + PAGE_SIZE] == expected, "page {page}");
        assert!(cached[at..at + PAGE_SIZE] == expected, "page {page}");
    }
    drop(case.file);
    assert_empty(&case.mm);
}
