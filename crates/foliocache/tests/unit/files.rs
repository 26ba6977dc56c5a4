//! The operations of an open file.

use crate::common::{Disk, PAGE, cache, on_disk, pattern};
use foliocache::{Advice, Cache, Errno, Error, File, MapAccess};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

#[test]
fn written_bytes_are_read_back_and_durable_after_a_sync() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    let bytes = pattern(1, 3 * PAGE + 100);
    assert_eq!(file.write_at(&bytes, 50).unwrap(), bytes.len());
    assert_eq!(file.len(), 50 + bytes.len() as u64);
    let mut back = vec![0; bytes.len()];
    file.read_exact_at(&mut back, 50).unwrap();
    assert_eq!(back, bytes);
    file.sync_data().unwrap();
    let source = std::fs::read(disk.in_source("f")).unwrap();
    assert_eq!(&source[..50], [0; 50]);
    assert_eq!(&source[50..], bytes);
    assert_eq!(file.stats().unwrap().dirty_pages, 0);
}

#[test]
fn reads_end_at_the_end_of_the_file() {
    let dir = cache(16).memfs().unwrap();
    let file = dir.create("f").unwrap();
    file.write_all_at(b"ten bytes!", 0).unwrap();
    let mut buf = [7; 20];
    assert_eq!(file.read_at(&mut buf, 4).unwrap(), 6);
    assert_eq!(&buf[..7], b"bytes!\x07");
    assert_eq!(file.read_at(&mut buf, 10).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    let error = file.read_exact_at(&mut buf, 4).unwrap_err();
    assert!(matches!(&error, Error::UnexpectedEof { range, .. } if *range == (10..24)));
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    let error = file.read_at(&mut buf, u64::MAX).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
}

#[test]
fn each_request_of_a_batch_ends_as_a_single_read_does() {
    let disk = Disk::new(16);
    let bytes = pattern(3, 40 * PAGE + 10);
    let files = ["a", "b"].map(|name| {
        std::fs::write(disk.in_source(name), &bytes).unwrap();
        disk.dir.open(name).unwrap()
    });
    let appended = disk.dir.open_options().append(true).open("a").unwrap();
    let places = [
        (&files[0], 5, 64),
        (&files[1], 3 * PAGE as u64 - 10, 64),
        (&files[0], 40 * PAGE as u64 - 10, 64),
        (&files[0], 7 * PAGE as u64, 20 * PAGE),
        (&files[1], bytes.len() as u64, 5),
        (&files[1], 1 << 40, 5),
        (&files[0], 0, 0),
        (&files[0], u64::MAX, 9),
        (&appended, 0, 1),
    ];
    for round in 0..2 {
        let mut buffers = places.map(|(.., len)| vec![7; len]);
        let mut requests: Vec<_> = places
            .iter()
            .zip(&mut buffers)
            .map(|(&(file, pos, _), buffer)| file.read_request(buffer, pos))
            .collect();
        let early = requests[0].result().unwrap_err();
        assert_eq!(early.errno(), Errno::EAGAIN);
        let first = File::read_batch(&mut requests).unwrap_err();
        assert_eq!(first.errno(), Errno::EINVAL);
        for (&(file, pos, len), request) in places.iter().zip(&requests) {
            let mut single = vec![7; len];
            match (file.read_at(&mut single, pos), request.bytes()) {
                (Ok(read), found) => {
                    assert!(found.unwrap() == &single[..read], "{len} at {pos}, {round}");
                    assert_eq!(request.result().unwrap(), read);
                }
                (Err(expected), found) => {
                    assert_eq!(found.unwrap_err().to_string(), expected.to_string());
                }
            }
        }
    }
}

#[test]
fn vectored_forms_follow_one_another() {
    let dir = cache(16).memfs().unwrap();
    let file = dir.create("f").unwrap();
    let (a, b) = (pattern(1, 5000), pattern(2, 3));
    let slices = [IoSlice::new(&a), IoSlice::new(&[]), IoSlice::new(&b)];
    assert_eq!(file.write_vectored_at(&slices, 10).unwrap(), 5003);
    let (mut x, mut y) = (vec![0; 4], vec![0; 6000]);
    let mut slices = [
        IoSliceMut::new(&mut x),
        IoSliceMut::new(&mut []),
        IoSliceMut::new(&mut y),
    ];
    assert_eq!(file.read_vectored_at(&mut slices, 10).unwrap(), 5003);
    assert_eq!(x, a[..4]);
    assert_eq!(y[..4996], a[4..]);
    assert_eq!(y[4996..4999], b);
}

#[test]
fn appends_go_to_the_end_wherever_that_is() {
    let dir = cache(16).memfs().unwrap();
    let first = dir.append("log").unwrap();
    assert_eq!(first.append(b"one").unwrap(), (0, 3));
    let second = dir.append("log").unwrap();
    // The position of a write says nothing in a file open for appending.
    assert_eq!(second.write_at(b"two", 0).unwrap(), 3);
    assert_eq!(first.append(b"three").unwrap(), (6, 5));
    let mut all = String::new();
    dir.open("log").unwrap().read_to_string(&mut all).unwrap();
    assert_eq!(all, "onetwothree");
    let threads: Vec<_> = (0..4_u8)
        .map(|id| {
            let file = dir.append("many").unwrap();
            std::thread::spawn(move || {
                for _ in 0..200 {
                    file.append(&[id + 1; 7]).unwrap();
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let mut all = Vec::new();
    dir.open("many").unwrap().read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 4 * 200 * 7);
    assert!(all.chunks(7).all(|record| record == [record[0]; 7]));
}

#[test]
fn the_position_is_that_of_the_handle() {
    let dir = cache(16).memfs().unwrap();
    let mut file = dir.create("f").unwrap();
    file.write_all(b"hello world").unwrap();
    assert_eq!(file.stream_position().unwrap(), 11);
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), 6);
    let mut word = String::new();
    file.read_to_string(&mut word).unwrap();
    assert_eq!(word, "world");
    assert_eq!(file.seek(SeekFrom::Start(4)).unwrap(), 4);
    (&file).write_all(b"0").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(1)).unwrap(), 6);
    let mut byte = [0];
    (&file).read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"w");
    // Positional calls leave it alone.
    file.write_all_at(b"HELL", 0).unwrap();
    file.flush().unwrap();
    assert_eq!(file.stream_position().unwrap(), 7);
    file.rewind().unwrap();
    let mut all = String::new();
    file.read_to_string(&mut all).unwrap();
    assert_eq!(all, "HELL0 world");
    let error = file.seek(SeekFrom::Current(-100)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(file.stream_position().unwrap(), 11);
    // Past the end: a hole, as in the kernel.
    file.seek(SeekFrom::Start(20)).unwrap();
    file.write_all(b"!").unwrap();
    assert_eq!(file.len(), 21);
    let copied = std::io::copy(&mut dir.open("f").unwrap(), &mut dir.create("g").unwrap());
    assert_eq!(copied.unwrap(), 21);
}

#[test]
fn sizes_and_holes() {
    let disk = Disk::new(16);
    for dir in [disk.dir.clone(), disk.cache.memfs().unwrap()] {
        let file = dir.create("f").unwrap();
        file.write_all_at(&pattern(3, 4 * PAGE), 0).unwrap();
        file.set_len(PAGE as u64 + 7).unwrap();
        file.set_len(3 * PAGE as u64).unwrap();
        let mut expected = pattern(3, PAGE + 7);
        expected.resize(3 * PAGE, 0);
        file.punch_hole(100, 50).unwrap();
        expected[100..150].fill(0);
        match file.allocate(0, 4 * PAGE as u64) {
            Ok(()) => expected.resize(4 * PAGE, 0),
            // Memory cannot be promised to a file.
            Err(error) => {
                assert_eq!(error.errno(), Errno::EOPNOTSUPP);
                assert!(dir.stats().unwrap().is_none());
            }
        }
        let mut back = vec![9; 5 * PAGE];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), expected.len());
        assert!(back[..expected.len()] == expected);
        assert_eq!(file.punch_hole(0, 0).unwrap_err().errno(), Errno::EINVAL);
        let error = file.set_len(1 << 63).unwrap_err();
        assert_eq!(error.errno(), Errno::EFBIG);
        assert!(error.to_string().starts_with("cannot set the length of "));
    }
}

