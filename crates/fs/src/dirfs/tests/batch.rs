//! Small new files: how they become durable together, and what happens when they do not.

use crate::dirfs::batch::{SMALL, reports_errors};
use crate::dirfs::node::DirNode;
use crate::dirfs::sync_calls::SyncCall;
use crate::dirfs::{DirFs, DirFsOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::{Arc, Weak};
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::{self, AsFd, OwnedFd, SetTime};
use foliocache_vfs::{
    FileSystem, Inode, OpContext, OpenFile, OpenFlags, Remove, RenameMode, SetAttr, SlabArc,
};
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long something that must happen may take on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

fn dirfs(source: &Path, mib: u64, change: impl FnOnce(&mut DirFsOptions)) -> Arc<DirFs> {
    let mut config = MmConfig::new(mib << 20);
    // The flusher leaves alone what the tests look at.
    config.dirty_expire = Duration::from_secs(3600);
    let mm = Mm::new(config).expect("a cache");
    let mut options = DirFsOptions::default();
    change(&mut options);
    Arc::new(DirFs::open(&mm, source, options).expect("dirfs"))
}

fn create(fs: &DirFs, name: &str) -> OpenFile {
    let (root, name) = (fs.root(), OsStr::new(name));
    let flags = OpenFlags::READ_WRITE;
    fs.create(&OpContext::ROOT, &root, name, 0o644, flags)
        .expect("create")
}

fn open(fs: &DirFs, name: &str) -> OpenFile {
    let inode = fs.lookup(&fs.root(), OsStr::new(name)).expect("lookup");
    fs.open(&OpContext::ROOT, &inode, OpenFlags::READ_WRITE)
        .expect("open")
}

/// The content of the file of a number.
fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31) as u8).collect()
}

/// Makes, writes and closes a file.
fn make(fs: &DirFs, number: usize, len: usize) {
    let file = create(fs, &number.to_string());
    let bytes = bytes(number, len);
    assert_eq!(file.write_at(&bytes, 0), Ok(len));
}

#[track_caller]
fn expect_in_source(source: &Path, number: usize, len: usize) {
    let found = std::fs::read(source.join(number.to_string())).expect("read");
    assert!(found == bytes(number, len), "file {number}");
}

#[track_caller]
fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Lets the first `nr` calls of `syncfs` fail; returns how many calls there were.
fn fail_syncfs(fs: &DirFs, nr: usize) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    fs.shared.sync_calls.intercept(move |call, _| {
        let fails = call == SyncCall::FileSystem && counter.fetch_add(1, Ordering::Relaxed) < nr;
        if fails { Err(Errno::EIO) } else { Ok(()) }
    });
    calls
}

#[test]
fn batches_are_for_file_systems_whose_syncfs_reports_errors() {
    let (ext4, xfs, overlay, fuse, tmpfs) =
        (0xef53, 0x5846_5342, 0x794c_7630, 0x6573_5546, 0x0102_1994);
    let reports = |magic| reports_errors(magic, "6.1.0-13-amd64");
    assert!(reports(ext4) && reports(xfs));
    assert!(![overlay, fuse, tmpfs].into_iter().any(reports));
    let releases = ["5.8.0", "5.10.1+", "6.0", "10.2-rc1"];
    assert!(releases.iter().all(|release| reports_errors(ext4, release)));
    let releases = ["5.7.19", "5", "4.19.0-26-amd64", "3.10", "", "unknown"];
    assert!(!releases.iter().any(|release| reports_errors(ext4, release)));
}

#[test]
fn small_new_files_are_in_the_source_when_closed_and_durable_with_one_syncfs() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let metadata = || fs.shared.bdi.mm().usage().metadata_bytes;
    for number in 0..20 {
        make(&fs, number, 5000);
        expect_in_source(source.path(), number, 5000);
    }
    let stats = fs.stats();
    assert_eq!(
        (stats.batched_files, stats.batch_flushes, stats.flushes),
        (20, 0, 0)
    );
    assert_eq!(stats.kernel_cache_bytes, 20 * 8192);
    assert!(fs.bdi().nr_not_durable() >= 20, "written and not durable");
    let before = metadata();
    fs.sync_fs().expect("sync");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    wait_until(|| fs.stats().kernel_cache_bytes == 0);
    assert!(metadata() <= before - 20 * 8192, "the bound has it back");
    let stats = fs.stats();
    assert_eq!((stats.batch_flushes, stats.flushes), (1, 0));
    // Neither a file that is not new nor one that is not small.
    assert_eq!(open(&fs, "3").write_at(b"more", 0), Ok(4));
    make(&fs, 100, SMALL as usize + 1);
    assert_eq!(fs.stats().batched_files, 20);
    fs.sync_fs().expect("sync");
    expect_in_source(source.path(), 100, SMALL as usize + 1);
}

