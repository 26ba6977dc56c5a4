//! How segments become operations, and what a ring does that the kernel no longer serves.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::lock::Arc;
use super::piece::{Memory, Piece};
use super::split::{FIXED_MIN, RUN_MAX, outcome, split};
use super::{Engine, Io, Op, Ring};
use crate::Errno;
use crate::fd::{self, IoSegment, OFlags};

/// A segment at a made-up address; nothing here looks behind it.
fn at(addr: usize, len: usize, block: Option<u32>) -> IoSegment<'static> {
    // SAFETY: a wrong one, which is only cut and counted.
    unsafe { IoSegment::new(std::ptr::without_provenance_mut(addr), len, block) }
}

/// `(pos, len, slot, runs)` of each piece.
fn pieces(pos: u64, segments: &[IoSegment<'_>]) -> Vec<(u64, usize, Option<u16>, usize)> {
    pieces_of(pos, segments, RUN_MAX)
}

/// The same, of at most `longest` bytes each.
fn pieces_of(
    pos: u64,
    segments: &[IoSegment<'_>],
    longest: usize,
) -> Vec<(u64, usize, Option<u16>, usize)> {
    let mut out = Vec::new();
    split(5, pos, segments, longest, |block| block < 10, &mut out).unwrap();
    out.iter()
        .map(|piece| {
            assert_eq!((piece.io, piece.done), (5, 0));
            let (slot, runs) = match &piece.memory {
                Memory::Linear { run, slot } => {
                    assert_eq!(run.len(), piece.len);
                    (*slot, 1)
                }
                Memory::Vector { iov, first } => {
                    let sum: usize = iov.iter().map(|iov| iov.iov_len).sum();
                    assert_eq!((sum, *first), (piece.len, 0));
                    (None, iov.len())
                }
            };
            (piece.pos, piece.len, slot, runs)
        })
        .collect()
}

#[test]
fn segments_become_as_few_operations_as_memory_allows() {
    let page = 4096;
    let k64 = FIXED_MIN;
    assert_eq!(pieces(7, &[]), []);
    // Whole: fixed, or plain where there is no buffer.
    let (one, ten) = (Some(1), Some(10));
    assert_eq!(pieces(7, &[at(0x10000, 9, one)]), [(7, 9, one_slot(), 1)]);
    assert_eq!(pieces(7, &[at(0x10000, 9, ten)]), [(7, 9, None, 1)]);
    assert_eq!(pieces(7, &[at(0x10000, 9, None)]), [(7, 9, None, 1)]);
    // Joined when they meet in one block, not across blocks.
    let meet = [at(0x10000, page, one), at(0x11000, page, one)];
    assert_eq!(pieces(0, &meet), [(0, 2 * page, one_slot(), 1)]);
    let apart = [at(0x10000, page, one), at(0x11000, page, Some(2))];
    assert_eq!(pieces(0, &apart), [(0, 2 * page, None, 2)]);
    // A long run between short ones.
    let mixed = [
        at(0x10000, page, one),
        at(0x30000, page, None),
        at(0x50000, k64, one),
        at(0x90000, page, None),
    ];
    let (a, b) = (2 * page as u64, (2 * page + k64) as u64);
    let expected = [
        (0, 2 * page, None, 2),
        (a, k64, one_slot(), 1),
        (b, page, None, 1),
    ];
    assert_eq!(pieces(0, &mixed), expected);
    // A long run without a buffer stays in the vector.
    let plain = [at(0x10000, page, one), at(0x50000, k64, None)];
    assert_eq!(pieces(0, &plain), [(0, page + k64, None, 2)]);
    // More than an operation takes, in number and in bytes.
    let many: Vec<_> = (0..1500)
        .map(|i| at(i * 2 * page + page, page, None))
        .collect();
    let cut = 1024 * page;
    assert_eq!(
        pieces(0, &many),
        [(0, cut, None, 1024), (cut as u64, 476 * page, None, 476)]
    );
    let gib = 1 << 30;
    let huge = [at(0x1000, 2 * gib + page, None)];
    let (a, b) = (gib as u64, 2 * gib as u64);
    let expected = [(0, gib, None, 1), (a, gib, None, 1), (b, page, None, 1)];
    assert_eq!(pieces(0, &huge), expected);
}

#[test]
fn long_transfers_are_cut_into_pieces_of_the_length_asked() {
    let (page, mib) = (4096, 1 << 20);
    let one = Some(1);
    // One run in a buffer, one without, and scattered pages.
    let run = |block| [at(0x10000, 2 * mib + page, block)];
    let (a, b) = (mib as u64, 2 * mib as u64);
    let cut = |slot| vec![(0, mib, slot, 1), (a, mib, slot, 1), (b, page, slot, 1)];
    assert_eq!(pieces_of(0, &run(one), mib), cut(one_slot()));
    assert_eq!(pieces_of(0, &run(None), mib), cut(None));
    let many: Vec<_> = (0..257).map(|i| at(2 * i * page, page, one)).collect();
    let expected = [(0, mib, None, 256), (a, page, None, 1)];
    assert_eq!(pieces_of(0, &many, mib), expected);
    // Vectors end where they are full, inside a run if need be.
    let odd = [
        at(0, page, None),
        at(0x10_0000, 3 * page, None),
        at(0x20_0000, page, None),
    ];
    let (c, d) = (2 * page as u64, 4 * page as u64);
    let expected = [
        (0, 2 * page, None, 2),
        (c, 2 * page, None, 2),
        (d, page, None, 1),
    ];
    assert_eq!(pieces_of(0, &odd, 2 * page), expected);
}

fn one_slot() -> Option<u16> {
    Some(1)
}

#[test]
fn a_short_vector_goes_on_where_it_stopped() {
    let list = [
        at(0x1000, 10, None),
        at(0x2000, 20, None),
        at(0x3000, 30, None),
    ];
    let mut out = Vec::new();
    split(0, 0, &list, RUN_MAX, |_| false, &mut out).unwrap();
    let piece: &mut Piece<'_> = &mut out[0];
    for (step, first, base) in [
        (10, 1, 0x2000),
        (19, 1, 0x2013),
        (2, 2, 0x3001),
        (0, 2, 0x3001),
    ] {
        piece.advance(step);
        let Memory::Vector { iov, first: now } = &piece.memory else {
            unreachable!()
        };
        assert_eq!((*now, iov[*now].iov_base as usize), (first, base));
    }
    assert!(!piece.is_complete());
    piece.advance(29);
    assert!(piece.is_complete());
}

#[test]
fn what_a_caller_is_told() {
    let piece = |len, done, error| Piece {
        io: 0,
        pos: 0,
        len,
        done,
        memory: Memory::Vector {
            iov: Vec::new(),
            first: 0,
        },
        error,
        ended: true,
        retries: 0,
    };
    let eio = Some(Errno::EIO);
    let whole = || piece(10, 10, None);
    let tell = |op, list: &[Piece<'static>]| outcome(op, list.iter());
    for op in [Op::Read, Op::Write] {
        assert_eq!(tell(op, &[]), Ok(0));
        assert_eq!(tell(op, &[whole(), whole()]), Ok(20));
        assert_eq!(tell(op, &[piece(10, 0, eio), whole()]), Err(Errno::EIO));
        // Bytes behind the first gap do not count.
        assert_eq!(tell(op, &[whole(), piece(10, 4, None), whole()]), Ok(14));
    }
    // An error behind the end of the file is nobody's.
    assert_eq!(
        tell(Op::Read, &[piece(10, 3, None), piece(10, 0, eio)]),
        Ok(3)
    );
    assert_eq!(
        tell(Op::Read, &[whole(), piece(10, 4, eio)]),
        Err(Errno::EIO)
    );
    assert_eq!(tell(Op::Write, &[whole(), piece(10, 4, eio)]), Ok(14));
    assert_eq!(tell(Op::Write, &[whole(), piece(10, 0, eio)]), Ok(10));
}

fn ring(entries: u32) -> Option<Ring> {
    Ring::new(entries)
        .inspect_err(|e| eprintln!("no io_uring here: {e}"))
        .ok()
}

/// Puts something that is no ring under the ring's descriptor.
fn take_away(ring_fd: i32) {
    let null = fd::open("/dev/null".as_ref(), OFlags::RDWR, 0).unwrap();
    // SAFETY: the descriptor stays open, only what is behind it changes.
    let done = unsafe { libc::dup3(null.as_raw_fd(), ring_fd, libc::O_CLOEXEC) };
    assert_eq!(done, ring_fd);
}

#[test]
fn a_ring_that_the_kernel_refuses_fails_all_and_is_used_no_more() {
    let Some(mut ring) = ring(2) else { return };
    let file = fd::memfd(c"f", 1 << 20).unwrap();
    let mut buf = [1; 100];
    let list = [IoSegment::from_mut(&mut buf)];
    let io = Io {
        op: Op::Read,
        fd: file.as_fd(),
        pos: 0,
        segments: &list,
    };
    let mut results = Vec::new();
    ring.submit_and_wait(&[io], &mut results);
    assert_eq!(results, [Ok(100)]);
    take_away(ring.raw_fd());
    ring.submit_and_wait(&[io; 5], &mut results);
    let error = results[0].unwrap_err();
    assert_eq!(results, [Err(error); 5]);
    assert_eq!(ring.broken(), Some(error));
    ring.submit_and_wait(&[io; 3], &mut results);
    assert_eq!(results, [Err(error); 3]);
}

#[test]
fn a_ring_that_is_refused_half_way_waits_for_what_is_in_flight() {
    let Some(mut ring) = ring(2) else { return };
    let pipe = || -> (OwnedFd, OwnedFd) { rustix::pipe::pipe().unwrap() };
    let ((first, first_in), (second, second_in)) = (pipe(), pipe());
    let mut bytes = [[0_u8; 1]; 3];
    let [a, b, c] = &mut bytes;
    let lists = [a, b, c].map(|buf| [IoSegment::from_mut(buf)]);
    let fds = [first.as_fd(), second.as_fd(), second.as_fd()];
    let ios: Vec<_> = fds
        .iter()
        .zip(&lists)
        .map(|(fd, list)| Io {
            op: Op::Read,
            fd: *fd,
            pos: 0,
            segments: list,
        })
        .collect();
    let mut results = Vec::new();
    let ring_fd = ring.raw_fd();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first two reads are in flight by now, and the ring's owner sleeps.
            std::thread::sleep(Duration::from_millis(200));
            take_away(ring_fd);
            // It wakes up, wants to submit the third and cannot; the second is still in flight.
            rustix::io::write(&first_in, b"x").unwrap();
            std::thread::sleep(Duration::from_millis(300));
            let _ = rustix::io::write(&second_in, b"y");
        });
        ring.submit_and_wait(&ios, &mut results);
    });
    assert_eq!(results[0], Ok(1));
    assert!(
        matches!(results[1], Ok(1) | Err(Errno::ECANCELED)),
        "{results:?}"
    );
    assert!(results[2].is_err(), "{results:?}");
    assert!(ring.broken().is_some());
}

#[test]
fn an_engine_whose_ring_is_refused_fails_what_it_has_and_what_comes() {
    if ring(2).is_none() {
        return;
    }
    let engine = Engine::new(0).unwrap();
    let file = Arc::new(fd::memfd(c"f", 1 << 20).unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    let submit = || {
        let segment = [IoSegment::from_mut(Box::leak(Box::new([0_u8; 100])))];
        let tell = tell.clone();
        let done = Box::new(move |result| tell.send(result).unwrap());
        engine.submit(Op::Read, Arc::clone(&file), 0, &segment, done);
        told.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    assert_eq!(submit(), Ok(100));
    // The worker may sleep in the kernel with the old descriptor: a submission gets it out.
    take_away(engine.ring_fd());
    let first = submit();
    let error = submit().unwrap_err();
    assert!(
        first == Ok(100) || first == Err(error),
        "{first:?}, {error}"
    );
    assert_eq!(submit(), Err(error));
    assert_eq!(engine.failed(), Some(error));
    assert_eq!(engine.stats().pending, 0);
}
