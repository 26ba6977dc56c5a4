//! Tests that only a local directory can make: the source behind the cache.

use crate::common::{cache, dirfs, lacks, on_disk, on_tmpfs, pattern, read_all, write_all};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_sys::Errno;
use foliocache_sys::clock::Timespec;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    Advice, FileSystem, Inode, Namei, New, OpContext, OpenFile, OpenFlags, OpenHow, Remove,
    RenameMode, SetAttr, SetTime, SlabArc, SuperBlock, WalkError,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};

const ROOT: OpContext = OpContext::ROOT;

fn plain(source: &Path) -> DirFs {
    dirfs(&cache(64), source, DirFsOptions::default())
}

fn walk(fs: &dyn FileSystem, path: &str) -> Result<SlabArc<Inode>, Errno> {
    path.split('/')
        .try_fold(fs.root(), |dir, name| fs.lookup(&dir, OsStr::new(name)))
}

fn open(fs: &dyn FileSystem, path: &str, flags: OpenFlags) -> OpenFile {
    let inode = walk(fs, path).unwrap_or_else(|error| panic!("{path}: {error}"));
    fs.open(&ROOT, &inode, flags)
        .unwrap_or_else(|error| panic!("open {path}: {error}"))
}

fn create(fs: &dyn FileSystem, name: &str) -> OpenFile {
    fs.create(
        &ROOT,
        &fs.root(),
        OsStr::new(name),
        0o644,
        OpenFlags::READ_WRITE,
    )
    .unwrap_or_else(|error| panic!("create {name}: {error}"))
}

/// Descriptors of this process that lead into `source`.
fn descriptors_into(source: &Path) -> Vec<String> {
    fs::read_dir("/proc/self/fd")
        .expect("proc")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(source) && path != source)
        .map(|path| path.display().to_string())
        .collect()
}

fn tails(options: &DirFsOptions, source: &Path) {
    let fs = dirfs(&cache(64), source, options.clone());
    let ends = [0, 4096, 8192, 3 * 4096, 64 << 10, (1 << 20) + 4096];
    for base in ends {
        for off in [-513_i64, -512, -1, 0, 1, 511, 512, 513, 2048, 4095] {
            let Ok(size) = usize::try_from(base as i64 + off) else {
                continue;
            };
            let name = format!("{size}");
            let path = source.join(&name);
            let mut expected = pattern(size as u64, size);
            let file = match fs.lookup(&fs.root(), OsStr::new(&name)) {
                Ok(_) => continue,
                Err(_) => create(&fs, &name),
            };
            write_all(&file, &expected, 0);
            file.fsync().expect("fsync");
            assert!(fs::read(&path).expect("source") == expected, "{size} bytes");
            // The block that was partial becomes full, then the file ends within another one.
            let more = pattern(size as u64 + 1, 5000);
            write_all(&file, &more, size as u64);
            expected.extend_from_slice(&more);
            file.fsync().expect("fsync");
            assert!(
                fs::read(&path).expect("source") == expected,
                "{size} + 5000 bytes"
            );
            // And the tail is overwritten and cut.
            file.set_len(size as u64 + 100).expect("set_len");
            write_all(&file, b"!", size as u64 + 50);
            expected.truncate(size + 100);
            expected[size + 50] = b'!';
            file.fsync().expect("fsync");
            assert!(
                fs::read(&path).expect("source") == expected,
                "{size} + 100 bytes"
            );
            file.advise(Advice::DontNeed, 0, 0).expect("advise");
            assert!(read_all(&file) == expected, "{size} + 100 bytes, read back");
        }
    }
}

#[test]
fn tails_are_on_the_source_byte_for_byte() {
    tails(&DirFsOptions::default(), on_disk().path());
}

#[test]
fn tails_on_tmpfs() {
    tails(&DirFsOptions::default(), on_tmpfs().path());
}

#[test]
fn tails_without_direct_io() {
    let mut options = DirFsOptions::default();
    options.direct = false;
    tails(&options, on_disk().path());
}