#[test]
fn times_of_small_new_files_are_those_of_the_write() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = create(&fs, "0");
    assert_eq!(file.write_at(b"data", 0), Ok(4));
    let inode = file.inode().clone();
    let written = fs.getattr(&inode).expect("getattr").mtime;
    thread::sleep(Duration::from_millis(30));
    drop(file);
    assert_eq!(fs.stats().batched_files, 1);
    let stat = std::fs::metadata(source.path().join("0")).expect("stat");
    assert_eq!(
        (stat.mtime(), stat.mtime_nsec()),
        (written.sec, i64::from(written.nsec))
    );
}

/// The source has stamped the write by itself: setting the time again would move `ctime` alone.
#[test]
fn files_closed_in_the_tick_of_their_write_are_not_stamped_again() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let closed_with_equal_times = |name: &str| {
        let file = create(&fs, name);
        assert_eq!(file.write_at(b"data", 0), Ok(4));
        let written = file.inode().attributes().get().mtime;
        drop(file);
        let stat = std::fs::metadata(source.path().join(name)).expect("stat");
        let mtime = (stat.mtime(), stat.mtime_nsec());
        mtime == (stat.ctime(), stat.ctime_nsec())
            && mtime == (written.sec, i64::from(written.nsec))
    };
    // A tick may end between write and close, and others may have the kernel tell times apart within one.
    let rounds = AtomicUsize::new(0);
    wait_until(|| {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        (0..10).all(|at| closed_with_equal_times(&format!("{round}-{at}")))
    });
}

#[test]
fn a_full_batch_becomes_durable_by_itself_and_descriptors_stay_few() {
    let source = tempfile::tempdir().expect("a directory");
    // A batch has 64 files.
    let fs = dirfs(source.path(), 8, |options| {
        options.idle_files = Some(16);
        options.path_descriptors = 4;
    });
    let ours = source.path().canonicalize().expect("a path");
    let open_now = || {
        std::fs::read_dir("/proc/self/fd")
            .expect("descriptors")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|target| target.starts_with(&ours))
            .count()
    };
    for number in 0..200 {
        make(&fs, number, 1000);
        // As many as may be idle, the names', the roots, and what is being closed or cleaned.
        assert!(open_now() <= 16 + 4 + 6, "{}", open_now());
    }
    wait_until(|| fs.stats().kernel_cache_bytes < 64 * 4096);
    let stats = fs.stats();
    assert_eq!(stats.batched_files, 200);
    assert!(stats.batch_flushes >= 2, "{stats:?}");
    assert_eq!(stats.flushes, 0);
}

/// A hole splits its write: only the first part goes into the batch as that of a small file.
#[test]
fn descriptors_of_small_new_files_with_holes_stay_few() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| {
        options.idle_files = Some(16);
        options.path_descriptors = 4;
    });
    for number in 0..100 {
        let file = create(&fs, &number.to_string());
        for pos in [0, 8192] {
            assert_eq!(file.write_at(b"data", pos), Ok(4));
        }
        drop(file);
        // Two each, the names', the roots, and what is being closed or cleaned.
        let open = descriptors_into(source.path());
        assert!(open <= 2 * 16 + 4 + 6, "{open}");
    }
    fs.sync_fs().expect("sync");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
}

/// The descriptor of a file tells an error once, to the flush of that file.
#[test]
fn the_device_is_flushed_by_a_descriptor_of_its_own() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let batches = fs.shared.batches.as_ref().expect("tests have batches");
    let file = create(&fs, "0");
    let node = DirNode::of(file.inode()).expect("a node");
    let own = node.file().any_fd().expect("it is open");
    let flushed = batches.fd_to_flush(Some(&own)).expect("a descriptor");
    assert_ne!(flushed.as_raw_fd(), own.as_raw_fd());
    let ino = |fd: &OwnedFd| fd::fstat(fd.as_fd()).map(|stat| stat.ino);
    assert_eq!(ino(&flushed), ino(&own));
    let new = batches.fd_to_flush(None).expect("a descriptor");
    assert_ne!(ino(&new), ino(&own));
}

/// It was written back before, for other reasons, so nothing is left to write at its close.
#[test]
fn a_closed_file_has_the_time_of_its_write_when_it_was_written_back_before() {
    let source = tempfile::tempdir().expect("a directory");
    let path = source.path().join("0");
    std::fs::write(&path, bytes(0, 5000)).expect("write");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = open(&fs, "0");
    assert_eq!(file.write_at(b"data", 0), Ok(4));
    let written = file.inode().attributes().get().mtime;
    thread::sleep(Duration::from_millis(50));
    file.inode().mapping().expect("it is open").fdatawrite();
    drop(file);
    wait_until(|| {
        let stat = std::fs::metadata(&path).expect("stat");
        (stat.mtime(), stat.mtime_nsec()) == (written.sec, i64::from(written.nsec))
    });
}

