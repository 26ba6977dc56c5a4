//! The answer of an fsync while another one of the same file or directory is under way, and after that one failed.

use crate::dirfs::sync_calls::SyncCall;
use crate::dirfs::{DirFs, DirFsOptions, DirNode};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::{Errno, fd};
use foliocache_vfs::{
    FileSystem, Inode, New, OpContext, OpenFile, OpenFlags, Remove, RenameMode, SetAttr, SlabArc,
};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long something that must happen may take on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

const ROOT: OpContext = OpContext::ROOT;

fn open(source: &Path) -> DirFs {
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    DirFs::open(&mm, source, DirFsOptions::default()).expect("dirfs")
}

fn create(fs: &DirFs, dir: &SlabArc<Inode>, name: &str) -> OpenFile {
    fs.create(&ROOT, dir, OsStr::new(name), 0o644, OpenFlags::READ_WRITE)
        .expect("create")
}

fn chmod(fs: &DirFs, inode: &SlabArc<Inode>) {
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, inode, &mode).expect("chmod");
}

/// Runs `first` and, while its sync of kind `kind` of the file or directory `ino` is held up, `second`. All
/// such syncs then fail. Returns what both said.
fn beside_a_failing_sync(
    fs: &DirFs,
    (kind, ino): (SyncCall, u64),
    first: impl FnOnce() -> Result<(), Errno> + Send,
    second: impl FnOnce() -> Result<(), Errno> + Send,
) -> [Result<(), Errno>; 2] {
    let (reached, is_reached) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let held = AtomicBool::new(false);
    fs.shared.sync_calls.intercept(move |call, fd| {
        if (call, fd::fstat(fd)?.ino) != (kind, ino) {
            return Ok(());
        }
        if !held.swap(true, Ordering::Relaxed) {
            reached.send(()).expect("the test waits");
            may_go_on.lock().recv_timeout(LONG).expect("it goes on");
        }
        Err(Errno::EIO)
    });
    thread::scope(|scope| {
        let first = scope.spawn(first);
        is_reached.recv_timeout(LONG).expect("the sync is reached");
        let second = scope.spawn(second);
        // Time for a second caller that does not wait to say that all is well.
        thread::sleep(Duration::from_millis(50));
        go_on.send(()).expect("it waits");
        [first.join().expect("first"), second.join().expect("second")]
    })
}

fn number(inode: &Inode) -> u64 {
    DirNode::of(inode).expect("a node").identity.ino
}

#[test]
fn an_fsync_beside_a_failing_one_of_the_same_new_file_fails() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let file = create(&fs, &fs.root(), "file");
    let results = beside_a_failing_sync(
        &fs,
        (SyncCall::Directory, number(&fs.root())),
        || file.inode().ops().sync(file.inode(), false),
        || file.inode().ops().sync(file.inode(), false),
    );
    assert_eq!(results, [Err(Errno::EIO); 2]);
    fs.shared.sync_calls.intercept(|_, _| Ok(()));
    file.fsync().expect("retried");
}

/// The directory of both is new, too, and its own name is what cannot be made durable.
#[test]
fn an_fsync_beside_a_failing_one_of_a_sibling_in_a_new_directory_fails() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let dir = fs
        .make(
            &ROOT,
            &fs.root(),
            OsStr::new("dir"),
            New::Directory { mode: 0o755 },
        )
        .expect("mkdir");
    let (one, two) = (create(&fs, &dir, "one"), create(&fs, &dir, "two"));
    let results = beside_a_failing_sync(
        &fs,
        (SyncCall::Directory, number(&fs.root())),
        || one.inode().ops().sync(one.inode(), false),
        || two.inode().ops().sync(two.inode(), false),
    );
    assert_eq!(results, [Err(Errno::EIO); 2]);
    fs.shared.sync_calls.intercept(|_, _| Ok(()));
    one.fsync().expect("retried");
    two.fsync().expect("retried");
}

