//! Files that have not been opened yet: their attributes, their cost, and the first open.

use crate::common::{
    Paths as _, WalkFlags, cache, dirfs, on_disk, on_tmpfs, pattern, read_all, write_all,
};
use foliocache_fs::{DirFs, DirFsOptions, MemFs};
use foliocache_mm::{MappingCharge, Mm};
use foliocache_sys::Errno;
use foliocache_vfs::{
    Attr, Device, FileKind, FileSystem, Inode, New, OpContext, OpenFile, OpenFlags, Remove,
    SeekSparse, SetAttr, SetTime, SlabArc, SuperBlock,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const ROOT: OpContext = OpContext::ROOT;

const STAY: WalkFlags = WalkFlags {
    follow: true,
    beneath: true,
};

fn mapping_bytes() -> u64 {
    MappingCharge::memory_bytes() as u64
}

fn find(fs: &dyn FileSystem, name: &str) -> SlabArc<Inode> {
    fs.lookup(&fs.root(), OsStr::new(name)).expect("lookup")
}

fn open(fs: &dyn FileSystem, inode: &SlabArc<Inode>) -> OpenFile {
    fs.open(&ROOT, inode, OpenFlags::READ_WRITE).expect("open")
}

fn mknod(fs: &dyn FileSystem, name: &str) -> SlabArc<Inode> {
    let (kind, device) = (FileKind::Regular, Device::default());
    fs.make(
        &ROOT,
        &fs.root(),
        OsStr::new(name),
        New::Node {
            kind,
            mode: 0o644,
            rdev: device,
        },
    )
    .expect("mknod")
}

/// The source's attributes of a file, as far as they do not depend on open handles.
#[track_caller]
fn expect_as_in_source(attr: &Attr, path: &Path) {
    let source = fs::metadata(path).expect("stat");
    let ours = (attr.size, attr.mtime.sec, i64::from(attr.mtime.nsec));
    assert_eq!(ours, (source.size(), source.mtime(), source.mtime_nsec()));
    assert_eq!(attr.mode, source.mode() & 0o7777);
}

#[test]
fn a_change_from_outside_before_the_first_opening_is_seen() {
    let source = on_disk();
    let path = source.path().join("file");
    let fs = dirfs(&cache(64), source.path(), DirFsOptions::default());
    for (name, again) in [("looked up", false), ("asked for", true)] {
        let path = source.path().join(name);
        fs::write(&path, pattern(1, 10_000)).expect("write");
        let inode = find(&fs, name);
        for (seed, len) in [(2, 10_000), (3, 20_000), (4, 5)] {
            fs::write(&path, pattern(seed, len)).expect("write");
            if again {
                let attr = fs.getattr(&inode).expect("getattr");
                expect_as_in_source(&attr, &path);
            }
        }
        fs::write(&path, pattern(5, 30_000)).expect("write");
        let file = open(&fs, &inode);
        assert_eq!(file.size(), 30_000);
        assert!(read_all(&file) == pattern(5, 30_000));
        expect_as_in_source(&fs.getattr(&inode).expect("getattr"), &path);
    }
    // Changed between the first opening and the next, with and without handles.
    fs::write(&path, pattern(6, 100)).expect("write");
    let inode = find(&fs, "file");
    assert!(read_all(&open(&fs, &inode)) == pattern(6, 100));
    fs::write(&path, pattern(7, 200)).expect("write");
    let reader = fs.open(&ROOT, &inode, OpenFlags::READ).expect("open");
    assert!(read_all(&reader) == pattern(7, 200));
    fs::write(&path, pattern(8, 300)).expect("write");
    assert!(read_all(&open(&fs, &inode)) == pattern(8, 300));
    // Set before the first open.
    fs::write(source.path().join("cut"), pattern(9, 9000)).expect("write");
    let inode = find(&fs, "cut");
    fs::write(source.path().join("cut"), pattern(10, 8000)).expect("write");
    let size = SetAttr {
        size: Some(5000),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(&ROOT, &inode, &size).expect("cut").size, 5000);
    assert!(read_all(&open(&fs, &inode)) == pattern(10, 8000)[..5000]);
    assert_eq!(
        fs::metadata(source.path().join("cut")).expect("stat").len(),
        5000
    );
}

#[test]
fn stat_of_an_unopened_file_asks_once_its_answer_has_expired() {
    let source = on_disk();
    let path = source.path().join("file");
    fs::write(&path, "1").expect("write");
    let mm = cache(64);
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::ZERO;
    let fs = Arc::new(dirfs(&mm, source.path(), options));
    let names = SuperBlock::new(fs.clone(), &mm);
    let stat = || {
        names
            .stat(names.root(), OsStr::new("file"), STAY, None)
            .expect("stat")
    };
    for len in [0, 7, 4096, 10_000, 3] {
        fs::write(&path, pattern(len as u64, len)).expect("write");
        expect_as_in_source(&stat(), &path);
    }
    let inode = names
        .lookup(names.root(), OsStr::new("file"), STAY, None)
        .expect("lookup")
        .inode()
        .expect("an inode");
    assert!(inode.mapping().is_none());
    fs::write(&path, pattern(11, 11_000)).expect("write");
    let file = open(&*fs, &inode);
    assert!(read_all(&file) == pattern(11, 11_000));
    // From here on size and times are ours.
    write_all(&file, b"more", 11_000);
    assert_eq!(stat().size, 11_004);
    let written = stat().mtime;
    file.fsync().expect("fsync");
    assert_eq!((stat().size, stat().mtime), (11_004, written));
    expect_as_in_source(&stat(), &path);
    drop(file);
    assert_eq!(fs.stats().invalidations, 0, "nothing was cached");
}

#[test]
fn attributes_that_are_believed_are_shown_until_the_file_is_opened() {
    let source = on_disk();
    let path = source.path().join("file");
    fs::write(&path, "1").expect("write");
    let mm = cache(64);
    let mut options = DirFsOptions::default();
    options.revalidate_after = Duration::from_secs(3600);
    // Changes are not reported.
    options.watch = false;
    let fs = Arc::new(dirfs(&mm, source.path(), options));
    let names = SuperBlock::new(fs.clone(), &mm);
    let stat = || {
        names
            .stat(names.root(), OsStr::new("file"), STAY, None)
            .expect("stat")
    };
    let first = stat();
    fs::write(&path, "12").expect("write");
    assert_eq!(stat(), first);
    let file = open(&*fs, &find(&*fs, "file"));
    assert_eq!((file.size(), stat().size), (2, 2));
    expect_as_in_source(&stat(), &path);
}

/// The first opening, looks, changes from outside and, in some rounds, changes of our own at once.
fn first_openings(source: &Path, rounds: u64) {
    let fs = dirfs(&cache(64), source, DirFsOptions::default());
    for round in 0..rounds {
        let name = format!("file{round}");
        let path = source.join(&name);
        let bytes = pattern(round, 9000);
        let (writes, moves) = (round % 3 == 1, round % 2 == 1);
        fs::write(&path, &bytes[..1000]).expect("write");
        let inode = find(&fs, &name);
        let outside = fs::File::options().write(true).open(&path).expect("open");
        let start = Barrier::new(4);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                let file = open(&fs, &inode);
                let found = read_all(&file);
                assert!(found.len() >= 1000 && found == bytes[..found.len()]);
                if writes {
                    write_all(&file, &bytes[500..600], 500);
                    let written = fs.getattr(&inode).expect("getattr").mtime;
                    file.fsync().expect("fsync");
                    assert!(fs.getattr(&inode).expect("getattr").mtime >= written);
                }
            });
            scope.spawn(|| {
                start.wait();
                for _ in 0..4 {
                    let size = fs.getattr(&inode).expect("getattr").size;
                    // A source lets a write be seen page by page.
                    assert!((1000..=9000).contains(&size), "{size}");
                }
            });
            scope.spawn(|| {
                start.wait();
                for mode in [0o600, 0o640, 0o644] {
                    if moves {
                        let mode = SetAttr {
                            mode: Some(mode),
                            ..SetAttr::default()
                        };
                        fs.setattr(&ROOT, &inode, &mode).expect("chmod");
                    }
                }
            });
            start.wait();
            if !writes {
                outside
                    .write_all_at(&bytes[1000..2000], 1000)
                    .expect("write");
                outside.write_all_at(&bytes[2000..], 2000).expect("write");
            }
        });
        let len = if writes { 1000 } else { 9000 };
        // Open, and closed.
        let file = open(&fs, &inode);
        assert!(read_all(&file) == bytes[..len], "round {round}");
        drop(file);
        expect_as_in_source(&fs.getattr(&inode).expect("getattr"), &path);
        assert!(fs::read(&path).expect("read") == bytes[..len]);
    }
    fs.sync_fs().expect("sync");
}

