//! The whole cache under random schedules, with a store in memory and few frames: what is read is
//! what some order of the calls permits, nothing waits for ever, and the counts return to zero.
//!
//! Time stands still here and no wait times out, so progress that only a time-out would make shows
//! itself as a deadlock.

use crate::yielding_store::{Machine, Store, Volatile, join, read, spawn, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, FrameKind, Iocb, IovIter, PAGE_SIZE, ReadaheadState,
    SlabArc, View,
};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, Mutex, thread};

const PAGE: u64 = PAGE_SIZE as u64;

/// The byte that all of `bytes` are.
fn all_one(bytes: &[u8]) -> u8 {
    let first = bytes[0];
    assert!(bytes.iter().all(|&byte| byte == first), "part of a write");
    first
}

/// 3 pages of `a`; one thread cuts to 5000 bytes and grows again, one writes `b` over the second
/// page, one reads.
#[test]
fn write_against_truncate_against_read() {
    const CUT: usize = 5000;
    sample(1000, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; 3 * PAGE_SIZE]);
        let file = machine.file(&store);
        // Cached and dirty in part, so that the write may be a hit.
        write(&file, PAGE, 8, b'a');
        let threads = [
            spawn(&file, |file| {
                file.truncate(CUT as u64).unwrap();
                file.truncate(3 * PAGE).unwrap();
            }),
            spawn(&file, |file| write(file, PAGE, PAGE_SIZE, b'b')),
            spawn(&file, |file| {
                for _ in 0..2 {
                    let bytes = read(file, PAGE, 2 * PAGE_SIZE);
                    let kept = CUT - PAGE_SIZE;
                    assert!(bytes.len() >= kept, "{} bytes", bytes.len());
                    assert!(bytes[..kept].iter().all(|byte| b"ab".contains(byte)));
                    assert!(bytes.iter().all(|byte| b"ab\0".contains(byte)));
                    let past = bytes.get(PAGE_SIZE..).unwrap_or_default();
                    assert!(past.iter().all(|byte| b"a\0".contains(byte)));
                }
            }),
            spawn(&file, |file| file.sync().unwrap()),
        ];
        join(threads);
        let bytes = read(&file, 0, 4 * PAGE_SIZE);
        assert_eq!(bytes.len(), 3 * PAGE_SIZE);
        assert_eq!(all_one(&bytes[..PAGE_SIZE]), b'a');
        assert_eq!(all_one(&bytes[PAGE_SIZE..CUT]), b'b');
        assert!(b"b\0".contains(&all_one(&bytes[CUT..2 * PAGE_SIZE])));
        assert_eq!(all_one(&bytes[2 * PAGE_SIZE..]), 0);
        machine.end(vec![(file, store)]);
    });
}

/// Two appenders and a writer in the middle: every record is whole and where it was said to be.
#[test]
fn appends_do_not_overlap() {
    sample(800, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; 100]);
        let file = machine.file(&store);
        let append = |byte: u8| {
            move |file: &SlabArc<AddressSpace>| {
                for _ in 0..2 {
                    let record = vec![byte; 3000];
                    let mut iocb = Iocb {
                        append: true,
                        ..Iocb::at(0)
                    };
                    let written = file.write(&mut iocb, &mut IovIter::source(&record));
                    let n = written.unwrap();
                    assert_eq!(n, record.len());
                    assert!(read(file, iocb.pos - n as u64, n) == record);
                }
            }
        };
        join([
            spawn(&file, append(b'b')),
            spawn(&file, append(b'c')),
            spawn(&file, |file| file.sync().unwrap()),
        ]);
        let bytes = read(&file, 0, 20_000);
        assert_eq!(bytes.len(), 12_100);
        let records = bytes[100..].chunks(3000).map(all_one);
        assert_eq!(records.filter(|&byte| byte == b'b').count(), 2);
        machine.end(vec![(file, store)]);
    });
}

