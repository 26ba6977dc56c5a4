//! Changes by others in a directory are seen soon, and unchanged names are not asked for.

use crate::common::{Paths as _, WalkFlags, cache, dirfs, on_disk, read_all, root_namei};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_mm::{Iocb, IovIter, VmaAccess};
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_sys::fd::SetTime;
use foliocache_vfs::{
    Attr, Credentials, DirEntryBuf, FallocateMode, FileSystem, Inode, New, OpContext,
    OpenDirectory, OpenFile, OpenFlags, OpenHow, Remove, RenameMode, SetAttr, SlabArc, SuperBlock,
};
use rustix::fs::IFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const STAY: WalkFlags = WalkFlags {
    follow: false,
    beneath: true,
};

/// Longer than anything here is believed by time.
const DAY: Duration = Duration::from_secs(86_400);

/// A change is to be seen after this long at most; the machine may be busy.
const SOON: Duration = Duration::from_secs(20);

struct World {
    source: tempfile::TempDir,
    fs: Arc<DirFs>,
    names: SuperBlock,
}

impl World {
    /// Answers are believed for a day unless a change is reported.
    fn new(setup: impl FnOnce(&Path)) -> World {
        let source = on_disk();
        setup(source.path());
        let mut options = DirFsOptions::default();
        options.revalidate_after = DAY;
        options.revalidate_absent_after = DAY;
        World::with(source, options)
    }

    fn with(source: tempfile::TempDir, options: DirFsOptions) -> World {
        let mm = cache(64);
        let fs = Arc::new(dirfs(&mm, source.path(), options));
        let names = SuperBlock::new(fs.clone(), &mm);
        World { source, fs, names }
    }

    /// One of a directory with the file `file`.
    fn with_file(content: &[u8], watch: bool) -> World {
        let source = on_disk();
        fs::write(source.path().join("file"), content).expect("a file");
        let mut options = DirFsOptions::default();
        (options.watch, options.revalidate_after) = (watch, DAY);
        World::with(source, options)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.source.path().join(name)
    }

    fn stat(&self, path: &str) -> Result<Attr, Errno> {
        let stat = self
            .names
            .stat(self.names.root(), OsStr::new(path), STAY, None);
        stat.map_err(|error| error.errno())
    }

    /// Waits until a name has the wanted attributes.
    #[track_caller]
    fn shows(&self, path: &str, wanted: impl Fn(Result<Attr, Errno>) -> bool) {
        let begun = Instant::now();
        while !wanted(self.stat(path)) {
            assert!(begun.elapsed() < SOON, "{path}: {:?}", self.stat(path));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn sh(script: &str, dir: &Path) {
    let status = Command::new("sh")
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .status();
    assert!(status.expect("a shell").success(), "{script}");
}

#[test]
fn names_that_others_make_and_remove_are_seen() {
    let world = World::new(|source| {
        fs::create_dir_all(source.join("a/b")).expect("directories");
    });
    assert_eq!(world.stat("a/b/new").map(drop), Err(Errno::ENOENT));
    sh("echo hello > a/b/new", world.source.path());
    world.shows("a/b/new", |attr| attr.is_ok_and(|attr| attr.size == 6));
    sh("rm a/b/new", world.source.path());
    world.shows("a/b/new", |attr| attr == Err(Errno::ENOENT));
    sh("mkdir a/b/new; echo x > a/b/new/er", world.source.path());
    world.shows("a/b/new/er", |attr| attr.is_ok());
    sh("mv a/b/new a/other", world.source.path());
    world.shows("a/b/new/er", |attr| attr == Err(Errno::ENOENT));
    world.shows("a/other/er", |attr| attr.is_ok());
    // A moved directory is watched at its new place.
    sh("rm a/other/er", world.source.path());
    world.shows("a/other/er", |attr| attr == Err(Errno::ENOENT));
    sh(
        "rmdir a/other; mkdir a/other; touch a/other/er",
        world.source.path(),
    );
    world.shows("a/other/er", |attr| attr.is_ok());
    sh("rm a/other/er", world.source.path());
    world.shows("a/other/er", |attr| attr == Err(Errno::ENOENT));
}

#[test]
fn attributes_and_sizes_that_others_change_are_seen() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "12345").expect("a file");
        symlink("file", source.join("dir/link")).expect("a link");
    });
    for name in ["dir", "dir/file", "dir/link"] {
        world.stat(name).expect("it is there");
    }
    sh("echo more >> dir/file", world.source.path());
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == 10));
    sh("truncate -s 3 dir/file", world.source.path());
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == 3));
    sh("chmod 600 dir/file; chmod 700 dir", world.source.path());
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.mode == 0o600));
    world.shows("dir", |attr| attr.is_ok_and(|attr| attr.mode == 0o700));
    let before = world.stat("dir").expect("it is there").mtime;
    sh("touch dir/one", world.source.path());
    world.shows("dir", |attr| attr.is_ok_and(|attr| attr.mtime != before));
    sh("ln -sfn elsewhere dir/link", world.source.path());
    world.shows("dir/link", |attr| attr.is_ok_and(|attr| attr.size == 9));
    sh("mv dir/one dir/file", world.source.path());
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == 0));
}

/// A thread remembers the way through a directory, and must not go it when others closed or moved it.
#[test]
fn a_remembered_way_that_others_close_is_closed() {
    let world = World::new(|source| {
        fs::create_dir_all(source.join("way/down")).expect("directories");
        fs::write(source.join("way/down/file"), "x").expect("a file");
    });
    let user = Credentials::new(1000, 1000, &[]);
    let path = OsStr::new("way/down/file");
    let stat = || {
        let stat = world
            .names
            .stat(world.names.root(), path, STAY, Some(&user));
        stat.map(drop).map_err(|error| error.errno())
    };
    let becomes = |wanted: Result<(), Errno>| {
        let begun = Instant::now();
        while stat() != wanted {
            assert!(begun.elapsed() < SOON, "{:?}", stat());
        }
    };
    for _ in 0..3 {
        assert_eq!(stat(), Ok(()));
    }
    assert!(world.names.remembers(world.names.root(), path, Some(&user)));
    for way in ["way", "way/down"] {
        fs::set_permissions(world.path(way), Permissions::from_mode(0o700)).expect("chmod");
        becomes(Err(Errno::EACCES));
        fs::set_permissions(world.path(way), Permissions::from_mode(0o755)).expect("chmod");
        becomes(Ok(()));
        for _ in 0..3 {
            assert_eq!(stat(), Ok(()));
        }
    }
    fs::rename(world.path("way"), world.path("away")).expect("rename");
    becomes(Err(Errno::ENOENT));
}

/// Without an event an old answer is not asked for again: by then the source differs.
#[test]
fn an_unchanged_name_is_believed_until_an_event() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "12345").expect("a file");
    });
    world.stat("dir/file").expect("it is there");
    let told = || world.fs.stats().changes_told;
    // Twice: events caused by our own questions, if any, are read by then.
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(30));
        world.stat("dir/file").expect("it is there");
        world.stat("dir/none").expect_err("it is not there");
    }
    assert_eq!(told(), 0);
    assert_eq!(world.fs.stats().watches, 2, "the source and the directory");
    File::create(world.path("dir/none")).expect("a file");
    world.shows("dir/none", |attr| attr.is_ok());
    assert!(told() > 0);
}