#[test]
fn first_openings_beside_changes_from_outside() {
    let stress = std::env::var("FOLIOCACHE_STRESS").map_or(1, |n| n.parse().expect("a number"));
    first_openings(on_tmpfs().path(), 600 * stress);
    first_openings(on_disk().path(), 100 * stress);
}

/// The attributes after a change of our own may include others' changes too.
#[test]
fn a_change_from_outside_is_not_taken_for_our_own() {
    let source = on_disk();
    let fs = dirfs(&cache(64), source.path(), DirFsOptions::default());
    let set =
        |set: SetAttr| move |fs: &DirFs, inode: &SlabArc<Inode>| fs.setattr(&ROOT, inode, &set);
    let mode = set(SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    });
    let times = set(SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    });
    let link = |fs: &DirFs, inode: &SlabArc<Inode>| {
        fs.link(inode, &fs.root(), OsStr::new("other"))?;
        fs.remove(&fs.root(), OsStr::new("other"), Remove::File)?;
        fs.getattr(inode)
    };
    type Change<'a> = &'a dyn Fn(&DirFs, &SlabArc<Inode>) -> Result<Attr, Errno>;
    let changes: [(Change<'_>, usize); 3] = [(&mode, 1000), (&times, 2000), (&link, 1000)];
    for (at, (change, len)) in changes.into_iter().enumerate() {
        for opened in [false, true] {
            let name = format!("file{at}{opened}");
            let path = source.path().join(&name);
            fs::write(&path, pattern(1, 1000)).expect("write");
            let inode = find(&fs, &name);
            if opened {
                assert!(read_all(&open(&fs, &inode)) == pattern(1, 1000));
            }
            // The next tick of the source's clock.
            thread::sleep(Duration::from_millis(20));
            fs::write(&path, pattern(2, len)).expect("write");
            change(&fs, &inode).expect("our own");
            assert!(read_all(&open(&fs, &inode)) == pattern(2, len), "{name}");
            expect_as_in_source(&fs.getattr(&inode).expect("getattr"), &path);
            // And our own alone drops nothing.
            let before = fs.stats().invalidations;
            change(&fs, &inode).expect("our own");
            assert!(read_all(&open(&fs, &inode)) == pattern(2, len), "{name}");
            assert_eq!(fs.stats().invalidations, before);
        }
    }
}

#[test]
fn concurrent_first_opens_share_one_address_space() {
    let source = on_tmpfs();
    let (mm, other) = (cache(64), cache(64));
    let local = dirfs(&mm, source.path(), DirFsOptions::default());
    let memory = MemFs::new(&other).expect("memfs");
    let systems: [(&dyn FileSystem, &Arc<Mm>); 2] = [(&local, &mm), (&memory, &other)];
    for (fs, mm) in systems {
        for round in 0..200 {
            let name = format!("file{round}");
            let inode = mknod(fs, &name);
            let start = Barrier::new(3);
            thread::scope(|scope| {
                for at in 0..3 {
                    let (inode, start) = (&inode, &start);
                    scope.spawn(move || {
                        start.wait();
                        write_all(&open(fs, inode), b"x", at);
                    });
                }
            });
            assert_eq!(read_all(&open(fs, &inode)), b"xxx");
            fs.remove(&fs.root(), OsStr::new(&name), Remove::File)
                .expect("unlink");
        }
        fs.reap();
        assert!(mm.mappings().len() < 200);
    }
}

/// A file of `memfs` pays for an address space once it is opened, and gives all of it back.
#[test]
fn a_file_in_memory_pays_for_its_address_space_when_it_is_opened() {
    let mm = cache(16);
    let fs = MemFs::new(&mm).expect("memfs");
    // A page of the slab stays for the next ones.
    drop(open(&fs, &mknod(&fs, "first")));
    fs.remove(&fs.root(), OsStr::new("first"), Remove::File)
        .expect("unlink");
    let before = mm.usage().metadata_bytes;
    for set_size in [false, true] {
        let inode = mknod(&fs, "file");
        let made = mm.usage().metadata_bytes;
        fs.getattr(&inode).expect("getattr");
        assert!(inode.mapping().is_none());
        assert_eq!(mm.usage().metadata_bytes, made);
        match set_size {
            false => drop(open(&fs, &inode)),
            true => {
                let size = SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                };
                fs.setattr(&ROOT, &inode, &size).expect("size");
            }
        }
        let opened = mm.usage().metadata_bytes;
        assert!(made < opened && opened <= made + mapping_bytes());
        drop(open(&fs, &inode));
        assert_eq!(mm.usage().metadata_bytes, opened, "once");
        fs.remove(&fs.root(), OsStr::new("file"), Remove::File)
            .expect("unlink");
        drop(inode);
        assert_eq!(mm.usage().metadata_bytes, before);
    }
}

