//! Tests of the frame space as a whole, against a model and with many threads.
#![allow(unsafe_code)]

use super::*;
use foliocache_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Mutex, thread};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

const MIB: u64 = 1 << 20;

fn stamp(frames: &Frames, frame: FrameNumber, value: u64) {
    let addr = frames.addr(frame).cast::<AtomicU64>();
    // SAFETY: the caller has allocated the frame.
    unsafe { &*addr }.store(value, Ordering::Relaxed);
}

fn stamped(frames: &Frames, frame: FrameNumber) -> u64 {
    let addr = frames.addr(frame).cast::<AtomicU64>();
    // SAFETY: the caller has allocated the frame.
    unsafe { &*addr }.load(Ordering::Relaxed)
}

/// The number of the block that a frame lies in.
fn block_of(frame: FrameNumber) -> u32 {
    frame.0 / BLOCK_FRAMES
}

/// Takes a chunk of an order, if it is there.
fn take(frames: &Frames, order: u32) -> Option<FrameNumber> {
    frames.alloc_order(
        &mut frames.try_reserve(FrameKind::General, 1 << order)?,
        order,
    )
}

/// Isolates about the emptiest block.
fn isolate(frames: &Frames) -> Option<BlockNumber> {
    frames.isolate_blocks(1, &HashSet::default()).pop()
}

/// Rounds of a stress test: more with FOLIOCACHE_STRESS.
fn rounds(base: u32) -> u32 {
    let factor = std::env::var("FOLIOCACHE_STRESS");
    base * factor.ok().and_then(|f| f.parse().ok()).unwrap_or(1)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

#[test]
fn limits_are_checked_and_named() {
    let error = Frames::new(MIB).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a limit of 1048576 bytes is too small: at least 4194304 bytes are needed"
    );
    let error = Frames::new(u64::MAX).unwrap_err();
    let memory = total_memory().min(MAX_LIMIT);
    assert!(error.to_string().contains(&u64::MAX.to_string()));
    assert!(error.to_string().contains(&memory.to_string()));
    assert_eq!(error.errno(), foliocache_sys::Errno::EINVAL);
    let frames = Frames::new(MIN_LIMIT).unwrap();
    assert!(frames.set_limit(memory + 1).is_err());
    assert_eq!(frames.limit(), MIN_LIMIT);
    // The whole machine is a valid limit: space is reserved, none is used.
    let frames = Frames::new(memory).unwrap();
    assert!(frames.usage().total_bytes() < memory / 32);
}

/// A cache that fills has blocks before it needs them, and no more than it may have.
#[test]
fn blocks_are_taken_ahead_of_need() {
    let frames = Frames::new(64 * MIB).unwrap();
    frames.grow_ahead();
    assert_eq!(frames.usage().blocks_held, 0, "nothing was needed yet");
    let mut held = Vec::new();
    let mut allocate = |frames: &Frames| {
        let mut reservation = frames.try_reserve(FrameKind::General, 1)?;
        held.push(frames.alloc(&mut reservation));
        Some(())
    };
    allocate(&frames).unwrap();
    assert!(frames.block_wanted());
    frames.grow_ahead();
    assert!(!frames.block_wanted());
    assert_eq!(frames.usage().blocks_held, 3);
    while allocate(&frames).is_some() {
        let before = frames.usage();
        frames.grow_ahead();
        let usage = frames.usage();
        let needed = usage.in_use_pages.div_ceil(u64::from(BLOCK_FRAMES));
        assert!(usage.blocks_held <= needed + 2, "{usage:?}");
        assert!(usage.total_bytes() <= 64 * MIB, "{usage:?}");
        assert_eq!(usage.available_pages, before.available_pages);
    }
    // A small cache has nothing to spare.
    let small = Frames::new(16 * MIB).unwrap();
    let mut reservation = small.try_reserve(FrameKind::General, 1).unwrap();
    small.alloc(&mut reservation);
    assert!(!small.block_wanted());
    small.grow_ahead();
    assert_eq!(small.usage().blocks_held, 1);
}

