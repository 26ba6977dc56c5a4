//! The effects of signals on a mount, and their exit codes.
//!
//! Needs FUSE and root.

use crate::common::{
    Folder, foliocache, full_source, goes_on, output, pattern, read, run, shell, wait_for,
};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any test waits: an end before it has another reason.
const NEVER: [&str; 2] = ["--stop-timeout", "3600"];

/// How a line begins that says that stores into mappings may be missing.
const WHAT: &str = "what programs stored into mapped files could not all be taken over";

/// Whether a line reports the file's unwritten data. The filler may have left room for a page or
/// two.
fn names_the_file(line: &str) -> bool {
    line.contains("file: 2") && line.contains(" KiB: ENOSPC")
}

#[test]
#[ignore = "system tier"]
fn usr1_prints_the_statistics() {
    let folder = Folder::new("usr1");
    let mounted = folder.mount(&["--memory", "64M"]);
    fs::write(folder.mount_point().join("file"), pattern(1 << 20, 1)).unwrap();
    // The kernel reports a close after it has returned.
    wait_for("statistics without an open file", || {
        mounted.signal("USR1");
        let lines = mounted.lines();
        lines.iter().any(|line| line.contains("open files 0"))
    });
    let lines = mounted.lines();
    let line = lines.iter().find(|line| line.contains("statistics: "));
    for part in [" of 64 MiB  ", "hits ", "dirty ", "written in all 1 MiB"] {
        assert!(line.unwrap().contains(part), "{line:?}");
    }
    goes_on(&folder);
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn usr2_writes_everything_back() {
    let folder = Folder::new("usr2");
    let mounted = folder.mount(&["--memory", "64M"]);
    let content = pattern(3 << 20, 2);
    fs::write(folder.mount_point().join("file"), &content).unwrap();
    mounted.signal("USR2");
    mounted.wait_for_line("SIGUSR2: everything is written back, ");
    assert!(fs::read(folder.source().join("file")).unwrap() == content);
    goes_on(&folder);
    // Once more, which has nothing to do.
    mounted.signal("USR2");
    wait_for("the second line", || {
        let lines = mounted.lines();
        let done = |line: &&String| line.contains("SIGUSR2: everything is written back, ");
        lines.iter().filter(done).count() == 2
    });
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn usr2_says_what_a_full_source_does_not_take() {
    let (folder, mounted) = full_source("usr2-full", &[]);
    mounted.signal("USR2");
    mounted.wait_for_line("SIGUSR2: not all is written back: ");
    let lines = mounted.lines();
    let line = lines
        .iter()
        .find(|line| line.contains("not all is written"));
    assert!(names_the_file(line.unwrap()), "{lines:?}");
    fs::remove_file(folder.source().join("filler")).unwrap();
    mounted.signal("USR2");
    mounted.wait_for_line("SIGUSR2: everything is written back, ");
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn hup_opens_the_log_file_anew() {
    let folder = Folder::new("rotate");
    fs::create_dir(folder.top().join("logs")).unwrap();
    let [log, old] = ["logs/log", "logs/log.1"].map(|name| folder.top().join(name));
    fs::write(&log, "from before\n").unwrap();
    let arguments = ["--log-file", log.to_str().unwrap(), "-v"];
    let mounted = folder.mount(&arguments);
    assert!(read(&log).starts_with("from before\n"));
    assert!(read(&log).contains(" is mounted on "));
    fs::rename(&log, &old).unwrap();
    mounted.signal("USR1");
    wait_for("the statistics in the old file", || {
        read(&old).contains("statistics: ")
    });
    mounted.signal("HUP");
    wait_for("the new file", || {
        read(&log).contains("SIGHUP: the log file is opened anew")
    });
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o177, 0);
    let length = fs::metadata(&old).unwrap().len();
    mounted.signal("USR1");
    wait_for("the statistics in the new file", || {
        read(&log).contains("statistics: ")
    });
    // It cannot be opened: the old file is kept.
    fs::rename(folder.top().join("logs"), folder.top().join("moved")).unwrap();
    mounted.signal("HUP");
    mounted.wait_for_line("the log goes on in the old file");
    goes_on(&folder);
    mounted.end_well();
    let moved = read(&folder.top().join("moved/log"));
    assert!(moved.contains("the log goes on in the old file"), "{moved}");
    assert!(moved.ends_with("everything is written back\n"), "{moved}");
    assert_eq!(
        fs::metadata(folder.top().join("moved/log.1"))
            .unwrap()
            .len(),
        length
    );
}

#[test]
#[ignore = "system tier"]
fn a_log_file_that_cannot_be_opened_is_refused() {
    let folder = Folder::new("no-log");
    for (path, says) in [
        ("none/log", "none/log: No such file"),
        ("source", "source: Is a directory"),
        ("source/log", "the log file source/log is in SOURCE"),
        ("mount/log", "the log file mount/log is in MOUNTPOINT"),
    ] {
        let mut command = foliocache();
        command.args(["mount", "source", "mount", "--log-file", path]);
        let done = output(command.current_dir(folder.top()));
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{path}: {said}");
        assert!(said.contains(says), "{path}: {said}");
        assert!(!folder.is_mounted());
    }
    shell(folder.top(), "test -z \"$(ls source mount | grep log)\"");
}

#[test]
#[ignore = "system tier"]
fn hup_without_a_log_file_is_ignored() {
    let folder = Folder::new("hup");
    let mounted = folder.mount(&["-vv"]);
    mounted.signal("HUP");
    mounted.wait_for_line("SIGHUP: there is no log file");
    goes_on(&folder);
    mounted.end_well();
}

/// The terminal goes away with the program that shows it, and the kernel sends SIGHUP.
#[test]
#[ignore = "system tier"]
fn a_mount_outlives_its_terminal() {
    let folder = Folder::new("terminal");
    let inside = format!(
        "echo $$ > pid; exec {} mount source mount",
        env!("CARGO_BIN_EXE_foliocache")
    );
    let mut script = Command::new("script")
        .args(["-qefc", &inside, "typescript"])
        .current_dir(folder.top())
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the line", || {
        read(&folder.top().join("typescript")).contains("hits ")
    });
    script.kill().unwrap();
    script.wait().unwrap();
    fs::write(folder.mount_point().join("file"), "after").unwrap();
    // Two rounds of the line, which has nowhere to go.
    std::thread::sleep(Duration::from_millis(1200));
    goes_on(&folder);
    let pid = read(&folder.top().join("pid"));
    run(Command::new("kill").arg(pid.trim()));
    wait_for("the end", || {
        !Path::new("/proc").join(pid.trim()).join("exe").exists()
    });
    assert!(!folder.is_mounted());
    assert_eq!(read(&folder.source().join("file")), "after");
}

