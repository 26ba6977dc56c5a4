//! An operator's day: fstab, supervision, the background, restarts, options, read-only sources.
//!
//! Needs FUSE and root.

use crate::common::memcg::{MemoryGroup, no_memory_cgroups};
use crate::common::{
    Folder, Mounted, foliocache, goes_on, no_root_or_fuse, output, read, run, shell, wait_for,
};
use foliocache_sys::fd::xattr::{self, XattrMode};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The user that is not root.
const USER: u32 = 1000;

/// Stands for systemd: the other end of `NOTIFY_SOCKET`.
struct Supervisor {
    socket: UnixDatagram,
    name: String,
}

impl Supervisor {
    fn new(folder: &Folder) -> Supervisor {
        let path = folder.top().join("notify");
        let _ = fs::remove_file(&path);
        Supervisor::with(
            UnixDatagram::bind(&path).unwrap(),
            path.display().to_string(),
        )
    }

    fn with_an_abstract_name() -> Supervisor {
        let name = format!("foliocache-operator-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        Supervisor::with(
            UnixDatagram::bind_addr(&address).unwrap(),
            format!("@{name}"),
        )
    }

    fn with(socket: UnixDatagram, name: String) -> Supervisor {
        let patience = Some(Duration::from_secs(60));
        socket.set_read_timeout(patience).unwrap();
        Supervisor { socket, name }
    }

    fn supervise<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("NOTIFY_SOCKET", &self.name)
    }

    /// The next message.
    fn message(&self) -> String {
        let mut buffer = [0; 1000];
        let n = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    /// The process that says that it is ready.
    fn ready(&self) -> Daemon {
        let message = self.message();
        assert!(message.starts_with("READY=1\nMAINPID="), "{message}");
        let pid = message.lines().nth(1).unwrap().strip_prefix("MAINPID=");
        let pid = pid.unwrap().parse().unwrap();
        Daemon { pid }
    }
}

/// A mount that is no child of the test; killed if the test does not end it.
struct Daemon {
    pid: u32,
}

impl Daemon {
    fn proc(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn link(&self, name: &str) -> PathBuf {
        fs::read_link(self.proc(name)).unwrap()
    }

    fn signal(&self, name: &str) {
        run(Command::new("kill").args(["-s", name, &self.pid.to_string()]));
    }

    fn is_gone(&self) -> bool {
        !self.proc("exe").exists()
    }

    /// Ends it and waits for that.
    fn end(self) {
        self.signal("TERM");
        wait_for("the end of the mount", || self.is_gone());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.is_gone() {
            let pid = self.pid.to_string();
            let _ = Command::new("kill").args(["-s", "KILL", &pid]).status();
        }
    }
}

/// The standard error of a command that ended with `code`.
fn said(command: &mut Command, code: i32) -> String {
    let done = output(command);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{command:?}: {said}");
    said
}

/// A command by another user.
fn as_user(uid: u32, command: &[&str]) -> Command {
    let mut setpriv = Command::new("setpriv");
    let uid = uid.to_string();
    setpriv.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]);
    setpriv.args(command);
    setpriv
}

