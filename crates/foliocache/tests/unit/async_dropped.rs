//! Futures that are dropped before they are ready, stores that hang, and files that go while
//! requests are under way.

use crate::common::executor::{Unpark, block_on, poll_once};
use crate::common::stores::{Background, Parked};
use crate::common::{PAGE, cache, pattern};
use foliocache::{Advice, AsyncFile, Cache, Errno};
use foliocache_sim::{Effect, Faults, FaultyBackend, Image, OpKind, OpSet, Rule};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Longer than anything here takes, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file of `bytes` on a store with these faults.
fn over(cache: &Cache, faults: &Faults, bytes: &[u8]) -> (Arc<FaultyBackend>, AsyncFile) {
    let mut image = Image::new();
    image.write(0, bytes);
    let store = FaultyBackend::from_image("store", faults, image);
    let mut files = cache
        .open_store(store.clone(), bytes.len() as u64, 1)
        .unwrap();
    (store, files.pop().unwrap().into_async().unwrap())
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Polls once a future that must wait.
fn begin<F: Future>(future: &mut Pin<Box<F>>) {
    assert!(poll_once(future.as_mut()).is_pending());
}

#[test]
fn a_batch_that_was_given_up_goes_on_where_it_was() {
    let cache = cache(16);
    let bytes = pattern(1, 64 * PAGE);
    let store = Parked::new(bytes.clone());
    let mut files = cache
        .open_store(store.clone(), bytes.len() as u64, 1)
        .unwrap();
    let file = files.pop().unwrap().into_async().unwrap();
    file.blocking().advise(Advice::Random, ..).unwrap();
    let mut buffers = vec![[0; 10]; 16];
    let mut requests: Vec<_> = (0..)
        .zip(&mut buffers)
        .map(|(i, buffer)| file.read_request(buffer, i * 4 * PAGE as u64))
        .collect();
    let mut batch = Box::pin(AsyncFile::read_batch(&mut requests));
    begin(&mut batch);
    assert_eq!(store.parked(), 16, "all are on their way");
    drop(batch);
    store.end_all(None);
    for request in &requests {
        assert_eq!(request.result().unwrap_err().errno(), Errno::EAGAIN);
    }
    block_on(AsyncFile::read_batch(&mut requests)).unwrap();
    for (i, request) in requests.iter().enumerate() {
        assert_eq!(request.bytes().unwrap(), &bytes[i * 4 * PAGE..][..10]);
    }
    assert_eq!(store.parked(), 0, "nothing was read twice");
}

#[test]
fn a_read_that_was_given_up_still_fills_the_cache() {
    let (cache, faults) = (cache(16), Faults::new(1));
    let bytes = pattern(1, 8 * PAGE);
    let (_store, file) = over(&cache, &faults, &bytes);
    faults.add(Rule::new(OpSet::READ, Effect::Hang).times(1));
    let mut buf = vec![0xee; PAGE];
    let mut read = Box::pin(file.read_at(&mut buf, 0));
    begin(&mut read);
    assert!(faults.wait_hung(1, PATIENCE));
    drop(read);
    faults.heal();
    wait_until("the page arrives", || {
        file.blocking().stats().unwrap().resident_pages > 0
    });
    assert!(buf.iter().all(|&byte| byte == 0xee), "it has no other user");
    block_on(file.read_exact_at(&mut buf, 0)).unwrap();
    assert!(buf == bytes[..PAGE]);
}

#[test]
fn a_write_that_was_given_up_never_overtakes_a_newer_one() {
    let (cache, faults) = (cache(16), Faults::new(2));
    let bytes = pattern(2, 8 * PAGE);
    let (_store, file) = over(&cache, &faults, &bytes);
    // A partial overwrite of a page that is not cached has to read it first.
    faults.add(Rule::new(OpSet::READ, Effect::Hang).times(1));
    let mut older = Box::pin(file.write_at(b"older", 100));
    begin(&mut older);
    assert!(faults.wait_hung(1, PATIENCE));
    drop(older);
    let mut newer = Box::pin(file.write_at(b"newer", 100));
    begin(&mut newer);
    let mut sync = Box::pin(file.sync_data());
    begin(&mut sync);
    faults.heal();
    assert_eq!(block_on(newer).unwrap(), 5);
    block_on(sync).unwrap();
    let mut back = [0; 7];
    block_on(file.read_exact_at(&mut back, 99)).unwrap();
    assert_eq!(&back[1..6], b"newer");
    assert_eq!((back[0], back[6]), (bytes[99], bytes[105]));
}

#[test]
fn a_write_that_no_worker_had_begun_is_not_done() {
    let (cache, faults) = (cache(16), Faults::new(3));
    let bytes = pattern(3, 64 * PAGE);
    let (_store, file) = over(&cache, &faults, &bytes);
    faults.add(Rule::new(OpSet::READ, Effect::Hang));
    // As many as are allowed at a time, each at a different page.
    let mut held: Vec<_> = (0..3)
        .map(|at| Box::pin(file.write_at(b"held", at * 16 * PAGE as u64 + 1)))
        .collect();
    held.iter_mut().for_each(begin);
    assert!(faults.wait_hung(3, PATIENCE));
    let mut queued = Box::pin(file.write_at(b"queued", 50 * PAGE as u64 + 1));
    begin(&mut queued);
    assert!(file.worker_stats().unwrap().buffered_bytes > 0);
    drop(queued);
    faults.heal();
    for write in held {
        assert_eq!(block_on(write).unwrap(), 4);
    }
    block_on(file.sync_data()).unwrap();
    let mut back = vec![0; bytes.len()];
    block_on(file.read_exact_at(&mut back, 0)).unwrap();
    assert!(back[50 * PAGE..51 * PAGE] == bytes[50 * PAGE..51 * PAGE]);
    assert_eq!(&back[1..5], b"held");
    assert_eq!(file.worker_stats().unwrap().buffered_bytes, 0);
}

/// An async file whose next sync hangs until `faults` lets it go on.
fn before_a_sync(cache: &Cache, faults: &Faults) -> (Arc<FaultyBackend>, AsyncFile) {
    let (store, file) = over(cache, faults, &pattern(4, PAGE));
    block_on(file.write_all_at(b"precious", 0)).unwrap();
    faults.add(Rule::new(OpSet::FLUSH, Effect::Hang).times(1));
    (store, file)
}

#[test]
fn an_error_of_a_sync_that_was_given_up_is_told_to_the_next() {
    for given_up_while_it_runs in [true, false] {
        let (cache, faults) = (cache(16), Faults::new(4));
        let (store, file) = before_a_sync(&cache, &faults);
        let mut sync = Box::pin(file.sync_data());
        let unpark = Unpark::of_this_thread();
        let waker = Waker::from(Arc::clone(&unpark));
        let polled = sync.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert!(faults.wait_hung(1, PATIENCE));
        if given_up_while_it_runs {
            drop(sync);
            faults.release(Err(Errno::EIO));
        } else {
            faults.release(Err(Errno::EIO));
            // It has ended, and its result was not read.
            unpark.wait();
            drop(sync);
        }
        wait_until("the sync fails", || {
            faults.counts().failed_of(OpSet::FLUSH) == 1
        });
        // While the failed sync still runs, the next one could end before the failure is recorded.
        wait_until("the sync ends", || {
            file.worker_stats().unwrap().running == 0
        });
        let error = block_on(file.sync_data()).unwrap_err();
        assert_eq!(error.errno(), Errno::EIO);
        block_on(file.sync_data()).unwrap();
        assert_eq!(store.durable().read_vec(0, 8), b"precious");
    }
}

#[test]
fn a_sync_that_was_given_up_is_done_all_the_same() {
    let (cache, faults) = (cache(16), Faults::new(5));
    let (store, file) = before_a_sync(&cache, &faults);
    let mut sync = Box::pin(file.sync_data());
    begin(&mut sync);
    drop(sync);
    faults.heal();
    wait_until("it is durable", || {
        store.durable().read_vec(0, 8) == b"precious"
    });
}

#[test]
fn writers_that_are_throttled_leave_readers_a_worker() {
    let (cache, faults) = (cache(16), Faults::new(6));
    let bytes = pattern(6, 32 * PAGE);
    let (_store, file) = over(&cache, &faults, &bytes);
    faults.add(Rule::new(OpSet::CHANGES, Effect::Hang));
    // Far more than may be dirty: all of these come to wait.
    let piece = vec![7; 4 << 20];
    std::thread::scope(|scope| {
        for at in 1..=6 {
            let (file, piece) = (&file, &piece);
            scope.spawn(move || block_on(file.write_all_at(piece, at * (4 << 20))).unwrap());
        }
        let mut before = 0;
        wait_until("writers wait", || {
            std::thread::sleep(Duration::from_millis(50));
            let stats = file.worker_stats().unwrap();
            let still = std::mem::replace(&mut before, stats.requests) == stats.requests;
            still && stats.running == 3 && faults.hung() > 0
        });
        let mut back = vec![0; bytes.len()];
        block_on(file.read_exact_at(&mut back, 0)).unwrap();
        assert!(back == bytes);
        faults.heal();
    });
    block_on(file.sync_data()).unwrap();
}

#[test]
fn files_may_go_while_requests_are_under_way() {
    let faults = Faults::new(7);
    let cache = cache(16);
    let (store, file) = over(&cache, &faults, &pattern(7, 64 * PAGE));
    faults.add(Rule::new(OpSet::READ, Effect::Hang));
    {
        let mut buf = [0; 10];
        let mut read = pin!(file.read_at(&mut buf, 0));
        assert!(poll_once(read.as_mut()).is_pending());
        let mut write = Box::pin(file.write_at(b"x", 30 * PAGE as u64 + 5));
        begin(&mut write);
        assert!(faults.wait_hung(2, PATIENCE));
    }
    drop((file, cache));
    assert!(Arc::strong_count(&store) > 1, "the requests hold it");
    faults.heal();
    // The write that had begun is finished, and then nothing is left.
    wait_until("the last request lets go", || {
        Arc::strong_count(&store) == 1 || store.live().read_vec(30 * PAGE as u64 + 5, 1) == b"x"
    });
}

#[test]
fn a_store_that_panics_is_an_error() {
    /// A store that panics when it is read.
    #[derive(Debug)]
    struct Panics;
    impl foliocache_mm::AddressSpaceOperations for Panics {
        fn read_folios(&self, _: u64, _: &[foliocache_mm::IoSegment<'_>]) -> Result<usize, Errno> {
            panic!("as it must");
        }
        fn writepages(&self, _: u64, _: &[foliocache_mm::IoSegment<'_>]) -> Result<usize, Errno> {
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
            "panics".into()
        }
    }
    let cache = cache(16);
    let mut files = cache.open_store(Arc::new(Panics), 1 << 20, 1).unwrap();
    let file = files.pop().unwrap().into_async().unwrap();
    for _ in 0..10 {
        let error = block_on(file.read_at(&mut [0; 10], 0)).unwrap_err();
        assert_eq!(error.errno(), Errno::EIO);
    }
    assert_eq!(cache.stats().unwrap().background_panics, 10);
    // Writing whole pages needs no reading.
    block_on(file.write_all_at(&[1; PAGE], 0)).unwrap();
    block_on(file.read_exact_at(&mut [0; PAGE], 0)).unwrap();
    file.blocking().discard_failed().unwrap();
}

/// A file whose reads end on command of `store`, without readahead.
fn over_parked(cache: &Cache, bytes: &[u8]) -> (Arc<Parked>, AsyncFile) {
    let store = Parked::new(bytes.to_vec());
    let mut files = cache
        .open_store(store.clone(), bytes.len() as u64, 1)
        .unwrap();
    let file = files.pop().unwrap().into_async().unwrap();
    file.blocking().advise(Advice::Random, ..).unwrap();
    (store, file)
}

#[test]
fn misses_wait_for_the_store_without_a_thread() {
    const READS: usize = 500;
    let cache = cache(32);
    let bytes = pattern(9, READS * 4 * PAGE);
    let (store, file) = over_parked(&cache, &bytes);
    let mut bufs = vec![vec![0xee; PAGE]; READS];
    let mut reads: Vec<_> = bufs
        .iter_mut()
        .enumerate()
        .map(|(at, buf)| Box::pin(file.read_exact_at(buf, (at * 4 * PAGE) as u64)))
        .collect();
    reads.iter_mut().for_each(begin);
    // Polled for nothing, they go on waiting.
    reads.iter_mut().for_each(begin);
    assert_eq!(store.parked(), READS);
    let stats = file.worker_stats().unwrap();
    assert_eq!((stats.requests, stats.workers), (0, 0));
    // Half of them are given up; their pages still arrive.
    let kept = reads.split_off(READS / 2);
    drop(reads);
    store.end_all(None);
    for read in kept {
        block_on(read).unwrap();
    }
    assert_eq!(file.worker_stats().unwrap().requests, 0);
    for (at, buf) in bufs.iter().enumerate() {
        match at < READS / 2 {
            true => assert!(buf.iter().all(|&byte| byte == 0xee), "it has no other user"),
            false => assert!(buf[..] == bytes[at * 4 * PAGE..][..PAGE]),
        }
    }
    let stats = file.blocking().stats().unwrap();
    assert_eq!(
        (stats.resident_pages, stats.missed_pages, stats.hit_pages),
        (READS as u64, READS as u64, 0)
    );
    assert_eq!(cache.stats().unwrap().memory.reserved_pages, 0);
    assert_eq!(Arc::strong_count(&store), 2, "one here, one the file's");
}

#[test]
fn a_truncate_that_fails_beside_a_read_changes_nothing() {
    let cache = cache(16);
    let bytes = pattern(12, 8 * PAGE);
    let (store, file) = over_parked(&cache, &bytes);
    let mut buf = vec![0; 8 * PAGE];
    let mut read = Box::pin(file.read_exact_at(&mut buf, 0));
    begin(&mut read);
    assert!(store.parked() > 0);
    store.truncate_fails.store(true, Ordering::Relaxed);
    let error = std::thread::scope(|scope| {
        let cut = scope.spawn(|| file.blocking().set_len(100));
        // It waits for the read of the page that it cuts.
        std::thread::sleep(Duration::from_millis(50));
        store.end_all(None);
        cut.join().unwrap().unwrap_err()
    });
    assert_eq!(error.errno(), Errno::EIO);
    assert_eq!(file.len(), 8 * PAGE as u64);
    block_on(read).unwrap();
    assert!(buf == bytes);
}

#[test]
fn readers_of_one_page_wait_for_one_read() {
    let cache = cache(16);
    let bytes = pattern(10, PAGE);
    let (store, file) = over_parked(&cache, &bytes);
    let mut bufs = vec![[0; 100]; 20];
    let mut reads: Vec<_> = bufs
        .iter_mut()
        .map(|buf| Box::pin(file.read_exact_at(buf, 50)))
        .collect();
    reads.iter_mut().for_each(begin);
    assert_eq!(store.parked(), 1);
    // A thread waits for it too.
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            let mut buf = [0; 100];
            file.blocking().read_exact_at(&mut buf, 50).unwrap();
            assert!(buf[..] == bytes[50..150]);
        });
        store.end_all(None);
        blocked.join().unwrap();
    });
    for read in reads {
        block_on(read).unwrap();
    }
    assert!(bufs.iter().all(|buf| buf[..] == bytes[50..150]));
}

