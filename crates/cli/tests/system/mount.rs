//! The life of a mount: beginning, working, every way to end.
//!
//! Needs FUSE and root.

use crate::common::programs::installed;
use crate::common::{
    Folder, Mounted, foliocache, no_root_or_fuse, output, pattern, run, shell, wait_for,
};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

#[test]
#[ignore = "system tier"]
fn names_data_and_attributes() {
    let folder = Folder::new("names");
    let mounted = folder.mount(&["--memory", "32M"]);
    let script = r#"
        echo hello > a; test "$(cat a)" = hello
        echo more >> a; test "$(wc -l < a)" = 2
        mkdir d d/e; mv a d/b; ln d/b d/c; ln -s ../b d/e/link
        test "$(stat -c %h d/b)" = 2; test "$(cat d/e/link)" = "$(cat d/c)"
        test "$(readlink d/e/link)" = ../b
        test "$(ls d | tr '\n' ' ')" = "b c e "
        chmod 640 d/b; test "$(stat -c %a d/c)" = 640
        touch -d '2001-02-03 04:05:06.789 UTC' d/b
        test "$(stat -c %Y d/c)" = 981173106
        touch -d '1969-12-31 23:59:58.5 UTC' d/b; test "$(stat -c %Y d/b)" = -2
        truncate -s 100000 d/b; test "$(stat -c %s d/c)" = 100000
        truncate -s 5 d/b; test "$(cat d/b)" = hello
        rm d/c; test "$(stat -c %h d/b)" = 1
        ! rmdir d 2>/dev/null; rm -r d; test -z "$(ls)"
        mkfifo p; test -p p; rm p
        i=0; while [ $i -lt 500 ]; do : > file-with-a-longer-name-$i; i=$((i+1)); done
        test "$(ls | wc -l)" = 500; test "$(ls -l | grep -c file-with)" = 500
        rm file-*; test -z "$(ls)"
    "#;
    shell(&folder.mount_point(), script);
    mounted.end_well();
    assert!(!folder.is_mounted());
}

#[test]
#[ignore = "system tier"]
fn holes_space_copies_and_locks() {
    let folder = Folder::new("holes");
    let mounted = folder.mount(&["--memory", "32M"]);
    let script = r#"
        head -c 300000 /dev/urandom > a; cp a b; cmp a b; cp --reflink=never --sparse=never a c
        cmp a c
        fallocate -p -o 8192 -l 65536 b; test "$(stat -c %s b)" = 300000
        test "$(dd if=b bs=4096 skip=2 count=16 2>/dev/null | tr -d '\0' | wc -c)" = 0
        cmp -n 8192 a b; cmp -i 73728 a b
        fallocate -l 400000 b; test "$(stat -c %s b)" = 400000
        dd if=/dev/zero of=sparse bs=1 count=1 seek=1000000 2>/dev/null
        cp --sparse=always sparse dense; cmp sparse dense
        exec 9> lock; flock 9; ! flock -n lock true
        df . | tail -1 | grep -q '%'
    "#;
    shell(&folder.mount_point(), script);
    let room = |path| {
        run(Command::new("stat")
            .args(["-f", "-c", "%b %S %l"])
            .arg(path))
    };
    assert_eq!(room(folder.mount_point()), room(folder.source()));
    mounted.end_well();
    shell(&folder.source(), "cmp a c; cmp sparse dense");
}

