//! Mapped files in few frames: what page tables show of folios that are gone, and who gets memory.
#![allow(unsafe_code)]

use super::*;
use crate::ops::{AddressSpaceOperations, IoSegment};
use crate::slab::SlabArc;
use crate::types::pages_for;
use crate::{BackingDevInfo, BdiKind, Iocb, IovIter, MmConfig, ReadaheadState, Vma, VmaAccess};
use foliocache_sync::Mutex;
use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::thread;
use foliocache_sync::time::{Duration, Instant, sleep};
use foliocache_sys::usercopy;

const PAGE: u64 = PAGE_SIZE as u64;

/// A store in memory that can be told to refuse writes, or reads.
#[derive(Debug)]
struct Store {
    bytes: Mutex<Vec<u8>>,
    refuses: AtomicBool,
    unreadable: AtomicBool,
}

impl AddressSpaceOperations for Store {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        if self.unreadable.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        let bytes = self.bytes.lock();
        let mut at = (pos as usize).min(bytes.len());
        let start = at;
        for segment in segments {
            let n = segment.len().min(bytes.len() - at);
            segment.copy_from(0, &bytes[at..at + n]);
            at += n;
        }
        Ok(at - start)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        let mut bytes = self.bytes.lock();
        let mut at = pos as usize;
        for segment in segments {
            let end = at + segment.len();
            let longer = end.max(bytes.len());
            bytes.resize(longer, 0);
            segment.copy_to(0, &mut bytes[at..end]);
            at = end;
        }
        Ok(at - pos as usize)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.bytes.lock().resize(size as usize, 0);
        Ok(())
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.bytes.lock()[pos as usize..(pos + len) as usize].fill(0);
        Ok(())
    }

    fn describe(&self) -> String {
        "a store in memory".into()
    }
}

struct World {
    mm: Arc<Mm>,
    bdi: Arc<BackingDevInfo>,
}

impl World {
    fn new(mib: u64) -> Self {
        let mut config = MmConfig::new(mib << 20);
        config.external_pressure = false;
        let mm = Mm::new(config).expect("a cache");
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
        Self { mm, bdi }
    }

    /// A file of so many pages, each full of `fill` plus its number.
    fn file(&self, fill: u8, pages: u64) -> (SlabArc<AddressSpace>, Arc<Store>) {
        let page = |page: u64| vec![byte(fill, page); PAGE_SIZE];
        let store = Arc::new(Store {
            bytes: Mutex::new((0..pages).flat_map(page).collect()),
            refuses: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
        });
        let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
        (AddressSpace::new(&self.bdi, ops, pages * PAGE), store)
    }

    /// Evicts all of a file that is clean.
    fn evict(&self, file: &AddressSpace) {
        let start = Instant::now();
        while file.nr_pages() > 0 {
            assert!(start.elapsed().as_secs() < 10, "{file:?}");
            self.mm.shrink_lru(1024);
        }
    }

    fn assert_empty(&self) {
        let start = Instant::now();
        while self.mm.usage().in_use_pages > 0 {
            assert!(start.elapsed().as_secs() < 10, "{:?}", self.mm.usage());
            self.mm.frames.punch_leaving();
            thread::yield_now();
        }
        assert_eq!(self.mm.frames.leaving(), 0);
    }
}

fn byte(fill: u8, page: u64) -> u8 {
    fill.wrapping_add((page % 97) as u8)
}

fn read(file: &AddressSpace, pos: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut iter = IovIter::destination(&mut bytes);
    let read = file.read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iter);
    assert_eq!(read, Ok(len));
    bytes
}

fn write(file: &AddressSpace, pos: u64, bytes: &[u8]) -> Result<usize, Errno> {
    file.write(&mut Iocb::at(pos), &mut IovIter::source(bytes))
}

fn map(file: &AddressSpace, pages: u64) -> Vma {
    let len = (pages * PAGE) as usize;
    file.map(0, len, VmaAccess::ReadWrite).expect("a mapping")
}

fn load(vma: &Vma, at: u64) -> u8 {
    // SAFETY: inside the mapping, in the file.
    unsafe { vma.address().wrapping_add(at as usize).read_volatile() }
}

fn store(vma: &Vma, at: u64, byte: u8) {
    // SAFETY: inside the mapping, in the file; nobody has a reference to it.
    unsafe { vma.address().wrapping_add(at as usize).write_volatile(byte) }
}

/// Whether page tables of the process have a page, which is not swapped out.
fn has_page_table_entry(page: *const u8) -> bool {
    let pagemap = std::fs::File::open("/proc/self/pagemap").expect("/proc");
    let mut entry = [0; 8];
    let at = (page.addr() / PAGE_SIZE * entry.len()) as u64;
    std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, at).expect("an entry");
    u64::from_ne_bytes(entry) >> 63 == 1
}

