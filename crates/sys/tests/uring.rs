//! One ring on real files: all ways of moving bytes, and all ways of failing.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use foliocache_sys::Errno;
use foliocache_sys::fd::{self, IoSegment, OFlags};
use foliocache_sys::uring::{Io, Op, Ring};

mod support;
use support::*;

/// A ring, or `None` (and a note) where the kernel has none.
fn ring(entries: u32) -> Option<Ring> {
    match Ring::new(entries) {
        Ok(ring) => Some(ring),
        Err(e @ (Errno::ENOSYS | Errno::EPERM)) => {
            eprintln!("no io_uring here: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn one(
    ring: &mut Ring,
    op: Op,
    fd: BorrowedFd<'_>,
    pos: u64,
    list: &[IoSegment<'_>],
) -> Result<usize, Errno> {
    let mut results = vec![Ok(99)];
    ring.submit_and_wait(
        &[Io {
            op,
            fd,
            pos,
            segments: list,
        }],
        &mut results,
    );
    assert_eq!(results.len(), 1);
    results[0]
}

/// Writes with one list, reads back with another, compares; returns the operations it took.
fn round_trip(
    ring: &mut Ring,
    fd: BorrowedFd<'_>,
    out: &[IoSegment<'_>],
    back: &[IoSegment<'_>],
    seed: u64,
) -> (u64, u64) {
    let total: usize = out.iter().map(IoSegment::len).sum();
    let mut pos = 0;
    for segment in out {
        fill(segment, pos, seed);
        pos += segment.len() as u64;
    }
    let before = ring.operations();
    assert_eq!(one(ring, Op::Write, fd, 0, out), Ok(total));
    for segment in back {
        segment.zero(0, segment.len());
    }
    assert_eq!(one(ring, Op::Read, fd, 0, back), Ok(total));
    let after = ring.operations();
    pos = 0;
    for segment in back {
        check(segment, pos, seed);
        pos += segment.len() as u64;
    }
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn fixed_plain_and_vectored_round_trips() {
    let Some(mut ring) = ring(8) else { return };
    let arena = Arena::new(8);
    arena.register(&mut ring, 4);
    assert!(ring.has_buffer(0) && !ring.has_buffer(4) && !ring.has_buffer(1000));
    let file = file();
    for fd in [file.direct.as_fd(), file.buffered.as_fd()] {
        // One run in one registered buffer.
        let a = [arena.segment(PAGE, MIB)];
        let b = [arena.segment(BLOCK + 8 * PAGE, MIB)];
        assert_eq!(round_trip(&mut ring, fd, &a, &b, 1), (2, 0));
        // The same without buffers: one plain operation each.
        let (a, b) = ([a[0].plain()], [arena.segment(5 * BLOCK, MIB)]);
        assert_eq!(round_trip(&mut ring, fd, &a, &b, 2), (0, 2));
        // Segments that follow each other are one run; a single page is fixed when it is all.
        let pages: Vec<_> = (0..64).map(|i| arena.segment(i * PAGE, PAGE)).collect();
        assert_eq!(round_trip(&mut ring, fd, &pages, &pages, 3), (2, 0));
        assert_eq!(
            round_trip(&mut ring, fd, &pages[3..4], &pages[9..10], 4),
            (2, 0)
        );
        // Scattered pages are one vectored operation, though each has a buffer.
        let odd: Vec<_> = (0..500)
            .map(|i| arena.segment(2 * i * PAGE, PAGE))
            .collect();
        let back: Vec<_> = odd.iter().rev().copied().collect();
        assert_eq!(round_trip(&mut ring, fd, &odd, &back, 5), (0, 2));
        // Long runs in several buffers, with scattered pages in between, more than the ring holds.
        let mut mixed = Vec::new();
        for i in 0..16 {
            mixed.push(arena.segment((i % 4) * BLOCK + (i / 4) * 128 * PAGE, 32 * PAGE));
            mixed.push(arena.segment((4 + i % 4) * BLOCK + 2 * i * PAGE, PAGE));
        }
        assert_eq!(round_trip(&mut ring, fd, &mixed, &mixed, 6), (32, 32));
    }
}

#[test]
fn more_segments_than_one_operation_takes() {
    let Some(mut ring) = ring(2) else { return };
    let arena = Arena::new(16);
    let file = file();
    let list: Vec<_> = (0..3000)
        .map(|i| arena.segment((2 * i) * PAGE, PAGE))
        .collect();
    assert_eq!(
        round_trip(&mut ring, file.direct.as_fd(), &list, &list, 7),
        (0, 6)
    );
}

#[test]
fn empty_batches_and_empty_segments() {
    let Some(mut ring) = ring(1) else { return };
    let arena = Arena::new(1);
    let file = file();
    let mut results = vec![Ok(1)];
    ring.submit_and_wait(&[], &mut results);
    assert!(results.is_empty());
    assert_eq!(
        one(&mut ring, Op::Write, file.direct.as_fd(), 0, &[]),
        Ok(0)
    );
    let none = arena.segment(0, PAGE).sub(7, 0);
    assert_eq!(
        one(&mut ring, Op::Read, file.direct.as_fd(), 0, &[none, none]),
        Ok(0)
    );
    let page = arena.segment(0, PAGE);
    assert_eq!(
        one(
            &mut ring,
            Op::Write,
            file.direct.as_fd(),
            0,
            &[none, page, none]
        ),
        Ok(PAGE)
    );
}

#[test]
fn many_files_at_once_beyond_the_depth() {
    let Some(mut ring) = ring(4) else { return };
    let arena = Arena::new(4);
    arena.register(&mut ring, 2);
    let files: Vec<_> = (0..5).map(|_| file()).collect();
    let lists: Vec<[IoSegment<'_>; 1]> = (0..200)
        .map(|i| [arena.segment(i * 5 * PAGE, 4 * PAGE)])
        .collect();
    let mut results = Vec::new();
    for op in [Op::Write, Op::Read] {
        let ios: Vec<_> = lists
            .iter()
            .enumerate()
            .map(|(i, segments)| {
                let fd = files[i % 5].direct.as_fd();
                Io {
                    op,
                    fd,
                    pos: (i * 4 * PAGE) as u64,
                    segments,
                }
            })
            .collect();
        for (i, io) in ios.iter().enumerate() {
            match op {
                Op::Write => fill(&io.segments[0], io.pos, i as u64 % 5),
                Op::Read => io.segments[0].zero(0, 4 * PAGE),
            }
        }
        ring.submit_and_wait(&ios, &mut results);
        assert_eq!(results, [Ok(4 * PAGE); 200]);
        for (i, io) in ios.iter().enumerate() {
            check(&io.segments[0], io.pos, i as u64 % 5);
        }
    }
}

#[test]
fn reads_are_short_at_the_end_of_the_file_only() {
    let Some(mut ring) = ring(8) else { return };
    let arena = Arena::new(2);
    arena.register(&mut ring, 1);
    let file = file();
    let size = 300_000;
    let bytes: Vec<u8> = (0..size).map(|pos| pattern(pos, 9)).collect();
    fd::pwrite(file.buffered.as_fd(), 0, &bytes).unwrap();
    fd::fdatasync(file.buffered.as_fd()).unwrap();
    let linear = [arena.segment(0, MIB)];
    let plain = [linear[0].plain()];
    let scattered: Vec<_> = (0..128)
        .map(|i| arena.segment(2 * i * PAGE, PAGE))
        .collect();
    // Several operations: the end is in one of them, and those behind it read nothing.
    let split: Vec<_> = (0..8)
        .map(|i| arena.segment(2 * i * 32 * PAGE, 32 * PAGE))
        .collect();
    for fd in [file.direct.as_fd(), file.buffered.as_fd()] {
        for list in [&linear[..], &plain, &scattered, &split] {
            for (pos, expected) in [
                (0, size),
                (65536, size - 65536),
                (299_008, 992),
                (303_104, 0),
            ] {
                for segment in list {
                    segment.zero(0, segment.len());
                }
                assert_eq!(
                    one(&mut ring, Op::Read, fd, pos, list),
                    Ok(expected as usize)
                );
                let (mut at, end) = (pos, pos + expected);
                for segment in list {
                    let len = (end - at).min(segment.len() as u64);
                    check(&segment.sub(0, len as usize), at, 9);
                    at += len;
                }
            }
        }
    }
    // A last write of odd length.
    fill(&plain[0], 0, 10);
    let odd = [plain[0].sub(0, 12_345)];
    assert_eq!(
        one(&mut ring, Op::Write, file.buffered.as_fd(), 0, &odd),
        Ok(12_345)
    );
}

#[test]
fn errors_belong_to_the_io_that_had_them() {
    let Some(mut ring) = ring(4) else { return };
    let arena = Arena::new(1);
    let file = file();
    fd::pwrite(file.buffered.as_fd(), 0, &[5; 4 * PAGE]).unwrap();
    let read_only = fd::reopen(file.buffered.as_fd(), OFlags::RDONLY).unwrap();
    let write_only = fd::reopen(file.buffered.as_fd(), OFlags::WRONLY).unwrap();
    let good = [arena.segment(0, PAGE)];
    // SAFETY: a wrong one on purpose: only the kernel looks at it, and refuses.
    let bad = unsafe { IoSegment::new(16 as *mut u8, PAGE, None) };
    let bad_alone = [bad];
    let bad_later = [arena.segment(2 * PAGE, PAGE), bad];
    let f = file.buffered.as_fd();
    let (read, write) = (Op::Read, Op::Write);
    let io = |op, fd, pos, segments| Io {
        op,
        fd,
        pos,
        segments,
    };
    let ios = [
        io(read, f, 0, &good[..]),
        io(read, write_only.as_fd(), 0, &good),
        io(write, read_only.as_fd(), 0, &good),
        io(read, f, 0, &bad_alone),
        io(write, f, 0, &bad_alone),
        io(read, f, u64::MAX, &good),
        io(read, f, i64::MAX as u64, &good),
        io(write, f, 0, &bad_later),
        io(read, f, 0, &good),
    ];
    let mut results = Vec::new();
    ring.submit_and_wait(&ios, &mut results);
    let (ebadf, efault, einval) = (Err(Errno::EBADF), Err(Errno::EFAULT), Err(Errno::EINVAL));
    let ok = Ok(PAGE);
    assert_eq!(
        results,
        [ok, ebadf, ebadf, efault, efault, einval, einval, ok, ok]
    );
    assert_eq!(
        one(&mut ring, read, f, 0, &bad_later),
        efault,
        "an error wins over bytes"
    );
    assert_eq!(ring.broken(), None);
    // A registered slot whose buffer does not hold the memory.
    ring.register_sparse_buffers(2).unwrap();
    // SAFETY: the ring is dropped before the arena.
    unsafe { ring.update_buffer(0, Some((good[0].addr(), PAGE))) }.unwrap();
    let outside = [arena.segment(PAGE, PAGE)];
    assert_eq!(one(&mut ring, read, f, 0, &outside), efault);
    assert_eq!(one(&mut ring, read, f, 0, &good), ok);
}

#[test]
fn the_table_of_buffers() {
    let Some(mut ring) = ring(4) else { return };
    let arena = Arena::new(2);
    let buffer = Some((arena.segment(0, BLOCK).addr(), BLOCK));
    // SAFETY: the ring is dropped before the arena, for this and all calls below.
    let update = |ring: &mut Ring, slot, buffer| unsafe { ring.update_buffer(slot, buffer) };
    assert_eq!(
        update(&mut ring, 0, buffer),
        Err(Errno::EINVAL),
        "no table yet"
    );
    assert_eq!(ring.register_sparse_buffers(0), Err(Errno::EINVAL));
    assert_eq!(ring.register_sparse_buffers(1 << 15), Err(Errno::EINVAL));
    ring.register_sparse_buffers(1 << 14).unwrap();
    assert_eq!(ring.register_sparse_buffers(4), Err(Errno::EBUSY));
    assert_eq!(update(&mut ring, 1 << 14, buffer), Err(Errno::EINVAL));
    assert_eq!(update(&mut ring, 3, None), Ok(()));
    let last = (1 << 14) - 1;
    update(&mut ring, last, buffer).unwrap();
    update(&mut ring, 0, buffer).unwrap();
    let wrong = Some((16 as *mut u8, BLOCK));
    assert_eq!(update(&mut ring, 1, wrong), Err(Errno::EFAULT));
    assert!(ring.has_buffer(0) && ring.has_buffer(last) && !ring.has_buffer(1));

    // Emptied, the same segments go as plain memory.
    let file = file();
    let list = [arena.segment(0, MIB)];
    assert_eq!(
        round_trip(&mut ring, file.direct.as_fd(), &list, &list, 1),
        (2, 0)
    );
    update(&mut ring, 0, None).unwrap();
    assert_eq!(
        round_trip(&mut ring, file.direct.as_fd(), &list, &list, 2),
        (0, 2)
    );
    // Put in again after the memory went away and came back: the device sees the new pages.
    // SAFETY: nobody relies on the bytes, and no ring has the memory.
    unsafe { arena.range.give_back(0..BLOCK) }.unwrap();
    update(&mut ring, 0, buffer).unwrap();
    assert_eq!(
        round_trip(&mut ring, file.direct.as_fd(), &list, &list, 3),
        (2, 0)
    );
}

#[test]
fn a_forked_child_is_refused_and_harms_nothing() {
    let Some(mut ring) = ring(8) else { return };
    let arena = Arena::new(1);
    arena.register(&mut ring, 1);
    let file = file();
    let list = [arena.segment(0, MIB)];
    round_trip(&mut ring, file.direct.as_fd(), &list, &list, 1);
    let mut results = Vec::with_capacity(4);
    let mut slot = Some(ring);
    let code = in_child(|| {
        let mut ring = slot.take().unwrap();
        let io = Io {
            op: Op::Read,
            fd: file.direct.as_fd(),
            pos: 0,
            segments: &list,
        };
        ring.submit_and_wait(&[io], &mut results);
        let refused = results == [Err(Errno::ECHILD)]
            && ring.register_sparse_buffers(1) == Err(Errno::ECHILD);
        drop(ring);
        if refused { 7 } else { 1 }
    });
    assert_eq!(code, 7);
    let mut ring = slot.unwrap();
    round_trip(&mut ring, file.direct.as_fd(), &list, &list, 2);
}

#[test]
fn a_ring_goes_from_thread_to_thread() {
    let Some(ring) = ring(4) else { return };
    let arena = Arena::new(2);
    let file = file();
    let mut ring = Some(ring);
    for seed in 0..20 {
        let list = [arena.segment(0, 64 * PAGE), arena.segment(BLOCK, 64 * PAGE)];
        let mut own = ring.take().unwrap();
        ring = std::thread::scope(|scope| {
            let run = || {
                round_trip(&mut own, file.direct.as_fd(), &list, &list, seed);
                own
            };
            Some(scope.spawn(run).join().unwrap())
        });
    }
}
