//! Locked mappings whose stores the kernel notes: each sync finds them, and writes no more.

use crate::common::{Store, assert_empty, file, pattern, read};
use foliocache_mm::{
    AddressSpace, BackingDevInfo, BdiKind, LockedAccess, Mm, MmConfig, PAGE_SIZE, Vma, VmaAccess,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;

/// A cache of 64 MiB that writes back by itself after `expire`.
fn storage(expire: Duration) -> (Arc<Mm>, Arc<BackingDevInfo>) {
    let mut config = MmConfig::new(64 << 20);
    config.dirty_expire = expire;
    let mm = Mm::new(config).expect("a cache");
    let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).expect("a file system");
    (mm, bdi)
}

const NEVER: Duration = Duration::from_secs(3600);

fn tracked(file: &Arc<AddressSpace>, pos: u64, len: usize) -> Vma {
    file.map_locked(pos, len, LockedAccess::Tracked)
        .expect("a mapping")
}

/// Eight bytes of the mapping.
fn word(vma: &Vma, at: u64) -> &AtomicU64 {
    assert!(at.is_multiple_of(8) && at < vma.len() as u64);
    // SAFETY: inside the mapping, which is borrowed; all accesses of the tests are atomic.
    unsafe { AtomicU64::from_ptr(vma.address().wrapping_add(at as usize).cast()) }
}

fn store(vma: &Vma, at: u64, value: u64) {
    word(vma, at).store(value, Ordering::SeqCst);
}

fn word_in(bytes: &[u8], at: u64) -> u64 {
    u64::from_ne_bytes(*bytes[at as usize..].first_chunk().expect("8 bytes"))
}