/// One file is written and made durable while another is read, in a third of the frames that the two
/// would take.
#[test]
fn reclaim_against_write_against_fsync() {
    const PAGES: u64 = 24;
    sample(250, || {
        let machine = Machine::new(|_| ());
        let stores = [0, 1].map(|which| {
            let page = |page: u64| vec![(16 * which + page) as u8; PAGE_SIZE];
            Store::new((0..PAGES).flat_map(page).collect())
        });
        let files = stores.each_ref().map(|store| machine.file(store));
        let away = machine.leave(16);
        let cursor = files[0].sample_wb_err();
        let threads = [
            spawn(&files[0], |file| {
                for page in 0..PAGES {
                    write(file, page * PAGE, PAGE_SIZE, 100 + page as u8);
                }
            }),
            spawn(&files[1], |file| {
                for page in (0..PAGES).chain([3, 1, 2]) {
                    let bytes = read(file, page * PAGE + 5, 20);
                    assert_eq!(bytes, [16 + page as u8; 20], "a foreign byte");
                }
            }),
            spawn(&files[0], move |file| {
                for _ in 0..2 {
                    file.fsync(&cursor).unwrap();
                }
            }),
        ];
        join(threads);
        for page in 0..PAGES {
            let bytes = read(&files[0], page * PAGE, PAGE_SIZE);
            assert_eq!(all_one(&bytes), 100 + page as u8);
        }
        let evictions: u64 = files.iter().map(|file| file.stats().evicted_pages).sum();
        assert!(evictions >= PAGES, "{evictions} evictions");
        drop(away);
        machine.end(files.into_iter().zip(stores).collect());
    });
}

/// Three threads write a page each and make it durable, twice, and one cuts the file behind them; in
/// half of the runs one flush fails. What an fsync that succeeded covers is durable when it returns.
#[test]
fn fsyncs_beside_one_another_with_a_flush_that_fails() {
    sample(600, || {
        let machine = Machine::new(|_| ());
        let live = Store::new(vec![0; 4 * PAGE_SIZE]);
        let fails_after = shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..8);
        let fails_after = (fails_after < 4).then_some(fails_after);
        let store = Volatile::new(&live, fails_after);
        let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
        let file = AddressSpace::new(&machine.bdi, ops, 4 * PAGE);
        let writers = (0..3).map(|page| {
            let (store, cursor) = (Arc::clone(&store), file.sample_wb_err());
            spawn(&file, move |file| {
                for byte in [b'a', b'b'] {
                    write(file, page * PAGE, PAGE_SIZE, byte);
                    // The cursor would tell of a failure that the attempt itself does not see.
                    let synced = match page {
                        0 => file.fsync(&cursor),
                        1 => file.sync(),
                        // Beside the flush, and not with a group.
                        _ => {
                            file.fdatawrite();
                            file.sync()
                        }
                    };
                    if synced.is_ok() {
                        let durable = store.durable.lock();
                        let bytes = &durable[(page * PAGE) as usize..][..PAGE_SIZE];
                        assert_eq!(all_one(bytes), byte, "page {page} is not durable");
                    }
                }
            })
        });
        let cutter = |file: &SlabArc<AddressSpace>| file.truncate(3 * PAGE).unwrap();
        join(writers.chain([spawn(&file, cutter)]).collect::<Vec<_>>());
        *store.fails_after.lock() = None;
        file.sync().unwrap();
        let durable = store.durable.lock().clone();
        assert_eq!(durable, [b'b'; 3 * PAGE_SIZE]);
        machine.end(vec![(file, live)]);
    });
}

/// One folio of 8 pages, dirty, is split by a hole and by a truncate while part of it is overwritten,
/// all of it read, and the whole written back.
#[test]
fn split_against_write_against_read_against_writeback() {
    const SIZE: usize = 7 * PAGE_SIZE + 10;
    let pos = 5 * PAGE_SIZE + 100;
    sample(600, move || {
        let machine = Machine::new(|_| ());
        let store = Store::new(Vec::new());
        let file = machine.file(&store);
        write(&file, 0, 8 * PAGE_SIZE, b'a');
        assert_eq!(file.stats().folios, 1, "a large folio");
        join([
            spawn(&file, |file| file.punch_hole(2 * PAGE, PAGE).unwrap()),
            spawn(&file, |file| file.truncate(SIZE as u64).unwrap()),
            spawn(&file, move |file| write(file, pos as u64, 50, b'b')),
            spawn(&file, |file| file.sync().unwrap()),
            spawn(&file, move |file| {
                let bytes = read(file, 0, 8 * PAGE_SIZE);
                assert!(bytes.len() >= SIZE);
                for (at, &byte) in bytes.iter().enumerate() {
                    let may = match at {
                        _ if (2 * PAGE_SIZE..3 * PAGE_SIZE).contains(&at) => b"a\0",
                        _ if (pos..pos + 50).contains(&at) => b"ab",
                        // Cut off while it was read.
                        _ if at >= SIZE => b"a\0",
                        _ => b"aa",
                    };
                    assert!(may.contains(&byte), "byte {at} is {byte}");
                }
            }),
        ]);
        let bytes = read(&file, 0, 8 * PAGE_SIZE);
        assert_eq!(bytes.len(), SIZE);
        assert_eq!(all_one(&bytes[..2 * PAGE_SIZE]), b'a');
        assert_eq!(all_one(&bytes[2 * PAGE_SIZE..3 * PAGE_SIZE]), 0);
        assert_eq!(all_one(&bytes[3 * PAGE_SIZE..pos]), b'a');
        assert_eq!(all_one(&bytes[pos..pos + 50]), b'b');
        assert_eq!(all_one(&bytes[pos + 50..]), b'a');
        machine.end(vec![(file, store)]);
    });
}