/// Otherwise the write-back would set the time that it has read before over the one that is set.
#[test]
fn setting_times_waits_for_a_writeback_that_sets_them() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = create(&fs, "0");
    let node = DirNode::of(file.inode()).expect("a node");
    let stamping = node.file().stamping.lock();
    let time = Timespec { sec: 1000, nsec: 0 };
    let set = SetAttr {
        mtime: Some(SetTime::At(time)),
        ..SetAttr::default()
    };
    thread::scope(|scope| {
        let setting = scope.spawn(|| fs.setattr(&OpContext::ROOT, file.inode(), &set));
        thread::sleep(Duration::from_millis(50));
        let stat = std::fs::metadata(source.path().join("0")).expect("stat");
        assert_ne!(stat.mtime(), 1000);
        drop(stamping);
        let set = setting.join().expect("no panic").expect("setattr");
        assert_eq!(set.mtime, time);
    });
}

/// As a rename over another file and a change of privileges have it written.
#[test]
fn a_small_new_file_that_is_written_before_its_close_is_in_a_batch_and_keeps_no_descriptor() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = create(&fs, "0");
    assert_eq!(file.write_at(&bytes(0, 5000), 0), Ok(5000));
    let inode = file.inode().clone();
    inode.ops().write_and_wait(&inode).expect("write");
    expect_in_source(source.path(), 0, 5000);
    assert_eq!(fs.stats().batched_files, 1);
    assert!(!inode.ops().has_unwritten(&inode));
    // Nothing is left to write, and what is written later is no new file's.
    inode
        .ops()
        .write_and_wait(&inode)
        .expect("nothing to write");
    assert_eq!(fs.stats().batched_files, 1);
    drop(file);
    fs.sync_fs().expect("sync");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    let node = DirNode::of(&inode).expect("a node");
    wait_until(|| fs.stats().kernel_cache_bytes == 0 && node.file().any_fd().is_none());
    assert_eq!(fs.stats().flushes, 0);
}

#[test]
fn bytes_in_the_kernels_cache_are_bounded_and_charged() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 4, |_| {});
    let mm = fs.shared.bdi.mm().clone();
    for number in 0..100 {
        make(&fs, number, 16 << 10);
        let usage = mm.usage();
        assert!(fs.stats().kernel_cache_bytes <= usage.limit_bytes / 16);
        assert!(
            usage.held_bytes + usage.metadata_bytes <= usage.limit_bytes,
            "{usage:?}"
        );
        expect_in_source(source.path(), number, 16 << 10);
    }
    assert!(fs.stats().batched_files > 50);
    fs.sync_fs().expect("sync");
    wait_until(|| fs.stats().kernel_cache_bytes == 0);
}

#[test]
fn a_failed_syncfs_makes_every_file_of_the_batch_dirty_again() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    for number in 0..10 {
        make(&fs, number, 5000);
    }
    let handles: Vec<_> = (0..10)
        .map(|number| open(&fs, &number.to_string()))
        .collect();
    fail_syncfs(&fs, 1);
    assert_eq!(handles[0].fsync(), Err(Errno::EIO));
    wait_until(|| fs.stats().kernel_cache_bytes == 0);
    for handle in &handles {
        let mapping = handle.inode().mapping().expect("it was opened");
        assert_eq!(mapping.failed_ranges(), vec![0..5000_u64; 1], "dirty again");
    }
    // As if the kernel had lost what it could not write.
    for number in 0..10 {
        std::fs::write(source.path().join(number.to_string()), [0; 5000]).expect("write");
    }
    for handle in &handles[1..] {
        assert_eq!(handle.fsync(), Err(Errno::EIO), "told once");
    }
    for (number, handle) in handles.iter().enumerate() {
        assert_eq!(handle.fsync(), Ok(()));
        expect_in_source(source.path(), number, 5000);
    }
    assert_eq!(fs.bdi().nr_not_durable(), 0);
}