#[test]
fn changes_from_outside_are_seen_at_open() {
    let source = on_disk();
    let path = source.path().join("file");
    fs::write(&path, pattern(1, 10_000)).expect("write");
    let fs = plain(source.path());
    assert!(read_all(&open(&fs, "file", OpenFlags::READ)) == pattern(1, 10_000));
    for (seed, len) in [(2, 10_000), (3, 20_000), (4, 5)] {
        fs::write(&path, pattern(seed, len)).expect("write");
        let file = open(&fs, "file", OpenFlags::READ);
        assert!(
            read_all(&file) == pattern(seed, len),
            "{len} bytes of another"
        );
    }
    // Changed in place, with the time set back: ctime reveals it.
    let before = fs::metadata(&path).expect("stat");
    let outside = fs::File::options().write(true).open(&path).expect("open");
    outside.write_all_at(b"XY", 1).expect("write");
    outside
        .set_modified(before.modified().expect("mtime"))
        .expect("set_modified");
    drop(outside);
    assert_eq!(&read_all(&open(&fs, "file", OpenFlags::READ))[1..3], b"XY");
    assert!(fs.stats().invalidations >= 4);
    // stat of a closed file returns the new size too.
    fs::write(&path, b"123").expect("write");
    let inode = walk(&fs, "file").expect("lookup");
    assert_eq!(fs.getattr(&inode).expect("getattr").size, 3);
}

#[test]
fn own_changes_do_not_drop_the_cache() {
    let source = on_disk();
    let fs = plain(source.path());
    let name = OsStr::new("file");
    for round in 0..3 {
        let file = match round {
            0 => create(&fs, "file"),
            _ => open(&fs, "file", OpenFlags::READ_WRITE),
        };
        write_all(&file, &pattern(round, 30_000), 0);
        file.set_len(25_000 + round).expect("set_len");
        file.fsync().expect("fsync");
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        fs.setattr(&ROOT, file.inode(), &set).expect("chmod");
        fs.link(file.inode(), &fs.root(), OsStr::new("other"))
            .expect("link");
        fs.remove(&fs.root(), OsStr::new("other"), Remove::File)
            .expect("unlink");
        fs.rename(
            &fs.root(),
            name,
            &fs.root(),
            OsStr::new("b"),
            RenameMode::Replace,
        )
        .expect("rename");
        fs.rename(
            &fs.root(),
            OsStr::new("b"),
            &fs.root(),
            name,
            RenameMode::Replace,
        )
        .expect("rename");
        drop(file);
        // Left to the flusher and to closing: dirty when it is closed.
        let file = open(&fs, "file", OpenFlags::READ_WRITE);
        write_all(&file, b"dirty", 100);
        drop(file);
        fs.sync_fs().expect("sync");
        fs.getattr(&walk(&fs, "file").expect("lookup"))
            .expect("getattr");
    }
    assert_eq!(fs.stats().invalidations, 0);
    let file = open(&fs, "file", OpenFlags::READ);
    assert!(file.mapping().nr_pages() > 0);
}

#[test]
fn dirty_data_wins_over_a_change_from_outside() {
    let source = on_disk();
    let path = source.path().join("file");
    let fs = plain(source.path());
    let file = create(&fs, "file");
    write_all(&file, b"ours", 0);
    fs::write(&path, b"theirs, longer").expect("write");
    let again = open(&fs, "file", OpenFlags::READ);
    assert_eq!(read_all(&again), b"ours");
    file.fsync().expect("fsync");
    assert_eq!(&fs::read(&path).expect("read")[..4], b"ours");
}

#[test]
fn late_writeback_leaves_the_times_of_the_write() {
    let source = on_disk();
    let path = source.path().join("file");
    let fs = plain(source.path());
    let file = create(&fs, "file");
    write_all(&file, &pattern(1, 10_000), 0);
    let written = fs.getattr(file.inode()).expect("getattr").mtime;
    std::thread::sleep(Duration::from_millis(50));
    file.fsync().expect("fsync");
    let on_source = fs::metadata(&path).expect("stat");
    assert_eq!(
        (on_source.mtime(), on_source.mtime_nsec()),
        (written.sec, written.nsec.into())
    );
    assert_eq!(fs.getattr(file.inode()).expect("getattr").mtime, written);

    // utimens between the write and its writeback is the last word.
    write_all(&file, b"more", 0);
    let then = Timespec::new(1_111_111_111, 222);
    let set = SetAttr {
        mtime: Some(SetTime::At(then)),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, file.inode(), &set).expect("utimens");
    drop(file);
    fs.sync_fs().expect("sync");
    let on_source = fs::metadata(&path).expect("stat");
    assert_eq!(
        (on_source.mtime(), on_source.mtime_nsec()),
        (then.sec, then.nsec.into())
    );
}