/// A hole over part of what is written: each page ends as one order or the other leaves it.
#[test]
fn punch_against_write_against_fsync() {
    sample(1000, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; 4 * PAGE_SIZE]);
        let file = machine.file(&store);
        write(&file, PAGE + 10, 10, b'a');
        let (hole, end) = (PAGE as usize + 100, 3 * PAGE_SIZE);
        join([
            spawn(&file, move |file| {
                file.punch_hole(hole as u64, (end - hole) as u64).unwrap();
            }),
            spawn(&file, |file| write(file, PAGE, PAGE_SIZE, b'b')),
            spawn(&file, |file| write(file, 2 * PAGE, PAGE_SIZE + 50, b'c')),
            spawn(&file, |file| file.sync().unwrap()),
        ]);
        let bytes = read(&file, 0, 5 * PAGE_SIZE);
        assert_eq!(all_one(&bytes[..PAGE_SIZE]), b'a');
        assert_eq!(all_one(&bytes[PAGE_SIZE..hole]), b'b');
        assert!(b"b\0".contains(&all_one(&bytes[hole..2 * PAGE_SIZE])));
        assert!(b"c\0".contains(&all_one(&bytes[2 * PAGE_SIZE..end])));
        assert_eq!(all_one(&bytes[end..end + 50]), b'c');
        assert_eq!(all_one(&bytes[end + 50..]), b'a');
        machine.end(vec![(file, store)]);
    });
}

/// Writers dirty three times what may be dirty: they sleep until the flusher made room.
#[test]
fn writers_are_throttled_and_go_on() {
    const PAGES: u64 = 24;
    sample(250, || {
        let machine = Machine::new(|config| {
            // The floor, 16 pages, for both.
            config.dirty_background_percent = 1;
            config.dirty_percent = 1;
        });
        let store = Store::new(Vec::new());
        let file = machine.file(&store);
        file.extend(2 * PAGES * PAGE).unwrap();
        join([0, 1].map(|half| {
            spawn(&file, move |file| {
                for page in half * PAGES..(half + 1) * PAGES {
                    write(file, page * PAGE, PAGE_SIZE, page as u8);
                    // A page a writer may be over it, before each looks.
                    assert!(file.bdi().nr_not_durable() <= 16 + 2 * 4);
                }
            })
        }));
        for page in 0..2 * PAGES {
            assert_eq!(all_one(&read(&file, page * PAGE, PAGE_SIZE)), page as u8);
        }
        machine.end(vec![(file, store)]);
    });
}

/// Three threads, each with four pages of one file of its own to write, read and punch, beside one
/// that evicts, syncs and cuts what lies behind; in fewer frames than the file has pages.
#[test]
fn random_operations_on_stripes() {
    const STRIPE: usize = 4 * PAGE_SIZE;
    sample(400, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![0; 3 * STRIPE + 100]);
        let file = machine.file(&store);
        let away = machine.leave(9);
        let worker = |stripe: usize| {
            move |file: &SlabArc<AddressSpace>| {
                let start = stripe * STRIPE;
                let mut shadow = vec![0; STRIPE];
                for round in 0..6 {
                    let at = random(STRIPE);
                    let len = (1 + random([200, 2 * PAGE_SIZE][round % 2])).min(STRIPE - at);
                    let pos = (start + at) as u64;
                    match random(4) {
                        0 | 1 => {
                            let byte = (16 * stripe + round) as u8 + 1;
                            write(file, pos, len, byte);
                            shadow[at..at + len].fill(byte);
                        }
                        2 => {
                            file.punch_hole(pos, len as u64).unwrap();
                            shadow[at..at + len].fill(0);
                        }
                        _ => assert!(read(file, pos, len) == shadow[at..at + len]),
                    }
                }
                assert!(read(file, start as u64, STRIPE) == shadow);
            }
        };
        let mut threads: Vec<_> = (0..3).map(|stripe| spawn(&file, worker(stripe))).collect();
        threads.push(spawn(&file, |file| {
            for _ in 0..3 {
                file.invalidate(random(3 * STRIPE) as u64, STRIPE as u64);
                file.truncate((3 * STRIPE + random(300)) as u64).unwrap();
                file.sync().unwrap();
            }
        }));
        join(threads);
        drop(away);
        machine.end(vec![(file, store)]);
    });
}

