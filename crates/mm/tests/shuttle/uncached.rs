//! Uncached and direct operations under random schedules: drop against cached reader against redirty against fault, and
//! what goes around the cache against what goes through it. What is read is what some order of the calls permits, and each page is
//! counted once.
//!
//! A mutation that `a_page_faulted_in_beside_an_uncached_reader_stays_cached` finds: a fault leaves the mark.

use crate::yielding_store::Store;
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, Iocb, IovIter, Mm, MmConfig,
    PAGE_SIZE, ReadaheadState, SlabArc, Vma, VmaAccess,
};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, thread};
use shuttle::rand::Rng;
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;

const CACHED: Iocb = Iocb::at(0);
const UNCACHED: Iocb = {
    let mut iocb = Iocb::at(0);
    iocb.uncached = true;
    iocb
};
const DIRECT: Iocb = {
    let mut iocb = Iocb::at(0);
    iocb.direct = true;
    iocb
};

fn read_at(file: &SlabArc<AddressSpace>, how: Iocb, pos: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let mut iter = IovIter::destination(&mut bytes);
    let n = file.read(&ReadaheadState::new(), &mut Iocb { pos, ..how }, &mut iter);
    assert_eq!(n, Ok(len));
    bytes
}

fn write_at(file: &SlabArc<AddressSpace>, how: Iocb, bytes: Range<u64>, byte: u8) {
    let pos = bytes.start;
    let bytes = vec![byte; (bytes.end - pos) as usize];
    let n = file.write(&mut Iocb { pos, ..how }, &mut IovIter::source(&bytes));
    assert_eq!(n, Ok(bytes.len()));
}

/// The two pages; each is of one write.
fn pages(bytes: &[u8]) -> [u8; 2] {
    [0, 1].map(|page| {
        let bytes = &bytes[page * PAGE_SIZE..][..PAGE_SIZE];
        assert!(
            bytes.iter().all(|&byte| byte == bytes[0]),
            "part of a write"
        );
        bytes[0]
    })
}

fn read(file: &SlabArc<AddressSpace>, how: Iocb) -> [u8; 2] {
    pages(&read_at(file, how, 0, 2 * PAGE_SIZE))
}

fn write(file: &SlabArc<AddressSpace>, how: Iocb, page: u64, byte: u8) {
    write_at(file, how, page * PAGE..(page + 1) * PAGE, byte);
}

fn map(file: &SlabArc<AddressSpace>) -> Vma {
    file.map(0, 2 * PAGE_SIZE, VmaAccess::ReadWrite).unwrap()
}

/// Lets others run, for a time that the schedule's own source of chance chooses.
fn pause() {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..400) {
        thread::yield_now();
    }
}

type Step = fn(&SlabArc<AddressSpace>);

/// How a run ended.
struct End {
    bytes: Vec<u8>,
    /// Pages in the cache when all threads were done and the file durable.
    resident: u64,
}

impl End {
    fn pages(&self) -> [u8; 2] {
        pages(&self.bytes)
    }
}

