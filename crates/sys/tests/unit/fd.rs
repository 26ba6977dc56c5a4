//! Positional I/O and attributes on real files.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::xattr::{self, XattrMode};
use foliocache_sys::fd::{
    self, FileKind, IoSegment, LockKind, OFlags, SeekSparse, SetTime, SyncRange,
};
use foliocache_sys::{Errno, testing};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn create(dir: &Path, name: &str) -> OwnedFd {
    fd::open(
        &dir.join(name),
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        0o640,
    )
    .unwrap()
}

#[test]
fn bytes_that_are_not_cached_come_back() {
    let dir = dir();
    let file = create(dir.path(), "f");
    let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i * 7) as u8).collect();
    let written = testing::pwrite_dontcache(file.as_fd(), 3, &bytes);
    let mut back = vec![0; 10_100];
    let read = |back: &mut Vec<u8>| testing::pread_dontcache(file.as_fd(), 3, back);
    if written == Err(Errno::EOPNOTSUPP) {
        assert_eq!(read(&mut back), Err(Errno::EOPNOTSUPP));
        let segments = [IoSegment::from_mut(&mut back)];
        let read = fd::read_segments_dontcache(file.as_fd(), 3, &segments);
        assert_eq!(read, Err(Errno::EOPNOTSUPP));
        return;
    }
    assert_eq!(written, Ok(10_000));
    assert_eq!(read(&mut back), Ok(10_000), "short at end of file");
    assert_eq!(back[..10_000], bytes);
    let mut again = vec![0; 10_100];
    let (front, rest) = again.split_at_mut(4096);
    let segments = [front, rest].map(IoSegment::from_mut);
    let read = fd::read_segments_dontcache(file.as_fd(), 3, &segments);
    assert_eq!((read, &again), (Ok(10_000), &back));
    assert_eq!(fd::read_segments_dontcache(file.as_fd(), 0, &[]), Ok(0));
}

#[test]
fn segments_go_out_and_come_back() {
    let dir = dir();
    let file = create(dir.path(), "f");
    let mut bytes: Vec<u8> = (0..10_000_u32).map(|i| (i * 7) as u8).collect();
    let expected = bytes.clone();
    // Pieces of all sizes, empty ones too, more than one call takes.
    let mut list = Vec::new();
    for (i, chunk) in bytes.chunks_mut(4).enumerate() {
        let (a, b) = chunk.split_at_mut(i % 4);
        list.push(IoSegment::from_mut(b));
        list.push(IoSegment::from_mut(a));
    }
    assert!(list.len() > 2 * fd::IOV_MAX);
    let written: Vec<u8> = list
        .iter()
        .flat_map(|segment| {
            let mut out = vec![0; segment.len()];
            segment.copy_to(0, &mut out);
            out
        })
        .collect();
    assert_eq!(fd::write_segments(file.as_fd(), 3, &list), Ok(10_000));
    for segment in &list {
        segment.zero(0, segment.len());
    }
    assert_eq!(fd::read_segments(file.as_fd(), 3, &list), Ok(10_000));
    drop(list);
    assert_eq!(bytes, expected);

    let mut back = vec![1; 10_100];
    assert_eq!(
        fd::pread(file.as_fd(), 0, &mut back),
        Ok(10_003),
        "short at end of file only"
    );
    assert_eq!(back[..3], [0, 0, 0]);
    assert_eq!(back[3..10_003], written);
    assert!(back[10_003..].iter().all(|&byte| byte == 1));
    assert_eq!(fd::pread(file.as_fd(), 10_003, &mut back), Ok(0));
    assert_eq!(fd::read_segments(file.as_fd(), 0, &[]), Ok(0));
    assert_eq!(fd::write_segments(file.as_fd(), 0, &[]), Ok(0));
}

#[test]
fn a_read_into_memory_that_is_not_there_fails_whole_and_a_write_says_how_far_it_came() {
    let dir = dir();
    let file = create(dir.path(), "f");
    fd::pwrite(file.as_fd(), 0, &[7; 8192]).unwrap();
    let mut good = [0; 4096];
    let bad = 16 as *mut u8;
    // SAFETY: a wrong one on purpose: only the kernel looks at it, and refuses.
    let bad = unsafe { IoSegment::new(bad, 4096) };
    let good = IoSegment::from_mut(&mut good);
    assert_eq!(
        fd::read_segments(file.as_fd(), 0, &[good, bad]),
        Err(Errno::EFAULT)
    );
    assert_eq!(fd::write_segments(file.as_fd(), 0, &[good, bad]), Ok(4096));
    assert_eq!(
        fd::write_segments(file.as_fd(), 4096, &[bad]),
        Err(Errno::EFAULT)
    );
}