/// The kernel tells an error once, which may be of what was written while it was asked.
#[test]
fn a_file_written_beside_a_failing_syncfs_is_dirty_again_too() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    make(&fs, 0, 1000);
    let weak = Arc::downgrade(&fs);
    let calls = AtomicUsize::new(0);
    fs.shared.sync_calls.intercept(move |call, _| {
        if call == SyncCall::FileSystem && calls.fetch_add(1, Ordering::Relaxed) == 0 {
            // By another thread: this one holds locks of the first file.
            let fs = weak.upgrade().expect("in use");
            let other = thread::spawn(move || make(&fs, 1, 1000));
            other.join().expect("it is written");
            return Err(Errno::EIO);
        }
        Ok(())
    });
    assert_eq!(open(&fs, "0").fsync(), Err(Errno::EIO));
    assert_eq!(open(&fs, "1").fsync(), Err(Errno::EIO));
    fs.sync_fs().expect("written again");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
}

#[test]
fn a_batch_is_not_synced_while_some_of_it_is_being_written() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let calls = fail_syncfs(&fs, 0);
    let batches = fs.shared.batches.as_ref().expect("tests have batches");
    let writing = batches.enter(None, Weak::new());
    let batch = writing.batch.clone();
    thread::scope(|scope| {
        let settled = scope.spawn(|| batches.settle(&fs.shared, &batch));
        // Time for a sync that does not wait.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        drop(writing);
        settled.join().expect("no panic").expect("it is durable");
    });
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn files_of_a_batch_without_descriptors_are_found_by_name_after_an_error() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| options.idle_files = Some(3));
    for number in 0..10 {
        make(&fs, number, 5000);
    }
    let stats = fs.stats();
    assert_eq!(stats.batched_files, 10);
    let root = fs.root();
    let (old, new) = (OsStr::new("9"), OsStr::new("new"));
    fs.rename(&root, old, &root, new, RenameMode::Replace)
        .expect("rename");
    let path = source.path().to_owned();
    let calls = AtomicUsize::new(0);
    fs.shared.sync_calls.intercept(move |call, _| {
        if call != SyncCall::FileSystem || calls.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        // As if the kernel had lost what it could not write.
        for entry in std::fs::read_dir(&path).expect("a directory") {
            std::fs::write(entry.expect("an entry").path(), [0; 5000]).expect("write");
        }
        Err(Errno::EIO)
    });
    assert_eq!(open(&fs, "0").fsync(), Err(Errno::EIO));
    wait_until(|| fs.stats().kernel_cache_bytes == 0);
    fs.sync_fs().expect("written again");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    std::fs::rename(source.path().join("new"), source.path().join("9")).expect("rename");
    for number in 0..10 {
        expect_in_source(source.path(), number, 5000);
    }
}

#[test]
fn a_name_that_leads_to_another_file_by_now_holds_up_no_batch() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 8, |options| {
        options.idle_files = Some(0);
        options.path_descriptors = 0;
    });
    make(&fs, 1, 1000);
    let (at, away) = (source.path().join("1"), source.path().join("away"));
    std::fs::rename(&at, &away).expect("rename");
    let fifo = std::process::Command::new("mkfifo").arg(&at).status();
    assert!(fifo.expect("mkfifo").success());
    // Fills the batch: it becomes durable, and its files are cleaned.
    for number in 2..66 {
        make(&fs, number, 1000);
    }
    wait_until(|| fs.stats().kernel_cache_bytes < 64 * 4096);
    assert_eq!(std::fs::read(away).expect("read"), bytes(1, 1000));
}

#[test]
fn a_short_file_is_read_without_a_second_descriptor() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    for (number, len) in [(1, 1), (2, 6144), (3, 16 << 10), (4, (16 << 10) + 1)] {
        std::fs::write(source.path().join(number.to_string()), bytes(number, len)).expect("write");
        let before = fs.stats();
        let file = open(&fs, &number.to_string());
        let mut found = vec![0; len + 100];
        assert_eq!(file.read_at(&mut found, 0), Ok(len));
        assert!(found[..len] == bytes(number, len), "file {number}");
        let node = DirNode::of(file.inode()).expect("a node");
        let direct = node.descriptors(false).expect("open").has_direct();
        // Relaxed: this thread set it.
        if !fs.shared.dont_cache_refused.load(Ordering::Relaxed) {
            let stats = fs.stats();
            let buffered = stats.buffered_reads - before.buffered_reads;
            let expected = if len <= 16 << 10 {
                (1, false)
            } else {
                (0, true)
            };
            let refused = !stats.fallbacks.is_empty();
            assert!(
                refused || (buffered, direct) == expected,
                "{len}: {stats:?}"
            );
        }
    }
}

