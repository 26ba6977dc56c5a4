//! Async files: their operations, on every executor.

use crate::common::executor::{at_once, block_on, on_every_executor};
use crate::common::{Disk, PAGE, pattern};
use foliocache::{Advice, AsyncFile, Errno, Result};
use std::future::Future;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A disk, and an async file in it.
fn on_disk(name: &str, mib: u64) -> (Disk, AsyncFile) {
    let disk = Disk::new(mib);
    let file = disk.dir.create(name).unwrap().into_async().unwrap();
    (disk, file)
}

/// Takes the pages of a synced file out of the cache.
fn make_cold(file: &AsyncFile) {
    file.blocking().sync_all().unwrap();
    file.blocking().advise(Advice::DontNeed, ..).unwrap();
    assert_eq!(file.blocking().stats().unwrap().resident_pages, 0);
}

#[test]
fn written_bytes_are_read_back_and_reach_the_source() {
    let disk = Arc::new(Disk::new(16));
    on_every_executor(|name| {
        let disk = Arc::clone(&disk);
        async move {
            // More than the cache holds.
            let bytes = pattern(1, 24 << 20);
            let file = disk.dir.create(name).unwrap().into_async().unwrap();
            file.write_all_at(&bytes, 5).await.unwrap();
            file.sync_all().await.unwrap();
            let mut back = vec![0; bytes.len()];
            file.read_exact_at(&mut back, 5).await.unwrap();
            assert!(back == bytes);
            file.run(|file| file.set_len(5 + 100)).await.unwrap();
            file.sync_data().await.unwrap();
            assert_eq!(file.read_at(&mut back, 5).await.unwrap(), 100);
            assert!(std::fs::read(disk.in_source(name)).unwrap()[5..] == bytes[..100]);
        }
    });
}

#[test]
fn hits_are_ready_at_their_first_poll() {
    let (_disk, file) = on_disk("f", 16);
    let bytes = pattern(2, 64 * PAGE);
    file.blocking().write_all_at(&bytes, 0).unwrap();
    let mut back = vec![0; bytes.len()];
    assert_eq!(at_once(file.read_at(&mut back, 0)).unwrap(), bytes.len());
    assert!(back == bytes);
    // Across pages, beyond the end, and an overwrite.
    assert_eq!(at_once(file.read_at(&mut back[..10], 4091)).unwrap(), 10);
    assert_eq!(
        at_once(file.read_at(&mut back, 64 * PAGE as u64)).unwrap(),
        0
    );
    assert_eq!(at_once(file.write_at(b"new", 5000)).unwrap(), 3);
    at_once(file.read_exact_at(&mut back[..3], 5000)).unwrap();
    assert_eq!(&back[..3], b"new");
    let (one, two) = back.split_at_mut(100);
    let bufs = &mut [IoSliceMut::new(one), IoSliceMut::new(two)];
    let n = at_once(file.read_vectored_at(bufs, 0)).unwrap();
    assert_eq!(n, bytes.len());
    let stats = file.worker_stats().unwrap();
    assert_eq!((stats.requests, stats.workers), (0, 0));
}

#[test]
fn a_batch_of_hits_is_ready_at_its_first_poll() {
    let (disk, file) = on_disk("f", 16);
    let other = disk.dir.create("g").unwrap().into_async().unwrap();
    let bytes = pattern(2, 64 * PAGE);
    for file in [&file, &other] {
        file.blocking().write_all_at(&bytes, 0).unwrap();
    }
    let mut buffers = vec![[0; 100]; 200];
    let pos = |i: usize| i * 1237 % (64 * PAGE);
    let mut requests: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(i, buffer)| [&file, &other][i % 2].read_request(buffer, pos(i) as u64))
        .collect();
    at_once(AsyncFile::read_batch(&mut requests)).unwrap();
    for (i, request) in requests.iter().enumerate() {
        assert_eq!(request.bytes().unwrap(), &bytes[pos(i)..][..100]);
    }
    let stats = file.worker_stats().unwrap();
    assert_eq!((stats.requests, stats.workers), (0, 0));
}

#[test]
fn a_batch_of_misses_is_read_from_the_disk() {
    let disk = Arc::new(Disk::new(16));
    on_every_executor(|name| {
        let disk = Arc::clone(&disk);
        async move {
            let file = disk.dir.create(name).unwrap().into_async().unwrap();
            // More than the cache holds.
            let bytes = pattern(5, 24 << 20);
            file.write_all_at(&bytes, 0).await.unwrap();
            make_cold(&file);
            let mut buffers = vec![vec![0; 3000]; 300];
            let pos = |i: usize| i * 79_999;
            let mut requests: Vec<_> = buffers
                .iter_mut()
                .enumerate()
                .map(|(i, buffer)| file.read_request(buffer, pos(i) as u64))
                .collect();
            AsyncFile::read_batch(&mut requests).await.unwrap();
            for (i, request) in requests.iter().enumerate() {
                assert!(request.bytes().unwrap() == &bytes[pos(i)..][..3000]);
            }
        }
    });
}

