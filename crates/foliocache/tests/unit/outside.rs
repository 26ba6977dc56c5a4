//! Changes by programs beside the cache: sizes, checks on demand, and data handed to them.

use crate::common::executor::{block_on, poll_once};
use crate::common::{Disk, cache, on_disk, pattern};
use foliocache::{Cache, DirectoryOptions, Errno, File, ReadBatch, TryLockError};
use std::fs;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::task::Poll;
use std::time::{Duration, Instant};

fn write_beside(path: &std::path::Path, bytes: &[u8], pos: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, pos).unwrap();
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let n = file.read_full_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn revalidate_shows_and_reports_writes_by_others() {
    for watch in [true, false] {
        let (cache, source) = (cache(16), on_disk());
        let path = source.path().join("f");
        fs::write(&path, pattern(1, 5000)).unwrap();
        // Only a look on demand finds it.
        let options = DirectoryOptions::new().watch(watch);
        let options = options.revalidate_after(Duration::from_secs(3600));
        let dir = cache.directory_with(source.path(), options).unwrap();
        let file = dir.open_options().read(true).write(true).open("f").unwrap();
        assert!(content(&file) == pattern(1, 5000));
        let looked = || u64::from(file.revalidate().unwrap());
        becomes(&looked, 0);
        write_beside(&path, &pattern(2, 9000), 0);
        assert!(file.revalidate().unwrap());
        becomes(&looked, 0);
        assert!(content(&file) == pattern(2, 9000));
        // Data of ours that waits goes first, written data does not stand in the way.
        file.write_all_at(b"ours", 0).unwrap();
        write_beside(&path, b"theirs", 4096);
        assert!(!file.revalidate().unwrap());
        file.write_out().unwrap();
        assert_eq!(&fs::read(&path).unwrap()[..4], b"ours");
        assert!(file.revalidate().unwrap());
        assert_eq!(&content(&file)[4096..4102], b"theirs");
        assert_eq!(&content(&file)[..4], b"ours");
        // It is replaced from outside: an open handle keeps the old file.
        let before = content(&file);
        fs::write(source.path().join("new"), "new").unwrap();
        fs::rename(source.path().join("new"), &path).unwrap();
        file.revalidate().unwrap();
        assert!(content(&file) == before);
        assert!(
            !cache
                .memfs()
                .unwrap()
                .create("f")
                .unwrap()
                .revalidate()
                .unwrap()
        );
    }
}

/// Waits until `value` is `expected`.
fn becomes(value: &dyn Fn() -> u64, expected: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while value() != expected {
        assert!(Instant::now() < deadline, "{} is not {expected}", value());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_length_is_that_of_metadata_beside_others() {
    for watch in [true, false] {
        let (cache, source) = (cache(16), on_disk());
        let path = source.path().join("f");
        fs::write(&path, [1; 5000]).unwrap();
        let options = DirectoryOptions::new().watch(watch);
        let options = options.revalidate_after(Duration::from_millis(20));
        let dir = cache.directory_with(source.path(), options).unwrap();
        let mut file = dir.open_options().read(true).write(true).open("f").unwrap();
        assert_eq!(file.len(), 5000);
        for round in 0..20u64 {
            write_beside(&path, b"more", 6000 + round);
            // Events are read every 8 ms, and an unwatched answer is believed for 20.
            becomes(&|| file.len(), 6004 + round);
            assert_eq!(file.metadata().unwrap().len(), 6004 + round);
            assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 6004 + round);
        }
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        becomes(&|| u64::from(!file.is_empty()), 0);
        // Ours holds while it waits.
        file.write_all_at(&[1; 100], 0).unwrap();
        assert_eq!(file.len(), 100);
    }
}

#[test]
fn a_full_read_ends_with_the_file_and_touches_nothing_behind_it() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    let data = pattern(3, 3 << 20);
    file.write_all_at(&data, 0).unwrap();
    file.sync_all().unwrap();
    let mut buf = vec![0xee; 1 << 20];
    let tail = data.len() as u64 - 5000;
    assert_eq!(file.read_full_at(&mut buf, tail).unwrap(), 5000);
    assert_eq!(buf[..5000], data[tail as usize..]);
    assert!(buf[5000..].iter().all(|&byte| byte == 0xee));
    assert_eq!(file.read_full_at(&mut buf, data.len() as u64).unwrap(), 0);
    assert_eq!(file.read_full_at(&mut buf, 0).unwrap(), 1 << 20);
    assert_eq!(buf, data[..1 << 20]);
    let mut long = vec![0; 4 << 20];
    assert_eq!(file.read_full_at(&mut long, 0).unwrap(), 3 << 20);
    let write_only = disk.dir.open_options().write(true).open("f").unwrap();
    let error = write_only.read_full_at(&mut buf, 0).unwrap_err();
    assert_eq!(error.errno(), Errno::EBADF);
}

#[test]
fn a_batch_into_an_arena_reads_the_same_as_single_reads() {
    let disk = Disk::new(16);
    let data = pattern(4, 2 << 20);
    fs::write(disk.in_source("f"), &data).unwrap();
    let file = disk.dir.open("f").unwrap();
    let (mut batch, mut arena) = (ReadBatch::new(), vec![0xee; 1 << 18]);
    assert!(batch.is_empty());
    for seed in 0..20 {
        let ranges: Vec<_> = (0..100u64)
            .map(|nr| {
                let random = (nr + 1 + seed * 1000).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (
                    (random >> 40) % (data.len() as u64 + 5000),
                    (random & 0x7ff) as usize,
                )
            })
            .collect();
        file.read_batch_into(&ranges, &mut arena, &mut batch)
            .unwrap();
        assert_eq!(batch.parts(&arena).len(), 100);
        for ((nr, part), &(pos, len)) in batch.parts(&arena).enumerate().zip(&ranges) {
            let end = data.len().min(pos as usize + len);
            let expected = &data[end.min(pos as usize)..end];
            assert!(part == expected, "range {pos}, {len}");
            assert_eq!(batch.result(nr), Ok(expected.len()));
        }
    }
    // Each range has its room, also where the file ends.
    let end = data.len() as u64;
    arena.fill(0xee);
    let ranges = [(end - 3, 10), (end + 9, 10), (0, 10)];
    file.read_batch_into(&ranges, &mut arena, &mut batch)
        .unwrap();
    assert_eq!(arena[..3], data[data.len() - 3..]);
    assert!(arena[3..20].iter().all(|&byte| byte == 0xee));
    assert_eq!(arena[20..30], data[..10]);
    assert_eq!(batch.result(3), Err(Errno::EINVAL));
}

