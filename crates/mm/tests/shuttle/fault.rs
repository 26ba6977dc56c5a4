//! Faults of mapped files under random schedules, with page tables in memory: against writes, truncate, hole punch,
//! writeback, reclaim, bad memory, and the first mapping of a file that is cached already.
//!
//! Canaries leave out a step of the page tables and expect the damage to be found.

use crate::yielding_store::Store;
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, Iocb, IovIter, Mm, MmConfig,
    PAGE_SIZE, PageIndex, ReadaheadState, SlabArc, Step, Vma, VmaAccess, leave_out,
};
use foliocache_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use shuttle::rand::Rng;
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;
const PAGES: u64 = 4;
/// What is cut off the file.
const END: Range<u64> = 2 * PAGE + 100..PAGES * PAGE;
/// What is punched out of it: the end of a page, a page, and the start of one.
const HOLE: Range<u64> = PAGE + 100..3 * PAGE + 50;

/// A file whose page `i` is full of `a` plus `i`.
struct Machine {
    mm: Arc<Mm>,
    bdi: Arc<BackingDevInfo>,
    store: Arc<Store>,
    file: SlabArc<AddressSpace>,
}

fn first_byte(page: u64) -> u8 {
    b'a' + page as u8
}

impl Machine {
    fn new() -> Self {
        let mm = Mm::new(MmConfig::new(16 << 20)).unwrap();
        let bdi = BackingDevInfo::new(&mm, "model", BdiKind::Storage).unwrap();
        let bytes = (0..PAGES).flat_map(|page| vec![first_byte(page); PAGE_SIZE]);
        let store = Store::new(bytes.collect());
        let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
        let file = AddressSpace::new(&bdi, ops, PAGES * PAGE);
        Self {
            mm,
            bdi,
            store,
            file,
        }
    }

    fn worker(&self) -> Worker {
        Worker {
            mm: Arc::clone(&self.mm),
            store: Arc::clone(&self.store),
            file: self.file.share(),
        }
    }

    fn spawn(&self, run: impl FnOnce(&Worker) + Send + 'static) -> thread::JoinHandle<()> {
        let worker = self.worker();
        thread::spawn(move || run(&worker))
    }

    fn join(&self, threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
        for thread in threads {
            thread.join().unwrap();
        }
        self.file.check_page_tables();
    }

    /// As [`Machine::end`]; part of the file was cut out.
    fn end_with_zeros(self, gone: Range<u64>) {
        let bytes = read(&self.file, gone.start, (gone.end - gone.start) as usize);
        let zeros = bytes.iter().all(|&byte| byte == 0);
        assert!(zeros, "a byte from before the cut");
        self.end();
    }

    /// Makes the file durable, compares cache and store, and drops everything.
    fn end(self) {
        self.file.sync().unwrap();
        let cached = read(&self.file, 0, self.file.size() as usize);
        assert!(
            cached == self.store.content(),
            "a store is lost: store and cache differ"
        );
        let stats = self.file.stats();
        let left = (
            stats.dirty_pages,
            stats.writeback_pages,
            stats.unstable_pages,
            stats.failed_pages,
        );
        assert_eq!(left, (0, 0, 0, 0));
        drop((self.file, self.store));
        self.bdi.stop();
        self.mm.punch();
        let usage = self.mm.usage();
        assert_eq!(
            (usage.in_use_pages, usage.reserved_pages, usage.waiters),
            (0, 0, 0)
        );
        assert!(usage.total_bytes() <= usage.limit_bytes);
    }
}

struct Worker {
    mm: Arc<Mm>,
    store: Arc<Store>,
    file: SlabArc<AddressSpace>,
}

impl Worker {
    fn map(&self) -> Vma {
        let len = (PAGES * PAGE) as usize;
        self.file.map(0, len, VmaAccess::ReadWrite).unwrap()
    }

    /// Stores some values into a byte that is this thread's, through a window and with `write`, and makes every
    /// second one durable.
    fn change(&self, vma: &Vma, pos: u64) {
        for value in 1..=4 {
            match value {
                3 => write(&self.file, pos, &[value]),
                _ => vma.store(pos as usize, value).unwrap(),
            }
            assert_eq!(vma.load(pos as usize), Ok(value), "a store is lost");
            if value % 2 == 0 {
                self.file.sync().unwrap();
                self.check_durable(pos, value);
            }
            self.file.check_page_tables();
            assert_eq!(read(&self.file, pos, 1), [value], "a store is lost");
        }
    }

