//! Locks of handles: whom they exclude, that the next holder sees the data, and when they end.
#![allow(
    unsafe_code,
    reason = "one test has a signal ignored, in a process of its own"
)]

use crate::common::{Disk, cache, is_alone, on_disk, run_alone};
use foliocache::{Cache, Directory, DirectoryOptions, Errno, File, LockKind, TryLockError};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Opens a file for reading and writing.
fn open(dir: &Directory, name: &str) -> File {
    let mut options = dir.open_options();
    options.read(true).write(true).open(name).unwrap()
}

/// The same beside the cache.
fn open_beside(path: &Path) -> fs::File {
    let mut options = fs::File::options();
    options.read(true).write(true).open(path).unwrap()
}

fn would_block(result: Result<(), TryLockError>) -> bool {
    match result {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(error) => panic!("{error}"),
    }
}

fn would_block_beside(result: Result<(), fs::TryLockError>) -> bool {
    match result {
        Ok(()) => false,
        Err(fs::TryLockError::WouldBlock) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn two_handles_exclude_each_other_and_clones_share_a_lock() {
    let disk = Disk::new(16);
    disk.dir.create("f").unwrap();
    let [one, other] = [0, 1].map(|_| open(&disk.dir, "f"));
    one.unlock().unwrap();
    one.lock().unwrap();
    assert!(would_block(other.try_lock()));
    assert!(would_block(other.try_lock_shared()));
    let clone = one.try_clone().unwrap();
    drop(one);
    assert!(would_block(other.try_lock()), "the clone has it");
    clone.unlock().unwrap();
    assert!(!would_block(other.try_lock_shared()));
    assert!(!would_block(clone.try_lock_shared()));
    assert!(would_block(clone.try_lock()));
    other.unlock().unwrap();
    assert!(!would_block(clone.try_lock()));
    drop(clone);
    assert!(!would_block(other.try_lock()), "a drop unlocks");
}

#[test]
fn programs_that_lock_the_source_are_excluded_and_exclude() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    let reading = disk.dir.open("f").unwrap();
    let beside = open_beside(&disk.in_source("f"));
    for handle in [&file, &reading] {
        handle.lock().unwrap();
        assert!(would_block_beside(beside.try_lock_shared()));
        handle.lock_shared().unwrap();
        assert!(!would_block_beside(beside.try_lock_shared()));
        beside.unlock().unwrap();
        handle.unlock().unwrap();
        beside.lock().unwrap();
        assert!(would_block(handle.try_lock_shared()));
        beside.unlock().unwrap();
    }
    let error = std::io::Error::from(TryLockError::WouldBlock);
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_lock_waits_for_its_holder() {
    let disk = Disk::new(16);
    let [one, other] = [disk.dir.create("f").unwrap(), open(&disk.dir, "f")];
    one.lock().unwrap();
    let (told, locked) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            other.lock().unwrap();
            let mut all = String::new();
            (&other).read_to_string(&mut all).unwrap();
            told.send(all).unwrap();
        });
        // It cannot have the lock before, however long this thread takes.
        assert_eq!(locked.try_recv(), Err(mpsc::TryRecvError::Empty));
        one.write_all_at(b"written under the lock", 0).unwrap();
        assert_eq!(locked.try_recv(), Err(mpsc::TryRecvError::Empty));
        one.unlock().unwrap();
        let all = locked.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(all, "written under the lock");
    });
}

#[test]
fn what_was_written_under_a_lock_is_in_the_source_when_it_ends() {
    let disk = Disk::new(16);
    let path = disk.in_source("f");
    let source = || fs::read(&path).unwrap();
    let file = disk.dir.create("f").unwrap();
    file.lock().unwrap();
    file.write_all_at(b"unlock", 0).unwrap();
    file.unlock().unwrap();
    assert_eq!(source(), b"unlock");
    file.lock().unwrap();
    // Of another handle too.
    open(&disk.dir, "f").write_all_at(b"shared", 0).unwrap();
    file.lock_shared().unwrap();
    assert_eq!(source(), b"shared");
    file.lock_range(5..6, LockKind::Exclusive).unwrap();
    file.write_all_at(b"ranges", 0).unwrap();
    file.unlock_range(5..6).unwrap();
    assert_eq!(source(), b"ranges");
    file.lock().unwrap();
    file.write_all_at(b"drop, and a new size", 0).unwrap();
    let clone = file.try_clone().unwrap();
    drop(file);
    drop(clone);
    assert_eq!(source(), b"drop, and a new size");
}

