//! Slabs: how objects lie, what is used again, and what goes back.

use super::{SharedSlab, Slab, SlabArc, SlabBox};
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashSet;
use std::ptr;

#[repr(align(64))]
struct Object {
    number: usize,
    _rest: [u64; 20],
    dropped: Arc<AtomicUsize>,
}

/// Objects in a page.
const SLOTS: usize = 21;

fn object(number: usize) -> Object {
    counted(number, &Arc::default())
}

fn counted(number: usize, dropped: &Arc<AtomicUsize>) -> Object {
    Object {
        number,
        _rest: [0; 20],
        dropped: Arc::clone(dropped),
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn page_of(object: &SlabBox<Object>) -> usize {
    ptr::from_ref(&**object).addr() / 4096
}

#[test]
fn objects_lie_side_by_side() {
    assert_eq!(size_of::<Object>(), 192);
    let slab = Slab::new();
    let objects: Vec<_> = (0..10 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(object.number, number);
        assert!(ptr::from_ref(&**object).addr().is_multiple_of(64));
    }
    let pages: HashSet<_> = objects.iter().map(page_of).collect();
    assert_eq!(pages.len(), 10);
    for pair in objects[..SLOTS].windows(2) {
        let [a, b] = [&pair[0], &pair[1]].map(|object| ptr::from_ref(&**object).addr());
        assert_eq!(b - a, 192);
    }
}

#[test]
fn what_is_free_is_used_again() {
    let slab = Slab::new();
    let mut objects: Vec<_> = (0..4 * SLOTS)
        .map(|n| Some(slab.alloc(object(n))))
        .collect();
    let pages = slab.pool.resident_pages();
    for each in objects.iter_mut().step_by(3) {
        drop(each.take());
    }
    for (number, each) in objects.iter_mut().enumerate() {
        if each.is_none() {
            *each = Some(slab.alloc(object(number)));
        }
    }
    assert_eq!(slab.pool.resident_pages(), pages);
    let numbers = objects.iter().flatten().map(|object| object.number);
    assert!(numbers.eq(0..4 * SLOTS));
}

#[test]
fn what_other_threads_left_free_is_used() {
    let slab = Slab::new();
    let fill = |from: usize| -> Vec<_> {
        let numbers = from..from + 40 * SLOTS;
        numbers.map(|n| slab.alloc(object(n))).collect()
    };
    // As many threads as shards and more: they are not all of one shard.
    let mut left: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..17)
            .map(|n| scope.spawn(move || fill(n * 10_000)))
            .collect();
        let objects = threads
            .into_iter()
            .map(|thread| thread.join().expect("objects"));
        objects.flatten().collect()
    });
    let (pages, _) = slab.pool.resident_pages();
    // Every page keeps some.
    let mut number = 0;
    left.retain(|_| {
        number += 1;
        number % 10 == 0
    });
    let more: Vec<_> = (0..10).flat_map(|n| fill(n * 10_000)).collect();
    assert_eq!(slab.pool.resident_pages().0, pages);
    drop(more);
}

#[test]
fn pages_without_objects_go_back() {
    let slab = Slab::new();
    let objects: Vec<_> = (0..100 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    assert_eq!(slab.pool.resident_pages(), (100, 0));
    drop(objects);
    // One is kept for the next object, and a few are for anybody.
    assert_eq!(slab.pool.resident_pages(), (1, 16));
    let objects: Vec<_> = (0..100 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    assert_eq!(slab.pool.resident_pages(), (100, 0));
    assert!(
        objects
            .iter()
            .enumerate()
            .all(|(n, object)| object.number == n)
    );
}

#[test]
fn objects_outlive_their_slab() {
    let slab = Slab::new();
    let pool = Arc::downgrade(&slab.pool);
    let mut objects: Vec<_> = (0..2 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    drop(objects.drain(SLOTS..));
    drop(slab);
    assert!(
        objects
            .iter()
            .enumerate()
            .all(|(n, object)| object.number == n)
    );
    drop(objects);
    assert!(pool.upgrade().is_none(), "memory is left");
    // An empty slab has none.
    let slab: Slab<Object> = Slab::new();
    let pool = Arc::downgrade(&slab.pool);
    drop(slab.alloc(object(1)));
    drop(slab);
    assert!(pool.upgrade().is_none());
}

#[test]
fn threads_free_what_others_allocated() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let slab = Slab::new();
    let pool = Arc::downgrade(&slab.pool);
    const EACH: usize = 20_000;
    std::thread::scope(|scope| {
        let (from, to): (Vec<_>, Vec<_>) = (0..4).map(|_| std::sync::mpsc::channel()).unzip();
        for (number, received) in to.into_iter().enumerate() {
            let next = from[(number + 1) % 4].clone();
            let (slab, dropped) = (&slab, &dropped);
            scope.spawn(move || {
                let mut kept = Vec::new();
                for n in 0..EACH {
                    let new = slab.alloc(counted(number * EACH + n, dropped));
                    assert_eq!(new.number, number * EACH + n);
                    // The next thread may have ended.
                    let _ = next.send(new);
                    kept.extend(received.try_recv());
                    if kept.len() > 100 {
                        kept.drain(..50);
                    }
                }
            });
        }
        drop(from);
    });
    assert_eq!(dropped.load(Ordering::Relaxed), 4 * EACH);
    drop(slab);
    assert!(pool.upgrade().is_none(), "memory is left");
}

#[test]
fn shared_objects_go_with_the_last_reference() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let slab = SharedSlab::new();
    let first = slab.alloc(counted(7, &dropped));
    drop(slab);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut mine = SlabArc::clone(&first);
            scope.spawn(move || {
                for _ in 0..10_000 {
                    mine = SlabArc::clone(&mine);
                    assert_eq!(mine.number, 7);
                }
            });
        }
    });
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(first);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}
