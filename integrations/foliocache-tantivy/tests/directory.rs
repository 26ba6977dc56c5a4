//! What tantivy's trait promises of a directory, and what this crate promises beyond it.

mod common;

use common::{cache, directory, on_disk, pattern, wait_until, write};
use foliocache_tantivy::FoliocacheDirectory;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tantivy::directory::error::{
    DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError,
};
use tantivy::directory::{Lock, TerminatingWrite, WatchCallback};
use tantivy::{Directory, HasLen};

const MIB: usize = 1 << 20;

fn lock(name: &str, is_blocking: bool) -> Lock {
    Lock {
        filepath: name.into(),
        is_blocking,
    }
}

#[test]
fn a_terminated_file_is_read_and_is_in_the_source() {
    let (_cache, directory, source) = directory(16);
    let bytes = pattern(1, 300_000);
    write(&directory, "segment.idx", &bytes);
    let file = directory.open_read(Path::new("segment.idx")).unwrap();
    assert_eq!(file.len(), bytes.len());
    assert_eq!(file.read_bytes().unwrap().as_slice(), bytes);
    for range in [0..1, 0..0, 4_095..4_097, 100_000..299_999, 299_999..300_000] {
        let read = file.read_bytes_slice(range.clone()).unwrap();
        assert_eq!(read.as_slice(), &bytes[range]);
    }
    assert_eq!(fs::read(source.path().join("segment.idx")).unwrap(), bytes);
}

#[test]
fn an_empty_file_is_empty() {
    let (_cache, directory, _source) = directory(16);
    write(&directory, "empty", b"");
    let file = directory.open_read(Path::new("empty")).unwrap();
    assert_eq!(file.read_bytes().unwrap().as_slice(), b"");
}

#[test]
fn a_name_is_written_once() {
    let (_cache, directory, _source) = directory(16);
    let path = Path::new("once");
    assert!(!directory.exists(path).unwrap());
    let writer = directory.open_write(path).unwrap();
    assert!(directory.exists(path).unwrap());
    let again = directory.open_write(path).err().unwrap();
    assert!(matches!(again, OpenWriteError::FileAlreadyExists(name) if name == path));
    writer.terminate().unwrap();
    assert!(directory.open_write(path).is_err());
    directory.delete(path).unwrap();
    assert!(directory.open_write(path).is_ok());
}

#[test]
fn a_missing_file_is_said_to_be_missing() {
    let (_cache, directory, _source) = directory(16);
    let path = Path::new("missing");
    let read = directory.open_read(path).unwrap_err();
    assert!(matches!(read, OpenReadError::FileDoesNotExist(name) if name == path));
    let read = directory.atomic_read(path).unwrap_err();
    assert!(matches!(read, OpenReadError::FileDoesNotExist(name) if name == path));
    let delete = directory.delete(path).unwrap_err();
    assert!(matches!(delete, DeleteError::FileDoesNotExist(name) if name == path));
    assert!(!directory.exists(path).unwrap());
}

#[test]
fn a_missing_directory_and_a_file_in_its_place_are_told_apart() {
    let (cache, source) = (cache(16), on_disk());
    fs::write(source.path().join("file"), b"").unwrap();
    let missing = FoliocacheDirectory::open(&cache, source.path().join("missing")).unwrap_err();
    assert!(
        matches!(missing, OpenDirectoryError::DoesNotExist(_)),
        "{missing:?}"
    );
    let file = FoliocacheDirectory::open(&cache, source.path().join("file")).unwrap_err();
    assert!(
        matches!(file, OpenDirectoryError::NotADirectory(_)),
        "{file:?}"
    );
}

#[test]
fn another_error_has_its_kind_and_names_the_file() {
    let (_cache, directory, _source) = directory(16);
    let error = directory.open_read(Path::new("../outside")).unwrap_err();
    let OpenReadError::IoError { io_error, .. } = error else {
        panic!("{error:?}");
    };
    assert!(io_error.to_string().contains("../outside"), "{io_error}");
    let cause = io_error.get_ref().unwrap();
    assert!(cause.is::<foliocache::Error>(), "{cause:?}");
}

#[test]
fn a_file_that_others_cut_is_an_error_and_no_panic() {
    let (_cache, directory, source) = directory(16);
    let bytes = pattern(2, 100_000);
    fs::write(source.path().join("cut"), &bytes).unwrap();
    let file = directory.open_read(Path::new("cut")).unwrap();
    fs::write(source.path().join("cut"), &bytes[..10_000]).unwrap();
    // The cache looks at the file when it is opened once more.
    wait_until("the change is seen", || {
        directory.open_read(Path::new("cut")).unwrap().len() == 10_000
    });
    let error = file.read_bytes_slice(50_000..60_000).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
}

