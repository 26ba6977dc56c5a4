//! Cases about the content of files.

use super::{Case, Place};
use crate::common::{pattern, read_all, write_all};
use foliocache_mm::MAX_FILE_SIZE;
use foliocache_sync::thread;
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_vfs::{
    Advice, FallocateMode, FileKind, OpContext, OpenFlags, Remove, S_ISUID, SeekSparse, SetAttr,
    SetTime,
};
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};

pub(super) const CASES: &[Case] = &[
    ("sizes_around_page_ends", sizes_around_page_ends),
    ("sparse", sparse),
    ("overwrite", overwrite),
    ("append", append),
    ("truncate_both_ways", truncate_both_ways),
    ("truncate_at_open", truncate_at_open),
    ("punch", punch),
    ("zero_range_and_allocate", zero_range_and_allocate),
    ("seek_data_and_hole", seek_data_and_hole),
    ("offsets_past_the_end", offsets_past_the_end),
    ("vectored", vectored),
    ("access_modes", access_modes),
    ("unlinked_while_open", unlinked_while_open),
    ("two_handles_one_file", two_handles_one_file),
    ("times", times),
    ("set_id_bits_go_with_a_write", set_id_bits_go_with_a_write),
    (
        "set_id_bits_go_with_an_allocation",
        set_id_bits_go_with_an_allocation,
    ),
    ("advice", advice),
    ("dropped_pages_come_back", dropped_pages_come_back),
];

fn sizes_around_page_ends(place: &Place<'_>) {
    for size in [
        0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 12_289, 70_000,
    ] {
        let name = format!("size{size}");
        let bytes = pattern(size, size as usize);
        {
            let file = place.create(&name);
            write_all(&file, &bytes, 0);
            assert_eq!(file.size(), size);
            assert_eq!(read_all(&file), bytes, "{size} bytes, same handle");
            file.fsync().expect("fsync");
        }
        let file = place.open(&name, OpenFlags::READ);
        assert_eq!(read_all(&file), bytes, "{size} bytes, opened again");
        let attr = place.fs.getattr(file.inode()).expect("getattr");
        assert_eq!((attr.size, attr.kind), (size, FileKind::Regular));
    }
}

fn sparse(place: &Place<'_>) {
    let file = place.create("sparse");
    write_all(&file, b"front", 0);
    write_all(&file, b"back", 1_000_000);
    assert_eq!(file.size(), 1_000_004);
    let mut expected = vec![0; 1_000_004];
    expected[..5].copy_from_slice(b"front");
    expected[1_000_000..].copy_from_slice(b"back");
    assert!(read_all(&file) == expected);
    file.fsync().expect("fsync");
    assert!(read_all(&file) == expected);
}

fn overwrite(place: &Place<'_>) {
    let file = place.create("overwrite");
    let mut expected = pattern(1, 50_000);
    write_all(&file, &expected, 0);
    for (round, (pos, len)) in [
        (0, 10),
        (4090, 12),
        (4096, 4096),
        (49_990, 10),
        (100, 30_000),
        (49_999, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = pattern(round as u64 + 2, len);
        write_all(&file, &bytes, pos as u64);
        expected[pos..pos + len].copy_from_slice(&bytes);
        if round % 2 == 0 {
            file.fdatasync().expect("fdatasync");
        }
        assert!(read_all(&file) == expected, "after round {round}");
    }
    assert_eq!(file.size(), 50_000);
}

fn append(place: &Place<'_>) {
    let file = place.create("append");
    write_all(&file, b"start", 0);
    assert_eq!(file.append(b"-one").expect("append"), (5, 4));
    let appender = place.open("append", OpenFlags::READ_WRITE.append());
    assert_eq!(appender.write_at(b"-two", 0).expect("write"), 4);
    assert_eq!(appender.append(b"").expect("append nothing"), (13, 0));
    assert_eq!(read_all(&file), b"start-one-two");

    // Appends of several threads neither overlap nor tear.
    let file = place.create("appended by many");
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(file.append(&[thread + 1; 100]).expect("append").1, 100);
                }
            });
        }
    });
    let content = read_all(&file);
    assert_eq!(content.len(), 4 * 50 * 100);
    let mut records = [0; 5];
    for record in content.chunks(100) {
        assert!(
            record.iter().all(|&byte| byte == record[0]),
            "a torn append"
        );
        records[usize::from(record[0])] += 1;
    }
    assert_eq!(records, [0, 50, 50, 50, 50]);
}