/// The same of a local directory, whose inodes are charged in batches: many of them.
#[test]
fn a_file_of_a_directory_pays_for_its_address_space_when_it_is_opened() {
    let source = on_tmpfs();
    let files = 300_u64;
    for at in 0..files {
        fs::write(source.path().join(format!("file{at}")), "").expect("write");
    }
    let mm = cache(16);
    let fs = dirfs(&mm, source.path(), DirFsOptions::default());
    let find = |at: u64| find(&fs, &format!("file{at}"));
    let before = (fs.inode_bytes(), mm.usage().metadata_bytes);
    let inodes: Vec<_> = (0..files).map(find).collect();
    for inode in &inodes {
        fs.getattr(inode).expect("getattr");
    }
    let charged = || mm.usage().metadata_bytes;
    let looked = (fs.inode_bytes(), charged());
    assert!(inodes.iter().all(|inode| inode.mapping().is_none()));
    let each = (looked.0 - before.0) / files;
    assert!(each < mapping_bytes() + 1024, "{each} bytes an inode");
    let handles: Vec<_> = inodes.iter().map(|inode| open(&fs, inode)).collect();
    assert_eq!(fs.inode_bytes(), looked.0 + files * mapping_bytes());
    assert!(charged() >= looked.1 + files * mapping_bytes());
    drop(handles);
    for at in 0..files {
        let name = format!("file{at}");
        fs.remove(&fs.root(), OsStr::new(&name), Remove::File)
            .expect("unlink");
    }
    drop(inodes);
    fs.shrink_inodes(0);
    fs.reap();
    // Of each slab some pages stay warm, and a few for the next files.
    assert!(fs.inode_bytes() < before.0 + (256 << 10));
    let kept = mm.usage().metadata_bytes - before.1;
    assert!(kept < 336 << 10, "{kept} bytes");
}

