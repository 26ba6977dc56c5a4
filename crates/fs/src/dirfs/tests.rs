//! Reading in the background: the engine, and everything it falls back to.

mod batch;
mod durability;
mod quiet;

use super::NodeOps;
use super::descriptors::Descriptors;
use super::stats::Fallback;
use super::sync_calls::{SyncCall, SyncCalls};
use super::{DirFs, DirFsOptions, DirNode};
use crate::coherence::{LocalChange, Verdict};
use foliocache_mm::{AddressSpaceOperations, IoSegment, Mm, MmConfig, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, BorrowedFd};
use foliocache_vfs::{
    Credentials, FileSystem, Namei, New, OpContext, OpenFile, OpenFlags, OpenHow, Remove,
    RenameMode, SuperBlock,
};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long something that must happen may take on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

const LEN: usize = (3 << 20) + 1000;

impl SyncCalls {
    /// Runs `before` ahead of each call from now on.
    fn intercept(
        &self,
        before: impl Fn(SyncCall, BorrowedFd<'_>) -> Result<(), Errno> + Send + Sync + 'static,
    ) {
        *self.before.lock() = Some(Arc::new(before));
    }
}

fn bytes() -> Vec<u8> {
    (0..LEN as u32)
        .map(|at| (at * 31 + at / 4096) as u8)
        .collect()
}

/// A file system over `source`, which gets one file, and the file's node.
fn with_file(source: &Path, options: DirFsOptions) -> (DirFs, NodeOps) {
    std::fs::write(source.join("file"), bytes()).expect("write");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let fs = DirFs::open(&mm, source, options).expect("dirfs");
    let inode = fs.lookup(&fs.root(), OsStr::new("file")).expect("lookup");
    let node = NodeOps::of(&inode).expect("a node");
    (fs, node)
}

/// Page-aligned memory that is never given back.
fn memory(len: usize) -> IoSegment<'static> {
    let bytes = vec![0xee; len + PAGE_SIZE].leak();
    let skip = bytes.as_ptr().align_offset(PAGE_SIZE);
    IoSegment::from_mut(&mut bytes[skip..skip + len])
}

