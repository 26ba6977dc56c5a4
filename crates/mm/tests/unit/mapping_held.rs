//! Parts of mapped files that are held in memory, against what would take them away.

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, LockedAccess,
    MmError, PAGE_SIZE, SlabArc, Vma, VmaAccess,
};
use foliocache_sys::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const PAGE: u64 = PAGE_SIZE as u64;
const MIB: u64 = 1 << 20;

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

fn read_all(file: &SlabArc<AddressSpace>) {
    for pos in (0..file.size()).step_by(MIB as usize) {
        read(file, pos, MIB as usize);
    }
}

#[test]
fn a_page_that_is_held_does_not_keep_the_rest_of_its_large_folio() {
    let (mm, bdi) = storage(32);
    let held = file(&bdi, &Store::with(&pattern(1, 0, 20 << 20)));
    let other = file(&bdi, &Store::with(&pattern(2, 0, 64 << 20)));
    let vma = held
        .map(0, 20 << 20, VmaAccess::ReadWrite)
        .expect("a mapping");
    read_all(&held);
    let locks: Vec<_> = (0..20 * MIB)
        .step_by(MIB as usize)
        .map(|at| {
            let at = (at + MIB / 2) as usize;
            vma.lock_for_io(at..at + 1).expect("a lock")
        })
        .collect();
    assert_eq!(mm.stats().unreclaimable.held_pages, 20);
    held.sync().expect("sync");
    read_all(&other);
    read_all(&other);
    let stats = held.stats();
    assert!(stats.resident_pages < 40, "20 pages are held: {stats:?}");
    drop(locks);
    drop((vma, held, other));
    assert_empty(&mm);
}

#[test]
fn a_file_that_its_store_changed_shows_so_where_it_is_held() {
    let (mm, bdi) = storage(32);
    let backing = Store::with(&pattern(1, 0, 2 << 20));
    let file = file(&bdi, &backing);
    let vma = file
        .map_locked(0, 1 << 20, LockedAccess::Read)
        .expect("a mapping");
    let after = pattern(7, 0, (2 << 20) - 77);
    *backing.bytes.lock().unwrap() = after.clone();
    file.backing_changed(after.len() as u64, || true);
    for at in [0, 4 * PAGE + 1, MIB - 1] {
        assert_eq!(load(&vma, at), after[at as usize]);
    }
    assert!(read(&file, 0, 2 << 20) == after);
    assert_eq!(mm.stats().unreclaimable.held_pages, 1 << 8);
    drop((vma, file));
    assert_empty(&mm);
}

#[test]
fn locks_for_io_beyond_the_dirty_limit_stall_no_writer() {
    let (mm, bdi) = storage(32);
    let backing = Store::with(&pattern(1, 0, 14 << 20));
    let held = file(&bdi, &backing);
    let other = file(&bdi, &Store::with(&[]));
    let vma = held
        .map(0, 14 << 20, VmaAccess::ReadWrite)
        .expect("a mapping");
    // More than the dirty limit, some of it twice. It stays dirty for as long as it is locked.
    let locks =
        [0..8 << 20, 6 << 20..13 << 20].map(|range| vma.lock_for_io(range).expect("a lock"));
    let (done, written) = mpsc::channel();
    let writer = thread::spawn(move || {
        for at in 0..32 {
            write(&other, at * MIB, &pattern(2, at * MIB, MIB as usize));
        }
        done.send(()).expect("it is waited for");
    });
    assert_eq!(written.recv_timeout(Duration::from_secs(20)), Ok(()));
    writer.join().expect("no panic");
    store(&vma, 7 * MIB, 0xee);
    drop(locks);
    bdi.sync();
    let stats = mm.stats();
    assert_eq!(
        (stats.unreclaimable.held_pages, stats.files.dirty_pages),
        (0, 0)
    );
    assert_eq!(backing.content()[7 << 20], 0xee);
    drop((vma, held));
    assert_empty(&mm);
}

#[test]
fn the_limit_does_not_go_below_what_is_held() {
    let (mm, bdi) = storage(64);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 24 << 20)));
    let vma = file
        .map_locked(0, 24 << 20, LockedAccess::Read)
        .expect("a mapping");
    let refused = mm.set_limit(16 * MIB);
    let Err(MmError::LimitTooSmall { min, .. }) = refused else {
        panic!("{refused:?}");
    };
    mm.set_limit(min).expect("as small as can be");
    let other = crate::common::file(&bdi, &Store::with(&pattern(2, 0, 64 << 20)));
    read_all(&other);
    assert_eq!(load(&vma, (24 << 20) - 1), pattern(1, (24 << 20) - 1, 1)[0]);
    drop(vma);
    mm.set_limit(16 * MIB).expect("nothing is held");
    drop((file, other));
    assert_empty(&mm);
}

