//! Background I/O on real files and pipes: every `done` once, nothing after it.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use foliocache_sys::Errno;
use foliocache_sys::fd::{self, IoSegment, OFlags};
use foliocache_sys::uring::Engine;

use crate::support::*;

/// How long something that must happen may take on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// An engine, or `None` (and a note) where the kernel has no rings.
fn engine() -> Option<Engine> {
    match Engine::new() {
        Ok(engine) => Some(engine),
        Err(e @ (Errno::ENOSYS | Errno::EPERM)) => {
            eprintln!("no io_uring here: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Memory that is never given back, so that an I/O may outlive the test.
fn forever(blocks: usize) -> &'static Arena {
    Box::leak(Box::new(Arena::new(blocks)))
}

/// A file of `len` bytes of the pattern.
fn filled(len: usize, seed: u64) -> (File, Arc<OwnedFd>) {
    let file = file();
    let bytes: Vec<u8> = (0..len as u64).map(|pos| pattern(pos, seed)).collect();
    fd::pwrite(file.buffered.as_fd(), 0, &bytes).unwrap();
    fd::fsync(file.buffered.as_fd()).unwrap();
    let direct = Arc::new(file.direct.try_clone().unwrap());
    (file, direct)
}

/// Submits and waits for the end.
fn wait_for(
    engine: &Engine,
    fd: &Arc<OwnedFd>,
    pos: u64,
    list: &[IoSegment<'static>],
) -> Result<usize, Errno> {
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    engine.submit(Arc::clone(fd), pos, list, done);
    engine.wake();
    told.recv_timeout(LONG).unwrap()
}

fn pipe() -> (Arc<OwnedFd>, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (Arc::new(read), write)
}

#[test]
fn many_reads_of_several_threads_end_once_each() {
    let Some(engine) = engine() else { return };
    let arena = forever(8);
    let (_file, fd) = filled(8 * MIB, 1);
    let (tell, told) = mpsc::channel();
    let threads = 4_usize;
    let each = 100_usize;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (engine, fd, tell) = (&engine, &fd, tell.clone());
            scope.spawn(move || {
                let mut pending = Vec::new();
                for i in 0..each {
                    // Each thread has two blocks of memory and goes over all of the file.
                    let len = [PAGE, 16 * PAGE, 64 * PAGE][i % 3];
                    let at = (2 * thread) * BLOCK + (i % 16) * 64 * PAGE;
                    let pos = ((i * 37 + thread * 11) % 128) * 16 * PAGE;
                    let list = [arena.segment(at, len)];
                    let tell = tell.clone();
                    let (ended, wait) = mpsc::channel();
                    let done = Box::new(move |result| {
                        tell.send((thread, i, result)).unwrap();
                        ended.send(()).unwrap();
                    });
                    engine.submit(Arc::clone(fd), pos as u64, &list, done);
                    engine.wake();
                    pending.push((wait, list[0].sub(0, len.min(8 * MIB - pos)), pos));
                    // The memory is used again after sixteen.
                    if i % 16 == 15 || i == each - 1 {
                        for (wait, segment, pos) in pending.drain(..) {
                            wait.recv_timeout(LONG).unwrap();
                            check(&segment, pos as u64, 1);
                        }
                    }
                }
            });
        }
    });
    drop(tell);
    let mut ended = HashSet::new();
    for _ in 0..threads * each {
        let (thread, i, result) = told.recv_timeout(LONG).unwrap();
        assert!(result.is_ok(), "{result:?}");
        assert!(ended.insert((thread, i)), "twice: {thread} {i}");
    }
    assert!(told.recv().is_err(), "no caller is left");
    let stats = engine.stats();
    assert_eq!((stats.ios, stats.pending), ((threads * each) as u64, 0));
    assert!(stats.operations >= stats.ios, "{stats:?}");
    // Longer than a piece and scattered.
    let mut list = vec![arena.segment(0, BLOCK), arena.segment(BLOCK, BLOCK)];
    list.extend((0..300).map(|i| arena.segment(2 * BLOCK + 2 * i * PAGE, PAGE)));
    let len = 2 * BLOCK + 300 * PAGE;
    assert_eq!(wait_for(&engine, &fd, PAGE as u64, &list), Ok(len));
    let mut pos = PAGE as u64;
    for segment in &list {
        check(segment, pos, 1);
        pos += segment.len() as u64;
    }
}

/// The most of `many` reads of `len` bytes that were in flight, on an engine that got them all at once.
fn deepest(engine: &Engine, len: usize, many: usize) -> usize {
    let arena = forever(64);
    let (_file, fd) = filled(8 * MIB, 4);
    let (tell, told) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let entered = tell.clone();
    let holds = Box::new(move |result| {
        entered.send(result).unwrap();
        released.recv_timeout(LONG).unwrap();
    });
    engine.submit(Arc::clone(&fd), 0, &[arena.segment(0, PAGE)], holds);
    engine.wake();
    assert_eq!(told.recv_timeout(LONG).unwrap(), Ok(PAGE));
    for i in 1..=many {
        let (tell, list) = (tell.clone(), [arena.segment(i * len, len)]);
        let done = Box::new(move |result| tell.send(result).unwrap());
        engine.submit(Arc::clone(&fd), (i % 8 * len) as u64, &list, done);
        engine.wake();
    }
    release.send(()).unwrap();
    for _ in 0..many {
        assert_eq!(told.recv_timeout(LONG).unwrap(), Ok(len));
    }
    engine.stats().deepest
}

#[test]
fn short_reads_are_all_in_flight_where_long_ones_wait() {
    let Some(engine_of_short) = engine() else {
        return;
    };
    assert_eq!(deepest(&engine_of_short, PAGE, 64), 64);
    let Some(engine_of_long) = engine() else {
        return;
    };
    let deepest = deepest(&engine_of_long, MIB, 40);
    assert!((1..40).contains(&deepest), "{deepest}");
}

#[test]
fn more_than_may_be_in_flight_waits_its_turn() {
    let Some(engine) = engine() else { return };
    let arena = forever(64);
    let (_file, fd) = filled(32 * MIB, 3);
    let left = Arc::new((Mutex::new(200_usize), Condvar::new()));
    for i in 0..200 {
        let pos = (i % 32) * MIB;
        let list = [arena.segment((i % 128) * MIB, MIB)];
        let left = Arc::clone(&left);
        let done = Box::new(move |result| {
            assert_eq!(result, Ok(MIB));
            *left.0.lock().unwrap() -= 1;
            left.1.notify_all();
        });
        engine.submit(Arc::clone(&fd), pos as u64, &list, done);
        engine.wake();
    }
    let guard = left.0.lock().unwrap();
    let waited = left
        .1
        .wait_timeout_while(guard, LONG, |left| *left > 0)
        .unwrap();
    assert_eq!(*waited.0, 0);
    let stats = engine.stats();
    assert!((1..=64).contains(&stats.depth), "{stats:?}");
    assert!((1..=64).contains(&stats.deepest), "{stats:?}");
    assert_eq!((stats.in_flight, stats.pending), (0, 0));
    assert_eq!(stats.panics, 0);
    for i in 72..200 {
        check(
            &arena.segment((i % 128) * MIB, PAGE),
            ((i % 32) * MIB) as u64,
            3,
        );
    }
}

#[test]
fn reads_are_short_at_end_of_file_only() {
    let Some(engine) = engine() else { return };
    let arena = forever(4);
    let (_file, fd) = filled(MIB + 1000, 4);
    let run = |len| [arena.segment(0, len)];
    let read = |pos, len| wait_for(&engine, &fd, pos, &run(len));
    assert_eq!(read(0, 4 * MIB), Ok(MIB + 1000));
    check(&arena.segment(0, MIB + 1000), 0, 4);
    assert_eq!(read(MIB as u64, PAGE), Ok(1000));
    assert_eq!(read(2 * MIB as u64, MIB), Ok(0));
    let scattered: Vec<_> = (0..400)
        .map(|i| arena.segment(2 * i * PAGE, PAGE))
        .collect();
    let read = wait_for(&engine, &fd, 0, &scattered);
    assert_eq!(read, Ok(MIB + 1000));
    // A pipe returns its bytes and then more, until its other end is closed.
    let (read, write) = pipe();
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    engine.submit(read, 0, &[arena.segment(0, 10)], done);
    engine.wake();
    for part in [&b"abc"[..], b"de"] {
        rustix::io::write(&write, part).unwrap();
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    }
    drop(write);
    assert_eq!(told.recv_timeout(LONG).unwrap(), Ok(5));
    let mut bytes = [0; 5];
    arena.segment(0, 5).copy_to(0, &mut bytes);
    assert_eq!(&bytes, b"abcde");
}

#[test]
fn errors_reach_done() {
    let Some(engine) = engine() else { return };
    let arena = forever(1);
    let page = [arena.segment(0, PAGE)];
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = |flags| Arc::new(fd::open(&dir.path().join("f"), flags, 0o600).unwrap());
    let write_only = open(OFlags::WRONLY | OFlags::CREATE);
    let read_only = open(OFlags::RDONLY);
    let directory = Arc::new(fd::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap());
    let go = |fd, pos, list: &[IoSegment<'static>]| wait_for(&engine, fd, pos, list);
    assert_eq!(go(&write_only, 0, &page), Err(Errno::EBADF));
    assert_eq!(go(&directory, 0, &page), Err(Errno::EISDIR));
    assert_eq!(go(&read_only, u64::MAX - 9, &page), Err(Errno::EINVAL));
    assert_eq!(go(&read_only, 0, &[]), Ok(0));
    assert_eq!(go(&read_only, 7, &[page[0].sub(0, 0)]), Ok(0));
    // It goes on working.
    assert_eq!(fd::write_segments(write_only.as_fd(), 0, &page), Ok(PAGE));
    assert_eq!(go(&read_only, 0, &page), Ok(PAGE));
    assert_eq!(engine.failed(), None);
}

#[test]
fn dropping_the_engine_waits_for_operations_in_flight() {
    let Some(engine) = engine() else { return };
    let arena = forever(1);
    let (read, write) = pipe();
    let ended = Arc::new(AtomicBool::new(false));
    let dropped = Arc::new(AtomicBool::new(false));
    let done = {
        let (ended, dropped) = (Arc::clone(&ended), Arc::clone(&dropped));
        Box::new(move |result| {
            assert_eq!(result, Ok(1));
            assert!(!dropped.load(Ordering::SeqCst), "the engine went before");
            ended.store(true, Ordering::SeqCst);
        })
    };
    engine.submit(read, 0, &[arena.segment(0, 1)], done);
    engine.wake();
    let dropper = std::thread::spawn(move || {
        drop(engine);
        dropped.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!dropper.is_finished());
    rustix::io::write(&write, b"x").unwrap();
    dropper.join().unwrap();
    assert!(ended.load(Ordering::SeqCst));
}

#[test]
fn dropping_the_engine_waits_for_queued_requests() {
    let Some(engine) = engine() else { return };
    let arena = forever(32);
    let (_file, fd) = filled(4 * MIB, 5);
    let ended = Arc::new(AtomicUsize::new(0));
    for i in 0..64 {
        let ended = Arc::clone(&ended);
        let list = [arena.segment(i * MIB, MIB)];
        let done = Box::new(move |result| {
            assert_eq!(result, Ok(MIB));
            ended.fetch_add(1, Ordering::SeqCst);
        });
        engine.submit(Arc::clone(&fd), 0, &list, done);
        engine.wake();
    }
    drop(engine);
    assert_eq!(ended.load(Ordering::SeqCst), 64);
}

#[test]
fn done_may_submit_drop_the_engine_and_panic() {
    let Some(engine) = engine() else { return };
    let arena = forever(1);
    let (_file, fd) = filled(PAGE, 6);
    let page = arena.segment(0, PAGE);
    // A panic is counted, and has no other effect.
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |_| {
        tell.send(()).unwrap();
        panic!("expected by the test");
    });
    engine.submit(Arc::clone(&fd), 0, &[page], done);
    engine.wake();
    told.recv_timeout(LONG).unwrap();
    assert_eq!(wait_for(&engine, &fd, 0, &[page]), Ok(PAGE));
    assert_eq!(engine.stats().panics, 1);
    // The second I/O is submitted by the first one's end, and holds the engine's last reference.
    let engine = Arc::new(engine);
    let (tell, told) = mpsc::channel();
    let done = {
        let (engine, fd) = (Arc::clone(&engine), Arc::clone(&fd));
        Box::new(move |result| {
            assert_eq!(result, Ok(PAGE));
            let last = Arc::clone(&engine);
            let done = Box::new(move |result| {
                assert_eq!(result, Ok(PAGE));
                drop(last);
                tell.send(()).unwrap();
            });
            engine.submit(fd, 0, &[page], done);
            engine.wake();
        })
    };
    let weak = Arc::downgrade(&engine);
    let only = Arc::clone(&engine);
    drop(engine);
    only.submit(fd, 0, &[page], done);
    only.wake();
    drop(only);
    told.recv_timeout(LONG).unwrap();
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_forked_child_is_refused_and_harms_nothing() {
    let Some(engine) = engine() else { return };
    let arena = forever(1);
    let (_file, fd) = filled(PAGE, 9);
    let page = arena.segment(0, PAGE);
    assert_eq!(wait_for(&engine, &fd, 0, &[page]), Ok(PAGE));
    // Something is in flight while the process forks.
    let (read, write) = pipe();
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).unwrap());
    engine.submit(read, 0, &[page.sub(0, 1)], done);
    engine.wake();
    let engine = Mutex::new(Some(engine));
    let code = in_child(|| {
        let Ok(mut engine) = engine.try_lock() else {
            return 1;
        };
        let refused = Arc::new(AtomicBool::new(false));
        let done = {
            let refused = Arc::clone(&refused);
            Box::new(move |result| refused.store(result == Err(Errno::ECHILD), Ordering::SeqCst))
        };
        let Some(engine) = engine.take() else {
            return 2;
        };
        engine.submit(Arc::clone(&fd), 0, &[page], done);
        engine.wake();
        let _ = engine.stats();
        drop(engine);
        if refused.load(Ordering::SeqCst) { 0 } else { 3 }
    });
    assert_eq!(code, 0);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(told.recv_timeout(LONG).unwrap(), Ok(1));
    let engine = engine.into_inner().unwrap().unwrap();
    assert_eq!(wait_for(&engine, &fd, 0, &[page]), Ok(PAGE));
}

#[test]
fn a_device_that_works_in_its_callers_thread_is_noticed() {
    let Some(engine) = engine() else { return };
    let arena = forever(4);
    // Memory: a read of it copies, and never sleeps.
    let file = Arc::new(memfd(4 << 20));
    let bytes: Vec<u8> = (0..MIB as u64 + 5).map(|pos| pattern(pos, 10)).collect();
    fd::pwrite(file.as_fd(), 0, &bytes).unwrap();
    fd::ftruncate(file.as_fd(), MIB as u64 + 5).unwrap();
    let list = [arena.segment(0, MIB), arena.segment(BLOCK, MIB)];
    assert!(engine.is_synchronous(), "until a read has slept");
    for reads in 0..10_000 {
        // The first ones may sleep for memory.
        if reads >= 8 && engine.is_synchronous() {
            break;
        }
        let read = engine.run_blocking(|| fd::read_segments(file.as_fd(), 0, &list));
        assert_eq!(read, Ok(MIB + 5));
    }
    assert!(engine.is_synchronous() && engine.stats().synchronous);
    // A caller that submits anyway is served.
    list[0].zero(0, MIB);
    assert_eq!(wait_for(&engine, &file, 0, &list), Ok(MIB + 5));
    check(&list[0], 0, 10);
}

/// A file in memory.
fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("f", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    fd::ftruncate(fd.as_fd(), size).unwrap();
    fd
}