#[test]
#[ignore = "system tier"]
fn background_returns_once_the_mount_serves() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("background");
    let supervisor = Supervisor::new(&folder);
    // All places are relative to a directory that the mount leaves.
    let words = ["mount", "source", "mount", "--background"];
    for log in [Some("log"), None] {
        let mut command = foliocache();
        command.args(words).current_dir(folder.top());
        command.args(log.map(|log| ["--log-file", log]).into_iter().flatten());
        // This waits for the end of both streams too.
        let lines = said(supervisor.supervise(&mut command), 0);
        assert!(lines.contains(" is mounted on "), "{lines}");
        assert!(folder.is_mounted());
        let daemon = supervisor.ready();
        let stat = read(&daemon.proc("stat"));
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let (session, terminal) = (fields[3], fields[4]);
        let own = read(Path::new("/proc/self/stat"));
        let own = own.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
        assert_ne!(session, own);
        assert_ne!(session, daemon.pid.to_string(), "it could get a terminal");
        assert_eq!(terminal, "0");
        let null = Path::new("/dev/null");
        let log = log.map(|log| folder.top().canonicalize().unwrap().join(log));
        assert_eq!(daemon.link("cwd"), Path::new("/"));
        assert_eq!([daemon.link("fd/0"), daemon.link("fd/1")], [null, null]);
        assert_eq!(daemon.link("fd/2"), log.as_deref().unwrap_or(null));
        goes_on(&folder);
        if let Some(log) = &log {
            fs::rename(log, folder.top().join("log.1")).unwrap();
            daemon.signal("HUP");
            wait_for("the new log", || daemon.link("fd/2") == *log);
            assert!(supervisor.message().starts_with("RELOADING=1"));
            assert_eq!(supervisor.message(), "READY=1");
        }
        daemon.end();
        assert!(supervisor.message().starts_with("STOPPING=1"));
        assert!(!folder.is_mounted());
        if let Some(log) = &log {
            // Standard error is the same file, and no line stands there twice.
            let log = read(log);
            assert_eq!(log.matches("SIGTERM: writing back").count(), 1, "{log}");
        }
    }
}

#[test]
#[ignore = "system tier"]
fn failures_of_a_background_mount_are_reported_to_the_caller() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("background-fails");
    fs::create_dir(folder.top().join("full")).unwrap();
    fs::write(folder.top().join("full/file"), "").unwrap();
    for (words, says) in [
        (&["none", "mount"][..], "SOURCE none does not exist"),
        (&["source", "full"], "full is not empty"),
        (
            &["source", "mount", "--memory", "x"],
            "--memory x is no size",
        ),
        (
            &["source", "mount", "--log-file", "source/log"],
            "the log file source/log is in SOURCE",
        ),
    ] {
        let mut command = foliocache();
        command.args(["mount", "--background"]).args(words);
        let said = said(command.current_dir(folder.top()), 2);
        assert!(said.contains(says), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // Errors that only the kernel, or the source's lock, can raise.
    let mounted = folder.mount(&[]);
    let other = Folder::new("background-fails-too");
    let mut command = foliocache();
    command.arg("mount").arg(folder.source());
    command.arg(other.mount_point()).arg("--background");
    let said = said(&mut command, 2);
    assert!(said.contains("--force"), "{said}");
    assert!(!other.is_mounted());
    mounted.end_well();
}

/// A starter that was killed before the mount serves leaves no mount behind.
#[test]
#[ignore = "system tier"]
fn background_mount_ends_if_its_starter_was_ended() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("background-alone");
    let lock = File::open(folder.source()).unwrap();
    lock.lock().unwrap();
    let log = folder.top().join("log");
    let arguments = ["--background", "--log-file", log.to_str().unwrap()];
    let mut command = folder.mount_command(&arguments);
    let mut starter = command.stderr(Stdio::null()).spawn().unwrap();
    wait_for("the lock", || {
        read(&log).contains("maybe by a mount that is ending")
    });
    starter.kill().unwrap();
    starter.wait().unwrap();
    lock.unlock().unwrap();
    wait_for("the end", || {
        read(&log).contains("the command that started this mount was ended")
    });
    wait_for("the mount to go", || !folder.is_mounted());
}

