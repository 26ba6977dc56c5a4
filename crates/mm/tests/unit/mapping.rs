//! Mapped files: a real address range whose pages are those of the cache.

use crate::common::{Random, Store, assert_empty, file, pattern, read, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, FaultMode, IoSegment, Iocb,
    IovIter, LockedAccess, MapError, Mm, MmConfig, PAGE_SIZE, ReadaheadState, SlabArc, Vma,
    VmaAccess,
};
use foliocache_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = PAGE_SIZE as u64;

/// Makes each function a test of either way to resolve faults.
macro_rules! test_in_each_mode {
    ($($test:ident,)+) => {
        mod resolved_by_threads {
            $(#[test] fn $test() { super::$test(super::FaultMode::Thread); })+
        }
        mod resolved_inline {
            $(#[test] fn $test() { super::$test(super::FaultMode::Inline); })+
        }
    };
}

test_in_each_mode!(
    a_mapping_shows_the_file_and_what_is_written_to_it,
    stores_are_read_and_become_durable_and_again_after_each_writeback,
    a_file_larger_than_the_cache_is_read_and_changed_through_its_mapping,
    truncated_and_punched_bytes_of_a_mapped_file_read_as_zeros,
    a_file_that_outgrows_its_range_is_mapped_again_beside_the_old_mapping,
    a_page_that_was_refused_is_there_as_soon_as_the_file_has_grown_to_it,
    a_mapping_is_source_and_destination_of_calls,
    system_calls_may_use_what_is_locked_for_io,
    many_faults_wait_for_the_store_at_a_time_and_others_are_resolved_meanwhile,
    stores_at_random_places_write_little_and_loads_map_what_is_cached,
);

/// A cache of `mib` MiB whose mappings take their faults so.
fn storage(mib: u64, mode: FaultMode) -> (Arc<Mm>, Arc<BackingDevInfo>) {
    let mut config = MmConfig::new(mib << 20);
    config.fault_mode = mode;
    let mm = Mm::new(config).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
    (mm, bdi)
}

fn map(file: &SlabArc<AddressSpace>, access: VmaAccess) -> Vma {
    file.map(0, file.size() as usize, access)
        .expect("a mapping")
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

fn bytes(vma: &Vma) -> &[u8] {
    // SAFETY: all of it is in the file, and nobody changes it meanwhile.
    unsafe { std::slice::from_raw_parts(vma.address(), vma.len()) }
}

fn a_mapping_shows_the_file_and_what_is_written_to_it(mode: FaultMode) {
    let (mm, bdi) = storage(32, mode);
    let content = pattern(1, 0, 300 * PAGE_SIZE + 17);
    let backing = Store::with(&content);
    let file = file(&bdi, &backing);
    // Some of it is cached before, as a large folio and as pages.
    read(&file, 0, 64 * PAGE_SIZE);
    read(&file, 200 * PAGE, 10);
    write(&file, 100 * PAGE + 5, &[9; 100]);
    let vma = map(&file, VmaAccess::Read);
    let mut expected = content;
    expected[100 * PAGE_SIZE + 5..][..100].fill(9);
    assert_eq!(bytes(&vma), expected);
    write(&file, 4 * PAGE - 3, &[7; 6]);
    expected[4 * PAGE_SIZE - 3..][..6].fill(7);
    assert_eq!(bytes(&vma), expected);
    assert_eq!(read(&file, 0, expected.len()), expected);
    file.fsync(&file.sample_wb_err()).expect("sync");
    assert_eq!(backing.content(), expected);
    drop(vma);
    assert_eq!(read(&file, 0, expected.len()), expected);
    drop(file);
    assert_empty(&mm);
}

fn stores_are_read_and_become_durable_and_again_after_each_writeback(mode: FaultMode) {
    let (mm, bdi) = storage(32, mode);
    let backing = Store::with(&vec![0; 40 * PAGE_SIZE]);
    let file = file(&bdi, &backing);
    let vma = map(&file, VmaAccess::ReadWrite);
    let cursor = file.sample_wb_err();
    for round in 1..5 {
        for page in [3, 4, 5, 20, 39] {
            store(&vma, page * PAGE + page, round);
            assert_eq!(read(&file, page * PAGE + page, 1), [round]);
        }
        assert!(file.is_dirty());
        file.fsync(&cursor).expect("sync");
        assert!(!file.is_dirty());
        let content = backing.content();
        for page in [3, 4, 5, 20, 39] {
            assert_eq!(content[(page * PAGE + page) as usize], round, "page {page}");
        }
    }
    drop((vma, file));
    assert_empty(&mm);
}

fn a_file_larger_than_the_cache_is_read_and_changed_through_its_mapping(mode: FaultMode) {
    let (mm, bdi) = storage(16, mode);
    let pages = 12_000;
    let backing = Store::with(&pattern(1, 0, pages * PAGE_SIZE));
    let file = file(&bdi, &backing);
    let vma = map(&file, VmaAccess::ReadWrite);
    let mut at = 1_u64;
    for _ in 0..4000 {
        at = at
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let pos = (at >> 33) % (pages as u64 * PAGE - 1);
        store(&vma, pos, load(&vma, pos).wrapping_add(1));
        let usage = mm.usage();
        assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
    }
    let mut expected = pattern(1, 0, pages * PAGE_SIZE);
    let mut at = 1_u64;
    for _ in 0..4000 {
        at = at
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let pos = (at >> 33) % (pages as u64 * PAGE - 1);
        expected[pos as usize] = expected[pos as usize].wrapping_add(1);
    }
    assert!(bytes(&vma) == expected);
    file.fsync(&file.sample_wb_err()).expect("sync");
    assert!(backing.content() == expected);
    assert!(mm.stats().files.evicted_pages > 0);
    drop((vma, file));
    assert_empty(&mm);
}

fn truncated_and_punched_bytes_of_a_mapped_file_read_as_zeros(mode: FaultMode) {
    let (mm, bdi) = storage(32, mode);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 64 * PAGE_SIZE)));
    let vma = map(&file, VmaAccess::ReadWrite);
    assert_eq!(bytes(&vma), pattern(1, 0, 64 * PAGE_SIZE));
    // Beyond the end of the file, in its last page.
    file.truncate(10 * PAGE + 100).expect("truncate");
    store(&vma, 10 * PAGE + 200, 77);
    file.truncate(64 * PAGE).expect("grow");
    let shown = bytes(&vma);
    assert_eq!(
        shown[..10 * PAGE_SIZE + 100],
        pattern(1, 0, 10 * PAGE_SIZE + 100)
    );
    assert!(shown[10 * PAGE_SIZE + 100..].iter().all(|&byte| byte == 0));
    store(&vma, 5 * PAGE, 1);
    file.punch_hole(4 * PAGE, 3 * PAGE).expect("punch");
    assert!(
        bytes(&vma)[4 * PAGE_SIZE..7 * PAGE_SIZE]
            .iter()
            .all(|&byte| byte == 0)
    );
    file.fsync(&file.sample_wb_err()).expect("sync");
    drop((vma, file));
    assert_empty(&mm);
}