#[test]
fn a_reservation_is_counted_and_given_back() {
    let frames = Frames::new(8 * MIB).unwrap();
    let capacity = frames.capacity() as u32;
    assert_eq!(capacity, 3 * 512);
    let mut all = frames
        .try_reserve(FrameKind::General, capacity - 40)
        .unwrap();
    let part = frames.try_reserve(FrameKind::General, 40).unwrap();
    assert!(frames.try_reserve(FrameKind::General, 1).is_none());
    assert_eq!(frames.usage().blocks_held, 0);
    drop(part);
    assert_eq!(frames.available(FrameKind::General), 40);
    assert_eq!(all.left(), capacity - 40);
    let frame = frames.alloc(&mut all);
    let usage = frames.usage();
    assert_eq!(usage.in_use_pages, 1);
    assert_eq!(usage.reserved_pages, u64::from(capacity) - 41);
    assert_eq!(usage.blocks_held, 1);
    drop(all);
    frames.free(frame, 0);
    let usage = frames.usage();
    assert_eq!((usage.in_use_pages, usage.reserved_pages), (0, 0));
    assert_eq!(usage.available_pages, u64::from(capacity));
}

#[test]
#[should_panic(expected = "used up")]
fn a_used_up_reservation_gives_no_frame() {
    let frames = Frames::new(4 * MIB).unwrap();
    let mut none = frames.try_reserve(FrameKind::General, 0).unwrap();
    frames.alloc(&mut none);
}

#[test]
fn all_of_the_capacity_can_be_allocated_and_merges_again() {
    let frames = Frames::new(16 * MIB).unwrap();
    let capacity = frames.capacity() as u32;
    let mut all = frames.try_reserve(FrameKind::General, capacity).unwrap();
    let owned: BTreeSet<_> = (0..capacity).map(|_| frames.alloc(&mut all)).collect();
    assert_eq!(owned.len() as u32, capacity);
    assert_eq!(all.left(), 0);
    assert!(take(&frames, 3).is_none());
    for &frame in &owned {
        frames.free(frame, 0);
    }
    // Some frames rest in this thread's magazine; a gathering merges them too.
    assert_eq!(frames.trim(true) as u32, capacity / 512);
    let whole: Vec<_> = (0..capacity / 512)
        .map(|_| take(&frames, 9).unwrap())
        .collect();
    assert!(frames.try_reserve(FrameKind::General, 1).is_none());
    // A chunk may be freed in parts.
    for frame in whole {
        frames.free(frame, 8);
        for i in 256..512 {
            frames.free(frame.add(i), 0);
        }
    }
    assert_eq!(frames.usage().in_use_pages, 0);
    assert_eq!(frames.trim(true) as u32, capacity / 512);
    assert_eq!(frames.usage().blocks_held, 0);
}

#[test]
fn an_order_is_taken_from_a_reservation_or_leaves_it_whole() {
    let frames = Frames::new(4 * MIB).unwrap();
    let mut all = frames.try_reserve(FrameKind::General, 512).unwrap();
    let single = frames.alloc(&mut all);
    // Chunks beside the single frame, and beside the 15 that went to this thread's magazine with it.
    for order in [8, 7, 6, 5, 4] {
        assert!(frames.alloc_order(&mut all, order).is_some());
    }
    assert_eq!(all.left(), 15);
    assert!(frames.alloc_order(&mut all, 1).is_none());
    assert_eq!(all.left(), 15);
    let usage = frames.usage();
    assert_eq!((usage.in_use_pages, usage.reserved_pages), (512 - 15, 15));
    while all.left() > 0 {
        frames.alloc(&mut all);
    }
    assert_eq!(frames.usage().in_use_pages, 512);
    frames.free(single, 0);
}