#[test]
#[ignore = "system tier"]
fn appends_of_many_writers_are_whole() {
    let folder = Folder::new("append");
    let mounted = folder.mount(&["--memory", "32M"]);
    let log = folder.mount_point().join("log");
    let threads: Vec<_> = (0..4)
        .map(|writer| {
            let log = log.clone();
            thread::spawn(move || {
                let mut file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(log)
                    .unwrap();
                for line in 0..200 {
                    file.write_all(format!("{writer} {line:04}\n").as_bytes())
                        .unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let text = fs::read_to_string(&log).unwrap();
    for writer in 0..4 {
        let prefix = format!("{writer} ");
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with(&prefix))
            .collect();
        assert_eq!(lines.len(), 200, "writer {writer}");
        assert!(lines.is_sorted());
    }
    mounted.end_well();
}

/// Large reads are answered under the locks of their folios.
#[test]
#[ignore = "system tier"]
fn readers_that_are_stopped_hold_up_no_writer() {
    const MIB: usize = 1 << 20;
    let folder = Folder::new("stopped");
    let mounted = folder.mount(&["--memory", "64M"]);
    let path = folder.mount_point().join("file");
    fs::write(&path, pattern(4 * MIB, 1)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for round in 0..50_u64 {
        let mut readers: Vec<_> = (0..4)
            .map(|_| {
                let mut sh = Command::new("sh");
                sh.args(["-c", "while :; do cat < \"$0\" > /dev/null; done"]);
                sh.arg(&path).process_group(0).spawn().unwrap()
            })
            .collect();
        let signal = |readers: &[Child], name: &str| {
            let groups = readers.iter().map(|reader| format!("-{}", reader.id()));
            run(Command::new("kill").args(["-s", name, "--"]).args(groups));
        };
        thread::sleep(Duration::from_millis(20 + round));
        signal(&readers, "STOP");
        let (file, bytes) = (file.try_clone().unwrap(), pattern(4 * MIB, round));
        let writer = thread::spawn(move || file.write_all_at(&bytes, 0).unwrap());
        wait_for("the writer", || writer.is_finished());
        writer.join().unwrap();
        signal(&readers, "KILL");
        for reader in &mut readers {
            reader.wait().unwrap();
        }
    }
    assert!(fs::read(&path).unwrap() == pattern(4 * MIB, 49));
    drop(file);
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn a_signal_writes_everything_back() {
    for signal in ["TERM", "INT"] {
        let folder = Folder::new("signal");
        let mounted = folder.mount(&["--memory", "64M"]);
        let contents: Vec<_> = (0..40).map(|i| pattern(100_000 + i, i as u64)).collect();
        for (i, content) in contents.iter().enumerate() {
            fs::write(folder.mount_point().join(format!("f{i}")), content).unwrap();
        }
        let ended = mounted.end(signal);
        assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
        assert!(
            ended
                .lines
                .iter()
                .any(|line| line.contains("everything is written back"))
        );
        assert!(!folder.is_mounted());
        for (i, content) in contents.iter().enumerate() {
            let found = fs::read(folder.source().join(format!("f{i}"))).unwrap();
            assert!(found == *content, "f{i} after SIG{signal}");
        }
    }
}

#[test]
#[ignore = "system tier"]
fn an_unmount_from_outside_is_an_end_like_any_other() {
    let folder = Folder::new("outside");
    let mounted = folder.mount(&[]);
    fs::write(folder.mount_point().join("file"), "data").unwrap();
    run(Command::new("umount").arg(folder.mount_point()));
    let ended = mounted.wait();
    assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
    assert_eq!(fs::read(folder.source().join("file")).unwrap(), b"data");
}

#[test]
#[ignore = "system tier"]
fn fsynced_data_survives_a_kill_and_the_next_mount_cleans_the_mount_point() {
    let folder = Folder::new("kill");
    let mounted = folder.mount(&["--memory", "64M"]);
    let content = pattern(3_000_000, 7);
    fs::create_dir(folder.mount_point().join("dir")).unwrap();
    let mut file = File::create(folder.mount_point().join("dir/synced")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    // Overwritten later without fsync: each page is the old or the new one.
    let newer = vec![0xee; 50_000];
    file.write_at(&newer, 4096).unwrap();
    mounted.signal("KILL");
    assert_eq!(mounted.wait().code, None);
    drop(file);
    assert!(folder.is_mounted());
    assert!(fs::metadata(folder.mount_point()).is_err());
    let found = fs::read(folder.source().join("dir/synced")).unwrap();
    assert_eq!(found.len(), content.len());
    assert!(found[..4096] == content[..4096] && found[54_096..] == content[54_096..]);
    for (at, byte) in found[4096..54_096].iter().enumerate() {
        assert!(*byte == content[4096 + at] || *byte == 0xee);
    }
    // The next mount explains the dead one and takes it away.
    let again = folder.mount(&[]);
    let lines = again.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("was left behind by a foliocache that was killed")),
        "{lines:?}"
    );
    let found = fs::read(folder.mount_point().join("dir/synced")).unwrap();
    assert_eq!(found.len(), content.len());
    again.end_well();
    assert!(!folder.is_mounted());
}

/// Each mount would undo changes that were fsynced through the other.
#[test]
#[ignore = "system tier"]
fn a_source_is_mounted_twice_only_read_only_or_by_force() {
    let folder = Folder::new("twice");
    let mounted = folder.mount(&[]);
    let second = folder.top().join("second");
    fs::create_dir(&second).unwrap();
    let mount = |arguments: &[&str]| {
        let mut command = foliocache();
        command.arg("mount").arg(folder.source()).arg(&second);
        command.args(arguments);
        command
    };
    let refused = output(&mut mount(&[]));
    assert_eq!(refused.status.code(), Some(2));
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        says.contains("is open for writing in another cache") && says.contains("--force"),
        "{says}"
    );
    for arguments in [["--read-only"], ["--force"]] {
        let again = Mounted::start(&mut mount(&arguments));
        shell(
            &folder.mount_point(),
            &format!("echo x > ./{0}; sync ./{0}", arguments[0]),
        );
        assert_eq!(fs::read(second.join(arguments[0])).unwrap(), b"x\n");
        again.end_well();
    }
    mounted.end_well();
    Mounted::start(&mut mount(&[])).end_well();
}

#[test]
#[ignore = "system tier"]
fn a_read_only_mount_refuses_changes() {
    let folder = Folder::new("read-only");
    fs::write(folder.source().join("file"), "data").unwrap();
    let mounted = folder.mount(&["--read-only"]);
    let at = |name: &str| folder.mount_point().join(name);
    assert_eq!(fs::read(at("file")).unwrap(), b"data");
    for refused in [
        fs::write(at("file"), "x"),
        fs::write(at("new"), "x"),
        fs::create_dir(at("dir")),
        fs::remove_file(at("file")),
        fs::rename(at("file"), at("other")),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn a_change_behind_the_mount_is_seen_at_open() {
    let folder = Folder::new("behind");
    let (inside, behind) = (folder.mount_point().join("f"), folder.source().join("f"));
    fs::write(&behind, "first").unwrap();
    let mounted = folder.mount(&[]);
    assert_eq!(fs::read(&inside).unwrap(), b"first");
    fs::write(&behind, "second, and longer").unwrap();
    assert_eq!(fs::read(&inside).unwrap(), b"second, and longer");
    // Names and attributes may be a second old.
    fs::write(folder.source().join("new"), "x").unwrap();
    assert_eq!(fs::read(folder.mount_point().join("new")).unwrap(), b"x");
    wait_for("the size", || fs::metadata(&inside).unwrap().size() == 18);
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn other_users_come_in_only_where_they_may() {
    let folder = Folder::new("users");
    fs::write(folder.source().join("open"), "x").unwrap();
    fs::write(folder.source().join("closed"), "x").unwrap();
    shell(
        &folder.source(),
        "chmod 644 open; chmod 600 closed; chmod 755 .",
    );
    let read_as_other = |name: &str| {
        output(
            Command::new("setpriv")
                .args([
                    "--reuid=65534",
                    "--regid=65534",
                    "--clear-groups",
                    "cat",
                    name,
                ])
                .current_dir(folder.mount_point()),
        )
        .status
        .success()
    };
    let mounted = folder.mount(&[]);
    assert!(!read_as_other("open"));
    mounted.end_well();
    let mounted = folder.mount(&["--allow-other"]);
    assert!(read_as_other("open"));
    assert!(!read_as_other("closed"));
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn bad_input_is_one_line_and_status_2() {
    let folder = Folder::new("input");
    let top = folder.top();
    shell(top, "mkdir source/below full; touch full/x file");
    let real = top.canonicalize().unwrap();
    let real = real.display();
    let machine = run(Command::new("awk").args(["/MemTotal/ {print $2}", "/proc/meminfo"]));
    let machine = machine.trim().parse::<f64>().unwrap() / f64::from(1 << 20);
    let table: &[(&[&str], String)] = &[
        (&["none", "mount"], "SOURCE none does not exist".into()),
        (&["file", "mount"], "SOURCE file is not a directory".into()),
        (&["source", "none"], "MOUNTPOINT none does not exist".into()),
        (
            &["source", "file"],
            "MOUNTPOINT file is not a directory".into(),
        ),
        (
            &["source", "full"],
            format!(
                "MOUNTPOINT {real}/full is not empty: what is in it would be hidden by the mount"
            ),
        ),
        (
            &["source", "source"],
            format!("SOURCE and MOUNTPOINT are the same directory: {real}/source"),
        ),
        (
            &["source", "source/below"],
            format!(
                "MOUNTPOINT {real}/source/below is inside SOURCE {real}/source: it would show \
                 itself without end"
            ),
        ),
        (
            &["source/below", "source"],
            format!(
                "SOURCE {real}/source/below is inside MOUNTPOINT {real}/source: it would be hidden \
                 by the mount"
            ),
        ),
        (
            &["source", "mount", "--memory", "12X"],
            "--memory 12X is no size: give bytes, a number with K, M, G or T, or a part such as 10%"
                .into(),
        ),
        (
            &["source", "mount", "--memory", "120%"],
            "--memory 120% is no part of the memory: give whole percent, from 1% to 100%".into(),
        ),
        (
            &["source", "mount", "--memory", "-5M"],
            "--memory -5M is no size: give bytes, a number with K, M, G or T, or a part such as 10%".into(),
        ),
        (
            &["source", "mount", "--memory", "1M"],
            "--memory 1M is too little: at least 4 MiB are needed".into(),
        ),
        (
            &["source", "mount", "--memory", "900T"],
            format!("--memory 900T is more than the {machine:.1} GiB of this machine"),
        ),
    ];
    for (arguments, line) in table {
        let done = output(foliocache().arg("mount").args(*arguments).current_dir(top));
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(said, format!("foliocache: {line}\n"), "{arguments:?}");
        assert_eq!(done.status.code(), Some(2), "{arguments:?}");
    }
    // Mounted already.
    let mounted = folder.mount(&[]);
    let done = output(
        foliocache()
            .args(["mount", "full", "mount"])
            .current_dir(top),
    );
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(
        said,
        format!(
            "foliocache: MOUNTPOINT {real}/mount shows {real}/source already: unmount it first\n"
        )
    );
    assert_eq!(done.status.code(), Some(2));
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn without_fuse_or_permission_it_says_so() {
    let folder = Folder::new("no-fuse");
    let binary = env!("CARGO_BIN_EXE_foliocache");
    let said = |done: std::process::Output| {
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8(done.stderr).unwrap()
    };
    let hidden = format!("mount -t tmpfs none /dev && exec {binary} mount source mount");
    let done = output(
        Command::new("unshare")
            .args(["-m", "sh", "-c", &hidden])
            .current_dir(folder.top()),
    );
    assert_eq!(
        said(done),
        "foliocache: there is no /dev/fuse: this kernel has no FUSE, or its module is not loaded\n"
    );
    shell(folder.top(), "chmod 777 source mount");
    let done = output(
        Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--no-new-privs",
            ])
            .args(["--inh-caps=-all", binary, "mount", "source", "mount"])
            .current_dir(folder.top()),
    );
    let line = said(done);
    assert!(
        line == "foliocache: mounting is not permitted: it takes root, or the program fusermount3\n"
            || line.starts_with("foliocache: /dev/fuse may not be opened by this user: ")
            || line.starts_with("foliocache: cannot mount: "),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
}

/// The helper's options are separated by commas. A world-accessible device is in a private tree.
#[test]
#[ignore = "system tier"]
fn a_source_of_any_name_is_mounted_without_root() {
    if no_root_or_fuse() || !installed("fusermount3", &["fuse3"]) {
        return;
    }
    let folder = Folder::public("helper");
    let name = r"one,ro,two\three\\,";
    let source = folder.top().join(name);
    fs::create_dir(&source).unwrap();
    let script = r#"
        mount -t tmpfs none plain
        mknod -m 666 plain/fuse c 10 229
        mount --bind plain/fuse /dev/fuse
        chown 65534 . mount "$2"
        user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        user "$1" mount "$2" mount --background --log-file log
        user touch mount/new
        grep "$PWD/mount" /proc/self/mountinfo
        user fusermount3 -u mount"#;
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-euc", script, "sh"]);
    inside.args([env!("CARGO_BIN_EXE_foliocache"), name]);
    let listed = run(inside.current_dir(folder.top()));
    let shown = format!("{}/{name} ", folder.top().display()).replace('\\', r"\134");
    assert!(listed.contains(&shown), "{listed}");
    assert!(source.join("new").exists());
}

#[test]
#[ignore = "system tier"]
fn a_second_mount_of_another_source_lives_beside_the_first() {
    let (one, two) = (Folder::new("one"), Folder::new("two"));
    let (first, second): (Mounted, Mounted) = (one.mount(&[]), two.mount(&[]));
    fs::write(one.mount_point().join("a"), "1").unwrap();
    fs::write(two.mount_point().join("a"), "2").unwrap();
    first.end_well();
    assert_eq!(fs::read(two.mount_point().join("a")).unwrap(), b"2");
    second.end_well();
}

/// A source that does not answer: another mount whose server is stopped.
#[test]
#[ignore = "system tier"]
fn a_second_signal_gives_up_and_lists_lost_files() {
    let (inner, outer) = (Folder::new("inner"), Folder::new("outer"));
    let below = inner.mount(&[]);
    let above = outer.mount_of(&inner.mount_point(), &[]);
    let mut file = File::create(outer.mount_point().join("stuck")).unwrap();
    file.write_all(b"first").unwrap();
    file.sync_all().unwrap();
    below.signal("STOP");
    file.write_all(&pattern(100_000, 1)).unwrap();
    // Over a source of an unknown kind a close waits for it: also that of the copy which a new process has.
    let closing = std::thread::spawn(move || drop(file));
    std::thread::sleep(Duration::from_millis(500));
    above.signal("TERM");
    above.wait_for_line("writing back");
    wait_for("the progress", || {
        let left = |line: &String| line.contains("writing back, ") && line.ends_with("KiB to go");
        above.lines().iter().any(left)
    });
    above.signal("INT");
    above.wait_for_line("stuck: 97.7 KiB: not written yet");
    assert!(!outer.is_mounted());
    // The kernel lets a process end only when the files it had open are closed, which takes the
    // server.
    below.signal("CONT");
    let ended = above.wait();
    assert_eq!(ended.code, Some(4), "{:?}", ended.lines);
    closing.join().unwrap();
    let given_up = |line: &String| line.contains("SIGINT again: given up");
    assert!(ended.lines.iter().any(given_up), "{:?}", ended.lines);
    below.end_well();
}

#[test]
#[ignore = "system tier"]
fn a_terminal_shows_the_live_line() {
    let folder = Folder::new("line");
    let typescript = folder.top().join("typescript");
    let inside = format!(
        "{} mount source mount --memory 64M",
        env!("CARGO_BIN_EXE_foliocache")
    );
    let mut script = Command::new("script")
        .args(["-qefc", &inside])
        .arg(&typescript)
        .current_dir(folder.top())
        .stdout(std::process::Stdio::null())
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the mount", || folder.is_mounted());
    fs::write(folder.mount_point().join("file"), pattern(3_000_000, 2)).unwrap();
    let shown = || String::from_utf8_lossy(&fs::read(&typescript).unwrap()).into_owned();
    wait_for("the line", || {
        let shown = shown();
        ["of 64 MiB", "hits ", "dirty ", "write "]
            .iter()
            .all(|part| shown.contains(part))
    });
    run(Command::new("umount").arg(folder.mount_point()));
    assert!(script.wait().unwrap().success());
    assert!(shown().contains("everything is written back"));
}