#[test]
fn wrong_descriptors_and_positions() {
    let dir = dir();
    drop(create(dir.path(), "f"));
    let read_only = fd::open(&dir.path().join("f"), OFlags::RDONLY, 0).unwrap();
    let write_only = fd::open(&dir.path().join("f"), OFlags::WRONLY, 0).unwrap();
    let mut buf = [0; 10];
    assert_eq!(fd::pwrite(read_only.as_fd(), 0, b"x"), Err(Errno::EBADF));
    assert_eq!(
        fd::pread(write_only.as_fd(), 0, &mut buf),
        Err(Errno::EBADF)
    );
    assert_eq!(
        fd::pread(read_only.as_fd(), u64::MAX, &mut buf),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        fd::ftruncate(write_only.as_fd(), u64::MAX),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        fd::open(&dir.path().join("g"), OFlags::RDONLY, 0).unwrap_err(),
        Errno::ENOENT
    );
}

#[test]
fn direct_io_keeps_the_end_of_the_file() {
    let dir = dir();
    let file = create(dir.path(), "f");
    fd::pwrite(file.as_fd(), 0, &[9; 10_000]).unwrap();
    fd::fdatasync(file.as_fd()).unwrap();
    let Ok(direct) = fd::reopen(file.as_fd(), OFlags::RDWR | OFlags::DIRECT) else {
        eprintln!("no direct I/O here");
        return;
    };
    if let Some(align) = fd::direct_io_alignment(direct.as_fd()) {
        assert!(
            align.offset.is_power_of_two() && align.mem.is_power_of_two(),
            "{align:?}"
        );
    }
    let mut memory = vec![0; 5 * 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let memory = &mut memory[skip..skip + 16384];
    assert_eq!(fd::pread(direct.as_fd(), 0, memory), Ok(10_000));
    assert!(memory[..10_000].iter().all(|&byte| byte == 9));
    assert_eq!(fd::pread(direct.as_fd(), 8192, memory), Ok(10_000 - 8192));
    assert_eq!(fd::pread(direct.as_fd(), 12288, memory), Ok(0));
}

#[test]
fn sizes_holes_and_space() {
    let dir = dir();
    let file = create(dir.path(), "f");
    let f = file.as_fd();
    fd::ftruncate(f, 1 << 20).unwrap();
    assert_eq!(fd::seek_sparse(f, SeekSparse::Data, 0), Ok(None));
    fd::pwrite(f, 256 << 10, &[1; 64 << 10]).unwrap();
    assert_eq!(fd::seek_sparse(f, SeekSparse::Data, 0), Ok(Some(256 << 10)));
    assert_eq!(
        fd::seek_sparse(f, SeekSparse::Hole, 256 << 10),
        Ok(Some(320 << 10))
    );
    assert_eq!(fd::seek_sparse(f, SeekSparse::Hole, 1 << 20), Ok(None));
    fd::sync_file_range(f, 0, 0, SyncRange::Start).unwrap();
    fd::sync_file_range(f, 0, 0, SyncRange::Wait).unwrap();
    fd::fsync(f).unwrap();
    fd::fadvise(f, 0, 0, fd::Advice::DontNeed).unwrap();
    fd::punch_hole(f, 256 << 10, 64 << 10).unwrap();
    assert_eq!(fd::seek_sparse(f, SeekSparse::Data, 0), Ok(None));
    assert_eq!(fd::fstat(f).unwrap().size, 1 << 20);
    fd::allocate(f, 1 << 20, 1 << 20).unwrap();
    let st = fd::fstat(f).unwrap();
    assert_eq!((st.size, st.blocks >= 2048), (1 << 20, true));
    assert_eq!(fd::allocate(f, 0, 0), Err(Errno::EINVAL));
    let vfs = fd::fstatvfs(f).unwrap();
    assert!(vfs.blocks_free <= vfs.blocks && vfs.block_size > 0 && vfs.max_name >= 255);
    assert_ne!(fd::fs_magic(f).unwrap(), 0);
}

#[test]
fn attributes_through_ordinary_and_path_descriptors() {
    let dir = dir();
    let file = create(dir.path(), "f");
    let path = fd::open(&dir.path().join("f"), OFlags::PATH, 0).unwrap();
    for f in [file.as_fd(), path.as_fd()] {
        let (a, m) = (
            Timespec::new(-5, 6),
            Timespec::new(1_000_000_007, 999_999_999),
        );
        fd::futimens(f, Some(SetTime::At(a)), Some(SetTime::At(m))).unwrap();
        fd::futimens(f, None, None).unwrap();
        let st = fd::fstat(f).unwrap();
        assert_eq!((st.atime, st.mtime), (a, m));
        fd::futimens(f, None, Some(SetTime::Now)).unwrap();
        let st = fd::fstat(f).unwrap();
        assert_eq!(st.atime, a);
        assert!(st.mtime.sec > m.sec);
        fd::fchmod(f, 0o4751).unwrap();
        let st = fd::fstat(f).unwrap();
        assert_eq!((st.mode, st.kind, st.nlink), (0o4751, FileKind::Regular, 1));
        fd::fchown(f, None, None).unwrap();
        fd::fchown(f, Some(st.uid), Some(st.gid)).unwrap();
        assert_ne!(st.dev.raw(), 0);

        xattr::set(f, "user.colour".as_ref(), b"green", XattrMode::Create).unwrap();
        assert_eq!(xattr::get(f, "user.colour".as_ref()).unwrap(), b"green");
        let again = xattr::set(f, "user.colour".as_ref(), b"red", XattrMode::Create);
        assert_eq!(again, Err(Errno::EEXIST));
        xattr::set(f, "user.empty".as_ref(), b"", XattrMode::Set).unwrap();
        assert_eq!(xattr::get(f, "user.empty".as_ref()).unwrap(), b"");
        let mut names = xattr::list(f).unwrap();
        names.retain(|name| name.as_encoded_bytes().starts_with(b"user."));
        names.sort();
        assert_eq!(names, ["user.colour", "user.empty"]);
        xattr::remove(f, "user.colour".as_ref()).unwrap();
        xattr::remove(f, "user.empty".as_ref()).unwrap();
        assert_eq!(xattr::get(f, "user.colour".as_ref()), Err(Errno::ENODATA));
        let missing = xattr::set(f, "user.colour".as_ref(), b"", XattrMode::Replace);
        assert_eq!(missing, Err(Errno::ENODATA));
    }
    let writer = fd::reopen(
        path.as_fd(),
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW,
    );
    fd::pwrite(writer.unwrap().as_fd(), 0, b"through the path").unwrap();
    assert_eq!(fd::fstat(path.as_fd()).unwrap().size, 16);
}

#[test]
fn the_limit_of_open_files_is_raised_once() {
    fd::set_open_file_limit(u64::MAX).unwrap();
    let limit = fd::open_file_limit();
    assert!(limit >= 3);
    fd::set_open_file_limit(u64::MAX).unwrap();
    assert_eq!(fd::open_file_limit(), limit);
}

#[test]
#[should_panic(expected = "of a segment of 8 bytes")]
fn a_part_outside_its_segment() {
    let mut buf = [0; 8];
    let _ = IoSegment::from_mut(&mut buf).sub(4, 5);
}

#[test]
fn a_new_file_shows_the_same_attributes_without_asking_for_its_times() {
    let dir = dir();
    for dir in [dir.path(), Path::new("/dev/shm")] {
        let Ok(file) = fd::open(dir, OFlags::RDWR | OFlags::TMPFILE, 0o600) else {
            continue;
        };
        let new = fd::fstat_new(file.as_fd()).unwrap();
        assert_eq!(fd::fstat(file.as_fd()), Ok(new));
    }
}

#[test]
fn a_shared_lock_keeps_exclusive_ones_out_until_the_last_is_gone() {
    let dir = dir();
    let open = || fd::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
    let [one, two, three] = [open(), open(), open()];
    fd::try_lock(one.as_fd(), LockKind::Exclusive).unwrap();
    assert_eq!(
        fd::try_lock(two.as_fd(), LockKind::Shared),
        Err(Errno::EAGAIN)
    );
    fd::try_lock(one.as_fd(), LockKind::Shared).unwrap();
    fd::try_lock(two.as_fd(), LockKind::Shared).unwrap();
    assert_eq!(
        fd::try_lock(three.as_fd(), LockKind::Exclusive),
        Err(Errno::EAGAIN)
    );
    fd::unlock(one.as_fd()).unwrap();
    assert_eq!(
        fd::try_lock(three.as_fd(), LockKind::Exclusive),
        Err(Errno::EAGAIN)
    );
    fd::unlock(two.as_fd()).unwrap();
    fd::try_lock(three.as_fd(), LockKind::Exclusive).unwrap();
}