/// Charges all that is left of the bound; how many bytes.
fn fill(mm: &Mm) -> u64 {
    let mut charged = 0;
    for bytes in [64 << 10, 4096, 256] {
        while mm.charge_metadata(bytes).is_ok() {
            charged += bytes;
        }
    }
    charged
}

#[test]
fn without_room_for_an_address_space_a_file_is_not_opened() {
    let source = on_tmpfs();
    fs::write(source.path().join("file"), "data").expect("write");
    let mm = cache(4);
    let local = dirfs(&mm, source.path(), DirFsOptions::default());
    let memory = MemFs::new(&mm).expect("memfs");
    let (file, in_memory) = (find(&local, "file"), mknod(&memory, "file"));
    let filled = fill(&mm);
    let systems: [(&dyn FileSystem, _, _); 2] = [
        (&local, &file, Errno::ENOMEM),
        (&memory, &in_memory, Errno::ENOSPC),
    ];
    for (fs, inode, errno) in systems {
        for _ in 0..2 {
            let opened = fs.open(&ROOT, inode, OpenFlags::READ_WRITE);
            assert_eq!(opened.expect_err("no room"), errno);
        }
        fs.getattr(inode).expect("it is there all the same");
    }
    let (root, name) = (memory.root(), OsStr::new("another"));
    let made = memory.create(&ROOT, &root, name, 0o644, OpenFlags::READ_WRITE);
    assert_eq!(made.expect_err("no room"), Errno::ENOSPC);
    assert!(memory.lookup(&root, name).is_err());
    let root = local.root();
    let made = local.create(&ROOT, &root, name, 0o644, OpenFlags::READ_WRITE);
    assert_eq!(made.expect_err("no room"), Errno::ENOMEM);
    assert!(!source.path().join(name).exists(), "it was left behind");
    mm.uncharge_metadata(filled);
    assert_eq!(read_all(&open(&local, &file)), b"data");
    write_all(&open(&local, &file), b"DATA", 0);
    local.sync_fs().expect("sync");
    assert_eq!(fs::read(source.path().join("file")).expect("read"), b"DATA");
    write_all(&open(&memory, &in_memory), b"data", 0);
}