#[track_caller]
fn expect_bytes(segments: &[IoSegment<'_>], pos: usize, len: usize) {
    let mut at = 0;
    let expected = bytes();
    for segment in segments {
        let len = segment.len().min(len - at);
        if len == 0 {
            return;
        }
        let mut found = vec![0; len];
        segment.sub(0, len).copy_to(0, &mut found);
        assert!(found == expected[pos + at..][..len], "bytes from {at} on");
        at += len;
    }
}

/// Starts a read of `lens` bytes in turn and waits for its end.
#[track_caller]
fn read(node: &NodeOps, pos: usize, lens: &[usize]) -> Result<usize, Errno> {
    let segments: Vec<_> = lens.iter().map(|&len| memory(len)).collect();
    let (tell, told) = mpsc::channel();
    let done = Box::new(move |result| tell.send(result).expect("the test waits"));
    node.start_read(pos as u64, &segments, done);
    node.begin_reads();
    let result = told.recv_timeout(LONG).expect("the read ends");
    if let Ok(n) = result {
        expect_bytes(&segments, pos, n);
    }
    result
}

/// The behaviour of every way of reading.
fn reads(node: &NodeOps) {
    assert_eq!(read(node, 0, &[1 << 20, 2 << 20]), Ok(3 << 20));
    assert_eq!(read(node, 1 << 20, &[PAGE_SIZE; 300]), Ok(300 * PAGE_SIZE));
    // Across the end, at the end, and behind it.
    assert_eq!(read(node, 2 << 20, &[2 << 20]), Ok((1 << 20) + 1000));
    assert_eq!(read(node, 3 << 20, &[PAGE_SIZE]), Ok(1000));
    assert_eq!(read(node, 4 << 20, &[PAGE_SIZE]), Ok(0));
    assert_eq!(read(node, 0, &[]), Ok(0));
}

#[test]
fn a_read_in_the_background_is_a_read() {
    let source = tempfile::tempdir().expect("a directory");
    let (fs, node) = with_file(source.path(), DirFsOptions::default());
    reads(&node);
    let stats = fs.stats();
    // Where direct I/O and rings are allowed, all of it but nothing went to the engine.
    if stats.fallbacks.is_empty() {
        assert!(stats.background_reads > 0, "{stats:?}");
        assert_eq!(
            stats.engine.map(|engine| engine.ios),
            Some(stats.background_reads)
        );
    }
    // Less than a block is no matter for direct I/O.
    let buffered = stats.buffered_reads;
    assert_eq!(read(&node, 0, &[1000]), Ok(1000));
    assert_eq!(fs.stats().buffered_reads, buffered + 1);
}

#[test]
fn without_rings_or_direct_io_it_is_done_on_the_spot() {
    let change: [fn(&mut DirFsOptions); 2] = [
        |options| options.io_uring = false,
        |options| options.direct = false,
    ];
    for change in change {
        let source = tempfile::tempdir().expect("a directory");
        let mut options = DirFsOptions::default();
        change(&mut options);
        let (fs, node) = with_file(source.path(), options);
        reads(&node);
        let stats = fs.stats();
        assert_eq!(stats.background_reads, 0);
        assert!(!stats.fallbacks.is_empty(), "{stats:?}");
    }
    let source = tempfile::tempdir_in("/dev/shm").expect("a directory");
    reads(&with_file(source.path(), DirFsOptions::default()).1);
}

/// A file that is open for writing, and can be marked; `None` where the machine is known to lack what that needs.
fn with_writer(source: &Path) -> Option<(DirFs, NodeOps, Arc<Descriptors>)> {
    let missing = std::env::var("FOLIOCACHE_MISSING").unwrap_or_default();
    if missing.split(',').any(|name| name == "fanotify") {
        eprintln!("SKIPPED: there is no fanotify");
        return None;
    }
    let (fs, node) = with_file(source, DirFsOptions::default());
    let file = node.file();
    file.count_writer(&mut file.opens.lock(), true);
    let fds = node.open_descriptors(true).expect("descriptors").0;
    Some((fs, node, fds))
}

/// Marks the file as one that is written back soon after each write.
fn mark(fs: &DirFs, node: &NodeOps, fds: &Descriptors) {
    let begun = Instant::now();
    while fs.stats().watched_files == 0 {
        assert!(begun.elapsed() < LONG, "never marked");
        node.attributes.data_changed();
        node.is_marked_or_marks(fds);
    }
}

/// Whether they are known to have.
fn others_wrote(node: &NodeOps) -> bool {
    let (io, told) = node.file().lock_told();
    io.coherence.before_writeback(told) != Verdict::Valid
}

/// The kernel tells of the writes of this process, too.
#[test]
fn changes_of_ours_beside_the_mark_and_beside_others_are_ours() {
    let source = tempfile::tempdir().expect("a directory");
    let Some((fs, node, fds)) = with_writer(source.path()) else {
        return;
    };
    let file = node.file();
    let write = || std::fs::write(source.path().join("file"), "x").expect("write");
    let before = file.begin_change(LocalChange::Data);
    mark(&fs, &node, &fds);
    write();
    let beside = file.begin_change(LocalChange::Data);
    node.end_change(before, None);
    write();
    node.end_change(beside, None);
    assert!(!others_wrote(&node));
    // The times of an older one are set while the next has stamped the file.
    let next = file.begin_change(LocalChange::Data);
    thread::sleep(Duration::from_millis(30));
    write();
    file.times.changed();
    node.restamp(&fds).expect("the time is set");
    node.end_change(next, None);
    assert!(!others_wrote(&node));
    write();
    assert!(others_wrote(&node), "past the cache");
}

#[test]
fn a_change_that_ends_before_the_file_has_its_new_mark_is_ours() {
    let source = tempfile::tempdir().expect("a directory");
    let Some((_fs, node, fds)) = with_writer(source.path()) else {
        return;
    };
    let file = node.file();
    let writers = &node.shared.writers;
    let marked = writers.mark(&fds.buffered, node.identity.dev);
    let marked = Arc::new(marked.expect("a mark"));
    let change = file.begin_change(LocalChange::Data);
    thread::sleep(Duration::from_millis(30));
    std::fs::write(source.path().join("file"), "x").expect("write");
    node.end_change(change, None);
    file.set_marked(&marked);
    file.times.changed();
    node.restamp(&fds).expect("the time is set");
    assert!(!others_wrote(&node));
}

/// Between the write that made the file one to be marked, and the mark: the kernel tells of what comes after.
#[test]
fn a_write_by_others_just_before_the_mark_is_seen() {
    let source = tempfile::tempdir().expect("a directory");
    let Some((fs, node, fds)) = with_writer(source.path()) else {
        return;
    };
    let file = node.file();
    let ours = file.begin_change(LocalChange::Data);
    node.end_change(ours, fd::fstat(fds.buffered.as_fd()).ok().as_ref());
    thread::sleep(Duration::from_millis(30));
    std::fs::write(source.path().join("file"), "theirs").expect("write");
    mark(&fs, &node, &fds);
    file.times.changed();
    node.restamp(&fds).expect("the time is theirs");
    assert!(others_wrote(&node));
}

/// An open that asks makes two calls: what the second says is not asked for again.
#[test]
fn a_descriptor_comes_with_the_answer_of_the_source() {
    let source = tempfile::tempdir().expect("a directory");
    let (_fs, node) = with_file(source.path(), DirFsOptions::default());
    let file = node.file();
    assert!(file.close());
    let (fds, stat) = node.open_descriptors(false).expect("descriptors");
    let stat = stat.expect("asked by its name");
    assert_eq!(Ok(stat), fd::fstat(fds.buffered.as_fd()));
    // An open file is not asked.
    let (held, stat) = node.open_descriptors(false).expect("descriptors");
    assert!(Arc::ptr_eq(&held, &fds) && stat.is_none());
}

#[test]
fn a_read_refused_by_direct_io_or_the_ring_falls_back_to_a_buffered_read() {
    let source = tempfile::tempdir().expect("a directory");
    let (fs, node) = with_file(source.path(), DirFsOptions::default());
    let fds = node.descriptors(false).expect("descriptors");
    let list = [memory(1 << 20), memory(1 << 20)];
    let finish = |result| node.source(&fds).finish_read(4096, &list, result);
    for refused in [Errno::ENOMEM, Errno::EPERM, Errno::ENOSYS] {
        list[1].zero(0, 1 << 20);
        assert_eq!(finish(Err(refused)), Ok(2 << 20));
        expect_bytes(&list, 4096, 2 << 20);
    }
    assert_eq!(finish(Err(Errno::EIO)), Err(Errno::EIO));
    assert_eq!(finish(Ok(7)), Ok(7));
    // Refused for this file from here on, and said once.
    let before = fs.stats().buffered_reads;
    for _ in 0..2 {
        list[0].zero(0, 1 << 20);
        assert_eq!(finish(Err(Errno::EINVAL)), Ok(2 << 20));
        expect_bytes(&list, 4096, 2 << 20);
    }
    reads(&node);
    let stats = fs.stats();
    assert!(stats.buffered_reads >= before + 7, "{stats:?}");
    let told = |(what, ..): &&(Fallback, Errno, u64)| *what == Fallback::DirectIo;
    assert_eq!(
        stats.fallbacks.iter().find(told).map(|told| told.2),
        Some(1)
    );
}

#[test]
fn reads_outlive_the_name_the_handles_and_the_file_system() {
    let source = tempfile::tempdir().expect("a directory");
    let (fs, node) = with_file(source.path(), DirFsOptions::default());
    let (tell, told) = mpsc::channel();
    for round in 0..32 {
        let list = vec![memory(1 << 20), memory(1 << 20)];
        let tell = tell.clone();
        let segments = list.clone();
        let pos = (round % 2) << 20;
        let done = Box::new(move |result| tell.send((result, pos, segments)).expect("a test"));
        node.start_read(pos as u64, &list, done);
        node.begin_reads();
    }
    std::fs::remove_file(source.path().join("file")).expect("remove");
    drop(node);
    drop(fs);
    drop(tell);
    for _ in 0..32 {
        let (result, pos, segments) = told.recv_timeout(LONG).expect("all reads end");
        assert_eq!(result, Ok(2 << 20));
        expect_bytes(&segments, pos, 2 << 20);
    }
    assert!(told.recv_timeout(LONG).is_err(), "each ends once");
}

/// As when a tree of links is made for comparison and taken away again, through the cache or beside it.
#[test]
fn files_that_lose_one_of_their_names_need_no_descriptors() {
    for beside in [false, true] {
        files_that_lose_a_name(beside);
    }
}

fn files_that_lose_a_name(beside: bool) {
    let source = tempfile::tempdir().expect("a directory");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let options = DirFsOptions {
        path_descriptors: 8,
        ..DirFsOptions::default()
    };
    let fs = DirFs::open(&mm, source.path(), options).expect("dirfs");
    let root = fs.root();
    let mut inodes = Vec::new();
    for i in 0..300 {
        let (one, two) = (format!("one{i}"), format!("two{i}"));
        std::fs::write(source.path().join(&one), "data").expect("write");
        if beside {
            let names = [&one, &two].map(|name| source.path().join(name));
            std::fs::hard_link(&names[0], &names[1]).expect("link");
        }
        let inode = fs.lookup(&root, OsStr::new(&one)).expect("lookup");
        if !beside {
            fs.link(&inode, &root, OsStr::new(&two)).expect("link");
        }
        let lost = if i % 2 == 0 && !beside { &two } else { &one };
        fs.remove(&root, OsStr::new(lost), Remove::File)
            .expect("unlink");
        inodes.push(inode);
    }
    let ours = source.path().canonicalize().expect("a path");
    let held = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.starts_with(&ours))
        .count();
    assert!(held < 50, "{held}");
    if beside {
        // A look-up of the other name finds the file.
        for (i, inode) in inodes.iter().enumerate() {
            let found = fs
                .lookup(&root, OsStr::new(&format!("two{i}")))
                .expect("lookup");
            assert!(foliocache_vfs::SlabArc::ptr_eq(&found, inode));
        }
    }
    for inode in &inodes {
        assert_eq!(fs.getattr(inode).expect("getattr").nlink, 1);
    }
    if beside {
        return;
    }
    // A name that the file was moved away from is none to fall back to.
    let inode = &inodes[0];
    fs.link(inode, &root, OsStr::new("third")).expect("link");
    let (from, to) = (OsStr::new("third"), OsStr::new("fourth"));
    fs.rename(&root, from, &root, to, foliocache_vfs::RenameMode::Replace)
        .expect("rename");
    fs.remove(&root, to, Remove::File).expect("unlink");
    assert_eq!(fs.getattr(inode).expect("getattr").nlink, 1);
    fs.remove(&root, OsStr::new("one0"), Remove::File)
        .expect("unlink");
    assert_eq!(fs.getattr(inode).expect("getattr").nlink, 0);
}

