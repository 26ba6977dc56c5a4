//! The shared test body, over every file system and every way of doing I/O.

mod cases;

use crate::common::{cache, dirfs, on_disk, on_tmpfs};
use cases::conformance;
use foliocache_fs::{DirFsOptions, DirFsStats, Fallback, MemFs};
use std::path::Path;

fn over(source: &Path, change: impl FnOnce(&mut DirFsOptions)) -> DirFsStats {
    let mut options = DirFsOptions::default();
    change(&mut options);
    let fs = dirfs(&cache(64), source, options);
    conformance(&fs);
    fs.stats()
}

fn refused(stats: &DirFsStats, what: Fallback) -> bool {
    stats.fallbacks.iter().any(|known| known.0 == what)
}

#[test]
fn dirfs_on_disk() {
    let source = on_disk();
    let stats = over(source.path(), |_| {});
    println!("{stats:#?}");
    assert!(stats.flushes > 0);
}

#[test]
fn dirfs_on_tmpfs() {
    let source = on_tmpfs();
    println!("{:#?}", over(source.path(), |_| {}));
}

#[test]
fn dirfs_without_direct_io() {
    let source = on_disk();
    let stats = over(source.path(), |options| options.direct = false);
    assert_eq!((stats.direct_reads, stats.direct_writes), (0, 0));
    assert!(stats.buffered_reads > 0 && stats.buffered_writes > 0);
    assert!(refused(&stats, Fallback::DirectIo));
}

#[test]
fn dirfs_without_io_uring() {
    let source = on_disk();
    let stats = over(source.path(), |options| options.io_uring = false);
    assert_eq!(stats.background_reads, 0);
    assert!(stats.direct_reads > 0 && stats.engine.is_none());
    assert!(refused(&stats, Fallback::IoUring));
}

#[test]
fn dirfs_with_few_descriptors() {
    let source = on_disk();
    let stats = over(source.path(), |options| {
        options.path_descriptors = 2;
        options.idle_files = Some(1);
    });
    assert!(stats.path_descriptors <= 2);
}

#[test]
fn dirfs_in_a_small_cache() {
    let source = on_disk();
    let fs = dirfs(&cache(8), source.path(), DirFsOptions::default());
    conformance(&fs);
}

#[test]
fn memfs() {
    let mm = cache(64);
    {
        let fs = MemFs::new(&mm).expect("memfs");
        conformance(&fs);
    }
    assert_eq!(
        mm.stats().files.resident_pages,
        0,
        "pages go with the file system"
    );
}