    fn check_durable(&self, pos: u64, value: u8) {
        let stored = self.store.byte(pos);
        assert_eq!(stored, value, "a store is lost: it is not durable");
    }

    fn reclaim(&self) {
        for _ in 0..4 {
            pause();
            self.mm.shrink(4);
            self.file.check_page_tables();
            pause();
            self.mm.punch();
        }
    }

    fn cut_and_grow(&self, cut: &Cut) {
        cut.wait();
        self.file.truncate(END.start).unwrap();
        self.file.check_end();
        // Release: pairs with `look`.
        cut.done.store(true, Ordering::Release);
        pause();
        self.file.truncate(END.end).unwrap();
    }

    fn punch_hole(&self, cut: &Cut) {
        cut.wait();
        let len = HOLE.end - HOLE.start;
        self.file.punch_hole(HOLE.start, len).unwrap();
        // Release: pairs with `look`.
        cut.done.store(true, Ordering::Release);
    }

    /// Loads bytes of what is `gone` once it is cut, and of the pages that stay in part, until after the cut.
    fn look(&self, vma: &Vma, gone: Range<u64>, cut: &Cut) {
        let (start, end) = (gone.start, gone.end);
        let mut last = false;
        while !last {
            // Acquire: pairs with the store after the cut.
            last = cut.done.load(Ordering::Acquire);
            for pos in [start, end - 1, start - 1, end - 1, start, start + PAGE] {
                // Acquire: as above.
                let is_cut = cut.done.load(Ordering::Acquire);
                let old = first_byte(pos / PAGE);
                match vma.load(pos as usize) {
                    Ok(byte) if !gone.contains(&pos) => assert_eq!(byte, old, "a foreign byte"),
                    Ok(byte) if is_cut => assert_eq!(byte, 0, "a byte from before the cut"),
                    Ok(byte) => assert!([0, old].contains(&byte), "a foreign byte"),
                    Err(error) => assert_eq!((error, pos / PAGE), (Errno::EFAULT, 3)),
                }
                // Relaxed: a count.
                cut.looked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// What a thread that cuts and one that looks know of each other.
#[derive(Default)]
struct Cut {
    looked: AtomicUsize,
    done: AtomicBool,
}

impl Cut {
    /// Lets the other look at some of it before.
    fn wait(&self) {
        let looks = shuttle::rand::thread_rng().gen_range(0..10);
        // Relaxed: a count.
        while self.looked.load(Ordering::Relaxed) < looks {
            thread::yield_now();
        }
        pause();
    }
}

fn read(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let mut iter = IovIter::destination(&mut bytes);
    let read = file.read(&ReadaheadState::new(), &mut Iocb::at(pos), &mut iter);
    assert_eq!(read, Ok(len));
    bytes
}

fn write(file: &SlabArc<AddressSpace>, pos: u64, bytes: &[u8]) {
    let written = file.write(&mut Iocb::at(pos), &mut IovIter::source(bytes));
    assert_eq!(written, Ok(bytes.len()));
}

/// Lets others run, for a time that the schedule's own source of chance chooses.
fn pause() {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..300) {
        thread::yield_now();
    }
}

/// Two threads that change bytes of one page and each make them durable, and one that reclaims.
fn stores_against_writeback_against_reclaim() {
    let machine = Machine::new();
    machine.join([
        machine.spawn(|worker| worker.change(&worker.map(), 7)),
        machine.spawn(|worker| worker.change(&worker.map(), 8)),
        machine.spawn(Worker::reclaim),
    ]);
    machine.end();
}

/// Two threads store through one mapping, and make each store durable: one finds pages that the other is just making
/// writable.
fn stores_through_one_mapping_against_writeback() {
    let machine = Machine::new();
    let vma = Arc::new(machine.worker().map());
    let store_and_sync = |pos: u64| {
        let vma = Arc::clone(&vma);
        machine.spawn(move |worker| {
            for value in 1..6 {
                // Out of step with the other.
                pause();
                vma.store(pos as usize, value).unwrap();
                worker.file.sync().unwrap();
                worker.check_durable(pos, value);
            }
        })
    };
    // Not on the first page: a sync waits for that one's lock, and so for who makes it writable.
    machine.join([store_and_sync(PAGE + 7), store_and_sync(PAGE + 8)]);
    drop(vma);
    machine.end();
}

/// Looks at a file while `cut` cuts out `gone` of it.
fn look_while(
    machine: &Machine,
    gone: Range<u64>,
    cut: fn(&Worker, &Cut),
) -> [thread::JoinHandle<()>; 2] {
    let done = Arc::<Cut>::default();
    let (cutter, looker) = (Arc::clone(&done), done);
    let vma = machine.worker().map();
    [
        machine.spawn(move |worker| worker.look(&vma, gone, &looker)),
        machine.spawn(move |worker| cut(worker, &cutter)),
    ]
}

/// Part of the file is cut out while it is mapped, looked at, changed beside that part and evicted.
fn faults_against_cut_against_writeback_against_reclaim(
    gone: Range<u64>,
    beside: u64,
    cut: fn(&Worker, &Cut),
) {
    let machine = Machine::new();
    let looking = look_while(&machine, gone.clone(), cut);
    let others = [
        machine.spawn(move |worker| worker.change(&worker.map(), beside)),
        machine.spawn(Worker::reclaim),
    ];
    machine.join(looking.into_iter().chain(others));
    machine.end_with_zeros(gone);
}

/// All at once, with folios of every state in the cache before the first mapping moves them.
fn the_first_mapping_against_all() {
    let machine = Machine::new();
    read(&machine.file, 0, PAGE_SIZE);
    write(&machine.file, PAGE + 9, b"x");
    write(&machine.file, 3 * PAGE, &[first_byte(3); PAGE_SIZE]);
    let cut = Arc::<Cut>::default();
    let (cutter, looker) = (Arc::clone(&cut), Arc::clone(&cut));
    machine.join([
        machine.spawn(|worker| worker.change(&worker.map(), 7)),
        machine.spawn(move |worker| worker.look(&worker.map(), END, &looker)),
        machine.spawn(move |worker| worker.cut_and_grow(&cutter)),
        machine.spawn(Worker::reclaim),
        machine.spawn(|worker| {
            for value in 1..4 {
                write(&worker.file, PAGE, &[value; 8]);
                let expected = [[value; 8].as_slice(), b"bx"].concat();
                assert_eq!(read(&worker.file, PAGE, 10), expected);
            }
            worker.file.sync().unwrap();
            assert_eq!(worker.store.byte(PAGE + 7), 3, "a store is lost");
        }),
    ]);
    machine.end_with_zeros(END);
}

#[test]
fn no_store_is_lost() {
    sample(400, stores_against_writeback_against_reclaim);
}

#[test]
fn no_store_through_a_page_that_another_made_writable_is_lost() {
    sample(1000, stores_through_one_mapping_against_writeback);
}

#[test]
fn nothing_is_shown_of_what_was_cut_off() {
    sample(400, || {
        let (beside, cut) = (PAGE + 5, Worker::cut_and_grow);
        faults_against_cut_against_writeback_against_reclaim(END, beside, cut);
    });
}

#[test]
fn nothing_is_shown_of_what_was_punched_out() {
    sample(400, || {
        let (beside, cut) = (HOLE.end + 5, Worker::punch_hole);
        faults_against_cut_against_writeback_against_reclaim(HOLE, beside, cut);
    });
}

#[test]
fn loads_that_map_their_neighbours_show_nothing_of_what_was_cut_off() {
    sample(400, || {
        let machine = Machine::new();
        read(&machine.file, 0, (PAGES * PAGE) as usize);
        // Down, from two mappings: each maps what is below, and the other holds locks there.
        let down = || {
            machine.spawn(|worker| {
                for _ in 0..4 {
                    let vma = worker.map();
                    for page in (0..PAGES).rev() {
                        match vma.load((page * PAGE) as usize) {
                            Ok(byte) => assert!([0, first_byte(page)].contains(&byte)),
                            Err(error) => assert_eq!(error, Errno::EFAULT),
                        }
                    }
                    worker.file.check_page_tables();
                    pause();
                }
            })
        };
        let others = [
            down(),
            down(),
            machine.spawn(Worker::reclaim),
            machine.spawn(|worker| {
                pause();
                worker.file.truncate(END.start).unwrap();
                worker.file.check_end();
                pause();
                worker.file.truncate(END.end).unwrap();
            }),
        ];
        machine.join(others);
        machine.end_with_zeros(END);
    });
}

#[test]
fn a_file_is_mapped_while_it_is_used() {
    sample(400, the_first_mapping_against_all);
}

/// Of four cached pages two are in bad memory, and dirty or not.
fn memory_of_a_mapped_file_fails(dirty: bool) {
    let machine = Machine::new();
    // A folio each.
    for page in 0..PAGES {
        write(&machine.file, page * PAGE, &[first_byte(page); PAGE_SIZE]);
    }
    machine.file.sync().unwrap();
    let vma = machine.worker().map();
    for page in [1, 2] {
        machine.file.fail_memory(PageIndex(page));
    }
    if dirty {
        write(&machine.file, 2 * PAGE, b"c");
    }
    let load = |page: u64| vma.load((page * PAGE) as usize);
    assert_eq!(load(3), Ok(first_byte(3)));
    assert_eq!(load(0), Ok(first_byte(0)));
    let mapped = machine.file.pages_in_tables();
    assert_eq!(
        mapped,
        [0, 3].map(PageIndex),
        "bad frames, or not their neighbours"
    );
    assert_eq!(load(1), Ok(first_byte(1)), "it is read again");
    if dirty {
        assert_eq!(load(2), Err(Errno::EIO), "the store does not have it");
        assert_eq!(vma.store(2 * PAGE_SIZE, 1), Err(Errno::EIO));
        assert!(machine.file.is_dirty());
    } else {
        vma.store(2 * PAGE_SIZE + 1, first_byte(2)).unwrap();
        assert_eq!(load(2), Ok(first_byte(2)));
    }
    assert!(machine.mm.stats().memory_faults >= 2);
    drop(vma);
    machine.end();
}

#[test]
fn a_frame_in_bad_memory_is_not_mapped_and_its_page_is_read_again() {
    sample(20, || memory_of_a_mapped_file_fails(false));
    sample(20, || memory_of_a_mapped_file_fails(true));
}

#[test]
#[should_panic(expected = "a store is lost")]
fn writeback_without_write_protection_is_found() {
    leave_out(Step::WriteProtect);
    sample(400, || {
        let machine = Machine::new();
        machine.join([machine.spawn(|worker| {
            let vma = worker.map();
            for value in 1..4 {
                vma.store(7, value).unwrap();
                worker.file.sync().unwrap();
                assert_eq!(worker.store.byte(7), value, "a store is lost");
            }
        })]);
        machine.end();
    });
}

#[test]
#[should_panic(expected = "clean, and writable")]
fn writeback_without_write_protection_is_found_in_page_tables() {
    leave_out(Step::WriteProtect);
    sample(400, || {
        let machine = Machine::new();
        // No bytes are compared: in some schedules those would show a lost store first.
        let store_and_sync = |pos: usize| {
            machine.spawn(move |worker| {
                let vma = worker.map();
                for value in 1..=4 {
                    vma.store(pos, value).unwrap();
                    worker.file.sync().unwrap();
                    worker.file.check_page_tables();
                }
            })
        };
        let others = [store_and_sync(7), store_and_sync(8)];
        machine.join(others.into_iter().chain([machine.spawn(Worker::reclaim)]));
    });
}

#[test]
#[should_panic(expected = "a store is lost")]
fn pages_that_are_mapped_for_reads_and_writable_are_found() {
    leave_out(Step::ProtectReads);
    sample(400, || {
        let machine = Machine::new();
        machine.join([machine.spawn(|worker| {
            let vma = worker.map();
            vma.load(7).unwrap();
            vma.store(7, 1).unwrap();
            worker.file.sync().unwrap();
            assert_eq!(worker.store.byte(7), 1, "a store is lost");
        })]);
        machine.end();
    });
}

#[test]
#[should_panic(expected = "mapped, and no flag says so")]
fn frames_that_are_taken_back_and_stay_mapped_are_found() {
    leave_out(Step::Zap);
    sample(1000, stores_against_writeback_against_reclaim);
}

#[test]
#[should_panic(expected = "mapped beyond the end")]
fn a_truncate_that_leaves_page_tables_is_found() {
    leave_out(Step::Zap);
    sample(1000, || {
        let machine = Machine::new();
        machine.join(look_while(&machine, END, Worker::cut_and_grow));
        machine.end_with_zeros(END);
    });
}

#[test]
#[should_panic(expected = "a byte from before the cut")]
fn a_hole_punch_that_leaves_page_tables_is_found() {
    leave_out(Step::Zap);
    sample(1000, || {
        let machine = Machine::new();
        machine.join(look_while(&machine, HOLE, Worker::punch_hole));
        machine.end_with_zeros(HOLE);
    });
}