/// With the lock held that a change in another directory holds over its system calls.
/// A caller that looked the file up before it was removed asks for its attributes afterwards.
#[test]
fn a_file_whose_names_we_and_others_removed_has_attributes() {
    let source = tempfile::tempdir().expect("a directory");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let fs = DirFs::open(&mm, source.path(), DirFsOptions::default()).expect("dirfs");
    let [one, two] = ["one", "two"].map(|name| source.path().join(name));
    std::fs::write(&one, "data").expect("write");
    std::fs::hard_link(&one, &two).expect("link");
    let inode = fs.lookup(&fs.root(), OsStr::new("one")).expect("lookup");
    fs.remove(&fs.root(), OsStr::new("one"), Remove::File)
        .expect("unlink");
    std::fs::remove_file(&two).expect("remove");
    assert!(fs.give_up_removed(&inode));
    assert_eq!(fs.getattr(&inode).expect("attributes").nlink, 0);
}

#[test]
fn changes_of_names_in_different_directories_do_not_wait_for_each_other() {
    let source = tempfile::tempdir().expect("a directory");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let fs = DirFs::open(&mm, source.path(), DirFsOptions::default()).expect("dirfs");
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let elsewhere = fs.shared.moves.read();
        let (fs, ctx, root) = (&fs, &OpContext::ROOT, fs.root());
        scope.spawn(move || {
            let [file, dir, moved] = ["file", "dir", "moved"].map(OsStr::new);
            fs.create(ctx, &root, file, 0o640, OpenFlags::READ_WRITE)
                .expect("create");
            fs.make(ctx, &root, dir, New::Directory { mode: 0o750 })
                .expect("mkdir");
            fs.rename(&root, file, &root, moved, RenameMode::Replace)
                .expect("rename");
            fs.remove(&root, moved, Remove::File).expect("unlink");
            fs.remove(&root, dir, Remove::Directory).expect("rmdir");
            tell.send(()).expect("the test waits");
        });
        let made = told.recv_timeout(LONG);
        drop(elsewhere);
        made.expect("a change waited");
    });
}