#[test]
fn an_fsync_beside_a_failing_one_of_changed_attributes_fails() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let file = create(&fs, &fs.root(), "file");
    file.fsync().expect("fsync");
    chmod(&fs, file.inode());
    let results = beside_a_failing_sync(
        &fs,
        (SyncCall::File, number(file.inode())),
        || file.inode().ops().sync(file.inode(), false),
        || file.inode().ops().sync(file.inode(), false),
    );
    assert_eq!(results, [Err(Errno::EIO); 2]);
}

/// The name of a file is in another directory after a move, and was durable in the one before.
#[test]
fn an_fsync_of_a_moved_file_syncs_the_directory_that_it_is_in() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let (root, moved) = (fs.root(), OsStr::new("moved"));
    let dir = fs
        .make(
            &ROOT,
            &root,
            OsStr::new("dir"),
            New::Directory { mode: 0o755 },
        )
        .expect("mkdir");
    let file = create(&fs, &root, "file");
    file.fsync().expect("fsync");
    fs.rename(&root, OsStr::new("file"), &dir, moved, RenameMode::Replace)
        .expect("rename");
    let synced = Arc::new(Mutex::new(Vec::new()));
    let list = synced.clone();
    fs.shared.sync_calls.intercept(move |call, fd| {
        if call == SyncCall::Directory {
            list.lock().push(fd::fstat(fd)?.ino);
        }
        Ok(())
    });
    file.fsync().expect("fsync");
    let synced = synced.lock();
    assert!(synced.contains(&number(&dir)), "{synced:?}");
}

/// Counts the calls of a kind from now on.
fn count_calls(fs: &DirFs, kind: SyncCall) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    fs.shared.sync_calls.intercept(move |call, _| {
        counter.fetch_add(usize::from(call == kind), Ordering::Relaxed);
        Ok(())
    });
    calls
}

/// A file whose name and mode are not durable loses its inode, and is found again.
#[test]
fn eviction_forgets_no_name_and_no_attributes_that_are_not_durable() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let dir = fs
        .make(
            &ROOT,
            &fs.root(),
            OsStr::new("dir"),
            New::Directory { mode: 0o755 },
        )
        .expect("mkdir");
    let file = create(&fs, &dir, "file");
    file.fsync().expect("fsync");
    chmod(&fs, file.inode());
    drop(create(&fs, &dir, "new"));
    drop((file, dir));
    for _ in 0..2 {
        fs.shrink_inodes(1000);
        fs.reap();
    }
    assert_eq!(fs.stats().inodes, 1, "all but the root");
    let dir = fs.lookup(&fs.root(), OsStr::new("dir")).expect("lookup");
    let open = |name: &str| {
        let inode = fs.lookup(&dir, OsStr::new(name)).expect("lookup");
        fs.open(&ROOT, &inode, OpenFlags::READ_WRITE).expect("open")
    };
    let (file, new) = (open("file"), open("new"));
    let synced = count_calls(&fs, SyncCall::File);
    file.fsync().expect("fsync");
    assert_eq!(synced.load(Ordering::Relaxed), 1, "the mode");
    let synced = count_calls(&fs, SyncCall::Directory);
    new.fsync().expect("fsync");
    assert!(synced.load(Ordering::Relaxed) >= 1, "the name");
    // Once is enough.
    let synced = count_calls(&fs, SyncCall::Directory);
    new.fsync().expect("fsync");
    assert_eq!(synced.load(Ordering::Relaxed), 0);
}

/// `fdatasync(2)` makes the modification time durable with the size alone.
#[test]
fn an_fsync_makes_the_time_of_an_overwrite_durable() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let file = create(&fs, &fs.root(), "file");
    file.write_at(&[1; 100 << 10], 0).expect("write");
    file.fsync().expect("fsync");
    let synced = count_calls(&fs, SyncCall::File);
    for (pos, calls) in [(100 << 10, 0), (0, 1), (8192, 2)] {
        file.write_at(&[2; 4096], pos).expect("write");
        file.fdatasync().expect("fdatasync");
        assert!(synced.load(Ordering::Relaxed) <= calls);
        file.fsync().expect("fsync");
        assert_eq!(synced.load(Ordering::Relaxed), calls, "at {pos}");
    }
    file.fsync().expect("fsync");
    assert_eq!(synced.load(Ordering::Relaxed), 2, "once is enough");
}

