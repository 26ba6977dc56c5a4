//! Data that was written before a name or a privilege reaches the source first.
//!
//! # Safety
//!
//! The structures handed to the system calls live for the call.
#![allow(unsafe_code)]

use crate::common::{is_alone, lacks, on_disk, pattern, run_alone};
use foliocache::{
    Cache, Directory, DirectoryOptions, Errno, MapAccess, Permissions, RenameMode, Result,
    WritebackAtClose,
};
use rustix::fs::getxattr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A size that goes into batches of small files, and one that does not.
const SIZES: [usize; 2] = [6_000, 300_000];

const MODES: [WritebackAtClose; 3] = [
    WritebackAtClose::Begin,
    WritebackAtClose::Wait,
    WritebackAtClose::Delayed,
];

const CAPABILITY: &str = "security.capability";

/// A directory of a cache that writes nothing because of its age.
fn directory(source: &Path, close: WritebackAtClose) -> (Cache, Directory) {
    let cache = Cache::builder()
        .memory("64M")
        .dirty_expire(Duration::from_secs(3600))
        .build()
        .unwrap();
    let options = DirectoryOptions::new().writeback_at_close(close);
    let directory = cache.directory_with(source, options).unwrap();
    (cache, directory)
}

#[test]
fn readers_of_the_source_see_whole_versions_of_a_file_that_is_replaced() {
    for (mode, len) in [
        (WritebackAtClose::Begin, SIZES[0]),
        (WritebackAtClose::Begin, SIZES[1]),
        (WritebackAtClose::Delayed, SIZES[1]),
    ] {
        let source = on_disk();
        let (_cache, directory) = directory(source.path(), mode);
        directory.write("f", pattern(0, len)).unwrap();
        directory.open("f").unwrap().sync_all().unwrap();
        let path = source.path().join("f");
        let done = AtomicBool::new(false);
        thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let (mut newest, mut reads) = (0, 0);
                // Relaxed: the end of the loop need not be seen at once.
                while !done.load(Ordering::Relaxed) || reads == 0 {
                    let found = fs::read(&path).unwrap();
                    let version = (newest..41).find(|&version| found == pattern(version, len));
                    assert!(version.is_some(), "{} bytes, torn", found.len());
                    newest = version.unwrap();
                    reads += 1;
                }
            });
            for version in 1..=40 {
                directory.write("f.new", pattern(version, len)).unwrap();
                directory.rename("f.new", "f").unwrap();
            }
            // Relaxed: it publishes nothing else.
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert!(fs::read(&path).unwrap() == pattern(40, len));
    }
}

/// The writer of the new content, and how and when it is closed, make no difference.
#[test]
fn a_replacing_name_comes_with_its_data() {
    type Write = fn(&Directory, &[u8]) -> Result<Option<foliocache::File>>;
    let ways: [Write; 4] = [
        |dir, bytes| dir.write("new", bytes).map(|()| None),
        |dir, bytes| {
            let file = dir.create("new")?;
            file.write_all_at(bytes, 0)?;
            Ok(Some(file))
        },
        |dir, bytes| {
            let file = dir.create("new")?;
            file.set_len(bytes.len() as u64)?;
            let mapped = file.map(.., MapAccess::ReadWrite)?;
            mapped.write_at(bytes, 0)?;
            Ok(Some(file))
        },
        |dir, bytes| {
            let mut options = dir.open_options();
            for part in bytes.chunks(bytes.len() / 3 + 1) {
                options
                    .append(true)
                    .create(true)
                    .open("new")?
                    .append_all(part)?;
            }
            Ok(None)
        },
    ];
    for mode in MODES {
        for len in SIZES {
            for (way, write) in ways.iter().enumerate() {
                let source = on_disk();
                let (_cache, directory) = directory(source.path(), mode);
                let (old, new) = (pattern(1, 5000), pattern(2, len));
                // One that the cache knows, and one that others made.
                directory.write("old", &old).unwrap();
                directory.create_dir("below").unwrap();
                fs::write(source.path().join("below/theirs"), &old).unwrap();
                for target in ["old", "below/theirs"] {
                    let handle = write(&directory, &new).unwrap();
                    let written = directory.metadata("new").unwrap().modified().unwrap();
                    directory.rename("new", target).unwrap();
                    let path = source.path().join(target);
                    assert!(fs::read(&path).unwrap() == new, "{mode:?} {len} {way}");
                    let stamped = fs::metadata(&path).unwrap().modified().unwrap();
                    assert!(way == 2 || stamped == written, "{mode:?} {len} {way}");
                    drop(handle);
                }
            }
        }
    }
}