#[test]
fn more_files_than_descriptors() {
    let source = on_disk();
    let mut options = DirFsOptions::default();
    options.path_descriptors = 16;
    options.idle_files = Some(4);
    let fs = dirfs(&cache(64), source.path(), options);
    let mut inodes = Vec::new();
    let mut dir = fs.root();
    for depth in 0..30 {
        let name = format!("depth{depth}");
        dir = fs
            .make(
                &ROOT,
                &dir,
                OsStr::new(&name),
                New::Directory { mode: 0o755 },
            )
            .expect("mkdir");
        for at in 0..10 {
            let name = format!("file{at}");
            let file = fs
                .create(&ROOT, &dir, OsStr::new(&name), 0o644, OpenFlags::READ_WRITE)
                .expect("create");
            write_all(&file, &pattern(depth * 10 + at, 3000), 0);
            inodes.push((file.inode().clone(), depth * 10 + at));
        }
    }
    let open_now = descriptors_into(source.path()).len();
    assert!(
        open_now <= 16 + 2 * 6,
        "{open_now} descriptors for {} files",
        inodes.len()
    );
    // All of it is found again, also after a directory near the root was moved.
    let (from, to) = (OsStr::new("depth0"), OsStr::new("elsewhere"));
    fs.rename(&fs.root(), from, &fs.root(), to, RenameMode::Replace)
        .expect("rename");
    for (inode, seed) in inodes.iter().rev() {
        assert_eq!(fs.getattr(inode).expect("getattr").size, 3000);
        let file = fs.open(&ROOT, inode, OpenFlags::READ_WRITE).expect("open");
        assert!(read_all(&file) == pattern(*seed, 3000));
        write_all(&file, b"again", 3000);
    }
    fs.sync_fs().expect("sync");
    let open_now = descriptors_into(source.path()).len();
    assert!(
        open_now <= 16,
        "{open_now} descriptors after everything was synced"
    );
}

#[test]
fn closed_clean_files_hold_no_descriptor_for_io() {
    let source = on_disk();
    let mut options = DirFsOptions::default();
    options.path_descriptors = 1;
    let fs = dirfs(&cache(64), source.path(), options);
    let file = create(&fs, "program");
    write_all(&file, b"#!/bin/sh\nexit 7\n", 0);
    let set = SetAttr {
        mode: Some(0o755),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, file.inode(), &set).expect("chmod");
    file.fsync().expect("fsync");
    drop(file);
    let status = std::process::Command::new(source.path().join("program")).status();
    assert_eq!(
        status.expect("no descriptor is open for writing").code(),
        Some(7)
    );
}

#[test]
fn names_do_not_lead_out_of_the_source() {
    let outside = on_disk();
    fs::write(outside.path().join("secret"), b"secret").expect("write");
    let source = on_disk();
    symlink(outside.path(), source.path().join("way out")).expect("symlink");
    symlink(outside.path().join("secret"), source.path().join("file")).expect("symlink");
    fs::create_dir(source.path().join("dir")).expect("mkdir");
    fs::write(source.path().join("dir/inner"), b"inner").expect("write");
    fs::create_dir(source.path().join("other")).expect("mkdir");
    fs::write(source.path().join("other/file"), b"").expect("write");
    let fs = plain(source.path());
    let root = fs.root();
    assert_eq!(walk(&fs, "way out/secret").map(drop), Err(Errno::ENOTDIR));
    let link = walk(&fs, "file").expect("lookup");
    assert_eq!(
        fs.open(&ROOT, &link, OpenFlags::READ_WRITE).map(drop),
        Err(Errno::ELOOP)
    );
    let over = fs.create(
        &ROOT,
        &root,
        OsStr::new("file"),
        0o644,
        OpenFlags::WRITE.truncate(),
    );
    assert_eq!(over.map(drop), Err(Errno::EEXIST));
    for name in ["..", "../..", "/etc/passwd", "dir/../../x", "dir/inner"] {
        let made = fs
            .make(
                &ROOT,
                &root,
                OsStr::new(name),
                New::Directory { mode: 0o755 },
            )
            .map(drop);
        assert_eq!(made, Err(Errno::EINVAL), "{name}");
        if name != ".." {
            assert_eq!(
                fs.lookup(&root, OsStr::new(name)).map(drop),
                Err(Errno::EINVAL),
                "{name}"
            );
        }
        assert!(fs.remove(&root, OsStr::new(name), Remove::File).is_err());
    }
    // A directory that is replaced by a link behind our back is not followed.
    let inner = walk(&fs, "dir/inner").expect("lookup");
    let mut options = DirFsOptions::default();
    options.path_descriptors = 1;
    let forgetful = dirfs(&cache(64), source.path(), options);
    let forgetful_inner = walk(&forgetful, "dir/inner").expect("lookup");
    walk(&forgetful, "other/file").expect("takes the place of the only descriptor");
    fs::rename(source.path().join("dir"), source.path().join("moved away")).expect("rename");
    symlink(outside.path(), source.path().join("dir")).expect("symlink");
    fs::write(outside.path().join("inner"), b"not ours").expect("write");
    let opened = forgetful.open(&ROOT, &forgetful_inner, OpenFlags::READ);
    assert_eq!(opened.map(drop), Err(Errno::ESTALE));
    // A holder of the descriptor still has the file.
    let file = fs.open(&ROOT, &inner, OpenFlags::READ).expect("open");
    assert_eq!(read_all(&file), b"inner");
}

