//! Direct reads and writes: around the cache, and in agreement with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, IoSegment, Iocb, IovIter, Mm, PAGE_SIZE,
    ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;
use foliocache_sys::memory::PageVec;

const PAGE: u64 = PAGE_SIZE as u64;

fn rig(
    pages: u64,
) -> (
    Arc<Mm>,
    Arc<BackingDevInfo>,
    Arc<Store>,
    SlabArc<AddressSpace>,
) {
    let (mm, bdi) = storage(32);
    let store = Store::with(&pattern(0, 0, (pages * PAGE) as usize));
    let file = file(&bdi, &store);
    (mm, bdi, store, file)
}

fn direct(pos: u64) -> Iocb {
    Iocb {
        direct: true,
        ..Iocb::at(pos)
    }
}

fn read_into(file: &SlabArc<AddressSpace>, pos: u64, bytes: &mut [u8]) -> usize {
    let mut iter = IovIter::destination(bytes);
    let n = file.read(&ReadaheadState::new(), &mut direct(pos), &mut iter);
    n.unwrap()
}

fn read_direct(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let n = read_into(file, pos, &mut bytes);
    bytes.truncate(n);
    bytes
}

fn write_direct(file: &SlabArc<AddressSpace>, pos: u64, bytes: &[u8]) {
    let n = file.write(&mut direct(pos), &mut IovIter::source(bytes));
    assert_eq!(n, Ok(bytes.len()));
}

/// The edges of a direct write are written by themselves, and end within a slice.
#[test]
fn direct_writes_of_several_slices_are_whole() {
    let (_mm, _bdi, store, file) = rig(16);
    let mut expected = pattern(0, 0, 16 * PAGE_SIZE);
    for (round, (pos, lens)) in [
        (4090, &[10_000][..]),
        (0, &[100, 8192]),
        (5000, &[1, 4096, 3, 9000]),
        (PAGE, &[PAGE_SIZE, PAGE_SIZE]),
    ]
    .into_iter()
    .enumerate()
    {
        // Dirty pages do not leave the cache for it.
        write(&file, pos + 1, b"dirty");
        let bytes = pattern(round as u8 + 1, pos, lens.iter().sum());
        let mut rest = &bytes[..];
        let slices: Vec<_> = lens
            .iter()
            .map(|&len| {
                let (slice, after) = rest.split_at(len);
                rest = after;
                std::io::IoSlice::new(slice)
            })
            .collect();
        let n = file.write(&mut direct(pos), &mut IovIter::sources(&slices));
        assert_eq!(n, Ok(bytes.len()));
        expected[pos as usize..][..bytes.len()].copy_from_slice(&bytes);
        assert!(read(&file, 0, expected.len()) == expected, "round {round}");
    }
    file.sync().unwrap();
    assert!(store.content() == expected);
}

#[test]
fn direct_reads_bring_nothing_in_and_find_what_is_cached() {
    let (_mm, _bdi, store, file) = rig(1024);
    assert!(read_direct(&file, 0, 1024 * PAGE_SIZE) == pattern(0, 0, 1024 * PAGE_SIZE));
    assert_eq!(file.stats().resident_pages, 0);
    // Edges within pages, and the end of the file.
    let (pos, len) = (3 * PAGE + 100, 20 * PAGE_SIZE + 7);
    assert!(read_direct(&file, pos, len) == pattern(0, pos, len));
    let pos = 1000 * PAGE + 1;
    assert!(read_direct(&file, pos, 100 * PAGE_SIZE) == pattern(0, pos, 24 * PAGE_SIZE - 1));
    assert_eq!(read_direct(&file, 1024 * PAGE, 10), []);
    assert_eq!(file.stats().resident_pages, 0);
    // Memory in pages of its own is read into as it is.
    let mut aligned = PageVec::<u8>::zeroed(64 * PAGE_SIZE).unwrap();
    assert_eq!(read_into(&file, 0, &mut aligned), 64 * PAGE_SIZE);
    assert!(aligned[..] == pattern(0, 0, 64 * PAGE_SIZE));
    // What is dirty is nowhere else.
    write(&file, 10 * PAGE + 5, b"dirty");
    let mut expected = pattern(0, 0, 64 * PAGE_SIZE);
    expected[10 * PAGE_SIZE + 5..][..5].copy_from_slice(b"dirty");
    assert!(read_direct(&file, 0, 64 * PAGE_SIZE) == expected);
    assert!(store.content()[..] == pattern(0, 0, 1024 * PAGE_SIZE));
}

