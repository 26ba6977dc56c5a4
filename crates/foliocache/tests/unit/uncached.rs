//! Uncached and direct reads and writes, as a user of the library has them.
#![allow(unsafe_code, reason = "a mapping is touched")]

use crate::common::executor::block_on;
use crate::common::{Disk, PAGE, on_disk, pattern};
use foliocache::{Advice, AsyncFile, Cache, File, IoOptions, MapAccess, MappingFaults};
use std::io::{Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

const SIZE: usize = 8 << 20;
const DIRECT: IoOptions = IoOptions::new().direct(true);
const UNCACHED: IoOptions = IoOptions::new().uncached(true);

/// A file of [`SIZE`] bytes that is not cached, and the bytes.
fn cold(disk: &Disk) -> Vec<u8> {
    let bytes = pattern(1, SIZE);
    std::fs::write(disk.in_source("f"), &bytes).unwrap();
    bytes
}

fn resident(file: &File) -> u64 {
    file.stats().unwrap().resident_pages
}

/// The count of dropped pages of a file; checks that its counters add up.
fn dropped(file: &File) -> u64 {
    let stats = file.stats().unwrap().uncached;
    let kept = stats.kept_present_pages
        + stats.kept_used_pages
        + stats.failed_locked_pages
        + stats.failed_held_pages;
    assert_eq!(
        stats.asked_pages,
        stats.dropped_pages + kept + stats.pending_pages()
    );
    stats.dropped_pages
}

#[test]
fn uncached_reads_leave_the_cache_as_it_was() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap();
    let mut block = vec![0; 64 << 10];
    for (at, expected) in bytes.chunks(block.len()).enumerate() {
        let pos = (at * expected.len()) as u64;
        let n = file.read_at_with(&mut block, pos, UNCACHED).unwrap();
        assert!(n == expected.len() && block == expected);
    }
    assert_eq!((resident(&file), dropped(&file)), (0, (SIZE / PAGE) as u64));
    // Without the flag the pages stay.
    file.read_exact_at(&mut block, 0).unwrap();
    assert!(resident(&file) > 0);
}

#[test]
fn handles_opened_uncached_leave_no_pages_of_their_reads() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let observer = disk.dir.open("f").unwrap();
    let mut options = disk.dir.open_options();
    let mut file = options.read(true).uncached(true).open("f").unwrap();
    let mut back = vec![0; SIZE / 2];
    file.read_exact(&mut back).unwrap();
    assert!(back == bytes[..SIZE / 2]);
    let mut some = [0; 100];
    file.read_exact_at(&mut some, 5_000_000).unwrap();
    drop(file);
    // Pages that were under way when the handle was closed are dropped when memory is needed, or by
    // the next use.
    let file = options.open("f").unwrap();
    file.read_exact_at(&mut some, 0).unwrap();
    drop(file);
    assert_eq!(
        resident(&observer),
        observer.stats().unwrap().uncached.pending_pages()
    );
    assert!(dropped(&observer) >= (SIZE / 2 / PAGE) as u64);
}

#[test]
fn async_uncached_reads_leave_nothing() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap().into_async().unwrap();
    block_on(async {
        let mut back = vec![0; 128 << 10];
        for (at, expected) in bytes.chunks(back.len()).enumerate() {
            let pos = (at * expected.len()) as u64;
            let n = file.read_at_with(&mut back, pos, UNCACHED).await.unwrap();
            assert!(n == expected.len() && back == expected);
        }
    });
    assert_eq!(resident(file.blocking()), 0);
    assert_eq!(dropped(file.blocking()), (SIZE / PAGE) as u64);
}

#[test]
fn uncached_batches_drop_their_own_pages() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap();
    file.advise(Advice::Random, ..).unwrap();
    // Cached before: they stay.
    let mut one = [0; 1];
    for page in 0..10 {
        file.read_exact_at(&mut one, page * 37 * PAGE as u64)
            .unwrap();
    }
    let mut buffers = vec![[0; 64]; 50];
    let mut requests: Vec<_> = (0..)
        .zip(&mut buffers)
        .map(|(i, to)| file.read_request_with(to, i * 37 * PAGE as u64, UNCACHED))
        .collect();
    File::read_batch(&mut requests).unwrap();
    for (i, request) in requests.iter().enumerate() {
        let expected = &bytes[i * 37 * PAGE..][..64];
        assert_eq!(request.bytes().unwrap(), expected);
    }
    assert_eq!((resident(&file), dropped(&file)), (10, 40));
}