#[test]
fn a_panic_instead_of_syncfs_counts_as_an_error_and_the_next_batch_succeeds() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 4, |_| {});
    let calls = AtomicUsize::new(0);
    fs.shared.sync_calls.intercept(move |call, _| {
        let first = call == SyncCall::FileSystem && calls.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!first, "injected by the test");
        Ok(())
    });
    make(&fs, 0, 1000);
    let first = open(&fs, "0");
    // The thread makes the first full batch durable.
    for number in 1..200 {
        make(&fs, number, 1000);
    }
    wait_until(|| fs.stats().kernel_cache_bytes < 32 * 4096);
    let mm = fs.shared.bdi.mm().clone();
    assert_eq!(mm.panics().count(), 1);
    assert_eq!(first.fsync(), Err(Errno::EIO), "it may be lost");
    assert_eq!(open(&fs, "199").fsync(), Ok(()));
    fs.sync_fs().expect("written again");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    for number in 0..200 {
        expect_in_source(source.path(), number, 1000);
    }
}

#[test]
fn an_fsync_of_a_small_new_file_waits_for_its_batch() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let calls = fail_syncfs(&fs, 0);
    make(&fs, 0, 1000);
    make(&fs, 1, 1000);
    open(&fs, "0").fsync().expect("fsync");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    open(&fs, "1").fsync().expect("fsync");
    assert_eq!(calls.load(Ordering::Relaxed), 1, "it was durable");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    // Data that is written to it later is flushed by itself.
    let file = open(&fs, "0");
    assert_eq!(file.write_at(b"later", 0), Ok(5));
    file.fsync().expect("fsync");
    assert_eq!(fs.stats().flushes, 1);
}

#[test]
fn large_files_become_durable_together_when_everything_does() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    for number in 0..10 {
        make(&fs, number, 100_000);
    }
    let calls = fail_syncfs(&fs, 0);
    fs.sync_fs().expect("sync");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(fs.stats().flushes, 0);
    for number in 0..10 {
        expect_in_source(source.path(), number, 100_000);
        let file = open(&fs, &number.to_string());
        assert_eq!(file.write_at(&bytes(number + 1, 100_000), 0), Ok(100_000));
    }
    // The error may be of any file: each one's own descriptor knows whether it is.
    let calls = fail_syncfs(&fs, 1);
    fs.sync_fs().expect("sync");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(fs.stats().flushes, 10);
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    for number in 0..10 {
        let found = std::fs::read(source.path().join(number.to_string())).expect("read");
        assert!(found == bytes(number + 1, 100_000));
    }
}

/// The flusher may be writing it, or have written it, when it is closed.
#[test]
fn a_small_new_file_is_in_the_source_when_closed_also_after_earlier_writes() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = create(&fs, "0");
    assert_eq!(file.write_at(&bytes(0, 5000), 0), Ok(5000));
    file.inode().mapping().expect("opened").fdatawrite();
    assert_eq!(file.write_at(&bytes(0, 9000)[5000..], 5000), Ok(4000));
    drop(file);
    expect_in_source(source.path(), 0, 9000);
    fs.sync_fs().expect("sync");
    assert_eq!(fs.bdi().nr_not_durable(), 0);
}

#[test]
fn large_files_that_the_flusher_writes_become_durable_together() {
    let source = tempfile::tempdir().expect("a directory");
    let mut config = MmConfig::new(256 << 20);
    config.dirty_expire = Duration::from_secs(1);
    let mm = Mm::new(config).expect("a cache");
    let fs = DirFs::open(&mm, source.path(), DirFsOptions::default()).expect("dirfs");
    let files: Vec<_> = (0..100)
        .map(|number| create(&fs, &number.to_string()))
        .collect();
    for (number, file) in files.iter().enumerate() {
        let bytes = bytes(number, 100_000);
        assert_eq!(file.write_at(&bytes, 0), Ok(100_000));
    }
    wait_until(|| fs.bdi().nr_not_durable() == 0);
    let stats = fs.stats();
    assert!(stats.batch_flushes > 0 && stats.flushes < 50, "{stats:?}");
    for (number, file) in files.iter().enumerate() {
        file.fsync().expect("nothing failed");
        expect_in_source(source.path(), number, 100_000);
    }
}

#[test]
fn files_that_are_closed_beyond_the_limit_become_durable_together() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| options.idle_files = Some(64));
    for number in 0..400 {
        std::fs::write(source.path().join(number.to_string()), bytes(number, 5000)).expect("write");
    }
    let calls = fail_syncfs(&fs, 0);
    for number in 0..400 {
        let more = &bytes(number, 5100)[5000..];
        assert_eq!(open(&fs, &number.to_string()).write_at(more, 5000), Ok(100));
    }
    let stats = fs.stats();
    let nr = calls.load(Ordering::Relaxed) as u64;
    // Each call is for a quarter of those that may be kept.
    assert!(nr > 10 && nr <= 400 / 16, "{nr} calls");
    assert_eq!((stats.batch_flushes, stats.flushes), (nr, 0));
    assert!(fs.bdi().nr_not_durable() < 100);
    fs.sync_fs().expect("sync");
    for number in 0..400 {
        expect_in_source(source.path(), number, 5100);
    }
}