#[test]
fn a_replaced_file_is_another_inode() {
    let source = on_disk();
    let path = source.path().join("file");
    fs::write(&path, b"first").expect("write");
    let fs = plain(source.path());
    let first = walk(&fs, "file").expect("lookup");
    let file = fs.open(&ROOT, &first, OpenFlags::READ).expect("open");
    assert_eq!(read_all(&file), b"first");
    for round in 0..20 {
        fs::remove_file(&path).expect("remove");
        fs::write(&path, format!("round {round}")).expect("write");
        let file = open(&fs, "file", OpenFlags::READ);
        assert_ne!(file.inode().ino(), first.ino());
        assert_eq!(read_all(&file), format!("round {round}").as_bytes());
    }
    assert_eq!(read_all(&file), b"first");
}

#[test]
fn pages_of_unlinked_files_are_given_up() {
    let source = on_disk();
    let mm = cache(64);
    let fs = dirfs(&mm, source.path(), DirFsOptions::default());
    let resident = || mm.stats().files.resident_pages;
    let file = create(&fs, "dirty");
    write_all(&file, &pattern(1, 1 << 20), 0);
    drop(file);
    assert!(resident() >= 256);
    fs.remove(&fs.root(), OsStr::new("dirty"), Remove::File)
        .expect("unlink");
    assert_eq!(resident(), 0, "they can no longer be read");
    assert_eq!(fs.bdi().nr_not_durable(), 0);

    let file = create(&fs, "open");
    write_all(&file, &pattern(1, 1 << 20), 0);
    create(&fs, "new");
    fs.rename(
        &fs.root(),
        OsStr::new("new"),
        &fs.root(),
        OsStr::new("open"),
        RenameMode::Replace,
    )
    .expect("rename");
    assert!(resident() >= 256, "there is still a handle");
    drop(file);
    assert_eq!(resident(), 0);
    assert!(
        descriptors_into(source.path())
            .iter()
            .all(|path| !path.ends_with("(deleted)"))
    );
}

#[test]
fn read_only_sources_refuse_every_change() {
    let source = on_disk();
    fs::write(source.path().join("file"), b"content").expect("write");
    let mut options = DirFsOptions::default();
    options.read_only = true;
    let fs = dirfs(&cache(64), source.path(), options);
    let (root, name) = (fs.root(), OsStr::new("new"));
    let file = walk(&fs, "file").expect("lookup");
    assert_eq!(read_all(&open(&fs, "file", OpenFlags::READ)), b"content");
    let erofs = Err(Errno::EROFS);
    assert_eq!(
        fs.open(&ROOT, &file, OpenFlags::READ_WRITE).map(drop),
        erofs
    );
    assert_eq!(
        fs.open(&ROOT, &file, OpenFlags::READ.truncate()).map(drop),
        erofs
    );
    assert_eq!(
        fs.create(&ROOT, &root, name, 0o644, OpenFlags::WRITE)
            .map(drop),
        erofs
    );
    assert_eq!(
        fs.make(&ROOT, &root, name, New::Directory { mode: 0o755 })
            .map(drop),
        erofs
    );
    assert_eq!(
        fs.make(&ROOT, &root, name, New::Symlink(name)).map(drop),
        erofs
    );
    assert_eq!(fs.link(&file, &root, name), erofs);
    assert_eq!(fs.remove(&root, OsStr::new("file"), Remove::File), erofs);
    assert_eq!(
        fs.rename(&root, OsStr::new("file"), &root, name, RenameMode::Replace),
        erofs
    );
    assert_eq!(
        fs.setattr(&ROOT, &file, &SetAttr::default()).map(drop),
        erofs
    );
    assert!(fs.read_only());
}