#[test]
fn a_file_with_two_names_goes_by_time() {
    let source = on_disk();
    fs::create_dir(source.path().join("a")).expect("a directory");
    fs::create_dir(source.path().join("b")).expect("a directory");
    fs::write(source.path().join("a/file"), "1").expect("a file");
    fs::hard_link(source.path().join("a/file"), source.path().join("b/file")).expect("a link");
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::from_millis(20);
    let mm = cache(64);
    let fs = Arc::new(dirfs(&mm, source.path(), options));
    let names = SuperBlock::new(fs, &mm);
    let size = || {
        let stat = names.stat(names.root(), OsStr::new("a/file"), STAY, None);
        stat.map(|attr| attr.size)
    };
    assert_eq!(size(), Ok(1));
    // The other directory is not watched.
    fs::write(source.path().join("b/file"), "12").expect("written");
    let begun = Instant::now();
    while size() != Ok(2) {
        assert!(begun.elapsed() < SOON);
    }
}

/// More changes than the queue holds: nothing old is believed afterwards.
#[test]
fn lost_events_end_all_belief() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "1").expect("a file");
    });
    world.stat("dir/file").expect("it is there");
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
    let limit: usize = limit.trim().parse().expect("a number");
    let (one, two) = (world.path("dir/x"), world.path("dir/y"));
    File::create(&one).expect("a file");
    // The cache looks each second, also by itself: in a slow round it may find all of them.
    let mut size = 2;
    while world.fs.stats().changes_lost == 0 {
        assert!(size < 50, "nothing is lost");
        for _ in 0..limit {
            fs::rename(&one, &two).expect("moved");
            fs::rename(&two, &one).expect("moved back");
        }
        size += 1;
        fs::write(world.path("dir/file"), vec![b'2'; size]).expect("written");
        let size = size as u64;
        world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == size));
    }
    fs::write(world.path("dir/file"), "1").expect("written");
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == 1));
}

/// Our own moves take the belief along, or end it.
#[test]
fn a_moved_file_is_watched_in_its_new_directory() {
    let world = World::new(|source| {
        for dir in ["a", "b"] {
            fs::create_dir(source.join(dir)).expect("a directory");
        }
        fs::write(source.join("a/file"), "1").expect("a file");
    });
    world.stat("a/file").expect("it is there");
    let dir = |name| {
        let names = &world.names;
        names
            .lookup(names.root(), OsStr::new(name), STAY, None)
            .expect("a directory")
    };
    let (a, b) = (dir("a"), dir("b"));
    let (from, to) = (OsStr::new("file"), OsStr::new("moved"));
    let moved = world
        .names
        .rename(&a, from, &b, to, RenameMode::Replace, None);
    moved.expect("moved");
    world.stat("b/moved").expect("it is there");
    fs::write(world.path("b/moved"), "123").expect("written");
    world.shows("b/moved", |attr| attr.is_ok_and(|attr| attr.size == 3));
    fs::remove_file(world.path("b/moved")).expect("removed");
    world.shows("b/moved", |attr| attr == Err(Errno::ENOENT));
    fs::write(world.path("a/file"), "12345").expect("written");
    world.shows("a/file", |attr| attr.is_ok_and(|attr| attr.size == 5));
}

/// Names evicted for memory take the belief along: a file without a cached name gets no events.
#[test]
fn a_file_whose_dentry_was_evicted_is_asked_about_again() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "1").expect("a file");
    });
    let names = &world.names;
    world.stat("dir/file").expect("it is there");
    let file = names.lookup(names.root(), OsStr::new("dir/file"), STAY, None);
    let inode = file.expect("it is there").inode().expect("a file");
    names.evict_unused();
    fs::write(world.path("dir/file"), "123").expect("written");
    thread::sleep(Duration::from_millis(30));
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == 3));
    assert_eq!(names.fs().getattr(&inode).map(|attr| attr.size), Ok(3));
}

#[test]
fn watches_go_with_their_directories() {
    let world = World::new(|source| {
        for n in 0..100 {
            fs::create_dir(source.join(format!("{n}"))).expect("a directory");
        }
    });
    for n in 0..100 {
        world
            .stat(&format!("{n}/none"))
            .expect_err("it is not there");
    }
    assert_eq!(world.fs.stats().watches, 101);
    world.names.evict_unused();
    let begun = Instant::now();
    while world.fs.stats().watches > 1 {
        assert!(begun.elapsed() < SOON, "{:?}", world.fs.stats());
        world.names.evict_unused();
    }
    let ctx = OpContext::ROOT;
    let root = world.names.root().clone();
    for n in 0..100 {
        let name = format!("{n}");
        world
            .stat(&format!("{n}/none"))
            .expect_err("it is not there");
        world
            .names
            .remove(&root, OsStr::new(&name), Remove::Directory, None)
            .expect("removed");
        let made = world.names.make(
            &ctx,
            &root,
            OsStr::new(&name),
            New::Directory { mode: 0o755 },
            None,
        );
        drop(made.expect("made"));
        world
            .stat(&format!("{n}/none"))
            .expect_err("it is not there");
        File::create(world.path(&format!("{n}/none"))).expect("a file");
        world.shows(&format!("{n}/none"), |attr| attr.is_ok());
    }
}

impl World {
    fn open(&self, path: &str) -> Result<OpenFile, Errno> {
        self.open_for(path, OpenFlags::READ)
    }

    fn open_for(&self, path: &str, flags: OpenFlags) -> Result<OpenFile, Errno> {
        let namei = root_namei(&self.names);
        let how = OpenHow {
            flags,
            ..OpenHow::default()
        };
        let opened = namei.open(OsStr::new(path), how);
        opened.map_err(|error| error.errno())
    }

    fn read(&self, path: &str) -> Vec<u8> {
        read_all(&self.open(path).expect("it opens"))
    }

    /// Opened without a call, opened with.
    fn opens(&self) -> (u64, u64) {
        let stats = self.fs.stats();
        (stats.opens_from_cache, stats.opens_asked)
    }

    /// Waits until a file reads as wanted.
    #[track_caller]
    fn reads(&self, path: &str, wanted: &[u8]) {
        let begun = Instant::now();
        while self.read(path) != wanted {
            assert!(begun.elapsed() < SOON, "{path}: {:?}", self.read(path));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads a file until it is opened from the cache.
    #[track_caller]
    fn warm(&self, path: &str) {
        let (before, _) = self.opens();
        let begun = Instant::now();
        while self.opens().0 == before {
            assert!(begun.elapsed() < SOON, "{path}: {:?}", self.opens());
            self.read(path);
        }
    }
}

#[test]
fn a_cached_file_opens_without_asking() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), vec![7; 6000]).expect("a file");
    });
    world.read("dir/file");
    let (_, asked) = world.opens();
    // Longer ago than the news are young.
    thread::sleep(Duration::from_millis(30));
    for _ in 0..100 {
        assert_eq!(world.read("dir/file"), vec![7; 6000]);
    }
    assert_eq!(world.opens(), (100, asked));
    // Not for writing: a write needs a descriptor.
    world
        .open_for("dir/file", OpenFlags::READ_WRITE)
        .expect("it opens");
    assert_eq!(world.opens(), (100, asked + 1));
}

