//! Mapped files in huge pages of the kernel's pool.
//!
//! # Safety
//!
//! Pointers are used within mappings that the test has.
#![allow(unsafe_code)]

use crate::common::huge::HugePool;
use crate::common::{Store, assert_empty, file, pattern, read, write};
use foliocache_mm::{
    AddressSpace, BLOCK_SIZE, BackingDevInfo, BdiKind, FaultMode, HugeFrames, Iocb, IovIter,
    LockedAccess, MapError, Mm, MmConfig, PAGE_SIZE, PinError, PinMode, ReadaheadState, SlabArc,
    Vma, VmaAccess,
};
use foliocache_sys::Errno;
use foliocache_sys::memory::{ReservedRange, SharedMemory, free_huge_pages};
use foliocache_sys::usercopy;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
const UNIT: u64 = BLOCK_SIZE as u64;

const MODES: [FaultMode; 2] = [FaultMode::Thread, FaultMode::Inline];

/// A cache of `mib` MiB that wants huge pages.
fn storage(mib: u64, mode: FaultMode) -> (Arc<Mm>, Arc<BackingDevInfo>) {
    let mut config = MmConfig::new(mib << 20);
    config.fault_mode = mode;
    config.huge_frames = true;
    let mm = Mm::new(config).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
    (mm, bdi)
}

fn map(file: &SlabArc<AddressSpace>, access: VmaAccess) -> Vma {
    let len = file.size() as usize;
    file.map(0, len, access).expect("a mapping")
}

fn load(vma: &Vma, at: u64) -> u8 {
    assert!(at < vma.len() as u64);
    // SAFETY: inside the mapping.
    unsafe { vma.address().wrapping_add(at as usize).read_volatile() }
}

fn store(vma: &Vma, at: u64, byte: u8) {
    assert!(at < vma.len() as u64);
    // SAFETY: inside the mapping, which is for stores, and of which no reference exists.
    unsafe { vma.address().wrapping_add(at as usize).write_volatile(byte) }
}

/// Loads a byte as one who survives SIGBUS.
fn try_load(vma: &Vma, at: u64) -> Option<u8> {
    usercopy::install_handlers().expect("handlers");
    let from = vma.address().wrapping_add(at as usize);
    (usercopy::fault_in_readable(from, 1) == 0).then(|| load(vma, at))
}