#[test]
fn a_page_that_a_load_brings_in_is_in_the_page_tables_of_its_window_alone() {
    let world = World::new(32);
    let (file, _) = world.file(1, 64);
    file.truncate(63 * PAGE + 100).expect("truncate");
    let vma = map(&file, 64);
    let frame = |page| {
        let frame = file.linear_frame(PageIndex(page)).expect("it is mapped");
        world.mm.frames.addr(frame)
    };
    assert_eq!(load(&vma, 63 * PAGE + 99), byte(1, 63));
    for page in [40, 7, 21] {
        assert_eq!(load(&vma, page * PAGE + 99), byte(1, page));
        assert!(!has_page_table_entry(frame(page)), "{page}");
    }
    assert_eq!(load(&vma, 63 * PAGE + 100), 0);
    // Frames that are not punched yet are taken back, in place.
    world.evict(&file);
    assert_eq!(load(&vma, 7 * PAGE), byte(1, 7));
    assert_eq!(read(&file, 7 * PAGE, PAGE_SIZE), [byte(1, 7); PAGE_SIZE]);
    assert!(has_page_table_entry(frame(7)));
    store(&vma, 21 * PAGE, 99);
    assert_eq!(load(&vma, 21 * PAGE + 1), byte(1, 21));
    assert_eq!(read(&file, 21 * PAGE, 1), [99]);
    drop((vma, file));
    world.assert_empty();
}

#[test]
fn the_cut_page_shows_zeros_when_the_file_grows_though_it_was_evicted() {
    let world = World::new(32);
    let (file, _) = world.file(1, 64);
    let vma = map(&file, 64);
    assert_eq!(load(&vma, 10 * PAGE + 200), byte(1, 10));
    world.evict(&file);
    file.truncate(10 * PAGE + 100).expect("truncate");
    file.truncate(64 * PAGE).expect("grow");
    assert_eq!(load(&vma, 10 * PAGE + 99), byte(1, 10));
    assert_eq!(load(&vma, 10 * PAGE + 200), 0);
    drop((vma, file));
    world.assert_empty();
}

#[test]
fn the_edges_of_a_hole_show_zeros_though_their_pages_were_evicted() {
    let world = World::new(32);
    let (file, _) = world.file(1, 64);
    let vma = map(&file, 64);
    for page in 10..14 {
        assert_eq!(load(&vma, page * PAGE), byte(1, page));
    }
    world.evict(&file);
    file.punch_hole(10 * PAGE + 100, 3 * PAGE).expect("punch");
    let shown = [
        10 * PAGE + 99,
        10 * PAGE + 100,
        13 * PAGE + 99,
        13 * PAGE + 100,
    ];
    let shown = shown.map(|at| load(&vma, at));
    assert_eq!(shown, [byte(1, 10), 0, 0, byte(1, 13)]);
    drop((vma, file));
    world.assert_empty();
}

#[test]
fn bytes_stored_beyond_the_end_are_zero_when_an_evicted_file_grows() {
    let world = World::new(32);
    let (file, _) = world.file(1, 11);
    file.truncate(10 * PAGE + 100).expect("truncate");
    let vma = map(&file, 64);
    store(&vma, 10 * PAGE + 200, 77);
    store(&vma, 10 * PAGE + 50, 78);
    file.sync().expect("sync");
    assert_eq!(load(&vma, 10 * PAGE + 200), 77);
    world.evict(&file);
    file.truncate(64 * PAGE).expect("grow");
    assert_eq!(load(&vma, 10 * PAGE + 200), 0);
    assert_eq!(load(&vma, 10 * PAGE + 50), 78);
    drop((vma, file));
    world.assert_empty();
}

#[test]
fn a_store_that_is_refused_does_not_become_possible_without_a_dirty_mark() {
    let world = World::new(16);
    let (file, backing) = world.file(1, 64);
    let (failing, refusing) = world.file(2, 4096);
    let vma = map(&file, 64);
    assert_eq!(load(&vma, PAGE), byte(1, 1));
    refusing.refuses.store(true, Ordering::Relaxed);
    // Until so much has failed that the file system takes no more.
    let refused = (0..4096).find(|page| {
        if page % 64 == 63 {
            let _ = failing.sync();
        }
        write(&failing, page * PAGE, &[3; PAGE_SIZE]).is_err()
    });
    assert!(refused.is_some(), "{:?}", world.mm.unreclaimable());
    usercopy::install_handlers().expect("handlers");
    let stored = [99];
    // SAFETY: inside the mapping; the copy survives that it cannot be accessed.
    let copied =
        unsafe { usercopy::copy(vma.address().wrapping_add(PAGE_SIZE), stored.as_ptr(), 1) };
    assert!(copied.is_err(), "the store was to be refused");
    refusing.refuses.store(false, Ordering::Relaxed);
    failing.sync().expect("it takes writes again");
    file.sync().expect("sync");
    assert_eq!(backing.bytes.lock()[PAGE_SIZE], byte(1, 1));
    // Not for ever.
    sleep(Duration::from_millis(2500));
    store(&vma, PAGE, 98);
    file.sync().expect("sync");
    assert_eq!(backing.bytes.lock()[PAGE_SIZE], 98);
    drop((vma, file, failing));
    world.assert_empty();
}