fn a_file_that_outgrows_its_range_is_mapped_again_beside_the_old_mapping(mode: FaultMode) {
    let (mm, bdi) = storage(64, mode);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 3 * PAGE_SIZE)));
    let small = map(&file, VmaAccess::ReadWrite);
    // Its range is of 16 MiB.
    let grown = pattern(1, 0, 20 << 20);
    write(&file, 3 * PAGE, &grown[3 * PAGE_SIZE..]);
    let large = map(&file, VmaAccess::ReadWrite);
    assert!(bytes(&large) == grown);
    store(&large, PAGE, 200);
    assert_eq!(load(&small, PAGE), 200);
    store(&small, PAGE, 201);
    assert_eq!(load(&large, PAGE), 201);
    drop(small);
    assert_eq!(load(&large, PAGE), 201);
    assert_eq!(load(&large, (20 << 20) - 1), *grown.last().expect("bytes"));
    file.fsync(&file.sample_wb_err()).expect("sync");
    drop((large, file));
    assert_empty(&mm);
}

#[test]
fn a_sync_of_a_range_makes_it_durable_and_writes_the_folios_that_it_touches() {
    let (mm, bdi) = storage(64, FaultMode::Inline);
    let mut expected = pattern(1, 0, 8 << 20);
    let backing = Store::with(&expected);
    let file = file(&bdi, &backing);
    read(&file, 0, 8 << 20);
    let vma = map(&file, VmaAccess::ReadWrite);
    let cursor = file.sample_wb_err();
    let mut random = 1_u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % n
    };
    for round in 0..100 {
        for _ in 0..below(6) {
            let at = below(8 << 20);
            match below(2) {
                0 => store(&vma, at, round as u8),
                _ => write(&file, at, &[round as u8]),
            }
            expected[at as usize] = round as u8;
        }
        if below(4) == 0 {
            // Written, and not durable yet.
            file.fdatawrite();
        }
        let start = below(8 << 20);
        let end = (start + 1 + below(100 * PAGE)).min(8 << 20);
        let flushes = backing.flushes.load(std::sync::atomic::Ordering::Relaxed);
        let unstable = file.stats().unstable_pages > 0;
        file.fsync_range(start..end, &cursor).expect("sync");
        let range = start as usize..end as usize;
        assert!(
            backing.content()[range.clone()] == expected[range],
            "round {round}"
        );
        let now = backing.flushes.load(std::sync::atomic::Ordering::Relaxed);
        assert!(!unstable || now > flushes, "round {round}");
    }
    file.fsync(&cursor).expect("sync");
    assert!(backing.content() == expected);
    // A store in each 2 MiB, of which one is written, whole folios of it.
    for at in [0, 3 << 20, 5 << 20, 7 << 20] {
        store(&vma, at, 255);
    }
    let before = file.stats().written_bytes;
    file.fsync_range(0..100, &cursor).expect("sync");
    file.fsync_range(1 << 20..2 << 20, &cursor).expect("sync");
    file.fsync_range(8 << 20..u64::MAX, &cursor)
        .expect("beyond the end");
    assert!(file.stats().written_bytes - before <= 8 * PAGE);
    assert!(file.is_dirty() && backing.content()[3 << 20] == expected[3 << 20]);
    // What lies in the range is durable only if the file is long enough.
    file.truncate(9 << 20).expect("grown");
    file.fsync_range(1 << 20..2 << 20, &cursor).expect("sync");
    file.fsync_range(8 << 20..u64::MAX, &cursor).expect("sync");
    assert_eq!(backing.content().len(), 9 << 20);
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn a_memory_file_is_mapped_with_its_holes() {
    let mm = Mm::new(MmConfig::new(32 << 20)).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a file system");
    let file = file(&bdi, &Store::with(&[]));
    write(&file, 5 * PAGE, &[5; 10]);
    file.truncate(100 * PAGE).expect("grow");
    let vma = map(&file, VmaAccess::ReadWrite);
    assert_eq!((load(&vma, 0), load(&vma, 5 * PAGE)), (0, 5));
    store(&vma, 99 * PAGE, 3);
    assert_eq!(read(&file, 99 * PAGE, 1), [3]);
    assert!(mm.usage().in_use_pages < 50, "holes take no memory");
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn a_mapped_folio_is_not_lent_out() {
    let (_mm, bdi) = storage(32, FaultMode::Thread);
    let file = file(&bdi, &Store::with(&pattern(1, 0, PAGE_SIZE)));
    let handle = ReadaheadState::new();
    read(&file, 0, PAGE_SIZE);
    assert_eq!(
        file.read_in_place(&handle, &Iocb::at(0), 10, <[u8]>::len),
        Some(10)
    );
    let locked = file
        .map_locked(0, PAGE_SIZE, LockedAccess::Untracked)
        .expect("a mapping");
    assert_eq!(
        file.read_in_place(&handle, &Iocb::at(0), 10, <[u8]>::len),
        None
    );
    drop(locked);
    assert_eq!(
        file.read_in_place(&handle, &Iocb::at(0), 10, <[u8]>::len),
        Some(10)
    );
    let vma = map(&file, VmaAccess::ReadWrite);
    load(&vma, 0);
    assert_eq!(
        file.read_in_place(&handle, &Iocb::at(0), 10, <[u8]>::len),
        None
    );
}

#[test]
fn map_refuses_bad_ranges_and_a_limit_too_small() {
    let (_mm, bdi) = storage(32, FaultMode::Thread);
    let file = file(&bdi, &Store::with(&[1; 100]));
    let errno = |pos, len| {
        file.map(pos, len, VmaAccess::Read)
            .expect_err("refused")
            .errno()
    };
    assert_eq!(errno(0, 0), Errno::EINVAL);
    assert_eq!(errno(1, 10), Errno::EINVAL);
    assert_eq!(errno(1 << 62, 1 << 62), Errno::EFBIG);
    assert_eq!(errno(0, 1 << 55), Errno::EFBIG);
    let (_mm, bdi) = storage(8, FaultMode::Thread);
    let small = crate::common::file(&bdi, &Store::with(&[1; 100]));
    let error = small.map(0, 1, VmaAccess::Read).expect_err("refused");
    assert!(matches!(error, MapError::LimitTooSmall { .. }), "{error}");
}

/// Of touches beyond the end the copies tell; a signal would end the test.
fn a_page_that_was_refused_is_there_as_soon_as_the_file_has_grown_to_it(mode: FaultMode) {
    foliocache_sys::usercopy::install_handlers().expect("handlers");
    let (mm, bdi) = storage(32, mode);
    let grows = file(&bdi, &Store::with(&[7; 100]));
    let sink = file(&bdi, &Store::with(&[]));
    let vma = grows.map(0, 4 * PAGE_SIZE, VmaAccess::ReadWrite);
    let vma = vma.expect("a mapping");
    let touch = |page: u64| {
        let address = vma.address().wrapping_add((page * PAGE) as usize);
        // SAFETY: inside the mapping; beyond the end of the file the copy finds nothing and says so.
        let byte = unsafe { std::slice::from_raw_parts(address, 1) };
        sink.write(&mut Iocb::at(0), &mut IovIter::source(byte))
    };
    for page in 1..4 {
        assert_eq!(touch(page), Err(Errno::EFAULT), "page {page}");
    }
    assert_eq!(touch(0), Ok(1));
    grows.truncate(PAGE + 1).expect("truncate");
    assert_eq!(touch(1), Ok(1), "after a truncate");
    assert_eq!(touch(2), Err(Errno::EFAULT));
    write(&grows, 2 * PAGE, &[8; 10]);
    assert_eq!(touch(2), Ok(1), "after a write");
    let mut direct = Iocb::at(3 * PAGE);
    direct.direct = true;
    let written = grows.write(&mut direct, &mut IovIter::source(&[9; PAGE_SIZE]));
    assert_eq!(written, Ok(PAGE_SIZE));
    assert_eq!(touch(3), Ok(1), "after a direct write");
    assert_eq!(load(&vma, 3 * PAGE), 9);
    drop((vma, grows, sink));
    assert_empty(&mm);
}

/// Writes to a file from a mapping of it and of another, and reads into mappings.
fn a_mapping_is_source_and_destination_of_calls(mode: FaultMode) {
    foliocache_sys::usercopy::install_handlers().expect("handlers");
    let (mm, bdi) = storage(32, mode);
    let content = [1, 2].map(|who| pattern(who, 0, 600 * PAGE_SIZE));
    let files = [0, 1].map(|who: usize| file(&bdi, &Store::with(&content[who])));
    let vmas = [0, 1].map(|who: usize| map(&files[who], VmaAccess::ReadWrite));
    let slice = |who: usize, at: u64, len: usize| {
        // SAFETY: inside the mapping; whatever changes it in this test leaves bytes.
        unsafe {
            std::slice::from_raw_parts_mut(vmas[who].address().wrapping_add(at as usize), len)
        }
    };
    // The same folio, populated or not; the same file; each from the other.
    for (who, from, to, len) in [
        (0, 10, 3000, 5000),
        (0, 10, 3000, 5000),
        (0, 300 * PAGE + 1, 2 * PAGE, 200_000),
        (1, 5 * PAGE, 100 * PAGE, 300_000),
    ] {
        let expected = slice(who, from, len).to_vec();
        write(&files[who], to, &expected);
        write(&files[who], to, slice(who, from, len));
        write(&files[1 - who], to, slice(who, to, len));
        assert!(read(&files[1 - who], to, len) == read(&files[who], to, len));
        let handle = ReadaheadState::new();
        let mut iter = IovIter::destination(slice(1 - who, from, len));
        let n = files[who].read(&handle, &mut Iocb::at(to), &mut iter);
        assert_eq!(n, Ok(len));
        assert!(slice(1 - who, from, len) == slice(who, to, len));
    }
    // Into pages that were never touched, beyond the end of the cache.
    let handle = ReadaheadState::new();
    for page in (300..600).step_by(7) {
        let mut iter = IovIter::destination(slice(0, page * PAGE, 100));
        let n = files[1].read(&handle, &mut Iocb::at(page * PAGE), &mut iter);
        assert_eq!(n, Ok(100));
        assert_eq!(
            read(&files[0], page * PAGE, 100),
            read(&files[1], page * PAGE, 100)
        );
    }
    for file in &files {
        file.fsync(&file.sample_wb_err()).expect("sync");
    }
    drop((vmas, files));
    assert_empty(&mm);
}

#[test]
fn a_locked_mapping_stays_in_memory_and_each_sync_writes_what_was_stored() {
    let (mm, bdi) = storage(64, FaultMode::Thread);
    let content = pattern(1, 0, 6 << 20);
    let backing = Store::with(&content);
    let locked = file(&bdi, &backing);
    let other = file(&bdi, &Store::with(&pattern(2, 0, 128 << 20)));
    let vma = locked
        .map_locked(0, 5 << 20, LockedAccess::Untracked)
        .expect("a mapping");
    let again = locked
        .map_locked(PAGE, 1 << 20, LockedAccess::Read)
        .expect("a mapping");
    assert_eq!(mm.stats().unreclaimable.held_pages, 5 << 8);
    assert!(bytes(&vma) == &content[..5 << 20]);
    // All else goes through the cache.
    for pos in (0..128 << 20).step_by(1 << 20) {
        read(&other, pos, 1 << 20);
    }
    let reads = backing.reads.load(std::sync::atomic::Ordering::Relaxed);
    assert!(bytes(&vma) == &content[..5 << 20]);
    assert_eq!(
        backing.reads.load(std::sync::atomic::Ordering::Relaxed),
        reads
    );
    let mut expected = content.clone();
    let cursor = locked.sample_wb_err();
    for round in 0..3 {
        for page in [0, 7, 600, 1279] {
            store(&vma, page * PAGE + round, 100 + round as u8);
            expected[(page * PAGE + round) as usize] = 100 + round as u8;
        }
        assert!(locked.is_dirty());
        assert_eq!(load(&again, round), expected[(PAGE + round) as usize]);
        locked.fsync(&cursor).expect("sync");
        assert!(backing.content() == expected, "round {round}");
    }
    store(&vma, 3, 1);
    expected[3] = 1;
    drop(vma);
    locked.fsync(&cursor).expect("sync");
    assert!(backing.content() == expected);
    assert_eq!(mm.stats().unreclaimable.held_pages, 1 << 8);
    drop(again);
    assert_eq!(mm.stats().unreclaimable.held_pages, 0);
    for pos in (0..128 << 20).step_by(1 << 20) {
        read(&other, pos, 1 << 20);
    }
    let usage = mm.usage();
    assert!(
        usage.linear_bytes < 6 << 20,
        "nothing was evicted: {usage:?}"
    );
    drop((locked, other));
    assert_empty(&mm);
}

#[test]
fn stores_beside_an_untracked_mapping_are_found_by_each_sync() {
    let (mm, bdi) = storage(64, FaultMode::Thread);
    let mut expected = pattern(1, 0, 2 << 20);
    let backing = Store::with(&expected);
    let file = file(&bdi, &backing);
    let vma = map(&file, VmaAccess::ReadWrite);
    // One folio.
    read(&file, 0, 2 << 20);
    let locked = file
        .map_locked(0, PAGE as usize, LockedAccess::Untracked)
        .expect("a mapping");
    let cursor = file.sample_wb_err();
    for round in 0..4 {
        store(&vma, 100 * PAGE + 5, round);
        expected[100 * PAGE_SIZE + 5] = round;
        store(&locked, 7, round);
        expected[7] = round;
        file.fsync(&cursor).expect("sync");
        assert!(backing.content() == expected, "round {round}");
    }
    drop((vma, locked, file));
    assert_empty(&mm);
}

#[test]
fn more_than_half_of_the_memory_cannot_be_locked() {
    let (_mm, bdi) = storage(32, FaultMode::Thread);
    let file = file(&bdi, &Store::with(&vec![1; 64 << 20]));
    let some = file
        .map_locked(0, 8 << 20, LockedAccess::Read)
        .expect("it fits");
    let error = file
        .map_locked(0, 24 << 20, LockedAccess::Read)
        .expect_err("too much");
    assert_eq!(error.errno(), Errno::ENOBUFS);
    assert!(error.to_string().contains("8388608"), "{error}");
    let beyond = file
        .map_locked(0, 65 << 20, LockedAccess::Read)
        .expect_err("beyond the end");
    assert_eq!(beyond.errno(), Errno::EINVAL);
    drop(some);
    drop(
        file.map_locked(0, 10 << 20, LockedAccess::Read)
            .expect("it fits"),
    );
}

#[test]
fn more_than_may_be_dirty_can_be_locked_for_io_and_stays_dirty() {
    let (mm, bdi) = storage(32, FaultMode::Inline);
    let pages = mm.frames().capacity() as usize * 45 / 100;
    let backing = Store::with(&vec![1; pages * PAGE_SIZE]);
    let file = file(&bdi, &backing);
    let (done, locked) = std::sync::mpsc::channel();
    let holder = std::thread::spawn({
        let file = file.share();
        move || {
            let vma = map(&file, VmaAccess::ReadWrite);
            // They stay dirty for as long as they are locked: to wait for that to end would be for ever.
            drop(vma.lock_for_io(0..vma.len()).expect("locked"));
            done.send(()).expect("it is waited for");
        }
    });
    let waited = locked.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(waited, Ok(()));
    holder.join().expect("no panic");
    file.sync().expect("sync");
    drop(file);
    assert_empty(&mm);
}

fn system_calls_may_use_what_is_locked_for_io(mode: FaultMode) {
    use std::io::{Read, Write};
    let (mm, bdi) = storage(32, mode);
    let backing = Store::with(&pattern(1, 0, 200 * PAGE_SIZE));
    let file = file(&bdi, &backing);
    let other = crate::common::file(&bdi, &Store::with(&pattern(2, 0, 64 << 20)));
    let vma = map(&file, VmaAccess::ReadWrite);
    let cursor = file.sample_wb_err();
    let range = 10 * PAGE_SIZE..150 * PAGE_SIZE;
    let lock = vma.lock_for_io(range.clone()).expect("locked");
    // Writeback and reclaim meanwhile change nothing.
    file.fsync(&cursor).expect("sync");
    for pos in (0..64 << 20).step_by(1 << 20) {
        read(&other, pos, 1 << 20);
    }
    let new = pattern(3, 0, range.len());
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let sender = std::thread::spawn({
        let new = new.clone();
        move || writer.write_all(&new).expect("written")
    });
    // SAFETY: inside the mapping, and nobody else uses it.
    let target = unsafe {
        std::slice::from_raw_parts_mut(vma.address().wrapping_add(range.start), range.len())
    };
    reader
        .read_exact(target)
        .expect("the kernel stores into the mapping");
    sender.join().expect("no panic");
    assert!(file.is_dirty());
    file.fsync(&cursor).expect("sync");
    assert!(backing.content()[range.clone()] == new);
    drop(lock);
    file.fsync(&cursor).expect("sync");
    assert!(!file.is_dirty());
    assert!(read(&file, range.start as u64, range.len()) == new);
    let error = vma
        .lock_for_io(0..201 * PAGE_SIZE)
        .expect_err("beyond the mapping");
    assert_eq!(error.errno(), Errno::EINVAL);
    drop((vma, file, other));
    assert_empty(&mm);
}

/// A store whose reads end once so many are under way, or with an error when they are not soon.
#[derive(Debug)]
struct Together {
    wanted: usize,
    under_way: std::sync::Mutex<usize>,
    changed: std::sync::Condvar,
}

impl AddressSpaceOperations for Together {
    fn read_folios(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut under_way = self.under_way.lock().unwrap();
        *under_way += 1;
        self.changed.notify_all();
        let wait = std::time::Duration::from_secs(20);
        let few = |under_way: &mut usize| *under_way < self.wanted;
        let waited = self
            .changed
            .wait_timeout_while(under_way, wait, few)
            .unwrap();
        if waited.1.timed_out() {
            return Err(Errno::EIO);
        }
        segments
            .iter()
            .for_each(|segment| segment.zero(0, segment.len()));
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn writepages(&self, _: u64, _: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Err(Errno::EIO)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "reads that wait for one another".into()
    }
}

fn many_faults_wait_for_the_store_at_a_time_and_others_are_resolved_meanwhile(mode: FaultMode) {
    let (mm, bdi) = storage(32, mode);
    let store = Together {
        wanted: 40,
        under_way: std::sync::Mutex::new(0),
        changed: std::sync::Condvar::new(),
    };
    let slow = AddressSpace::new(&bdi, Arc::new(store), 4000 * PAGE);
    let (slow_vma, quick) = (map(&slow, VmaAccess::Read), Store::with(&pattern(1, 0, 99)));
    let quick = map(&file(&bdi, &quick), VmaAccess::Read);
    std::thread::scope(|scope| {
        let touch = |i: u64| {
            let vma = &slow_vma;
            scope.spawn(move || load(vma, i * 100 * PAGE))
        };
        let touching: Vec<_> = (1..40).map(touch).collect();
        assert_eq!(load(&quick, 98), pattern(1, 98, 1)[0]);
        load(&slow_vma, 0);
        for thread in touching {
            assert_eq!(thread.join().unwrap(), 0);
        }
    });
    drop((slow_vma, quick, slow));
    assert_empty(&mm);
}

#[test]
fn a_store_is_noted_once_though_its_page_was_loaded_just_before() {
    let (mm, bdi) = storage(32, FaultMode::Thread);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 4 * PAGE_SIZE)));
    let rounds = 2000;
    for round in 0..rounds {
        let vma = map(&file, VmaAccess::ReadWrite);
        let noted = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&noted);
        vma.on_store(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        load(&vma, 2 * PAGE);
        store(&vma, 2 * PAGE, round as u8);
        file.sync().expect("sync");
        drop(vma);
        assert_eq!(noted.load(Ordering::Relaxed), 1, "round {round}");
        assert!(!file.is_dirty(), "round {round}");
    }
    drop(file);
    assert_empty(&mm);
}

