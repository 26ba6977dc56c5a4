//! A reader against one writer over all interleavings, in a tree of four slots a node: index 0 to 3
//! is one level, 4 to 15 two.
#![cfg(loom)]

// Outside the model: a finding of any of its executions.
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::model::explore;
use foliocache_sync::{Arc, rcu, thread};
use foliocache_xarray::{Entry, Extent, Mark, Preload, XArray};

#[path = "common/heap.rs"]
mod heap;

use heap::{erase, in_use, value};

/// The entry of an index: a reader that meets a foreign one sees it by its value.
fn entry(index: u64) -> Entry {
    value(index as usize)
}

/// The entry of a part after a split.
fn part(index: u64) -> Entry {
    value(100 + index as usize)
}

fn array(entries: &[(u64, u32)]) -> Arc<XArray> {
    let xa = Arc::new(XArray::new(heap::pool(1)));
    for &(index, order) in entries {
        insert(&xa, index, order, &mut xa.pool().preload(4).unwrap());
    }
    xa
}

fn insert(xa: &XArray, index: u64, order: u32, preload: &mut Preload<'_>) {
    xa.lock()
        .insert(index, order, entry(index), preload)
        .unwrap();
}

fn load(xa: &XArray, index: u64) -> Option<Entry> {
    xa.load(index, &rcu::read_lock())
}

fn find(xa: &XArray, first: u64, last: u64, mark: Option<Mark>) -> Option<Extent> {
    xa.find(first, last, mark, &rcu::read_lock())
}

/// Runs `read` beside `write`. Neither runs on the first thread: its actions between a spawn and the next switch of
/// threads are not interleaved by loom.
fn beside(
    xa: &Arc<XArray>,
    read: impl FnOnce(&XArray) + Send + 'static,
    write: impl FnOnce(&XArray) + Send + 'static,
) {
    let (reads, writes) = (Arc::clone(xa), Arc::clone(xa));
    let reader = thread::spawn(move || read(&reads));
    let writer = thread::spawn(move || write(&writes));
    reader.join().unwrap();
    writer.join().unwrap();
}

#[test]
fn an_entry_stays_in_sight_while_the_tree_grows() {
    explore(5, 10, || {
        let xa = array(&[(0, 0), (1, 0)]);
        let read = |xa: &XArray| {
            assert_eq!(load(xa, 0), Some(entry(0)));
            let new = load(xa, 5);
            assert!(new.is_none() || new == Some(entry(5)));
        };
        beside(&xa, read, |xa| {
            insert(xa, 5, 0, &mut xa.pool().preload(2).unwrap())
        });
        assert_eq!(load(&xa, 5), Some(entry(5)));
    });
}

#[test]
fn an_only_entry_stays_in_sight_with_its_mark_while_another_comes() {
    explore(5, 10, || {
        let xa = array(&[(0, 1)]);
        xa.lock().set_mark(0, Mark::Dirty);
        let read = |xa: &XArray| {
            let only = find(xa, 1, 15, Some(Mark::Dirty)).expect("it is dirty all along");
            assert_eq!((only.entry, only.index, only.order), (entry(0), 0, 1));
            let new = load(xa, 5);
            assert!(new.is_none() || new == Some(entry(5)));
            assert_eq!(load(xa, 1), Some(entry(0)));
        };
        beside(&xa, read, |xa| {
            insert(xa, 5, 0, &mut xa.pool().preload(3).unwrap())
        });
        assert_eq!(load(&xa, 5), Some(entry(5)));
    });
}

