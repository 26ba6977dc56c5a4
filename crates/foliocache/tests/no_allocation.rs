//! Repeated calls allocate nothing. A separate program, because of its allocator.
//!
//! # Safety
//!
//! The allocator passes everything on to the system's.
#![allow(unsafe_code)]

mod common;

use common::{cache, pattern};
use foliocache::ReadBatch;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: see the module's header.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|nr| nr.set(nr.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_batch_into_an_arena_allocates_once() {
    let cache = cache(16);
    let file = cache.memfs().unwrap().create("f").unwrap();
    file.write_all_at(&pattern(1, 1 << 20), 0).unwrap();
    let ranges: Vec<_> = (0..500u64).map(|nr| (nr * 2000, 100)).collect();
    let (mut batch, mut arena) = (ReadBatch::new(), vec![0; 50_000]);
    let mut allocations = |ranges: &[(u64, usize)]| {
        let before = ALLOCATIONS.get();
        file.read_batch_into(ranges, &mut arena, &mut batch)
            .unwrap();
        ALLOCATIONS.get() - before
    };
    assert!(allocations(&ranges) > 0);
    for len in [500, 0, 1, 499, 500] {
        assert_eq!(allocations(&ranges[..len]), 0, "{len} ranges");
    }
}
