//! A page of the kernel's cache whose write fails is whole once a later sync succeeds.
//!
//! ext4 remembers wrongly that such a page is on the medium, if it was new there: it writes the page again and returns no error, and
//! the page reads as zeros after it has left the kernel's cache.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::cache;
use crate::failing::{
    FILE_SIZE, MIB, PAGE, Stage, base_fill, directory, on_each, open, small_cache, unmount,
};
use foliocache::Cache;
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_sim::{Effect, Fill, OpSet, Rule, When};
use foliocache_sys::Errno;
use foliocache_vfs::{FileSystem, OpContext, OpenFlags};

/// The n-th write fails from here on.
fn fail_write(stage: &Stage, n: u64) {
    let rule = Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)).when(When::Nth(n));
    stage.disk.faults().add(rule);
}

/// Checks that a file of the medium equals `fill` in `range`.
fn check(path: &Path, fill: Fill, range: std::ops::Range<usize>) {
    let found = std::fs::read(path).expect("read");
    let expected = fill.bytes(range.start as u64, range.len());
    let wrong = (0..range.len()).find(|&at| found[range.start + at] != expected[at]);
    assert_eq!(wrong, None, "{}: the first wrong byte", path.display());
}

/// Closes a cache, which has nothing to lose if it was `synced`.
fn close(cache: Cache, synced: bool) {
    if let Err(refused) = cache.close() {
        assert!(!synced, "the cache is durable");
        let cache = refused.into_cache();
        cache.discard_unsynced().expect("given up");
    }
}

/// Of files: some end in their first page, and some are longer.
const LENGTHS: [usize; 3] = [100, PAGE as usize + 100, 3 * PAGE as usize + 100];

#[test]
#[ignore = "system tier"]
fn a_new_file_whose_last_page_failed_is_whole_after_the_next_sync() {
    on_each(|stage| {
        let mounted = stage.begin();
        let cache = small_cache();
        let dir = directory(&cache, &mounted).expect("the directory");
        for len in LENGTHS {
            let mut options = dir.open_options();
            let options = options.read(true).write(true).create(true);
            let file = options.open(format!("open{len}")).expect("create");
            // Whole pages are written before the last one.
            fail_write(stage, if len > PAGE as usize { 2 } else { 1 });
            file.write_all_at(&Fill(1).bytes(0, len), 0).expect("write");
            file.sync_all().expect_err("a write failed");
            stage.disk.faults().heal();
            file.sync_all().expect("the disk is well");
            // The kernel reports the failure once more, for the whole file system.
            let _ = cache.sync();
            cache.sync().expect("the disk is well");
        }
        drop(dir);
        cache.close().expect("nothing is left to lose");
        unmount(mounted);
        let again = stage.mount_again();
        for len in LENGTHS {
            check(&again.path().join(format!("open{len}")), Fill(1), 0..len);
        }
        unmount(again);
    });
}

/// Such a file is in the kernel's cache when it is closed.
#[test]
#[ignore = "system tier"]
fn a_small_closed_file_that_failed_is_whole_after_the_next_sync() {
    on_each(|stage| {
        let mut whole = 0;
        for round in 0..12 {
            let mounted = stage.begin();
            let cache = small_cache();
            let dir = directory(&cache, &mounted).expect("the directory");
            let len = LENGTHS[round % LENGTHS.len()];
            fail_write(stage, 1);
            let written = dir.write("closed", Fill(2).bytes(0, len));
            written.expect("the kernel's cache takes it");
            // The flusher may have received the error.
            let _ = cache.sync();
            stage.disk.faults().heal();
            // If it was a write of the journal, the file system takes nothing more.
            let synced = cache.sync().is_ok();
            drop(dir);
            close(cache, synced);
            unmount(mounted);
            let again = stage.mount_again();
            if synced {
                check(&again.path().join("closed"), Fill(2), 0..len);
                whole += 1;
            }
            unmount(again);
        }
        assert!(whole > 0, "the file system broke each time");
    });
}

#[test]
#[ignore = "system tier"]
fn data_is_not_durable_after_another_process_got_the_commit_error() {
    on_each(|stage| {
        let mounted = stage.begin();
        let other = std::fs::File::open(mounted.path().join("f1")).expect("open");
        let mm = cache(64 * MIB);
        let mut options = DirFsOptions::default();
        // Times may wait, so that the kernel does not look at its journal for them.
        options.exclusive = true;
        let fs = DirFs::open(&mm, mounted.path(), options).expect("dirfs");
        let inode = fs.lookup(&fs.root(), OsStr::new("f0")).expect("lookup");
        let file = fs
            .open(&OpContext::ROOT, &inode, OpenFlags::READ_WRITE)
            .expect("open");
        let pos = 4 * MIB;
        file.write_at(&Fill(1).bytes(pos, PAGE as usize), pos)
            .expect("write");
        file.mapping().fdatawrite();
        stage
            .disk
            .faults()
            .add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)));
        let now = std::time::SystemTime::now();
        let synced = other.set_modified(now).and_then(|()| other.sync_all());
        synced.expect_err("nothing is written");
        file.fsync()
            .expect_err("where the page is was in the same commit");
        stage.disk.faults().heal();
        file.mapping().discard_dirty();
        drop((file, inode, fs, mm, other));
        unmount(mounted);
        unmount(stage.mount_again());
    });
}