#[test]
fn the_head_that_holds_an_only_entry_proves_it_present() {
    explore(5, 10, || {
        let xa = array(&[(0, 0)]);
        let gone = Arc::new(AtomicBool::new(false));
        let read = {
            let gone = Arc::clone(&gone);
            move |xa: &XArray| {
                let rcu = rcu::read_lock();
                let Some((found, slot)) = xa.load_slot(0, &rcu) else {
                    return;
                };
                // Acquire pairs with the Release store of the writer.
                let gone = gone.load(Ordering::Acquire);
                let erased = gone && found == entry(0);
                assert!(!(erased && slot.holds()), "the head shows an erased entry");
                // The next only entry has none of its marks.
                let marked = xa.find(0, 3, Some(Mark::Dirty), &rcu);
                assert!(marked.is_none_or(|marked| marked.entry == entry(0)));
            }
        };
        xa.lock().set_mark(0, Mark::Dirty);
        beside(&xa, read, move |xa| {
            erase(xa, 0);
            gone.store(true, Ordering::Release);
            let mut preload = xa.pool().preload(0).unwrap();
            xa.lock().insert(0, 0, part(0), &mut preload).unwrap();
        });
        assert_eq!((load(&xa, 0), in_use(xa.pool())), (Some(part(0)), 0));
    });
}

#[test]
fn an_entry_stays_in_sight_while_the_tree_shrinks() {
    explore(5, 100, || {
        let xa = array(&[(0, 0), (5, 0)]);
        let read = |xa: &XArray| {
            assert_eq!(load(xa, 0), Some(entry(0)));
            let old = load(xa, 5);
            assert!(old.is_none() || old == Some(entry(5)));
        };
        beside(&xa, read, |xa| assert!(erase(xa, 5).is_some()));
        assert_eq!((load(&xa, 0), load(&xa, 5)), (Some(entry(0)), None));
        assert_eq!(in_use(xa.pool()), 1);
    });
}

/// Erases index 4 and inserts 9 from the nodes that this frees, while a reader looks 4 up. Says so
/// in `seen` if that reader meets a foreign entry: the two nodes change places, and both look-ups go
/// through slot 1 of the same one.
fn reuse(grace: bool, seen: &'static Flag) {
    let xa = array(&[(4, 0)]);
    let pool = Arc::clone(xa.pool());
    // All other nodes are away, so that only the two of the erased path are left.
    let away = pool.preload(pool.stats().free).unwrap();
    let read = |xa: &XArray| {
        let rcu = rcu::read_lock();
        let found = xa.load(4, &rcu);
        if found.is_some_and(|found| found != entry(4)) {
            seen.store(true, Relaxed);
        }
    };
    beside(&xa, read, move |xa| {
        erase(xa, 4);
        if grace {
            xa.pool().advance();
        } else {
            xa.pool().skip_grace_period();
        }
        // Refused as long as the reader may be in one of them.
        if let Ok(mut preload) = xa.pool().preload(2) {
            insert(xa, 9, 0, &mut preload);
        }
    });
    drop(away);
}

#[test]
fn a_node_is_reused_only_after_its_readers() {
    static SEEN: Flag = Flag::new(false);
    explore(4, 1000, || reuse(true, &SEEN));
    assert!(!SEEN.load(Relaxed));
}

#[test]
fn canary_a_node_that_is_reused_at_once_shows_a_foreign_entry() {
    static SEEN: Flag = Flag::new(false);
    explore(4, 200, || reuse(false, &SEEN));
    assert!(
        SEEN.load(Relaxed),
        "the model above would miss a reuse that comes too early"
    );
}

#[test]
fn a_slot_that_holds_its_entry_proves_it_present() {
    explore(5, 100, || {
        let xa = array(&[(0, 0), (4, 0)]);
        let gone = Arc::new(AtomicBool::new(false));
        let read = {
            let gone = Arc::clone(&gone);
            move |xa: &XArray| {
                let rcu = rcu::read_lock();
                let Some((_, slot)) = xa.load_slot(4, &rcu) else {
                    return;
                };
                // Acquire pairs with the Release store of the writer.
                let gone = gone.load(Ordering::Acquire);
                assert!(
                    !(gone && slot.holds()),
                    "a detached node shows an erased entry"
                );
            }
        };
        beside(&xa, read, move |xa| {
            erase(xa, 4);
            gone.store(true, Ordering::Release);
        });
    });
}

#[test]
fn a_split_within_a_node_shows_the_whole_or_a_part() {
    split_beside_a_reader(&[(0, 1), (2, 0)], 0);
}

#[test]
fn a_split_of_an_only_entry_shows_the_whole_or_a_part() {
    split_beside_a_reader(&[(0, 1)], 1);
}

