//! Names and inodes within the memory bound: they give way, and do not drive out the data.

use crate::common::{Paths as _, WalkFlags};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_vfs::{FileSystem, InodeHolder, Named, OpContext, OpenFile, OpenFlags, SuperBlock};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

const STAY: WalkFlags = WalkFlags {
    follow: true,
    beneath: true,
};
const MIB: u64 = 1 << 20;

/// Makes directories of files, and one with data.
fn make_tree(top: &Path, dirs: usize, files: usize, data: u64) {
    for dir in 0..dirs {
        let dir = top.join(format!("d{dir}"));
        std::fs::create_dir(&dir).expect("a directory");
        for file in 0..files {
            std::fs::File::create(dir.join(format!("f{file}"))).expect("a file");
        }
    }
    std::fs::write(top.join("data"), vec![7; data as usize]).expect("data");
}

fn open(names: &SuperBlock, path: &str) -> OpenFile {
    let dentry = names.lookup(names.root(), OsStr::new(path), STAY, None);
    let inode = dentry.expect("it is there").inode().expect("an inode");
    names
        .fs()
        .open(&OpContext::ROOT, &inode, OpenFlags::READ)
        .expect("it opens")
}

fn read_all(file: &OpenFile) {
    let mut buf = vec![0; MIB as usize];
    let mut pos = 0;
    loop {
        match file.read_at(&mut buf, pos).expect("it can be read") {
            0 => return,
            n => pos += n as u64,
        }
    }
}

fn file_system(source: &Path, limit: u64) -> (Arc<Mm>, Arc<DirFs>, SuperBlock) {
    let mm = Mm::new(MmConfig::new(limit)).expect("a cache");
    let fs = Arc::new(DirFs::open(&mm, source, DirFsOptions::default()).expect("dirfs"));
    let names = SuperBlock::new(fs.clone(), &mm);
    (mm, fs, names)
}

/// The data of a tree, read twice so that it is known to be in use, and how many pages of it are cached.
fn cached_data(names: &SuperBlock) -> (OpenFile, u64) {
    let data = open(names, "data");
    read_all(&data);
    read_all(&data);
    let cached = data.mapping().nr_pages();
    (data, cached)
}

/// A walk over many more names than fit takes free memory, leaves the data alone, and returns the memory that data
/// needs.
#[test]
fn a_walk_over_more_than_fits_leaves_the_data_where_it_is() {
    let source = tempfile::tempdir().expect("a directory");
    let (limit, dirs, files) = (16 * MIB, 20, 1000);
    make_tree(source.path(), dirs, files, 5 * MIB);
    std::fs::write(source.path().join("more"), vec![8; 9 << 20]).expect("data");
    let (mm, fs, names) = file_system(source.path(), limit);
    let (data, cached) = cached_data(&names);
    assert!(cached > 1000, "{cached}");
    for round in 0..2 {
        for at in 0..dirs * files {
            let path = format!("d{}/f{}", at / files, at % files);
            names
                .stat(names.root(), OsStr::new(&path), STAY, None)
                .expect("it is there");
            if at % 64 == 0 {
                let usage = mm.usage();
                assert!(usage.total_bytes() <= limit, "{usage:?}");
            }
        }
        let stats = fs.stats();
        assert_eq!(stats.inodes_uncharged, 0);
        assert!(
            stats.inodes < (dirs * files / 2) as u64,
            "all {} inodes are kept",
            stats.inodes
        );
        let left = data.mapping().nr_pages();
        assert!(
            left * 10 >= cached * 9,
            "round {round}: {left} of {cached} pages left"
        );
    }
    // Now data wants the memory: names keep their share of it, a quarter, at most. It is the background reclaimer
    // that asks them for the rest.
    let more = open(&names, "more");
    let since = Instant::now();
    loop {
        read_all(&more);
        read_all(&data);
        let usage = mm.usage();
        let pages = data.mapping().nr_pages() + more.mapping().nr_pages();
        if usage.metadata_bytes < limit * 3 / 8 && pages * 4096 > limit / 2 {
            break;
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "{pages} pages, {usage:?}"
        );
    }
    // Existing handles are not affected.
    assert_eq!(more.size(), 9 * MIB);
}

