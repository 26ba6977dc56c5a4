//! `foliocache status` and `set`, the figures for Prometheus, and a mount's log messages.
//!
//! Needs FUSE and root.

use crate::common::{Folder, Mounted, foliocache, full_source, output, pattern, run, wait_for};
use foliocache_sys::dir::mount::mount_at;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn status(place: &Path) -> Value {
    let text = run(foliocache().arg("status").arg(place).arg("--json"));
    serde_json::from_str(&text).unwrap()
}

fn number(status: &Value, name: &str) -> f64 {
    let value = status[name].as_f64();
    value.unwrap_or_else(|| panic!("no number {name} in {status:#}"))
}

/// The exit status and the line of a command that fails.
fn refused(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    (output.status.code(), line)
}

fn set(place: &Path, setting: &str) -> Command {
    let mut command = foliocache();
    command.arg("set").arg(place).arg(setting);
    command
}

fn drop_kernel_cache() {
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
}

#[test]
#[ignore = "system tier"]
fn status_shows_the_activity_of_a_mount() {
    let folder = Folder::new("status");
    let content = pattern(16 << 20, 1);
    fs::write(folder.source().join("file"), &content).unwrap();
    let mounted = folder.mount(&["--memory", "64M", "--kernel-cache", "none"]);
    let place = folder.mount_point();
    assert_eq!(fs::read(place.join("file")).unwrap(), content);
    let cold = status(&place);
    assert!(number(&cold, "hit_ratio") < 0.1, "{cold:#}");
    let seen = number(&cold, "misses") + number(&cold, "readahead_first_uses");
    assert!(seen >= 4096.0 * 0.9, "{cold:#}");
    for _ in 0..9 {
        assert_eq!(fs::read(place.join("file")).unwrap(), content);
    }
    let warm = status(&place);
    assert!(number(&warm, "hit_ratio") > 0.8, "{warm:#}");
    assert_eq!(warm["state"], "serving");
    assert_eq!(warm["kernel_cache"], "none");
    assert_eq!(warm["read_only"], false);
    assert_eq!(warm["pid"], mounted.pid());
    assert_eq!(warm["source"], folder.source().to_str().unwrap());
    assert_eq!(warm["mount_point"], place.to_str().unwrap());
    assert_eq!(number(&warm, "memory_limit_bytes"), f64::from(64 << 20));
    assert!(number(&warm, "cached_bytes") >= f64::from(16 << 20));
    assert!(number(&warm, "memory_bytes") >= number(&warm, "cached_bytes"));
    assert!(number(&warm, "source_read_bytes") >= f64::from(16 << 20));
    assert!(number(&warm, "source_read_bytes") <= f64::from(20 << 20));
    assert_eq!(number(&warm, "read_bytes"), f64::from(160 << 20));
    assert_eq!(warm["failed_files"], Value::Array(Vec::new()));
    let open = fs::File::open(place.join("file")).unwrap();
    assert_eq!(number(&status(&place), "open_files"), 1.0);
    drop(open);

    let text = run(foliocache().arg("status").arg(&place));
    let first = text.lines().next().unwrap();
    let places = format!(
        "{} on {}, serving, ",
        folder.source().display(),
        place.display()
    );
    assert!(first.starts_with(&places), "{text}");
    for part in [
        " of 64 MiB",
        "hit ratio ",
        "kernel cache ",
        "throttled ",
        "requests ",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // By another name of the place, and from inside.
    let link = folder.top().join("link");
    std::os::unix::fs::symlink(&place, &link).unwrap();
    assert_eq!(status(&link)["pid"], mounted.pid());
    let here = run(foliocache()
        .args(["status", ".", "--json"])
        .current_dir(&place));
    assert!(here.contains("\"pid\""), "{here}");
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn status_of_a_directory_without_a_mount_is_an_error() {
    let folder = Folder::new("no-status");
    let ask = |place: &Path| refused(foliocache().arg("status").arg(place));
    let (exit, line) = ask(&folder.mount_point());
    assert_eq!(exit, Some(2));
    assert!(line.contains("nothing is mounted at "), "{line}");
    let (exit, line) = ask(&folder.top().join("absent"));
    assert_eq!(exit, Some(2));
    assert!(line.contains("absent: "), "{line}");
    let (exit, line) = ask(Path::new("/proc"));
    assert_eq!(exit, Some(2));
    assert!(line.contains("no mount of foliocache"), "{line}");
}

/// The socket of the mount at `place`.
fn socket_of(place: &Path) -> PathBuf {
    let mounted = mount_at(place).unwrap().unwrap();
    let (major, minor) = mounted.device;
    Path::new("/run/foliocache").join(format!("mount-{major}-{minor}.sock"))
}

#[test]
#[ignore = "system tier"]
fn the_socket_of_a_killed_mount_stays_until_the_place_is_mounted_again() {
    let (folder, beside) = (Folder::new("stale"), Folder::new("stale-beside"));
    let mounted = folder.mount(&[]);
    let socket = socket_of(&folder.mount_point());
    let about = fs::metadata("/run/foliocache").unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o700);
    let about = fs::metadata(&socket).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    mounted.signal("KILL");
    mounted.wait();
    let ask = || refused(foliocache().arg("status").arg(folder.mount_point()));
    let (exit, line) = ask();
    assert_eq!(exit, Some(1));
    assert!(line.contains("has ended: unmount it"), "{line}");
    // A mount that starts removes the sockets of mounts that are gone, and no other.
    let another = beside.mount(&[]);
    let (_, line) = ask();
    assert!(line.contains("has ended: unmount it"), "{line}");
    another.end_well();

    let mounted = folder.mount(&[]);
    assert_eq!(status(&folder.mount_point())["pid"], mounted.pid());
    let socket = socket_of(&folder.mount_point());
    let inode = fs::metadata(&socket).unwrap().ino();
    mounted.end_well();
    // Another mount may have the number by now.
    let about = fs::metadata(&socket);
    assert!(about.map_or(true, |about| about.ino() != inode));
}

#[test]
#[ignore = "system tier"]
fn the_bound_is_changed_while_the_mount_goes_on() {
    let folder = Folder::new("set");
    let content = pattern(48 << 20, 2);
    fs::write(folder.source().join("file"), &content).unwrap();
    let mounted = folder.mount(&["--memory", "64M", "--kernel-cache", "none"]);
    let place = folder.mount_point();
    assert!(fs::read(place.join("file")).unwrap() == content);
    assert!(number(&status(&place), "memory_bytes") > f64::from(40 << 20));
    let said = run(&mut set(&place, "memory=16M"));
    assert!(
        said.contains("memory bound 16 MiB, was 64 MiB; in use "),
        "{said}"
    );
    wait_for("the smaller bound", || {
        number(&status(&place), "memory_bytes") <= f64::from(16 << 20)
    });
    let now = status(&place);
    assert_eq!(number(&now, "memory_limit_bytes"), f64::from(16 << 20));
    assert!(fs::read(place.join("file")).unwrap() == content);
    let said = run(&mut set(&place, "memory=1%"));
    assert!(said.contains("was 16 MiB"), "{said}");
    for (setting, exit, says) in [
        ("memory=1K", 2, "is too little: at least "),
        ("memory=90T", 2, " of this machine"),
        ("memory=much", 2, "is no size"),
        ("colour=red", 2, "only memory=SIZE can be set"),
        ("memory", 2, "only memory=SIZE can be set"),
    ] {
        let (code, line) = refused(&mut set(&place, setting));
        assert_eq!(code, Some(exit), "{line}");
        assert!(line.contains(says), "{line}");
    }
    mounted.end_well();
}

/// A stopped mount. The drop continues it, also in a failing test: processes that wait for it would
/// never end.
struct Stopped<'a>(&'a Mounted);

