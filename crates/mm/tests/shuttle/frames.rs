//! Random interleavings of reserving, waiting, allocating, freeing and isolating frames.
//!
//! A model never times out, so a lost wake-up shows itself as a deadlock.

use foliocache_mm::{FrameKind, Frames, MIN_LIMIT, Reservation};
use foliocache_sync::collections::HashSet;
use foliocache_sync::model::sample;
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, thread};

fn reserve(frames: &Frames, n: u32) -> Reservation<'_> {
    frames
        .try_reserve(FrameKind::General, n)
        .unwrap_or_else(|| {
            let mut ticket = frames.enqueue(FrameKind::General, n);
            loop {
                if let Some(reservation) = ticket.try_take() {
                    return reservation;
                }
                ticket.wait(Duration::from_secs(1));
            }
        })
}

#[test]
fn waiters_are_served_whatever_the_order() {
    sample(300, || {
        let frames = Arc::new(Frames::new(MIN_LIMIT).unwrap());
        let threads: Vec<_> = [300u32, 400, 112]
            .into_iter()
            .map(|n| {
                let frames = Arc::clone(&frames);
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mut reservation = reserve(&frames, n);
                        let owned: Vec<_> =
                            (0..3).map(|_| frames.alloc(&mut reservation)).collect();
                        drop(reservation);
                        owned.into_iter().for_each(|frame| frames.free(frame, 0));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let usage = frames.usage();
        assert_eq!(
            (usage.in_use_pages, usage.reserved_pages, usage.waiters),
            (0, 0, 0)
        );
        assert_eq!((usage.available_pages, usage.blocks_forced), (512, 0));
    });
}

#[test]
fn a_promise_is_kept_while_a_block_is_isolated() {
    sample(300, || {
        let frames = Arc::new(Frames::new(MIN_LIMIT).unwrap());
        let evacuator = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || {
                for _ in 0..2 {
                    let mut blocks = frames.isolate_blocks(1, &HashSet::default());
                    thread::yield_now();
                    frames.give_back(&mut blocks);
                    for block in blocks {
                        frames.unisolate(block);
                    }
                }
            })
        };
        let users: Vec<_> = (0..2)
            .map(|_| {
                let frames = Arc::clone(&frames);
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mut reservation = reserve(&frames, 256);
                        let frame = frames.alloc(&mut reservation);
                        frames.free(frame, 0);
                    }
                })
            })
            .collect();
        for thread in users.into_iter().chain([evacuator]) {
            thread.join().unwrap();
        }
        let usage = frames.usage();
        assert!(usage.total_bytes() <= usage.limit_bytes);
        assert_eq!(
            (
                usage.in_use_pages,
                usage.reserved_pages,
                usage.blocks_forced
            ),
            (0, 0, 0)
        );
        assert_eq!(usage.available_pages, 512);
    });
}
