//! Slabs: the placement of objects, reuse of slots, and return of pages.

impl super::Pool {
    /// Pages that are not free, and free ones that keep their memory.
    fn resident_pages(self: &Arc<Self>) -> (usize, usize) {
        // One reference is the caller's.
        (Arc::strong_count(self) - 1, self.supply.lock().warm.len())
    }
}

use super::{SharedSlab, Slab, SlabArc, SlabBox};
use crate::Unbounded;
use crate::bound::MetadataBound;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashSet;
use std::ptr::{self, NonNull};

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

impl<T> Slab<T> {
    fn alloc(&self, value: T) -> SlabBox<T> {
        self.reserve().expect("there is room").fill(value)
    }
}

fn page_of(object: &SlabBox<Object>) -> usize {
    ptr::from_ref(&**object).addr() / 4096
}

#[test]
fn objects_lie_side_by_side() {
    assert_eq!(size_of::<Object>(), 192);
    let slab = Slab::new(Arc::new(Unbounded));
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
fn freed_slots_are_used_again() {
    let slab = Slab::new(Arc::new(Unbounded));
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
fn free_slots_in_pages_of_other_threads_are_used() {
    let slab = Slab::new(Arc::new(Unbounded));
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
    // Two threads of one shard may each have made a page, one of which stayed empty and has gone
    // since.
    assert!(slab.pool.resident_pages().0 <= pages);
    drop(more);
}

#[test]
fn pages_without_objects_go_back() {
    let slab = Slab::new(Arc::new(Unbounded));
    let objects: Vec<_> = (0..100 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    assert_eq!(slab.pool.resident_pages(), (100, 0));
    drop(objects);
    // One is kept for the next object, and a few for all shards.
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
    let slab = Slab::new(Arc::new(Unbounded));
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
    let slab: Slab<Object> = Slab::new(Arc::new(Unbounded));
    let pool = Arc::downgrade(&slab.pool);
    drop(slab.alloc(object(1)));
    drop(slab);
    assert!(pool.upgrade().is_none());
}

#[test]
fn threads_free_objects_of_other_threads() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let slab = Slab::new(Arc::new(Unbounded));
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
    let slab = SharedSlab::new(Arc::new(Unbounded));
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

/// A bound of this many pages.
struct Pages(AtomicUsize);

impl MetadataBound for Pages {
    fn charge(&self, bytes: u64) -> bool {
        assert_eq!(bytes, 4096);
        let less = |left: usize| left.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }

    fn uncharge(&self, bytes: u64) {
        self.0.fetch_add(bytes as usize / 4096, Ordering::Relaxed);
    }
}

#[test]
fn pages_are_charged_as_long_as_they_have_memory() {
    let bound = Arc::new(Pages(AtomicUsize::new(40)));
    let slab = Slab::new(bound.clone());
    let left = || bound.0.load(Ordering::Relaxed);
    let mut objects: Vec<_> = (0..40 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    assert_eq!(
        (left(), slab.pool.bytes(), slab.pool.spare()),
        (0, 40 * 4096, 0)
    );
    assert!(slab.reserve().is_none(), "there are no more pages");
    let refused = slab.reserve_uncharged().fill(object(1));
    assert!(
        slab.reserve().is_none(),
        "no other object gets into its page"
    );
    assert_eq!(slab.pool.uncharged(), 1);
    drop(refused);
    assert_eq!(slab.pool.uncharged(), 0);
    // One of each page is left: there is room, but no page comes back.
    let mut number = 0;
    objects.retain(|_| {
        number += 1;
        number % SLOTS == 0
    });
    assert_eq!((left(), slab.pool.spare()), (0, 40 * (SLOTS as u64 - 1)));
    drop(objects);
    // A few pages stay warm, one for the next object.
    assert_eq!(left(), 40 - 17);
    drop(slab);
    assert_eq!(left(), 40);
}

#[test]
fn a_scan_passes_published_objects_page_by_page() {
    let slab = Slab::new(Arc::new(Unbounded));
    let objects: Vec<_> = (0..3 * SLOTS).map(|n| slab.alloc(object(n))).collect();
    // SAFETY: no scan runs when they are freed.
    let publish = |each: &SlabBox<Object>| unsafe { super::publish(&**each) };
    objects.iter().step_by(2).for_each(publish);
    // SAFETY: in the slab.
    unsafe { super::hide(&*objects[4]) };
    let page = || -> Vec<usize> {
        let objects = slab.pool.next_page().expect("there are pages");
        // SAFETY: they are alive.
        let number = |object: NonNull<u8>| unsafe { object.cast::<Object>().as_ref() }.number;
        objects.map(number).collect()
    };
    let expected = |page: usize| -> Vec<usize> {
        let numbers = page * SLOTS..(page + 1) * SLOTS;
        numbers.filter(|n| n % 2 == 0 && *n != 4).collect()
    };
    for number in [0, 1, 2, 0] {
        assert_eq!(page(), expected(number));
    }
}

#[test]
fn a_scan_before_the_first_page_finds_nothing() {
    let slab: Slab<Object> = Slab::new(Arc::new(Unbounded));
    assert!(slab.pool.next_page().is_none());
}

#[test]
fn a_weak_reference_keeps_no_object() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let slab = SharedSlab::new(Arc::new(Unbounded));
    let first = slab.alloc(counted(7, &dropped));
    let weak = SlabArc::downgrade(&first);
    let again = weak.upgrade().expect("it is there");
    drop(first);
    assert_eq!((again.number, dropped.load(Ordering::Relaxed)), (7, 0));
    drop(again);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(weak.upgrade().is_none());
    // Its memory is not another's yet.
    let other = slab.alloc(counted(8, &dropped));
    assert!(weak.upgrade().is_none());
    drop((weak, slab));
    assert_eq!(other.number, 8);
}