#[test]
#[ignore = "system tier"]
fn programs_finish_after_a_signal() {
    let folder = Folder::new("finish");
    let mounted = folder.mount(&NEVER);
    let mut open = File::create(folder.mount_point().join("open")).unwrap();
    open.write_all(b"before, ").unwrap();
    mounted.signal("TERM");
    mounted.wait_for_line("is in use by programs, with 1 open file");
    assert!(!folder.is_mounted());
    assert!(File::open(folder.mount_point().join("open")).is_err());
    open.write_all(b"after").unwrap();
    // None of these is a second signal that ends it.
    mounted.signal("USR1");
    mounted.wait_for_line("statistics: ");
    mounted.signal("USR2");
    mounted.wait_for_line("SIGUSR2: the mount is ending");
    mounted.signal("HUP");
    open.write_all(b", and later").unwrap();
    drop(open);
    let ended = mounted.wait();
    assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
    let found = read(&folder.source().join("open"));
    assert_eq!(found, "before, after, and later");
}

#[test]
#[ignore = "system tier"]
fn a_working_directory_is_waited_for_as_an_open_file_is() {
    let folder = Folder::new("inside");
    let mounted = folder.mount(&NEVER);
    let mut inside = Command::new("sleep")
        .arg("3600")
        .current_dir(folder.mount_point())
        .spawn()
        .unwrap();
    mounted.signal("INT");
    mounted.wait_for_line("is in use by programs, for ");
    inside.kill().unwrap();
    inside.wait().unwrap();
    let ended = mounted.wait();
    assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
}