fn truncate_both_ways(place: &Place<'_>) {
    let file = place.create("truncated");
    let bytes = pattern(3, 20_000);
    write_all(&file, &bytes, 0);
    let mut expected = bytes.clone();
    for size in [10_000, 10_001, 30_000, 4096, 4095, 8192, 0, 5000, 5000] {
        file.set_len(size as u64).expect("set_len");
        expected.resize(size, 0);
        assert_eq!(file.size(), size as u64);
        assert!(read_all(&file) == expected, "cut or grown to {size}");
    }
    write_all(&file, &bytes, 0);
    file.fsync().expect("fsync");
    let set = SetAttr {
        size: Some(12_345),
        ..SetAttr::default()
    };
    let attr = place
        .fs
        .setattr(&OpContext::ROOT, file.inode(), &set)
        .expect("setattr");
    assert_eq!(attr.size, 12_345);
    assert!(read_all(&file) == bytes[..12_345]);
    let result = place.fs.setattr(&OpContext::ROOT, &place.dir, &set);
    assert_eq!(result.expect_err("the size of a directory"), Errno::EISDIR);
}

fn truncate_at_open(place: &Place<'_>) {
    let file = place.create("file");
    write_all(&file, &pattern(4, 9000), 0);
    let again = place.open("file", OpenFlags::READ_WRITE.truncate());
    assert_eq!((file.size(), again.size()), (0, 0));
    write_all(&again, b"new", 0);
    assert_eq!(read_all(&file), b"new");
}

fn punch(place: &Place<'_>) {
    let file = place.create("punched");
    let mut expected = pattern(5, 100_000);
    write_all(&file, &expected, 0);
    file.fsync().expect("fsync");
    for (round, (pos, len)) in [
        (0, 1),
        (100, 200),
        (4096, 4096),
        (10_000, 30_000),
        (99_000, 50_000),
    ]
    .into_iter()
    .enumerate()
    {
        file.punch_hole(pos, len).expect("punch");
        let end = ((pos + len) as usize).min(expected.len());
        expected[pos as usize..end].fill(0);
        assert!(read_all(&file) == expected, "round {round}");
        if round == 2 {
            file.fsync().expect("fsync");
        }
    }
    assert_eq!(file.size(), 100_000, "punching leaves the size");
    // Dirty data that is punched is still a hole after writeback.
    write_all(&file, &[7; 8192], 40_960);
    file.punch_hole(40_960, 8192).expect("punch");
    expected[40_960..49_152].fill(0);
    file.fsync().expect("fsync");
    file.advise(Advice::DontNeed, 0, 0).expect("advise");
    assert!(read_all(&file) == expected);
    assert_eq!(file.punch_hole(0, 0), Err(Errno::EINVAL));
}

fn zero_range_and_allocate(place: &Place<'_>) {
    let file = place.create("file");
    write_all(&file, &[1; 10_000], 0);
    file.fallocate(FallocateMode::ZeroRange, 5000, 10_000)
        .expect("zero a range");
    let mut expected = vec![1; 5000];
    expected.resize(15_000, 0);
    assert!(read_all(&file) == expected);
    match file.fallocate(FallocateMode::AllocateKeepSize, 0, 50_000) {
        Ok(()) => assert_eq!(file.size(), 15_000),
        Err(error) => assert_eq!(error, Errno::EOPNOTSUPP),
    }
    match file.fallocate(FallocateMode::Allocate, 0, 50_000) {
        Ok(()) => expected.resize(50_000, 0),
        Err(error) => assert_eq!(error, Errno::EOPNOTSUPP),
    }
    file.fsync().expect("fsync");
    assert!(read_all(&file) == expected);
    assert_eq!(
        file.fallocate(FallocateMode::Allocate, MAX_FILE_SIZE, 2),
        Err(Errno::EFBIG)
    );
}

fn seek_data_and_hole(place: &Place<'_>) {
    let file = place.create("file");
    write_all(&file, &[1; 4096], 0);
    file.set_len(1 << 20).expect("set_len");
    write_all(&file, &[1; 4096], 512 << 10);
    assert_eq!(file.seek_sparse(SeekSparse::Data, 10), Ok(10));
    let hole = file
        .seek_sparse(SeekSparse::Hole, 0)
        .expect("the end is a hole");
    assert!(
        hole == 1 << 20 || (4096..=512 << 10).contains(&hole),
        "hole at {hole}"
    );
    assert_eq!(file.seek_sparse(SeekSparse::Data, 512 << 10), Ok(512 << 10));
    assert_eq!(
        file.seek_sparse(SeekSparse::Data, 1 << 20),
        Err(Errno::ENXIO)
    );
    assert_eq!(
        file.seek_sparse(SeekSparse::Hole, 2 << 20),
        Err(Errno::ENXIO)
    );
}