#[test]
fn content_holes_and_modes_reach_the_source() {
    // The whole way round: made here, read there, and the other way.
    let source = on_disk();
    let fs = plain(source.path());
    let dir = fs
        .make(
            &ROOT,
            &fs.root(),
            OsStr::new("dir"),
            New::Directory { mode: 0o2750 },
        )
        .expect("mkdir");
    let file = fs
        .create(
            &ROOT,
            &dir,
            OsStr::new("file"),
            0o640,
            OpenFlags::READ_WRITE,
        )
        .expect("create");
    write_all(&file, &pattern(1, 3 << 20), 0);
    file.punch_hole(1 << 20, 1 << 20).expect("punch");
    file.fsync().expect("fsync");
    let path = source.path().join("dir/file");
    let mut expected = pattern(1, 3 << 20);
    expected[1 << 20..2 << 20].fill(0);
    assert!(fs::read(&path).expect("read") == expected);
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!(stat.permissions().mode() & 0o7777, 0o640);
    assert!(
        stat.blocks() * 512 <= 2 << 20,
        "the hole is one on the source: {}",
        stat.blocks()
    );
    assert_eq!(
        fs::metadata(source.path().join("dir"))
            .expect("stat")
            .permissions()
            .mode()
            & 0o7777,
        0o2750
    );
    let stats = fs.stats();
    assert!(
        stats.direct_writes > 0 || !stats.fallbacks.is_empty(),
        "{stats:?}"
    );
}

#[test]
fn a_missing_source_is_named() {
    let result = DirFs::open(
        &cache(8),
        Path::new("/nowhere/at/all"),
        DirFsOptions::default(),
    );
    let error = result.map(drop).expect_err("there is none");
    assert_eq!(error.errno(), Errno::ENOENT);
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    let result = DirFs::open(
        &cache(8),
        Path::new("/proc/self/status"),
        DirFsOptions::default(),
    );
    assert_eq!(
        result.map(drop).expect_err("a file").errno(),
        Errno::ENOTDIR
    );
}

#[test]
fn unneeded_inodes_are_given_back() {
    let source = on_disk();
    for at in 0..2000 {
        fs::write(source.path().join(format!("file{at}")), b"").expect("write");
    }
    let fs = plain(source.path());
    for at in 0..2000 {
        walk(&fs, &format!("file{at}")).expect("lookup");
    }
    assert!(fs.stats().inodes > 2000, "memory is free");
    let held = walk(&fs, "file7").expect("lookup");
    // Twice round: the clock spares a recently found entry once.
    for _ in 0..3 {
        fs.shrink_inodes(10_000);
    }
    let inodes = fs.stats().inodes;
    assert!(inodes < 100, "{inodes} inodes are kept for nothing");
    let again = walk(&fs, "file7").expect("lookup");
    assert!(
        SlabArc::ptr_eq(&held, &again),
        "an inode that is held has a twin"
    );
}

#[test]
fn many_writers_and_renames_at_once() -> io::Result<()> {
    let source = on_disk();
    let mut options = DirFsOptions::default();
    options.path_descriptors = 4;
    let mm = cache(32);
    let fs = Arc::new(dirfs(&mm, source.path(), options));
    let names = SuperBlock::new(fs.clone(), &mm);
    let started = SystemTime::now();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (names, top) = (&names, names.root());
            scope.spawn(move || {
                let dir_name = format!("dir{thread}");
                let dir = names.make(
                    &ROOT,
                    top,
                    OsStr::new(&dir_name),
                    New::Directory { mode: 0o755 },
                    None,
                );
                let dir = dir.expect("mkdir");
                let rename = |dir: &DentryRef<Inode>, old: &str, new: &str| {
                    let (old, new) = (OsStr::new(old), OsStr::new(new));
                    names
                        .rename(dir, old, dir, new, RenameMode::Replace, None)
                        .expect("rename");
                };
                for round in 0..40 {
                    let (old, new) = (format!("old{round}"), format!("new{}", round % 7));
                    let (name, flags) = (OsStr::new(&old), OpenFlags::READ_WRITE);
                    let (file, _) = names
                        .create(&ROOT, &dir, name, 0o644, flags, None)
                        .expect("create");
                    write_all(&file, &pattern(thread * 100 + round, 9000), 0);
                    rename(&dir, &old, &new);
                    if round % 3 == 0 {
                        file.fsync().expect("fsync");
                    }
                    // The directory itself moves too.
                    let (a, b) = (format!("dir{thread}"), format!("moved{thread}"));
                    let (a, b) = if round % 2 == 0 { (a, b) } else { (b, a) };
                    rename(top, &a, &b);
                }
            });
        }
    });
    fs.sync_fs().expect("sync");
    for thread in 0..4 {
        for name in 0..7 {
            let last = (0..40)
                .rev()
                .find(|round| round % 7 == name)
                .expect("a round");
            let path = source.path().join(format!("dir{thread}/new{name}"));
            assert!(
                fs::read(&path)? == pattern(thread * 100 + last, 9000),
                "{}",
                path.display()
            );
            assert!(fs::metadata(&path)?.modified()? >= started - Duration::from_secs(1));
        }
    }
    Ok(())
}