#[test]
fn files_of_a_batch_leave_descriptors_to_others() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| options.idle_files = Some(64));
    for number in 0..200 {
        std::fs::write(source.path().join(number.to_string()), bytes(number, 5000)).expect("write");
    }
    (200..300).for_each(|number| make(&fs, number, 5000));
    for number in 0..200 {
        let more = &bytes(number, 5100)[5000..];
        assert_eq!(open(&fs, &number.to_string()).write_at(more, 5000), Ok(100));
    }
    let stats = fs.stats();
    assert_eq!(stats.flushes, 0, "each by itself: {stats:?}");
    assert!(stats.batch_flushes > 5);
    fs.sync_fs().expect("sync");
    for number in 0..200 {
        expect_in_source(source.path(), number, 5100);
    }
}

#[test]
fn an_error_of_files_closed_beyond_the_limit_is_of_those_that_failed() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| options.idle_files = Some(64));
    fs.shared.sync_calls.intercept(|call, _| match call {
        SyncCall::FileSystem => Err(Errno::EIO),
        _ => Ok(()),
    });
    for number in 0..100 {
        let path = source.path().join(number.to_string());
        std::fs::write(path, bytes(number, 5000)).expect("write");
        let more = &bytes(number, 5100)[5000..];
        assert_eq!(open(&fs, &number.to_string()).write_at(more, 5000), Ok(100));
    }
    // The descriptor of each says that all is well.
    let stats = fs.stats();
    assert!(stats.batch_flushes > 0 && stats.flushes >= 16, "{stats:?}");
    for number in 0..100 {
        assert_eq!(open(&fs, &number.to_string()).fsync(), Ok(()));
        expect_in_source(source.path(), number, 5100);
    }
}

/// Descriptors of this process for files in a directory.
fn descriptors_into(source: &Path) -> usize {
    let source = source.canonicalize().expect("a path");
    let entries = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.starts_with(&source))
        .count()
}