#[test]
fn a_walk_waits_for_a_directory_that_is_being_moved() {
    let source = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(source.path().join("old")).expect("mkdir");
    std::fs::write(source.path().join("old/file"), "data").expect("write");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let fs = DirFs::open(&mm, source.path(), DirFsOptions::default()).expect("dirfs");
    let dir = fs.lookup(&fs.root(), OsStr::new("old")).expect("lookup");
    let file = fs.lookup(&dir, OsStr::new("file")).expect("lookup");
    fs.shared.path_fds.clear();
    thread::scope(|scope| {
        // As `rename` does it.
        let moving = fs.shared.moves.read();
        std::fs::rename(source.path().join("old"), source.path().join("new")).expect("rename");
        let walk = scope.spawn(|| fs.getattr(&file).map(|attr| attr.size));
        thread::sleep(Duration::from_millis(50));
        assert!(!walk.is_finished(), "{:?}", walk.join());
        let node = DirNode::of(&dir).expect("ours");
        node.found_at(&fs.root(), OsStr::new("new"));
        drop(moving);
        assert_eq!(walk.join().expect("no panic"), Ok(4));
    });
    fs.shared.path_fds.clear();
    std::fs::rename(source.path().join("new"), source.path().join("gone")).expect("rename");
    assert_eq!(fs.getattr(&file).map(drop), Err(Errno::ESTALE), "outside");
}

