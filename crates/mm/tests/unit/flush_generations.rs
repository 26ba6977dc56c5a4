//! Writes of a file beside its flush, with a store that keeps what a power cut would leave and whose
//! flushes end when the test says so.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Store, pattern, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, IoSegment, PAGE_SIZE, SlabArc,
};
use foliocache_sys::Errno;

const PAGE: u64 = PAGE_SIZE as u64;

/// Long enough for a loaded machine; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store whose flush covers what was written before it began, and ends as the test says.
#[derive(Debug)]
struct GatedStore {
    live: Arc<Store>,
    durable: Mutex<Vec<u8>>,
    ends: Mutex<Receiver<Result<(), Errno>>>,
}

impl GatedStore {
    fn new(len: usize) -> (Arc<Self>, Sender<Result<(), Errno>>) {
        let (end, ends) = channel();
        let store = Self {
            live: Store::with(&vec![0; len]),
            durable: Mutex::new(vec![0; len]),
            ends: Mutex::new(ends),
        };
        (Arc::new(store), end)
    }

    fn file(self: &Arc<Self>, bdi: &Arc<BackingDevInfo>) -> SlabArc<AddressSpace> {
        let size = self.live.content().len() as u64;
        AddressSpace::new(bdi, Arc::clone(self) as Arc<_>, size)
    }

    fn writes(&self) -> u64 {
        self.live.writes.load(Ordering::Relaxed)
    }

    fn flushes(&self) -> u64 {
        self.live.flushes.load(Ordering::Relaxed)
    }

    fn durable(&self, page: u64) -> Vec<u8> {
        let at = (page * PAGE) as usize;
        self.durable.lock().unwrap()[at..at + PAGE_SIZE].to_vec()
    }
}

impl AddressSpaceOperations for GatedStore {
    fn read_folios(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.live.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.live.writepages(pos, segments)
    }