#[test]
fn densely_filled_blocks_are_used_first() {
    let frames = Frames::new(32 * MIB).unwrap();
    let mut all = frames.try_reserve(FrameKind::General, 3 * 512).unwrap();
    let mut owned: Vec<_> = (0..3 * 512).map(|_| frames.alloc(&mut all)).collect();
    // Block 0 loses 300 frames, block 1 loses 30.
    owned.retain(|&frame| {
        let index = frame.0 % 512;
        let gone = match block_of(frame) {
            0 => index < 300,
            1 => index < 30,
            _ => false,
        };
        if gone {
            frames.free(frame, 0);
        }
        !gone
    });
    let isolated = isolate(&frames).unwrap();
    assert_eq!(isolated.0, 0);
    assert_eq!(frames.block_frames(isolated).len(), 212);
    frames.unisolate(isolated);
    let mut some = frames.try_reserve(FrameKind::General, 16).unwrap();
    for _ in 0..16 {
        assert_eq!(block_of(frames.alloc(&mut some)), 1);
    }
}

#[test]
fn metadata_has_a_floor_and_takes_blocks_beyond_it() {
    let frames = Frames::new(16 * MIB).unwrap();
    let blocks = frames.capacity() as u32 / 512;
    let own = frames.usage().metadata_bytes;
    let owned: Vec<_> = (0..blocks).map(|_| take(&frames, 9).unwrap()).collect();
    // The floor is there although every block is held.
    assert!(frames.charge_metadata(16 * MIB / 32 - own));
    assert!(!frames.charge_metadata(2 * MIB));
    // Isolating needs frames that are available: none is missing once the block is empty.
    frames.free(owned[0], 9);
    assert_eq!(frames.trim(true), 1);
    // The place of that block was kept for the metadata that was refused.
    assert!(frames.charge_metadata(2 * MIB));
    let usage = frames.usage();
    assert!(usage.total_bytes() <= usage.limit_bytes);
    assert_eq!(usage.capacity_pages, u64::from(blocks - 1) * 512);
    assert!(take(&frames, 9).is_none() && frames.try_reserve(FrameKind::General, 1).is_none());
    frames.uncharge_metadata(2 * MIB);
    assert_eq!(frames.capacity(), u64::from(blocks) * 512);
    frames.uncharge_metadata(16 * MIB / 32 - own);
    assert_eq!(frames.usage().metadata_bytes, own);
    assert!(take(&frames, 9).is_some());
    assert!(!frames.charge_metadata(u64::MAX));
}

#[test]
fn a_promise_outlives_a_shrink() {
    let frames = Frames::new(16 * MIB).unwrap();
    let mut promise = frames.try_reserve(FrameKind::General, 3 * 512).unwrap();
    let first = frames.alloc(&mut promise);
    frames.set_limit(4 * MIB).unwrap();
    assert!(frames.try_reserve(FrameKind::General, 1).is_none());
    assert_eq!(frames.excess(), 0);
    let mut owned: BTreeSet<_> = (0..promise.left())
        .map(|_| frames.alloc(&mut promise))
        .collect();
    assert!(owned.insert(first) && owned.len() == 3 * 512);
    let usage = frames.usage();
    assert_eq!((usage.blocks_held, usage.blocks_forced), (3, 2));
    assert!(frames.excess() > 0);
    for frame in owned {
        frames.free(frame, 0);
    }
    frames.trim(false);
    assert_eq!(frames.excess(), 0);
    assert_eq!(frames.usage().blocks_held, 1);
    assert_eq!(frames.available(FrameKind::General), 512);
}