/// A store that does not take writes as long as it is told so.
#[derive(Debug)]
struct Failing(Arc<Store>, AtomicBool);

impl AddressSpaceOperations for Failing {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.0.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(Errno::EIO),
            false => self.0.writepages(pos, segments),
        }
    }

    fn flush(&self) -> Result<(), Errno> {
        self.0.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.0.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.0.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a store that fails".into()
    }
}

#[test]
fn stores_to_held_pages_whose_writeback_failed_are_written_later() {
    let (mm, bdi) = storage(32);
    let mut expected = pattern(1, 0, 40 * PAGE_SIZE);
    let backing = Store::with(&expected);
    let failing = Arc::new(Failing(Arc::clone(&backing), AtomicBool::new(true)));
    let ops = Arc::clone(&failing) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(&bdi, ops, 40 * PAGE);
    let cursor = file.sample_wb_err();
    let vma = file
        .map_locked(0, 40 * PAGE_SIZE, LockedAccess::Untracked)
        .expect("a mapping");
    store(&vma, 7 * PAGE + 3, 1);
    expected[7 * PAGE_SIZE + 3] = 1;
    assert_eq!(file.fsync(&cursor), Err(Errno::EIO));
    assert!(file.stats().failed_pages > 0 && file.stats().dirty_pages > 0);
    store(&vma, 8 * PAGE + 3, 2);
    expected[8 * PAGE_SIZE + 3] = 2;
    // The mapping goes without a sync.
    drop(vma);
    assert!(file.is_dirty());
    failing.1.store(false, Ordering::Relaxed);
    file.sync().expect("sync");
    assert!(backing.content() == expected);
    assert_eq!((file.stats().failed_pages, file.is_dirty()), (0, false));
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_range_locked_for_io_is_written_whole_by_every_sync() {
    let (mm, bdi) = storage(32);
    let file = file(&bdi, &Store::with(&pattern(1, 0, MIB as usize)));
    let vma = file
        .map(0, MIB as usize, VmaAccess::ReadWrite)
        .expect("a mapping");
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
fn locked_memory_files_leave_nothing_behind() {
    let (mm, _bdi) = storage(32);
    let bdi = BackingDevInfo::new(&mm, "memory", BdiKind::Memory).expect("a file system");
    let file = file(&bdi, &Store::with(&[]));
    file.truncate(MIB).expect("grown");
    let vma = file
        .map_locked(0, MIB as usize, LockedAccess::Untracked)
        .expect("locked");
    store(&vma, 50 * PAGE, 5);
    file.fsync(&file.sample_wb_err()).expect("sync");
    drop(vma);
    assert_eq!(read(&file, 50 * PAGE, 1), [5]);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn discarded_pages_of_a_held_mapping_show_the_content_of_the_store() {
    let (mm, bdi) = storage(32);
    let before = pattern(1, 0, 40 * PAGE_SIZE);
    let backing = Store::with(&before);
    let failing = Arc::new(Failing(Arc::clone(&backing), AtomicBool::new(true)));
    let ops = Arc::clone(&failing) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(&bdi, ops, 40 * PAGE);
    let cursor = file.sample_wb_err();
    let vma = file
        .map_locked(0, 40 * PAGE_SIZE, LockedAccess::Untracked)
        .expect("a mapping");
    for give_up in [0, 1] {
        store(&vma, 7 * PAGE + 3, 77);
        assert_eq!(file.fsync(&cursor), Err(Errno::EIO));
        match give_up {
            0 => assert!(!file.discard_failed().is_empty()),
            _ => assert!(file.discard_dirty() > 0),
        }
        assert_eq!(load(&vma, 7 * PAGE + 3), before[7 * PAGE_SIZE + 3]);
        assert_eq!(
            (file.stats().failed_pages, file.stats().dirty_pages),
            (0, 0)
        );
    }
    store(&vma, 9 * PAGE, 99);
    failing.1.store(false, Ordering::Relaxed);
    file.sync().expect("sync");
    assert_eq!(backing.content()[9 * PAGE_SIZE], 99);
    drop((vma, file));
    assert_empty(&mm);
}