#[test]
#[ignore = "system tier"]
fn ready_fd_gets_a_newline_and_is_closed() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("ready-fd");
    let supervisor = Supervisor::new(&folder);
    run(Command::new("mkfifo").arg(folder.top().join("ready")));
    for more in ["", "--background"] {
        let script = format!(
            "exec {} mount source mount --ready-fd 3 {more} 3>ready",
            env!("CARGO_BIN_EXE_foliocache")
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(folder.top());
        command.stderr(Stdio::null());
        let mut started = supervisor.supervise(&mut command).spawn().unwrap();
        let mut told = String::new();
        // Ends when the last process that has the other end closes it.
        let mut ready = File::open(folder.top().join("ready")).unwrap();
        ready.read_to_string(&mut told).unwrap();
        assert_eq!(told, "\n");
        assert!(folder.is_mounted());
        goes_on(&folder);
        supervisor.ready().end();
        assert!(supervisor.message().starts_with("STOPPING=1"));
        assert!(started.wait().unwrap().success());
    }
    for (number, says) in [
        ("9", "--ready-fd 9: Bad file descriptor"),
        ("1", "--ready-fd 1 is a standard stream"),
    ] {
        let said = said(&mut folder.mount_command(&["--ready-fd", number]), 2);
        assert!(said.contains(says), "{said}");
    }
}

/// Environments of the processes that a process started. Before `exec` a child still shows that of its parent.
fn environments_of_children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = tasks.map(|task| read(&task.unwrap().path().join("children")));
    let children: Vec<_> = children.collect();
    let pids = children.iter().flat_map(|line| line.split_whitespace());
    let environ = |pid: &str| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let runs =
        |pid: &&str| read(Path::new(&format!("/proc/{pid}/cmdline"))).contains("write-back-mapped");
    pids.filter(runs)
        .map(|pid| String::from_utf8_lossy(&environ(pid)).into_owned())
        .filter(|text| !text.is_empty())
        .collect()
}

#[test]
#[ignore = "system tier"]
fn supervisor_is_told_of_readiness_reloads_and_the_end() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("supervised");
    for supervisor in [
        Supervisor::new(&folder),
        Supervisor::with_an_abstract_name(),
    ] {
        let mut command = folder.mount_command(&["--stop-timeout", "60"]);
        let mounted = Mounted::start(supervisor.supervise(&mut command));
        let ready = supervisor.message();
        let point = folder.mount_point().canonicalize().unwrap();
        assert_eq!(
            ready,
            format!(
                "READY=1\nMAINPID={}\nSTATUS=serving {}",
                mounted.pid(),
                point.display()
            )
        );
        mounted.signal("HUP");
        assert!(
            supervisor
                .message()
                .starts_with("RELOADING=1\nMONOTONIC_USEC=")
        );
        assert_eq!(supervisor.message(), "READY=1");
        let mut open = File::create(folder.mount_point().join("open")).unwrap();
        mounted.signal("TERM");
        let stopping = supervisor.message();
        let more = "STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=";
        assert!(stopping.starts_with(more), "{stopping}");
        // The child that takes over stores of programs into mappings.
        let mut children = Vec::new();
        wait_for("the other process", || {
            children = environments_of_children(mounted.pid());
            !children.is_empty()
        });
        for environment in children {
            assert!(environment.contains("PATH="), "{environment}");
            assert!(!environment.contains("NOTIFY_SOCKET"), "{environment}");
        }
        // It asks for more time for as long as programs and the source need it.
        let stopping = supervisor.message();
        assert!(stopping.starts_with(more), "{stopping}");
        assert!(stopping.contains("waiting for programs"), "{stopping}");
        open.write_all(b"data").unwrap();
        drop(open);
        let ended = mounted.wait();
        assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
    }
}

