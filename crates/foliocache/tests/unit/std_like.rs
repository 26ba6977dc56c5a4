//! The names and meanings of `std::fs`.

use crate::common::{Disk, PAGE, cache, pattern};
use foliocache::{
    AsyncDirectory, AsyncFile, Cache, Credentials, Directory, DirectoryOptions, Errno, Error, File,
    FileKind, FileTimes, Mapping, Permissions, Result,
};
use std::fs;
use std::hint;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

/// On a local directory and in memory.
fn on_both(test: impl Fn(&Directory)) {
    let disk = Disk::new(32);
    test(&disk.dir);
    test(&disk.cache.memfs().unwrap());
}

#[track_caller]
fn errno<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("this had to fail"),
        Err(error) => error.errno(),
    }
}

fn mode(dir: &Directory, path: &str) -> u32 {
    dir.metadata(path).unwrap().permissions().mode()
}

#[test]
fn whole_files_are_read_and_written() {
    on_both(|dir| {
        for len in [0, 1, PAGE, 3 * PAGE + 7, 1 << 20] {
            let bytes = pattern(1, len);
            dir.write("f", &bytes).unwrap();
            assert!(dir.read("f").unwrap() == bytes, "{len}");
        }
        dir.write("f", "short").unwrap();
        assert_eq!(dir.read_to_string("f").unwrap(), "short");
        dir.write("f", [b'a', 0xff]).unwrap();
        let error = dir.read_to_string("f").unwrap_err();
        assert!(matches!(error, Error::NotUtf8 { .. }), "{error}");
        assert_eq!(errno(dir.read("missing")), Errno::ENOENT);
        assert_eq!(errno(dir.read(".")), Errno::EISDIR);
        assert_eq!(errno(dir.write("no/f", "")), Errno::ENOENT);
    });
}

/// Beside another handle that appends.
#[test]
fn the_position_after_a_vectored_append_is_the_end_of_its_bytes() {
    on_both(|dir| {
        dir.write("log", "").unwrap();
        let append = |byte: u8| {
            let mut log = dir
                .open_options()
                .read(true)
                .append(true)
                .open("log")
                .unwrap();
            for _ in 0..2000 {
                let halves = [[byte; 3], [byte; 3]];
                let slices = halves.each_ref().map(|half| io::IoSlice::new(half));
                assert_eq!(log.write_vectored(&slices).unwrap(), 6);
                let end = log.stream_position().unwrap();
                let mut bytes = [0; 6];
                log.read_exact_at(&mut bytes, end - 6).unwrap();
                assert_eq!(bytes, [byte; 6]);
            }
        };
        std::thread::scope(|scope| [1, 2].map(|byte| _ = scope.spawn(move || append(byte))));
    });
}

#[test]
fn copies_have_bytes_and_permissions() {
    on_both(|dir| {
        let bytes = pattern(2, 300_000);
        dir.write("from", &bytes).unwrap();
        dir.set_permissions("from", Permissions::from_mode(0o754))
            .unwrap();
        dir.write("to", pattern(3, 400_000)).unwrap();
        dir.set_permissions("to", Permissions::from_mode(0o600))
            .unwrap();
        for to in ["to", "new"] {
            assert_eq!(dir.copy("from", to).unwrap(), 300_000);
            assert!(dir.read(to).unwrap() == bytes);
            assert_eq!(mode(dir, to), 0o754, "{to}");
        }
        dir.hard_link("from", "same").unwrap();
        for to in ["from", "same"] {
            assert_eq!(errno(dir.copy("from", to)), Errno::EINVAL);
        }
        assert!(
            dir.read("from").unwrap() == bytes,
            "a refused copy changes nothing"
        );
        assert_eq!(errno(dir.copy("missing", "to")), Errno::ENOENT);
        assert!(dir.read("to").unwrap() == bytes);
    });
}

