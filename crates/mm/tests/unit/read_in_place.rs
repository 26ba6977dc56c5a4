//! Reads in place: which bytes, for how long they stay, and when there is nothing to read.

use crate::common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{Iocb, PAGE_SIZE, ReadaheadState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn read_in_place_sees_what_a_read_returns() {
    let (mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&pattern(1, 0, 3 * PAGE_SIZE + 100)));
    let whole = read(&file, 0, 4 * PAGE_SIZE);
    let handle = ReadaheadState::new();
    let hits = file.stats().hit_pages;
    for (pos, len) in [(0, PAGE_SIZE), (PAGE_SIZE + 5, 50), (3 * PAGE_SIZE, 100)] {
        let seen = file.read_in_place(&handle, &Iocb::at(pos as u64), len, <[u8]>::to_vec);
        assert_eq!(seen.unwrap(), whole[pos..pos + len]);
    }
    // Whatever may be read of many pages is right, and as long as the file has it.
    if let Some(seen) = file.read_in_place(&handle, &Iocb::at(10), 5 * PAGE_SIZE, <[u8]>::to_vec) {
        assert_eq!(seen, whole[10..]);
    }
    let seen = file.read_in_place(
        &handle,
        &Iocb::at((3 * PAGE_SIZE + 90) as u64),
        50,
        <[u8]>::to_vec,
    );
    assert_eq!(seen.unwrap(), whole[3 * PAGE_SIZE + 90..]);
    assert!(file.stats().hit_pages >= hits + 4, "it counts as reading");
    drop(file);
    assert_eq!(mm.usage().in_use_pages, 0);
}

#[test]
fn nothing_that_is_not_cached_is_read_in_place() {
    let (_mm, bdi) = storage(8);
    let file = file(&bdi, &Store::with(&pattern(2, 0, 2 * PAGE_SIZE)));
    let handle = ReadaheadState::new();
    let length =
        |pos: usize| file.read_in_place(&handle, &Iocb::at(pos as u64), PAGE_SIZE, <[u8]>::len);
    assert_eq!(length(0), None, "not cached");
    assert_eq!(file.stats().resident_pages, 0, "and not brought in");
    read(&file, 0, 2 * PAGE_SIZE);
    assert_eq!(length(0), Some(PAGE_SIZE));
    assert_eq!(length(2 * PAGE_SIZE), None, "past the end");
    file.truncate(100).unwrap();
    assert_eq!(length(0), Some(100));
    assert_eq!(length(100), None);
}

#[test]
fn a_writer_waits_until_the_bytes_are_given_back() {
    let (_mm, bdi) = storage(8);
    let bytes = pattern(3, 0, PAGE_SIZE);
    let file = file(&bdi, &Store::with(&bytes));
    read(&file, 0, PAGE_SIZE);
    let written = AtomicBool::new(false);
    thread::scope(|scope| {
        let seen = file.read_in_place(&ReadaheadState::new(), &Iocb::at(0), PAGE_SIZE, |seen| {
            scope.spawn(|| {
                write(&file, 0, &[0xee; 64]);
                written.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(50));
            assert_eq!(seen, bytes);
            assert!(!written.load(Ordering::SeqCst));
        });
        assert!(seen.is_some());
    });
    assert_eq!(read(&file, 0, 64), [0xee; 64]);
}

#[test]
fn pages_read_in_place_are_not_evicted() {
    let (_mm, bdi) = storage(8);
    let bytes = pattern(4, 0, PAGE_SIZE);
    let source = file(&bdi, &Store::with(&bytes));
    let other = file(&bdi, &Store::with(&pattern(5, 0, 24 << 20)));
    read(&source, 0, PAGE_SIZE);
    let seen = source.read_in_place(&ReadaheadState::new(), &Iocb::at(0), PAGE_SIZE, |seen| {
        let other = other.share();
        let evictor = thread::spawn(move || {
            for pos in (0..24 << 20).step_by(1 << 20) {
                read(&other, pos, 1 << 20);
            }
        });
        evictor.join().unwrap();
        assert_eq!(seen, bytes);
    });
    assert!(seen.is_some());
    assert!(
        other.stats().resident_pages < 6 << 8,
        "the bound made it evict"
    );
}

/// A page of the file: its number and a generation, over and over.
fn stamped(page: u64, generation: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE_SIZE);
    while bytes.len() < PAGE_SIZE {
        bytes.extend(page.to_le_bytes());
        bytes.extend(generation.to_le_bytes());
    }
    bytes
}

#[test]
fn reads_in_place_beside_writers_and_reclaim_see_whole_pages_of_their_file() {
    // More than the bound holds, so that frames change hands all the time.
    const PAGES: u64 = 4096;
    let (_mm, bdi) = storage(8);
    let content: Vec<u8> = (0..PAGES).flat_map(|page| stamped(page, 0)).collect();
    let file = file(&bdi, &Store::with(&content));
    let over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            for generation in 1..=20 {
                for page in (generation..PAGES).step_by(7) {
                    write(&file, page * PAGE_SIZE as u64, &stamped(page, generation));
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        let handle = ReadaheadState::new();
        let mut seen = 0;
        while !over.load(Ordering::SeqCst) {
            for first in (0..PAGES).step_by(16) {
                let pos = first * PAGE_SIZE as u64;
                // Brings it in, so that there is something to read: all in one piece or a page.
                read(&file, pos, 16 * PAGE_SIZE);
                let mut check = |bytes: &[u8]| {
                    for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_SIZE)) {
                        let generation = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                        assert!(bytes == stamped(page, generation), "page {page}");
                    }
                    seen += 1;
                };
                let whole = file.read_in_place(&handle, &Iocb::at(pos), 16 * PAGE_SIZE, &mut check);
                if whole.is_none() {
                    file.read_in_place(&handle, &Iocb::at(pos), PAGE_SIZE, &mut check);
                }
            }
        }
        seen
    });
    assert!(seen > 0, "nothing was ever read in place");
}