/// `/dev/shm` is another file system than `/dev`.
#[test]
fn a_sync_of_everything_covers_file_systems_mounted_below_the_source() {
    let fs = open(Path::new("/dev"));
    let root = fs.root();
    let shm = fs.lookup(&root, OsStr::new("shm")).expect("/dev/shm");
    let dev = |inode: &Inode| DirNode::of(inode).expect("a node").identity.dev;
    assert_ne!(dev(&shm), dev(&root));
    let name = format!("foliocache-{}", std::process::id());
    drop(create(&fs, &shm, &name));
    let synced = Arc::new(Mutex::new(Vec::new()));
    let (list, below) = (synced.clone(), dev(&shm));
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    fs.shared.sync_calls.intercept(move |call, fd| {
        let dev = fd::fstat(fd)?.dev.raw();
        list.lock().push((call, dev));
        match call == SyncCall::All && dev == below && failing.load(Ordering::Relaxed) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    });
    drop(shm);
    for _ in 0..2 {
        fs.shrink_inodes(1000);
        fs.reap();
    }
    assert_eq!(fs.stats().inodes, 1, "all but the root");
    assert_eq!(fs.sync_fs(), Err(Errno::EIO));
    assert!(synced.lock().contains(&(SyncCall::All, below)));
    assert!(
        !fs.shared.forgotten_below.is_durable(),
        "what failed there is not durable"
    );
    fails.store(false, Ordering::Relaxed);
    fs.sync_fs().expect("all is synced");
    assert!(fs.shared.forgotten_below.is_durable());
    let shm = fs.lookup(&root, OsStr::new("shm")).expect("/dev/shm");
    fs.remove(&shm, OsStr::new(&name), Remove::File)
        .expect("unlink");
}

/// The tail of a file goes through the kernel's cache. One that is written while the file is flushed is not
/// covered by that flush, so the next direct write over it still has to wait for it.
#[test]
fn a_tail_written_beside_a_flush_is_known_to_be_in_the_kernels_cache() {
    let source = tempfile::tempdir().expect("a directory");
    let fs = open(source.path());
    let file = create(&fs, &fs.root(), "file");
    file.write_at(b"short", 0).expect("write");
    let (reached, is_reached) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    fs.shared.sync_calls.intercept(move |call, _| {
        if call == SyncCall::Data {
            reached.send(()).expect("the test waits");
            may_go_on.lock().recv_timeout(LONG).expect("it goes on");
        }
        Ok(())
    });
    let cached = || {
        let node = DirNode::of(file.inode()).expect("a node");
        node.file().io.lock().cached.clone()
    };
    thread::scope(|scope| {
        let one = scope.spawn(|| file.fdatasync());
        is_reached.recv_timeout(LONG).expect("the flush is reached");
        file.write_at(b"a longer tail", 4096).expect("write");
        let other = scope.spawn(|| file.fdatasync());
        let start = std::time::Instant::now();
        while cached().is_none_or(|range| range.end < 4096) {
            assert!(start.elapsed() < LONG, "no write beside the flush");
            thread::sleep(Duration::from_millis(1));
        }
        go_on.send(()).expect("it waits");
        one.join().expect("no panic").expect("fdatasync");
        is_reached
            .recv_timeout(LONG)
            .expect("the second flush is reached");
        assert!(cached().is_some(), "the tail is forgotten");
        go_on.send(()).expect("it waits");
        other.join().expect("no panic").expect("fdatasync");
    });
    assert_eq!(cached(), None);
}