#[test]
fn a_batch_into_an_arena_has_an_error_for_each_range() {
    let disk = Disk::new(16);
    let data = pattern(5, 10_000);
    disk.dir.write("f", &data).unwrap();
    let file = disk.dir.open("f").unwrap();
    let (mut batch, mut arena) = (ReadBatch::new(), vec![0; 300]);
    let ranges = [(0, 100), (u64::MAX, 100), (9950, 100)];
    let error = file
        .read_batch_into(&ranges, &mut arena, &mut batch)
        .unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains(&u64::MAX.to_string()), "{error}");
    assert_eq!(
        [0, 1, 2].map(|nr| batch.result(nr)),
        [Ok(100), Err(Errno::EINVAL), Ok(50)]
    );
    assert_eq!(
        batch.parts(&arena).map(<[u8]>::len).collect::<Vec<_>>(),
        [100, 0, 50]
    );
    // An arena that is too small is not touched.
    let error = file
        .read_batch_into(&[(0, 299), (0, 2)], &mut arena, &mut batch)
        .unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(batch.is_empty());
    file.read_batch_into(&[(0, 299), (0, 1)], &mut arena, &mut batch)
        .unwrap();
    assert_eq!(batch.len(), 2);
}

#[test]
fn async_files_look_lock_and_read_to_the_end_as_others_do() {
    let disk = Disk::new(16);
    disk.dir.write("f", pattern(6, 5000)).unwrap();
    disk.cache.sync().unwrap();
    let open = || {
        disk.dir
            .open_options()
            .read(true)
            .write(true)
            .open("f")
            .unwrap()
    };
    let (file, other) = (open().into_async().unwrap(), open());
    let beside = fs::File::open(disk.in_source("f")).unwrap();
    block_on(async {
        let mut buf = vec![0xee; 6000];
        assert_eq!(file.read_full_at(&mut buf, 0).await.unwrap(), 5000);
        assert_eq!(buf[..5000], pattern(6, 5000));
        let locked = file.run(|file| Ok(file.try_lock())).await.unwrap();
        locked.unwrap();
        assert!(matches!(
            other.try_lock_shared(),
            Err(TryLockError::WouldBlock)
        ));
        file.write_all_at(b"async", 0).await.unwrap();
        file.run(File::unlock).await.unwrap();
        let mut five = [0; 5];
        beside.read_exact_at(&mut five, 0).unwrap();
        assert_eq!(&five, b"async");
        beside.lock_shared().unwrap();
        let locked = file.run(|file| Ok(file.try_lock_shared())).await.unwrap();
        locked.unwrap();
        assert!(matches!(
            file.run(|file| Ok(file.try_lock())).await,
            Ok(Err(TryLockError::WouldBlock))
        ));
        write_beside(&disk.in_source("f"), b"beside", 0);
        assert!(file.run(File::revalidate).await.unwrap());
        file.write_all_at(b"out", 3).await.unwrap();
        file.run(File::write_out).await.unwrap();
    });
    assert_eq!(&fs::read(disk.in_source("f")).unwrap()[..6], b"besout");
    let (mut batch, mut arena) = (ReadBatch::new(), vec![0; 100]);
    block_on(file.read_batch_into(&[(0, 3), (4990, 50)], &mut arena, &mut batch)).unwrap();
    assert_eq!(
        batch.parts(&arena).map(<[u8]>::len).collect::<Vec<_>>(),
        [3, 10]
    );
    let ranges = [(0, 6)];
    let mut again = Box::pin(file.read_batch_into(&ranges, &mut arena, &mut batch));
    assert!(matches!(poll_once(again.as_mut()), Poll::Ready(Ok(()))));
    drop(again);
    assert_eq!(batch.parts(&arena).next(), Some(&b"besout"[..]));
    assert_eq!(file.len(), 5000);
}

/// A program without a cache sees the data handed to it, and so does another cache that checks.
#[test]
fn two_caches_hand_data_to_each_other_without_locks() {
    let source = on_disk();
    let options = || DirectoryOptions::new().ignore_lock(true);
    let caches: [Cache; 2] = [cache(16), cache(16)];
    let dirs = (caches.each_ref()).map(|cache| cache.directory_with(source.path(), options()));
    let [one, other] = dirs.map(Result::unwrap);
    let one = one.create("f").unwrap();
    one.write_all_at(&[0; 8192], 0).unwrap();
    one.write_out().unwrap();
    let other = other
        .open_options()
        .read(true)
        .write(true)
        .open("f")
        .unwrap();
    for round in 1..=30u8 {
        let (writer, reader) = match round % 2 {
            0 => (&one, &other),
            _ => (&other, &one),
        };
        writer.write_all_at(&[round; 8192], 0).unwrap();
        writer.write_out().unwrap();
        assert!(reader.revalidate().unwrap(), "round {round}");
        assert!(content(reader) == [round; 8192]);
    }
}