/// Not a test: the process that `synced_data_survives_a_kill` kills.
#[test]
fn killed_child() {
    let Some(source) = std::env::var_os("FOLIOCACHE_KILLED_CHILD") else {
        return;
    };
    let fs = plain(Path::new(&source));
    for size in [5, 4096, 10_000, 300_001] {
        let file = create(&fs, &format!("synced{size}"));
        write_all(&file, &pattern(size, size as usize), 0);
        file.fsync().expect("fsync");
        // Later, unsynced: may or may not be there.
        write_all(&file, &pattern(size + 1, 7000), size);
    }
    write_all(&create(&fs, "not synced"), b"lost", 0);
    std::process::abort();
}

#[test]
fn synced_data_survives_a_kill() {
    let source = on_disk();
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", "dirfs::killed_child", "--nocapture"])
        .env("FOLIOCACHE_KILLED_CHILD", source.path())
        .output()
        .expect("run the child");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(6),
        "{output:?}"
    );
    let fs = plain(source.path());
    for size in [5_u64, 4096, 10_000, 300_001] {
        let path = source.path().join(format!("synced{size}"));
        let content = fs::read(&path).expect("read");
        assert!(
            content.len() as u64 >= size,
            "{} bytes of {size}",
            content.len()
        );
        assert!(content[..size as usize] == pattern(size, size as usize));
        let file = open(&fs, &format!("synced{size}"), OpenFlags::READ);
        assert!(
            read_all(&file) == content,
            "nothing to repair, nothing beside the file"
        );
    }
}

/// Not a test: the process that `closed_small_new_files_survive_a_kill` kills.
#[test]
fn closing_child() {
    let Some(source) = std::env::var_os("FOLIOCACHE_CLOSING_CHILD") else {
        return;
    };
    let fs = plain(Path::new(&source));
    assert!(fs.stats().batched_files == 0);
    for number in 0..300_u64 {
        let file = create(&fs, &format!("file{number}"));
        write_all(&file, &pattern(number, 3000), 0);
    }
    println!("closed {}", fs.stats().batched_files);
    std::thread::sleep(Duration::from_secs(600));
}

