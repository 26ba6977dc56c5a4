//! Uncached and direct operations under random schedules: drop against cached reader against redirty, and what goes around
//! the cache against what goes through it. What is read is what some order of the calls permits, and each page is
//! counted once.
#![cfg(shuttle)]
#![allow(missing_docs)]

mod yielding_store;

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, Iocb, IovIter, Mm, MmConfig,
    PAGE_SIZE, ReadaheadState, UncachedStats,
};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, thread};
use yielding_store::Store;

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

/// Reads the two pages; each is of one write.
fn read(file: &Arc<AddressSpace>, how: Iocb) -> [u8; 2] {
    let mut bytes = vec![0xee; 2 * PAGE_SIZE];
    let mut iter = IovIter::destination(&mut bytes);
    let n = file.read(&ReadaheadState::new(), &mut { how }, &mut iter);
    assert_eq!(n, Ok(2 * PAGE_SIZE));
    [0, 1].map(|page| {
        let bytes = &bytes[page * PAGE_SIZE..][..PAGE_SIZE];
        assert!(
            bytes.iter().all(|&byte| byte == bytes[0]),
            "part of a write"
        );
        bytes[0]
    })
}

fn write(file: &Arc<AddressSpace>, how: Iocb, page: u64, byte: u8) {
    let bytes = [byte; PAGE_SIZE];
    let pos = page * PAGE;
    let n = file.write(&mut Iocb { pos, ..how }, &mut IovIter::source(&bytes));
    assert_eq!(n, Ok(PAGE_SIZE));
}

type Step = fn(&Arc<AddressSpace>);

/// Runs each of `steps` in a thread of its own, over a file of two pages of `a`; afterwards cache and store agree, every
/// page was counted once, and nothing uncached is left. Returns the pages, and what was counted.
fn run(steps: &[Step]) -> ([u8; 2], UncachedStats) {
    let mm = Mm::new(MmConfig::new(4 << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "model", BdiKind::Storage).unwrap();
    let store = Store::new(vec![b'a'; 2 * PAGE_SIZE]);
    let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(&bdi, ops, 2 * PAGE);
    let threads: Vec<_> = (steps.iter())
        .map(|&step| {
            let file = Arc::clone(&file);
            thread::spawn(move || step(&file))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    file.sync().unwrap();
    let stats = file.stats().uncached;
    let end = read(&file, CACHED);
    assert_eq!(end, [0, PAGE_SIZE].map(|at| store.content()[at]));
    let all = file.stats();
    assert_eq!((all.dirty, all.writeback, all.unstable), (0, 0, 0));
    // What is pending was used by that read, or is dropped with the file.
    file.invalidate(0, u64::MAX);
    let after = file.stats().uncached;
    let kept = after.kept_present + after.kept_used;
    let done = after.dropped + kept + after.failed_locked + after.failed_held;
    assert_eq!(after.asked, done, "{after:?}");
    assert_eq!(file.stats().resident, 0);
    drop(file);
    bdi.stop();
    assert_eq!(mm.usage().in_use, 0);
    (end, stats)
}

/// Two uncached readers, a cached one and a writer.
#[test]
fn drop_against_cached_reader_against_write() {
    sample(1500, || {
        let (end, _) = run(&[
            |file| _ = read(file, UNCACHED),
            |file| _ = read(file, UNCACHED),
            |file| assert!(b"ab".contains(&read(file, CACHED)[1])),
            |file| write(file, CACHED, 1, b'b'),
        ]);
        assert_eq!(end, *b"ab");
    });
}

/// An uncached writer whose page is dirtied again, by itself and by others, while it is made durable.
#[test]
fn drop_against_redirty_against_sync() {
    sample(1500, || {
        let (end, _) = run(&[
            |file| {
                write(file, UNCACHED, 0, b'b');
                write(file, UNCACHED, 0, b'c');
                assert_eq!(read(file, UNCACHED)[0], b'c');
            },
            |file| write(file, CACHED, 1, b'd'),
            |file| file.sync().unwrap(),
            |file| file.sync().unwrap(),
        ]);
        assert_eq!(end, *b"cd");
    });
}

/// What a cached writer stored is never lost to an uncached writer's drop: it may be the same page.
#[test]
fn cached_write_beside_uncached_write_is_kept() {
    sample(1500, || {
        let (end, _) = run(&[
            |file| write(file, UNCACHED, 0, b'b'),
            |file| {
                let mut iocb = Iocb {
                    pos: PAGE - 1,
                    ..CACHED
                };
                let n = file.write(&mut iocb, &mut IovIter::source(&[b'x'; 1]));
                assert_eq!(n, Ok(1));
                let mut byte = [0];
                let mut iocb = Iocb {
                    pos: PAGE - 1,
                    ..CACHED
                };
                let mut iter = IovIter::destination(&mut byte);
                file.read(&ReadaheadState::new(), &mut iocb, &mut iter)
                    .unwrap();
                assert!(b"xb".contains(&byte[0]));
                write(file, CACHED, 0, b'y');
            },
            |file| file.sync().unwrap(),
        ]);
        assert!(b"yb".contains(&end[0]) && end[1] == b'a');
    });
}

/// Direct writes against cached ones of the other page, cached readers and writeback: no page's write is lost, and nothing
/// old comes back.
#[test]
fn direct_write_against_cached_users() {
    sample(1500, || {
        let (end, _) = run(&[
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
        assert_eq!(end, *b"bc");
    });
}