fn stores_at_random_places_write_little_and_loads_map_what_is_cached(mode: FaultMode) {
    let (_mm, bdi) = storage(64, mode);
    let backing = Store::with(&pattern(1, 0, 4096 * PAGE_SIZE));
    let file = file(&bdi, &backing);
    read(&file, 0, 4096 * PAGE_SIZE);
    let vma = map(&file, VmaAccess::ReadWrite);
    let reads = backing.reads.load(std::sync::atomic::Ordering::Relaxed);
    for nth in 1..=50 {
        store(&vma, nth * 2083 % 4096 * PAGE, 1);
    }
    assert!(file.stats().mapped_pages < 60);
    file.fsync(&file.sample_wb_err()).expect("sync");
    // Grains of folios of 1 MiB at most.
    let written = file.stats().written_bytes;
    assert!(written <= 50 * 4 * PAGE, "{written} bytes");
    // Loads at random places map some of the neighbours, and read none.
    let (before, mut random) = (file.stats(), Random::of(1));
    for _ in 0..50 {
        load(&vma, random.below(4096) * PAGE);
    }
    let after = file.stats();
    let (faults, mapped) = (
        after.faults - before.faults,
        after.mapped_pages - before.mapped_pages,
    );
    assert!(
        mapped > 4 * faults && mapped <= 16 * faults,
        "{faults} faults, {mapped} pages"
    );
    assert_eq!(
        backing.reads.load(std::sync::atomic::Ordering::Relaxed),
        reads
    );
}