#[test]
fn entries_know_their_path_and_attributes() {
    on_both(|dir| {
        dir.create_dir_all("a/b/d").unwrap();
        dir.write("a/b/f", "four").unwrap();
        dir.symlink("f", "a/b/link").unwrap();
        let mut found: Vec<_> = dir
            .read_dir("a/b")
            .unwrap()
            .map(|entry| entry.unwrap())
            .collect();
        found.sort_by_key(|entry| entry.file_name());
        let kinds: Vec<_> = found
            .iter()
            .map(|entry| entry.file_type().unwrap())
            .collect();
        assert_eq!(
            kinds,
            [FileKind::Directory, FileKind::Regular, FileKind::Symlink]
        );
        assert_eq!(found[1].path().to_str(), Some("a/b/f"));
        assert_eq!(dir.read(found[1].path()).unwrap(), b"four");
        assert_eq!(found[1].metadata().unwrap().len(), 4);
        assert!(
            found[2].metadata().unwrap().is_symlink(),
            "it is not followed"
        );
        // They are entries of that directory, wherever it is.
        dir.rename("a/b", "moved").unwrap();
        assert_eq!(found[1].metadata().unwrap().len(), 4);
        dir.remove_file("moved/f").unwrap();
        assert_eq!(errno(found[1].metadata()), Errno::ENOENT);
        let here = dir
            .read_dir(".")
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut here: Vec<_> = here.collect();
        here.sort();
        assert_eq!(here, ["./a", "./moved"].map(std::path::PathBuf::from));
    });
}

#[test]
fn metadata_is_that_of_the_source() {
    let disk = Disk::new(16);
    disk.dir.write("f", pattern(4, 5000)).unwrap();
    disk.dir.hard_link("f", "g").unwrap();
    disk.dir.open("f").unwrap().sync_all().unwrap();
    let ours = disk.dir.metadata("f").unwrap();
    let theirs = fs::metadata(disk.in_source("f")).unwrap();
    fn facts(of: &impl MetadataExt) -> [u64; 11] {
        [
            of.mode().into(),
            of.nlink(),
            of.uid().into(),
            of.gid().into(),
            of.rdev(),
            of.size(),
            of.mtime() as u64,
            of.mtime_nsec() as u64,
            of.ctime() as u64,
            of.ctime_nsec() as u64,
            of.blksize(),
        ]
    }
    assert_eq!(facts(&ours), facts(&theirs));
    assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
    assert_eq!(
        ours.permissions().mode(),
        theirs.permissions().mode() & 0o7777
    );
    assert!(ours.permissions().mode() & 0o222 != 0 && !ours.permissions().readonly());
    match theirs.created() {
        Ok(created) => assert_eq!(ours.created().unwrap(), created),
        Err(_) => assert_eq!(errno(ours.created()), Errno::EOPNOTSUPP),
    }
    // Device and inode number identify files.
    let identity = |of: &foliocache::Metadata| (of.dev(), of.ino());
    assert_eq!(identity(&ours), identity(&disk.dir.metadata("g").unwrap()));
    assert_ne!(identity(&ours), identity(&disk.dir.metadata(".").unwrap()));
    let other = disk.cache.memfs().unwrap().metadata(".").unwrap();
    assert_ne!(other.dev(), disk.dir.metadata(".").unwrap().dev());
}

#[test]
fn clones_of_a_file_share_its_position() {
    on_both(|dir| {
        let mut file = dir.create("f").unwrap();
        let mut clone = file.try_clone().unwrap();
        file.write_all(b"one").unwrap();
        clone.write_all(b"two").unwrap();
        assert_eq!(file.stream_position().unwrap(), 6);
        clone.seek(SeekFrom::Start(1)).unwrap();
        drop(clone);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "netwo");
        let reader = dir.open("f").unwrap().try_clone().unwrap();
        assert_eq!(errno(reader.write_at(b"x", 0)), Errno::EBADF);
    });
}