#[test]
fn a_handle_allows_its_access_mode_only() {
    let dir = cache(16).memfs().unwrap();
    let writer = dir.open_options().write(true).create(true).open("f");
    let writer = writer.unwrap();
    writer.write_all_at(b"x", 0).unwrap();
    let error = writer.read_at(&mut [0], 0).unwrap_err();
    assert!(matches!(&error, Error::File { errno, range, .. }
        if *errno == Errno::EBADF && *range == (0..1)));
    assert_eq!(
        error.to_string(),
        "cannot read memfs/f, bytes 0..1: EBADF: Bad file descriptor"
    );
    let reader = dir.open("f").unwrap();
    assert_eq!(reader.write_at(b"y", 0).unwrap_err().errno(), Errno::EBADF);
    assert_eq!(reader.append(b"y").unwrap_err().errno(), Errno::EBADF);
    assert_eq!(reader.set_len(0).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(reader.metadata().unwrap().len(), 1);
}

#[test]
fn an_error_keeps_its_number_and_kind_as_an_io_error() {
    let dir = cache(16).memfs().unwrap();
    let error = dir.open("missing").unwrap_err();
    assert_eq!(
        error.clone().to_string(),
        "cannot open memfs/missing: ENOENT: No such file or directory"
    );
    let error = io::Error::from(error);
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    let mut reader = dir
        .open_options()
        .write(true)
        .create(true)
        .open("f")
        .unwrap();
    let error = io::Read::read(&mut reader, &mut [0]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    let error = io::Error::from(reader.map(.., MapAccess::Read).unwrap_err());
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
}

#[test]
fn an_error_without_a_number_keeps_its_text_and_kind_as_an_io_error() {
    let dir = cache(16).memfs().unwrap();
    let error = io::Error::from(dir.open("../up").unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
    assert!(error.to_string().contains("leads out of memfs"), "{error}");
    assert!(matches!(error.downcast().unwrap(), Error::Escape { .. }));
    dir.write("bytes", [0xff]).unwrap();
    let error = dir.read_to_string("bytes").unwrap_err();
    assert_eq!(error.errno(), Errno::EILSEQ);
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);
}

#[test]
fn advice_brings_pages_in_and_drops_them() {
    let disk = Disk::new(16);
    std::fs::write(disk.in_source("f"), pattern(4, 64 * PAGE)).unwrap();
    let file = disk.dir.open("f").unwrap();
    file.advise(Advice::WillNeed, 8 * PAGE as u64..16 * PAGE as u64)
        .unwrap();
    let there = file.stats().unwrap();
    assert!(there.resident_pages >= 8, "{there:?}");
    let mut buf = vec![0; 8 * PAGE];
    file.read_exact_at(&mut buf, 8 * PAGE as u64).unwrap();
    assert!(buf == pattern(4, 64 * PAGE)[8 * PAGE..16 * PAGE]);
    assert_eq!(file.stats().unwrap().missed_pages, there.missed_pages);
    file.advise(Advice::DontNeed, ..).unwrap();
    assert_eq!(file.stats().unwrap().resident_pages, 0);
    file.advise(Advice::Random, ..).unwrap();
    let before = file.stats().unwrap();
    file.read_exact_at(&mut buf[..1], 40 * PAGE as u64).unwrap();
    let after = file.stats().unwrap();
    assert_eq!(
        (after.resident_pages, after.missed_pages),
        (1, before.missed_pages + 1)
    );
    // Empty ranges mean nothing, not everything.
    file.advise(Advice::DontNeed, 5..5).unwrap();
    assert_eq!(file.stats().unwrap().resident_pages, 1);
    file.advise(Advice::Sequential, 0..=1).unwrap();
    file.advise(Advice::Normal, ..).unwrap();
}

#[test]
fn figures_of_a_file() {
    let disk = Disk::new(16);
    std::fs::write(disk.in_source("f"), pattern(5, 32 * PAGE)).unwrap();
    let file = disk.dir.open_options().read(true).write(true).open("f");
    let file = file.unwrap();
    let mut page = vec![0; PAGE];
    for at in 0..32 {
        file.read_exact_at(&mut page, at * PAGE as u64).unwrap();
    }
    let read = file.stats().unwrap();
    assert_eq!(read.resident_pages, 32);
    assert_eq!(
        read.hit_pages + read.readahead_first_used_pages + read.missed_pages,
        32
    );
    assert!(read.readahead_pages > 0 && read.readahead_used_pages == read.readahead_pages);
    assert!(read.read_bytes >= 32 * PAGE as u64);
    file.write_all_at(&page, 0).unwrap();
    file.write_all_at(&page, 9 * PAGE as u64).unwrap();
    // A folio of several pages counts whole, and is written in part.
    let dirty = file.stats().unwrap().dirty_pages;
    assert!((2..=2 * 16).contains(&dirty), "{dirty} pages dirty");
    file.sync_all().unwrap();
    let synced = file.stats().unwrap();
    assert_eq!(
        (
            synced.dirty_pages,
            synced.unstable_pages,
            synced.failed_pages
        ),
        (0, 0, 0)
    );
    assert_eq!(synced.written_bytes, 2 * PAGE as u64);
    assert_eq!(file.failed_ranges().unwrap(), []);
    assert_eq!(file.discard_failed().unwrap(), []);
    let all = disk.cache.stats().unwrap();
    assert_eq!(all.files.resident_pages, 32);
    assert!(all.memory.total_bytes() <= all.memory.limit_bytes);
    let io = disk.dir.stats().unwrap().unwrap();
    assert!(io.flushes > 0);
}

#[test]
fn figures_of_memory_that_is_short() {
    let builder = Cache::builder().memory("16M");
    let builder = builder.dirty_background_percent(1).dirty_percent(2);
    let (cache, source) = (builder.build().unwrap(), on_disk());
    let dir = cache.directory(source.path()).unwrap();
    let file = dir.create("f").unwrap();
    let bytes = pattern(6, 24 << 20);
    file.write_all_at(&bytes, 0).unwrap();
    assert!(
        !file.stats().unwrap().throttled.is_zero(),
        "24 MiB, 2 % may be dirty"
    );
    file.sync_data().unwrap();
    file.advise(Advice::Random, ..).unwrap();
    let mut page = vec![0; PAGE];
    for _ in 0..2 {
        for (at, expected) in bytes.chunks(PAGE).enumerate() {
            file.read_exact_at(&mut page, (at * PAGE) as u64).unwrap();
            assert!(page == expected);
        }
    }
    let stats = file.stats().unwrap();
    assert!(stats.evicted_pages > 0 && stats.refaults > 0, "{stats:?}");
    assert!(stats.resident_pages < 16 << 8, "{stats:?}");
    assert_eq!(
        stats.written_bytes,
        cache.stats().unwrap().files.written_bytes
    );
    // Read ahead, and dropped before its first use.
    let other = dir.create("g").unwrap();
    other.write_all_at(&bytes[..1 << 20], 0).unwrap();
    other.sync_data().unwrap();
    // A read has only what was asked for while there is no memory for more at once.
    let before = loop {
        other.advise(Advice::DontNeed, ..).unwrap();
        other.read_exact_at(&mut page, 0).unwrap();
        let stats = other.stats().unwrap();
        if stats.readahead_pages > stats.readahead_used_pages + stats.readahead_wasted_pages {
            break stats;
        }
    };
    other.advise(Advice::DontNeed, ..).unwrap();
    let after = other.stats().unwrap();
    assert_eq!(
        after.readahead_wasted_pages - before.readahead_wasted_pages,
        before.readahead_pages - before.readahead_used_pages - before.readahead_wasted_pages
    );
    assert!(after.readahead_wasted_pages > 0, "{after:?}");
}

#[test]
fn an_unlinked_file_lives_as_long_as_its_handle() {
    let disk = Disk::new(16);
    for dir in [disk.dir.clone(), disk.cache.memfs().unwrap()] {
        let file = dir.create("f").unwrap();
        file.write_all_at(b"still there", 0).unwrap();
        dir.remove_file("f").unwrap();
        assert_eq!(dir.open("f").unwrap_err().errno(), Errno::ENOENT);
        let mut buf = [0; 11];
        file.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"still there");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.sync_all().unwrap();
    }
}