/// A file whose path is cached and whose descriptors are there is opened, read and closed without any lock that
/// it shares with others: all of those are held meanwhile.
#[test]
fn a_warm_open_takes_no_lock_but_the_files_own() {
    let source = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(source.path().join("some/way/down")).expect("directories");
    std::fs::write(source.path().join("some/way/down/file"), "data").expect("write");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let options = DirFsOptions {
        revalidate_after: LONG,
        ..DirFsOptions::default()
    };
    let fs = Arc::new(DirFs::open(&mm, source.path(), options).expect("dirfs"));
    let names = SuperBlock::new(fs.clone(), &mm);
    let user = Credentials::new(0, 0, &[]);
    let paths = paths(&names, Some(&user));
    let how = OpenHow {
        flags: OpenFlags::READ,
        create: false,
        exclusive: false,
        follow: true,
        mode: 0,
    };
    let path = OsStr::new("some/way/down/file");
    let read = || {
        let file = paths.open(path, how).expect("it opens");
        let mut buf = [0; 4];
        assert_eq!(file.read_at(&mut buf, 0), Ok(4));
        assert_eq!(&buf, b"data");
        file
    };
    let _warm = read();
    let shared = &fs.shared;
    let (held, is_held) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _moves = shared.moves.write();
            let _idle = shared.idle.files.lock();
            shared.path_fds.locked(|| {
                held.send(()).expect("the test waits");
                is_done
                    .recv_timeout(LONG)
                    .expect("an open waited for a lock");
            });
        });
        is_held.recv().expect("held");
        for _ in 0..3 {
            drop(read());
            let stat = paths.stat(path, false);
            assert_eq!(stat.map(|attr| attr.size), Ok(4));
        }
        done.send(()).expect("it was waited for");
    });
}

