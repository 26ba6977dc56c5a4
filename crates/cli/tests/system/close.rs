//! The data in the source of a mount after a program closed a file, and the result of `close(2)`.
//!
//! Needs FUSE and root.

use crate::common::{Folder, no_root_or_fuse, pattern, run, shell, wait_for};
use std::fs::{self, File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Nothing is written because of its age.
const OLD: [&str; 2] = ["--dirty-age", "3600"];

/// When a mount is killed.
#[derive(Clone, Copy)]
enum Kill {
    AtOnce,
    AfterHalfASecond,
    /// Once the source has all, or after much longer than that may take.
    WhenWritten,
}

/// Writes files and closes them, kills the mount, and looks at the source.
fn close_and_kill(name: &str, arguments: &[&str], kill: Kill) -> bool {
    let folder = Folder::new(name);
    fs::write(folder.source().join("log"), "begin\n").unwrap();
    fs::write(folder.source().join("settings"), "old").unwrap();
    fs::write(folder.source().join("small"), "old").unwrap();
    let mounted = folder.mount(&[arguments, &OLD].concat());
    let point = folder.mount_point();
    // A large file, an old one that grows, a small one that is overwritten, and one that takes the place of another.
    let content = pattern(3_000_000, 5);
    fs::write(point.join("large"), &content).unwrap();
    let mut log = File::options().append(true).open(point.join("log"));
    log.as_mut().unwrap().write_all(b"end\n").unwrap();
    drop(log);
    fs::write(point.join("small"), "new").unwrap();
    fs::write(point.join("settings.new"), &content[..100_000]).unwrap();
    fs::rename(point.join("settings.new"), point.join("settings")).unwrap();
    let found = |name: &str| fs::read(folder.source().join(name)).unwrap();
    let whole = || {
        [
            found("large") == content,
            found("log") == b"begin\nend\n",
            found("small") == b"new",
        ]
    };
    match kill {
        Kill::AtOnce => (),
        Kill::AfterHalfASecond => sleep(Duration::from_millis(500)),
        Kill::WhenWritten => {
            let closed = Instant::now();
            while whole() != [true; 3] && closed.elapsed() < Duration::from_secs(20) {
                sleep(Duration::from_millis(10));
            }
        }
    }
    mounted.signal("KILL");
    mounted.wait();
    // Its data came with its name.
    assert!(found("settings") == content[..100_000]);
    let whole = whole();
    assert!(whole == [true; 3] || whole == [false; 3], "{whole:?}");
    whole[0]
}

#[test]
#[ignore = "system tier"]
fn closed_files_survive_a_kill_of_the_mount_a_moment_later() {
    if no_root_or_fuse() {
        return;
    }
    assert!(close_and_kill("begin", &[], Kill::WhenWritten));
    let all = ["--kernel-cache", "all"];
    assert!(close_and_kill("begin-all", &all, Kill::WhenWritten));
    let delayed = ["--writeback", "delayed"];
    assert!(!close_and_kill("delayed", &delayed, Kill::AfterHalfASecond));
}

#[test]
#[ignore = "system tier"]
fn a_close_that_waits_survives_a_kill_of_the_mount_at_once() {
    if no_root_or_fuse() {
        return;
    }
    let close = ["--writeback", "close"];
    assert!(close_and_kill("close", &close, Kill::AtOnce));
    let all = ["--writeback", "close", "--kernel-cache", "all"];
    assert!(close_and_kill("close-all", &all, Kill::AtOnce));
}

/// Mounts a new ext4 on the source of a folder, with `options`; it goes with the folder. It has so much room that no write is
/// made early because room is scarce.
fn mount_ext4(folder: &Folder, options: &str) {
    let image = folder.top().join("image");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let mut mount = Command::new("mount");
    run(mount.args(["-o", options]).arg(image).arg(folder.source()));
}

/// Without `--writeback close` the mount learns of a close after `close(2)` has returned. From the mount's answer
/// on the file is in the source.
#[test]
#[ignore = "system tier"]
fn small_new_file_survives_a_kill_after_the_mount_has_answered_its_close() {
    if no_root_or_fuse() {
        return;
    }
    for (name, arguments) in [
        ("default", &[][..]),
        ("delayed", &["--writeback", "delayed"]),
        ("close", &["--writeback", "close"]),
    ] {
        let folder = Folder::new(&format!("small-{name}"));
        mount_ext4(&folder, "loop");
        let mounted = folder.mount(arguments);
        shell(&folder.mount_point(), "echo q > q; sync");
        if name != "close" {
            folder.wait_for_answers();
        }
        mounted.signal("KILL");
        mounted.wait();
        run(Command::new("umount").arg("-l").arg(folder.mount_point()));
        let found = fs::read(folder.source().join("q")).unwrap();
        assert_eq!(String::from_utf8_lossy(&found), "q\n", "{name}");
    }
}

/// A program that writes its input to `file` and closes it at the end.
fn writer(file: &Path) -> Child {
    let mut dd = Command::new("dd");
    dd.arg(format!("of={}", file.display()));
    dd.args(["bs=64k", "iflag=fullblock", "status=none"]);
    let dd = dd.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    dd.unwrap()
}

/// The room that existed when the data was accepted is used up from outside.
#[test]
#[ignore = "system tier"]
fn close_tells_that_the_source_could_not_take_the_data() {
    if no_root_or_fuse() {
        return;
    }
    let all = ["--writeback", "close", "--kernel-cache", "all"];
    // A handle of our own is closed after a second without a request.
    let idle = Duration::from_millis(2500);
    for (name, arguments, pause) in [
        ("refused", &all[..2], Duration::ZERO),
        ("refused-all", &all, Duration::ZERO),
        ("refused-all-idle", &all, idle),
    ] {
        let folder = Folder::new(name);
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24M", "none"]);
        run(mount.arg(folder.source()));
        let mounted = folder.mount(&[arguments, &OLD].concat());
        let file = folder.mount_point().join("file");
        let mut dd = writer(&file);
        let mut input = dd.stdin.take().unwrap();
        input.write_all(&pattern(6 << 20, 9)).unwrap();
        wait_for("the writes", || {
            fs::metadata(&file).is_ok_and(|file| file.len() == 6 << 20)
        });
        fs::write(folder.source().join("theirs"), vec![1; 30 << 20]).unwrap_err();
        sleep(pause);
        drop(input);
        let ended = dd.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success(), "{name}");
        assert!(said.contains("No space left on device"), "{name}: {said}");
        // With room it is written, and a close of another handle has no error.
        fs::remove_file(folder.source().join("theirs")).unwrap();
        wait_for("the retry", || {
            File::options()
                .append(true)
                .open(&file)
                .and_then(|mut file| file.write_all(b"more"))
                .is_ok()
        });
        mounted.end_well();
        let found = fs::metadata(folder.source().join("file")).unwrap().len();
        assert!(found > 6 << 20, "{name}");
    }
}