#[test]
fn requests_of_an_async_batch_have_options_of_their_own() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap();
    file.advise(Advice::Random, ..).unwrap();
    let file = file.into_async().unwrap();
    let mut buffers = vec![[0; 64]; 48];
    let mut requests: Vec<_> = (0..)
        .zip(&mut buffers)
        .map(|(i, to)| {
            let options = [IoOptions::new(), UNCACHED, DIRECT][i % 3];
            file.read_request_with(to, (i * 37 * PAGE) as u64, options)
        })
        .collect();
    block_on(AsyncFile::read_batch(&mut requests)).unwrap();
    for (i, request) in requests.iter().enumerate() {
        let expected = &bytes[i * 37 * PAGE..][..64];
        assert_eq!(request.bytes().unwrap(), expected);
    }
    drop(requests);
    assert_eq!(resident(file.blocking()), 16);
    assert!(dropped(file.blocking()) >= 16);
}

#[test]
fn mapped_pages_of_an_uncached_read_stay() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let file = disk.dir.open("f").unwrap();
    let mapping = file.map(.., MapAccess::Read).unwrap();
    let mut block = vec![0; 16 * PAGE];
    // As far as some of it is read ahead.
    let mut next = 0;
    while file.stats().unwrap().uncached.pending_pages() == 0 {
        file.read_at_with(&mut block, (next * PAGE) as u64, UNCACHED)
            .unwrap();
        next += 16;
    }
    // SAFETY: it is mapped, and in the file.
    let byte = unsafe { mapping.as_ptr().wrapping_add(next * PAGE).read_volatile() };
    assert_eq!(byte, bytes[next * PAGE]);
    let kept = file.stats().unwrap().uncached.kept_used_pages;
    assert!(kept > 0, "{:?}", file.stats().unwrap().uncached);
    for at in (next..SIZE / PAGE).step_by(16) {
        let pos = (at * PAGE) as u64;
        file.read_at_with(&mut block, pos, UNCACHED).unwrap();
        assert!(block == bytes[at * PAGE..][..block.len()]);
    }
    assert!(resident(&file) >= kept);
    assert_eq!(file.stats().unwrap().uncached.pending_pages(), 0);
}

