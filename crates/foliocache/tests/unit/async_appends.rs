//! Appends of async files: at once where a write would be, and whole.

use crate::common::executor::{at_once, block_on, poll_once};
use crate::common::{Disk, PAGE, pattern};
use foliocache::{AsyncFile, Errno};
use foliocache_sim::{Effect, Faults, FaultyBackend, Image, OpSet, Rule};
use std::sync::Arc;
use std::time::Duration;

fn on_disk(mib: u64) -> (Disk, AsyncFile) {
    let disk = Disk::new(mib);
    let file = disk.dir.create("log").unwrap().into_async().unwrap();
    (disk, file)
}

#[test]
fn appends_that_need_not_wait_are_done_at_their_first_poll() {
    let (_disk, file) = on_disk(64);
    let mut expected = Vec::new();
    // Within a page, over its end, of whole pages, and of many.
    for (at, len) in [10, 5000, PAGE, 3 * PAGE, 1, 1 << 19, 77]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(at as u64, len);
        let pos = expected.len() as u64;
        match at % 2 {
            0 => assert_eq!(at_once(file.append(&bytes)).unwrap(), (pos, len)),
            _ => assert_eq!(at_once(file.append_all(bytes.clone())).unwrap(), pos),
        }
        expected.extend(bytes);
    }
    assert_eq!(at_once(file.append_all("")).unwrap(), expected.len() as u64);
    let stats = file.worker_stats().unwrap();
    assert_eq!((stats.requests, stats.workers), (0, 0));
    let mut back = vec![0; expected.len()];
    at_once(file.read_exact_at(&mut back, 0)).unwrap();
    assert!(back == expected);
}

#[test]
fn writes_to_a_file_open_for_appending_are_done_at_their_first_poll() {
    let disk = Disk::new(16);
    let file = disk.dir.append("log").unwrap().into_async().unwrap();
    for at in 0..100 {
        assert_eq!(at_once(file.write_at(b"0123456789", 0)).unwrap(), 10);
        assert_eq!(file.len(), 10 * (at + 1));
    }
    assert_eq!(file.worker_stats().unwrap().requests, 0);
}

#[test]
fn appends_of_any_length_are_whole() {
    const SMALL: usize = 1000;
    // Far longer than the buffers of the workers, and than the cache.
    let long = [(1u8, 3 << 20), (2, 5 << 20), (3, 24 << 20)];
    let (disk, file) = on_disk(16);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let small: Vec<_> = (4..7u8)
        .map(|id| {
            let (file, stop) = (file.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut appended = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    match id {
                        4 => _ = file.blocking().append_all(&[id; SMALL]).unwrap(),
                        5 => _ = block_on(file.append(&[id; SMALL])).unwrap(),
                        _ => _ = block_on(file.append_all([id; SMALL])).unwrap(),
                    }
                    appended += SMALL;
                    std::thread::sleep(Duration::from_micros(300));
                }
                (id, appended)
            })
        })
        .collect();
    let mut expected = vec![];
    let threads: Vec<_> = long
        .into_iter()
        .map(|(id, len)| {
            let file = file.clone();
            std::thread::spawn(move || {
                let pos = block_on(file.append_all(vec![id; len])).unwrap();
                (id, pos as usize, len)
            })
        })
        .collect();
    let runs: Vec<_> = threads.into_iter().map(|run| run.join().unwrap()).collect();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for thread in small {
        expected.push(thread.join().unwrap());
    }
    block_on(file.sync_data()).unwrap();
    let bytes = std::fs::read(disk.in_source("log")).unwrap();
    for (id, pos, len) in runs {
        assert!(bytes[pos..pos + len].iter().all(|&byte| byte == id), "torn");
    }
    for (id, appended) in expected {
        assert_eq!(bytes.iter().filter(|&&byte| byte == id).count(), appended);
    }
    // The small ones too.
    let mut at = 0;
    while at < bytes.len() {
        let len = match bytes[at] {
            id @ 1..=3 => long[id as usize - 1].1,
            _ => SMALL,
        };
        assert!(
            bytes[at..at + len].iter().all(|&byte| byte == bytes[at]),
            "torn at {at}"
        );
        at += len;
    }
}

#[test]
fn static_and_owned_buffers_can_be_appended() {
    let (_disk, file) = on_disk(16);
    block_on(async {
        assert_eq!(file.append_all(b"static").await.unwrap(), 0);
        assert_eq!(file.append_all(String::from("string")).await.unwrap(), 6);
        assert_eq!(
            file.append_all(bytes::Bytes::from("bytes")).await.unwrap(),
            12
        );
        let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
        assert_eq!(file.append_all(shared).await.unwrap(), 17);
    });
}

#[test]
fn bad_appends_get_the_errors_of_the_blocking_calls() {
    let (disk, file) = on_disk(16);
    block_on(file.append_all("0123456789")).unwrap();
    let read_only = disk.dir.open("log").unwrap().into_async().unwrap();
    let error = block_on(read_only.append_all("x")).unwrap_err();
    assert_eq!(error.errno(), Errno::EBADF);
    assert_eq!(
        error.to_string(),
        read_only
            .blocking()
            .append_all(b"x")
            .unwrap_err()
            .to_string()
    );
    let memory = disk.cache.memfs().unwrap().create("f").unwrap();
    let memory = memory.into_async().unwrap();
    // More than fits: the first part is there, and the error is returned.
    let error = block_on(memory.append_all(vec![1; 64 << 20])).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
    let error = memory
        .blocking()
        .append_all(&vec![1; 64 << 20])
        .unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC);
}

/// A file of `len` bytes whose last page is not cached, and whose reads hang.
fn before_a_read_that_hangs(len: usize) -> (foliocache::Cache, Faults, AsyncFile) {
    let (cache, faults) = (crate::common::cache(16), Faults::new(1));
    let mut image = Image::new();
    image.write(0, &pattern(1, len));
    let store = FaultyBackend::from_image("store", &faults, image);
    let mut files = cache.open_store(store, len as u64, 1).unwrap();
    faults.add(Rule::new(OpSet::READ, Effect::Hang).times(1));
    let file = files.pop().unwrap().into_async().unwrap();
    (cache, faults, file)
}

#[test]
fn an_append_that_was_given_up_is_whole_and_comes_before_newer_ones() {
    let (_cache, faults, file) = before_a_read_that_hangs(100);
    let older = pattern(2, 2 << 20);
    let mut given_up = Box::pin(file.append_all(older.clone()));
    assert!(poll_once(given_up.as_mut()).is_pending());
    assert!(faults.wait_hung(1, Duration::from_secs(60)));
    drop(given_up);
    let mut newer = Box::pin(file.append_all("newer"));
    assert!(poll_once(newer.as_mut()).is_pending());
    faults.heal();
    assert_eq!(block_on(newer).unwrap(), 100 + older.len() as u64);
    let mut back = vec![0; older.len()];
    block_on(file.read_exact_at(&mut back, 100)).unwrap();
    assert!(back == older);
}

#[test]
fn an_append_does_not_wait_for_a_store_that_hangs() {
    let (_cache, faults, file) = before_a_read_that_hangs(100);
    // It has the file to itself, and the store does not answer.
    let mut first = Box::pin(file.append(b"first"));
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(faults.wait_hung(1, Duration::from_secs(60)));
    let mut second = Box::pin(file.append(b"second"));
    assert!(poll_once(second.as_mut()).is_pending());
    faults.heal();
    assert_eq!(block_on(first).unwrap(), (100, 5));
    assert_eq!(block_on(second).unwrap(), (105, 6));
}