/// With slow flushes: a file counts until its descriptors are closed.
#[test]
fn threads_that_close_files_side_by_side_keep_no_more_descriptors_than_allowed() {
    const THREADS: usize = 16;
    const EACH: usize = 60;
    for together in [true, false] {
        let source = tempfile::tempdir().expect("a directory");
        let fs = dirfs(source.path(), 64, |options| {
            options.idle_files = Some(64);
            options.path_descriptors = 4;
            options.batch_small_files = together;
        });
        for number in 0..THREADS * EACH {
            let path = source.path().join(number.to_string());
            std::fs::write(path, bytes(number, 5000)).expect("write");
        }
        fs.shared.sync_calls.intercept(move |call, _| {
            let slow = if together {
                SyncCall::FileSystem
            } else {
                SyncCall::Data
            };
            if call == slow {
                thread::sleep(Duration::from_millis(if together { 20 } else { 1 }));
            }
            Ok(())
        });
        let running = AtomicUsize::new(THREADS);
        let most = thread::scope(|scope| {
            for first in 0..THREADS {
                let (fs, running) = (&fs, &running);
                scope.spawn(move || {
                    for number in (0..EACH).map(|at| at * THREADS + first) {
                        let more = &bytes(number, 5100)[5000..];
                        let file = open(fs, &number.to_string());
                        assert_eq!(file.write_at(more, 5000), Ok(100));
                    }
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let mut most = 0;
            while running.load(Ordering::Relaxed) > 0 {
                most = most.max(descriptors_into(source.path()));
            }
            most
        });
        // Those that may be kept, those that each thread has just closed or opens by two descriptors, names and the directory itself.
        assert!(most <= 64 + 3 * THREADS + 4 + 4, "{most}, {together}");
        fs.sync_fs().expect("sync");
        for number in 0..THREADS * EACH {
            expect_in_source(source.path(), number, 5100);
        }
        assert!(!fs.shared.idle.kept.too_many());
    }
}

/// Where nothing makes many files durable at once.
#[test]
fn a_close_flushes_two_files_at_most_one_by_one() {
    for (limit, batch) in [(64, false), (16, true)] {
        let source = tempfile::tempdir().expect("a directory");
        let fs = dirfs(source.path(), 64, |options| {
            options.idle_files = Some(limit);
            options.batch_small_files = batch;
        });
        for number in 0..200 {
            let path = source.path().join(number.to_string());
            std::fs::write(path, bytes(number, 5000)).expect("write");
            let more = &bytes(number, 5100)[5000..];
            let file = open(&fs, &number.to_string());
            assert_eq!(file.write_at(more, 5000), Ok(100));
            let before = fs.stats().flushes;
            drop(file);
            let flushes = fs.stats().flushes - before;
            assert!(flushes <= 2, "{flushes} flushes");
        }
        assert!(fs.stats().flushes >= 200 - limit as u64);
        assert!(fs.bdi().nr_not_durable() <= 2 * limit as u64);
    }
}

#[test]
fn a_panic_while_closed_files_are_written_leaves_no_descriptor_behind() {
    for panicking in [SyncCall::FileSystem, SyncCall::Data] {
        let source = tempfile::tempdir().expect("a directory");
        let fs = dirfs(source.path(), 64, |options| {
            options.idle_files = Some(64);
            options.path_descriptors = 4;
        });
        let panics = Arc::new(AtomicUsize::new(1));
        let left = panics.clone();
        fs.shared.sync_calls.intercept(move |call, _| {
            if call == panicking && left.swap(0, Ordering::Relaxed) > 0 {
                panic!("injected by the test");
            }
            // Without it no file is flushed by itself.
            match call {
                SyncCall::FileSystem => Err(Errno::EIO),
                _ => Ok(()),
            }
        });
        let mut caught = 0;
        for number in 0..100 {
            let path = source.path().join(number.to_string());
            std::fs::write(path, bytes(number, 5000)).expect("write");
            let more = &bytes(number, 5100)[5000..];
            let file = open(&fs, &number.to_string());
            assert_eq!(file.write_at(more, 5000), Ok(100));
            caught += usize::from(catch_unwind(AssertUnwindSafe(|| drop(file))).is_err());
        }
        assert_eq!((caught, panics.load(Ordering::Relaxed)), (1, 0));
        let _ = fs.sync_fs();
        fs.sync_fs().expect("sync");
        fs.shared.close_all_idle();
        // Names and the directory itself.
        let left = descriptors_into(source.path());
        assert!(left <= 4 + 4, "{left}");
        for number in 0..100 {
            expect_in_source(source.path(), number, 5100);
        }
    }
}

/// The inode stays as long as it has a holder.
#[test]
fn removed_files_keep_no_descriptors_for_io() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| options.idle_files = Some(0));
    let has_fd = |inode: &SlabArc<Inode>| {
        let node = DirNode::of(inode).expect("a node");
        node.file().any_fd().is_some()
    };
    // Closed in a batch, removed, and cleaned after it.
    make(&fs, 0, 5000);
    make(&fs, 1, 5000);
    let inode = fs.lookup(&fs.root(), OsStr::new("0")).expect("lookup");
    assert!(!has_fd(&inode));
    fs.remove(&fs.root(), OsStr::new("0"), Remove::File)
        .expect("unlink");
    open(&fs, "1").fsync().expect("fsync");
    wait_until(|| fs.stats().kernel_cache_bytes == 0);
    assert!(!has_fd(&inode));
    // Removed, and closed after it.
    let file = create(&fs, "2");
    assert_eq!(file.write_at(b"data", 0), Ok(4));
    let inode = file.inode().clone();
    fs.remove(&fs.root(), OsStr::new("2"), Remove::File)
        .expect("unlink");
    assert!(has_fd(&inode));
    drop(file);
    assert!(!has_fd(&inode));
    assert_eq!(fs.getattr(&inode).map(|attr| attr.nlink), Ok(0));
}

#[test]
fn files_cut_by_name_keep_no_descriptors() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| options.path_descriptors = 4);
    for number in 0..50 {
        std::fs::write(source.path().join(number.to_string()), bytes(number, 5000)).expect("write");
        let inode = fs.lookup(&fs.root(), OsStr::new(&number.to_string()));
        let set = SetAttr {
            size: Some(1000),
            ..SetAttr::default()
        };
        let cut = fs.setattr(&OpContext::ROOT, &inode.expect("lookup"), &set);
        assert_eq!(cut.map(|attr| attr.size), Ok(1000));
        expect_in_source(source.path(), number, 1000);
    }
    let left = descriptors_into(source.path());
    assert!(left <= 4 + 4, "{left}");
}

/// A file without a handle whose size was changed is flushed when its batch is cleaned.
#[test]
fn a_panic_while_a_batch_is_cleaned_leaves_no_descriptor_behind() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    make(&fs, 0, 5000);
    make(&fs, 1, 5000);
    let inode = fs.lookup(&fs.root(), OsStr::new("0")).expect("lookup");
    let node = DirNode::of(&inode).expect("a node");
    node.allocate(0, 8192).expect("fallocate");
    let panics = AtomicUsize::new(1);
    fs.shared.sync_calls.intercept(move |call, _| {
        let first = call == SyncCall::Data && panics.swap(0, Ordering::Relaxed) > 0;
        assert!(!first, "injected by the test");
        Ok(())
    });
    open(&fs, "1").fsync().expect("fsync");
    wait_until(|| fs.stats().kernel_cache_bytes == 0);
    assert_eq!(fs.shared.bdi.mm().panics().count(), 1);
    assert!(node.file().any_fd().is_some(), "not flushed");
    fs.sync_fs().expect("sync");
    fs.shared.close_all_idle();
    assert!(node.file().any_fd().is_none());
}