/// The watch of a directory is metadata too: other names make room for it, and hardly any data
/// does.
#[test]
fn a_walk_over_more_directories_than_fit_leaves_the_data_where_it_is() {
    // Directories are made faster in memory.
    let source = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (limit, dirs) = (64 * MIB, 24_000);
    make_tree(source.path(), dirs, 1, 20 * MIB);
    let (_mm, fs, names) = file_system(source.path(), limit);
    let (data, cached) = cached_data(&names);
    for round in 0..2 {
        for at in 0..dirs {
            let path = format!("d{at}/f0");
            names
                .stat(names.root(), OsStr::new(&path), STAY, None)
                .expect("it is there");
        }
        let stats = fs.stats();
        assert!(stats.watches > 0, "{stats:?}");
        let left = data.mapping().nr_pages();
        assert!(
            left * 5 >= cached * 4,
            "round {round}: {left} of {cached} pages left, {stats:?}"
        );
    }
}

/// Holds every inode until some are wanted back.
#[derive(Default)]
struct Holder {
    held: Mutex<VecDeque<Named>>,
    wanted: AtomicUsize,
}

impl InodeHolder for Holder {
    fn want_back(&self, nr: usize) -> bool {
        // Relaxed: one thread here asks and answers, or looks again.
        self.wanted.fetch_max(nr, Ordering::Relaxed);
        true
    }
}

/// A holder of inodes is asked for them when memory is short, and the inodes that it gives up are
/// free at once.
#[test]
fn held_inodes_are_wanted_back() {
    let source = tempfile::tempdir().expect("a directory");
    let (limit, dirs, files) = (8 * MIB, 10, 1000);
    make_tree(source.path(), dirs, files, 0);
    let (mm, fs, names) = file_system(source.path(), limit);
    let holder = Arc::new(Holder::default());
    let weak: Weak<dyn InodeHolder> = Arc::downgrade(&holder) as _;
    names.add_holder(weak);
    let mut given_up = 0;
    for at in 0..dirs * files {
        let path = format!("d{}/f{}", at / files, at % files);
        let dentry = names.lookup(names.root(), OsStr::new(&path), STAY, None);
        let named = Named::new(dentry.expect("it is there")).expect("an inode");
        holder.held.lock().push_back(named);
        // Relaxed: see `want_back`.
        let wanted = holder.wanted.swap(0, Ordering::Relaxed);
        if wanted > 0 {
            let gone: Vec<Named> = {
                let mut held = holder.held.lock();
                let wanted = wanted.min(held.len());
                held.drain(..wanted).collect()
            };
            given_up += gone.len();
            let whole_pages = gone.len() >= 64;
            let before = (fs.stats().inodes, fs.inode_bytes());
            names.give_up(gone);
            let after = (fs.stats().inodes, fs.inode_bytes());
            assert!(after.0 < before.0, "{before:?}, then {after:?}");
            assert!(
                after.1 < before.1 || !whole_pages,
                "{before:?}, then {after:?}"
            );
        }
        assert!(mm.usage().total_bytes() <= limit, "{:?}", mm.usage());
    }
    let stats = fs.stats();
    assert!(given_up > dirs * files / 4, "{given_up}");
    // Refused before the holder was asked.
    assert!(stats.inodes_uncharged < 100, "{stats:?}");
    assert!(
        (stats.inodes as usize) < dirs * files - given_up / 2,
        "{stats:?}"
    );
}

/// Negative dentries are kept within the bound too.
#[test]
fn negative_dentries_are_bounded() {
    let mm = Mm::new(MmConfig::new(4 * MIB)).expect("a cache");
    let fs = Arc::new(foliocache_fs::MemFs::new(&mm).expect("memfs"));
    let names = SuperBlock::new(fs, &mm);
    for at in 0..50_000 {
        let path = format!("missing{at}");
        assert!(
            names
                .stat(names.root(), OsStr::new(&path), STAY, None)
                .is_err()
        );
    }
    let usage = mm.usage();
    assert!(usage.total_bytes() <= 4 * MIB, "{usage:?}");
    let stats = names.dentry_stats();
    assert!(
        stats.negative > 1000 && stats.negative < 20_000,
        "{stats:?}"
    );
}
