//! The pages that a fault maps besides its own, counted in faults.

use crate::common::{Store, assert_empty, file, pattern, read, write};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, FaultMode, Iocb, IovIter, Mm, MmConfig, PAGE_SIZE,
    ReadaheadState, SlabArc, Vma, VmaAccess,
};
use foliocache_sys::Errno;
use std::sync::Arc;
use std::thread;

const PAGE: u64 = PAGE_SIZE as u64;
const PAGES: u64 = 2048;

/// How the pages of a file are cached.
#[derive(Clone, Copy, Debug)]
enum Folios {
    Small,
    Large,
}

const BOTH: [Folios; 2] = [Folios::Small, Folios::Large];

struct World {
    mm: Arc<Mm>,
    bdi: Arc<BackingDevInfo>,
}

impl World {
    fn new(mode: FaultMode) -> Self {
        let mut config = MmConfig::new(64 << 20);
        config.fault_mode = mode;
        let mm = Mm::new(config).expect("a cache");
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
        Self { mm, bdi }
    }

    /// A file all of whose pages are cached, clean and not mapped.
    fn cached(&self, folios: Folios) -> SlabArc<AddressSpace> {
        let file = file(
            &self.bdi,
            &Store::with(&pattern(1, 0, (PAGES * PAGE) as usize)),
        );
        if matches!(folios, Folios::Small) {
            for page in 0..PAGES {
                read_page(&file, page);
            }
        }
        read(&file, 0, (PAGES * PAGE) as usize);
        assert_eq!(file.stats().resident_pages, PAGES);
        file
    }

    fn end(self, file: SlabArc<AddressSpace>) {
        drop(file);
        assert_empty(&self.mm);
    }
}

/// Reads a page without reading ahead.
fn read_page(file: &SlabArc<AddressSpace>, page: u64) {
    let handle = ReadaheadState::new();
    handle.advise(foliocache_mm::Access::Random);
    let mut bytes = vec![0; PAGE_SIZE];
    let mut iter = IovIter::destination(&mut bytes);
    let read = file.read(&handle, &mut Iocb::at(page * PAGE), &mut iter);
    assert_eq!(read, Ok(PAGE_SIZE));
}

fn map(file: &SlabArc<AddressSpace>) -> Vma {
    file.map(0, (PAGES * PAGE) as usize, VmaAccess::ReadWrite)
        .expect("a mapping")
}

fn load(vma: &Vma, page: u64) {
    let at = vma.address().wrapping_add((page * PAGE) as usize);
    // SAFETY: inside the mapping.
    let byte = unsafe { at.read_volatile() };
    assert_eq!(byte, pattern(1, vma.range().start + page * PAGE, 1)[0]);
}

fn store(vma: &Vma, page: u64) {
    let at = vma.address().wrapping_add((page * PAGE) as usize);
    let byte = pattern(1, vma.range().start + page * PAGE, 1)[0];
    // SAFETY: inside the mapping, which is for stores, and of which no reference exists.
    unsafe { at.write_volatile(byte) }
}

/// Faults of touches of these pages.
fn faults(vma: &Vma, touch: fn(&Vma, u64), pages: impl IntoIterator<Item = u64>) -> u64 {
    let before = vma.mapping().stats().faults;
    pages.into_iter().for_each(|page| touch(vma, page));
    vma.mapping().stats().faults - before
}

#[test]
fn a_scan_downwards_takes_as_few_faults_as_one_upwards() {
    for (mode, folios) in [FaultMode::Inline, FaultMode::Thread]
        .into_iter()
        .flat_map(|mode| BOTH.map(|folios| (mode, folios)))
    {
        let world = World::new(mode);
        let file = world.cached(folios);
        let up = faults(&map(&file), load, 0..PAGES);
        let down = faults(&map(&file), load, (0..PAGES).rev());
        assert!(
            up < 20 && down <= up + 2,
            "{mode:?}, {folios:?}: {up} and {down}"
        );
        world.end(file);
    }
}

#[test]
fn stores_downwards_take_as_few_faults_as_stores_upwards() {
    let world = World::new(FaultMode::Inline);
    let file = world.cached(Folios::Large);
    let up = faults(&map(&file), store, 0..PAGES);
    file.sync().expect("sync");
    let down = faults(&map(&file), store, (0..PAGES).rev());
    assert!(up < 40 && down <= up + 4, "{up} and {down}");
    file.sync().expect("sync");
    world.end(file);
}