#[test]
fn a_lock_shows_writes_by_others_beside_data_that_is_not_durable() {
    for watch in [true, false] {
        let (cache, source) = (cache(16), on_disk());
        let options = DirectoryOptions::new().watch(watch);
        let dir = cache.directory_with(source.path(), options).unwrap();
        let file = dir.create("f").unwrap();
        let beside = open_beside(&source.path().join("f"));
        for round in 0..50u8 {
            let (ours, theirs) = ([round; 3000], [round ^ 0x80; 3000]);
            file.lock().unwrap();
            file.write_all_at(&ours, 6000).unwrap();
            file.unlock().unwrap();
            beside.lock().unwrap();
            let mut seen = [0; 3000];
            beside.read_exact_at(&mut seen, 6000).unwrap();
            assert!(seen == ours, "round {round}");
            beside.write_all_at(&theirs, 3000).unwrap();
            beside.write_all_at(&theirs, 6000).unwrap();
            beside.unlock().unwrap();
            match round % 2 {
                0 => file.lock_shared().unwrap(),
                _ => file.lock_range(0..1, LockKind::Shared).unwrap(),
            }
            for pos in [3000, 6000] {
                file.read_exact_at(&mut seen, pos).unwrap();
                assert!(seen == theirs, "round {round}, byte {pos}");
            }
            file.unlock().unwrap();
            file.unlock_range(..).unwrap();
        }
    }
}

#[test]
fn a_lock_ends_though_its_data_cannot_be_written_only_when_it_is_dropped() {
    run_alone("file_locks::a_source_that_refuses_writes");
}

#[test]
fn a_source_that_refuses_writes() {
    if !is_alone() {
        return;
    }
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    file.write_all_at(&[1; 100], 0).unwrap();
    file.sync_all().unwrap();
    let beside = open_beside(&disk.in_source("f"));
    let at_most = |current: Option<u64>| {
        let maximum = None;
        setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    };
    // SAFETY: no other thread cares for this signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    file.lock().unwrap();
    file.write_all_at(&[2; 8 << 10], 0).unwrap();
    at_most(Some(50));
    let error = file.unlock().unwrap_err();
    assert!(error.to_string().contains("cannot unlock"), "{error}");
    assert_eq!(error.errno(), Errno::EFBIG);
    assert!(would_block_beside(beside.try_lock_shared()), "it stays");
    drop(file);
    assert!(!would_block_beside(beside.try_lock()), "it is gone");
    at_most(None);
    let file = open(&disk.dir, "f");
    beside.unlock().unwrap();
    file.lock().unwrap();
    file.unlock().unwrap();
    assert_eq!(fs::read(disk.in_source("f")).unwrap(), [2; 8 << 10]);
}

#[test]
fn a_lock_stays_with_its_file_when_names_move() {
    let disk = Disk::new(16);
    let file = disk.dir.create("f").unwrap();
    file.write_all_at(b"old", 0).unwrap();
    file.lock().unwrap();
    disk.dir.rename("f", "moved").unwrap();
    let moved = open_beside(&disk.in_source("moved"));
    assert!(would_block_beside(moved.try_lock()));
    // Others replace it.
    fs::write(disk.in_source("new"), "new").unwrap();
    fs::rename(disk.in_source("new"), disk.in_source("moved")).unwrap();
    assert!(would_block_beside(moved.try_lock()));
    let new = open_beside(&disk.in_source("moved"));
    assert!(!would_block_beside(new.try_lock()));
    file.write_all_at(b"OLD", 0).unwrap();
    file.unlock().unwrap();
    let mut bytes = [0; 3];
    moved.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"OLD");
    assert_eq!(fs::read(disk.in_source("moved")).unwrap(), b"new");
    // And without a name.
    let file = disk.dir.create("gone").unwrap();
    let beside = open_beside(&disk.in_source("gone"));
    disk.dir.remove_file("gone").unwrap();
    file.lock().unwrap();
    assert!(would_block_beside(beside.try_lock()));
}