/// A view, and what it was when it was taken.
type Taken = (View, Vec<u8>);

fn view(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> Taken {
    let handle = ReadaheadState::new();
    let view = file.view(&handle, &mut Iocb::at(pos), len).unwrap();
    let seen = view.to_vec();
    (view, seen)
}

fn assert_frozen((view, seen): &Taken) {
    assert!(**view == **seen, "a view changed");
}

/// Views of three pages that are overwritten, cut, punched and written back, dropped by another thread.
#[test]
fn view_against_write_against_truncate_against_writeback() {
    const CUT: u64 = PAGE + 904;
    sample(1200, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; 3 * PAGE_SIZE]);
        let file = machine.file(&store);
        write(&file, PAGE, 8, b'a');
        let kept = Arc::new(Mutex::new(vec![view(&file, PAGE, PAGE_SIZE)]));
        let (takes, drops) = (Arc::clone(&kept), Arc::clone(&kept));
        let cuts = random(2) == 0;
        join([
            spawn(&file, move |file| match cuts {
                true => {
                    file.truncate(CUT).unwrap();
                    file.truncate(3 * PAGE).unwrap();
                }
                false => file.punch_hole(CUT, 2 * PAGE).unwrap(),
            }),
            spawn(&file, |file| {
                write(file, PAGE, PAGE_SIZE, b'b');
                write(file, PAGE, PAGE_SIZE, b'c');
            }),
            spawn(&file, move |file| {
                for _ in 0..2 {
                    let taken = view(file, PAGE, 2 * PAGE_SIZE);
                    assert!(taken.1.iter().all(|byte| b"abc\0".contains(byte)));
                    takes.lock().push(taken);
                }
            }),
            spawn(&file, move |_| {
                for _ in 0..3 {
                    thread::yield_now();
                    let taken = drops.lock().pop();
                    taken.iter().for_each(assert_frozen);
                }
            }),
            spawn(&file, |file| file.sync().unwrap()),
        ]);
        let bytes = read(&file, 0, 3 * PAGE_SIZE);
        assert_eq!(all_one(&bytes[PAGE_SIZE..CUT as usize]), b'c');
        assert!(b"c\0".contains(&all_one(&bytes[CUT as usize..2 * PAGE_SIZE])));
        assert_eq!(
            all_one(&bytes[2 * PAGE_SIZE..]),
            if cuts { 0 } else { bytes[2 * PAGE_SIZE] }
        );
        let mut kept = kept.lock();
        kept.iter().for_each(assert_frozen);
        kept.clear();
        assert_eq!(machine.mm.stats().unreclaimable.viewed_pages, 0);
        machine.end(vec![(file, store)]);
    });
}