#[test]
#[ignore = "system tier"]
fn supervisor_that_cannot_be_told_is_named_and_the_mount_serves() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("no-supervisor");
    let mut command = folder.mount_command(&[]);
    let mounted = Mounted::start(command.env("NOTIFY_SOCKET", "vsock:2:1"));
    mounted.wait_for_line("NOTIFY_SOCKET cannot be used");
    goes_on(&folder);
    mounted.end_well();
    // A socket without a listener.
    let mut command = folder.mount_command(&[]);
    let nobody = folder.top().join("nobody");
    let mounted = Mounted::start(command.env("NOTIFY_SOCKET", &nobody));
    mounted.wait_for_line("the supervisor cannot be told");
    goes_on(&folder);
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn supervisor_restarts_a_mount_that_was_killed() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("restart");
    let supervisor = Supervisor::new(&folder);
    let start = || {
        let mut command = folder.mount_command(&["--background"]);
        let said = said(supervisor.supervise(&mut command), 0);
        (supervisor.ready(), said)
    };
    let (first, _) = start();
    let file = folder.mount_point().join("file");
    let mut open = File::create(&file).unwrap();
    open.write_all(b"synced").unwrap();
    open.sync_all().unwrap();
    first.signal("KILL");
    wait_for("its end", || first.is_gone());
    drop(open);
    let (second, lines) = start();
    assert!(lines.contains("was left behind by a foliocache"), "{lines}");
    assert_eq!(read(&file), "synced");
    goes_on(&folder);
    second.end();
    assert!(!folder.is_mounted());
}

/// umount(8) returns before everything is written back, and the source is locked until then.
#[test]
#[ignore = "system tier"]
fn mount_waits_for_the_one_before_to_end() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("wait");
    let lock = File::open(folder.source()).unwrap();
    lock.lock().unwrap();
    let waits = "is in use, maybe by a mount that is ending";
    let mut mounted = Mounted::begin(&mut folder.mount_command(&[]));
    mounted.wait_for_line(waits);
    assert!(!folder.is_mounted());
    drop(lock);
    mounted.wait_until_mounted();
    mounted.end_well();
    // A signal ends the wait.
    let lock = File::open(folder.source()).unwrap();
    lock.lock().unwrap();
    let mounted = Mounted::begin(&mut folder.mount_command(&[]));
    mounted.wait_for_line(waits);
    let ended = mounted.end("INT");
    assert_eq!(ended.code, Some(2));
    let lines = ended.lines.concat();
    assert!(lines.contains("SIGINT: not mounted"), "{lines}");
    drop(lock);
    // One that does not end is waited for in vain, and one that is still there is not waited for.
    let lock = File::open(folder.source()).unwrap();
    lock.lock().unwrap();
    let begun = Instant::now();
    let line = said(&mut folder.mount_command(&[]), 2);
    assert!(line.contains("--force"), "{line}");
    assert!(begun.elapsed() >= Duration::from_secs(10));
    drop(lock);
    let mounted = folder.mount(&[]);
    let other = Folder::new("wait-beside");
    let mut command = foliocache();
    command.arg("mount").arg(folder.source());
    let begun = Instant::now();
    let line = said(command.arg(other.mount_point()), 2);
    assert!(line.contains("--force"), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(9));
    mounted.end_well();
}

/// The place where mount(8) looks for programs has one more, seen from a mount namespace of the script's own.
const WITH_A_HELPER: &str = r#"
sbin=$(readlink -f /sbin)
mount -t overlay -o "lowerdir=$PWD/helpers:$sbin" none "$sbin"
trap 'umount -l "$PWD/mount" 2>/dev/null || true' EXIT
ended() {
    until test "$(grep -c 'everything is written back' log)" = "$1"; do sleep 0.05; done
}
"#;

fn with_a_helper(folder: &Folder, script: &str) {
    fs::create_dir_all(folder.top().join("helpers")).unwrap();
    let helper = folder.top().join("helpers/mount.fuse.foliocache");
    symlink(env!("CARGO_BIN_EXE_foliocache"), helper).unwrap();
    let script = format!("{WITH_A_HELPER}{script}");
    run(Command::new("unshare")
        .args(["-m", "--propagation", "private", "timeout", "100"])
        .args(["sh", "-euxc", &script])
        .current_dir(folder.top()));
}