#[test]
fn strided_loads_take_fewer_faults_than_pages() {
    for (folios, step) in BOTH
        .into_iter()
        .flat_map(|folios| [3, 40].map(|step| (folios, step)))
    {
        let world = World::new(FaultMode::Inline);
        let file = world.cached(folios);
        let places = PAGES / step as u64;
        for down in [false, true] {
            let vma = map(&file);
            let taken = match down {
                false => faults(&vma, load, (0..PAGES).step_by(step)),
                true => faults(&vma, load, (0..PAGES).rev().step_by(step)),
            };
            assert!(
                taken < places / 3,
                "{taken} for {places} every {step}, {folios:?}"
            );
        }
        world.end(file);
    }
}

#[test]
fn a_load_maps_the_block_around_it_over_pages_that_are_mapped_already() {
    for folios in BOTH {
        let world = World::new(FaultMode::Inline);
        let file = world.cached(folios);
        let vma = map(&file);
        // One page each.
        for page in [24, 50, 57] {
            assert_eq!(faults(&vma, store, [page]), 1);
        }
        assert_eq!(faults(&vma, load, [16]), 1);
        assert_eq!(faults(&vma, load, 16..32), 0, "{folios:?}: above");
        assert_eq!(faults(&vma, load, [62]), 1);
        assert_eq!(faults(&vma, load, 48..64), 0, "{folios:?}: below");
        drop(vma);
        file.sync().expect("sync");
        world.end(file);
    }
}

#[test]
fn a_load_maps_what_is_cached_over_pages_that_are_not() {
    let world = World::new(FaultMode::Inline);
    let backing = Store::with(&pattern(1, 0, (PAGES * PAGE) as usize));
    let file = file(&world.bdi, &backing);
    let vma = map(&file);
    vma.readahead().advise(foliocache_mm::Access::Random);
    let cached = [32, 33, 35, 38, 39, 40, 44, 47];
    cached.iter().for_each(|&page| read_page(&file, page));
    assert_eq!(faults(&vma, load, [39]), 1);
    assert_eq!(faults(&vma, load, cached), 0);
    assert_eq!(file.stats().resident_pages, 8);
    assert_eq!(faults(&vma, load, [34, 36]), 2);
    drop(vma);
    world.end(file);
}

#[test]
fn a_store_at_random_dirties_one_page_and_makes_no_neighbour_writable() {
    for folios in BOTH {
        let world = World::new(FaultMode::Inline);
        let file = world.cached(folios);
        let vma = map(&file);
        // Beside what loads have mapped, too.
        assert_eq!(faults(&vma, load, [100, 1000]), 2);
        let stored = [95, 112, 1008, 991, 300, 700];
        for (nth, page) in (1..).zip(stored) {
            let before = file.stats().mapped_pages;
            assert_eq!(faults(&vma, store, [page]), 1);
            assert_eq!(file.stats().mapped_pages - before, 1, "{page}, {folios:?}");
            // Those of a large folio count as a whole.
            if matches!(folios, Folios::Small) {
                assert_eq!(file.stats().dirty_pages, nth, "{page}");
            }
        }
        // Each neighbour is a fault of its own.
        for page in stored {
            assert_eq!(faults(&vma, store, [page - 1]), 1, "{page}");
        }
        drop(vma);
        file.sync().expect("sync");
        world.end(file);
    }
}

#[test]
fn a_block_ends_where_the_mapping_does_and_at_the_end_of_the_file() {
    foliocache_sys::usercopy::install_handlers().expect("handlers");
    for folios in BOTH {
        let world = World::new(FaultMode::Inline);
        let file = world.cached(folios);
        let part = |pages: std::ops::Range<u64>| {
            let len = ((pages.end - pages.start) * PAGE) as usize;
            file.map(pages.start * PAGE, len, VmaAccess::ReadWrite)
                .expect("a mapping")
        };
        let (middle, last) = (part(517..525), part(525..530));
        for (vma, page) in [(&middle, 3), (&last, 4)] {
            let pages = vma.len() as u64 / PAGE;
            let before = file.stats().mapped_pages;
            assert_eq!(faults(vma, load, [page]), 1);
            let mapped = file.stats().mapped_pages - before;
            assert!(mapped <= pages, "{mapped} of {pages}");
            assert!(faults(vma, load, 0..pages) <= 1);
        }
        file.truncate(520 * PAGE + 1).expect("truncate");
        drop(middle);
        let middle = part(517..525);
        assert_eq!(faults(&middle, load, [2]), 1);
        assert_eq!(faults(&middle, load, 0..4), 0);
        // SAFETY: inside the mapping; beyond the end of the file the copy finds nothing and says so.
        let beyond =
            unsafe { std::slice::from_raw_parts(middle.address().wrapping_add(4 * PAGE_SIZE), 1) };
        let sink = crate::common::file(&world.bdi, &Store::with(&[]));
        let copied = sink.write(&mut Iocb::at(0), &mut IovIter::source(beyond));
        assert_eq!(copied, Err(Errno::EFAULT));
        drop((middle, last, sink));
        world.end(file);
    }
}

