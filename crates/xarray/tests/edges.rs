//! Single cases at the edges: the first and last index, orders, the pool's refusals.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::range;
use std::ptr::NonNull;
use std::sync::Arc;

use foliocache_sync::rcu;
use foliocache_xarray::{
    CHUNK_SIZE, Entry, Extent, HeapChunks, InsertError, MAX_ORDER, Mark, NodePool, PreloadError,
    XArray, split_nodes_needed,
};

fn array() -> XArray {
    XArray::new(Arc::new(NodePool::new(Box::new(HeapChunks::new(16)))))
}

fn entry(index: u64) -> Entry {
    Entry::value((index & 0xffff) as usize)
}

fn insert(xa: &XArray, index: u64, order: u32) -> Result<(), InsertError> {
    let mut preload = xa.pool().empty_preload();
    loop {
        let result = xa.lock().insert(index, order, entry(index), &mut preload);
        let Err(InsertError::NeedNodes { short }) = result else {
            return result;
        };
        preload.refill(preload.len() + short).unwrap();
    }
}

#[test]
fn entries_keep_what_they_were_given() {
    for value in [0, 1, 2, 3, usize::MAX >> 1] {
        let entry = Entry::value(value);
        assert_eq!(
            (entry.as_value(), entry.as_ptr::<u8>()),
            (Some(value), None)
        );
    }
    let target = 7u64;
    let entry = Entry::from_ptr(NonNull::from(&target));
    assert_eq!((entry.as_value(), entry.is_value()), (None, false));
    assert_eq!(entry.as_ptr::<u64>(), Some(NonNull::from(&target)));
    assert_ne!(Entry::value(0), entry);
}

#[test]
#[should_panic(expected = "63 bits")]
fn a_value_of_64_bits_is_refused() {
    let _ = Entry::value(usize::MAX);
}

#[test]
#[should_panic(expected = "4-byte aligned")]
fn an_unaligned_pointer_is_refused() {
    let bytes = [0u64; 2];
    // Not read through, so it may point anywhere.
    let _ = Entry::from_ptr(NonNull::from(&bytes).cast::<u8>().map_addr(|addr| addr | 2));
}

#[test]
fn the_first_and_the_last_index_work() {
    let xa = array();
    for index in [u64::MAX, 0] {
        insert(&xa, index, 0).unwrap();
    }
    let rcu = rcu::read_lock();
    assert_eq!(xa.load(0, &rcu), Some(entry(0)));
    assert_eq!(xa.load(u64::MAX, &rcu), Some(entry(u64::MAX)));
    assert_eq!(xa.load(u64::MAX - 1, &rcu), None);
    let found: Vec<_> = range(&xa, 0, u64::MAX, None, &rcu)
        .map(|found| found.index)
        .collect();
    assert_eq!(found, [0, u64::MAX]);
    assert!(xa.find(1, u64::MAX - 1, None, &rcu).is_none());
    assert_eq!(xa.nr_nodes(), 21, "eleven levels, and ten beside the head");
    assert!(xa.lock().erase(u64::MAX).is_some());
    assert_eq!(xa.nr_nodes(), 1, "the head shrinks to a leaf");
    assert_eq!(xa.load(0, &rcu), Some(entry(0)));
    assert!(xa.lock().erase(0).is_some());
    assert_eq!((xa.nr_nodes(), xa.is_empty()), (0, true));
}

#[test]
fn the_last_entry_of_the_largest_order_works() {
    let xa = array();
    let index = u64::MAX - ((1 << MAX_ORDER) - 1);
    insert(&xa, index, MAX_ORDER).unwrap();
    let extent = Extent {
        entry: entry(index),
        index,
        order: MAX_ORDER,
    };
    assert_eq!(extent.last(), u64::MAX);
    for index in [index, u64::MAX - 1, u64::MAX] {
        assert_eq!(xa.lock().find(index, index, None), Some(extent));
    }
    assert_eq!(xa.lock().find(index - 1, index - 1, None), None);
    assert!(xa.lock().set_mark(u64::MAX, Mark::Dirty));
    let rcu = rcu::read_lock();
    let dirty = range(&xa, u64::MAX, u64::MAX, Some(Mark::Dirty), &rcu);
    assert_eq!(dirty.count(), 1);
}

#[test]
#[should_panic(expected = "not aligned")]
fn an_unaligned_index_is_refused() {
    let _ = insert(&array(), 8, 4);
}

#[test]
#[should_panic(expected = "exceeds")]
fn an_order_too_large_is_refused() {
    let _ = insert(&array(), 0, MAX_ORDER + 1);
}

#[test]
#[should_panic(expected = "another pool")]
fn a_preload_of_another_pool_is_refused() {
    let (xa, other) = (array(), array());
    let mut preload = other.pool().preload(1).unwrap();
    let _ = xa.lock().insert(0, 0, entry(0), &mut preload);
}

#[test]
fn a_large_entry_above_a_small_tree_is_refused() {
    let xa = array();
    insert(&xa, 3, 0).unwrap();
    let taken = Extent {
        entry: entry(3),
        index: 3,
        order: 0,
    };
    assert_eq!(insert(&xa, 0, 7), Err(InsertError::Occupied(taken)));
    insert(&xa, 128, 7).unwrap();
    assert_eq!(xa.nr_nodes(), 2);
}