/// Its own descriptor tells of the earlier write, which a later batch does not.
#[test]
fn a_file_that_was_in_a_failed_batch_is_flushed_by_itself() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = create(&fs, "0");
    let mapping = file.inode().mapping().expect("it was opened");
    fail_syncfs(&fs, 1);
    for part in 0..2 {
        assert_eq!(file.write_at(&[7; 100_000], 100_000 * part), Ok(100_000));
        mapping.fdatawrite();
        // The first batch fails, the second one does not.
        make(&fs, 1 + part as usize, 1000);
        let synced = open(&fs, &(1 + part).to_string()).fsync();
        assert_eq!(synced.is_ok(), part == 1);
    }
    let flushes = fs.stats().flushes;
    file.fsync().expect("fsync");
    assert_eq!(fs.stats().flushes, flushes + 1);
    fs.sync_fs().expect("sync");
}

#[test]
fn an_error_told_to_an_fsync_of_attributes_reaches_the_data() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |options| {
        options.batch_small_files = false
    });
    let file = create(&fs, "0");
    assert_eq!(file.write_at(b"data", 0), Ok(4));
    file.inode().mapping().expect("opened").fdatawrite();
    let mode = foliocache_vfs::SetAttr {
        mode: Some(0o600),
        ..foliocache_vfs::SetAttr::default()
    };
    fs.setattr(&OpContext::ROOT, file.inode(), &mode)
        .expect("chmod");
    fs.shared.sync_calls.intercept(|call, _| match call {
        SyncCall::File => Err(Errno::EIO),
        _ => Ok(()),
    });
    let synced = file.inode().ops().sync(file.inode(), false);
    assert_eq!(synced, Err(Errno::EIO));
    fs.shared.sync_calls.intercept(|_, _| Ok(()));
    // The kernel says no more that the data did not arrive.
    assert_eq!(file.fsync(), Err(Errno::EIO));
    assert_eq!(file.fsync(), Ok(()));
    assert_eq!(fs.bdi().nr_not_durable(), 0);
}

#[test]
fn setting_times_again_waits_for_no_fsync_of_attributes() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    let file = Arc::new(create(&fs, "0"));
    let mode = foliocache_vfs::SetAttr {
        mode: Some(0o600),
        ..foliocache_vfs::SetAttr::default()
    };
    fs.setattr(&OpContext::ROOT, file.inode(), &mode)
        .expect("chmod");
    let beside = file.clone();
    fs.shared.sync_calls.intercept(move |call, _| {
        if call == SyncCall::File {
            // Other threads do these: this one holds the lock of the file's fsync.
            let writer = beside.clone();
            let write = move || {
                assert_eq!(writer.write_at(b"data", 0), Ok(4));
                writer.inode().mapping().expect("opened").fdatawrite();
            };
            thread::spawn(write).join().expect("a write");
            let mapping = beside.inode().mapping().expect("opened").clone();
            thread::spawn(move || mapping.flush_written());
            let node = DirNode::of(beside.inode()).expect("of this file system");
            wait_until(|| node.file().times.is_durable());
        }
        Ok(())
    });
    let synced = file.inode().ops().sync(file.inode(), false);
    assert_eq!(synced, Ok(()));
    file.fsync().expect("fsync");
    fs.shared.sync_calls.intercept(|_, _| Ok(()));
}

/// Those of the calling thread that it asked for.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("proc");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a count").trim().parse().expect("a number")
}

#[test]
fn threads_that_wait_for_room_do_not_wake_each_other() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = dirfs(source.path(), 64, |_| {});
    fs.shared.sync_calls.intercept(|call, _| {
        if call == SyncCall::FileSystem {
            thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    });
    thread::scope(|scope| {
        for first in [0, 1000] {
            let fs = &fs;
            scope.spawn(move || {
                let before = switches();
                (first..first + 80).for_each(|number| make(fs, number, 60_000));
                let switches = switches() - before;
                assert!(switches < 1000, "{switches} for 80 files");
            });
        }
    });
    assert!(fs.stats().batch_flushes >= 2, "there was room for all");
    fs.sync_fs().expect("sync");
    for number in (0..80).chain(1000..1080) {
        expect_in_source(source.path(), number, 60_000);
    }
}