/// Waits until nothing of an uncached operation is left to be done with.
fn settle(file: &File) {
    let start = Instant::now();
    while file.stats().unwrap().uncached.pending_pages() > 0 {
        assert!(start.elapsed().as_secs() < 20, "{:?}", file.stats());
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn uncached_writes_reach_the_source_and_leave() {
    let disk = Disk::new(16);
    let bytes = pattern(2, SIZE);
    let mut options = disk.dir.open_options();
    options.write(true).create(true).read(true);
    let through = [options.clone(), options.uncached(true).clone()];
    for (options, how) in through.iter().zip([UNCACHED, IoOptions::new()]) {
        let file = options.open("w").unwrap();
        for (at, block) in bytes.chunks(100_000).enumerate() {
            let n = file.write_at_with(block, (at * 100_000) as u64, how);
            assert_eq!(n.unwrap(), block.len());
        }
        settle(&file);
        assert_eq!(resident(&file), 0);
        assert!(std::fs::read(disk.in_source("w")).unwrap() == bytes);
        file.set_len(0).unwrap();
    }
}

#[test]
fn async_and_appending_uncached_writes_leave_too() {
    let disk = Disk::new(16);
    let bytes = pattern(3, SIZE);
    let file = disk.dir.create("a").unwrap().into_async().unwrap();
    block_on(async {
        for (at, block) in bytes.chunks(100_000).enumerate() {
            let n = file.write_at_with(block, (at * 100_000) as u64, UNCACHED);
            assert_eq!(n.await.unwrap(), block.len());
        }
    });
    settle(file.blocking());
    assert_eq!(resident(file.blocking()), 0);
    assert!(std::fs::read(disk.in_source("a")).unwrap() == bytes);
    let mut options = disk.dir.open_options();
    let mut file = options.append(true).uncached(true).open("a").unwrap();
    bytes
        .chunks(1000)
        .for_each(|block| file.write_all(block).unwrap());
    settle(&file);
    assert_eq!(resident(&file), 0);
    assert!(std::fs::read(disk.in_source("a")).unwrap()[SIZE..] == bytes);
}

#[test]
fn files_in_memory_say_that_the_hint_is_of_no_use() {
    let disk = Disk::new(16);
    let mut file = disk.cache.memfs().unwrap().create("f").unwrap();
    file.write_all(&pattern(1, 10 * PAGE)).unwrap();
    let mut back = vec![0; 10 * PAGE];
    file.read_at_with(&mut back, 0, UNCACHED).unwrap();
    assert!(back == pattern(1, 10 * PAGE));
    let stats = file.stats().unwrap().uncached;
    assert_eq!(
        (stats.asked_pages, stats.kept_present_pages),
        (10, 10),
        "{stats:?}"
    );
}

#[test]
fn direct_io_agrees_with_mappings() {
    for faults in [MappingFaults::Thread, MappingFaults::Inline] {
        let source = on_disk();
        let builder = Cache::builder().memory("32M").mapping_faults(faults);
        let dir = builder.build().unwrap().directory(source.path()).unwrap();
        let file = dir.create("f").unwrap();
        let mut expected = pattern(1, 64 * PAGE);
        file.write_all_at(&expected, 0).unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        let bytes = mapping.as_atomics().unwrap();
        for (at, &byte) in expected.iter().enumerate().step_by(PAGE / 2) {
            assert_eq!(bytes[at].load(Relaxed), byte);
        }
        // A store is found, a write is seen.
        bytes[5 * PAGE + 3].store(200, Relaxed);
        expected[5 * PAGE + 3] = 200;
        let mut back = vec![0; expected.len()];
        assert_eq!(file.read_at_with(&mut back, 0, DIRECT).unwrap(), back.len());
        assert!(back == expected);
        let new = pattern(2, 20 * PAGE + 50);
        let n = file.write_at_with(&new, 3 * PAGE as u64, DIRECT).unwrap();
        assert_eq!(n, new.len());
        expected[3 * PAGE..][..new.len()].copy_from_slice(&new);
        for (at, &byte) in expected.iter().enumerate() {
            assert_eq!(bytes[at].load(Relaxed), byte, "byte {at}");
        }
        bytes[0].store(1, Relaxed);
        file.sync_data().unwrap();
        expected[0] = 1;
        assert!(std::fs::read(source.path().join("f")).unwrap() == expected);
    }
}

#[test]
fn handles_opened_direct_bring_nothing_in() {
    let disk = Disk::new(16);
    let bytes = cold(&disk);
    let mut options = disk.dir.open_options();
    options.read(true).write(true).direct(true);
    let mut file = options.open("f").unwrap();
    let mut back = vec![0; SIZE];
    file.read_exact(&mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(resident(&file), 0);
    file.write_all_at(&bytes[..PAGE], PAGE as u64).unwrap();
    file.sync_data().unwrap();
    assert_eq!(resident(&file), 0);
    assert!(std::fs::read(disk.in_source("f")).unwrap()[PAGE..2 * PAGE] == bytes[..PAGE]);
    let file = file.into_async().unwrap();
    block_on(async {
        back.fill(0);
        file.read_exact_at(&mut back[..SIZE / 2], 2 * PAGE as u64)
            .await
            .unwrap();
        assert!(back[..SIZE / 2] == bytes[2 * PAGE..][..SIZE / 2]);
        let n = file.write_at_with(&bytes[..4 * PAGE], 0, DIRECT).await;
        assert_eq!(n.unwrap(), 4 * PAGE);
    });
    assert_eq!(resident(file.blocking()), 0);
    file.blocking().sync_data().unwrap();
    assert!(std::fs::read(disk.in_source("f")).unwrap()[..4 * PAGE] == bytes[..4 * PAGE]);
}