#[test]
fn direct_writes_are_seen_by_cached_readers_at_once() {
    let (_mm, _bdi, store, file) = rig(256);
    let mut expected = pattern(0, 0, 256 * PAGE_SIZE);
    // Cached, cached and dirty, and not cached; whole pages, and with edges.
    read(&file, 0, 64 * PAGE_SIZE);
    write(&file, 20 * PAGE + 9, &[9; 3 * PAGE_SIZE]);
    expected[20 * PAGE_SIZE + 9..][..3 * PAGE_SIZE].fill(9);
    let writes = [
        (16, 0, 16, 0),
        (8, 100, 40, 17),
        (100, 0, 5, 0),
        (200, 1, 0, 50),
    ];
    for (who, (page, offset, pages, rest)) in (1..).zip(writes) {
        let pos = page * PAGE + offset;
        let bytes = pattern(who, pos, pages * PAGE_SIZE + rest);
        write_direct(&file, pos, &bytes);
        expected[pos as usize..][..bytes.len()].copy_from_slice(&bytes);
        assert!(read(&file, 0, expected.len()) == expected, "write {who}");
        assert!(read_direct(&file, 0, expected.len()) == expected);
    }
    let mut aligned = PageVec::<u8>::zeroed(32 * PAGE_SIZE).unwrap();
    aligned.fill(77);
    write_direct(&file, 40 * PAGE, &aligned);
    expected[40 * PAGE_SIZE..][..32 * PAGE_SIZE].fill(77);
    assert!(read(&file, 0, expected.len()) == expected);
    file.sync().unwrap();
    assert!(store.content() == expected);
}

#[test]
fn direct_writes_extend_the_file_and_appends_go_to_its_end() {
    let (_mm, _bdi, store, file) = rig(1);
    let bytes = pattern(1, 0, 10 * PAGE_SIZE + 10);
    write_direct(&file, 2 * PAGE, &bytes);
    assert_eq!(file.size(), 12 * PAGE + 10);
    let mut expected = pattern(0, 0, PAGE_SIZE);
    expected.resize(2 * PAGE_SIZE, 0);
    expected.extend_from_slice(&bytes);
    let mut iocb = Iocb {
        append: true,
        ..direct(0)
    };
    let n = file.write(&mut iocb, &mut IovIter::source(&[5; 3 * PAGE_SIZE]));
    assert_eq!(n, Ok(3 * PAGE_SIZE));
    expected.resize(expected.len() + 3 * PAGE_SIZE, 5);
    assert!(read(&file, 0, expected.len() + 1) == expected);
    file.sync().unwrap();
    assert!(store.content() == expected);
}

#[test]
fn sync_of_the_file_system_flushes_direct_writes() {
    let (_mm, bdi, store, file) = rig(64);
    write_direct(&file, 0, &[1; 8 * PAGE_SIZE]);
    assert_eq!(file.stats().resident_pages, 0);
    assert!(file.is_dirty());
    assert_eq!(store.flushes.load(Ordering::Relaxed), 0);
    assert!(bdi.sync().is_empty());
    assert_eq!(store.flushes.load(Ordering::Relaxed), 1);
    assert!(!file.is_dirty());
}

