//! Large chunks come back after small pages were scattered over every block.

use crate::common::{Store, file, pattern, read, storage};
use foliocache_mm::{FrameKind, MAX_ORDER, PAGE_SIZE};
use std::time::{Duration, Instant};

/// Pages of each of two files, together less than the cache holds.
const PAGES: usize = 6500;

/// Large chunks to be had besides those of blocks that were never used.
const CHUNKS: usize = 6;

/// The numbers below `n` in an order without a pattern.
fn shuffled(n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..n).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(at, state as usize % (at + 1));
    }
    order
}

#[test]
fn large_chunks_come_back_after_fragmentation() {
    let (mm, bdi) = storage(64);
    let bytes = pattern(1, 0, PAGES * PAGE_SIZE);
    let (stays, goes) = (Store::with(&bytes), Store::with(&bytes));
    let (stays, goes) = (file(&bdi, &stays), file(&bdi, &goes));
    for page in shuffled(PAGES) {
        for file in [&stays, &goes] {
            read(file, (page * PAGE_SIZE) as u64, 1);
        }
    }
    drop(goes);
    let before = (stays.stats(), mm.usage());
    assert!(before.1.available_pages as usize > PAGES, "{:?}", before.1);
    // Blocks that were not in use yet; after them what is free lies in single pages.
    let mut fresh = Vec::new();
    let take = || {
        let mut reservation = mm
            .frames()
            .try_reserve(FrameKind::General, 1 << MAX_ORDER)?;
        mm.frames().alloc_order(&mut reservation, MAX_ORDER)
    };
    while let Some(chunk) = take() {
        fresh.push(chunk);
    }
    assert!(mm.usage().order_failures > 0);
    let mut chunks = Vec::new();
    let start = Instant::now();
    while chunks.len() < CHUNKS {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} chunks: {:?}",
            chunks.len(),
            mm.stats()
        );
        match take() {
            Some(chunk) => chunks.push(chunk),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(mm.stats().blocks_compacted >= CHUNKS as u64);
    // Nothing was dropped for it, and nothing was mixed up.
    for page in shuffled(PAGES) {
        let at = page * PAGE_SIZE;
        let found = read(&stays, at as u64, PAGE_SIZE);
        assert!(found == bytes[at..at + PAGE_SIZE], "page {page}");
    }
    let after = stays.stats();
    assert_eq!(after.missed_pages, before.0.missed_pages, "{after:?}");
    assert_eq!(after.evicted_pages, 0, "{after:?}");
    for chunk in fresh.into_iter().chain(chunks) {
        mm.frames().free(chunk, MAX_ORDER);
    }
}