fn offsets_past_the_end(place: &Place<'_>) {
    let file = place.create("file");
    write_all(&file, b"0123456789", 0);
    let mut buf = [9; 16];
    assert_eq!(file.read_at(&mut buf, 10), Ok(0));
    assert_eq!(file.read_at(&mut buf, 1 << 40), Ok(0));
    assert_eq!(file.read_at(&mut buf, 4), Ok(6));
    assert_eq!(&buf[..6], b"456789");
    assert_eq!(
        file.read_at(&mut buf, MAX_FILE_SIZE + 1),
        Err(Errno::EINVAL)
    );
    assert_eq!(file.write_at(b"x", MAX_FILE_SIZE + 1), Err(Errno::EINVAL));
    assert_eq!(file.write_at(b"x", MAX_FILE_SIZE), Err(Errno::EFBIG));
    assert_eq!(file.set_len(MAX_FILE_SIZE + 1), Err(Errno::EFBIG));
    assert_eq!(file.read_at(&mut [], 0), Ok(0));
    assert_eq!(file.write_at(b"", 5000), Ok(0));
    assert_eq!(file.size(), 10, "an empty write changes nothing");
}

fn vectored(place: &Place<'_>) {
    let file = place.create("file");
    let bytes = pattern(6, 10_000);
    let slices = [
        IoSlice::new(&bytes[..1]),
        IoSlice::new(&[]),
        IoSlice::new(&bytes[1..5000]),
        IoSlice::new(&bytes[5000..]),
    ];
    let written = file.write_vectored_from(&slices, 100);
    assert_eq!(written, Ok((10_100, 10_000)));
    let (mut a, mut b) = (vec![0; 4000], vec![0; 9000]);
    let n = file
        .read_vectored_at(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 100)
        .expect("read");
    assert_eq!(n, 10_000);
    assert!(a == bytes[..4000] && b[..6000] == bytes[4000..]);
}

fn access_modes(place: &Place<'_>) {
    drop(place.create("file"));
    let read = place.open("file", OpenFlags::READ);
    assert_eq!(read.write_at(b"x", 0), Err(Errno::EBADF));
    assert_eq!(read.append(b"x"), Err(Errno::EBADF));
    assert_eq!(read.punch_hole(0, 1), Err(Errno::EBADF));
    assert_eq!(read.set_len(0), Err(Errno::EINVAL));
    assert_eq!(read.fsync(), Ok(()));
    let write = place.open("file", OpenFlags::WRITE);
    assert_eq!(write.read_at(&mut [0], 0), Err(Errno::EBADF));
    write_all(&write, b"x", 0);
    let result = place.fs.open(&OpContext::ROOT, &place.dir, OpenFlags::READ);
    assert_eq!(result.map(drop), Err(Errno::EISDIR));
}

fn unlinked_while_open(place: &Place<'_>) {
    let bytes = pattern(7, 30_000);
    let file = place.create("file");
    write_all(&file, &bytes, 0);
    place
        .fs
        .remove(&place.dir, OsStr::new("file"), Remove::File)
        .expect("unlink");
    assert_eq!(place.lookup("file").map(drop), Err(Errno::ENOENT));
    assert!(read_all(&file) == bytes);
    write_all(&file, b"more", 30_000);
    file.fsync().expect("fsync");
    file.advise(Advice::DontNeed, 0, 0).expect("advise");
    assert_eq!(read_all(&file).len(), 30_004);
    let attr = place.fs.getattr(file.inode()).expect("getattr");
    assert_eq!((attr.nlink, attr.size), (0, 30_004));
    // The name is free for another file, which is another inode.
    let other = place.create("file");
    assert_ne!(other.inode().ino(), file.inode().ino());
    assert_eq!(other.size(), 0);
    write_all(&other, b"other", 0);
    assert_eq!(read_all(&file).len(), 30_004);
    drop(file);
    assert_eq!(read_all(&other), b"other");
}

fn two_handles_one_file(place: &Place<'_>) {
    let one = place.create("file");
    let two = place.open("file", OpenFlags::READ_WRITE);
    write_all(&one, b"written by one", 0);
    assert_eq!(read_all(&two), b"written by one");
    write_all(&two, b"two", 11);
    assert_eq!(read_all(&one), b"written by two");
    two.set_len(7).expect("set_len");
    assert_eq!(read_all(&one), b"written");
    drop(one);
    assert_eq!(read_all(&two), b"written");
}