#[test]
fn a_cached_file_that_others_change_is_asked_about() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "old").expect("a file");
    });
    world.warm("dir/file");
    sh("printf newer > dir/file", world.source.path());
    world.reads("dir/file", b"newer");
    world.warm("dir/file");
    // Of the same size, and with its old time.
    sh(
        "cp -p dir/file x; printf other > dir/file; touch -r x dir/file",
        world.source.path(),
    );
    world.reads("dir/file", b"other");
    world.warm("dir/file");
    sh("printf moved > y; mv y dir/file", world.source.path());
    world.reads("dir/file", b"moved");
    world.warm("dir/file");
    // The permission to open it may have changed.
    let (_, asked) = world.opens();
    sh("chmod 600 dir/file", world.source.path());
    let begun = Instant::now();
    while world.opens().1 == asked {
        assert!(begun.elapsed() < SOON);
        world.read("dir/file");
    }
    sh("rm dir/file", world.source.path());
    let begun = Instant::now();
    while world.open("dir/file").map(drop) != Err(Errno::ENOENT) {
        assert!(begun.elapsed() < SOON);
    }
}

/// Our own writes are asked about once they are in the source, and later writes by others are seen.
#[test]
fn a_file_that_we_write_is_opened_from_the_cache_again() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "old").expect("a file");
    });
    world.warm("dir/file");
    let file = world
        .open_for("dir/file", OpenFlags::READ_WRITE)
        .expect("it opens");
    assert_eq!(file.write_at(b"ours", 0), Ok(4));
    assert_eq!(world.read("dir/file"), b"ours");
    file.fsync().expect("synced");
    drop(file);
    world.warm("dir/file");
    assert_eq!(world.read("dir/file"), b"ours");
    sh("printf theirs > dir/file", world.source.path());
    world.reads("dir/file", b"theirs");
}

/// The first page of a file.
#[allow(unsafe_code)]
fn map(file: &File) -> *mut u8 {
    let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping where the kernel likes.
    let page = unsafe { mmap(ptr::null_mut(), 4096, read_write, shared, file, 0) };
    page.expect("mapped").cast()
}

/// Stores through a mapping cause no event, so the source is asked.
#[test]
#[allow(unsafe_code)]
fn stores_through_a_mapping_are_seen_after_a_while() {
    let source = on_disk();
    fs::write(source.path().join("file"), "old").expect("a file");
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::from_millis(50);
    let world = World::with(source, options);
    let mut theirs = File::options();
    theirs.read(true).write(true);
    let theirs = theirs.open(world.path("file")).expect("it opens");
    let stores = map(&theirs);
    world.warm("file");
    // Later than the time of the file.
    thread::sleep(Duration::from_millis(20));
    // SAFETY: the file is not truncated, and its mapping has no other user.
    unsafe { stores.copy_from_nonoverlapping(b"new".as_ptr(), 3) };
    world.reads("file", b"new");
    let (cached, _) = world.opens();
    world.warm("file");
    assert!(world.opens().0 > cached, "looked at, not opened");
}

/// Changes through another name cause no event.
#[test]
fn a_file_with_two_names_is_asked_about_at_each_open() {
    let world = World::new(|source| {
        for dir in ["a", "b"] {
            fs::create_dir(source.join(dir)).expect("a directory");
        }
        fs::write(source.join("a/file"), "old").expect("a file");
        fs::hard_link(source.join("a/file"), source.join("b/file")).expect("a link");
    });
    for n in 0..20 {
        let content = format!("{n}");
        fs::write(world.path("b/file"), &content).expect("written");
        assert_eq!(world.read("a/file"), content.as_bytes());
    }
    assert_eq!(world.opens().0, 0);
    fs::write(world.path("b/file"), "last").expect("written");
    fs::remove_file(world.path("b/file")).expect("removed");
    // One name is left: from now on all changes are reported.
    world.reads("a/file", b"last");
}

/// The creation of such a name causes no event either.
#[test]
fn a_second_name_made_in_a_directory_not_in_use_is_seen_by_an_open() {
    let source = on_disk();
    for dir in ["a", "b"] {
        fs::create_dir(source.path().join(dir)).expect("a directory");
    }
    fs::write(source.path().join("a/file"), "old").expect("a file");
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::from_millis(20);
    let world = World::with(source, options);
    world.warm("a/file");
    fs::hard_link(world.path("a/file"), world.path("b/file")).expect("a link");
    fs::write(world.path("b/file"), "newer").expect("written");
    world.reads("a/file", b"newer");
    // From here on it goes by time.
    world.shows("a/file", |attr| {
        attr.is_ok_and(|attr| (attr.size, attr.nlink) == (5, 2))
    });
    fs::write(world.path("b/file"), "the newest").expect("written");
    world.shows("a/file", |attr| attr.is_ok_and(|attr| attr.size == 10));
}

/// Writes through such a descriptor are reported only to that name's directory, which is not
/// watched.
#[test]
fn writes_by_a_name_that_is_gone_are_seen_by_an_open() {
    let source = on_disk();
    for dir in ["a", "b"] {
        fs::create_dir(source.path().join(dir)).expect("a directory");
    }
    fs::write(source.path().join("a/file"), "old").expect("a file");
    let (name, other) = (source.path().join("a/file"), source.path().join("b/file"));
    fs::hard_link(&name, &other).expect("a link");
    let theirs = File::options().write(true).open(&other).expect("it");
    fs::remove_file(&other).expect("removed");
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::from_millis(20);
    let world = World::with(source, options);
    world.warm("a/file");
    theirs.write_all_at(b"newer", 0).expect("written");
    world.reads("a/file", b"newer");
    world.shows("a/file", |attr| attr.is_ok_and(|attr| attr.size == 5));
}

/// The guide says so.
#[test]
fn flags_that_others_set_are_not_seen() {
    let world = World::with_file(b"content", true);
    world.warm("file");
    let before = world.stat("file").expect("it").ctime;
    thread::sleep(Duration::from_millis(20));
    let theirs = File::open(world.path("file")).expect("it");
    let flags = rustix::fs::ioctl_getflags(&theirs).expect("flags");
    rustix::fs::ioctl_setflags(&theirs, flags | IFlags::NODUMP).expect("a flag");
    let changed = theirs.metadata().expect("it");
    assert_ne!(
        (changed.ctime(), changed.ctime_nsec()),
        (before.sec, before.nsec.into())
    );
    thread::sleep(Duration::from_millis(50));
    assert_eq!(world.stat("file").expect("it").ctime, before);
    // With the next change they are.
    theirs
        .set_permissions(Permissions::from_mode(0o600))
        .expect("a mode");
    world.shows("file", |attr| attr.is_ok_and(|attr| attr.ctime != before));
}

/// Descriptors of this process that keep removed files below a directory open.
fn removed_but_open(source: &Path) -> Vec<PathBuf> {
    let fds = fs::read_dir("/proc/self/fd").expect("descriptors");
    let fds = fds.filter_map(|fd| Some(fd.ok()?.path()));
    let removed = fds.filter(|fd| fs::metadata(fd).is_ok_and(|metadata| metadata.nlink() == 0));
    removed
        .filter_map(|fd| fs::read_link(fd).ok())
        .filter(|target| target.starts_with(source))
        .collect()
}

impl World {
    /// Asks the source for a name.
    fn ask(&self, dir: &str, name: &str) -> Result<(), Errno> {
        let dir = self
            .names
            .lookup(self.names.root(), OsStr::new(dir), STAY, None);
        let dir = dir.expect("it is there");
        self.names.lookup_name(&dir, OsStr::new(name)).map(drop)
    }