/// Splits the entry of two indices at index 0 of `entries` with as many nodes, while a reader looks for its end.
fn split_beside_a_reader(entries: &'static [(u64, u32)], nodes: usize) {
    explore(5, 100, move || {
        let xa = array(entries);
        let whole = Extent {
            entry: entry(0),
            index: 0,
            order: 1,
        };
        let old = Extent {
            entry: entry(0),
            index: 1,
            order: 0,
        };
        let new = Extent {
            entry: part(1),
            index: 1,
            order: 0,
        };
        let read = move |xa: &XArray| {
            let found = find(xa, 1, 1, None).expect("index 1 always has an entry");
            assert!([whole, old, new].contains(&found), "{found:?}");
        };
        beside(&xa, read, move |xa| {
            xa.lock()
                .halve(0, part(1), &mut xa.pool().preload(nodes).unwrap());
        });
        assert_eq!(find(&xa, 1, 1, None), Some(new));
    });
}

#[test]
fn a_split_across_levels_shows_the_whole_or_a_part() {
    split_across_levels_beside_a_reader(4, 1);
}

#[test]
fn a_split_of_an_only_entry_across_levels_shows_the_whole_or_a_part() {
    split_across_levels_beside_a_reader(0, 2);
}

/// Splits an entry of order 2 at `at` with as many nodes, while a reader looks for its upper half.
fn split_across_levels_beside_a_reader(at: u64, nodes: usize) {
    explore(5, 9, move || {
        let xa = array(&[(at, 2)]);
        let read = move |xa: &XArray| {
            let found = load(xa, at + 2);
            assert!(
                found == Some(entry(at)) || found == Some(part(at + 2)),
                "{found:?}"
            );
        };
        beside(&xa, read, move |xa| {
            let mut preload = xa.pool().preload(nodes).unwrap();
            xa.lock().halve(at, part(at + 2), &mut preload);
        });
        assert_eq!(load(&xa, at + 2), Some(part(at + 2)));
    });
}

#[test]
fn an_entry_that_is_replaced_is_found_before_and_after_with_its_mark() {
    // In a node, and in the head, where it is one word.
    for (at, least) in [(4, 9), (0, 2)] {
        explore(5, least, move || {
            let xa = array(&[(at, 2)]);
            xa.lock().set_mark(at, Mark::Dirty);
            let read = move |xa: &XArray| {
                let found =
                    find(xa, at + 2, at + 2, Some(Mark::Dirty)).expect("it is marked throughout");
                assert!([entry(at), part(at)].contains(&found.entry), "{found:?}");
                assert_eq!((found.index, found.order), (at, 2));
            };
            beside(&xa, read, move |xa| xa.lock().replace(at + 1, part(at)));
            assert_eq!(load(&xa, at + 3), Some(part(at)));
        });
    }
}

#[test]
fn an_extent_belongs_to_its_entry() {
    explore(4, 2000, || {
        let xa = array(&[(2, 1), (1, 0)]);
        let read = |xa: &XArray| {
            let Some(found) = find(xa, 3, 3, None) else {
                return;
            };
            let order = if found.entry == entry(2) { 1 } else { 0 };
            let first = if order == 1 { 2 } else { 3 };
            assert_eq!((found.entry, found.order), (entry(first), order));
            assert_eq!(found.index, first);
        };
        beside(&xa, read, |xa| {
            erase(xa, 2);
            insert(xa, 3, 0, &mut xa.pool().preload(0).unwrap());
        });
    });
}

#[test]
fn a_marked_entry_is_found_while_its_neighbours_change() {
    explore(4, 200, || {
        let xa = array(&[(0, 0), (1, 0)]);
        xa.lock().set_mark(1, Mark::Dirty);
        let read = |xa: &XArray| {
            let found = find(xa, 0, 15, Some(Mark::Dirty)).expect("index 1 is dirty all along");
            assert!(found.entry == entry(1) || found.entry == entry(0));
        };
        beside(&xa, read, |xa| {
            let mut preload = xa.pool().preload(2).unwrap();
            insert(xa, 5, 0, &mut preload);
            let mut xa = xa.lock();
            xa.set_mark(0, Mark::Dirty);
            xa.erase_if(0, entry(0));
        });
    });
}