fn set(bytes: &mut [u8], at: u64, value: u64) {
    bytes[at as usize..][..8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn each_sync_writes_the_pages_that_were_stored_to_since_the_last() {
    let (mm, bdi) = storage(NEVER);
    let mut expected = pattern(1, 0, 6 << 20);
    let backing = Store::with(&expected);
    let file = file(&bdi, &backing);
    // As large folios.
    read(&file, 0, 6 << 20);
    let vma = tracked(&file, 0, 5 << 20);
    assert_eq!(mm.stats().unreclaimable.held_pages, 5 << 8);
    let cursor = file.sample_wb_err();
    let rounds: [&[u64]; 6] = [
        &[],
        &[0, 7, 8, 600, 1279],
        &[7],
        &[],
        &[7, 600, 601, 602, 1000],
        &[0],
    ];
    for (round, pages) in rounds.into_iter().enumerate() {
        for page in pages {
            let at = page * PAGE + 8 * round as u64;
            store(&vma, at, round as u64);
            set(&mut expected, at, round as u64);
        }
        // Loads change nothing.
        assert_eq!(
            word(&vma, 300 * PAGE).load(Ordering::SeqCst),
            word_in(&expected, 300 * PAGE)
        );
        let before = file.stats().written_bytes;
        file.fsync(&cursor).expect("sync");
        assert_eq!(
            file.stats().written_bytes - before,
            pages.len() as u64 * PAGE
        );
        assert!(backing.content() == expected, "round {round}");
    }
    store(&vma, 80, 1);
    set(&mut expected, 80, 1);
    drop(vma);
    assert!(file.is_dirty());
    file.fsync(&cursor).expect("sync");
    assert!(backing.content() == expected);
    assert!(!file.is_dirty());
    assert_eq!(mm.stats().unreclaimable.held_pages, 0);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn no_store_beside_a_sync_is_lost() {
    const PAGES: u64 = 700;
    let (mm, bdi) = storage(Duration::from_millis(5));
    let backing = Store::with(&vec![0; (PAGES * PAGE) as usize]);
    let file = file(&bdi, &backing);
    let vma = tracked(&file, 0, (PAGES * PAGE) as usize);
    let done = AtomicBool::new(false);
    let sync = || {
        let cursor = file.sample_wb_err();
        while !done.load(Ordering::SeqCst) {
            let before: Vec<u64> = (0..PAGES)
                .map(|page| word(&vma, page * PAGE).load(Ordering::SeqCst))
                .collect();
            file.fsync(&cursor).expect("sync");
            let durable = backing.content();
            for (page, before) in (0..).zip(before) {
                assert!(word_in(&durable, page * PAGE) >= before, "page {page}");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(sync);
        scope.spawn(sync);
        let start = Instant::now();
        let mut at = 1_u64;
        while start.elapsed() < Duration::from_secs(2) {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word(&vma, (at >> 33) % PAGES * PAGE).fetch_add(1, Ordering::SeqCst);
        }
        done.store(true, Ordering::SeqCst);
    });
    let last: Vec<u64> = (0..PAGES)
        .map(|page| word(&vma, page * PAGE).load(Ordering::SeqCst))
        .collect();
    drop(vma);
    file.fsync(&file.sample_wb_err()).expect("sync");
    let durable = backing.content();
    for (page, last) in (0..).zip(last) {
        assert_eq!(word_in(&durable, page * PAGE), last, "page {page}");
    }
    drop(file);
    assert_empty(&mm);
}

#[test]
fn the_flusher_finds_stores() {
    let (mm, bdi) = storage(Duration::from_millis(100));
    let backing = Store::with(&pattern(1, 0, 3 << 20));
    let file = file(&bdi, &backing);
    let vma = tracked(&file, PAGE, 2 << 20);
    for round in 1..4 {
        store(&vma, 77 * PAGE, round);
        let start = Instant::now();
        while word_in(&backing.content(), 78 * PAGE) != round {
            assert!(start.elapsed().as_secs() < 10, "round {round}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(file.stats().written_bytes <= 6 * PAGE, "{:?}", file.stats());
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn stores_through_other_mappings_of_the_same_pages_are_found_too() {
    let (mm, bdi) = storage(NEVER);
    let mut expected = pattern(1, 0, 2 << 20);
    let backing = Store::with(&expected);
    let file = file(&bdi, &backing);
    read(&file, 0, 2 << 20);
    let vmas = [
        tracked(&file, 0, 2 << 20),
        tracked(&file, 0, 1 << 20),
        file.map(0, 2 << 20, VmaAccess::ReadWrite).expect("mapped"),
        file.map_locked(0, 10 * PAGE_SIZE, LockedAccess::Untracked)
            .expect("locked"),
    ];
    let cursor = file.sample_wb_err();
    for round in 1..5 {
        for (at, vma) in (0..).zip(&vmas) {
            for page in [1, 9, 200, 400] {
                if page * PAGE < vma.len() as u64 {
                    let at = page * PAGE + at * 8;
                    store(vma, at, round);
                    set(&mut expected, at, round);
                }
            }
        }
        file.fsync(&cursor).expect("sync");
        assert!(backing.content() == expected, "round {round}");
    }
    // The end of the untracked one makes it dirty.
    drop(vmas);
    file.fsync(&cursor).expect("sync");
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_range_locked_for_io_is_written_whole_by_every_sync() {
    let (mm, bdi) = storage(NEVER);
    let backing = Store::with(&pattern(1, 0, 1 << 20));
    let file = file(&bdi, &backing);
    let vma = tracked(&file, 0, 1 << 20);
    let cursor = file.sample_wb_err();
    let lock = vma
        .lock_for_io(10 * PAGE_SIZE..30 * PAGE_SIZE)
        .expect("locked");
    for _ in 0..3 {
        let before = file.stats().written_bytes;
        file.fsync(&cursor).expect("sync");
        assert_eq!(file.stats().written_bytes - before, 20 * PAGE);
    }
    drop(lock);
    file.fsync(&cursor).expect("sync");
    let before = file.stats().written_bytes;
    file.fsync(&cursor).expect("sync");
    assert_eq!(file.stats().written_bytes, before);
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn the_kept_part_of_a_truncated_file_stays_tracked() {
    let (mm, bdi) = storage(NEVER);
    let mut expected = pattern(1, 0, 4 << 20);
    let backing = Store::with(&expected);
    let file = file(&bdi, &backing);
    let vma = tracked(&file, 0, 4 << 20);
    let cursor = file.sample_wb_err();
    store(&vma, 100 * PAGE, 1);
    store(&vma, 900 * PAGE, 1);
    file.truncate(500 * PAGE + 100).expect("cut");
    file.truncate(4 << 20).expect("grown");
    set(&mut expected, 100 * PAGE, 1);
    expected[(500 * PAGE + 100) as usize..].fill(0);
    for round in 2..5 {
        store(&vma, 499 * PAGE, round);
        set(&mut expected, 499 * PAGE, round);
        file.fsync(&cursor).expect("sync");
        assert!(backing.content() == expected, "round {round}");
    }
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn locked_memory_files_leave_nothing_behind() {
    let (mm, _) = storage(NEVER);
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a file system");
    for access in [LockedAccess::Tracked, LockedAccess::Untracked] {
        let file = file(&bdi, &Store::with(&[]));
        file.truncate(1 << 20).expect("grown");
        let vma = file.map_locked(0, 1 << 20, access).expect("locked");
        store(&vma, 50 * PAGE, 5);
        file.fsync(&file.sample_wb_err()).expect("sync");
        drop(vma);
        assert_eq!(word_in(&read(&file, 50 * PAGE, 8), 0), 5);
    }
    assert_empty(&mm);
}