/// Small new files only, and only over a file system whose `syncfs` reports errors; elsewhere they are written back
/// later, as all data.
#[test]
fn closed_small_new_files_survive_a_kill() {
    let source = on_disk();
    let program = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(program)
        .args(["--exact", "dirfs::closing_child", "--nocapture"])
        .env("FOLIOCACHE_CLOSING_CHILD", source.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("run the child");
    let output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let batched = std::io::BufRead::lines(output)
        .map_while(Result::ok)
        .find_map(|line| line.rsplit_once("closed ")?.1.parse::<u64>().ok());
    child.kill().expect("kill");
    child.wait().expect("wait");
    let batched = batched.expect("it closed its files");
    let on_disk = fs::File::open(source.path()).expect("open");
    let magic = foliocache_sys::fd::fs_magic(std::os::fd::AsFd::as_fd(&on_disk)).expect("statfs");
    let ext4_or_xfs = [0xef53, 0x5846_5342].contains(&magic);
    assert_eq!(batched, if ext4_or_xfs { 300 } else { 0 });
    for number in 0..batched {
        let content = fs::read(source.path().join(format!("file{number}"))).expect("read");
        assert!(content == pattern(number, 3000), "file {number}");
    }
}

#[test]
fn space_that_is_coming_counts_as_blocks() {
    let source = on_disk();
    let fs = plain(source.path());
    let file = create(&fs, "file");
    write_all(&file, &[1; 100_000], 0);
    let attr = fs.getattr(file.inode()).expect("getattr");
    assert!(attr.blocks * 512 >= 100_000, "{} blocks", attr.blocks);
}

#[test]
fn few_names_many_threads() {
    let source = on_disk();
    let mut options = DirFsOptions::default();
    options.path_descriptors = 3;
    options.idle_files = Some(2);
    let mm = cache(16);
    let fs = Arc::new(dirfs(&mm, source.path(), options));
    let names = SuperBlock::new(fs.clone(), &mm);
    let rounds =
        300 * std::env::var("FOLIOCACHE_STRESS").map_or(1, |n| n.parse().expect("a number"));
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (fs, names) = (&fs, &names);
            scope.spawn(move || {
                let paths = Namei {
                    names,
                    start: names.root(),
                    beneath: true,
                    ctx: ROOT,
                    credentials: None,
                };
                let how = OpenHow {
                    flags: OpenFlags::READ_WRITE,
                    create: true,
                    exclusive: false,
                    follow: false,
                    mode: 0o644,
                };
                let mut seed = thread + 1;
                let mut random = move |n: u64| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed % n
                };
                for _ in 0..rounds {
                    let name = format!("name{}", random(4));
                    let name = OsStr::new(&name);
                    let gone = [Errno::ENOENT, Errno::ESTALE];
                    match random(8) {
                        0..=3 => match paths.open(name, how) {
                            Ok(file) => {
                                // Every byte of a page says the same.
                                let page = [random(255) as u8 + 1; 4096];
                                write_all(&file, &page, 4096 * random(40));
                                if random(4) == 0 {
                                    file.fsync().expect("fsync");
                                }
                            }
                            Err(error) => {
                                let error = error.errno();
                                assert!(gone.contains(&error), "create: {error}");
                            }
                        },
                        4 => match paths.unlink(name).map_err(WalkError::errno) {
                            Ok(()) | Err(Errno::ENOENT) => {}
                            Err(error) => panic!("unlink: {error}"),
                        },
                        5 => {
                            let other = format!("name{}", random(4));
                            let (top, other) = (names.root(), OsStr::new(&other));
                            match names.rename(top, name, top, other, RenameMode::Replace, None) {
                                Ok(()) | Err(Errno::ENOENT) => {}
                                Err(error) => panic!("rename: {error}"),
                            }
                        }
                        6 => {
                            if let Ok(inode) = paths.inode(name, false) {
                                let size = SetAttr {
                                    size: Some(4096 * random(40)),
                                    ..SetAttr::default()
                                };
                                match fs.setattr(&ROOT, &inode, &size) {
                                    Ok(_) => {}
                                    Err(error) => {
                                        assert!(gone.contains(&error), "setattr: {error}")
                                    }
                                }
                            }
                        }
                        _ => {
                            if let Ok(inode) = paths.inode(name, false)
                                && let Ok(file) = fs.open(&ROOT, &inode, OpenFlags::READ)
                            {
                                for page in read_all(&file).chunks(4096) {
                                    // A reader beside a writer sees the old or the new value of each byte. Four
                                    // writes passing it within one page are most unlikely.
                                    let seen: BTreeSet<_> = page.iter().collect();
                                    assert!(seen.len() <= 4, "{seen:?}");
                                }
                            }
                        }
                    }
                }
            });
        }
    });
    fs.sync_fs().expect("sync");
    for entry in fs::read_dir(source.path()).expect("source") {
        let entry = entry.expect("entry");
        let inode = fs.lookup(&fs.root(), &entry.file_name()).expect("lookup");
        let through = fs.open(&ROOT, &inode, OpenFlags::READ).expect("open");
        assert!(
            read_all(&through) == fs::read(entry.path()).expect("read"),
            "{entry:?}"
        );
    }
    assert_eq!(fs.bdi().nr_not_durable(), 0);
    let open_now = descriptors_into(source.path());
    assert!(open_now.len() <= 3 + 4, "{open_now:?}");
    assert_eq!(fs.stats().invalidations, 0, "all changes were our own");
}

/// Runs `act` in this thread as a user without privileges.
fn as_user_nobody<R>(act: impl FnOnce() -> R) -> R {
    use rustix::thread::set_thread_res_uid;
    let user = |user| set_thread_res_uid(None, user, None).expect("root may change its user");
    user(rustix::fs::Uid::from_raw(NOBODY));
    let result = act();
    user(rustix::fs::Uid::ROOT);
    result
}

const NOBODY: u32 = 65534;

/// A file that is open has descriptors, which do not open it for those whom its mode forbids to.
#[test]
fn files_that_are_open_are_opened_again_as_their_mode_is_then() {
    if lacks("root") {
        return;
    }
    let source = on_disk();
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    chmod(source.path(), 0o777);
    let fs = plain(source.path());
    as_user_nobody(|| {
        let (nobody, name) = (
            OpContext {
                uid: NOBODY,
                ..ROOT
            },
            OsStr::new("f"),
        );
        let made = fs.create(&nobody, &fs.root(), name, 0o444, OpenFlags::READ_WRITE);
        let made = made.expect("its maker may write to a new file of any mode");
        let open = |flags| fs.open(&nobody, made.inode(), flags).map(drop);
        assert_eq!(open(OpenFlags::READ), Ok(()));
        assert_eq!(open(OpenFlags::WRITE), Err(Errno::EACCES));
        assert_eq!(open(OpenFlags::READ_WRITE), Err(Errno::EACCES));
        chmod(&source.path().join("f"), 0o000);
        assert_eq!(open(OpenFlags::READ), Err(Errno::EACCES));
        chmod(&source.path().join("f"), 0o200);
        assert_eq!(open(OpenFlags::READ), Err(Errno::EACCES));
        assert_eq!(open(OpenFlags::WRITE), Ok(()));
        write_all(&made, b"more", 0);
        drop(made);
    });
}