#[test]
#[ignore = "system tier"]
fn a_failure_that_a_write_elsewhere_is_told_of_is_not_forgotten() {
    const FIRST: u64 = PAGE;
    const LAST: u64 = 20 * PAGE;
    const BETWEEN: u64 = 5 * PAGE;
    on_each(|stage| {
        let mounted = stage.begin();
        let mm = cache(64 * MIB);
        let fs = DirFs::open(&mm, mounted.path(), DirFsOptions::default()).expect("dirfs");
        let flags = OpenFlags::READ_WRITE;
        let name = OsStr::new("new");
        let file = fs.create(&OpContext::ROOT, &fs.root(), name, 0o644, flags);
        let file = file.expect("create");
        let write = |pos, len| {
            let n = file.write_at(&Fill(1).bytes(pos, len), pos).expect("write");
            assert_eq!(n, len);
            file.mapping().fdatawrite();
        };
        // Ends of the file, which go through the kernel's cache, and then a page between them, which does not.
        write(FIRST, 100);
        write(LAST, 100);
        fail_write(stage, 1);
        write(BETWEEN, PAGE as usize);
        stage.disk.faults().heal();
        file.fsync().expect_err("a write failed");
        file.fsync().expect("the disk is well");
        drop((file, fs, mm));
        unmount(mounted);
        let again = stage.mount_again();
        for (pos, len) in [(FIRST, 100), (BETWEEN, PAGE), (LAST, 100)] {
            let range = pos as usize..(pos + len) as usize;
            check(&again.path().join("new"), Fill(1), range);
        }
        unmount(again);
    });
}

#[test]
#[ignore = "system tier"]
fn the_edges_of_a_hole_that_failed_are_zero_after_the_next_sync() {
    const HOLE: std::ops::Range<usize> = 3 * PAGE as usize + 5..6 * PAGE as usize + 7;
    on_each(|stage| {
        for n in 1..=4 {
            let mounted = stage.begin();
            let cache = small_cache();
            let dir = directory(&cache, &mounted).expect("the directory");
            let file = crate::failing::open(&dir, "f0").expect("open");
            fail_write(stage, n);
            file.punch_hole(HOLE.start as u64, HOLE.len() as u64)
                .expect("nothing is written yet");
            // The flusher may have received the error.
            let _ = file.sync_all();
            let _ = cache.sync();
            stage.disk.faults().heal();
            let synced = cache.sync().is_ok();
            let shown = crate::failing::read(&file, HOLE.start as u64, HOLE.len());
            assert!(
                !synced || shown.expect("read").iter().all(|&byte| byte == 0),
                "write {n}: in the cache"
            );
            drop((file, dir));
            close(cache, synced);
            unmount(mounted);
            let again = stage.mount_again();
            if synced {
                let found = std::fs::read(again.path().join("f0")).expect("read");
                assert!(found[HOLE].iter().all(|&byte| byte == 0), "write {n}");
                check(&again.path().join("f0"), base_fill(0), 0..HOLE.start);
                check(
                    &again.path().join("f0"),
                    base_fill(0),
                    HOLE.end..FILE_SIZE as usize,
                );
            }
            unmount(again);
        }
    });
}

/// The kernel reads the list of the file's blocks after it has set the size.
#[test]
#[ignore = "system tier"]
fn a_truncate_that_the_kernel_has_done_and_that_failed_is_done() {
    on_each(|stage| {
        let mounted = stage.begin();
        let path = mounted.path().join("pieces");
        let file = std::fs::File::create(&path).expect("create");
        // More pieces than the inode has room for.
        for i in 0..600 {
            let bytes = [7; PAGE as usize];
            file.write_all_at(&bytes, 2 * i * PAGE).expect("write");
        }
        file.sync_all().expect("sync");
        drop(file);
        unmount(mounted);
        let mounted = stage.disk.mount().expect("mount");
        let cache = small_cache();
        let dir = directory(&cache, &mounted).expect("the directory");
        let file = open(&dir, "pieces").expect("open");
        let faults = stage.disk.faults();
        faults.add(Rule::new(OpSet::READ, Effect::Fail(Errno::EIO)));
        let cut = file.set_len(PAGE);
        faults.heal();
        // XFS has shut down.
        let size = std::fs::metadata(mounted.path().join("pieces")).map(|file| file.len());
        assert!(size.is_err() || size.is_ok_and(|size| size == file.len()));
        let told = cut.is_err() || file.sync_all().is_err();
        assert!(told, "the failure was not reported");
        drop((file, dir));
        close(cache, false);
        unmount(mounted);
    });
}