#[test]
fn the_queue_is_served_in_order() {
    let frames = Arc::new(Frames::new(4 * MIB).unwrap());
    let (all, seven) = (
        frames.try_reserve(FrameKind::General, 505).unwrap(),
        frames.try_reserve(FrameKind::General, 7),
    );
    let mut first = frames.enqueue(FrameKind::General, 10);
    let mut second = frames.enqueue(FrameKind::General, 1);
    assert!(first.try_take().is_none());
    drop(seven);
    // Seven are available, but the first needs ten, and nobody passes it.
    assert!(first.try_take().is_none() && second.try_take().is_none());
    assert!(frames.try_reserve(FrameKind::General, 1).is_none() && take(&frames, 1).is_none());
    assert!(!first.wait(Duration::from_millis(1)) && !second.wait(Duration::from_millis(1)));
    // A ticket that is dropped lets the next one pass.
    drop(first);
    assert!(second.wait(Duration::from_secs(60)));
    assert_eq!(second.try_take().unwrap().left(), 1);
    assert!(second.try_take().is_none());
    drop(second);
    assert!(!frames.has_waiters() && frames.try_reserve(FrameKind::General, 7).is_some());

    // Threads queue one after the other and are served in that order; only one fits at a time, so
    // that what they note is the order they were served in.
    let order = Mutex::new(Vec::new());
    let all = (all, frames.try_reserve(FrameKind::General, 7).unwrap());
    thread::scope(|scope| {
        for n in 0..6 {
            let (frames, order) = (&frames, &order);
            scope.spawn(move || {
                while frames.usage().waiters != n {
                    thread::yield_now();
                }
                let mut ticket = frames.enqueue(FrameKind::General, 400);
                let reservation = loop {
                    assert!(ticket.wait(Duration::from_secs(60)), "nobody woke {n}");
                    if let Some(reservation) = ticket.try_take() {
                        break reservation;
                    }
                };
                order.lock().push(n);
                drop(reservation);
            });
        }
        while frames.usage().waiters != 6 {
            thread::yield_now();
        }
        drop(all);
    });
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(frames.available(FrameKind::General), 512);
}

#[test]
fn threads_that_wait_are_all_served() {
    let frames = Frames::new(4 * MIB).unwrap();
    let peak = AtomicU32::new(0);
    thread::scope(|scope| {
        for t in 0..8u64 {
            let (frames, peak) = (&frames, &peak);
            scope.spawn(move || {
                let mut random = Random(t + 1);
                for round in 0..rounds(3000) {
                    let n = 1 + random.below(200);
                    let mut reservation =
                        frames
                            .try_reserve(FrameKind::General, n)
                            .unwrap_or_else(|| {
                                let mut ticket = frames.enqueue(FrameKind::General, n);
                                loop {
                                    if let Some(reservation) = ticket.try_take() {
                                        break reservation;
                                    }
                                    assert!(
                                        ticket.wait(Duration::from_secs(60)),
                                        "thread {t} starves"
                                    );
                                }
                            });
                    let used = random.below(n + 1);
                    let mark = (t + 1) << 32 | u64::from(round);
                    let owned: Vec<_> = (0..used)
                        .map(|_| {
                            let frame = frames.alloc(&mut reservation);
                            stamp(frames, frame, mark);
                            frame
                        })
                        .collect();
                    peak.fetch_max(used, Ordering::Relaxed);
                    drop(reservation);
                    for frame in owned {
                        assert_eq!(stamped(frames, frame), mark, "{frame:?} had two owners");
                        frames.free(frame, 0);
                    }
                }
            });
        }
    });
    let usage = frames.usage();
    assert!(peak.into_inner() > 100);
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, usage.waiters),
        (0, 0, 0)
    );
    assert_eq!(
        (
            usage.available_pages,
            usage.blocks_held,
            usage.blocks_forced
        ),
        (512, 1, 0)
    );
}

