//! The memory that a mount takes of the machine, and its errors when the source cannot take the
//! data.
//!
//! Needs FUSE and root.

use crate::common::{
    Folder, Mounted, in_kernel_cache, lacks, memory_of, no_root_or_fuse, pattern, run, shell,
    wait_for,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
#[ignore = "system tier"]
fn memory_stays_within_bound_and_base_and_nothing_is_held_twice() {
    if lacks(&["fincore"]) {
        return;
    }
    const BOUND: u64 = 32 << 20;
    let folder = Folder::new("memory");
    let content = pattern(1 << 20, 3);
    let mut file = File::create(folder.source().join("big")).unwrap();
    for _ in 0..BOUND >> 18 {
        file.write_all(&content).unwrap();
    }
    file.sync_all().unwrap();
    shell(
        folder.top(),
        "mkdir source/many; i=0; while [ $i -lt 2000 ]; do echo $i > source/many/$i; i=$((i+1)); done; sync",
    );
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let mounted = folder.mount(&["--memory", "32M"]);
    let allowed = BOUND + mounted.fixed_base();
    let check = |what: &str| {
        let anonymous = memory_of(mounted.pid(), "Anonymous:");
        assert!(
            anonymous <= allowed,
            "{anonymous} of {allowed} bytes after {what}"
        );
    };
    // 4 times the bound, read, written, looked at.
    let inside = folder.mount_point().join("big");
    let mut read = File::open(&inside).unwrap();
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..BOUND >> 18 {
        read.read_exact(&mut buffer).unwrap();
        assert!(buffer == content);
    }
    check("reading");
    // Neither the mount's file nor the one behind it fills the kernel's cache.
    let (ours, behind) = (
        in_kernel_cache(&inside),
        in_kernel_cache(&folder.source().join("big")),
    );
    assert!(
        ours == 0,
        "{ours} bytes of the mount's file are in the kernel's cache"
    );
    assert!(
        behind <= 1 << 20,
        "{behind} bytes of the source's file are in the kernel's cache"
    );
    let written = folder.mount_point().join("written");
    let mut out = File::create(&written).unwrap();
    for _ in 0..BOUND >> 18 {
        out.write_all(&content).unwrap();
    }
    check("writing");
    assert_eq!(in_kernel_cache(&written), 0);
    shell(
        &folder.mount_point(),
        "cat many/* > /dev/null; ls -lR > /dev/null",
    );
    check("2000 files");
    // More writers than readers of requests, so that most of them wait with their data in hand.
    let copy = folder.mount_point().join("copy");
    let mut writers: Vec<_> = (0..80)
        .map(|i| {
            let out = format!("of={}{i}", copy.display());
            Command::new("dd")
                .args(["if=/dev/zero", &out, "bs=1M", "count=8", "status=none"])
                .spawn()
                .unwrap()
        })
        .collect();
    while writers
        .iter_mut()
        .any(|writer| writer.try_wait().unwrap().is_none())
    {
        check("many writers began");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        writers
            .iter_mut()
            .all(|writer| writer.wait().unwrap().success())
    );
    // A mapping is the exception; its pages go with its last handle.
    shell(
        &folder.mount_point(),
        "cp /bin/sh program; ./program -c true; sleep 0.3",
    );
    assert_eq!(in_kernel_cache(&folder.mount_point().join("program")), 0);
    drop((read, out));
    mounted.end_well();
    assert_eq!(
        fs::metadata(folder.source().join("written")).unwrap().len(),
        4 * BOUND
    );
}

/// Mounts a small file system of a kind on the source of a folder; the folder unmounts it.
fn small_source(folder: &Folder, kind: &str) {
    let mut mount = Command::new("mount");
    match kind {
        "tmpfs" => mount.args(["-t", "tmpfs", "-o", "size=24M", "none"]),
        _ => {
            let image = folder.top().join("image");
            File::create(&image).unwrap().set_len(32 << 20).unwrap();
            run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
            mount.args(["-o", "loop"]).arg(image)
        }
    };
    run(mount.arg(folder.source()));
}

/// The bytes that `df` shows as free.
fn free(place: &Path) -> u64 {
    let said = run(Command::new("df")
        .args(["-B1", "--output=avail"])
        .arg(place));
    said.lines().last().unwrap().trim().parse().unwrap()
}

/// The cache could hold all of it for long, and be none the wiser.
#[test]
#[ignore = "system tier"]
fn a_full_source_refuses_writes_and_nothing_that_was_accepted_is_lost() {
    for kind in ["tmpfs", "ext4"] {
        let folder = Folder::new(&format!("full-{kind}"));
        small_source(&folder, kind);
        let mounted = folder.mount(&["--memory", "256M"]);
        let point = folder.mount_point();
        let room = free(&folder.source());
        assert!(free(&point).abs_diff(room) <= 1 << 20, "{kind}");
        // One file that fits, and is shown as used; then one that does not.
        let content = pattern(8 << 20, 9);
        fs::write(point.join("fits"), &content).unwrap();
        assert!(room - free(&point) >= content.len() as u64, "{kind}");
        let mut accepted = 0;
        let mut big = File::create(point.join("big")).unwrap();
        let piece = pattern(128 << 10, 7);
        let refused = loop {
            match big.write_all(&piece) {
                Ok(()) => accepted += piece.len() as u64,
                Err(error) => break error,
            }
            assert!(accepted < 2 * room, "{kind}: all is accepted");
        };
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{kind}");
        let all = accepted + content.len() as u64;
        assert!(all > room - (3 << 20), "{kind}: {all} of {room}");
        // A program gets the error too.
        let copied = Command::new("cp")
            .arg(point.join("fits"))
            .arg(point.join("copy"))
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8(copied.stderr).unwrap();
        assert!(!copied.status.success(), "{kind}");
        assert!(said.contains("No space left on device"), "{kind}: {said}");
        // Small files until the disk is full, whichever call fails first.
        let small = (0..100_000).take_while(|nr| {
            let made = fs::write(point.join(format!("small{nr}")), &piece[..3000]);
            made.is_ok()
        });
        let small = small.count();
        assert!(small < 100_000, "{kind}");
        // Allocated data can be overwritten.
        let fits = File::options().write(true).open(point.join("fits"));
        fits.unwrap().write_all_at(&piece, 4096).expect(kind);
        // Room that comes back is used.
        drop(big);
        fs::remove_file(point.join("big")).unwrap();
        wait_for("the last close, which no program waits for", || {
            fs::write(point.join("after"), &piece).is_ok()
        });
        let ended = mounted.end("TERM");
        assert_eq!(ended.code, Some(0), "{kind}: {:?}", ended.lines);
        let source = |name: &str| fs::read(folder.source().join(name)).unwrap();
        let mut expected = content;
        expected[4096..][..piece.len()].copy_from_slice(&piece);
        assert!(source("fits") == expected, "{kind}");
        assert!(source("after") == piece, "{kind}");
        for nr in 0..small {
            assert!(
                source(&format!("small{nr}")) == piece[..3000],
                "{kind}: {nr}"
            );
        }
    }
}

/// The room that existed when the data was accepted is used up from outside.
#[test]
#[ignore = "system tier"]
fn files_that_do_not_fit_into_a_full_source_are_listed_as_lost() {
    let folder = Folder::new("taken");
    small_source(&folder, "tmpfs");
    let arguments = [
        "--memory",
        "512M",
        "--stop-timeout",
        "1",
        "--writeback",
        "delayed",
    ];
    let mounted = folder.mount(&arguments);
    let content = pattern(6 << 20, 9);
    for name in ["one", "two"] {
        fs::write(folder.mount_point().join(name), &content).unwrap();
    }
    // More than there is room for, whether or not some of the two is written.
    let theirs = vec![1; 32 << 20];
    fs::write(folder.source().join("theirs"), theirs).unwrap_err();
    let ended = mounted.end("TERM");
    let lost = |name: &str| {
        let line = |line: &&String| line.contains("lost: ") && line.contains(&format!("/{name}: "));
        ended.lines.iter().find(line)
    };
    let whole = |name: &str| fs::read(folder.source().join(name)).is_ok_and(|it| it == content);
    for name in ["one", "two"] {
        let line = lost(name);
        assert!(line.is_some() != whole(name), "{name}: {:?}", ended.lines);
        assert!(line.is_none_or(|line| line.contains("ENOSPC")), "{line:?}");
    }
    assert!(lost("one").is_some() || lost("two").is_some());
    assert_eq!(ended.code, Some(4), "{:?}", ended.lines);
    assert!(!folder.is_mounted());
}

/// As many services have it: a hard limit of 1,024 descriptors, and programs that hold more files open for writing.
#[test]
#[ignore = "system tier"]
fn a_mount_serves_more_open_files_than_it_has_descriptors() {
    if no_root_or_fuse() {
        return;
    }
    const FILES: usize = 3000;
    // Of the programs there are this process, and the shells that it starts.
    let limit = Rlimit {
        current: Some(FILES as u64 + 500),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    for arguments in [
        &[][..],
        &["--writeback", "delayed"],
        &["--kernel-cache", "all"],
    ] {
        let folder = Folder::new("open-files");
        let mount = folder.mount_command(arguments);
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=1024:1024").arg(mount.get_program());
        let mounted = Mounted::start(limited.args(mount.get_args()));
        let inside = folder.mount_point();
        fs::create_dir(inside.join("held")).unwrap();
        let make = |nr: usize| {
            let mut file = File::create(inside.join("held").join(nr.to_string()))?;
            writeln!(file, "first {nr}").map(|()| file)
        };
        let mut files: Vec<_> = (0..FILES).map(|nr| make(nr).unwrap()).collect();
        // Other programs read and make files all the while.
        shell(
            &inside,
            "mkdir others; i=0
             while [ $i -lt 300 ]; do echo $i > others/$i; cat others/$i > /dev/null; i=$((i+1)); done
             cat held/* > /dev/null; test $(ls held | wc -l) = 3000; mv others moved; rm -r moved",
        );
        for (nr, file) in files.iter_mut().enumerate() {
            writeln!(file, "second {nr}").unwrap();
        }
        for (nr, file) in files.iter().enumerate() {
            // Each in the first mount alone: that takes its time.
            if arguments.is_empty() || nr % 20 == 0 {
                file.sync_all().unwrap();
                let source = folder.source().join("held").join(nr.to_string());
                let expected = format!("first {nr}\nsecond {nr}\n");
                assert_eq!(fs::read_to_string(source).unwrap(), expected);
            }
        }
        drop(files);
        mounted.end_well();
        for nr in 0..FILES {
            let source = folder.source().join("held").join(nr.to_string());
            let expected = format!("first {nr}\nsecond {nr}\n");
            assert_eq!(fs::read_to_string(source).unwrap(), expected);
        }
    }
}