/// A thread for each file that reads all of its pages some times, all at once in a cache of `mib` MiB.
fn compete(mib: u64, files: &[(u64, bool)], rounds: usize) {
    let world = World::new(mib);
    let files: Vec<_> = (1..)
        .map(|which| 50 * which)
        .zip(files)
        .map(|(fill, &(pages, linear))| {
            let (file, _) = world.file(fill, pages);
            if linear {
                file.make_linear(pages).expect("linear");
            }
            (file, fill)
        })
        .collect();
    thread::scope(|scope| {
        let readers: Vec<_> = files
            .iter()
            .map(|(file, fill)| {
                scope.spawn(|| {
                    for page in (0..rounds).flat_map(|_| 0..pages_for(file.size())) {
                        assert_eq!(read(file, page * PAGE, 16), [byte(*fill, page); 16]);
                    }
                })
            })
            .collect();
        let mut last = (Instant::now(), 0);
        while !readers.iter().all(|reader| reader.is_finished()) {
            let usage = world.mm.usage();
            assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
            let stats = world.mm.stats();
            if stats.files.evicted_pages != last.1 {
                last = (Instant::now(), stats.files.evicted_pages);
            }
            assert!(last.0.elapsed().as_secs() < 30, "nobody gets on: {stats:?}");
            sleep(Duration::from_millis(1));
        }
    });
    drop(files);
    world.assert_empty();
    let usage = world.mm.usage();
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, usage.waiters),
        (0, 0, 0)
    );
}

#[test]
fn readers_of_both_kinds_of_files_are_served_in_fewer_frames_than_either_has() {
    compete(8, &[(3000, false), (3000, true)], 3);
}

#[test]
fn many_readers_of_one_kind_leave_memory_to_a_reader_of_the_other() {
    let general = (3000, false);
    let linear = (3000, true);
    compete(16, &[general, general, general, linear], 2);
    compete(16, &[linear, linear, linear, general], 2);
}

#[test]
fn a_limit_that_leaves_one_block_is_refused_once_a_file_was_mapped() {
    let world = World::new(32);
    world.mm.set_limit(4 << 20).expect("no file was mapped");
    world.mm.set_limit(32 << 20).expect("more");
    let (file, _) = world.file(1, 3000);
    file.make_linear(3000).expect("linear");
    read(&file, 0, 3000 * PAGE_SIZE);
    let error = world.mm.set_limit(4 << 20).expect_err("too small");
    assert!(
        matches!(error, crate::MmError::LimitTooSmall { .. }),
        "{error}"
    );
    for mib in [16, 32, 17, 24] {
        world.mm.set_limit(mib << 20).expect("a limit");
        for page in [0, 1000, 2999, 5] {
            assert_eq!(read(&file, page * PAGE, 1), [byte(1, page)]);
        }
        let start = Instant::now();
        while world.mm.frames.excess() > 0 {
            assert!(start.elapsed().as_secs() < 10, "{:?}", world.mm.usage());
            sleep(Duration::from_millis(1));
        }
        let usage = world.mm.usage();
        assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
    }
    drop(file);
    world.assert_empty();
}

#[test]
fn a_touch_that_is_told_of_late_poisons_no_page() {
    let world = World::new(16);
    let (file, store) = world.file(1, 4);
    let vma = file
        .map(0, 4 * PAGE_SIZE, VmaAccess::ReadWrite)
        .expect("a mapping");
    let address = |page: u64| vma.address().wrapping_add((page * PAGE) as usize);
    store.unreadable.store(true, Ordering::Relaxed);
    // As if the touch had been told of before and was resolved: nobody waits.
    world.mm.windows().resolve_for(address(2).addr(), false);
    store.unreadable.store(false, Ordering::Relaxed);
    // SAFETY: in the mapping.
    assert_eq!(unsafe { address(2).read_volatile() }, byte(1, 2));
    // A thread that does wait gets the error, also for a page that was refused before.
    usercopy::install_handlers().expect("handlers");
    store.unreadable.store(true, Ordering::Relaxed);
    let start = Instant::now();
    file.invalidate(0, u64::MAX);
    while file.stats().resident_pages > 0 {
        // The thread that resolved the touch may hold its folio for a moment longer.
        assert!(start.elapsed().as_secs() < 10, "{:?}", file.stats());
        sleep(Duration::from_millis(1));
        file.invalidate(0, u64::MAX);
    }
    for page in [2, 3] {
        assert_eq!(
            usercopy::fault_in_readable(address(page), 1),
            1,
            "page {page}"
        );
    }
    drop((vma, file));
    world.assert_empty();
}