    fn flush(&self) -> Result<(), Errno> {
        let covered = self.live.content();
        self.live.flush()?;
        // A sender that is gone lets every flush succeed.
        self.ends.lock().unwrap().recv().unwrap_or(Ok(()))?;
        *self.durable.lock().unwrap() = covered;
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.live.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.live.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a store whose flushes are gated".into()
    }
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Fsync = std::thread::JoinHandle<Result<(), foliocache_sys::Errno>>;

fn fsync_in_a_thread(file: &SlabArc<AddressSpace>) -> Fsync {
    let file = file.share();
    let cursor = file.sample_wb_err();
    std::thread::spawn(move || file.fsync(&cursor))
}

/// As [`fsync_in_a_thread`] for a caller that does not leave the write to a group.
fn write_and_fsync_in_a_thread(file: &SlabArc<AddressSpace>) -> Fsync {
    let file = file.share();
    let cursor = file.sample_wb_err();
    std::thread::spawn(move || {
        file.fdatawrite();
        file.fsync(&cursor)
    })
}

/// Writes `bytes[0]` to the first page and syncs it; while that flush runs, writes `bytes[1]` at `pos` and
/// syncs that. Both wait for the flush when this returns.
fn fsyncs_beside_a_flush(
    store: &GatedStore,
    file: &SlabArc<AddressSpace>,
    pos: u64,
    bytes: &[Vec<u8>; 2],
) -> [Fsync; 2] {
    write(file, 0, &bytes[0]);
    let first = fsync_in_a_thread(file);
    wait_until("the first flush", || store.flushes() == 1);
    write(file, pos, &bytes[1]);
    let second = write_and_fsync_in_a_thread(file);
    wait_until("a write beside the flush", || store.writes() == 2);
    [first, second]
}

#[test]
fn writes_go_on_beside_a_flush_and_need_the_next_one() {
    let (_mm, bdi) = storage(8);
    let (store, end) = GatedStore::new(4 * PAGE_SIZE);
    let file = store.file(&bdi);
    let bytes = [1, 2].map(|who| pattern(who, 0, PAGE_SIZE));

    let [first, second] = fsyncs_beside_a_flush(&store, &file, PAGE, &bytes);

    end.send(Ok(())).unwrap();
    first.join().unwrap().unwrap();
    assert_eq!(store.durable(0), bytes[0]);
    wait_until("the second flush", || store.flushes() == 2);
    assert_eq!(
        file.stats().unstable_pages,
        1,
        "the first flush covers one page"
    );
    assert_eq!(store.durable(1), [0; PAGE_SIZE]);

    end.send(Ok(())).unwrap();
    second.join().unwrap().unwrap();
    assert_eq!(store.durable(1), bytes[1]);
    assert_eq!(file.stats().unstable_pages, 0);
}

#[test]
fn page_written_again_beside_a_flush_stays_unstable() {
    let (_mm, bdi) = storage(8);
    let (store, end) = GatedStore::new(PAGE_SIZE);
    let file = store.file(&bdi);
    let bytes = [1, 2].map(|who| pattern(who, 0, PAGE_SIZE));

    let [first, second] = fsyncs_beside_a_flush(&store, &file, 0, &bytes);
    end.send(Ok(())).unwrap();
    first.join().unwrap().unwrap();
    wait_until("the second flush", || store.flushes() == 2);
    assert_eq!(file.stats().unstable_pages, 1);
    end.send(Ok(())).unwrap();
    second.join().unwrap().unwrap();
    assert_eq!(store.durable(0), bytes[1]);
}

#[test]
fn failed_flush_makes_writes_beside_it_dirty_too() {
    let (_mm, bdi) = storage(8);
    let (store, end) = GatedStore::new(2 * PAGE_SIZE);
    let file = store.file(&bdi);
    let bytes = [1, 2].map(|who| pattern(who, 0, PAGE_SIZE));

    let [first, second] = fsyncs_beside_a_flush(&store, &file, PAGE, &bytes);
    end.send(Err(Errno::EIO)).unwrap();
    // From here on flushes succeed.
    drop(end);

    for fsync in [first, second] {
        assert_eq!(fsync.join().unwrap().unwrap_err(), Errno::EIO);
    }
    // The flusher may retry meanwhile: what counts is that all of it is written once more.
    file.sync().unwrap();
    assert!(store.writes() >= 3, "{} writes", store.writes());
    for (page, bytes) in bytes.iter().enumerate() {
        assert_eq!(store.durable(page as u64), *bytes);
    }
    assert_eq!(file.stats().failed_pages, 0);
}

#[test]
fn fsyncs_that_wait_for_a_flush_share_the_next_one() {
    const WRITERS: u64 = 8;
    let (_mm, bdi) = storage(8);
    let (store, end) = GatedStore::new((1 + WRITERS as usize) * PAGE_SIZE);
    let file = store.file(&bdi);
    write(&file, 0, &pattern(9, 0, PAGE_SIZE));
    let first = fsync_in_a_thread(&file);
    wait_until("the first flush", || store.flushes() == 1);
    let others: Vec<_> = (1..=WRITERS)
        .map(|page| {
            write(&file, page * PAGE, &pattern(9, page * PAGE, PAGE_SIZE));
            let fsync = write_and_fsync_in_a_thread(&file);
            wait_until("its write", || store.writes() == 1 + page);
            fsync
        })
        .collect();
    drop(end);
    first.join().unwrap().unwrap();
    for fsync in others {
        fsync.join().unwrap().unwrap();
    }
    assert_eq!(store.flushes(), 2);
    assert_eq!(file.stats().unstable_pages, 0);
}

/// Pages from which on a file has no groups, and one more.
const MANY: u64 = 65;

#[test]
fn fsync_of_many_pages_writes_beside_a_flush() {
    let (_mm, bdi) = storage(8);
    let (store, end) = GatedStore::new((1 + MANY as usize) * PAGE_SIZE);
    let file = store.file(&bdi);
    write(&file, 0, &pattern(1, 0, PAGE_SIZE));
    let first = fsync_in_a_thread(&file);
    wait_until("the first flush", || store.flushes() == 1);
    write(&file, PAGE, &pattern(2, PAGE, MANY as usize * PAGE_SIZE));
    let second = fsync_in_a_thread(&file);
    wait_until("a write beside the flush", || store.writes() == 2);
    drop(end);
    for fsync in [first, second] {
        fsync.join().unwrap().unwrap();
    }
    assert_eq!(store.durable(MANY), pattern(2, MANY * PAGE, PAGE_SIZE));
}
