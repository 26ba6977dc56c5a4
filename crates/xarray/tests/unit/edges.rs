//! Single cases at the edges: the first and last index, orders, the pool's refusals.

use crate::common::heap::{erase, in_use, pool, value};
use crate::common::range;
use std::ptr::NonNull;
use std::sync::Arc;

use foliocache_sync::rcu;
use foliocache_xarray::{
    CHUNK_SIZE, Entry, Extent, InsertError, MAX_ORDER, Mark, PreloadError, XArray, nodes_to_halve,
};

fn array() -> XArray {
    XArray::new(pool(16))
}

fn entry(index: u64) -> Entry {
    value((index & 0xffff) as usize)
}

fn insert(xa: &XArray, index: u64, order: u32) -> Result<(), InsertError> {
    (0..)
        .map(|nodes| {
            let mut preload = xa.pool().preload(nodes).unwrap();
            xa.lock().insert(index, order, entry(index), &mut preload)
        })
        .find(|result| *result != Err(InsertError::NeedNodes))
        .expect("some number suffices")
}

#[repr(align(64))]
struct Aligned(#[allow(dead_code, reason = "has an address")] u64);

#[test]
fn entries_return_the_stored_value() {
    let target = Aligned(7);
    let entry = Entry::from_ptr(NonNull::from(&target));
    assert_eq!(entry.as_ptr::<Aligned>(), NonNull::from(&target));
    assert_ne!(value(0), entry);
}

#[test]
#[should_panic(expected = "64-byte aligned")]
fn an_unaligned_pointer_is_refused() {
    let target = Aligned(7);
    // Not read through, so it may point anywhere.
    let _ = Entry::from_ptr(
        NonNull::from(&target)
            .cast::<u8>()
            .map_addr(|addr| addr | 32),
    );
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
    assert_eq!(
        in_use(xa.pool()),
        21,
        "eleven levels, and ten beside the head"
    );
    assert!(erase(&xa, u64::MAX).is_some());
    assert_eq!(in_use(xa.pool()), 1, "the head shrinks to a leaf");
    assert_eq!(xa.load(0, &rcu), Some(entry(0)));
    assert!(erase(&xa, 0).is_some());
    assert_eq!((in_use(xa.pool()), xa.nr_entries()), (0, 0));
}

#[test]
fn an_only_entry_at_index_0_takes_no_node() {
    for order in 0..=MAX_ORDER {
        let xa = array();
        let last = (1 << order) - 1;
        insert(&xa, 0, order).unwrap();
        assert_eq!((in_use(xa.pool()), xa.nr_entries()), (0, 1));
        let rcu = rcu::read_lock();
        let (found, slot) = xa.load_slot(last, &rcu).unwrap();
        assert_eq!(found, entry(0));
        assert!(slot.holds());
        assert_eq!(xa.load(last + 1, &rcu), None);
        assert!(xa.approach(last + 1, &rcu).is_none());
        assert_eq!(xa.find(last + 1, u64::MAX, None, &rcu), None);
        assert_eq!(xa.find(0, u64::MAX, Some(Mark::Dirty), &rcu), None);
        assert_eq!(insert(&xa, 0, 0), Err(InsertError::Occupied));
        xa.lock().set_mark(last, Mark::UnstableOdd);
        // With another it moves to a node, with its mark.
        insert(&xa, 1 << MAX_ORDER, 0).unwrap();
        assert!(in_use(xa.pool()) > 0);
        let odd = xa.find(last, u64::MAX, Some(Mark::UnstableOdd), &rcu);
        let expected = Extent {
            entry: found,
            index: 0,
            order,
        };
        assert_eq!(odd, Some(expected));
        assert!(!slot.holds() && xa.load(last, &rcu) == Some(found));
        // And stays there. The next only entry has no marks of this one.
        erase(&xa, 1 << MAX_ORDER);
        assert!(in_use(xa.pool()) > 0);
        erase(&xa, 0);
        insert(&xa, 0, order).unwrap();
        assert_eq!(in_use(xa.pool()), 0);
        assert_eq!(xa.find(0, 0, Some(Mark::UnstableOdd), &rcu), None);
        xa.lock().replace(last, entry(5));
        assert_eq!(xa.load(0, &rcu), Some(entry(5)));
        xa.lock().set_mark(0, Mark::Dirty);
        xa.lock().clear_mark(last, Mark::Dirty);
        assert_eq!(xa.find(0, 0, Some(Mark::Dirty), &rcu), None);
        erase(&xa, last);
        assert_eq!(xa.find(0, u64::MAX, None, &rcu), None);
    }
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
    xa.lock().set_mark(u64::MAX, Mark::Dirty);
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
    assert_eq!(insert(&xa, 0, 7), Err(InsertError::Occupied));
    insert(&xa, 128, 7).unwrap();
    assert_eq!(in_use(xa.pool()), 2);
}

#[test]
fn halves_have_the_marks_of_the_whole() {
    let orders = 1..=MAX_ORDER;
    // Alone at index 0 the entry may be all that the head has.
    for (from, at) in orders.flat_map(|from| [(from, 0), (from, 512)]) {
        let xa = array();
        insert(&xa, at, from).unwrap();
        xa.lock().set_mark(at + (1 << from) - 1, Mark::Dirty);
        let half = 1 << (from - 1);
        let mut preload = xa.pool().preload(nodes_to_halve(from)).unwrap();
        xa.lock().halve(at, entry(7), &mut preload);
        drop(preload);
        let rcu = rcu::read_lock();
        let dirty = range(&xa, 0, u64::MAX, Some(Mark::Dirty), &rcu);
        let found: Vec<_> = dirty.map(|found| (found.index, found.entry)).collect();
        assert_eq!(found, [(at, entry(at)), (at + half, entry(7))]);
        let unmarked = xa.find(0, u64::MAX, Some(Mark::UnstableOdd), &rcu);
        assert_eq!((unmarked, xa.nr_entries()), (None, 2));
        // The marks are of each half alone.
        xa.lock().clear_mark(at, Mark::Dirty);
        let dirty = xa.find(0, u64::MAX, Some(Mark::Dirty), &rcu).unwrap();
        assert_eq!((dirty.index, dirty.order), (at + half, from - 1));
        #[cfg(debug_assertions)]
        xa.lock().assert_invariants();
    }
}

#[test]
#[should_panic(expected = "no halves")]
fn an_entry_of_order_0_is_not_halved() {
    let xa = array();
    insert(&xa, 5, 0).unwrap();
    let mut preload = xa.pool().preload(1).unwrap();
    xa.lock().halve(5, entry(6), &mut preload);
}

#[test]
fn a_slot_reference_sees_its_entry_leave_and_return() {
    let xa = array();
    insert(&xa, 0, 0).unwrap();
    insert(&xa, 70, 0).unwrap();
    let rcu = rcu::read_lock();
    let (found, slot) = xa.load_slot(70, &rcu).unwrap();
    assert!(slot.holds());
    erase(&xa, 70);
    assert!(!slot.holds());
    // The node is detached, so the new entry is elsewhere.
    insert(&xa, 70, 0).unwrap();
    assert!(!slot.holds() && xa.load(70, &rcu) == Some(found));

    // Growing and shrinking move no entry.
    let (_, slot) = xa.load_slot(0, &rcu).unwrap();
    erase(&xa, 70);
    assert!(slot.holds());
    insert(&xa, 1 << 40, 0).unwrap();
    assert!(slot.holds());
    erase(&xa, 1 << 40);
    erase(&xa, 0);
    assert!(!slot.holds());
}

#[test]
fn a_failed_preload_returns_the_missing_memory() {
    let pool = pool(1);
    let xa = XArray::new(Arc::clone(&pool));
    let nodes = pool.preload(1).map(|_| pool.stats().nodes).unwrap();
    let error = pool.preload(nodes + 1).map(|_| ()).unwrap_err();
    assert_eq!(error, PreloadError::NoMemory);
    assert_eq!(pool.stats().free, nodes, "a failed preload keeps nothing");

    let all = pool.preload(nodes).unwrap();
    assert_eq!(in_use(&pool), nodes);
    drop(all);
    insert(&xa, 1, 0).unwrap();
    let rcu = rcu::read_lock();
    erase(&xa, 1);
    assert_eq!(pool.stats().limbo, 1);
    let error = pool.preload(nodes).map(|_| ()).unwrap_err();
    assert_eq!(
        error,
        PreloadError::WouldBlock,
        "this thread may be reading it"
    );
    assert_eq!((pool.advance(), pool.shrink()), (0, 0));
    drop(rcu);
    pool.wait_for_limbo();
    assert!(pool.preload(nodes).is_ok());
    assert_eq!(pool.shrink(), CHUNK_SIZE);
    assert_eq!(pool.stats().nodes, 0);
}

#[test]
fn shrinking_keeps_the_chunks_in_use() {
    let pool = pool(8);
    let xa = XArray::new(Arc::clone(&pool));
    for index in (0..64 * 600).step_by(64) {
        insert(&xa, index, 0).unwrap();
    }
    assert!(pool.stats().nodes >= 600);
    for index in (64..64 * 600).step_by(64) {
        erase(&xa, index).unwrap();
    }
    pool.wait_for_limbo();
    pool.shrink();
    let stats = pool.stats();
    assert_eq!((stats.limbo, stats.free), (0, stats.nodes - 1));
    let chunk = CHUNK_SIZE / size_of::<[u64; 72]>();
    assert_eq!(stats.nodes, chunk, "one chunk of so many nodes");
    assert_eq!(xa.load(0, &rcu::read_lock()), Some(entry(0)));
}

/// A caller that preloaded while the index was empty, or another tree, splits entries that came
/// since.
#[test]
fn the_bound_for_a_range_suffices_to_split_later_entries() {
    for (order, before) in (1..=MAX_ORDER).flat_map(|order| [(order, None), (order, Some(0))]) {
        let xa = array();
        if let Some(before) = before {
            insert(&xa, before, 0).unwrap();
            insert(&xa, before + 1, 0).unwrap();
        }
        let last = (1 << order) - 1;
        let bound = xa.nodes_needed_range(0, last, &rcu::read_lock());
        if let Some(before) = before {
            erase(&xa, before).unwrap();
            erase(&xa, before + 1).unwrap();
        }
        insert(&xa, 0, order).unwrap();
        let mut preload = xa.pool().preload(bound).unwrap();
        let mut xa = xa.lock();
        for index in 0..=last {
            while xa.find(index, index, None).unwrap().order > 0 {
                xa.halve(index, entry(index), &mut preload);
            }
        }
        assert_eq!(xa.find(last, last, None).unwrap().order, 0);
    }
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
                    Ok(()) | Err(InsertError::Occupied) => {}
                    other => other.unwrap(),
                }
            }
        }
    }
}