/// More than the cache holds, so that most of it has to come from a source that has no name for it any more.
#[test]
fn a_deleted_file_is_read_to_its_end_by_those_who_have_it() {
    let (_cache, directory, source) = directory(16);
    let bytes = pattern(3, 40 * MIB);
    write(&directory, "deleted", &bytes);
    let file = directory.open_read(Path::new("deleted")).unwrap();
    let first = file.read_bytes_slice(0..1000).unwrap();
    directory.delete(Path::new("deleted")).unwrap();
    assert!(!directory.exists(Path::new("deleted")).unwrap());
    assert!(!source.path().join("deleted").exists());
    assert!(directory.open_read(Path::new("deleted")).is_err());
    assert_eq!(first.as_slice(), &bytes[..1000]);
    for start in (0..bytes.len()).step_by(MIB / 2) {
        let part = file.read_bytes_slice(start..start + MIB / 2).unwrap();
        assert!(part.as_slice() == &bytes[start..start + MIB / 2], "{start}");
    }
}

#[test]
fn a_name_that_is_written_again_leaves_the_old_file_to_its_readers() {
    let (_cache, directory, _source) = directory(16);
    write(&directory, "name", &pattern(4, 50_000));
    let old = directory.open_read(Path::new("name")).unwrap();
    directory.delete(Path::new("name")).unwrap();
    write(&directory, "name", &pattern(5, 60_000));
    let new = directory.open_read(Path::new("name")).unwrap();
    assert_eq!(old.read_bytes().unwrap().as_slice(), pattern(4, 50_000));
    assert_eq!(new.read_bytes().unwrap().as_slice(), pattern(5, 60_000));
}

#[test]
fn an_atomic_write_is_seen_whole_or_not() {
    let (_cache, directory, source) = directory(16);
    let path = Path::new("state.json");
    let content = |round: usize| vec![b'a' + (round % 26) as u8; 1 + round * 37 % 20_000];
    directory.atomic_write(path, &content(0)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let mut reads = 0;
            while !over.load(SeqCst) || reads == 0 {
                let read = directory.atomic_read(path).unwrap();
                assert!(!read.is_empty());
                assert!(read.iter().all(|byte| *byte == read[0]), "it is torn");
                let round = usize::from(read[0] - b'a');
                let is_one = (round..400).step_by(26).any(|round| content(round) == read);
                assert!(is_one, "{} bytes of {}", read.len(), read[0] as char);
                reads += 1;
            }
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        for round in 1..200 {
            directory.atomic_write(path, &content(round)).unwrap();
        }
        over.store(true, SeqCst);
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert_eq!(
        fs::read(source.path().join("state.json")).unwrap(),
        content(199)
    );
    assert_eq!(
        fs::read_dir(source.path()).unwrap().count(),
        1,
        "temporary files"
    );
}

#[test]
fn a_failed_atomic_write_changes_nothing_and_leaves_nothing() {
    let (_cache, directory, source) = directory(16);
    fs::create_dir(source.path().join("taken")).unwrap();
    // A file does not replace a directory.
    let error = directory
        .atomic_write(Path::new("taken"), b"x")
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::IsADirectory, "{error}");
    assert_eq!(
        fs::read_dir(source.path()).unwrap().count(),
        1,
        "temporary files"
    );
}

#[test]
fn a_lock_excludes_others_until_it_is_dropped() {
    let (_cache, directory, source) = directory(16);
    let held = directory.acquire_lock(&lock(".a.lock", false)).unwrap();
    let _other = directory.acquire_lock(&lock(".b.lock", false)).unwrap();
    let busy = directory.acquire_lock(&lock(".a.lock", false));
    assert!(matches!(busy, Err(LockError::LockBusy)));
    // A program without a cache is excluded, too, and excludes.
    let file = fs::File::open(source.path().join(".a.lock")).unwrap();
    assert!(file.try_lock().is_err());
    drop(held);
    file.lock().unwrap();
    let busy = directory.acquire_lock(&lock(".a.lock", false));
    assert!(matches!(busy, Err(LockError::LockBusy)));
    drop(file);
    assert!(directory.acquire_lock(&lock(".a.lock", false)).is_ok());
}

#[test]
fn a_blocking_lock_waits() {
    let (_cache, directory, _source) = directory(16);
    let held = directory.acquire_lock(&lock(".a.lock", true)).unwrap();
    let is_free = Arc::new(AtomicBool::new(false));
    let waiter = {
        let (directory, is_free) = (directory.clone(), Arc::clone(&is_free));
        std::thread::spawn(move || {
            let _lock = directory.acquire_lock(&lock(".a.lock", true)).unwrap();
            assert!(is_free.load(SeqCst), "it did not wait");
        })
    };
    std::thread::sleep(Duration::from_millis(50));
    is_free.store(true, SeqCst);
    drop(held);
    waiter.join().unwrap();
}

