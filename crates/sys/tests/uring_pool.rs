//! Rings lent to many threads, while buffers come and go.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use foliocache_sys::Errno;
use foliocache_sys::fd::{self, IoSegment};
use foliocache_sys::uring::{Io, Op, RingPool};

mod support;
use support::*;

/// A pool, or `None` (and a note) where the kernel has no io_uring.
fn pool(rings: usize, entries: u32, slots: u32) -> Option<RingPool> {
    match RingPool::new(rings, entries, slots) {
        Ok(pool) => Some(pool),
        Err(e @ (Errno::ENOSYS | Errno::EPERM)) => {
            eprintln!("no io_uring here: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// As a backing store does it: with a ring if there is one, without if there is none.
fn transfer(
    pool: &RingPool,
    op: Op,
    fd: BorrowedFd<'_>,
    pos: u64,
    segments: &[IoSegment<'_>],
) -> Result<usize, Errno> {
    match (pool.try_take(), op) {
        (Some(mut ring), _) => {
            let mut results = Vec::new();
            ring.submit_and_wait(
                &[Io {
                    op,
                    fd,
                    pos,
                    segments,
                }],
                &mut results,
            );
            results[0]
        }
        (None, Op::Read) => fd::read_segments(fd, pos, segments),
        (None, Op::Write) => fd::write_segments(fd, pos, segments),
    }
}

/// Sets slot `block` to the `block`th block of the arena.
fn set(pool: &RingPool, arena: &Arena, block: u32) {
    let addr = arena.segment(block as usize * BLOCK, BLOCK).addr();
    // SAFETY: tests empty the slot, or drop the pool, before the arena changes or goes away.
    unsafe { pool.set_buffer(block, Some((addr, BLOCK))) };
}

fn unset(pool: &RingPool, block: u32) {
    // SAFETY: no memory is named.
    unsafe { pool.set_buffer(block, None) };
}

#[test]
fn rings_are_made_as_they_are_needed_and_follow_the_table() {
    let Some(pool) = pool(2, 8, 64) else { return };
    let arena = Arena::new(3);
    let file = file();
    let fd = file.direct.as_fd();
    assert_eq!((pool.stats().rings, pool.stats().max_rings), (1, 2));
    set(&pool, &arena, 0);
    set(&pool, &arena, 1);
    assert_eq!(pool.stats().buffers, 2);
    let list = |block: usize| [arena.segment(block * BLOCK, MIB)];
    let mut one = pool.try_take().unwrap();
    let mut two = pool.try_take().unwrap();
    assert!(pool.try_take().is_none());
    assert_eq!((pool.stats().rings, pool.stats().busy), (2, 1));
    let mut results = Vec::new();
    for block in 0..3 {
        fill(&list(block)[0], 0, block as u64);
        for (ring, op) in [(&mut one, Op::Write), (&mut two, Op::Read)] {
            let segments = &list(block);
            ring.submit_and_wait(
                &[Io {
                    op,
                    fd,
                    pos: 0,
                    segments,
                }],
                &mut results,
            );
            assert_eq!(results, [Ok(MIB)]);
        }
        check(&list(block)[0], 0, block as u64);
    }
    drop((one, two));
    let stats = pool.stats();
    assert_eq!((stats.fixed_ios, stats.plain_ios), (4, 2));
    // A slot that is emptied is plain in both rings; one that is set is fixed in both.
    unset(&pool, 0);
    set(&pool, &arena, 2);
    let (one, two) = (pool.try_take().unwrap(), pool.try_take().unwrap());
    for mut ring in [one, two] {
        for block in [0, 2] {
            let segments = &list(block);
            let io = Io {
                op: Op::Read,
                fd,
                pos: 0,
                segments,
            };
            ring.submit_and_wait(&[io], &mut results);
            assert_eq!(results, [Ok(MIB)]);
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.fixed_ios, stats.plain_ios, stats.buffers), (6, 4, 2));
}

#[test]
fn emptying_a_slot_waits_for_rings_that_are_lent() {
    let Some(pool) = pool(2, 4, 8) else { return };
    let arena = Arena::new(1);
    set(&pool, &arena, 0);
    let lent = pool.try_take().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unset(&pool, 0);
            tell.send(()).unwrap();
        });
        assert!(
            told.recv_timeout(Duration::from_millis(100)).is_err(),
            "must wait"
        );
        // Rings taken meanwhile do not hold it up.
        let other = pool.try_take();
        drop(lent);
        told.recv_timeout(Duration::from_secs(20)).unwrap();
        drop(other);
    });
    assert_eq!(pool.stats().buffers, 0);
}

#[test]
fn refused_memory_is_plain_and_counted() {
    let Some(pool) = pool(1, 4, 8) else { return };
    let arena = Arena::new(2);
    set(&pool, &arena, 0);
    // SAFETY: a wrong address on purpose: the kernel refuses to register it.
    unsafe { pool.set_buffer(1, Some((16 as *mut u8, BLOCK))) };
    // SAFETY: beyond the table: nothing is done with it.
    unsafe { pool.set_buffer(8, Some((16 as *mut u8, BLOCK))) };
    let file = file();
    let list = [arena.segment(BLOCK, MIB)];
    fill(&list[0], 0, 3);
    assert_eq!(
        transfer(&pool, Op::Write, file.direct.as_fd(), 0, &list),
        Ok(MIB)
    );
    let stats = pool.stats();
    assert_eq!((stats.refused_buffers, stats.buffers), (1, 1));
    assert_eq!((stats.fixed_ios, stats.plain_ios), (0, 1));
    // Other memory in the slot gets another chance.
    set(&pool, &arena, 1);
    assert_eq!(
        transfer(&pool, Op::Read, file.direct.as_fd(), 0, &list),
        Ok(MIB)
    );
    check(&list[0], 0, 3);
    let stats = pool.stats();
    assert_eq!(
        (stats.refused_buffers, stats.buffers, stats.fixed_ios),
        (0, 2, 1)
    );
}

#[test]
fn a_pool_without_slots() {
    let Some(pool) = pool(0, 4, 0) else { return };
    let arena = Arena::new(1);
    set(&pool, &arena, 0);
    let file = file();
    let list = [arena.segment(0, MIB)];
    assert_eq!(
        transfer(&pool, Op::Write, file.direct.as_fd(), 0, &list),
        Ok(MIB)
    );
    let stats = pool.stats();
    assert_eq!((stats.max_rings, stats.buffers, stats.plain_ios), (1, 0, 1));
}

/// Eight threads read and write through two rings, or without one when both are lent, each in its
/// own part of the file and the memory; one more takes blocks away, gives their memory back and
/// sets them again. A thread keeps off its block while that happens, as a cache's owner of a block
/// does; the ring operations of the others go on.
#[test]
fn many_threads_few_rings_and_buffers_that_come_and_go() {
    let Some(pool) = pool(2, 8, 16) else { return };
    const THREADS: usize = 8;
    let rounds = 40 * std::env::var("FOLIOCACHE_STRESS").map_or(1, |n| n.parse().unwrap());
    let arena = Arena::new(THREADS);
    let file = file();
    let owners: Vec<_> = (0..THREADS).map(|_| std::sync::Mutex::new(())).collect();
    let running = AtomicUsize::new(THREADS);
    let turns = AtomicUsize::new(0);
    for block in 0..THREADS as u32 {
        set(&pool, &arena, block);
    }
    std::thread::scope(|scope| {
        for (me, owner) in owners.iter().enumerate() {
            let (pool, arena, file, running) = (&pool, &arena, &file, &running);
            scope.spawn(move || {
                let base = (me * BLOCK) as u64;
                for round in 0..rounds {
                    let _mine = owner.lock().unwrap();
                    let seed = (me * 1000 + round) as u64;
                    let start = me * BLOCK + (round % 8) * PAGE;
                    let list: Vec<_> = if round % 3 == 0 {
                        (0..64)
                            .map(|i| arena.segment(start + 2 * i * PAGE, PAGE))
                            .collect()
                    } else {
                        vec![arena.segment(start, 64 * PAGE)]
                    };
                    let whole = 64 * PAGE;
                    let mut pos = base;
                    for segment in &list {
                        fill(segment, pos, seed);
                        pos += segment.len() as u64;
                    }
                    let fd = file.direct.as_fd();
                    assert_eq!(transfer(pool, Op::Write, fd, base, &list), Ok(whole));
                    for segment in &list {
                        segment.zero(0, segment.len());
                    }
                    assert_eq!(transfer(pool, Op::Read, fd, base, &list), Ok(whole));
                    pos = base;
                    for segment in &list {
                        check(segment, pos, seed);
                        pos += segment.len() as u64;
                    }
                }
                running.fetch_sub(1, SeqCst);
            });
        }
        scope.spawn(|| {
            // At least once, however late this thread comes to run.
            loop {
                for (block, owner) in owners.iter().enumerate() {
                    let _held = owner.lock().unwrap();
                    unset(&pool, block as u32);
                    // SAFETY: no ring has the block any more and its owner is kept out.
                    unsafe { arena.range.give_back(block * BLOCK..(block + 1) * BLOCK) }.unwrap();
                    set(&pool, &arena, block as u32);
                    turns.fetch_add(1, SeqCst);
                }
                if running.load(SeqCst) == 0 {
                    break;
                }
            }
        });
    });
    let stats = pool.stats();
    eprintln!("{stats:?}, {} blocks came and went", turns.load(SeqCst));
    assert!(stats.fixed_ios > 0 && stats.plain_ios > 0, "{stats:?}");
    assert_eq!(
        (stats.rings, stats.buffers, stats.refused_buffers),
        (2, THREADS, 0)
    );
    assert!(turns.load(SeqCst) >= THREADS);
}

#[test]
fn a_child_forked_in_between_gets_nothing_and_harms_nothing() {
    let Some(pool) = pool(2, 4, 4) else { return };
    let arena = Arena::new(1);
    set(&pool, &arena, 0);
    let file = file();
    let list = [arena.segment(0, MIB)];
    fill(&list[0], 0, 1);
    assert_eq!(
        transfer(&pool, Op::Write, file.direct.as_fd(), 0, &list),
        Ok(MIB)
    );
    let mut lent = pool.try_take();
    let code = in_child(|| {
        let none = pool.try_take().is_none();
        // Neither waits for the ring that the parent has lent.
        unset(&pool, 0);
        drop(lent.take());
        if none { 7 } else { 1 }
    });
    assert_eq!(code, 7);
    drop(lent);
    unset(&pool, 0);
    set(&pool, &arena, 0);
    assert_eq!(
        transfer(&pool, Op::Read, file.direct.as_fd(), 0, &list),
        Ok(MIB)
    );
    check(&list[0], 0, 1);
    assert_eq!(pool.stats().fixed_ios, 2);
}