#[test]
fn pages_that_are_to_be_dropped_are_not_kept_by_a_load_beside_them() {
    let world = World::new(FaultMode::Inline);
    let file = file(
        &world.bdi,
        &Store::with(&pattern(1, 0, (PAGES * PAGE) as usize)),
    );
    let vma = map(&file);
    read_page(&file, 40);
    for page in 32..40 {
        let mut iocb = Iocb::at(page * PAGE);
        iocb.uncached = true;
        let bytes = pattern(1, page * PAGE, PAGE_SIZE);
        let written = file.write(&mut iocb, &mut IovIter::source(&bytes));
        assert_eq!(written, Ok(PAGE_SIZE));
    }
    assert_eq!(faults(&vma, load, [40]), 1);
    file.sync().expect("sync");
    assert_eq!(file.stats().resident_pages, 1);
    drop(vma);
    world.end(file);
}

/// A store finds pages that loads have mapped, and behind them one that nothing has.
#[test]
fn all_of_a_range_that_is_locked_for_io_is_mapped_for_stores() {
    use std::io::{Read, Write};
    let world = World::new(FaultMode::Inline);
    let file = world.cached(Folios::Large);
    let vma = map(&file);
    assert_eq!(faults(&vma, load, [15]), 1);
    let range = 14 * PAGE_SIZE..40 * PAGE_SIZE;
    let lock = vma.lock_for_io(range.clone()).expect("locked");
    let new = pattern(3, 0, range.len());
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let sender = thread::spawn({
        let new = new.clone();
        move || writer.write_all(&new).expect("written")
    });
    // SAFETY: inside the mapping, and nobody else uses it.
    let target = unsafe {
        std::slice::from_raw_parts_mut(vma.address().wrapping_add(range.start), range.len())
    };
    let received = reader.read_exact(target);
    drop(reader);
    drop(lock);
    received.expect("the kernel stores into the mapping");
    sender.join().expect("no panic");
    assert!(read(&file, range.start as u64, range.len()) == new);
    drop(vma);
    file.sync().expect("sync");
    world.end(file);
}

/// Loads in all directions beside writes, truncates, hole punches and evictions.
#[test]
fn loads_downwards_beside_truncates_and_evictions_see_the_file() {
    foliocache_sys::usercopy::install_handlers().expect("handlers");
    for mode in [FaultMode::Inline, FaultMode::Thread] {
        let world = World::new(mode);
        let file = world.cached(Folios::Small);
        thread::scope(|scope| {
            let loads: Vec<_> = (0..2)
                .map(|which| {
                    let (file, bdi) = (&file, &world.bdi);
                    scope.spawn(move || {
                        let sink = crate::common::file(bdi, &Store::with(&[]));
                        for round in 0..30 {
                            let vma = map(file);
                            let step = 1 + (round + which) % 40;
                            for page in (0..PAGES).rev().step_by(step) {
                                let at = vma.address().wrapping_add((page * PAGE) as usize);
                                // SAFETY: inside the mapping; the copy finds nothing beyond the end and says so.
                                let byte = unsafe { std::slice::from_raw_parts(at, 1) };
                                let copied =
                                    sink.write(&mut Iocb::at(0), &mut IovIter::source(byte));
                                if copied == Ok(1) {
                                    let found = read(&sink, 0, 1)[0];
                                    let expected = pattern(1, page * PAGE, 1)[0];
                                    assert!([0, expected].contains(&found), "page {page}");
                                } else {
                                    assert_eq!(copied, Err(Errno::EFAULT));
                                    assert!(page >= PAGES / 2, "page {page}");
                                }
                            }
                        }
                    })
                })
                .collect();
            let mut round = 0;
            while !loads.iter().all(|load| load.is_finished()) {
                let cut = PAGES / 2 + round * 37 % (PAGES / 2);
                file.truncate(cut * PAGE).expect("truncate");
                file.truncate(PAGES * PAGE).expect("grow");
                file.punch_hole((PAGES / 2 + round % 100) * PAGE, 5 * PAGE)
                    .expect("punch");
                write(
                    &file,
                    cut * PAGE,
                    &pattern(
                        1,
                        cut * PAGE,
                        (32 * PAGE_SIZE).min(((PAGES - cut) * PAGE) as usize),
                    ),
                );
                file.invalidate(0, 300 * PAGE);
                round += 1;
            }
        });
        file.sync().expect("sync");
        world.end(file);
    }
}