#[test]
#[ignore = "system tier"]
fn fstab_line_is_mounted_by_mount_and_unmounted_by_umount() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::public("fstab");
    let script = r#"
        options="memory=64M,allow_other,noexec,noatime,nofail,_netdev,x-systemd.automount,log_file=$PWD/log"
        echo "$PWD/source $PWD/mount fuse.foliocache $options 0 0" > fstab
        mount -T fstab "$PWD/mount"
        grep "^$PWD/source $PWD/mount fuse.foliocache rw,.*noexec" /proc/self/mounts
        grep "memory bound 64 MiB" log
        echo data > mount/file
        umount "$PWD/mount"
        # At once again: it waits until the first one has ended.
        mount -T fstab "$PWD/mount"
        test "$(cat mount/file)" = data
        ! grep PANIC log
        umount "$PWD/mount"
        ended 2
        test "$(cat source/file)" = data
        # Without fstab, read-only, with the flags of mount.
        mount -v -n -r -t fuse.foliocache -o "log_file=$PWD/log" "$PWD/source" "$PWD/mount"
        grep "^$PWD/source $PWD/mount fuse.foliocache ro," /proc/self/mounts
        ! touch mount/other
        umount "$PWD/mount"
        ended 3
    "#;
    with_a_helper(&folder, script);
}

#[test]
#[ignore = "system tier"]
fn options_that_mount_passes_on_are_refused_or_ignored_as_it_says() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::public("mount-options");
    let script = r#"
        what="-t fuse.foliocache $PWD/source $PWD/mount"
        code=0
        mount -o no_such $what 2> said || code=$?
        test $code = 2
        grep "error: -o no_such is not known" said
        mount -f $what
        mount -o remount $what 2> said && exit 1
        ! mountpoint -q mount
        mount -s -o "no_such,log_file=$PWD/log" $what 2> said
        grep "no_such is not known.*: ignored" said
        mount -o remount,ro "$PWD/mount" 2> said && exit 1
        grep "a mount is not changed in place" said
        umount "$PWD/mount"
        ended 1
        # As mount.fuse calls it for foliocache#/source.
        helpers/../foliocache "$PWD/source" "$PWD/mount" -o "rw,dev,suid,log_file=$PWD/log"
        mountpoint mount
        umount "$PWD/mount"
        ended 2
    "#;
    let program = folder.top().join("foliocache");
    symlink(env!("CARGO_BIN_EXE_foliocache"), program).unwrap();
    with_a_helper(&folder, script);
}

#[test]
#[ignore = "system tier"]
fn source_that_is_read_only_is_mounted_read_only() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("ro");
    for remount in ["remount,ro", "remount,bind,ro"] {
        shell(
            folder.top(),
            "mount -t tmpfs none source; echo data > source/file",
        );
        run(Command::new("mount")
            .args(["-o", remount])
            .arg(folder.source()));
        let mounted = folder.mount(&["-o", "rw"]);
        let lines = mounted.lines().join("\n");
        assert!(
            lines.contains("is read-only, so the mount is, too"),
            "{lines}"
        );
        assert!(lines.contains("mount read-only; memory bound"), "{lines}");
        let file = folder.mount_point().join("file");
        assert_eq!(read(&file), "data\n");
        let refused = File::create(folder.mount_point().join("new")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(File::options().write(true).open(&file).is_err());
        // It needs no lock: another one may be beside it.
        let other = Folder::new("ro-too");
        other.mount_of(&folder.source(), &[]).end_well();
        mounted.end_well();
        run(Command::new("umount").arg(folder.source()));
    }
    // One that can be written is not.
    let mounted = folder.mount(&[]);
    let lines = mounted.lines().join("\n");
    assert!(!lines.contains("read-only"), "{lines}");
    mounted.end_well();
}

