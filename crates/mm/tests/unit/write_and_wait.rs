//! Having what was written with the store, without a flush.

use crate::common::{Store, file, pattern, storage, write};
use foliocache_sys::Errno;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

#[test]
fn what_is_being_written_is_waited_for() {
    let (_mm, bdi) = storage(16);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    assert!(!file.has_unwritten());
    write(&file, 0, &pattern(1, 0, 3 * PAGE));
    assert!(file.has_unwritten());
    thread::scope(|threads| {
        let stopped = store.bytes.lock().unwrap();
        let writing = file.share();
        threads.spawn(move || writing.fdatawrite());
        let begun = Instant::now();
        while file.stats().writeback_pages < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        assert!(file.has_unwritten());
        let waiting = threads.spawn(|| {
            let waited = file.write_and_wait();
            (waited, file.stats().writeback_pages)
        });
        // Long enough for one that does not wait to be over.
        thread::sleep(Duration::from_millis(50));
        drop(stopped);
        assert_eq!(waiting.join().unwrap(), (Ok(()), 0));
    });
    assert!(!file.has_unwritten());
    assert_eq!(store.content(), pattern(1, 0, 3 * PAGE));
    assert_eq!(store.flushes.load(Ordering::Relaxed), 0);
    assert!(file.is_dirty(), "not durable");
}

#[test]
fn what_cannot_be_written_is_an_error_each_time_and_stays_dirty() {
    let (_mm, bdi) = storage(16);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    write(&file, 0, &pattern(1, 0, PAGE));
    for _ in 0..3 {
        store.failing.store(1, Ordering::Relaxed);
        assert_eq!(file.write_and_wait(), Err(Errno::EIO));
        assert!(file.has_unwritten());
    }
    assert_eq!(file.write_and_wait(), Ok(()));
    assert!(!file.has_unwritten());
    assert_eq!(store.content(), pattern(1, 0, PAGE));
}

/// What was dirty at the end of the file is a hole by now: no write brings the size about.
#[test]
fn size_that_no_write_brings_about_is_set() {
    let (_mm, bdi) = storage(16);
    let store = Store::with(&[]);
    let file = file(&bdi, &store);
    write(&file, 0, &pattern(1, 0, 4 * PAGE));
    let half = 2 * PAGE as u64;
    file.punch_hole(half, half).unwrap();
    assert_eq!(file.write_and_wait(), Ok(()));
    assert!(!file.has_unwritten());
    let expected = [pattern(1, 0, 2 * PAGE), vec![0; 2 * PAGE]].concat();
    assert_eq!(store.content(), expected);
}