/// A watched source with a file, its names, and a way to ask for the file's size.
fn watched(source: &Path) -> (Arc<DirFs>, SuperBlock) {
    std::fs::write(source.join("file"), "old").expect("write");
    let mm = Mm::new(MmConfig::new(64 << 20)).expect("a cache");
    let options = DirFsOptions {
        revalidate_after: Duration::from_secs(86_400),
        ..DirFsOptions::default()
    };
    let fs = Arc::new(DirFs::open(&mm, source, options).expect("dirfs"));
    let names = SuperBlock::new(fs.clone(), &mm);
    (fs, names)
}

fn paths<'a>(names: &'a SuperBlock, credentials: Option<&'a Credentials>) -> Namei<'a> {
    Namei {
        names,
        start: names.root(),
        beneath: true,
        ctx: OpContext::ROOT,
        credentials,
    }
}

fn open_named(names: &SuperBlock, flags: OpenFlags) -> OpenFile {
    let how = OpenHow {
        flags,
        ..OpenHow::default()
    };
    let opened = paths(names, None).open(OsStr::new("file"), how);
    opened.expect("it opens")
}

fn stat_named(names: &SuperBlock) -> u64 {
    let stat = paths(names, None).stat(OsStr::new("file"), false);
    stat.expect("it is there").size
}

/// Another program appends, and the size is asked for after that was reported.
fn append_outside(source: &Path, fs: &DirFs, names: &SuperBlock) {
    let told = fs.stats().changes_told;
    let mut file = std::fs::File::options()
        .append(true)
        .open(source.join("file"))
        .expect("open");
    file.write_all(b"more").expect("write");
    drop(file);
    let start = Instant::now();
    while fs.stats().changes_told == told {
        assert!(start.elapsed() < LONG, "it is not told");
        stat_named(names);
    }
    thread::sleep(Duration::from_millis(50));
    stat_named(names);
}

#[test]
fn a_change_beside_data_on_its_way_is_seen_when_that_is_durable() {
    let source = tempfile::tempdir().expect("a directory");
    let (fs, names) = watched(source.path());
    let file = open_named(&names, OpenFlags::READ_WRITE);
    assert_eq!(file.write_at(b"OLD", 0), Ok(3));
    let mapping = file.inode().mapping().expect("opened").clone();
    drop(file);
    let (path, at) = (source.path().to_owned(), Arc::downgrade(&fs));
    let names = Arc::new(names);
    let by = Arc::downgrade(&names);
    fs.shared.sync_calls.intercept(move |call, _| {
        if call == SyncCall::Data
            && let (Some(fs), Some(names)) = (at.upgrade(), by.upgrade())
        {
            // By another thread: this one holds locks of the file.
            thread::scope(|scope| {
                scope.spawn(|| append_outside(&path, &fs, &names));
            });
        }
        Ok(())
    });
    mapping.sync().expect("sync");
    assert_eq!(stat_named(&names), 7);
    let file = open_named(&names, OpenFlags::READ);
    let mut buf = [0; 8];
    assert_eq!(file.read_at(&mut buf, 0), Ok(7));
    assert_eq!(&buf[..7], b"OLDmore");
}

#[test]
fn a_change_that_is_asked_for_beside_an_opening_is_seen_after_it() {
    let source = tempfile::tempdir().expect("a directory");
    let (fs, names) = watched(source.path());
    let file = open_named(&names, OpenFlags::READ);
    assert_eq!(stat_named(&names), 3);
    let node = DirNode::of(file.inode()).expect("a node");
    std::fs::write(source.path().join("file"), "old and more").expect("write");
    thread::sleep(Duration::from_millis(50));
    thread::scope(|scope| {
        let opening = node.file().opens.lock();
        scope.spawn(|| stat_named(&names));
        thread::sleep(Duration::from_millis(100));
        drop(opening);
    });
    assert!(fs.stats().changes_told > 0);
    assert_eq!(stat_named(&names), 12);
}