/// The name of a new file is made durable through its directory, which may be closed to the user by then.
#[test]
fn a_new_file_is_synced_though_its_directory_may_not_be_opened() {
    if lacks("root") {
        return;
    }
    let source = on_disk();
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    chmod(source.path(), 0o777);
    let fs = plain(source.path());
    as_user_nobody(|| {
        let nobody = OpContext {
            uid: NOBODY,
            ..ROOT
        };
        for closed in ["in", "above", "root"] {
            let above = fs.make(
                &nobody,
                &fs.root(),
                OsStr::new(closed),
                New::Directory { mode: 0o777 },
            );
            let above = above.expect("mkdir");
            let dir = fs.make(
                &nobody,
                &above,
                OsStr::new("dir"),
                New::Directory { mode: 0o777 },
            );
            let dir = dir.expect("mkdir");
            let made = fs.create(&nobody, &dir, OsStr::new("new"), 0o600, OpenFlags::WRITE);
            let made = made.expect("create");
            let listed = fs.opendir(&dir).expect("opendir");
            write_all(&made, b"data", 0);
            // A directory that its user cannot enter, or not even list.
            match closed {
                "in" => chmod(&source.path().join("in/dir"), 0),
                "above" => chmod(&source.path().join("above"), 0o300),
                _ => {
                    chmod(&source.path().join("root/dir"), 0o300);
                    chmod(&source.path().join("root"), 0);
                }
            }
            assert_eq!(made.fsync(), Ok(()), "{closed}");
            assert_eq!(listed.fsync(), Ok(()), "{closed}");
            assert_eq!(made.fsync(), Ok(()), "{closed}");
        }
    });
    chmod(&source.path().join("root"), 0o700);
    for closed in ["in", "above", "root"] {
        let path = source.path().join(closed).join("dir/new");
        assert_eq!(fs::read(path).expect("source"), b"data");
    }
}

/// The source stamps a file when data reaches it, later than the write that was shown.
#[test]
fn the_change_time_that_was_shown_stays_when_the_inode_leaves_memory() {
    const FILES: usize = 200;
    for exclusive in [false, true] {
        let source = on_disk();
        let mut options = DirFsOptions::default();
        options.exclusive = exclusive;
        let fs = dirfs(&cache(16), source.path(), options);
        let name = |nr: usize| format!("{nr}");
        // Small files go by batches.
        for nr in 0..FILES {
            let file = create(&fs, &name(nr));
            write_all(&file, &pattern(nr as u64, 1 + nr * 331), 0);
        }
        let shown = |nr: usize| {
            let attr = fs.getattr(&walk(&fs, &name(nr)).expect("lookup"));
            let attr = attr.expect("getattr");
            (attr.ctime, attr.mtime, attr.size)
        };
        let before: Vec<_> = (0..FILES).map(shown).collect();
        let in_source = |nr: usize| {
            let found = fs::metadata(source.path().join(name(nr))).expect("stat");
            Timespec::new(found.ctime(), found.ctime_nsec() as u32)
        };
        std::thread::sleep(Duration::from_millis(50));
        fs.sync_fs().expect("sync");
        let leave = || {
            for nr in 0..FILES {
                let inode = walk(&fs, &name(nr)).expect("lookup");
                let mapping = inode.open_mapping().expect("its pages");
                mapping.invalidate(0, u64::MAX);
            }
            let left = fs.stats().inodes;
            fs.shrink_inodes(10_000);
            assert!(fs.stats().inodes < left.saturating_sub(FILES as u64 / 2));
        };
        // But for files that were written back in the same tick of the clock.
        let is_later = |&nr: &usize| in_source(nr) > before[nr].0;
        let later = (0..FILES).filter(is_later).count();
        assert!(exclusive || later > 0, "the source stamps it later");
        for round in 0..3 {
            leave();
            for (nr, before) in before.iter().enumerate() {
                assert_eq!(shown(nr), *before, "file {nr} in round {round}");
                if round == 1 {
                    let file = open(&fs, &name(nr), OpenFlags::READ);
                    assert!(read_all(&file) == pattern(nr as u64, 1 + nr * 331));
                }
            }
        }
        if exclusive {
            continue;
        }
        // Changes by others are shown.
        leave();
        for nr in 0..FILES {
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(source.path().join(name(nr)), mode).expect("chmod");
            assert_eq!(shown(nr).0, in_source(nr), "file {nr}");
        }
    }
}