/// A large folio that is viewed, and split, written and moved to a smaller bound.
#[test]
fn view_against_split_against_write_against_migration() {
    sample(600, || {
        let machine = Machine::new(|config| config.limit = 8 << 20);
        let mm = Arc::clone(&machine.mm);
        // The folio comes into a block that has the fewest frames in use: the one to be given back.
        let mut promised = machine
            .mm
            .frames()
            .try_reserve(FrameKind::General, 512)
            .unwrap();
        let mut others: Vec<_> = (0..512)
            .map(|_| machine.mm.frames().alloc(&mut promised))
            .collect();
        let store = Store::new(Vec::new());
        let file = machine.file(&store);
        write(&file, 0, 8 * PAGE_SIZE, b'a');
        assert_eq!(file.stats().folios, 1, "a large folio");
        for frame in others.split_off(100) {
            machine.mm.frames().free(frame, 0);
        }
        drop(promised);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let takes = Arc::clone(&kept);
        join([
            spawn(&file, |file| {
                file.punch_hole(2 * PAGE + 10, 2 * PAGE).unwrap()
            }),
            spawn(&file, |file| write(file, 5 * PAGE + 100, 50, b'b')),
            spawn(&file, move |_| mm.set_limit(4 << 20).unwrap()),
            spawn(&file, move |file| {
                for page in [0, 5, 3] {
                    let taken = view(file, page * PAGE, PAGE_SIZE);
                    takes.lock().push(taken);
                    thread::yield_now();
                    takes.lock().iter().for_each(assert_frozen);
                }
            }),
            spawn(&file, |file| file.sync().unwrap()),
        ]);
        kept.lock().iter().for_each(assert_frozen);
        let bytes = read(&file, 0, 8 * PAGE_SIZE);
        assert_eq!(all_one(&bytes[2 * PAGE_SIZE + 10..4 * PAGE_SIZE + 10]), 0);
        assert_eq!(all_one(&bytes[5 * PAGE_SIZE + 100..][..50]), b'b');
        for at in [
            0,
            2 * PAGE_SIZE + 9,
            4 * PAGE_SIZE + 10,
            5 * PAGE_SIZE + 99,
            8 * PAGE_SIZE - 1,
        ] {
            assert_eq!(bytes[at], b'a', "byte {at}");
        }
        kept.lock().clear();
        for frame in others {
            machine.mm.frames().free(frame, 0);
        }
        // What kept a block beyond the limit is free now, and the reclaimer looks again in 20 ms, which never pass here.
        machine.mm.set_limit(4 << 20).unwrap();
        machine.end(vec![(file, store)]);
    });
}

/// A viewed page is overwritten while it is written out: its views may give the frames back before the device has
/// read them.
#[test]
fn view_against_write_against_write_out() {
    sample(600, || {
        let machine = Machine::new(|_| ());
        let store = Store::new(vec![b'a'; PAGE_SIZE]);
        let file = machine.file(&store);
        write(&file, 0, PAGE_SIZE, b'b');
        join([
            spawn(&file, |file| (0..2).for_each(|_| file.sync().unwrap())),
            spawn(&file, |file| {
                for byte in *b"cd" {
                    let taken = view(file, 0, PAGE_SIZE);
                    write(file, 0, PAGE_SIZE, byte);
                    assert_frozen(&taken);
                }
            }),
        ]);
        assert_eq!(all_one(&read(&file, 0, PAGE_SIZE)), b'd');
        machine.end(vec![(file, store)]);
    });
}

/// Views of pages that reclaim would like to have, and of a file that is dropped.
#[test]
fn view_against_reclaim_against_the_last_drop() {
    const PAGES: u64 = 24;
    sample(250, || {
        let machine = Machine::new(|_| ());
        let stores = [0, 1].map(|which| {
            let page = |page: u64| vec![(32 * which + page) as u8; PAGE_SIZE];
            Store::new((0..PAGES).flat_map(page).collect())
        });
        let [viewed, other] = stores.each_ref().map(|store| machine.file(store));
        let away = machine.leave(16);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (takes, drops) = (Arc::clone(&kept), Arc::clone(&kept));
        let threads = [
            spawn(&viewed, move |file| {
                for page in 0..PAGES {
                    let taken = view(file, page * PAGE + 5, 20);
                    assert_eq!(taken.1, [page as u8; 20], "a foreign byte");
                    let mut all = takes.lock();
                    all.push(taken);
                    if all.len() > 4 {
                        all.swap_remove(random(4));
                    }
                    all.iter().for_each(assert_frozen);
                }
            }),
            spawn(&other, |file| {
                for page in (0..PAGES).chain([3, 1, 2]) {
                    assert_eq!(read(file, page * PAGE + 5, 20), [32 + page as u8; 20]);
                }
            }),
            spawn(&other, move |_| {
                for _ in 0..PAGES {
                    thread::yield_now();
                    let taken = drops.lock().pop();
                    taken.iter().for_each(assert_frozen);
                }
            }),
        ];
        drop(viewed);
        join(threads);
        // The file is gone, and what is left of it is the views'.
        kept.lock().iter().for_each(assert_frozen);
        kept.lock().clear();
        drop(away);
        let [_, store] = stores;
        machine.end(vec![(other, store)]);
    });
}

/// A number below `n`, from the schedule's own source.
fn random(n: usize) -> usize {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..n)
}