/// Allocation, evacuation and metadata at once: without a shrink no promise is ever kept by breaking
/// the bound.
#[test]
fn the_bound_holds_while_blocks_come_and_go() {
    let frames = Frames::new(24 * MIB).unwrap();
    let own = frames.usage().metadata_bytes;
    let done = AtomicBool::new(false);
    let given = AtomicU32::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|t| {
                let frames = &frames;
                scope.spawn(move || {
                    let mut random = Random(t + 77);
                    let mut owned: Vec<(FrameNumber, u32)> = Vec::new();
                    for _ in 0..rounds(6000) {
                        let order = random.below(10);
                        if random.below(8) == 0 {
                            owned.extend(take(frames, order).map(|f| (f, order)));
                        } else if let Some(mut some) =
                            frames.try_reserve(FrameKind::General, 1 + random.below(64))
                        {
                            for _ in 0..random.below(some.left() + 1) {
                                owned.push((frames.alloc(&mut some), 0));
                            }
                        }
                        for &(frame, order) in &owned {
                            stamp(frames, frame, u64::from(order) << 32 | (t + 1));
                        }
                        let keep = random.below(160) as usize;
                        while owned.len() > keep {
                            let at = random.below(owned.len() as u32) as usize;
                            let (frame, order) = owned.swap_remove(at);
                            assert_eq!(
                                stamped(frames, frame),
                                u64::from(order) << 32 | (t + 1),
                                "{frame:?} had two owners"
                            );
                            frames.free(frame, order);
                        }
                    }
                    for (frame, order) in owned {
                        frames.free(frame, order);
                    }
                })
            })
            .collect();
        let (frames, done, given) = (&frames, &done, &given);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                if let Some(block) = isolate(frames) {
                    thread::yield_now();
                    if frames.give_back(&mut vec![block]) == 1 {
                        given.fetch_add(1, Ordering::Relaxed);
                    } else {
                        frames.unisolate(block);
                    }
                }
                given.fetch_add(frames.trim(true) as u32, Ordering::Relaxed);
            }
        });
        scope.spawn(move || {
            let mut random = Random(9);
            let mut charged = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let bytes = u64::from(random.below(3 << 20));
                if frames.charge_metadata(bytes) {
                    charged.push(bytes);
                }
                if charged.len() > 2 || random.below(3) == 0 {
                    charged
                        .pop()
                        .into_iter()
                        .for_each(|bytes| frames.uncharge_metadata(bytes));
                }
                let usage = frames.usage();
                assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
            }
            charged
                .into_iter()
                .for_each(|bytes| frames.uncharge_metadata(bytes));
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    let usage = frames.usage();
    assert_eq!((usage.in_use_pages, usage.reserved_pages), (0, 0));
    assert_eq!((usage.blocks_forced, usage.metadata_bytes), (0, own));
    frames.trim(true);
    assert_eq!(frames.usage().blocks_held, 0);
    assert!(given.into_inner() > 0);
    assert_eq!(frames.usage().available_pages, usage.capacity_pages);
}