#[test]
fn names_that_are_exchanged_come_with_their_data() {
    for len in SIZES {
        let source = on_disk();
        let (_cache, directory) = directory(source.path(), WritebackAtClose::Delayed);
        for (name, seed) in [("a", 1), ("b", 2)] {
            directory.write(name, "short").unwrap();
            directory.open(name).unwrap().sync_all().unwrap();
            directory.write(name, pattern(seed, len)).unwrap();
        }
        directory
            .rename_with("a", "b", RenameMode::Exchange)
            .unwrap();
        for (name, seed) in [("b", 1), ("a", 2)] {
            let found = fs::read(source.path().join(name)).unwrap();
            assert!(found == pattern(seed, len), "{name} {len}");
        }
    }
}

/// The end of the file is a hole that was dirty once: no write brings its size about.
#[test]
fn a_name_that_takes_the_place_of_another_comes_with_its_size() {
    let source = on_disk();
    let (_cache, directory) = directory(source.path(), WritebackAtClose::Delayed);
    directory.write("old", pattern(1, 5000)).unwrap();
    let file = directory.create("new").unwrap();
    file.write_all_at(&pattern(2, 40_960), 0).unwrap();
    file.punch_hole(20_480, 20_480).unwrap();
    directory.rename("new", "old").unwrap();
    let found = fs::read(source.path().join("old")).unwrap();
    let expected = [pattern(2, 20_480), vec![0; 20_480]].concat();
    assert!(found == expected, "{} bytes", found.len());
}

#[test]
fn a_name_that_replaces_nothing_does_not_wait_for_its_data() {
    let source = on_disk();
    let (cache, directory) = directory(source.path(), WritebackAtClose::Delayed);
    let content = pattern(1, SIZES[1]);
    directory.write("new", &content).unwrap();
    directory.rename("new", "name").unwrap();
    let options = RenameMode::NoReplace;
    directory.rename_with("name", "other", options).unwrap();
    let found = || fs::read(source.path().join("other")).unwrap();
    assert_eq!(found().len(), 0);
    cache.sync().unwrap();
    assert!(found() == content);
}

/// The largest file that this process may make, in bytes.
fn limit_files(bytes: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: see the module's header.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    assert_eq!(got, 0);
    limit.rlim_cur = bytes.min(limit.rlim_max);
    // SAFETY: see the module's header.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
    assert_eq!(set, 0);
}

#[track_caller]
fn assert_no_room<T>(done: Result<T>) {
    let error = done.err().expect("there is no room").errno();
    // A write that reaches past the limit is cut short there, which has no distinct error number.
    assert!(error == Errno::EFBIG || error == Errno::EIO, "{error}");
}

#[test]
fn changes_whose_data_cannot_be_written_fail_and_change_nothing() {
    let said = run_alone("written_first::changes_without_room");
    assert!(said.contains("all is as it was"), "{said}");
}

#[test]
fn changes_without_room() {
    if !is_alone() {
        return;
    }
    // SAFETY: ignoring a signal touches no memory.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for mode in MODES {
        limit_files(MIB);
        let source = on_disk();
        let (cache, directory) = directory(source.path(), mode);
        let (old, new) = (pattern(1, 5000), pattern(2, 4 * MIB as usize));
        directory.write("old", &old).unwrap();
        directory.open("old").unwrap().sync_all().unwrap();
        let file = directory.create("new").unwrap();
        file.write_all_at(&new, 0).unwrap();
        let bits = Permissions::from_mode(0o4755);
        let before = directory.metadata("new").unwrap().mode();
        // Every time, not once.
        for _ in 0..2 {
            assert_no_room(directory.rename("new", "old"));
            let exchange = RenameMode::Exchange;
            assert_no_room(directory.rename_with("old", "new", exchange));
            assert_no_room(directory.set_permissions("new", bits.clone()));
            assert_no_room(file.set_permissions(bits.clone()));
            assert_no_room(directory.set_xattr("new", CAPABILITY, capability()));
        }
        assert!(directory.read("old").unwrap() == old);
        assert!(fs::read(source.path().join("old")).unwrap() == old);
        assert!(directory.read("new").unwrap() == new);
        assert_eq!(directory.metadata("new").unwrap().mode(), before);
        // A mode without such bits, and names that replace nothing, do not wait.
        let plain = Permissions::from_mode(0o600);
        directory.set_permissions("new", plain).unwrap();
        directory.rename("new", "newer").unwrap();
        limit_files(u64::MAX);
        directory.rename("newer", "old").unwrap();
        assert!(fs::read(source.path().join("old")).unwrap() == new);
        drop(file);
        cache.close().unwrap();
    }
    println!("all is as it was");
}

