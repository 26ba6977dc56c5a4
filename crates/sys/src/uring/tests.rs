//! How segments become operations, and the behaviour of an engine whose ring the kernel no longer
//! serves.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use super::piece::{Direction, Piece, outcome, split};
use crate::Errno;
use crate::fd::{self, IoSegment, OFlags};
use crate::lock::Arc;

/// A segment at a made-up address; nothing here looks behind it.
fn at(addr: usize, len: usize) -> IoSegment<'static> {
    // SAFETY: a wrong one, which is only cut and counted.
    unsafe { IoSegment::new(std::ptr::without_provenance_mut(addr), len) }
}

/// Longer than anything here, but for one.
const RUN_MAX: usize = 1 << 30;

/// `(pos, len, runs)` of each piece.
type Cut = (u64, usize, usize);

/// The pieces of at most `longest` bytes each.
fn pieces_of(pos: u64, segments: &[IoSegment<'_>], longest: usize) -> Vec<Cut> {
    let pieces = split(Direction::Read, pos, segments, longest).unwrap();
    let cut = |piece: &Piece| {
        let runs = piece.memory.runs();
        let sum: usize = runs.iter().map(|run| run.iov_len).sum();
        assert_eq!((sum, piece.done), (piece.memory.left(), 0));
        (piece.pos, sum, runs.len())
    };
    pieces.iter().map(cut).collect()
}

#[test]
fn segments_become_as_few_operations_as_memory_allows() {
    let page = 4096;
    let pieces = |pos, segments: &[IoSegment<'_>]| pieces_of(pos, segments, RUN_MAX);
    assert_eq!(pieces(7, &[]), []);
    assert_eq!(pieces(7, &[at(0x10000, 9)]), [(7, 9, 1)]);
    // Joined when they meet.
    let meet = [at(0x10000, page), at(0x11000, page)];
    assert_eq!(pieces(0, &meet), [(0, 2 * page, 1)]);
    let apart = [at(0x10000, page), at(0x12000, page)];
    assert_eq!(pieces(0, &apart), [(0, 2 * page, 2)]);
    // A long run between short ones stays in the vector.
    let mixed = [
        at(0x10000, page),
        at(0x30000, page),
        at(0x50000, 16 * page),
        at(0x90000, page),
    ];
    assert_eq!(pieces(0, &mixed), [(0, 19 * page, 4)]);
    // More than an operation takes, in number and in bytes.
    let many: Vec<_> = (0..1500).map(|i| at(i * 2 * page + page, page)).collect();
    let cut = 1024 * page;
    assert_eq!(
        pieces(0, &many),
        [(0, cut, 1024), (cut as u64, 476 * page, 476)]
    );
    let gib = 1 << 30;
    let huge = [at(0x1000, 2 * gib + page)];
    let (a, b) = (gib as u64, 2 * gib as u64);
    let expected = [(0, gib, 1), (a, gib, 1), (b, page, 1)];
    assert_eq!(pieces(0, &huge), expected);
}

#[test]
fn long_transfers_are_cut_into_pieces_of_the_length_asked() {
    let (page, mib) = (4096, 1 << 20);
    let run = [at(0x10000, 2 * mib + page)];
    let (a, b) = (mib as u64, 2 * mib as u64);
    let cut = [(0, mib, 1), (a, mib, 1), (b, page, 1)];
    assert_eq!(pieces_of(0, &run, mib), cut);
    let many: Vec<_> = (0..257).map(|i| at(2 * i * page, page)).collect();
    let expected = [(0, mib, 256), (a, page, 1)];
    assert_eq!(pieces_of(0, &many, mib), expected);
    // Vectors end where they are full, inside a run if need be.
    let odd = [at(0, page), at(0x10_0000, 3 * page), at(0x20_0000, page)];
    let (c, d) = (2 * page as u64, 4 * page as u64);
    let expected = [(0, 2 * page, 2), (c, 2 * page, 1), (d, page, 1)];
    assert_eq!(pieces_of(0, &odd, 2 * page), expected);
}

#[test]
fn a_range_that_does_not_fit_into_a_file_is_refused() {
    for pos in [u64::MAX, i64::MAX as u64] {
        let refused = split(Direction::Read, pos, &[at(0x1000, 10)], RUN_MAX).err();
        assert_eq!(refused, Some(Errno::EINVAL));
    }
}

#[test]
fn a_short_vector_goes_on_where_it_stopped() {
    let list = [at(0x1000, 10), at(0x2000, 20), at(0x3000, 30)];
    let mut pieces = split(Direction::Read, 0, &list, RUN_MAX).unwrap();
    let memory = &mut pieces[0].memory;
    for (step, left, base) in [
        (10, 2, 0x2000),
        (19, 2, 0x2013),
        (2, 1, 0x3001),
        (0, 1, 0x3001),
    ] {
        memory.advance(step);
        let runs = memory.runs();
        assert_eq!((runs.len(), runs[0].iov_base as usize), (left, base));
    }
    memory.advance(29);
    assert_eq!(memory.left(), 0);
}

#[test]
fn first_gap_or_error_sets_the_result() {
    let piece = |len, done, error| {
        let mut piece = split(Direction::Read, 0, &[at(0x1000, len)], RUN_MAX)
            .unwrap()
            .remove(0);
        piece.memory.advance(done);
        (piece.done, piece.error) = (done, error);
        piece
    };
    let eio = Some(Errno::EIO);
    let whole = || piece(10, 10, None);
    assert_eq!(outcome(&[]), Ok(0));
    assert_eq!(outcome(&[whole(), whole()]), Ok(20));
    assert_eq!(outcome(&[piece(10, 0, eio), whole()]), Err(Errno::EIO));
    // Bytes behind the first gap do not count, and an error behind the end of the file is ignored.
    assert_eq!(outcome(&[whole(), piece(10, 4, None), whole()]), Ok(14));
    assert_eq!(outcome(&[piece(10, 3, None), piece(10, 0, eio)]), Ok(3));
    assert_eq!(outcome(&[whole(), piece(10, 4, eio)]), Err(Errno::EIO));
}

/// Puts something that is no ring under the ring's descriptor.
fn take_away(ring_fd: i32) {
    let null = fd::open("/dev/null".as_ref(), OFlags::RDWR, 0).unwrap();
    // SAFETY: the descriptor stays open; only the file behind it changes.
    let done = unsafe { libc::dup3(null.as_raw_fd(), ring_fd, libc::O_CLOEXEC) };
    assert_eq!(done, ring_fd);
}

#[test]
fn an_engine_whose_ring_is_refused_fails_present_and_later_requests() {
    let Ok(engine) = Engine::new() else {
        eprintln!("no io_uring here");
        return;
    };
    let file = Arc::new(memfd(1 << 20));
    let (tell, told) = std::sync::mpsc::channel();
    let submit = || {
        let segment = [IoSegment::from_mut(Box::leak(Box::new([0_u8; 100])))];
        let tell = tell.clone();
        let done = Box::new(move |result| tell.send(result).unwrap());
        engine.submit(Arc::clone(&file), 0, &segment, done);
        engine.wake();
        told.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    assert_eq!(submit(), Ok(100));
    // The worker may sleep in the kernel with the old descriptor: a submission gets it out.
    take_away(engine.shared.ring_fd.load(Ordering::Relaxed));
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

#[test]
fn an_engine_whose_worker_panics_fails_present_and_later_requests() {
    let Ok(engine) = Engine::new() else {
        eprintln!("no io_uring here");
        return;
    };
    let file = Arc::new(memfd(1 << 20));
    let submit = || {
        let segment = [IoSegment::from_mut(Box::leak(Box::new([0_u8; 100])))];
        let (tell, told) = std::sync::mpsc::channel();
        let done = Box::new(move |result| tell.send(result).unwrap());
        engine.submit(Arc::clone(&file), 0, &segment, done);
        engine.wake();
        told.recv_timeout(Duration::from_secs(60))
            .expect("done is called")
    };
    assert_eq!(submit(), Ok(100));
    engine.shared.inject_panic.store(true, Ordering::Relaxed);
    assert_eq!(submit(), Err(Errno::EIO));
    assert_eq!(engine.failed(), Some(Errno::EIO));
    assert_eq!(submit(), Err(Errno::EIO));
    let stats = engine.stats();
    assert_eq!((stats.panics, stats.pending), (1, 0));
}

/// A file in memory.
fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("f", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    fd::ftruncate(fd.as_fd(), size).unwrap();
    fd
}