/// Shrinking and growing under load: promises are kept, and in the end everything adds up.
#[test]
fn the_limit_may_change_under_load() {
    let frames = Frames::new(32 * MIB).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|t| {
                let frames = &frames;
                scope.spawn(move || {
                    let mut random = Random(t + 3);
                    for _ in 0..rounds(3000) {
                        let n = 1 + random.below(500);
                        let mut ticket = frames.enqueue(FrameKind::General, n);
                        let mut reservation = loop {
                            if let Some(reservation) = ticket.try_take() {
                                break reservation;
                            }
                            assert!(ticket.wait(Duration::from_secs(60)), "thread {t} starves");
                        };
                        let owned: Vec<_> = (0..random.below(n + 1))
                            .map(|_| frames.alloc(&mut reservation))
                            .collect();
                        drop(reservation);
                        owned.into_iter().for_each(|frame| frames.free(frame, 0));
                    }
                })
            })
            .collect();
        let (frames, done) = (&frames, &done);
        scope.spawn(move || {
            let mut random = Random(11);
            while !done.load(Ordering::Relaxed) {
                let limit = MIN_LIMIT + u64::from(random.below(28 << 20));
                frames.set_limit(limit).unwrap();
                frames.trim(false);
                thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    frames.trim(false);
    let usage = frames.usage();
    assert_eq!(
        (usage.in_use_pages, usage.reserved_pages, usage.waiters),
        (0, 0, 0)
    );
    assert_eq!(frames.excess(), 0);
    assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
    assert_eq!(usage.available_pages, usage.capacity_pages);
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(u32),
    Alloc(prop::sample::Index, u32),
    AllocOrder(prop::sample::Index, u32),
    TryOrder(u32),
    DropReservation(prop::sample::Index),
    Free(prop::sample::Index, u32),
    Charge(u64),
    Uncharge(prop::sample::Index),
    SetLimit(u64),
    Isolate,
    GiveBack(prop::sample::Index),
    Evict(prop::sample::Index),
    Unisolate(prop::sample::Index),
    Trim(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0u32..700).prop_map(Op::Reserve),
        8 => (index(), 1u32..300).prop_map(|(i, n)| Op::Alloc(i, n)),
        3 => (index(), 0u32..10).prop_map(|(i, n)| Op::AllocOrder(i, n)),
        4 => (0u32..10).prop_map(Op::TryOrder),
        3 => index().prop_map(Op::DropReservation),
        6 => (index(), 1u32..200).prop_map(|(i, n)| Op::Free(i, n)),
        3 => (1u64..3 << 20).prop_map(Op::Charge),
        2 => index().prop_map(Op::Uncharge),
        2 => (MIN_LIMIT..24 << 20).prop_map(Op::SetLimit),
        2 => Just(Op::Isolate),
        2 => index().prop_map(Op::GiveBack),
        2 => index().prop_map(Op::Evict),
        2 => index().prop_map(Op::Unisolate),
        1 => any::<bool>().prop_map(Op::Trim),
    ]
}

/// The figures that the frame space should give.
#[derive(Default)]
struct Model<'a> {
    reservations: Vec<Reservation<'a>>,
    owned: Vec<(FrameNumber, u32)>,
    frames: BTreeSet<u32>,
    charged: Vec<u64>,
    isolated: Vec<BlockNumber>,
    own: u64,
    shrunk: bool,
}

impl<'a> Model<'a> {
    fn got(&mut self, space: &Frames, frame: FrameNumber, order: u32) {
        assert_eq!(frame.0 % (1 << order), 0);
        let block = BlockNumber(block_of(frame));
        assert!(!self.isolated.contains(&block), "allocated from {block:?}");
        for i in 0..1 << order {
            assert!(self.frames.insert(frame.0 + i), "{frame:?} + {i} twice");
        }
        stamp(space, frame, u64::from(frame.0));
        self.owned.push((frame, order));
    }

    fn free(&mut self, space: &Frames, at: usize) {
        let (frame, order) = self.owned.swap_remove(at);
        assert_eq!(stamped(space, frame), u64::from(frame.0));
        for i in 0..1 << order {
            self.frames.remove(&(frame.0 + i));
        }
        space.free(frame, order);
    }

    fn check(&self, space: &Frames) {
        let usage = space.usage();
        let reserved: u32 = self.reservations.iter().map(|r| r.left()).sum();
        assert_eq!(usage.reserved_pages, u64::from(reserved));
        assert_eq!(usage.in_use_pages, self.frames.len() as u64);
        assert_eq!(
            usage.metadata_bytes,
            self.own + self.charged.iter().sum::<u64>()
        );
        assert_eq!(
            space.excess(),
            usage.total_bytes().saturating_sub(usage.limit_bytes)
        );
        if !self.shrunk {
            assert_eq!(usage.blocks_forced, 0);
            assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
            // All promised and available frames can be backed.
            let isolated_free: u64 = self
                .isolated
                .iter()
                .map(|&b| 512 - space.block_frames(b).len() as u64)
                .sum();
            assert_eq!(
                usage.available_pages + usage.reserved_pages + usage.in_use_pages + isolated_free,
                usage.capacity_pages
            );
        }
        for &block in &self.isolated {
            for frame in space.block_frames(block) {
                assert!(self.frames.contains(&frame.0));
            }
        }
    }