/// Names that a mount's kernel holds come back late, and until then more metadata is refused at once.
#[test]
fn the_first_opening_waits_for_memory_that_others_give_up() {
    let source = on_tmpfs();
    fs::write(source.path().join("file"), "data").expect("write");
    let mm = cache(4);
    let local = dirfs(&mm, source.path(), DirFsOptions::default());
    let memory = MemFs::new(&mm).expect("memfs");
    let systems: [(&dyn FileSystem, _); 2] = [
        (&local, find(&local, "file")),
        (&memory, mknod(&memory, "file")),
    ];
    for (fs, inode) in &systems {
        let filled = fill(&mm);
        assert!(mm.charge_cached_metadata(64 << 10, &|| false).is_err());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                mm.uncharge_metadata(filled);
            });
            open(*fs, inode);
        });
    }
}

#[test]
fn a_fresh_file_in_memory_is_empty() {
    let mm = cache(16);
    let fs = Arc::new(MemFs::new(&mm).expect("memfs"));
    let names = SuperBlock::new(fs.clone(), &mm);
    let stat = |name: &str| {
        names
            .stat(names.root(), OsStr::new(name), STAY, None)
            .expect("stat")
    };
    let inode = mknod(&*fs, "file");
    let fresh = stat("file");
    assert_eq!((fresh.size, fresh.blocks, fresh.nlink), (0, 0, 1));
    assert_eq!(fresh, fs.getattr(&inode).expect("getattr"));
    let seek = inode.ops().seek_sparse(&inode, SeekSparse::Data, 0);
    assert_eq!(seek, Err(Errno::ENXIO));
    assert!(inode.mapping().is_none());
    // Attributes that are changed without its being opened.
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, &inode, &mode).expect("chmod");
    assert_eq!(stat("file").mode, 0o600);
    assert!(inode.mapping().is_none());
    let size = SetAttr {
        size: Some(10_000),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, &inode, &size).expect("size");
    assert_eq!(stat("file").size, 10_000);
    let file = open(&*fs, &inode);
    assert!(read_all(&file) == [0; 10_000]);
    write_all(&file, b"data", 20_000);
    let after = stat("file");
    assert_eq!((after.size, after.mode), (20_004, 0o600));
    assert!(after.blocks > 0 && after.mtime >= fresh.mtime);
    assert_eq!(after, fs.getattr(&inode).expect("getattr"));
    // Opened for truncation first.
    let cut = OpenFlags {
        truncate: true,
        ..OpenFlags::READ_WRITE
    };
    let file = fs.open(&ROOT, &mknod(&*fs, "cut"), cut).expect("open");
    assert_eq!(file.size(), 0);
    write_all(&file, b"1", 0);
    assert_eq!(stat("cut").size, 1);
}

/// An address space belongs to a regular file.
#[test]
fn nothing_else_gets_an_address_space() {
    let source = on_tmpfs();
    let fs: DirFs = dirfs(&cache(16), source.path(), DirFsOptions::default());
    let inode = fs.root();
    assert_eq!(inode.open_mapping().err(), Some(Errno::EINVAL));
    let memory = MemFs::new(&cache(16)).expect("memfs");
    assert_eq!(memory.root().open_mapping().err(), Some(Errno::EINVAL));
}