/// Waits until a byte can be loaded, and is this.
fn wait_for_load(vma: &Vma, at: u64, byte: u8) {
    let start = Instant::now();
    while try_load(vma, at) != Some(byte) {
        assert!(start.elapsed() < Duration::from_secs(10), "byte {at}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn bytes(vma: &Vma) -> &[u8] {
    // SAFETY: all of it is in the file, and nobody changes it meanwhile.
    unsafe { std::slice::from_raw_parts(vma.address(), vma.len()) }
}

fn sync(file: &SlabArc<AddressSpace>) {
    file.fsync(&file.sample_wb_err()).expect("sync");
}

/// Waits until so many huge pages of the machine are free.
fn assert_free(pages: u64) {
    let start = Instant::now();
    while free_huge_pages() != pages {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{} pages are free, not {pages}",
            free_huge_pages()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_is_mapped_in_huge_pages_stored_to_evicted_and_read_again() {
    let Some(_pool) = HugePool::of(16) else {
        return;
    };
    for mode in MODES {
        let (mm, bdi) = storage(64, mode);
        assert_eq!(mm.usage().huge, HugeFrames::Wanted);
        let len = 3 * UNIT + 5 * PAGE + 17;
        let mut expected = pattern(1, 0, len as usize);
        let backing = Store::with(&expected);
        let file = file(&bdi, &backing);
        // Some of it is cached before, clean and dirty.
        read(&file, 0, 64 * PAGE_SIZE);
        read(&file, UNIT - PAGE, 3 * PAGE_SIZE);
        write(&file, UNIT + 100 * PAGE + 5, &[9; 100]);
        expected[(UNIT + 100 * PAGE + 5) as usize..][..100].fill(9);
        let vma = map(&file, VmaAccess::ReadWrite);
        assert_eq!(mm.usage().huge, HugeFrames::On);
        assert!(bytes(&vma) == expected);
        assert_eq!(free_huge_pages(), 16 - 4);
        assert_eq!(mm.usage().linear_bytes, 4 * UNIT);
        assert_eq!(file.stats().faults, 4);
        for round in 1..4 {
            for at in [3, UNIT - 1, 2 * UNIT + 77 * PAGE, len - 1] {
                store(&vma, at, round);
                expected[at as usize] = round;
                assert_eq!(read(&file, at, 1), [round]);
            }
            assert!(file.is_dirty());
            sync(&file);
            assert!(!file.is_dirty());
            assert!(backing.content() == expected);
            assert_eq!(file.invalidate(0, u64::MAX), 4 * (UNIT / PAGE));
            write(&file, 7 * PAGE + 1, &[round; 10]);
            expected[(7 * PAGE + 1) as usize..][..10].fill(round);
            assert!(bytes(&vma) == expected);
            assert!(mm.usage().total_bytes() <= mm.usage().limit_bytes);
        }
        assert!(read(&file, 0, expected.len()) == expected);
        // A part that begins and ends within huge pages.
        let part = file.map(UNIT + 3 * PAGE, UNIT as usize, VmaAccess::Read);
        let part = part.expect("a mapping");
        assert!(bytes(&part) == &expected[(UNIT + 3 * PAGE) as usize..][..UNIT as usize]);
        sync(&file);
        drop((vma, part, file));
        assert_empty(&mm);
        assert_free(16);
    }
}

#[test]
fn truncated_and_punched_ranges_read_as_zeros_despite_stores_beyond_the_end() {
    let Some(_pool) = HugePool::of(16) else {
        return;
    };
    for mode in MODES {
        let (mm, bdi) = storage(64, mode);
        let len = 2 * UNIT;
        let mut expected = pattern(2, 0, len as usize);
        let backing = Store::with(&expected);
        let file = file(&bdi, &backing);
        let vma = map(&file, VmaAccess::ReadWrite);
        store(&vma, 10, 1);
        expected[10] = 1;
        store(&vma, UNIT + 10, 1);
        let cut = 100 * PAGE + 50;
        file.truncate(cut).expect("a truncate");
        expected.truncate(cut as usize);
        assert_eq!(load(&vma, cut - 1), expected[cut as usize - 1]);
        // The rest of the huge page is zeros, and what is stored there is not kept.
        assert_eq!([load(&vma, cut), load(&vma, 300 * PAGE)], [0, 0]);
        store(&vma, cut, 5);
        store(&vma, 300 * PAGE, 5);
        assert_eq!(try_load(&vma, UNIT + 10), None, "beyond the last huge page");
        sync(&file);
        assert!(backing.content() == expected);
        // By a write that leaves a gap, and by a truncate.
        write(&file, 200 * PAGE, &[8; 10]);
        expected.resize(200 * PAGE_SIZE, 0);
        expected.extend([8; 10]);
        assert!(read(&file, 0, len as usize) == expected);
        store(&vma, 400 * PAGE, 6);
        file.truncate(len).expect("a truncate");
        expected.resize(len as usize, 0);
        // With threads it fails for a while.
        wait_for_load(&vma, UNIT, 0);
        assert!(bytes(&vma) == expected);
        file.punch_hole(5, UNIT + 1000).expect("a hole");
        expected[5..][..UNIT as usize + 1000].fill(0);
        assert!(bytes(&vma) == expected);
        sync(&file);
        assert!(backing.content() == expected);
        file.truncate(0).expect("a truncate");
        assert_eq!(try_load(&vma, 0), None);
        sync(&file);
        drop((vma, file));
        assert_empty(&mm);
        assert_free(16);
    }
}

#[test]
fn more_files_than_the_pool_has_pages_take_turns() {
    let Some(_pool) = HugePool::of(4) else { return };
    for mode in MODES {
        let (mm, bdi) = storage(64, mode);
        let stores: Vec<_> = (0..12_u8)
            .map(|who| Store::with(&pattern(who, 0, 3000 * usize::from(who + 1))))
            .collect();
        let files: Vec<_> = stores.iter().map(|store| file(&bdi, store)).collect();
        let general = Store::with(&pattern(99, 0, 20 << 20));
        let general = crate::common::file(&bdi, &general);
        read(&general, 0, 20 << 20);
        let vmas: Vec<_> = files
            .iter()
            .map(|file| map(file, VmaAccess::ReadWrite))
            .collect();
        for round in 0..3 {
            for (who, vma) in vmas.iter().enumerate() {
                store(vma, 7 + round, 200);
                assert_eq!(load(vma, 2999), pattern(who as u8, 2999, 1)[0]);
                assert!(mm.usage().linear_bytes <= 4 * UNIT, "{:?}", mm.usage());
            }
        }
        for (who, store) in stores.iter().enumerate() {
            sync(&files[who]);
            let mut expected = pattern(who as u8, 0, 3000 * (who + 1));
            expected[7..10].fill(200);
            assert!(store.content() == expected, "file {who}");
        }
        assert!(
            general.nr_pages() > 4000,
            "others gave up their pages in vain: {}",
            general.nr_pages()
        );
        drop((vmas, files, general));
        assert_empty(&mm);
        assert_free(4);
    }
}

/// All huge pages that are free, in another's hands.
struct Taken {
    _range: ReservedRange,
    _memory: SharedMemory,
}

impl Taken {
    fn all() -> Self {
        let len = free_huge_pages() as usize * BLOCK_SIZE;
        let range = ReservedRange::reserve(len).expect("addresses");
        // SAFETY: nobody else knows the range, and nobody touches it.
        let memory = unsafe { SharedMemory::over(&range, 0..len, true) }.expect("memory");
        memory.allocate(0..len as u64).expect("huge pages");
        Self {
            _range: range,
            _memory: memory,
        }
    }
}

#[test]
fn a_pool_that_others_emptied_costs_room_and_errors_but_nothing_else() {
    let Some(_pool) = HugePool::of(6) else { return };
    for mode in MODES {
        let (mm, bdi) = storage(64, mode);
        let content = pattern(3, 0, 8 * BLOCK_SIZE);
        let backing = Store::with(&content);
        let file = file(&bdi, &backing);
        let vma = map(&file, VmaAccess::ReadWrite);
        assert_eq!(load(&vma, 0), content[0]);
        let taken = Taken::all();
        // One page is left for all.
        for at in [UNIT, 3 * UNIT + 9, 7 * UNIT + 3, 0] {
            assert_eq!(load(&vma, at), content[at as usize]);
            assert_eq!(mm.usage().linear_bytes, UNIT, "{:?}", mm.usage());
        }
        store(&vma, 5, 77);
        sync(&file);
        assert_eq!(file.invalidate(0, u64::MAX), UNIT / PAGE);
        assert_free(1);
        let last = Taken::all();
        assert_eq!(try_load(&vma, 2 * UNIT), None);
        let mut byte = [0];
        let got = file.read(
            &ReadaheadState::new(),
            &mut Iocb::at(3 * UNIT),
            &mut IovIter::destination(&mut byte),
        );
        assert_eq!(got, Err(Errno::ENOMEM));
        let wrote = file.write(&mut Iocb::at(4 * UNIT), &mut IovIter::source(&[1]));
        assert_eq!(wrote, Err(Errno::ENOMEM));
        // Files that were not mapped have frames of their own.
        let other = Store::with(&content);
        let other = crate::common::file(&bdi, &other);
        assert!(read(&other, 0, content.len()) == content);
        drop((taken, last));
        wait_for_load(&vma, 2 * UNIT, content[2 * BLOCK_SIZE]);
        assert_eq!(load(&vma, 5), 77);
        assert!(bytes(&vma)[6..] == content[6..]);
        sync(&file);
        drop((vma, file, other));
        assert_empty(&mm);
        assert_free(6);
    }
}

#[test]
fn without_a_free_huge_page_mappings_have_small_ones_and_figures_say_why() {
    let Some(_pool) = HugePool::of(0) else { return };
    let (mm, bdi) = storage(32, FaultMode::Inline);
    let content = pattern(4, 0, 3 * BLOCK_SIZE);
    let backing = Store::with(&content);
    let file = file(&bdi, &backing);
    let vma = map(&file, VmaAccess::ReadWrite);
    assert_eq!(mm.usage().huge, HugeFrames::PoolEmpty);
    let text = mm.stats().memory.huge.to_string();
    assert_eq!(text, "4 KiB pages: no huge page was free (vm.nr_hugepages)");
    store(&vma, 3, 3);
    assert!(mm.usage().linear_bytes <= 64 * PAGE);
    assert!(bytes(&vma)[4..] == content[4..]);
    sync(&file);
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn held_huge_pages_do_not_hide_others_that_can_be_evicted() {
    let Some(_pool) = HugePool::of(7) else { return };
    let (mm, bdi) = storage(16, FaultMode::Thread);
    let content = pattern(6, 0, 12 * BLOCK_SIZE);
    let backing = Store::with(&content);
    let file = file(&bdi, &backing);
    let vma = map(&file, VmaAccess::Read);
    // Used again and again: they are in the queue of such folios.
    for round in 0..20 {
        for unit in [0, 1, 2] {
            assert_eq!(
                read(&file, unit * UNIT, 1)[0],
                content[(unit * UNIT) as usize]
            );
        }
        read(&file, (7 + round % 5) * UNIT, 1);
    }
    let held: Vec<_> = [4, 5, 6]
        .map(|unit| unit * BLOCK_SIZE..unit * BLOCK_SIZE + 1)
        .into_iter()
        .map(|range| vma.lock_for_io(range).expect("it may be held"))
        .collect();
    // What comes back goes to another queue than what is held.
    for unit in (0..12).cycle().take(120) {
        assert_eq!(load(&vma, unit * UNIT), content[(unit * UNIT) as usize]);
    }
    drop(held);
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn huge_pages_left_by_uncached_reads_are_reclaimed_beside_write_pinned_ones() {
    let Some(_pool) = HugePool::of(7) else { return };
    let (mm, bdi) = storage(16, FaultMode::Thread);
    let content = pattern(8, 0, 3 * BLOCK_SIZE);
    let new = || file(&bdi, &Store::with(&content));
    // A page that cannot move, so that general frames keep their unit.
    let small = new();
    let (handle, mut iocb) = (ReadaheadState::new(), Iocb::at(0));
    let view = small.view(&handle, &mut iocb, 1).expect("a view");
    let (written, scanned, used) = (new(), new(), new());
    let vmas = [&written, &scanned, &used].map(|file| map(file, VmaAccess::Read));
    let pin = written.pin(&handle, 0..3 * UNIT, PinMode::WRITE);
    let pin = pin.expect("a pin");
    for unit in 0..3 {
        let mut iocb = Iocb::at(unit * UNIT);
        iocb.uncached = true;
        let mut byte = [0];
        let read = scanned.read(&handle, &mut iocb, &mut IovIter::destination(&mut byte));
        assert_eq!((read, byte[0]), (Ok(1), content[(unit * UNIT) as usize]));
    }
    let (done, is_done) = std::sync::mpsc::channel();
    let reader = used.share();
    std::thread::spawn(move || done.send(read(&reader, 0, 3 * BLOCK_SIZE)));
    let read = is_done.recv_timeout(Duration::from_secs(10));
    assert!(read == Ok(content), "{:?}", mm.stats());
    drop((view, pin, vmas, small, written, scanned, used));
    assert_empty(&mm);
}

#[test]
fn locks_and_pins_leave_one_huge_page_of_the_pool_for_faults() {
    let Some(_pool) = HugePool::of(3) else { return };
    for mode in MODES {
        let (mm, bdi) = storage(16, mode);
        let content = pattern(7, 0, 6 * BLOCK_SIZE);
        let file = file(&bdi, &Store::with(&content));
        let vma = map(&file, VmaAccess::ReadWrite);
        let lock = |unit: usize| vma.lock_for_io(unit * BLOCK_SIZE..unit * BLOCK_SIZE + 1);
        let pin = |unit: u64| {
            let bytes = unit * UNIT..unit * UNIT + 1;
            file.pin(&ReadaheadState::new(), bytes, PinMode::READ)
        };
        let lasting = (lock(0).expect("a lock"), pin(1).expect("a pin"));
        let locked = lock(2);
        let pinned = pin(3);
        // It is SIGBUS where there is none.
        for unit in (0..6).cycle().take(60) {
            assert_eq!(load(&vma, unit * UNIT), content[(unit * UNIT) as usize]);
        }
        let refused = matches!(locked, Err(MapError::TooMuchHeld { .. }));
        assert!(refused, "{mode:?}: {locked:?}");
        let refused = matches!(pinned, Err(PinError::TooMuch { .. }));
        assert!(refused, "{mode:?}: {pinned:?}");
        drop((lasting, locked, pinned));
        drop((lock(2).expect("a lock"), pin(3).expect("a pin")));
        drop((vma, file));
        assert_empty(&mm);
        assert_free(3);
    }
}

#[test]
fn held_huge_pages_count_whole_and_are_mapped_without_faults() {
    let Some(_pool) = HugePool::of(8) else { return };
    let (mm, bdi) = storage(64, FaultMode::Inline);
    let len = UNIT + 10 * PAGE;
    let mut expected = pattern(5, 0, len as usize);
    let backing = Store::with(&expected);
    let file = file(&bdi, &backing);
    let vma = file
        .map_locked(PAGE, (len - PAGE) as usize, LockedAccess::Untracked)
        .expect("a mapping");
    assert_eq!(mm.stats().unreclaimable.held_pages, 2 * (UNIT / PAGE));
    assert!(bytes(&vma) == &expected[PAGE_SIZE..]);
    store(&vma, UNIT, 9);
    expected[(UNIT + PAGE) as usize] = 9;
    sync(&file);
    assert!(backing.content() == expected);
    file.truncate(UNIT / 2).expect("a truncate");
    assert_eq!(
        load(&vma, UNIT / 2 - PAGE - 1),
        expected[UNIT as usize / 2 - 1]
    );
    assert_eq!(load(&vma, UNIT / 2), 0, "the rest of its huge page");
    sync(&file);
    drop((vma, file));
    assert_empty(&mm);
    assert_free(8);
}

#[test]
fn stores_go_on_though_each_makes_more_dirty_than_may_be() {
    let Some(_pool) = HugePool::of(6) else { return };
    for mode in MODES {
        let mut config = MmConfig::new(16 << 20);
        config.fault_mode = mode;
        config.huge_frames = true;
        // Less than a huge page.
        (config.dirty_background_percent, config.dirty_percent) = (2, 5);
        let mm = Mm::new(config).expect("a cache");
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
        let content = pattern(5, 0, 4 * UNIT as usize);
        let store_of = Store::with(&content);
        let file = file(&bdi, &store_of);
        let vma = map(&file, VmaAccess::ReadWrite);
        for round in 0..20 {
            for unit in 0..4 {
                store(&vma, unit * UNIT + round * PAGE, 0xee);
            }
        }
        // A store that waits for the writeback of its own page faults without end.
        let faults = file.stats().faults;
        assert!(faults <= 1000, "{mode:?}: {faults}");
        sync(&file);
        assert_eq!(store_of.content()[3 * UNIT as usize + 19 * PAGE_SIZE], 0xee);
        drop((vma, file));
        assert_empty(&mm);
    }
}