    fn apply(&mut self, space: &'a Frames, op: Op) {
        match op {
            Op::Reserve(n) => {
                // Beyond a limit that was made smaller not even nothing is promised.
                let fits = n > 0 && space.available(FrameKind::General) >= u64::from(n);
                let got = space.try_reserve(FrameKind::General, n);
                assert!(got.is_some() || !fits);
                self.reservations.extend(got);
            }
            Op::Alloc(which, n) if !self.reservations.is_empty() => {
                let at = which.index(self.reservations.len());
                for _ in 0..n.min(self.reservations[at].left()) {
                    let frame = space.alloc(&mut self.reservations[at]);
                    self.got(space, frame, 0);
                }
            }
            Op::AllocOrder(which, order) if !self.reservations.is_empty() => {
                let at = which.index(self.reservations.len());
                if self.reservations[at].left() >= 1 << order
                    && let Some(frame) = space.alloc_order(&mut self.reservations[at], order)
                {
                    self.got(space, frame, order);
                }
            }
            Op::TryOrder(order) => {
                if let Some(frame) = take(space, order) {
                    self.got(space, frame, order);
                }
            }
            Op::DropReservation(which) if !self.reservations.is_empty() => {
                let at = which.index(self.reservations.len());
                drop(self.reservations.swap_remove(at));
            }
            Op::Free(which, n) => {
                for _ in 0..n.min(self.owned.len() as u32) {
                    self.free(space, which.index(self.owned.len()));
                }
            }
            Op::Charge(bytes) => {
                let charged = space.charge_metadata(bytes);
                self.charged.extend(charged.then_some(bytes));
            }
            Op::Uncharge(which) if !self.charged.is_empty() => {
                let at = which.index(self.charged.len());
                space.uncharge_metadata(self.charged.swap_remove(at));
            }
            Op::SetLimit(limit) => {
                let usage = space.usage();
                space.set_limit(limit).unwrap();
                self.own = space.usage().metadata_bytes - self.charged.iter().sum::<u64>();
                self.shrunk |= limit < usage.limit_bytes;
            }
            Op::Isolate => self.isolated.extend(isolate(space)),
            Op::GiveBack(which) if !self.isolated.is_empty() => {
                let at = which.index(self.isolated.len());
                let empty = space.block_frames(self.isolated[at]).is_empty();
                let given = space.give_back(&mut vec![self.isolated[at]]);
                assert_eq!(given, usize::from(empty));
                if empty {
                    self.isolated.swap_remove(at);
                }
            }
            Op::Evict(which) if !self.isolated.is_empty() => {
                let block = self.isolated[which.index(self.isolated.len())];
                while let Some(at) = self.owned.iter().position(|&(f, _)| block_of(f) == block.0) {
                    self.free(space, at);
                }
            }
            Op::Unisolate(which) if !self.isolated.is_empty() => {
                let at = which.index(self.isolated.len());
                space.unisolate(self.isolated.swap_remove(at));
            }
            Op::Trim(all) => {
                space.trim(all);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(60)))]

    /// Random operations against a model: no frame twice, the counts exact, the bound held at each
    /// step, and everything merges and goes back in the end.
    #[test]
    fn random_operations_agree_with_a_model(ops in prop::collection::vec(op(), 1..120)) {
        let space = Frames::new(12 * MIB).unwrap();
        let mut model = Model { own: space.usage().metadata_bytes, ..Model::default() };
        for op in ops {
            model.apply(&space, op);
            model.check(&space);
        }
        model.reservations.clear();
        while !model.owned.is_empty() {
            model.free(&space, 0);
        }
        for bytes in model.charged.drain(..) {
            space.uncharge_metadata(bytes);
        }
        for block in model.isolated.drain(..) {
            space.unisolate(block);
        }
        model.check(&space);
        space.set_limit(12 * MIB).unwrap();
        space.trim(true);
        let usage = space.usage();
        prop_assert_eq!(usage.blocks_held, 0);
        prop_assert_eq!(usage.capacity_pages, 5 * 512);
        prop_assert_eq!(usage.available_pages, usage.capacity_pages);
        for _ in 0..5 {
            prop_assert!(take(&space, 9).is_some());
        }
    }
}
