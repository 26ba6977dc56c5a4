//! Many writes at once.

use foliocache_sys::fd::{self, AsFd, Extent, IoSegment, OFlags};
use foliocache_sys::uring::Engine;
use foliocache_sys::{Errno, fd::OwnedFd};
use std::thread;

const PAGE: usize = 4096;

fn engine() -> Option<Engine> {
    match Engine::new() {
        Ok(engine) => Some(engine),
        Err(error) => {
            eprintln!("SKIP: no io_uring: {error}");
            None
        }
    }
}

/// Memory in pages, each filled with a different byte.
fn pages(nr: usize, first: usize) -> Vec<u8> {
    (0..nr * PAGE).map(|at| (first + at / PAGE) as u8).collect()
}

fn extents<'a>(memory: &'a mut [u8], stride: u64) -> Vec<Extent<'a>> {
    let pages = memory.chunks_mut(PAGE).enumerate();
    pages
        .map(|(nr, page)| Extent::new(nr as u64 * stride, vec![IoSegment::from_mut(page)]))
        .collect()
}

fn write_all(engine: &Engine, file: &impl AsFd, extents: &mut [Extent<'_>]) -> Result<(), Errno> {
    engine.write_all(file.as_fd(), &mut extents.iter_mut().collect::<Vec<_>>())
}

#[test]
fn extents_are_written_where_they_belong() {
    let Some(engine) = engine() else { return };
    let file = tempfile::tempfile().unwrap();
    // More than are in flight at a time, and twice: the second call uses the ring of the first.
    for round in 0..2 {
        let mut memory = pages(500, round);
        let stride = 3 * PAGE as u64;
        let mut all = extents(&mut memory, stride);
        write_all(&engine, &file, &mut all).unwrap();
        assert!(all.iter().all(|extent| extent.written == Some(Ok(PAGE))));
        let mut found = vec![0; PAGE];
        for nr in 0..500 {
            fd::pread(file.as_fd(), nr as u64 * stride, &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == (round + nr) as u8), "{nr}");
        }
    }
}

/// Some that wait for nothing but the device, and some into holes, past the kernel's cache.
#[test]
fn direct_writes_into_blocks_and_holes_are_made() {
    let Some(engine) = engine() else { return };
    let place = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fd::pwrite(place.as_file().as_fd(), 0, &pages(200, 0)).unwrap();
    fd::fsync(place.as_file().as_fd()).unwrap();
    // A direct write waits for pages in the kernel's cache to go.
    fd::fadvise(place.as_file().as_fd(), 0, 0, fd::Advice::DontNeed).unwrap();
    let Ok(direct) = fd::open(place.path(), OFlags::RDWR | OFlags::DIRECT, 0) else {
        eprintln!("SKIP: no direct I/O in {}", place.path().display());
        return;
    };
    let mut memory = pages(201, 1);
    let start = memory.as_ptr().align_offset(PAGE);
    // The last hundred are beyond the end of the file, each after a hole.
    let mut all = extents(&mut memory[start..start + 200 * PAGE], 2 * PAGE as u64);
    write_all(&engine, &direct, &mut all).unwrap();
    let mut found = vec![0; PAGE];
    for extent in &all {
        assert_eq!(extent.written, Some(Ok(PAGE)));
        let (mut written, fd) = (vec![0; PAGE], place.as_file().as_fd());
        extent.segments()[0].copy_to(0, &mut written);
        fd::pread(fd, extent.pos, &mut found).unwrap();
        assert!(found == written, "at {}", extent.pos);
    }
}

#[test]
fn long_extents_of_many_segments_are_written_in_order() {
    let Some(engine) = engine() else { return };
    let file = tempfile::tempfile().unwrap();
    // 5 MiB each, in pages that lie apart in memory.
    let mut memory = pages(2 * 2 * 1_280, 0);
    let mut all = [Extent::new(0, vec![]), Extent::new(8 << 20, vec![])];
    for (nr, page) in memory.chunks_mut(PAGE).enumerate().step_by(2) {
        all[nr / 2 / 1_280].push(IoSegment::from_mut(page));
    }
    write_all(&engine, &file, &mut all).unwrap();
    for extent in &all {
        assert_eq!(extent.written, Some(Ok(5 << 20)));
        let mut found = vec![0; extent.bytes()];
        fd::pread(file.as_fd(), extent.pos, &mut found).unwrap();
        let mut at = 0;
        for segment in extent.segments() {
            let mut bytes = vec![0; segment.len()];
            segment.copy_to(0, &mut bytes);
            assert!(found[at..at + bytes.len()] == bytes[..], "at {at}");
            at += bytes.len();
        }
    }
}

#[test]
fn each_extent_tells_its_own_error() {
    let Some(engine) = engine() else { return };
    let mut memory = pages(3, 0);
    let file = tempfile::NamedTempFile::new().unwrap();
    let read_only: OwnedFd = fd::open(file.path(), OFlags::RDONLY, 0).unwrap();
    let mut all = extents(&mut memory, PAGE as u64);
    write_all(&engine, &read_only, &mut all).unwrap();
    assert!(
        all.iter()
            .all(|extent| extent.written == Some(Err(Errno::EBADF)))
    );

    // A full device has room for its own data.
    let full = fd::open("/dev/full".as_ref(), OFlags::WRONLY, 0).unwrap();
    let mut all = extents(&mut memory, PAGE as u64);
    write_all(&engine, &full, &mut all).unwrap();
    assert!(
        all.iter()
            .all(|extent| extent.written == Some(Err(Errno::ENOSPC)))
    );

    // Beyond the largest file: nothing is begun.
    let mut all = extents(&mut memory, PAGE as u64);
    all[2].pos = i64::MAX as u64 - 1;
    let refused = write_all(&engine, &file, &mut all);
    assert_eq!(refused, Err(Errno::EINVAL));
    assert!(all.iter().all(|extent| extent.written.is_none()));
}

#[test]
fn threads_write_at_the_same_time() {
    let Some(engine) = engine() else { return };
    thread::scope(|scope| {
        for thread in 0..6 {
            let engine = &engine;
            scope.spawn(move || {
                let file = tempfile::tempfile().unwrap();
                for round in 0..20 {
                    let mut memory = pages(100, thread + round);
                    let mut all = extents(&mut memory, PAGE as u64);
                    write_all(engine, &file, &mut all).unwrap();
                    assert!(all.iter().all(|extent| extent.written == Some(Ok(PAGE))));
                    let mut found = vec![0; 100 * PAGE];
                    fd::pread(file.as_fd(), 0, &mut found).unwrap();
                    assert!(found == pages(100, thread + round));
                }
            });
        }
    });
}