    /// Waits until nothing of the removed files is kept.
    #[track_caller]
    fn keeps_nothing_removed(&self, resident: u64) {
        let begun = Instant::now();
        loop {
            let open = removed_but_open(self.source.path());
            let pages = self.names.mm().stats().files.resident_pages;
            if open.is_empty() && pages == resident {
                return;
            }
            // The process asks for nothing: the reaper looks each second.
            assert!(begun.elapsed() < SOON, "{pages} pages, {open:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn files_removed_by_others_keep_neither_pages_nor_descriptors() {
    let world = World::new(|source| {
        fs::create_dir_all(source.join("dir/below")).expect("directories");
        for name in [
            "read",
            "kept",
            "written",
            "replaced",
            "linked",
            "below/file",
        ] {
            fs::write(source.join("dir").join(name), vec![7; 64 << 10]).expect("a file");
        }
        fs::hard_link(source.join("dir/linked"), source.join("link")).expect("a link");
    });
    let names = ["read", "kept", "replaced", "linked", "below/file"];
    for name in names {
        world.read(&format!("dir/{name}"));
    }
    // These keep descriptors: for their attributes, and for unwritten data.
    let mode = SetAttr {
        mode: Some(0o700),
        ..SetAttr::default()
    };
    for name in ["kept", "replaced", "linked", "below/file", "below"] {
        let path = format!("dir/{name}");
        let (root, dentry) = (world.names.root(), OsStr::new(&path));
        let dentry = world.names.lookup(root, dentry, STAY, None);
        let inode = dentry.expect("it is there").inode().expect("an inode");
        let set = world.names.setattr(&OpContext::ROOT, &inode, &mode, None);
        set.expect("its mode is set");
    }
    let written = world.open_for("dir/written", OpenFlags::READ_WRITE);
    let written = written.expect("it opens");
    assert_eq!(written.write_at(&[9; 4096], 0), Ok(4096));
    drop(written);

    sh(
        "rm -r dir/read dir/kept dir/written dir/linked dir/below && echo > x && mv x dir/replaced",
        world.source.path(),
    );
    // The pages of the link, which are its file's.
    world.keeps_nothing_removed(16);
    assert_eq!(world.read("link"), vec![7; 64 << 10]);
    assert_eq!(world.read("dir/replaced"), b"\n");
}

#[test]
fn an_open_file_removed_by_others_stays_readable_until_closed() {
    let world = World::new(|source| {
        fs::write(source.join("file"), vec![7; 1 << 20]).expect("a file");
    });
    let file = world.open_for("file", OpenFlags::READ_WRITE);
    let file = file.expect("it opens");
    assert_eq!(file.write_at(b"ours", 0), Ok(4));
    sh("rm file", world.source.path());
    let begun = Instant::now();
    while world.open("file").map(drop) != Err(Errno::ENOENT) {
        assert!(begun.elapsed() < SOON);
    }
    thread::sleep(Duration::from_millis(50));
    assert_eq!(read_all(&file)[..5], *b"ours\x07");
    file.fsync().expect("synced");
    drop(file);
    world.keeps_nothing_removed(0);
}

/// A file opened from cached names has no descriptor that could show its removal. The reaper asks while it is open,
/// if the removal is reported soon enough.
#[test]
fn a_file_that_others_remove_while_it_is_open_from_the_cache_goes_at_its_close() {
    for script in ["rm file", "echo > new && mv new file"] {
        let world = World::new(|source| {
            fs::write(source.join("file"), vec![7; 64 << 10]).expect("a file");
        });
        world.warm("file");
        let from_cache = world.opens().0;
        let file = world.open("file").expect("it opens");
        assert_eq!(world.opens().0, from_cache + 1);
        let old = world.stat("file").expect("it is there").attributes;
        sh(script, world.source.path());
        world.shows("file", |attr| {
            !attr.is_ok_and(|attr| attr.attributes == old)
        });
        thread::sleep(Duration::from_millis(50));
        assert_eq!(read_all(&file), vec![7; 64 << 10]);
        drop(file);
        world.keeps_nothing_removed(0);
    }
}

/// Ways in which it is found that a name does not lead to a file any more.
const FOUND: [fn(&World); 6] = [
    // By an open of the old file.
    |world| {
        sh("echo > new && mv new dir/file", world.source.path());
        drop(
            world
                .open_for("dir/file", OpenFlags::READ_WRITE)
                .expect("it opens"),
        );
    },
    // By a look-up that finds another, or none.
    |world| {
        sh("echo > new && mv new dir/file", world.source.path());
        world.ask("dir", "file").expect("it is there");
    },
    |world| {
        sh("rm dir/file", world.source.path());
        assert_eq!(world.ask("dir", "file"), Err(Errno::ENOENT));
    },
    // By an open of its directory.
    |world| {
        sh(
            "rm -r dir && mkdir dir && echo > dir/file",
            world.source.path(),
        );
        world.ask(".", "dir").expect("it is there");
    },
    // Neither: the file that is there instead is removed, or replaced, by its name.
    |world| {
        sh("echo > new && mv new dir/file", world.source.path());
        let dir = world
            .names
            .lookup(world.names.root(), OsStr::new("dir"), STAY, None);
        let done = world.names.remove(
            &dir.expect("it is there"),
            OsStr::new("file"),
            Remove::File,
            None,
        );
        done.expect("it is removed");
    },
    |world| {
        sh(
            "echo > other && echo > new && mv new dir/file",
            world.source.path(),
        );
        let root = world.names.root();
        let dir = world.names.lookup(root, OsStr::new("dir"), STAY, None);
        let (dir, file) = (dir.expect("it is there"), OsStr::new("file"));
        let other = OsStr::new("other");
        let done = world
            .names
            .rename(root, other, &dir, file, RenameMode::Replace, None);
        done.expect("it is replaced");
    },
];

/// News count as current for some milliseconds. So a name may be asked for before its change is
/// reported.
#[test]
fn files_that_are_found_gone_before_that_is_told_keep_no_pages() {
    for (way, find) in FOUND.iter().enumerate() {
        for _ in 0..5 {
            let world = World::new(|source| {
                fs::create_dir(source.join("dir")).expect("a directory");
                fs::write(source.join("dir/file"), vec![7; 64 << 10]).expect("a file");
            });
            world.warm("dir/file");
            thread::sleep(Duration::from_millis(12));
            world.names.read_news();
            find(&world);
            println!("way {way}");
            world.keeps_nothing_removed(0);
        }
    }
}

/// A file that is not all cached keeps a descriptor: others may take its name away.
#[test]
fn a_partly_cached_open_file_stays_readable_without_a_name() {
    let world = World::new(|source| {
        fs::write(source.join("file"), vec![7; 10 << 20]).expect("a file");
    });
    let file = world.open("file").expect("it opens");
    let mut buf = [0; 4096];
    assert_eq!(file.read_at(&mut buf, 0), Ok(4096));
    drop(file);
    let file = world.open("file").expect("it opens");
    assert_eq!(world.opens().0, 0);
    fs::remove_file(world.path("file")).expect("removed");
    assert_eq!(read_all(&file).len(), 10 << 20);
}

/// One that is opened from the cache has no descriptor; a mapping gets one.
#[test]
#[allow(unsafe_code)]
fn a_mapping_of_a_file_that_was_opened_from_the_cache_stays_readable() {
    if crate::common::lacks("userfaultfd") {
        return;
    }
    let content: Vec<u8> = (0..64 << 10).map(|at| (at / 4096) as u8).collect();
    let world = World::new(|source| fs::write(source.join("file"), &content).expect("a file"));
    world.warm("file");
    let (cached, _) = world.opens();
    let file = world.open("file").expect("it opens");
    assert_eq!(world.opens().0, cached + 1);
    let vma = file
        .map(0, content.len(), VmaAccess::Read)
        .expect("a mapping");
    fs::remove_file(world.path("file")).expect("removed");
    file.mapping().invalidate(0, u64::MAX);
    assert_eq!(file.mapping().nr_pages(), 0);
    for page in 0..16 {
        // SAFETY: inside the mapping.
        let byte = unsafe { vma.address().wrapping_add(page * 4096 + 7).read_volatile() };
        assert_eq!(byte, page as u8);
    }
}

impl World {
    fn dir(&self, path: &str) -> SlabArc<Inode> {
        let names = &self.names;
        let found = names.lookup(names.root(), OsStr::new(path), STAY, None);
        found.expect("a directory").inode().expect("a directory")
    }

    /// The names in a directory, in order.
    fn list(&self, path: &str) -> Vec<String> {
        let opened = self.fs.opendir(&self.dir(path)).expect("it opens");
        let mut names: Vec<_> = opened
            .read_all()
            .expect("read")
            .into_iter()
            .map(|entry| entry.name.into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names.drain(..2);
        names
    }

    /// Read from the cache, read from the source.
    fn listed(&self) -> (u64, u64) {
        let stats = self.fs.stats();
        (stats.directories_from_cache, stats.directories_read)
    }
}

#[test]
fn names_in_a_directory_are_known_until_one_changes() {
    let world = World::new(|source| {
        fs::create_dir_all(source.join("dir/sub")).expect("directories");
        fs::write(source.join("dir/a"), "").expect("a file");
    });
    assert_eq!(world.list("dir"), ["a", "sub"]);
    thread::sleep(Duration::from_millis(30));
    let (_, read) = world.listed();
    for _ in 0..10 {
        assert_eq!(world.list("dir"), ["a", "sub"]);
    }
    assert_eq!(world.listed(), (10, read));
    // File contents are not names.
    fs::write(world.path("dir/a"), "more").expect("written");
    thread::sleep(Duration::from_millis(30));
    assert_eq!(world.list("dir"), ["a", "sub"]);
    assert_eq!(world.listed(), (11, read));
    // Others' changes are seen soon.
    let becomes = |wanted: &[&str]| {
        let begun = Instant::now();
        while world.list("dir") != wanted {
            assert!(begun.elapsed() < SOON, "{:?}", world.list("dir"));
        }
    };
    fs::write(world.path("dir/b"), "").expect("a file");
    becomes(&["a", "b", "sub"]);
    fs::rename(world.path("dir/b"), world.path("dir/sub/b")).expect("moved");
    becomes(&["a", "sub"]);
    assert_eq!(world.list("dir/sub"), ["b"]);
    // Our own at once.
    let (names, ctx) = (&world.names, OpContext::ROOT);
    let dentry = |path: &str| {
        let found = names.lookup(names.root(), OsStr::new(path), STAY, None);
        found.expect("a directory")
    };
    let (dir, sub) = (dentry("dir"), dentry("dir/sub"));
    for n in 0..50 {
        let (name, other) = (format!("n{n}"), format!("o{n}"));
        let (name, other) = (OsStr::new(&name), OsStr::new(&other));
        let has = |path: &str, name: &OsStr| {
            let listed = world.list(path);
            listed.iter().any(|listed| OsStr::new(listed) == name)
        };
        let flags = OpenFlags::READ_WRITE;
        let made = names.create(&ctx, &dir, name, 0o644, flags, None);
        drop(made.expect("made"));
        assert!(has("dir", name));
        let moved = names.rename(&dir, name, &sub, other, RenameMode::Replace, None);
        moved.expect("moved");
        assert!(!has("dir", name) && has("dir/sub", other));
        let linked = names.link(&world.dir(&format!("dir/sub/o{n}")), &dir, name, None);
        linked.expect("linked");
        assert!(has("dir", name));
        names
            .remove(&dir, name, Remove::File, None)
            .expect("removed");
        assert!(!has("dir", name));
        drop(
            names
                .make(&ctx, &dir, name, New::Directory { mode: 0o755 }, None)
                .expect("made"),
        );
        assert!(has("dir", name));
        names
            .remove(&dir, name, Remove::Directory, None)
            .expect("removed");
        assert!(!has("dir", name));
    }
}

/// An exclusive directory is not watched, and no answer is asked for twice.
#[test]
fn a_directory_that_is_ours_alone_is_not_asked_twice() {
    let source = on_disk();
    fs::write(source.path().join("file"), "old").expect("a file");
    let mut options = DirFsOptions::default();
    options.exclusive = true;
    options.revalidate_after = Duration::from_millis(1);
    let world = World::with(source, options);
    for _ in 0..3 {
        assert_eq!(world.read("file"), b"old");
        assert_eq!(world.list("."), ["file"]);
        assert_eq!(world.stat("none").map(drop), Err(Errno::ENOENT));
    }
    let (_, asked) = world.opens();
    let (_, read) = world.listed();
    fs::write(world.path("file"), "newer").expect("written");
    fs::write(world.path("none"), "there").expect("written");
    thread::sleep(Duration::from_millis(30));
    for _ in 0..3 {
        assert_eq!(world.read("file"), b"old");
        assert_eq!(world.list("."), ["file"]);
        assert_eq!(world.stat("none").map(drop), Err(Errno::ENOENT));
    }
    assert_eq!((world.opens().1, world.listed().1), (asked, read));
    assert_eq!(world.fs.stats().watches, 0);
    // Our own changes are seen.
    let names = &world.names;
    names
        .remove(names.root(), OsStr::new("file"), Remove::File, None)
        .expect("removed");
    assert_eq!(world.stat("file").map(drop), Err(Errno::ENOENT));
    assert_eq!(world.list("."), ["none"]);
}

/// Without writers a file's size is kept with its other attributes; with a writer it is the address
/// space's.
#[test]
fn a_stat_shows_each_size_that_a_file_gets() {
    for exclusive in [false, true] {
        let source = on_disk();
        fs::write(source.path().join("file"), "old").expect("a file");
        let mut options = DirFsOptions::default();
        options.exclusive = exclusive;
        options.revalidate_after = DAY;
        let world = World::with(source, options);
        let size = || world.stat("file").expect("it is there").size;
        assert_eq!(world.read("file"), b"old");
        assert_eq!(size(), 3);
        let file = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        assert_eq!(file.write_at(b"longer", 0), Ok(6));
        assert_eq!(size(), 6);
        file.fsync().expect("synced");
        // A reader that comes and goes beside a writer.
        assert_eq!(world.read("file"), b"longer");
        assert_eq!(size(), 6);
        assert_eq!(file.write_at(b"longest", 0), Ok(7));
        assert_eq!(size(), 7);
        let other = file.duplicate().expect("another handle");
        drop(file);
        other.set_len(2).expect("cut");
        assert_eq!(size(), 2);
        other.fsync().expect("synced");
        drop(other);
        assert_eq!(world.read("file"), b"lo");
        assert_eq!(size(), 2);
        let set = SetAttr {
            size: Some(5),
            ..SetAttr::default()
        };
        let inode = world.open("file").expect("it opens").inode().clone();
        let cut = world.fs.setattr(&OpContext::ROOT, &inode, &set);
        assert_eq!(cut.expect("cut").size, 5);
        assert_eq!(size(), 5);
        assert_eq!(world.read("file"), b"lo\0\0\0");
        assert_eq!(size(), 5);
        let cut = OpenFlags {
            truncate: true,
            ..OpenFlags::READ_WRITE
        };
        drop(world.open_for("file", cut).expect("it opens"));
        assert_eq!(size(), 0);
        // Nothing of it is in the store when it is closed.
        let file = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        assert_eq!(file.write_at(&[1; 65536], 0), Ok(65536));
        drop(file);
        assert_eq!(world.read("file").len(), 65536);
        let attr = world.stat("file").expect("it is there");
        assert_eq!((attr.size, attr.blocks >= 128), (65536, true));
    }
}

/// Changes by others while a writer of ours had dirty data are seen once that is written.
#[test]
fn a_change_beside_data_that_waits_is_seen_when_it_is_written() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/file"), "old").expect("a file");
    });
    let size = || world.stat("dir/file").expect("it is there").size;
    let reader = world.open("dir/file").expect("it opens");
    assert_eq!(read_all(&reader), b"old");
    let writer = world
        .open_for("dir/file", OpenFlags::READ_WRITE)
        .expect("it opens");
    assert_eq!(writer.write_at(b"O", 0), Ok(1));
    assert_eq!(size(), 3);
    let told = world.fs.stats().changes_told;
    sh("printf more >> dir/file", world.source.path());
    let begun = Instant::now();
    // They may be reported as one.
    while world.fs.stats().changes_told < told + 2 && begun.elapsed().as_secs() < 2 {
        assert_eq!(size(), 3, "ours as long as it waits");
    }
    thread::sleep(Duration::from_millis(50));
    assert_eq!(size(), 3, "asked once more");
    writer.fsync().expect("synced");
    world.shows("dir/file", |attr| attr.is_ok_and(|attr| attr.size == 7));
    assert_eq!(read_all(&reader), b"Oldmore");
}

/// Others write to a file while a part of a page of ours waits to be written.
#[test]
fn writes_by_others_beside_our_dirty_data_are_kept_and_seen() {
    const SIZE: u64 = 3 * 4096;
    type Change = fn(&File);
    let changes: [(&str, Change); 6] = [
        ("before it", |file| {
            file.write_all_at(b"theirs", 0).expect("written")
        }),
        ("after it", |file| {
            file.write_all_at(b"theirs", 200).expect("written")
        }),
        ("in another page", |file| {
            file.write_all_at(b"theirs", 8192).expect("written")
        }),
        ("at the end", |file| {
            file.write_all_at(b"theirs", SIZE).expect("written")
        }),
        ("cut", |file| file.set_len(4000).expect("cut")),
        ("nothing", |_| ()),
    ];
    for (what, change) in changes {
        for watch in [true, false] {
            let world = World::with_file(&vec![b'o'; SIZE as usize], watch);
            let path = world.path("file");
            let writer = world
                .open_for("file", OpenFlags::READ_WRITE)
                .expect("it opens");
            read_all(&writer);
            assert_eq!(writer.write_at(b"ours", 100), Ok(4));
            let others = File::options().write(true).open(&path).expect("theirs");
            change(&others);
            let mut expected = fs::read(&path).expect("read");
            let theirs = fs::metadata(&path)
                .expect("a stat")
                .modified()
                .expect("a time");
            expected[100..104].copy_from_slice(b"ours");
            writer.fsync().expect("synced");
            assert!(
                fs::read(&path).expect("read") == expected,
                "{what}, {watch}"
            );
            assert!(world.read("file") == expected, "{what}, {watch}");
            if what != "nothing" {
                // A program that compares times sees that they are not its own.
                let now = fs::metadata(&path)
                    .expect("a stat")
                    .modified()
                    .expect("a time");
                assert!(now >= theirs, "{what}, {watch}");
            }
            // The next write does not undo it either.
            assert_eq!(writer.write_at(b"more", 3900), Ok(4));
            writer.fsync().expect("synced");
            expected[3900..3904].copy_from_slice(b"more");
            assert!(
                fs::read(&path).expect("read") == expected,
                "{what}, {watch}"
            );
        }
    }
}

/// Our own change updates the file's times, which must not hide an earlier change by others.
#[test]
fn no_change_of_ours_hides_earlier_writes_by_others() {
    const SIZE: u64 = 3 * 4096;
    type Change = fn(&World, &OpenFile);
    fn set(world: &World, file: &OpenFile, set: &SetAttr) {
        let set = world.fs.setattr(&OpContext::ROOT, file.inode(), set);
        set.expect("set");
    }
    let changes: [(&str, Change); 7] = [
        ("write", |_, file| {
            assert_eq!(file.write_at(b"ours", 100), Ok(4))
        }),
        ("direct write", |_, file| {
            let mut iocb = Iocb::at(0);
            iocb.direct = true;
            let page = [b'd'; 4096];
            let written = file.write_iter(&mut iocb, &mut IovIter::source(&page));
            assert_eq!(written, Ok(4096));
        }),
        ("truncate", |_, file| {
            file.set_len(SIZE + 5).expect("resized")
        }),
        ("fallocate", |_, file| {
            file.fallocate(FallocateMode::Allocate, 0, SIZE + 9)
                .expect("allocated");
        }),
        ("hole", |_, file| file.punch_hole(0, 4096).expect("punched")),
        ("chmod", |world, file| {
            let mode = Some(0o640);
            set(
                world,
                file,
                &SetAttr {
                    mode,
                    ..SetAttr::default()
                },
            );
        }),
        ("utimens", |world, file| {
            let mtime = Some(SetTime::At(Timespec { sec: 77, nsec: 7 }));
            set(
                world,
                file,
                &SetAttr {
                    mtime,
                    ..SetAttr::default()
                },
            );
        }),
    ];
    for (what, change) in changes {
        for (watch, dirty) in [(true, false), (true, true), (false, false), (false, true)] {
            let world = World::with_file(&vec![b'o'; SIZE as usize], watch);
            let path = world.path("file");
            let file = world
                .open_for("file", OpenFlags::READ_WRITE)
                .expect("it opens");
            read_all(&file);
            if dirty {
                assert_eq!(file.write_at(b"ours", 5000), Ok(4));
            }
            let others = File::options().write(true).open(&path).expect("theirs");
            others.write_all_at(b"theirs", 8192).expect("written");
            change(&world, &file);
            file.fsync().expect("synced");
            let source = fs::read(&path).expect("read");
            assert_eq!(&source[8192..8198], b"theirs", "{what}, {watch}, {dirty}");
            assert!(world.read("file") == source, "{what}, {watch}, {dirty}");
            if what == "utimens" {
                let times = fs::metadata(&path).expect("a stat");
                assert_eq!(
                    (times.mtime(), times.mtime_nsec()),
                    (77, 7),
                    "{watch}, {dirty}"
                );
            }
        }
    }
}

/// The attributes that a change of ours ends with are those of the source, whatever others did before.
#[test]
fn a_change_of_attributes_shows_earlier_writes_by_others() {
    let mode = SetAttr {
        mode: Some(0o640),
        ..SetAttr::default()
    };
    let time = SetAttr {
        mtime: Some(SetTime::At(Timespec { sec: 77, nsec: 7 })),
        ..SetAttr::default()
    };
    for (set, watch) in [(mode, true), (mode, false), (time, true), (time, false)] {
        let world = World::with_file(&[b'o'; 9000], watch);
        let path = world.path("file");
        let file = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        read_all(&file);
        let others = File::options().write(true).open(&path).expect("theirs");
        for size in [9006, 9012] {
            others.write_all_at(b"theirs", size - 6).expect("written");
            let attr = world.fs.setattr(&OpContext::ROOT, file.inode(), &set);
            let attr = attr.expect("set");
            let stat = fs::metadata(&path).expect("a stat");
            assert_eq!(stat.len(), size);
            assert_eq!(
                (attr.size, attr.mode, attr.mtime.sec, attr.ctime.nsec),
                (
                    size,
                    stat.mode() & 0o7777,
                    stat.mtime(),
                    stat.ctime_nsec() as u32
                ),
                "{set:?}, {watch}"
            );
        }
    }
}

/// A time that is set is shown with the source's precision, whether or not the file is open.
#[test]
fn a_time_that_is_set_is_shown_as_the_source_has_it() {
    for open in [false, true] {
        set_times_are_shown_as_stored(open);
    }
}

fn set_times_are_shown_as_stored(open: bool) {
    let now = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let world = World::with_file(b"file", true);
    let inode = world
        .names
        .lookup(world.names.root(), OsStr::new("file"), STAY, None);
    let inode = inode.expect("it is there").inode().expect("an inode");
    let _file = open.then(|| world.open_for("file", OpenFlags::READ_WRITE));
    for _ in 0..20 {
        // A time that was looked at is followed by another one, not by that of the clock's tick.
        let before = fs::metadata(world.path("file")).expect("a stat");
        let attr = world.fs.setattr(&OpContext::ROOT, &inode, &now);
        let mtime = attr.expect("set").mtime;
        let stat = fs::metadata(world.path("file")).expect("a stat");
        assert_eq!(
            (mtime.sec, i64::from(mtime.nsec)),
            (stat.mtime(), stat.mtime_nsec()),
            "{before:?}"
        );
    }
}

/// Between a write-back of ours and its flush, which sets the time of the write.
#[test]
fn writes_by_others_between_a_writeback_and_its_flush_are_seen() {
    for watch in [true, false] {
        let world = World::with_file(&vec![b'o'; 9000], watch);
        let path = world.path("file");
        let file = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        read_all(&file);
        assert_eq!(file.write_at(b"ours", 100), Ok(4));
        file.inode().mapping().expect("it was read").fdatawrite();
        let others = File::options().write(true).open(&path).expect("theirs");
        others.write_all_at(b"theirs", 8192).expect("written");
        file.fsync().expect("synced");
        assert!(
            world.read("file") == fs::read(&path).expect("read"),
            "{watch}"
        );
    }
}

/// A time that we set stays, although others change attributes of the file before our data is in it.
#[test]
fn a_time_that_we_set_outlives_a_chmod_by_others() {
    let source = on_disk();
    fs::write(source.path().join("file"), vec![b'o'; 5000]).expect("a file");
    let world = World::with(source, DirFsOptions::default());
    let path = world.path("file");
    let file = world
        .open_for("file", OpenFlags::READ_WRITE)
        .expect("it opens");
    assert_eq!(file.write_at(b"ours", 100), Ok(4));
    let times = SetAttr {
        mtime: Some(SetTime::At(Timespec { sec: 77, nsec: 7 })),
        ..SetAttr::default()
    };
    let set = world.fs.setattr(&OpContext::ROOT, file.inode(), &times);
    set.expect("set");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("changed");
    file.fsync().expect("synced");
    drop(file);
    let shown = world.stat("file").expect("a stat");
    let stat = fs::metadata(&path).expect("a stat");
    assert_eq!(
        (stat.mtime(), shown.mtime.sec, shown.mode & 0o777),
        (77, 77, 0o640)
    );
}

/// One at a time, at random places, a write of ours in each page at most between two syncs.
#[test]
fn no_write_is_lost_when_we_and_others_write_in_turns() {
    const PAGES: u64 = 30;
    for watch in [true, false] {
        let mut expected = vec![0; PAGES as usize * 4096 - 1000];
        let world = World::with_file(&expected, watch);
        let path = world.path("file");
        let others = File::options().write(true).open(&path).expect("theirs");
        let writer = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        let mut random = 88_172_645_463_325_252_u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        for round in 0..200 {
            let mut ours = std::collections::HashSet::new();
            for n in 0..below(12) {
                let len = 1 + below(90);
                let at = below(expected.len() as u64 - len);
                let (bytes, page) = (vec![(round + n) as u8; len as usize], at / 4096);
                let range = at as usize..(at + len) as usize;
                // Of the same bytes the last would win.
                if at / 64 % 2 == 0 && range.len() < 64 - at as usize % 64 {
                    others.write_all_at(&bytes, at).expect("written");
                } else if range.len() < 64 - at as usize % 64 && ours.insert(page) {
                    assert_eq!(writer.write_at(&bytes, at), Ok(range.len()));
                } else {
                    continue;
                }
                expected[range].copy_from_slice(&bytes);
            }
            if below(3) > 0 {
                writer.fsync().expect("synced");
                assert!(
                    fs::read(&path).expect("read") == expected,
                    "{watch}, {round}"
                );
                assert!(world.read("file") == expected, "{watch}, {round}");
            } else {
                writer.fsync().expect("synced");
            }
        }
    }
}

/// While a handle for writing is open without dirty data, the file follows the changes of others.
#[test]
fn changes_by_others_beside_an_idle_writer_are_seen_and_not_undone() {
    for watch in [true, false] {
        let source = on_disk();
        fs::write(source.path().join("file"), "ONE-original").expect("a file");
        let mut options = DirFsOptions::default();
        options.watch = watch;
        options.revalidate_after = if watch { DAY } else { Duration::ZERO };
        let world = World::with(source, options);
        let path = world.path("file");
        let writer = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        assert_eq!(read_all(&writer), b"ONE-original");
        // Seen by a stat and by a new handle.
        fs::write(&path, "TWO-changed-longer").expect("written");
        world.shows("file", |attr| attr.is_ok_and(|attr| attr.size == 18));
        assert_eq!(world.read("file"), b"TWO-changed-longer");
        assert_eq!(read_all(&writer), b"TWO-changed-longer");
        if !watch {
            // The source is not asked before each write.
            continue;
        }
        // The source is not asked before the write.
        fs::write(&path, "THREE-changed-again").expect("written");
        thread::sleep(Duration::from_millis(50));
        assert_eq!(writer.write_at(b"X", 0), Ok(1));
        writer.fsync().expect("synced");
        assert_eq!(fs::read(&path).expect("read"), b"XHREE-changed-again");
        // The same after a write of ours, and past the end that we knew.
        fs::write(&path, "FOUR").expect("written");
        thread::sleep(Duration::from_millis(50));
        writer.append(b"+").expect("appended");
        writer.fsync().expect("synced");
        assert_eq!(
            fs::read(&path).expect("read"),
            b"FOUR+",
            "{watch} {:?}",
            world.fs.stats()
        );
        assert_eq!(read_all(&writer), b"FOUR+");
    }
}

/// A file that was made through the cache a while ago is one that others know.
#[test]
fn changes_by_others_of_a_file_that_was_made_here_are_seen_and_not_undone() {
    let world = World::with_file(b"file", true);
    let create = |name: &str| {
        let (root, name) = (world.fs.root(), OsStr::new(name));
        let made = world
            .fs
            .create(&OpContext::ROOT, &root, name, 0o644, OpenFlags::READ_WRITE);
        made.expect("made")
    };
    // Nothing of ours is written before theirs.
    let log = create("log");
    fs::write(world.path("log"), "FOUR").expect("written");
    thread::sleep(Duration::from_millis(50));
    log.append(b"+").expect("appended");
    log.fsync().expect("synced");
    assert_eq!(fs::read(world.path("log")).expect("read"), b"FOUR+");
    // They write beside dirty data, to another page.
    let pages = create("pages");
    pages.set_len(8192).expect("it has a size");
    assert_eq!(read_all(&pages), vec![0; 8192]);
    assert_eq!(pages.write_at(b"ours", 0), Ok(4));
    thread::sleep(Duration::from_millis(50));
    let beside = File::options().write(true).open(world.path("pages"));
    let beside = beside.expect("it opens");
    beside.write_all_at(b"theirs", 4096).expect("written");
    pages.fsync().expect("synced");
    drop(pages);
    let found = world.read("pages");
    assert_eq!(
        (&found[..4], &found[4096..4102]),
        (&b"ours"[..], &b"theirs"[..])
    );
}

/// The flusher may write data back while its writer waits for its share of the dirty limits.
#[test]
fn times_of_a_write_that_ends_after_its_writeback_reach_the_source() {
    let world = World::with_file(&[b'o'; 100], true);
    let path = world.path("file");
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let shown_is_stored = |shown: Attr| {
        let stat = fs::metadata(&path).expect("a stat");
        let stored = (stat.mtime(), stat.mtime_nsec());
        assert_eq!((shown.mtime.sec, i64::from(shown.mtime.nsec)), stored);
        assert!(stat.mtime() > 1_000_000_000);
    };
    for close in [false, true] {
        let times = fs::FileTimes::new().set_modified(old);
        let file = File::options().write(true).open(&path);
        file.expect("it opens")
            .set_times(times)
            .expect("an old time");
        let file = world
            .open_for("file", OpenFlags::READ_WRITE)
            .expect("it opens");
        let inode = file.inode().clone();
        let written = (file.mapping()).write(&mut Iocb::at(0), &mut IovIter::source(b"new"));
        assert_eq!(written, Ok(3));
        file.mapping().sync().expect("synced");
        thread::sleep(Duration::from_millis(20));
        // As `write_at` does at its end.
        inode.data_changed();
        match close {
            true => drop(file),
            false => file.fsync().expect("synced"),
        }
        shown_is_stored(world.fs.getattr(&inode).expect("getattr"));
    }
}

/// Without a watch each opening asks.
#[test]
fn an_unwatched_file_is_asked_about_at_each_open() {
    let source = on_disk();
    fs::write(source.path().join("file"), "0").expect("a file");
    let mut options = DirFsOptions::default();
    options.watch = false;
    options.revalidate_after = DAY;
    let world = World::with(source, options);
    for n in 0..20 {
        let content = format!("{n}");
        fs::write(world.path("file"), &content).expect("written");
        assert_eq!(world.read("file"), content.as_bytes());
    }
    assert_eq!(world.opens().0, 0);
}

/// From any place in it, a few entries at a time.
#[test]
fn a_known_directory_is_read_from_any_place() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        for n in 0..1000 {
            fs::write(source.join(format!("dir/file-{n}")), "").expect("a file");
        }
    });
    let dir = world.dir("dir");
    let open = || world.fs.opendir(&dir).expect("it opens");
    // In pieces already the first time, until all were read.
    let in_pieces = |opened: &dyn OpenDirectory| {
        let (mut all, mut offset) = (Vec::<DirEntryBuf>::new(), 0);
        loop {
            let before = all.len();
            let taken = opened.read(offset, &mut |entry| {
                let takes = all.len() < before + 7;
                if takes {
                    all.push(entry.into());
                }
                takes
            });
            taken.expect("read");
            match all.last() {
                Some(last) if all.len() > before => offset = last.next_offset,
                _ => return all,
            }
        }
    };
    let offsets = |entries: &[DirEntryBuf]| -> Vec<_> {
        let key = |entry: &DirEntryBuf| (entry.name.clone(), entry.ino, entry.next_offset);
        entries.iter().map(key).collect()
    };
    let first = in_pieces(&*open());
    assert_eq!(first.len(), 1002);
    let (cached, read) = world.listed();
    let again = in_pieces(&*open());
    assert_eq!(offsets(&again), offsets(&first));
    assert_eq!(world.listed(), (cached + 1, read));
    let opened = open();
    for at in [0, 1, 500, 1001, 3] {
        let mut rest = Vec::new();
        let offset = first[at].next_offset;
        let read = opened.read(offset, &mut |entry| {
            rest.push(entry.into());
            true
        });
        read.expect("read");
        assert_eq!(offsets(&rest), offsets(&first[at + 1..]));
    }
}