#[test]
fn calls_that_may_not_wait_leave_direct_io_to_others() {
    let (_mm, _bdi, _store, file) = rig(64);
    let mut iocb = Iocb {
        nowait: true,
        ..direct(0)
    };
    let mut bytes = [0; PAGE_SIZE];
    let read = file.read(
        &ReadaheadState::new(),
        &mut iocb,
        &mut IovIter::destination(&mut bytes),
    );
    assert_eq!(read, Err(Errno::EAGAIN));
    let written = file.write(&mut iocb, &mut IovIter::source(&bytes));
    assert_eq!(written, Err(Errno::EAGAIN));
}

/// A store that refuses writes, unless it may not yet.
struct Refusing(Arc<Store>, AtomicBool);

impl AddressSpaceOperations for Refusing {
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
        Ok(())
    }
    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EIO)
    }
    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EIO)
    }
    fn describe(&self) -> String {
        "refusing".into()
    }
}

#[test]
fn failed_direct_write_says_so_and_loses_no_dirty_byte() {
    let (_mm, bdi) = storage(32);
    // The flusher would make durable what is to be neither dirty nor durable.
    bdi.stop();
    let store = Store::with(&pattern(0, 0, 64 * PAGE_SIZE));
    let store = Arc::new(Refusing(store, AtomicBool::new(true)));
    let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(&bdi, ops, 64 * PAGE);
    let bytes = [1; 8 * PAGE_SIZE];
    let written = file.write(&mut direct(0), &mut IovIter::source(&bytes));
    assert_eq!(written, Err(Errno::EIO));
    assert!(read(&file, 0, PAGE_SIZE) == pattern(0, 0, PAGE_SIZE));
    // Data that cannot be written out is not given up for a direct write: that goes through the cache.
    write(&file, 2 * PAGE, b"only here");
    write_direct(&file, 2 * PAGE, &bytes[..PAGE_SIZE]);
    assert!(read(&file, 2 * PAGE, PAGE_SIZE) == bytes[..PAGE_SIZE]);
    // Nor is what the store has and no flush has made durable.
    store.1.store(false, Ordering::Relaxed);
    write(&file, 9 * PAGE, b"written");
    file.fdatawrite();
    assert_eq!(store.0.content()[9 * PAGE_SIZE..][..7], *b"written");
    store.1.store(true, Ordering::Relaxed);
    write_direct(&file, 9 * PAGE, &bytes[..PAGE_SIZE]);
    assert!(read(&file, 9 * PAGE, PAGE_SIZE) == bytes[..PAGE_SIZE]);
}

/// Direct and cached readers and writers of one file: each block is always of one writer's making, whole.
#[test]
fn direct_and_cached_users_of_one_file_agree() {
    const BLOCKS: u64 = 32;
    let (_mm, _bdi, store, file) = rig(BLOCKS * 2);
    // Each writer has blocks of its own, of two pages, and the others only read them.
    std::thread::scope(|scope| {
        for who in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                let mut random = who + 1;
                for turn in 0..200_u64 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let block = (random >> 33) % (BLOCKS / 4) * 4 + who;
                    let (pos, byte) = (block * 2 * PAGE, (who * 50 + turn % 50) as u8);
                    let (bytes, offset) = ([byte; 2 * PAGE_SIZE], random >> 50 & 1 << 11);
                    match who % 2 {
                        0 => write(file, pos, &bytes),
                        _ => write_direct(file, pos + offset, &bytes[offset as usize..]),
                    }
                    let back = match random >> 60 & 1 {
                        0 => read(file, pos + offset, PAGE_SIZE),
                        _ => read_direct(file, pos + offset, PAGE_SIZE),
                    };
                    assert!(
                        back == bytes[..PAGE_SIZE],
                        "{who}: block {block}, turn {turn}"
                    );
                    if turn % 16 == 0 {
                        file.sync().unwrap();
                        file.invalidate(0, u64::MAX);
                    }
                }
            });
        }
    });
    file.sync().unwrap();
    assert!(store.content() == read(&file, 0, (BLOCKS * 2 * PAGE) as usize));
}
