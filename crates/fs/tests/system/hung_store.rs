//! A source whose file system hangs, beside another one in the same cache.
//!
//! Needs root and a loop device: the source is an ext4 that is frozen while data is written to it.

use crate::common::{cache, dirfs, on_disk, pattern, read_all, run, write_all};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_sync::Arc;
use foliocache_vfs::{Advice, FileSystem, OpContext, OpenFile, OpenFlags, RenameMode, SuperBlock};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

/// How long something that must happen may take on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// A separate ext4, on a loop device, that can be frozen.
struct Store {
    point: PathBuf,
    _dir: tempfile::TempDir,
}

impl Store {
    fn new() -> Store {
        let dir = on_disk();
        let (image, point) = (dir.path().join("image"), dir.path().join("mounted"));
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(64 * MIB).expect("a sparse file");
        std::fs::create_dir(&point).expect("a directory");
        run("mkfs.ext4", &["-q".as_ref(), image.as_ref()]);
        let mount = ["-o", "loop"].map(OsStr::new);
        run(
            "mount",
            &[&mount[..], &[image.as_ref(), point.as_ref()]].concat(),
        );
        Store { point, _dir: dir }
    }

    fn freeze(&self) -> Frozen<'_> {
        run("fsfreeze", &["-f".as_ref(), self.point.as_ref()]);
        Frozen(&self.point)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).status();
    }
}

/// A frozen file system, thawed when this is dropped.
struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

fn create(fs: &DirFs, name: &str) -> OpenFile {
    let flags = OpenFlags::READ_WRITE;
    fs.create(&OpContext::ROOT, &fs.root(), OsStr::new(name), 0o644, flags)
        .expect("create")
}

/// Runs `body` on a new thread, which must end in time.
fn in_time<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(body()));
    told.recv_timeout(LONG)
        .unwrap_or_else(|error| panic!("{what}: {error}"))
}

#[test]
#[ignore = "system tier"]
fn a_store_that_hangs_keeps_no_memory_but_its_own() {
    let store = Store::new();
    let source = on_disk();
    let mm = cache(64);
    let hung = dirfs(&mm, &store.point, DirFsOptions::default());
    let healthy = Arc::new(dirfs(&mm, source.path(), DirFsOptions::default()));
    let content = pattern(3, 40 << 20);
    let file = Arc::new(create(&healthy, "file"));
    write_all(&file, &content, 0);
    file.fsync().expect("fsync");

    // Reads that sleep show that the device is one for which rings are used.
    let stuck = create(&hung, "stuck");
    let pages = 512;
    write_all(&stuck, &pattern(1, pages * PAGE), 0);
    stuck.fsync().expect("fsync");
    for _ in 0..8 {
        stuck.advise(Advice::DontNeed, 0, 0).expect("advise");
        assert!(read_all(&stuck) == pattern(1, pages * PAGE));
    }
    stuck.advise(Advice::DontNeed, 0, 0).expect("advise");
    // Pages next to each other in the file and apart in memory.
    let changed = pattern(2, pages * PAGE);
    for i in 0..pages {
        let at = i * 37 % pages * PAGE;
        write_all(&stuck, &changed[at..at + PAGE], at as u64);
    }
    let frozen = store.freeze();
    let (tell, told) = mpsc::channel();
    let syncing = thread::spawn(move || {
        tell.send(()).expect("the test waits");
        (stuck.fsync(), stuck)
    });
    told.recv_timeout(LONG).expect("the thread runs");
    // The data is under writeback once the store has it; the wait is longer than that takes.
    let begun = Instant::now();
    while mm.stats().files.writeback_pages == 0 {
        assert!(begun.elapsed() < LONG, "{:#?}", mm.stats());
        thread::sleep(Duration::from_millis(1));
    }

    let limit = 24 * MIB;
    let shrinks = Arc::clone(&mm);
    in_time("a shrink of the limit", move || {
        shrinks.set_limit(limit).expect("a limit in range");
        while shrinks.usage().total_bytes() > limit {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let counted = Arc::clone(&mm);
    let figures = in_time("the statistics", move || counted.stats());
    assert!(figures.memory.total_bytes() <= limit, "{figures:#?}");
    let (fs, again) = (Arc::clone(&healthy), Arc::clone(&file));
    in_time("the other file system", move || {
        assert!(read_all(&again) == content);
        let other = create(&fs, "other");
        write_all(&other, &content, 0);
        other.fsync().expect("fsync");
    });
    assert!(!syncing.is_finished(), "the store hangs");
    drop(frozen);
    let (synced, stuck) = syncing.join().expect("no panic");
    synced.expect("the store is well again");
    let found = std::fs::read(store.point.join("stuck")).expect("the source");
    assert!(found == changed);
    drop((stuck, hung));
}

/// The data of a file is written before its new name replaces another one.
#[test]
#[ignore = "system tier"]
fn a_rename_that_waits_for_the_source_delays_no_other_call() {
    let store = Store::new();
    let mm = cache(64);
    let fs = Arc::new(dirfs(&mm, &store.point, DirFsOptions::default()));
    for name in ["old", "other"] {
        let file = create(&fs, name);
        write_all(&file, &pattern(1, PAGE), 0);
        file.fsync().expect("fsync");
    }
    let content = pattern(2, 2 << 20);
    let new = create(&fs, "new");
    write_all(&new, &content, 0);
    let names = Arc::new(SuperBlock::new(fs, &mm));
    let rename = {
        let names = Arc::clone(&names);
        move || {
            let (top, mode) = (names.root(), RenameMode::Replace);
            names.rename(top, "new".as_ref(), top, "old".as_ref(), mode, None)
        }
    };
    let frozen = store.freeze();
    let renaming = thread::spawn(rename);
    let begun = Instant::now();
    while mm.stats().files.writeback_pages == 0 {
        assert!(begun.elapsed() < LONG, "{:#?}", mm.stats());
        thread::sleep(Duration::from_millis(1));
    }
    for name in ["other", "old", "new"] {
        let names = Arc::clone(&names);
        in_time("a look-up beside it", move || {
            names.lookup_name(names.root(), name.as_ref()).map(drop)
        })
        .expect("it is there");
    }
    assert!(!renaming.is_finished(), "the store hangs");
    drop(frozen);
    renaming.join().expect("no panic").expect("rename");
    let found = std::fs::read(store.point.join("old")).expect("the source");
    assert!(found == content);
    drop(new);
}