/// An open directory that is read from the beginning again shows the names of that moment.
#[test]
fn known_directory_that_is_rewound_lists_names_made_before() {
    let world = World::new(|source| {
        fs::create_dir(source.join("dir")).expect("a directory");
        fs::write(source.join("dir/old"), "").expect("a file");
    });
    let dir = world.dir("dir");
    let open = || world.fs.opendir(&dir).expect("it opens");
    let names = |opened: &(dyn OpenDirectory + 'static)| opened.read_all().expect("read").len();
    assert_eq!(names(&*open()), 3);
    let opened = open();
    assert_eq!(names(&*opened), 3);
    let made = world.fs.make(
        &OpContext::ROOT,
        &dir,
        "new".as_ref(),
        New::Directory { mode: 0o755 },
    );
    made.expect("made");
    assert_eq!(names(&*opened), 4);
    // Also where it is known again.
    assert_eq!(names(&*open()), 4);
    let opened = open();
    assert_eq!(names(&*opened), 4);
    world
        .fs
        .remove(&dir, "new".as_ref(), Remove::Directory)
        .expect("removed");
    assert_eq!(names(&*open()), 3);
    assert_eq!(names(&*opened), 3);
}

/// Names that are known take a part of the bound, and no more.
#[test]
fn known_names_stay_within_their_share() {
    let world = World::new(|source| {
        for dir in 0..40 {
            fs::create_dir(source.join(format!("{dir}"))).expect("a directory");
            for n in 0..1000 {
                let name = format!("{dir}/a-file-with-a-name-that-takes-some-room-{n}");
                File::create(source.join(name)).expect("a file");
            }
        }
    });
    // Of 64 MiB, to which the test's cache is bound.
    let share = 2 << 20;
    let mut most = 0;
    for _ in 0..3 {
        for dir in 0..40 {
            assert_eq!(world.list(&format!("{dir}")).len(), 1000);
            most = most.max(world.fs.stats().listing_bytes);
        }
    }
    assert!(most > share / 2 && most <= share, "{most}");
    let metadata = world.names.mm().usage().metadata_bytes;
    world.fs.shrink_inodes(100_000);
    assert_eq!(world.fs.stats().listing_bytes, 0);
    assert!(world.names.mm().usage().metadata_bytes + share / 2 < metadata);
}