#[test]
fn writes_that_need_not_wait_are_done_at_their_first_poll() {
    let (_disk, file) = on_disk("f", 32);
    // Beyond the end, over the end, in the middle of large folios, and in several pieces.
    let bytes = pattern(7, (1 << 20) + 99);
    assert_eq!(at_once(file.write_at(&bytes, 0)).unwrap(), bytes.len());
    assert_eq!(
        at_once(file.write_at(&bytes, 100_000)).unwrap(),
        bytes.len()
    );
    let bufs = [&bytes[..10], &bytes[10..50_000]].map(IoSlice::new);
    assert_eq!(at_once(file.write_vectored_at(&bufs, 77)).unwrap(), 50_000);
    assert_eq!(file.worker_stats().unwrap().requests, 0);
    let mut back = vec![0; 100_000 + bytes.len()];
    at_once(file.read_exact_at(&mut back, 0)).unwrap();
    assert!(back[..77] == bytes[..77] && back[77..50_077] == bytes[..50_000]);
    assert!(back[50_077..100_000] == bytes[50_077..100_000] && back[100_000..] == bytes);
}

#[test]
fn a_miss_counts_as_one() {
    let (_disk, file) = on_disk("f", 16);
    let bytes = pattern(3, 2 << 20);
    file.blocking().write_all_at(&bytes, 0).unwrap();
    make_cold(&file);
    let before = file.blocking().stats().unwrap();
    let mut back = vec![0; 100];
    assert_eq!(block_on(file.read_at(&mut back, 1 << 20)).unwrap(), 100);
    assert!(back == bytes[1 << 20..][..100]);
    let after = file.blocking().stats().unwrap();
    assert_eq!(after.missed_pages - before.missed_pages, 1);
    assert_eq!(after.hit_pages - before.hit_pages, 0);
    // Now it is there.
    at_once(file.read_exact_at(&mut back, 1 << 20)).unwrap();
}

#[test]
fn vectors_are_one_after_another() {
    let disk = Arc::new(Disk::new(16));
    on_every_executor(|name| {
        let disk = Arc::clone(&disk);
        async move {
            let file = disk.dir.create(name).unwrap().into_async().unwrap();
            let bytes = pattern(4, 3 << 20);
            let (head, rest) = bytes.split_at(1000);
            let (body, tail) = rest.split_at(2 << 20);
            let bufs = [head, &[], body, tail].map(IoSlice::new);
            assert_eq!(
                file.write_vectored_at(&bufs, 77).await.unwrap(),
                bytes.len()
            );
            make_cold(&file);
            let (mut one, mut two, mut three) = (vec![0; 1 << 20], vec![0; 3], vec![0; 4 << 20]);
            let bufs = &mut [&mut one, &mut two, &mut three].map(|buf| IoSliceMut::new(buf));
            assert_eq!(file.read_vectored_at(bufs, 77).await.unwrap(), bytes.len());
            let all = [one, two, three].concat();
            assert!(all[..bytes.len()] == bytes);
        }
    });
}

/// The same call, blocking and async, must be refused with the same words.
fn same<A: std::fmt::Debug, B: std::fmt::Debug>(
    errno: Errno,
    blocking: Result<A>,
    future: impl Future<Output = Result<B>>,
) {
    let (blocking, future) = (blocking.unwrap_err(), block_on(future).unwrap_err());
    assert_eq!(blocking.errno(), errno, "{blocking}");
    assert_eq!(blocking.to_string(), future.to_string());
}

#[test]
fn bad_input_gets_the_errors_of_the_blocking_calls() {
    let (disk, file) = on_disk("f", 16);
    block_on(file.write_all_at(b"some bytes", 0)).unwrap();
    let f = file.blocking();
    let mut buf = [0; 4];
    let (far, last) = (u64::MAX, i64::MAX as u64);
    same(
        Errno::EINVAL,
        f.read_at(&mut [0; 4], far),
        file.read_at(&mut buf, far),
    );
    same(
        Errno::EINVAL,
        f.write_at(&[0; 4], far),
        file.write_at(&[0; 4], far),
    );
    same(
        Errno::EFBIG,
        f.write_at(&[0; 4], last),
        file.write_at(&[0; 4], last),
    );
    same(
        Errno::EFBIG,
        f.set_len(far),
        file.run(move |file| file.set_len(far)),
    );
    same(
        Errno::ENODATA,
        f.read_exact_at(&mut [0; 4], 8),
        file.read_exact_at(&mut buf, 8),
    );
    let read_only = disk.dir.open("f").unwrap().into_async().unwrap();
    let f = read_only.blocking();
    same(
        Errno::EBADF,
        f.write_at(b"x", 0),
        read_only.write_at(b"x", 0),
    );
    same(Errno::EBADF, f.append(b"x"), read_only.append(b"x"));
    same(Errno::EBADF, f.append(b""), read_only.append(b""));
    same(
        Errno::EINVAL,
        f.set_len(1),
        read_only.run(|file| file.set_len(1)),
    );
    let write_only = disk.dir.open_options().write(true).open("f").unwrap();
    let write_only = write_only.into_async().unwrap();
    let f = write_only.blocking();
    same(
        Errno::EBADF,
        f.read_at(&mut [0; 4], 0),
        write_only.read_at(&mut buf, 0),
    );
    // Nothing is nothing.
    assert_eq!(at_once(file.read_at(&mut [], 0)).unwrap(), 0);
    assert_eq!(at_once(file.write_at(&[], 0)).unwrap(), 0);
    assert_eq!(at_once(file.append(&[])).unwrap(), (10, 0));
}