/// Runs each of `steps` in a thread of its own, over a file of two pages of `a`; afterwards cache and store agree, every
/// page was counted once, and nothing uncached is left.
fn run(steps: &[Step]) -> End {
    // As little as leaves room for mapped files.
    let mm = Mm::new(MmConfig::new(16 << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "model", BdiKind::Storage).unwrap();
    let store = Store::new(vec![b'a'; 2 * PAGE_SIZE]);
    let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(&bdi, ops, 2 * PAGE);
    let threads: Vec<_> = (steps.iter())
        .map(|&step| {
            let file = file.share();
            thread::spawn(move || step(&file))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    file.sync().unwrap();
    let resident = file.stats().resident_pages;
    let bytes = read_at(&file, CACHED, 0, 2 * PAGE_SIZE);
    assert!(bytes == store.content(), "store and cache differ");
    let all = file.stats();
    assert_eq!(
        (all.dirty_pages, all.writeback_pages, all.unstable_pages),
        (0, 0, 0)
    );
    // A page that the flusher has locked would be left.
    bdi.stop();
    // What is pending was used by that read, or is dropped with the file.
    file.invalidate(0, u64::MAX);
    let after = file.stats().uncached;
    let kept = after.kept_present_pages + after.kept_used_pages;
    let done = after.dropped_pages + kept + after.failed_locked_pages + after.failed_held_pages;
    assert_eq!(after.asked_pages, done, "{after:?}");
    assert_eq!(file.stats().resident_pages, 0);
    drop(file);
    mm.punch();
    assert_eq!(mm.usage().in_use_pages, 0);
    End { bytes, resident }
}

/// Two uncached readers, a cached one and a writer.
#[test]
fn drop_against_cached_reader_against_write() {
    sample(1500, || {
        let end = run(&[
            |file| _ = read(file, UNCACHED),
            |file| _ = read(file, UNCACHED),
            |file| assert!(b"ab".contains(&read(file, CACHED)[1])),
            |file| write(file, CACHED, 1, b'b'),
        ]);
        assert_eq!(end.pages(), *b"ab");
    });
}

/// An uncached writer whose page is dirtied again, by itself and by others, while it is made durable.
#[test]
fn drop_against_redirty_against_sync() {
    sample(1500, || {
        let end = run(&[
            |file| {
                write(file, UNCACHED, 0, b'b');
                write(file, UNCACHED, 0, b'c');
                assert_eq!(read(file, UNCACHED)[0], b'c');
            },
            |file| write(file, CACHED, 1, b'd'),
            |file| file.sync().unwrap(),
            |file| file.sync().unwrap(),
        ]);
        assert_eq!(end.pages(), *b"cd");
    });
}

/// What a cached writer stored is never lost to an uncached writer's drop: it may be the same page.
#[test]
fn cached_write_beside_uncached_write_is_kept() {
    sample(1500, || {
        let end = run(&[
            |file| write(file, UNCACHED, 0, b'b'),
            |file| {
                write_at(file, CACHED, PAGE - 1..PAGE, b'x');
                let byte = read_at(file, CACHED, PAGE - 1, 1)[0];
                assert!(b"xb".contains(&byte));
                write(file, CACHED, 0, b'y');
            },
            |file| file.sync().unwrap(),
        ]);
        let end = end.pages();
        assert!(b"yb".contains(&end[0]) && end[1] == b'a');
    });
}

/// Faults of a mapping find what uncached operations brought in, dirtied again and drop. What was faulted in stays, and no
/// store is lost.
#[test]
fn drop_against_cached_reader_against_redirty_against_fault() {
    sample(1000, || {
        let end = run(&[
            |file| {
                let _mapped = map(file);
                for _ in 0..6 {
                    let bytes = read_at(file, UNCACHED, 0, 2 * PAGE_SIZE);
                    assert!(b"ax".contains(&bytes[0]) && b"ab".contains(&bytes[1]));
                    assert_eq!(bytes[PAGE_SIZE], b'a');
                }
            },
            |file| {
                let _mapped = map(file);
                for byte in [b'a', b'b'] {
                    write_at(file, UNCACHED, 1..PAGE, byte);
                }
            },
            |file| {
                let vma = map(file);
                pause();
                assert!(b"ab".contains(&vma.load(1).unwrap()));
                vma.store(0, b'x').unwrap();
                assert_eq!(vma.load(0), Ok(b'x'), "a store is lost");
                pause();
                assert_eq!(vma.load(PAGE_SIZE), Ok(b'a'));
                file.check_page_tables();
            },
            |file| {
                pause();
                read_at(file, CACHED, 0, 10);
            },
            |file| file.sync().unwrap(),
        ]);
        assert_eq!(end.resident, 2, "what was faulted in is gone");
        let expected = [vec![b'x'], vec![b'b'; PAGE_SIZE - 1], vec![b'a'; PAGE_SIZE]];
        assert!(end.bytes == expected.concat(), "a store is lost");
    });
}

/// Whichever comes first, a fault or the drop of what an uncached reader brought in: the page of the fault is there in the end.
#[test]
fn a_page_faulted_in_beside_an_uncached_reader_stays_cached() {
    sample(1000, || {
        let end = run(&[
            |file| {
                let _mapped = map(file);
                for _ in 0..3 {
                    // The first brings the second page in, and the second drops it.
                    let handle = ReadaheadState::new();
                    for page in 0..2 {
                        let mut byte = [0];
                        let mut iter = IovIter::destination(&mut byte);
                        let pos = (page + 1) * PAGE - 1;
                        let n = file.read(&handle, &mut Iocb { pos, ..UNCACHED }, &mut iter);
                        assert_eq!((n, byte), (Ok(1), [b'a']));
                        pause();
                    }
                }
            },
            |file| {
                let vma = map(file);
                pause();
                assert_eq!(vma.load(PAGE_SIZE), Ok(b'a'));
            },
        ]);
        assert!(end.resident >= 1, "what was faulted in is gone");
    });
}

/// Direct writes against cached ones of the other page, cached readers and writeback: no page's write is lost, and nothing
/// old comes back.
#[test]
fn direct_write_against_cached_users() {
    sample(1500, || {
        let end = run(&[
            |file| {
                // Something for it to take from the cache.
                _ = read(file, CACHED);
                write(file, DIRECT, 0, b'b');
                assert_eq!(read(file, CACHED)[0], b'b');
                assert_eq!(read(file, DIRECT)[0], b'b');
            },
            |file| {
                write(file, CACHED, 1, b'c');
                assert_eq!(read(file, DIRECT)[1], b'c');
            },
            |file| _ = read(file, CACHED),
            |file| file.sync().unwrap(),
        ]);
        assert_eq!(end.pages(), *b"bc");
    });
}