/// An access control list that lets one user do everything.
fn list_for(user: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let [owner, named, group, mask, other] = [0x01, 0x02, 0x04, 0x10, 0x20];
    let entries: [(u16, u16, u32); 5] = [
        (owner, 7, NOBODY),
        (named, 7, user),
        (group, 0, NOBODY),
        (mask, 7, NOBODY),
        (other, 0, NOBODY),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
#[ignore = "system tier"]
fn owners_and_modes_are_shown_as_options_say() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::public("shown");
    let source = folder.source();
    fs::write(source.join("roots"), "roots").unwrap();
    fs::set_permissions(source.join("roots"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(source.join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let options = format!("uid={USER},gid=7,umask=027,allow_other,noexec,fsname=of-an-operator");
    let mounted = folder.mount(&["-o", &options]);
    let inside = folder.mount_point();
    for name in ["roots", "dir", "script", "."] {
        let about = fs::metadata(inside.join(name)).unwrap();
        let shown = (about.uid(), about.gid(), about.mode() & 0o7777);
        assert_eq!(shown, (USER, 7, 0o750), "{name}");
    }
    let mounts = read(Path::new("/proc/self/mounts"));
    assert!(mounts.contains("of-an-operator "), "{mounts}");
    let at = |name: &str| inside.join(name).display().to_string();
    // The kernel checks the shown permissions, so another user may not write.
    run(as_user(USER, &["tee", "-a", &at("roots")]).stdin(Stdio::null()));
    assert_eq!(run(&mut as_user(USER, &["cat", &at("roots")])), "roots");
    for uid in [USER + 1, 65534] {
        let said = said(&mut as_user(uid, &["cat", &at("roots")]), 1);
        assert!(said.contains("Permission denied"), "{said}");
    }
    // A new file belongs to its creator, and is shown like all others.
    run(&mut as_user(USER, &["touch", &at("dir/new")]));
    let [new, seen] = [&source, &inside].map(|top| fs::metadata(top.join("dir/new")).unwrap());
    assert_eq!((new.uid(), new.gid()), (USER, USER));
    assert_eq!(
        (seen.uid(), seen.gid(), seen.mode() & 0o7777),
        (USER, 7, 0o750)
    );
    // A change of mode reaches the source, but gives no one root's privileges.
    run(&mut as_user(USER, &["chmod", "4711", &at("roots")]));
    let roots = fs::metadata(source.join("roots")).unwrap();
    assert_eq!((roots.uid(), roots.mode() & 0o7777), (0, 0o711));
    assert_eq!(fs::metadata(at("roots")).unwrap().mode() & 0o7777, 0o750);
    // No list lets in whom the mode keeps out.
    let script = File::open(source.join("script")).unwrap();
    let name = OsStr::new("system.posix_acl_access");
    xattr::set(script.as_fd(), name, &list_for(USER + 1), XattrMode::Set).unwrap();
    said(&mut as_user(USER + 1, &["cat", &at("script")]), 1);
    let refused = Command::new(at("script")).status().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn memory_in_percent_refers_to_the_cgroup_limit() {
    if no_root_or_fuse() || no_memory_cgroups() {
        return;
    }
    let folder = Folder::new("percent");
    let mounted = folder.mount(&["--memory", "1%"]);
    let lines = mounted.lines().join("\n");
    assert!(lines.contains(" of this machine), fixed base"), "{lines}");
    mounted.end_well();
    let group = MemoryGroup::new("percent");
    group.limit(1 << 30);
    let command = folder.mount_command(&["--memory", "50%"]);
    let mounted = Mounted::start(&mut group.run(&command));
    let lines = mounted.lines().join("\n");
    let says = "memory bound 512 MiB (50 % of the 1 GiB of the memory cgroup), fixed base";
    assert!(lines.contains(says), "{lines}");
    // Of the mount's group, not of the group that asks.
    let mut set = foliocache();
    set.arg("set").arg(folder.mount_point()).arg("memory=25%");
    let said = run(&mut set);
    let says = "memory bound 256 MiB (25 % of the 1 GiB of the memory cgroup), was 512 MiB";
    assert!(said.contains(says), "{said}");
    mounted.end_well();
}