#[test]
fn a_split_gives_every_part_the_marks_of_the_whole() {
    for (from, to) in [(9, 0), (9, 6), (7, 3), (6, 5), (5, 2), (3, 3)] {
        let xa = array();
        insert(&xa, 512, from).unwrap();
        xa.lock()
            .set_mark(600.min(512 + (1 << from) - 1), Mark::Dirty);
        let mut preload = xa.pool().preload(split_nodes_needed(from, to)).unwrap();
        xa.lock().split(512, to, &mut preload, entry).unwrap();
        let rcu = rcu::read_lock();
        let dirty = range(&xa, 0, u64::MAX, Some(Mark::Dirty), &rcu);
        assert!(
            dirty
                .map(|found| found.index)
                .eq((512..512 + (1 << from)).step_by(1 << to))
        );
        assert!(
            xa.find(0, u64::MAX, Some(Mark::UnstableOdd), &rcu)
                .is_none()
        );
        assert_eq!(xa.nr_entries(), 1 << (from - to));
    }
}

#[test]
fn a_split_whose_callback_panics_leaves_a_sound_index() {
    for (from, to, calls) in [(9, 0, 100), (9, 6, 3), (4, 1, 5)] {
        let xa = array();
        insert(&xa, 0, from).unwrap();
        let mut left = calls;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut preload = xa.pool().preload(split_nodes_needed(from, to)).unwrap();
            let _ = xa.lock().split(0, to, &mut preload, |_| {
                left -= 1;
                assert!(left > 0, "enough");
                Entry::value(9)
            });
        }));
        assert!(panicked.is_err());
        #[cfg(debug_assertions)]
        xa.lock().assert_invariants();
        let rcu = rcu::read_lock();
        assert!((0..1 << from).all(|index| xa.load(index, &rcu).is_some()));
    }
}

#[test]
fn a_slot_reference_sees_its_entry_leave_and_return() {
    let xa = array();
    insert(&xa, 0, 0).unwrap();
    insert(&xa, 70, 0).unwrap();
    let rcu = rcu::read_lock();
    let (found, slot) = xa.load_slot(70, &rcu).unwrap();
    assert!(slot.holds(found));
    xa.lock().erase(70);
    assert!(!slot.holds(found));
    // The node is detached, so the new entry is elsewhere.
    insert(&xa, 70, 0).unwrap();
    assert!(!slot.holds(found) && xa.load(70, &rcu) == Some(found));

    // Growing and shrinking move no entry.
    let (first, slot) = xa.load_slot(0, &rcu).unwrap();
    xa.lock().erase(70);
    assert!(slot.holds(first));
    insert(&xa, 1 << 40, 0).unwrap();
    assert!(slot.holds(first));
    xa.lock().erase(1 << 40);
    xa.lock().erase(0);
    assert!(!slot.holds(first));
}

#[test]
fn the_pool_says_what_it_lacks() {
    let pool = Arc::new(NodePool::new(Box::new(HeapChunks::new(1))));
    let xa = XArray::new(Arc::clone(&pool));
    let nodes = pool.preload(1).map(|_| pool.stats().nodes).unwrap();
    assert_eq!(pool.stats().bytes, CHUNK_SIZE);
    let error = pool.preload(nodes + 1).map(|_| ()).unwrap_err();
    assert_eq!(error, PreloadError::NoMemory { short: 1 });
    assert_eq!(pool.stats().free, nodes, "a failed preload keeps nothing");

    let all = pool.preload(nodes).unwrap();
    assert_eq!(pool.stats().in_use, nodes);
    drop(all);
    insert(&xa, 0, 0).unwrap();
    let rcu = rcu::read_lock();
    xa.lock().erase(0);
    assert_eq!(pool.stats().limbo, 1);
    let error = pool.preload(nodes).map(|_| ()).unwrap_err();
    assert_eq!(
        error,
        PreloadError::WouldBlock { short: 1 },
        "this thread may be reading it"
    );
    assert_eq!((pool.advance(), pool.shrink()), (0, 0));
    drop(rcu);
    pool.wait_for_limbo();
    assert_eq!(pool.preload(nodes).map(|all| all.len()), Ok(nodes));
    assert_eq!(pool.shrink(), CHUNK_SIZE);
    assert_eq!(pool.stats().nodes, 0);
}

#[test]
fn shrinking_keeps_the_chunks_in_use() {
    let pool = Arc::new(NodePool::new(Box::new(HeapChunks::new(8))));
    let xa = XArray::new(Arc::clone(&pool));
    for index in (0..64 * 600).step_by(64) {
        insert(&xa, index, 0).unwrap();
    }
    assert!(pool.stats().chunks >= 6);
    for index in (64..64 * 600).step_by(64) {
        xa.lock().erase(index).unwrap();
    }
    pool.wait_for_limbo();
    pool.shrink();
    let stats = pool.stats();
    assert_eq!((stats.chunks, stats.in_use), (1, 1));
    assert_eq!(stats.free + stats.in_use, stats.nodes);
    assert_eq!(xa.load(0, &rcu::read_lock()), Some(entry(0)));
}

#[test]
fn the_bound_for_a_range_suffices() {
    for (first, last) in [
        (0, 0),
        (0, 1000),
        (60, 70),
        (4090, 4100),
        (1 << 20, (1 << 20) + 5000),
    ] {
        for (before, height) in [(None, 0), (Some(0u64), 1), (Some(1 << 30), 6)] {
            let xa = array();
            if let Some(before) = before {
                insert(&xa, before, 0).unwrap();
            }
            let bound = xa.nodes_needed_range(first, last, &rcu::read_lock());
            let least = (last >> 6) - (first >> 6) + 1;
            assert!(
                bound as u64 <= least + least / 32 + 12 + height,
                "{bound} for {least} leaves"
            );
            let mut preload = xa.pool().preload(bound).unwrap();
            let mut xa = xa.lock();
            for index in first..=last {
                match xa.insert(index, 0, entry(index), &mut preload) {
                    Ok(()) | Err(InsertError::Occupied(_)) => {}
                    other => other.unwrap(),
                }
            }
        }
    }
}