impl Stopped<'_> {
    fn new(mounted: &Mounted) -> Stopped<'_> {
        mounted.signal("STOP");
        Stopped(mounted)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}

#[test]
#[ignore = "system tier"]
fn status_answers_while_the_source_hangs() {
    let (inner, outer) = (Folder::new("status-below"), Folder::new("status-hung"));
    fs::write(inner.source().join("unread"), pattern(1 << 20, 2)).unwrap();
    let below = inner.mount(&[]);
    let above = outer.mount_of(&inner.mount_point(), &["--stop-timeout", "1"]);
    let place = outer.mount_point();
    let mut file = fs::File::create(place.join("stuck")).unwrap();
    file.write_all(&pattern(100_000, 1)).unwrap();
    file.sync_all().unwrap();
    let stopped = Stopped::new(&below);
    // Either may wait for the source.
    let writing = std::thread::spawn(move || file.write_all(&pattern(100_000, 3)));
    let reading = std::thread::spawn({
        let unread = place.join("unread");
        move || fs::read(unread)
    });
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..5 {
        let begun = Instant::now();
        let now = status(&place);
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(
            (&now["state"], &now["pid"]),
            (&"serving".into(), &above.pid().into())
        );
    }
    assert!(!reading.is_finished(), "the source hangs");
    above.wait_for_line("the store has answered nothing for 10");
    let begun = Instant::now();
    let said = run(&mut set(&place, "memory=128M"));
    assert!(said.contains("memory bound 128 MiB, was 512 MiB"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    drop(stopped);
    writing.join().unwrap().unwrap();
    assert_eq!(reading.join().unwrap().unwrap(), pattern(1 << 20, 2));
    above.end_well();
    below.end_well();
}

#[test]
#[ignore = "system tier"]
fn status_of_a_stopped_process_gives_up_and_says_so() {
    let folder = Folder::new("status-stopped");
    let mounted = folder.mount(&[]);
    mounted.signal("STOP");
    let begun = Instant::now();
    let (exit, line) = refused(foliocache().arg("status").arg(folder.mount_point()));
    assert_eq!(exit, Some(1));
    assert!(line.contains("may be stopped"), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(30));
    mounted.signal("CONT");
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn status_lists_files_that_cannot_be_written() {
    let (folder, mounted) = full_source("status-full", &[]);
    let place = folder.mount_point();
    mounted.signal("USR2");
    wait_for("the failure", || {
        status(&place)["failed_files"] != Value::Array(Vec::new())
    });
    let now = status(&place);
    assert!(
        now["failed_files"][0]["file"]
            .as_str()
            .unwrap()
            .ends_with("file"),
        "{now:#}"
    );
    assert!(
        now["failed_files"][0]["error"]
            .as_str()
            .unwrap()
            .contains("ENOSPC"),
        "{now:#}"
    );
    assert_eq!(number(&now, "failed_files_count"), 1.0);
    assert!(number(&now, "failed_bytes") > 0.0);
    let text = run(foliocache().arg("status").arg(&place));
    assert!(
        text.contains("CANNOT BE WRITTEN") && text.contains("cannot be written: "),
        "{text}"
    );
    // A line without -v, and one when it is over.
    let failed = |line: &String| line.contains("writeback failed") && line.contains("bytes=2");
    assert!(mounted.lines().iter().any(failed), "{:?}", mounted.lines());
    fs::remove_file(folder.source().join("filler")).unwrap();
    mounted.wait_for_line("takes writes again after ");
    assert_eq!(status(&place)["failed_files"], Value::Array(Vec::new()));
    mounted.end_well();
}

/// A GET of `path`: the head and the body.
fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The names of `status` and the values of a body for Prometheus, whose form is checked.
fn samples(body: &str) -> Vec<(String, f64)> {
    let lines: Vec<_> = body.lines().collect();
    let sample = |three: &[&str]| {
        let [help, kind, sample] = three else {
            panic!("{three:?}")
        };
        let (name, value) = sample.split_once(' ').unwrap();
        assert!(help.starts_with(&format!("# HELP {name} ")), "{three:?}");
        let counter = *kind == format!("# TYPE {name} counter");
        assert!(
            counter || *kind == format!("# TYPE {name} gauge"),
            "{three:?}"
        );
        assert_eq!(name.ends_with("_total"), counter, "{name}");
        let field = name.strip_prefix("foliocache_").unwrap();
        let field = field.strip_suffix("_total").unwrap_or(field);
        (field.to_owned(), value.parse().unwrap())
    };
    lines.chunks(3).map(sample).collect()
}

/// A mount with `--metrics` at a port that is free.
fn with_metrics(folder: &Folder) -> (Mounted, String) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mounted = folder.mount(&["--memory", "64M", "--metrics", &address]);
    (mounted, address)
}

#[test]
#[ignore = "system tier"]
fn metrics_are_those_of_status() {
    let folder = Folder::new("metrics");
    fs::write(folder.source().join("file"), pattern(4 << 20, 1)).unwrap();
    let (mounted, address) = with_metrics(&folder);
    fs::read(folder.mount_point().join("file")).unwrap();
    let mut differing = Vec::new();
    for _ in 0..50 {
        let (head, body) = get(&address, "/metrics");
        let now = status(&folder.mount_point());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("Content-Type: text/plain; version=0.0.4"),
            "{head}"
        );
        let samples = samples(&body);
        let numbers = now.as_object().unwrap().iter();
        let numbers = numbers.filter(|(name, value)| value.is_number() && *name != "pid");
        assert_eq!(samples.len(), numbers.count());
        for name in ["foliocache_memory_bytes ", "foliocache_hits_total "] {
            assert!(body.contains(name), "{body}");
        }
        // The two were asked one after the other.
        differing = samples;
        // The JSON reader may be wrong in the last digit.
        differing.retain(|(field, value)| (*value - number(&now, field)).abs() > 1e-9);
        differing.retain(|(field, _)| field != "uptime_seconds");
        if differing.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(differing.is_empty(), "{differing:?}");
    assert!(get(&address, "/").0.starts_with("HTTP/1.1 404 "));
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn clients_of_metrics_cannot_hold_up_the_mount() {
    let folder = Folder::new("metrics-slow");
    let (mounted, address) = with_metrics(&folder);
    // One that says too much, and some that say nothing. These are given up one after the other, each after two seconds.
    let mut endless = TcpStream::connect(&address).unwrap();
    let _ = endless.write_all(&vec![b'x'; 1 << 20]);
    let _silent = [(); 4].map(|()| TcpStream::connect(&address).unwrap());
    let file = folder.mount_point().join("file");
    let begun = Instant::now();
    fs::write(&file, "data").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"data");
    let served = begun.elapsed();
    let (_, body) = get(&address, "/metrics");
    assert!(body.contains("foliocache_memory_bytes "), "{body}");
    // Waiting for all of them takes as long as waiting for this client.
    let waited = begun.elapsed();
    assert!(served < waited / 2, "{served:?}, {waited:?}");
    mounted.end_well();
    let (exit, line) = refused(&mut folder.mount_command(&["--metrics", "0.0.0.0:9101"]));
    assert_eq!(exit, Some(2));
    assert!(line.contains("loopback"), "{line}");
}

/// A mount that was unmounted ends once all is written back, and keeps its address until then.
#[test]
#[ignore = "system tier"]
fn metrics_are_served_by_a_mount_that_follows_another_at_once() {
    let folder = Folder::new("metrics-again");
    let (mut mounted, address) = with_metrics(&folder);
    for nr in 0..5 {
        // Something to write back.
        let file = folder.mount_point().join(format!("file{nr}"));
        fs::write(file, pattern(16 << 20, nr)).unwrap();
        run(Command::new("umount").arg(folder.mount_point()));
        let next = folder.mount(&["--memory", "64M", "--metrics", &address]);
        let ended = mounted.wait();
        assert_eq!(ended.code, Some(0), "{:?}", ended.lines);
        let (head, body) = get(&address, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(body.contains("foliocache_memory_bytes "), "{body}");
        mounted = next;
    }
    mounted.end_well();
}

#[test]
#[ignore = "system tier"]
fn a_cold_read_by_the_kernels_readahead_has_no_hits() {
    let folder = Folder::new("status-cold");
    fs::write(folder.source().join("file"), pattern(16 << 20, 1)).unwrap();
    let mounted = folder.mount(&["--memory", "64M", "--kernel-cache", "all"]);
    let file = folder.mount_point().join("file");
    fs::read(&file).unwrap();
    let cold = status(&folder.mount_point());
    // The kernel has several requests under way, and those that overtake each other count as hits.
    assert!(number(&cold, "hit_ratio") < 0.3, "{cold:#}");
    drop_kernel_cache();
    fs::read(&file).unwrap();
    let warm = status(&folder.mount_point());
    assert!(number(&warm, "hit_ratio") > 0.4, "{warm:#}");
    mounted.end_well();
}