/// If writes cannot be refused in time, close waits, whatever the mode.
#[test]
#[ignore = "system tier"]
fn a_source_with_quotas_or_of_an_unknown_kind_gets_the_data_at_close() {
    if no_root_or_fuse() {
        return;
    }
    for kind in ["quotas", "overlay", "neither"] {
        let folder = Folder::new(&format!("close-{kind}"));
        match kind {
            "quotas" => mount_ext4(&folder, "loop,usrquota"),
            "overlay" => {
                let dirs = ["lower", "upper", "work"].map(|name| folder.top().join(name));
                dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
                let [lower, upper, work] = dirs.each_ref().map(|dir| dir.display());
                let dirs = format!("lowerdir={lower},upperdir={upper},workdir={work}");
                let mut mount = Command::new("mount");
                mount.args(["-t", "overlay", "-o", &dirs, "none"]);
                run(mount.arg(folder.source()));
            }
            _ => mount_ext4(&folder, "loop"),
        }
        let mounted = folder.mount(&[&["--writeback", "delayed"], &OLD[..]].concat());
        let content = pattern(1 << 20, 3);
        fs::write(folder.mount_point().join("file"), &content).unwrap();
        let there = fs::read(folder.source().join("file")).unwrap() == content;
        assert_eq!(there, kind != "neither", "{kind}");
        mounted.end_well();
    }
}

/// Descriptors of a process that keep files which were removed below a directory. Removed directories are kept for as long
/// as the kernel remembers them.
fn removed_but_open(pid: u32, source: &Path) -> Vec<PathBuf> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let fds = fds.filter_map(|fd| Some(fd.ok()?.path()));
    let is_removed = |file: Metadata| file.is_file() && file.nlink() == 0;
    let removed = fds.filter(|fd| fs::metadata(fd).is_ok_and(is_removed));
    removed
        .filter_map(|fd| fs::read_link(fd).ok())
        .filter(|target| target.starts_with(source))
        .collect()
}

/// The space of a file that others remove in the source is free soon, whatever was done with it on the mount, and of one that
/// is open when it is closed.
#[test]
#[ignore = "system tier"]
fn files_removed_in_the_source_are_released_by_the_mount() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("removed");
    let (source, point) = (folder.source(), folder.mount_point());
    fs::create_dir_all(source.join("tree/below")).unwrap();
    for nr in 0..50 {
        fs::write(source.join(format!("tree/below/{nr}")), pattern(30_000, nr)).unwrap();
    }
    let mounted = folder.mount(&["--writeback", "delayed", "--dirty-age", "3600"]);
    let tree = point.join("tree/below");
    for nr in 0..50 {
        let path = tree.join(format!("{nr}"));
        assert_eq!(fs::read(&path).unwrap(), pattern(30_000, nr));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    fs::write(tree.join("new"), pattern(3_000_000, 5)).unwrap();
    fs::write(tree.join("0"), "begun").unwrap();
    let open = File::open(tree.join("7")).unwrap();
    fs::remove_dir_all(source.join("tree")).unwrap();
    let kept = source.join("tree/below/7 (deleted)");
    wait_for("what is closed to go", || {
        let open = removed_but_open(mounted.pid(), &source);
        open.iter().all(|target| *target == kept)
    });
    let mut content = Vec::new();
    (&open).read_to_end(&mut content).unwrap();
    assert_eq!(content, pattern(30_000, 7));
    drop(open);
    wait_for("what was open to go", || {
        removed_but_open(mounted.pid(), &source).is_empty()
    });
    mounted.end_well();
}