#[test]
fn attributes_of_an_open_file_are_set() {
    let disk = Disk::new(16);
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let later = time + Duration::from_secs(1);
    for dir in [disk.dir.clone(), disk.cache.memfs().unwrap()] {
        dir.write("f", "x").unwrap();
        let file = dir.open("f").unwrap();
        file.set_permissions(Permissions::from_mode(0o640)).unwrap();
        assert_eq!(mode(&dir, "f"), 0o640);
        let mut permissions = file.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        assert!(permissions.readonly());
        file.set_permissions(permissions).unwrap();
        assert_eq!(mode(&dir, "f"), 0o440);
        let times = FileTimes::new().set_accessed(later).set_modified(time);
        file.set_times(times).unwrap();
        let now = file.metadata().unwrap();
        assert_eq!(
            (now.accessed().unwrap(), now.modified().unwrap()),
            (later, time)
        );
        file.set_modified(later).unwrap();
        assert_eq!(dir.metadata("f").unwrap().modified().unwrap(), later);
        assert_eq!(dir.metadata("f").unwrap().accessed().unwrap(), later);
        // Through a handle with other credentials.
        dir.set_permissions("f", Permissions::from_mode(0o644))
            .unwrap();
        let guest = dir.with_credentials(Credentials::new(4711, 4711, &[]));
        let file = guest.open("f").unwrap();
        assert_eq!(
            errno(file.set_permissions(Permissions::from_mode(0o400))),
            Errno::EPERM
        );
        assert_eq!(errno(file.set_modified(time)), Errno::EPERM);
        assert_eq!(errno(file.chown(Some(4711), None)), Errno::EPERM);
        assert_eq!(mode(&dir, "f"), 0o644);
    }
    assert_eq!(
        fs::metadata(disk.in_source("f"))
            .unwrap()
            .modified()
            .unwrap(),
        later
    );
    let options = DirectoryOptions::new().read_only(true);
    let reader = disk
        .cache
        .directory_with(disk.source.path(), options)
        .unwrap();
    let file = reader.open("f").unwrap();
    assert_eq!(
        errno(file.set_permissions(Permissions::from_mode(0o400))),
        Errno::EROFS
    );
    assert_eq!(errno(file.set_modified(time)), Errno::EROFS);
    assert_eq!(errno(file.set_xattr("user.a", "x")), Errno::EROFS);
    assert_eq!(
        errno(file.try_clone().unwrap().chown(Some(1), None)),
        Errno::EROFS
    );
}

#[test]
fn owners_are_set() {
    let dir = cache(16).memfs().unwrap();
    let owner = |path| {
        let metadata = dir.symlink_metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    };
    dir.write("f", "x").unwrap();
    dir.symlink("f", "link").unwrap();
    let before = owner("link");
    dir.chown("link", Some(11), Some(12)).unwrap();
    assert_eq!((owner("f"), owner("link")), ((11, 12), before));
    dir.lchown("link", Some(21), None).unwrap();
    assert_eq!((owner("f"), owner("link")), ((11, 12), (21, before.1)));
    dir.open("f").unwrap().chown(None, Some(13)).unwrap();
    assert_eq!(owner("f"), (11, 13));
    let guest = dir.with_credentials(Credentials::new(11, 13, &[14]));
    assert_eq!(errno(guest.chown("f", Some(12), None)), Errno::EPERM);
    guest.chown("f", None, Some(14)).unwrap();
    assert_eq!(owner("f"), (11, 14));
}

/// A change of mode by the owner comes before a change of owner, or is refused: a file that has become root's does
/// not get the bit from its old owner.
#[test]
fn a_change_by_the_owner_is_not_made_after_the_owner_changed() {
    // Where every user may give files away.
    let dir = &cache(16).memfs().unwrap();
    dir.write("f", "x").unwrap();
    let owner = dir.with_credentials(Credentials::new(11, 11, &[]));
    let (rounds, turn, mut wrong) = (2 * 3000, AtomicU32::new(0), 0);
    // Both go on within some nanoseconds.
    let meet = |other: u32| {
        turn.fetch_add(1, Ordering::SeqCst);
        while turn.load(Ordering::SeqCst) < other {
            thread::yield_now();
        }
    };
    let wait = |round: u32| (0..(round * 37) % 1024).for_each(|_| hint::spin_loop());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in (0..rounds).step_by(2) {
                meet(2 * round + 2);
                wait(if round % 4 == 0 { round } else { 0 });
                // Done, or refused.
                let _ = owner.set_permissions("f", Permissions::from_mode(0o4777));
                meet(2 * round + 4);
            }
        });
        for round in (0..rounds).step_by(2) {
            dir.chown("f", Some(11), None).unwrap();
            meet(2 * round + 2);
            wait(if round % 4 == 0 { 0 } else { round });
            dir.chown("f", Some(0), None).unwrap();
            meet(2 * round + 4);
            wrong += u32::from(mode(dir, "f") & 0o4000 != 0);
        }
    });
    assert_eq!(wrong, 0);
}