#[test]
fn a_commit_is_told_once_to_those_who_watch() {
    let (_cache, directory, source) = directory(16);
    let told = Arc::new(AtomicUsize::new(0));
    let callback = {
        let told = Arc::clone(&told);
        WatchCallback::new(move || {
            told.fetch_add(1, SeqCst);
        })
    };
    let handle = directory.watch(callback).unwrap();
    let meta = Path::new("meta.json");
    directory.atomic_write(meta, b"one").unwrap();
    wait_until("told of the first", || told.load(SeqCst) == 1);
    directory.atomic_write(meta, b"two").unwrap();
    wait_until("told of the second", || told.load(SeqCst) == 2);
    // The thread that looks has nothing to add.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(told.load(SeqCst), 2);
    directory
        .atomic_write(Path::new("other.json"), b"x")
        .unwrap();
    // Another program commits.
    fs::write(source.path().join("new"), b"three").unwrap();
    fs::rename(source.path().join("new"), source.path().join("meta.json")).unwrap();
    wait_until("told of the third", || told.load(SeqCst) == 3);
    drop(handle);
    directory.atomic_write(meta, b"four").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(told.load(SeqCst), 3);
}

#[test]
fn short_ranges_are_views_without_a_copy() {
    let (_cache, directory, _source) = directory(64);
    let bytes = pattern(6, MIB);
    write(&directory, "file", &bytes);
    let file = directory.open_read(Path::new("file")).unwrap();
    file.read_bytes_slice(0..MIB - 1).unwrap(); // it is in the cache
    let before = directory.read_stats();
    for at in (0..MIB).step_by(4096) {
        let read = file.read_bytes_slice(at..at + 4096).unwrap();
        assert_eq!(read.as_slice(), &bytes[at..at + 4096]);
    }
    let stats = directory.read_stats();
    assert_eq!(stats.views - before.views, 256, "{stats:?}");
    assert_eq!((stats.copies, stats.heap_copies), (before.copies, 0));
}

#[test]
fn long_ranges_are_mapped_and_no_copy() {
    let (cache, directory, _source) = directory(32);
    let bytes = pattern(7, 50 * MIB);
    write(&directory, "long", &bytes);
    let file = directory.open_read(Path::new("long")).unwrap();
    // More than the cache has, and all of it is kept.
    let whole = file.read_bytes().unwrap();
    let short = file.read_bytes_slice(5..70_000).unwrap();
    assert!(whole.as_slice() == bytes);
    assert_eq!(short.as_slice(), &bytes[5..70_000]);
    let stats = directory.read_stats();
    assert_eq!(stats.mapped, 2, "{stats:?}");
    assert_eq!((stats.views, stats.copies, stats.heap_copies), (0, 0, 0));
    let memory = cache.stats().unwrap().memory;
    assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
    // They outlive file, directory and name.
    directory.delete(Path::new("long")).unwrap();
    drop((file, directory, cache));
    assert!(whole.as_slice() == bytes);
}

#[test]
fn when_copies_have_their_share_ranges_are_mapped() {
    let (_cache, directory, _source) = directory(16);
    let bytes = pattern(8, 20 * MIB);
    write(&directory, "file", &bytes);
    let file = directory.open_read(Path::new("file")).unwrap();
    let part = |at: usize| at..at + MIB - 1;
    let kept: Vec<_> = (0..19)
        .map(|nth| file.read_bytes_slice(part(nth * MIB + 7)).unwrap())
        .collect();
    for (nth, kept) in kept.iter().enumerate() {
        assert!(kept.as_slice() == &bytes[part(nth * MIB + 7)], "{nth}");
    }
    let stats = directory.read_stats();
    assert!(stats.copies > 0 && stats.mapped > 0, "{stats:?}");
    assert_eq!(stats.heap_copies, 0, "{stats:?}");
}

#[test]
fn without_mappings_what_finds_no_room_is_on_the_heap_and_counted() {
    let (_cache, directory, _source) = directory(16);
    let directory = directory.map_from(None);
    let bytes = pattern(9, 20 * MIB);
    write(&directory, "file", &bytes);
    let file = directory.open_read(Path::new("file")).unwrap();
    let whole = file.read_bytes().unwrap();
    assert!(whole.as_slice() == bytes);
    let stats = directory.read_stats();
    assert_eq!((stats.heap_copies, stats.mapped), (1, 0), "{stats:?}");
    assert_eq!(stats.heap_bytes, bytes.len() as u64);
    let slice = whole.slice(1..2);
    drop(whole);
    assert_eq!(directory.read_stats().heap_bytes, bytes.len() as u64);
    drop(slice);
    assert_eq!(directory.read_stats().heap_bytes, 0);
}

#[test]
fn a_file_that_is_being_written_is_not_mapped() {
    let (_cache, directory, _source) = directory(32);
    let path = Path::new("growing");
    let bytes = pattern(10, 3 * MIB);
    let mut writer = directory.open_write(path).unwrap();
    std::io::Write::write_all(&mut writer, &bytes).unwrap();
    std::io::Write::flush(&mut writer).unwrap();
    let early = directory.open_read(path).unwrap();
    assert!(early.read_bytes().unwrap().as_slice() == bytes);
    assert_eq!(directory.read_stats().mapped, 0);
    writer.terminate().unwrap();
    assert!(early.read_bytes().unwrap().as_slice() == bytes);
    assert_eq!(directory.read_stats().mapped, 1);
}