#[test]
fn ranges_exclude_each_other_where_they_overlap() {
    let disk = Disk::new(16);
    let [one, other] = [disk.dir.create("f").unwrap(), open(&disk.dir, "f")];
    let beside = open_beside(&disk.in_source("f"));
    one.lock_range(10..20, LockKind::Exclusive).unwrap();
    assert!(would_block(other.try_lock_range(..11, LockKind::Shared)));
    assert!(other.is_range_locked(19.., LockKind::Shared).unwrap());
    assert!(!one.is_range_locked(.., LockKind::Exclusive).unwrap());
    assert!(!other.is_range_locked(20.., LockKind::Exclusive).unwrap());
    other.lock_range(20.., LockKind::Exclusive).unwrap();
    one.lock().expect("a lock of the file is another thing");
    assert!(would_block(other.try_lock()));
    // Of the kind that most programs use, which has the lock of a whole process.
    let error = fcntl_lock(&beside, FlockOperation::NonBlockingLockShared).unwrap_err();
    assert!(matches!(
        error,
        rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS
    ));
    one.lock_range(10..20, LockKind::Shared).unwrap();
    other.lock_range(5..15, LockKind::Shared).unwrap();
    one.unlock_range(12..).unwrap();
    other.unlock_range(..).unwrap();
    assert!(other.is_range_locked(11..12, LockKind::Exclusive).unwrap());
    assert!(!other.is_range_locked(12.., LockKind::Exclusive).unwrap());
    drop(one);
    fcntl_lock(&beside, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(would_block(other.try_lock_range(.., LockKind::Shared)));
}

#[test]
fn bad_ranges_and_handles_get_the_errors_of_the_kernel() {
    let disk = Disk::new(16);
    disk.dir.create("f").unwrap();
    let file = disk.dir.open("f").unwrap();
    let error = |result: foliocache::Result<()>| result.unwrap_err().errno();
    let exclusive = file.lock_range(0..1, LockKind::Exclusive).unwrap_err();
    assert_eq!(exclusive.errno(), Errno::EBADF);
    assert!(exclusive.to_string().contains("cannot lock"), "{exclusive}");
    file.lock_range(0..1, LockKind::Shared).unwrap();
    assert_eq!(
        error(file.lock_range(7..7, LockKind::Shared)),
        Errno::EINVAL
    );
    assert_eq!(error(file.unlock_range(1 << 63..)), Errno::EINVAL);
    let memory = disk.cache.memfs().unwrap().create("f").unwrap();
    assert_eq!(error(memory.lock()), Errno::EOPNOTSUPP);
    memory.unlock().unwrap();
}

/// Locks have dedicated descriptors: only the lock beyond the limit is refused, and everything else
/// goes on.
#[test]
fn a_lock_too_many_for_the_descriptors_of_the_process_is_refused_alone() {
    run_alone("file_locks::few_descriptors");
}

#[test]
fn few_descriptors() {
    const LIMIT: u64 = 1024;
    if !is_alone() {
        return;
    }
    let (current, maximum) = (Some(LIMIT), Some(LIMIT));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let disk = Disk::new(64);
    let mut held = Vec::new();
    let refused = loop {
        let file = disk.dir.create(held.len().to_string()).unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        if let Err(error) = file.lock() {
            break error;
        }
        held.push(file);
        assert!(held.len() < LIMIT as usize);
    };
    assert_eq!(refused.errno(), Errno::EMFILE, "{refused}");
    assert!(held.len() as u64 > LIMIT / 4, "only {}", held.len());
    disk.dir.create_dir("dir").unwrap();
    disk.dir.write("dir/other", b"data").unwrap();
    assert!(disk.dir.read_dir(".").unwrap().count() > held.len());
    disk.cache.sync().unwrap();
    for nr in 0..held.len() {
        let beside = open_beside(&disk.in_source(&nr.to_string()));
        assert!(would_block_beside(beside.try_lock()), "file {nr}");
    }
    held.truncate(10);
    let file = disk.dir.create("new").unwrap();
    file.lock().unwrap();
}

/// Set in a process that counts: the file.
const COUNTS: &str = "FOLIOCACHE_TEST_COUNTS";
const ROUNDS: u64 = 300;

/// How a process of the test counts.
#[derive(Clone, Copy, Debug)]
enum Way {
    Std,
    Cache,
    CacheWithRanges,
}

/// Counts under locks. The number is in two places, and also in a second file.
fn count(way: Way, path: &Path) {
    if let Way::Std = way {
        let files = [path.to_owned(), path.with_extension("more")].map(|path| open_beside(&path));
        for _ in 0..ROUNDS {
            files[0].lock().unwrap();
            let mut numbers = [[0; 8]; 3];
            for (number, (file, pos)) in numbers.iter_mut().zip(PLACES) {
                files[file].read_exact_at(number, pos).unwrap();
            }
            let next = next(numbers);
            for (file, pos) in PLACES {
                files[file].write_all_at(&next, pos).unwrap();
            }
            files[0].unlock().unwrap();
        }
        return;
    }
    let cache = cache(16);
    let options = DirectoryOptions::new().ignore_lock(true);
    let dir = cache
        .directory_with(path.parent().unwrap(), options)
        .unwrap();
    let files = ["number", "number.more"].map(|name| open(&dir, name));
    for _ in 0..ROUNDS {
        match way {
            Way::CacheWithRanges => files[0].lock_range(9.., LockKind::Exclusive).unwrap(),
            _ => files[0].lock().unwrap(),
        }
        files[1].revalidate().unwrap();
        let mut numbers = [[0; 8]; 3];
        for (number, (file, pos)) in numbers.iter_mut().zip(PLACES) {
            files[file].read_exact_at(number, pos).unwrap();
        }
        let next = next(numbers);
        for (file, pos) in PLACES {
            files[file].write_all_at(&next, pos).unwrap();
        }
        files[1].write_out().unwrap();
        match way {
            Way::CacheWithRanges => files[0].unlock_range(..).unwrap(),
            _ => files[0].unlock().unwrap(),
        }
    }
}

/// File and position.
const PLACES: [(usize, u64); 3] = [(0, 0), (0, 10_000), (1, 5000)];

fn next(numbers: [[u8; 8]; 3]) -> [u8; 8] {
    let [a, b, c] = numbers.map(u64::from_le_bytes);
    assert!(a == b && b == c, "{a} {b} {c}");
    (a + 1).to_le_bytes()
}

fn begin(way: Way, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "file_locks::counter",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(COUNTS, format!("{way:?} {}", path.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn counter() {
    let Ok(counts) = std::env::var(COUNTS) else {
        return;
    };
    let (way, path) = counts.split_once(' ').unwrap();
    let way = match way {
        "Std" => Way::Std,
        "Cache" => Way::Cache,
        _ => Way::CacheWithRanges,
    };
    count(way, &PathBuf::from(path));
}

#[test]
fn processes_that_count_under_locks_lose_no_number() {
    for ways in [
        &[Way::Std, Way::Cache][..],
        &[Way::Cache, Way::Std, Way::Cache],
        &[Way::CacheWithRanges, Way::CacheWithRanges],
    ] {
        let source = on_disk();
        let path = source.path().join("number");
        fs::write(&path, [0; 20_000]).unwrap();
        fs::write(path.with_extension("more"), [0; 20_000]).unwrap();
        let mut children: Vec<_> = ways.iter().map(|&way| begin(way, &path)).collect();
        for child in &mut children {
            assert!(child.wait().unwrap().success(), "{ways:?}");
        }
        let bytes = fs::read(&path).unwrap();
        let counted = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(counted, ROUNDS * ways.len() as u64, "{ways:?}");
    }
}

/// Two caches of one process are as two processes.
#[test]
fn caches_exclude_each_other() {
    let source = on_disk();
    let options = || DirectoryOptions::new().ignore_lock(true);
    let caches: [Cache; 2] = [cache(16), cache(16)];
    let dirs = caches
        .each_ref()
        .map(|cache| cache.directory_with(source.path(), options()).unwrap());
    dirs[0].write("f", b"first").unwrap();
    dirs[0].open("f").unwrap().write_out().unwrap();
    let [one, other] = [0, 1].map(|at| open(&dirs[at], "f"));
    one.lock().unwrap();
    assert!(would_block(other.try_lock()));
    one.write_all_at(b"other", 0).unwrap();
    drop(one);
    other.lock().unwrap();
    let mut bytes = [0; 5];
    other.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"other");
}