#[test]
fn extended_attributes_are_set_read_listed_and_removed() {
    on_both(|dir| {
        dir.write("f", "x").unwrap();
        dir.set_xattr("f", "user.kind", "text").unwrap();
        let file = dir.open("f").unwrap();
        assert_eq!(file.get_xattr("user.kind").unwrap().unwrap(), b"text");
        file.set_xattr("user.kind", b"other").unwrap();
        file.set_xattr("user.more", "").unwrap();
        assert_eq!(dir.get_xattr("f", "user.kind").unwrap().unwrap(), b"other");
        assert_eq!(dir.get_xattr("f", "user.none").unwrap(), None);
        assert_eq!(errno(dir.get_xattr("none", "user.kind")), Errno::ENOENT);
        let mut names = dir.list_xattrs("f").unwrap();
        names.retain(|name| name.to_string_lossy().starts_with("user."));
        names.sort();
        assert_eq!(names, ["user.kind", "user.more"]);
        file.remove_xattr("user.more").unwrap();
        dir.remove_xattr("f", "user.kind").unwrap();
        assert_eq!(errno(dir.remove_xattr("f", "user.kind")), Errno::ENODATA);
        assert_eq!(file.get_xattr("user.kind").unwrap(), None);
    });
}

#[test]
fn extended_attributes_are_guarded_by_credentials() {
    let dir = cache(16).memfs().unwrap();
    dir.write("f", "x").unwrap();
    dir.set_permissions("f", Permissions::from_mode(0o644))
        .unwrap();
    dir.chown("f", Some(11), Some(11)).unwrap();
    dir.set_xattr("f", "user.a", "1").unwrap();
    dir.set_xattr("f", "trusted.a", "1").unwrap();
    dir.symlink("f", "link").unwrap();
    let [owner, guest] = [11, 12].map(|id| dir.with_credentials(Credentials::new(id, id, &[])));
    owner.set_xattr("f", "user.a", "2").unwrap();
    assert_eq!(guest.get_xattr("f", "user.a").unwrap().unwrap(), b"2");
    assert_eq!(errno(guest.set_xattr("f", "user.a", "3")), Errno::EACCES);
    assert_eq!(errno(guest.remove_xattr("f", "user.a")), Errno::EACCES);
    let opened = guest.open("f").unwrap();
    assert_eq!(errno(opened.set_xattr("user.a", "3")), Errno::EACCES);
    for who in [&owner, &guest] {
        assert_eq!(who.get_xattr("f", "trusted.a").unwrap(), None);
        assert_eq!(errno(who.set_xattr("f", "trusted.a", "2")), Errno::EPERM);
        assert_eq!(errno(who.set_xattr("f", "security.a", "2")), Errno::EPERM);
        assert_eq!(who.list_xattrs("f").unwrap(), ["user.a"]);
    }
    assert_eq!(
        errno(guest.set_xattr("f", "system.posix_acl_access", "")),
        Errno::EPERM
    );
    dir.set_permissions("f", Permissions::from_mode(0o600))
        .unwrap();
    assert_eq!(errno(guest.get_xattr("f", "user.a")), Errno::EACCES);
    // A world-writable directory still belongs to its owner.
    dir.create_dir("shared").unwrap();
    dir.set_permissions("shared", Permissions::from_mode(0o1777))
        .unwrap();
    assert_eq!(
        errno(guest.set_xattr("shared", "user.a", "1")),
        Errno::EPERM
    );
    assert_eq!(dir.get_xattr("f", "user.a").unwrap().unwrap(), b"2");
}

#[test]
fn sync_of_a_range_writes_that_range_alone() {
    let source = crate::common::on_disk();
    let cache = Cache::builder().memory("32M");
    let cache = cache
        .dirty_expire(Duration::from_secs(3600))
        .build()
        .unwrap();
    let dir = cache.directory(source.path()).unwrap();
    let file = dir.create("f").unwrap();
    let far = 64 << 20;
    file.write_all_at(&[1; PAGE], 0).unwrap();
    file.write_all_at(&[2; PAGE], far).unwrap();
    let unsynced = || {
        let stats = file.stats().unwrap();
        stats.dirty_pages + stats.writeback_pages + stats.unstable_pages
    };
    assert_eq!(unsynced(), 2);
    file.sync_range(10..20).unwrap();
    assert_eq!(unsynced(), 1);
    let written = fs::read(source.path().join("f")).unwrap();
    assert!(written[..PAGE] == [1; PAGE]);
    assert!(written[PAGE..].iter().all(|&byte| byte == 0));
    file.sync_range(5..5).unwrap();
    assert_eq!(unsynced(), 1);
    file.sync_range(far..).unwrap();
    assert_eq!(unsynced(), 0);
    assert_eq!(
        fs::read(source.path().join("f")).unwrap()[far as usize..],
        [2; PAGE]
    );
}