#[test]
fn appends_of_many_tasks_do_not_overlap() {
    const TASKS: usize = 8;
    const RECORDS: usize = 40;
    const RECORD: usize = 3000;
    let (disk, file) = on_disk("log", 16);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (1..=TASKS as u8)
            .map(|id| {
                let file = file.clone();
                tokio::spawn(async move {
                    for _ in 0..RECORDS {
                        let record = [id; RECORD];
                        let (pos, n) = file.append(&record).await.unwrap();
                        assert_eq!((pos % RECORD as u64, n), (0, RECORD));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        file.sync_data().await.unwrap();
    });
    let bytes = std::fs::read(disk.in_source("log")).unwrap();
    assert_eq!(bytes.len(), TASKS * RECORDS * RECORD);
    let mut seen = [0; TASKS + 1];
    for record in bytes.chunks(RECORD) {
        assert!(record.iter().all(|&byte| byte == record[0]), "torn");
        seen[record[0] as usize] += 1;
    }
    assert_eq!(seen[1..], [RECORDS; TASKS]);
}

#[test]
fn writes_to_a_file_open_for_appending_go_to_its_end() {
    let disk = Disk::new(16);
    let open = || disk.dir.open_options().append(true).create(true).open("f");
    let file = open().unwrap().into_async().unwrap();
    block_on(async {
        assert_eq!(file.write_at(b"one", 700).await.unwrap(), 3);
        assert_eq!(file.write_at(b"two", 0).await.unwrap(), 3);
        file.sync_data().await.unwrap();
    });
    assert_eq!(std::fs::read(disk.in_source("f")).unwrap(), b"onetwo");
}

#[test]
fn many_requests_need_few_threads() {
    const REQUESTS: usize = 400;
    let (_disk, file) = on_disk("f", 32);
    let bytes = pattern(5, REQUESTS * 8 * PAGE);
    file.blocking().write_all_at(&bytes, 0).unwrap();
    make_cold(&file);
    file.blocking().advise(Advice::Random, ..).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let most = runtime.block_on(async {
        let tasks: Vec<_> = (0..REQUESTS)
            .map(|at| {
                let file = file.clone();
                tokio::spawn(async move {
                    let mut buf = vec![0; PAGE];
                    let pos = at * 8 * PAGE;
                    file.read_exact_at(&mut buf, pos as u64).await.unwrap();
                    (pos, buf, file.worker_stats().unwrap().workers)
                })
            })
            .collect();
        let mut most = 0;
        for task in tasks {
            let (pos, buf, workers) = task.await.unwrap();
            assert!(buf == bytes[pos..pos + PAGE]);
            most = most.max(workers);
        }
        most
    });
    assert!(most <= 4, "{most} threads");
}

#[test]
fn futures_may_move_between_threads() {
    fn send<T: Send>(_: &T) {}
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let (_disk, file) = on_disk("f", 16);
    shared(&file);
    let mut buf = [0; 4];
    send(&file.read_at(&mut buf, 0));
    send(&file.read_vectored_at(&mut [IoSliceMut::new(&mut [0; 4])], 0));
    send(&file.write_at(&[0; 4], 0));
    send(&file.write_vectored_at(&[IoSlice::new(&[0; 4])], 0));
    send(&file.append(&[0; 4]));
    send(&file.sync_data());
    send(&file.sync_all());
    send(&file.run(|file| file.set_len(0)));
}

#[test]
fn memory_files_work_too() {
    on_every_executor(|_| async {
        let cache = crate::common::cache(16);
        let file = cache
            .memfs()
            .unwrap()
            .create("f")
            .unwrap()
            .into_async()
            .unwrap();
        let bytes = pattern(6, 1 << 20);
        file.write_all_at(&bytes, 1 << 20).await.unwrap();
        let mut back = vec![1; 2 << 20];
        // Holes too are ready at once.
        assert_eq!(at_once(file.read_at(&mut back, 0)).unwrap(), 2 << 20);
        assert!(back[..1 << 20].iter().all(|&byte| byte == 0) && back[1 << 20..] == bytes);
        file.sync_all().await.unwrap();
        // Its share of the memory used up.
        let error = file.write_all_at(&vec![1; 16 << 20], 0).await.unwrap_err();
        assert_eq!(error.errno(), Errno::ENOSPC);
    });
}