#[test]
#[ignore = "system tier"]
fn programs_that_do_not_finish_are_cut_off() {
    for cache in ["none", "mapped", "all"] {
        let folder = Folder::new("cut-off");
        let mounted = folder.mount(&["--stop-timeout", "1", "--kernel-cache", cache]);
        let path = folder.mount_point().join("open");
        let mut open = File::create(&path).unwrap();
        open.write_all(b"written before the end").unwrap();
        // A request that is under way when it ends must not keep it.
        let ended = mounted.end("TERM");
        assert_eq!(ended.code, Some(3), "{cache}: {:?}", ended.lines);
        let cut = |line: &String| line.contains("and they are cut off: 1 s are over");
        assert!(ended.lines.iter().any(cut), "{:?}", ended.lines);
        assert!(open.write_all(b"after").is_err());
        assert_eq!(
            read(&folder.source().join("open")),
            "written before the end"
        );
        assert!(!folder.is_mounted());
    }
}

/// Then the kernel cannot be asked for stores into mappings. They come when the last program has
/// finished.
#[test]
#[ignore = "system tier"]
fn mount_unmounted_or_covered_by_others_reports_stores_it_could_not_take_over() {
    for (hide, finishes) in [
        ("umount -l mount", false),
        ("mount -t tmpfs none mount", false),
        ("umount -l mount", true),
    ] {
        let folder = Folder::new("hidden");
        let mounted = folder.mount(&["--stop-timeout", if finishes { "60" } else { "1" }]);
        let mut open = File::create(folder.mount_point().join("open")).unwrap();
        open.write_all(b"written").unwrap();
        shell(folder.top(), hide);
        mounted.signal("USR2");
        let gone = format!(
            "the mount is no longer at {}",
            folder.mount_point().display()
        );
        mounted.wait_for_line(&format!("not all is written back: {WHAT}: {gone}"));
        mounted.signal("TERM");
        if finishes {
            mounted.wait_for_line("is in use by programs, with 1 open file");
            drop(open);
        }
        let ended = mounted.wait();
        assert_eq!(ended.code, Some(if finishes { 0 } else { 1 }), "{hide}");
        let says = |text: &str| ended.lines.iter().any(|line| line.ends_with(text));
        assert_eq!(says(": everything is written back"), finishes, "{hide}");
        assert_eq!(
            says(&format!("foliocache: {WHAT}: {gone}")),
            !finishes,
            "{hide}"
        );
        assert_eq!(read(&folder.source().join("open")), "written");
    }
}

/// The next mount may be at the same place before the last program has finished.
#[test]
#[ignore = "system tier"]
fn a_mount_that_ends_does_not_end_the_next_one() {
    let (one, two) = (Folder::new("old"), Folder::new("next"));
    let first = one.mount(&["--stop-timeout", "3"]);
    let open = File::create(one.mount_point().join("open")).unwrap();
    first.signal("TERM");
    first.wait_for_line("is in use by programs");
    let second = one.mount_of(&two.source(), &[]);
    assert_eq!(first.wait().code, Some(3));
    drop(open);
    // `goes_on` needs no mount: the directory below takes the file too.
    assert!(one.is_mounted());
    goes_on(&one);
    second.end_well();
    assert!(!one.is_mounted());
}

#[test]
#[ignore = "system tier"]
fn a_mount_that_ends_does_not_end_the_one_below() {
    // The second has a program inside that is cut off.
    for (busy, code) in [(false, 0), (true, 3)] {
        let folder = Folder::new("below");
        let marker = folder.mount_point().join("marker");
        mount_tmpfs(&folder);
        let below = File::open(folder.mount_point()).unwrap();
        let mounted = folder.mount(&["--stop-timeout", "1"]);
        // The mount point has to be empty at first.
        fs::write(
            format!("/proc/self/fd/{}/marker", below.as_raw_fd()),
            "below",
        )
        .unwrap();
        // An open directory would keep it mounted.
        drop(below);
        assert!(!marker.exists());
        let open = busy.then(|| File::create(folder.mount_point().join("open")).unwrap());
        let ended = mounted.end("TERM");
        drop(open);
        assert_eq!(ended.code, Some(code), "{:?}", ended.lines);
        assert_eq!(read(&marker), "below");
        run(Command::new("umount").arg(folder.mount_point()));
        assert!(!folder.is_mounted());
    }
}