#[test]
fn data_and_holes_are_found() {
    let disk = Disk::new(16);
    let (begin, end) = (1 << 20, 3 << 20);
    for dir in [disk.dir.clone(), disk.cache.memfs().unwrap()] {
        let file = dir.create("f").unwrap();
        file.set_len(end).unwrap();
        file.write_all_at(&[1; PAGE], begin).unwrap();
        for pos in [end, end + 1] {
            assert_eq!(file.seek_data(pos).unwrap(), None);
            assert_eq!(file.seek_hole(pos).unwrap(), None);
        }
        assert_eq!(file.seek_data(begin).unwrap(), Some(begin));
    }
    // The source's answer once all data is there, which the call ensures.
    let file = disk.dir.open("f").unwrap();
    let found = (file.seek_data(0).unwrap(), file.seek_hole(begin).unwrap());
    let source = fs::File::open(disk.in_source("f")).unwrap();
    let seek = |to| rustix::fs::seek(&source, to).unwrap();
    let data = seek(rustix::fs::SeekFrom::Data(0));
    let hole = seek(rustix::fs::SeekFrom::Hole(begin));
    assert_eq!(found, (Some(data), Some(hole)));
}

#[test]
fn room_is_that_of_the_source() {
    let disk = Disk::new(16);
    let ours = disk.dir.statfs().unwrap();
    let theirs = rustix::fs::statvfs(disk.source.path()).unwrap();
    assert_eq!(
        (u64::from(ours.block_size), ours.blocks, ours.files),
        (theirs.f_frsize, theirs.f_blocks, theirs.f_files)
    );
    let memory = disk.cache.memfs().unwrap().statfs().unwrap();
    assert_eq!(memory.blocks * u64::from(memory.block_size), 16 << 20);
}

#[test]
fn absolute_paths_are_refused_with_the_reason() {
    let dir = cache(16).memfs().unwrap();
    let error = dir.open("/etc/passwd").unwrap_err();
    let says = "cannot open /etc/passwd: /etc/passwd is absolute, and paths are relative to the directory memfs";
    assert_eq!(error.to_string(), says);
    let error = io::Error::from(dir.rename("/a", "b").unwrap_err());
    assert!(error.to_string().contains("/a is absolute"), "{error}");
    let disk = Disk::new(16);
    let error = disk.dir.open(disk.in_source("a/f")).unwrap_err();
    assert!(error.to_string().ends_with("; there it is a/f"), "{error}");
    dir.symlink("/etc", "link").unwrap();
    let error = dir.open("link/passwd").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot open link/passwd: the path leads out of memfs"
    );
}

#[test]
fn handles_cross_panics_and_threads_as_those_of_std_do() {
    fn is<T: UnwindSafe + RefUnwindSafe + Send + Sync>() {}
    is::<Cache>();
    is::<Directory>();
    is::<File>();
    is::<Mapping>();
    is::<AsyncDirectory>();
    is::<AsyncFile>();
    fn is_error<T: Clone + std::error::Error + Send + Sync + 'static>() {}
    is_error::<Error>();
    let dir = cache(16).memfs().unwrap();
    let file = dir.create("f").unwrap();
    std::panic::catch_unwind(|| file.write_all_at(b"kept", 0).unwrap()).unwrap();
    assert_eq!(dir.read("f").unwrap(), b"kept");
}

#[test]
fn files_serve_code_that_is_generic_over_the_traits_of_std() {
    fn swap(file: &impl FileExt) -> io::Result<()> {
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, 0)?;
        bytes.reverse();
        file.write_all_at(&bytes, 0)
    }
    let dir = cache(16).memfs().unwrap();
    let file = dir.create("f").unwrap();
    file.write_all_at(b"ab", 0).unwrap();
    swap(&file).unwrap();
    assert_eq!(dir.read("f").unwrap(), b"ba");
    let short = dir.create("short").unwrap();
    assert_eq!(
        swap(&short).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

#[test]
fn a_file_larger_than_memory_is_an_error_when_it_is_read_whole() {
    on_both(|dir| {
        // A hole that no address space has room for, or else the longest that the source takes.
        let file = dir.create("large").unwrap();
        let sizes = [1 << 62, 1 << 60, 1 << 47, (1 << 44) - 4096];
        assert!(sizes.iter().any(|&size| file.set_len(size).is_ok()));
        for result in [
            dir.read("large").map(drop),
            dir.read_to_string("large").map(drop),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.errno(), Errno::ENOMEM);
            assert!(error.to_string().contains("large"), "{error}");
        }
        file.set_len(3 << 20).unwrap();
        assert_eq!(dir.read("large").unwrap(), vec![0; 3 << 20]);
    });
}