#[test]
fn an_error_of_a_background_read_reaches_the_reader() {
    let cache = cache(16);
    let faults = Faults::new(11);
    let mut image = Image::new();
    image.write(0, &pattern(11, 8 * PAGE));
    let store = Background::new(FaultyBackend::from_image("store", &faults, image));
    let mut files = cache.open_store(store, 8 * PAGE as u64, 1).unwrap();
    let file = files.pop().unwrap().into_async().unwrap();
    let fails = faults.add(Rule::new(OpSet::READ, Effect::Fail(Errno::EIO)));
    let mut buf = [0; 10];
    let error = block_on(file.read_at(&mut buf, 0)).unwrap_err();
    assert_eq!(error.errno(), Errno::EIO);
    faults.remove(fails);
    assert_eq!(block_on(file.read_at(&mut buf, 0)).unwrap(), 10);
}

#[test]
fn only_reads_that_miss_read_the_store() {
    let (cache, faults) = (cache(16), Faults::new(8));
    let (_store, file) = over(&cache, &faults, &pattern(8, 16 * PAGE));
    let mut buf = vec![0; 16 * PAGE];
    for _ in 0..3 {
        block_on(file.read_exact_at(&mut buf, 0)).unwrap();
    }
    let reads = faults
        .trace()
        .iter()
        .filter(|event| event.kind == OpKind::Read)
        .count();
    assert_eq!(reads, 1);
}