/// The kernel gives the next mount the device number of the previous one.
#[test]
#[ignore = "system tier"]
fn a_replaced_mount_does_not_end_its_successor() {
    let folder = Folder::new("replaced");
    let marker = folder.mount_point().join("marker");
    let mounted = folder.mount(&[]);
    // Before the process has noticed that its own is gone.
    shell(
        folder.top(),
        "umount mount; mount -t tmpfs -o size=1M none mount; echo next > mount/marker",
    );
    assert_eq!(mounted.wait().code, Some(0));
    assert_eq!(read(&marker), "next\n");
    run(Command::new("umount").arg(folder.mount_point()));
    assert!(!folder.is_mounted());
}

fn mount_tmpfs(folder: &Folder) {
    run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1M", "none"])
        .arg(folder.mount_point()));
}

#[test]
#[ignore = "system tier"]
fn data_that_finds_room_within_the_stop_timeout_is_written() {
    let (folder, mounted) = full_source("room", &NEVER);
    mounted.signal("TERM");
    mounted.wait_for_line("trying again for ");
    fs::remove_file(folder.source().join("filler")).unwrap();
    let ended = mounted.wait();
    assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
    assert_eq!(read(&folder.source().join("file")), "x".repeat(300_000));
}

#[test]
#[ignore = "system tier"]
fn data_that_finds_no_room_is_named() {
    let (folder, mounted) = full_source("no-room", &["--stop-timeout", "2"]);
    let begun = Instant::now();
    let ended = mounted.end("TERM");
    assert_eq!(ended.code, Some(4), "{:?}", ended.lines);
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let lost = |line: &String| line.contains("lost: ") && names_the_file(line);
    assert!(ended.lines.iter().any(lost), "{:?}", ended.lines);
    assert!(!folder.is_mounted());
}

/// The source is another mount whose server is stopped. With a program that waits for the source, and without one.
#[test]
#[ignore = "system tier"]
fn a_hung_source_is_given_up_and_lost_files_are_listed() {
    for busy in [false, true] {
        let (inner, outer) = (Folder::new("hung-below"), Folder::new("hung"));
        fs::write(inner.source().join("unread"), pattern(1 << 20, 2)).unwrap();
        let below = inner.mount(&[]);
        let above = outer.mount_of(&inner.mount_point(), &["--stop-timeout", "2"]);
        let mut file = File::create(outer.mount_point().join("stuck")).unwrap();
        file.write_all(b"first").unwrap();
        file.sync_all().unwrap();
        let unread = File::open(outer.mount_point().join("unread")).unwrap();
        below.signal("STOP");
        file.write_all(&pattern(100_000, 1)).unwrap();
        // Over a source of an unknown kind a close waits for it.
        let closing = std::thread::spawn(move || drop(file));
        std::thread::sleep(Duration::from_millis(500));
        let mut cat = busy.then(|| {
            let mut cat = Command::new("cat");
            cat.stdin(unread.try_clone().unwrap()).stdout(Stdio::null());
            cat.stderr(Stdio::null()).spawn().unwrap()
        });
        drop(unread);
        let begun = Instant::now();
        above.signal("TERM");
        above.wait_for_line("the source has taken nothing for 5 s: given up");
        assert!(begun.elapsed() >= Duration::from_secs(5));
        above.wait_for_line("stuck: 97.7 KiB: not written yet");
        assert!(!outer.is_mounted());
        if let Some(cat) = &mut cat {
            // It is cut off while the source still hangs.
            let mut status = None;
            wait_for("the program", || {
                status = cat.try_wait().unwrap();
                status.is_some()
            });
            assert!(!status.unwrap().success());
        }
        // The kernel lets a process end only when the files it had open are closed, which takes the server.
        below.signal("CONT");
        let ended = above.wait();
        assert_eq!(ended.code, Some(4), "{:?}", ended.lines);
        closing.join().unwrap();
        below.end_well();
    }
}