/// `cap_net_raw+ep`, as the kernel keeps it.
fn capability() -> Vec<u8> {
    [0x0200_0001u32, 1 << 13, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// As `tar`, `cp -a`, `rsync` and `setcap` do.
#[test]
fn capabilities_that_are_set_after_a_write_stay() {
    if lacks("root") {
        return;
    }
    for mode in MODES {
        for len in SIZES {
            for closed in [true, false] {
                let source = on_disk();
                let (cache, directory) = directory(source.path(), mode);
                let file = directory.create("file").unwrap();
                file.write_all_at(&pattern(1, len), 0).unwrap();
                let file = (!closed).then_some(file);
                match &file {
                    Some(file) => file.set_xattr(CAPABILITY, capability()).unwrap(),
                    None => directory
                        .set_xattr("file", CAPABILITY, capability())
                        .unwrap(),
                }
                if let Some(file) = file {
                    file.sync_all().unwrap();
                }
                cache.sync().unwrap();
                cache.close().unwrap();
                let path = source.path().join("file");
                let mut found = [0; 64];
                let found_len = getxattr(&path, CAPABILITY, &mut found[..]).unwrap_or(0);
                let found = &found[..found_len];
                assert_eq!(found, capability(), "{mode:?} {len} {closed}");
                assert!(fs::read(&path).unwrap() == pattern(1, len));
            }
        }
    }
}

/// Takes the privilege away to write to files and leave their set-id bits, which root has.
fn drop_privilege() {
    const CAP_FSETID: u32 = 4;
    // The version of the structures, and this thread.
    let mut header = [0x2008_0522u32, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: see the module's header.
    let got = unsafe { libc::syscall(libc::SYS_capget, &mut header, &mut sets) };
    assert_eq!(got, 0);
    sets[0][0] &= !(1 << CAP_FSETID);
    // SAFETY: see the module's header.
    let set = unsafe { libc::syscall(libc::SYS_capset, &mut header, &sets) };
    assert_eq!(set, 0);
}

#[test]
fn set_id_bits_that_are_set_after_a_write_stay() {
    let said = run_alone("written_first::set_id_bits_without_privilege");
    assert!(said.contains("all bits are there"), "{said}");
}

#[test]
fn set_id_bits_without_privilege() {
    if !is_alone() {
        return;
    }
    // Before the cache starts threads, which inherit this thread's privileges.
    drop_privilege();
    for mode in MODES {
        for len in SIZES {
            for (bits, closed) in [(0o6755, true), (0o6755, false), (0o4711, true)] {
                let source = on_disk();
                let (cache, directory) = directory(source.path(), mode);
                let file = directory.create("file").unwrap();
                file.write_all_at(&pattern(1, len), 0).unwrap();
                let permissions = Permissions::from_mode(bits);
                match closed {
                    true => {
                        drop(file);
                        directory.set_permissions("file", permissions).unwrap();
                    }
                    false => {
                        file.set_permissions(permissions).unwrap();
                        file.sync_all().unwrap();
                        drop(file);
                    }
                }
                cache.sync().unwrap();
                cache.close().unwrap();
                let found = fs::metadata(source.path().join("file")).unwrap().mode();
                let what = format!("{mode:?} {len} {closed}: {found:o}");
                assert_eq!(found & 0o7777, bits, "{what}");
            }
        }
    }
    println!("all bits are there");
}