fn times(place: &Place<'_>) {
    let root = OpContext::ROOT;
    let file = place.create("file");
    let (then, later) = (
        Timespec::new(1_000_000_000, 123_456_789),
        Timespec::new(1_200_000_000, 5),
    );
    let set = SetAttr {
        atime: Some(SetTime::At(then)),
        mtime: Some(SetTime::At(later)),
        ..SetAttr::default()
    };
    // With dirty data that is written back only afterwards.
    write_all(&file, &pattern(8, 5000), 0);
    let attr = place
        .fs
        .setattr(&root, file.inode(), &set)
        .expect("setattr");
    assert_eq!((attr.atime, attr.mtime), (then, later));
    assert!(attr.ctime > later, "ctime is the clock's");
    file.fsync().expect("fsync");
    let attr = place.fs.getattr(file.inode()).expect("getattr");
    assert_eq!(
        (attr.atime, attr.mtime),
        (then, later),
        "writeback left the times"
    );
    drop(file);
    let inode = place.lookup("file").expect("lookup");
    assert_eq!(place.fs.getattr(&inode).expect("getattr").mtime, later);

    let now = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let attr = place.fs.setattr(&root, &inode, &now).expect("setattr");
    assert!(attr.mtime > later && attr.atime == then);

    let file = place.open("file", OpenFlags::READ_WRITE);
    place.fs.setattr(&root, &inode, &set).expect("setattr");
    write_all(&file, b"x", 0);
    let written = place.fs.getattr(&inode).expect("getattr");
    assert!(written.mtime > later, "a write moves mtime");
    assert_eq!(written.mtime, written.ctime);
    file.fsync().expect("fsync");
    let synced = place.fs.getattr(&inode).expect("getattr");
    assert_eq!((synced.mtime, synced.ctime), (written.mtime, written.ctime));
    place.fs.setattr(&root, &inode, &set).expect("setattr");
    file.set_len(1).expect("set_len");
    assert!(
        place.fs.getattr(&inode).expect("getattr").mtime > later,
        "so does truncation"
    );

    let before = place.fs.getattr(&place.dir).expect("getattr");
    assert!(before.mtime > later);
}

fn set_id_bits_go_with_a_write(place: &Place<'_>) {
    let root = OpContext::ROOT;
    let user = OpContext {
        uid: 1000,
        gid: 1000,
        ..root
    };
    let file = place.create("file");
    let set = SetAttr {
        mode: Some(0o6755),
        ..SetAttr::default()
    };
    place
        .fs
        .setattr(&root, file.inode(), &set)
        .expect("setattr");
    write_all(&file, b"by root", 0);
    assert_eq!(
        place.fs.getattr(file.inode()).expect("getattr").mode,
        0o6755
    );
    let theirs = place
        .fs
        .open(&user, file.inode(), OpenFlags::READ_WRITE)
        .expect("open");
    write_all(&theirs, b"by another", 0);
    assert_eq!(
        place.fs.getattr(file.inode()).expect("getattr").mode & S_ISUID,
        0
    );
    assert_eq!(place.fs.getattr(file.inode()).expect("getattr").mode, 0o755);
}

fn set_id_bits_go_with_an_allocation(place: &Place<'_>) {
    let root = OpContext::ROOT;
    let user = OpContext {
        uid: 1000,
        gid: 1000,
        ..root
    };
    let file = place.create("file");
    write_all(&file, &[1; 10_000], 0);
    let set = SetAttr {
        mode: Some(0o6755),
        ..SetAttr::default()
    };
    let mode = || place.fs.getattr(file.inode()).expect("getattr").mode;
    for how in [
        FallocateMode::Allocate,
        FallocateMode::AllocateKeepSize,
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange,
        FallocateMode::ZeroRangeKeepSize,
    ] {
        for (ctx, left) in [(root, 0o6755), (user, 0o755)] {
            place
                .fs
                .setattr(&root, file.inode(), &set)
                .expect("setattr");
            let flags = OpenFlags::READ_WRITE;
            let theirs = place.fs.open(&ctx, file.inode(), flags).expect("open");
            match theirs.fallocate(how, 0, 5000) {
                Ok(()) => assert_eq!(mode(), left, "{how:?} by {}", ctx.uid),
                Err(error) => assert_eq!(error, Errno::EOPNOTSUPP, "{how:?}"),
            }
        }
    }
}

fn advice(place: &Place<'_>) {
    let file = place.create("file");
    let bytes = pattern(9, 200_000);
    write_all(&file, &bytes, 0);
    file.fsync().expect("fsync");
    for advice in [
        Advice::DontNeed,
        Advice::WillNeed,
        Advice::Sequential,
        Advice::Random,
        Advice::Normal,
    ] {
        file.advise(advice, 0, 0).expect("advise");
        assert!(read_all(&file) == bytes);
    }
}

fn dropped_pages_come_back(place: &Place<'_>) {
    let bytes = pattern(10, 123_457);
    let file = place.create("file");
    write_all(&file, &bytes, 0);
    file.fsync().expect("fsync");
    for round in 0..3 {
        file.advise(Advice::DontNeed, 0, 0).expect("advise");
        let mut part = vec![0; 5000];
        file.read_at(&mut part, 100_000).expect("read");
        assert!(part == bytes[100_000..105_000], "round {round}");
        assert!(read_all(&file) == bytes, "round {round}");
    }
}
