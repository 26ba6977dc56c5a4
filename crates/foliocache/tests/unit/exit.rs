//! The contents of the source after a process has ended, with its files closed, leaked or in use.
//!
//! # Safety
//!
//! The child of a fork exits at once, as a program would.
#![allow(unsafe_code)]

use crate::common::{is_alone, on_disk};
use foliocache::{Cache, Directory, DirectoryOptions, File, WritebackAtClose};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use std::{env, fs, mem, process, thread};

const SOURCE: &str = "FOLIOCACHE_TEST_SOURCE";

/// Runs the test `body` in a separate process over a directory, and returns its output.
fn run(body: &str, source: &Path) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("exit::{body}"), "--nocapture"]);
    command.arg("--test-threads=1");
    command.env(crate::common::ALONE, "1").env(SOURCE, source);
    let start = Instant::now();
    let output = command.output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "it waited");
    output
}

fn run_well(body: &str) -> tempfile::TempDir {
    let source = on_disk();
    let output = run(body, source.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{body}: {said}");
    assert!(!said.contains("lost at exit"), "{body}: {said}");
    source
}

/// A directory whose files nothing but a request writes.
fn open() -> Option<(Cache, Directory)> {
    let source = PathBuf::from(env::var_os(SOURCE).filter(|_| is_alone())?);
    fs::write(source.join("file"), "old").unwrap();
    let cache = Cache::builder().memory("32M");
    let cache = cache.dirty_expire(Duration::from_secs(3600)).build();
    let cache = cache.unwrap();
    let options = DirectoryOptions::new().writeback_at_close(WritebackAtClose::Delayed);
    let directory = cache.directory_with(source, options).unwrap();
    Some((cache, directory))
}

fn written(directory: &Directory) -> File {
    let file = directory.open_options().write(true).open("file").unwrap();
    file.write_all_at(b"new", 0).unwrap();
    file
}

fn content(source: &tempfile::TempDir) -> String {
    fs::read_to_string(source.path().join("file")).unwrap()
}

#[test]
fn a_cache_that_asked_for_it_is_written_back_by_exit() {
    assert_eq!(content(&run_well("exit_with_hook")), "new");
    // The control.
    assert_eq!(content(&run_well("exit_without_hook")), "old");
}

#[test]
fn exit_with_hook() {
    if let Some((cache, directory)) = open() {
        cache.close_on_exit().unwrap();
        cache.close_on_exit().unwrap();
        drop(written(&directory));
        process::exit(0);
    }
}

#[test]
fn exit_without_hook() {
    if let Some((_cache, directory)) = open() {
        drop(written(&directory));
        process::exit(0);
    }
}

#[test]
fn a_dropped_cache_writes_back_data_of_leaked_and_detached_handles() {
    assert_eq!(content(&run_well("end_with_leaked_file")), "new");
    assert_eq!(content(&run_well("end_with_detached_thread")), "new");
}

#[test]
fn end_with_leaked_file() {
    if let Some((_cache, directory)) = open() {
        mem::forget(written(&directory));
    }
}

#[test]
fn end_with_detached_thread() {
    if let Some((_cache, directory)) = open() {
        let file = written(&directory);
        thread::spawn(move || {
            thread::sleep(Duration::from_secs(600));
            drop(file);
        });
    }
}

#[test]
fn writes_after_the_cache_was_dropped_are_written_back_at_exit() {
    assert_eq!(content(&run_well("end_after_cache_was_dropped")), "newer");
}

#[test]
fn end_after_cache_was_dropped() {
    if let Some((cache, directory)) = open() {
        cache.close_on_exit().unwrap();
        let file = written(&directory);
        drop((cache, directory));
        file.write_all_at(b"newer", 0).unwrap();
        mem::forget(file);
    }
}

#[test]
fn exit_lists_files_that_could_not_be_written() {
    let source = on_disk();
    let output = run("exit_without_room", source.path());
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("lost at exit: "));
    assert!(line.is_some_and(|line| line.contains("/file: ")), "{said}");
    assert!(line.is_some_and(|line| line.contains("EFBIG")), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn exit_without_room() {
    if let Some((cache, directory)) = open() {
        cache.close_on_exit().unwrap();
        mem::forget(written_without_room(&directory));
        process::exit(0);
    }
}

/// A file with data that the source refuses.
fn written_without_room(directory: &Directory) -> File {
    let file = directory.open_options().append(true).open("file").unwrap();
    file.append(&[1; 1 << 20]).unwrap();
    // The threads of the cache block the signal.
    let within_a_page = Some(5000);
    let limit = Rlimit {
        current: within_a_page,
        maximum: within_a_page,
    };
    setrlimit(Resource::Fsize, limit).unwrap();
    file
}

#[test]
fn data_that_is_lost_with_its_cache_is_told_on_standard_error() {
    let source = on_disk();
    for body in [
        "drop_without_room",
        "drop_file_after_its_cache_without_room",
    ] {
        let output = run(body, source.path());
        let said = String::from_utf8_lossy(&output.stderr);
        let lost: Vec<_> = said
            .lines()
            .filter(|line| line.starts_with("foliocache: lost: "))
            .collect();
        assert_eq!(lost.len(), 1, "{body}: {said}");
        assert!(lost[0].contains("/file: 1048576 bytes: EFBIG"), "{said}");
        let kept =
            said.contains("foliocache: not in its directory, and lost if the process ends now: ");
        assert_eq!(kept, body.contains("after"), "{body}: {said}");
    }
    // The log, if there is one, has it.
    let output = run("drop_without_room_with_a_log", source.path());
    let (said, log) = (
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout),
    );
    assert!(!said.contains("foliocache: lost: "), "{said}");
    let line = log
        .lines()
        .find(|line| line.contains("ERROR foliocache::loss: lost"));
    assert!(line.is_some_and(|line| line.contains("EFBIG")), "{log}");
}

#[test]
fn a_dropped_cache_writes_good_files_beside_failing_ones() {
    for body in ["drop_beside_a_failure", "drop_after_a_failed_close"] {
        let source = on_disk();
        let output = run(body, source.path());
        let said = String::from_utf8_lossy(&output.stderr);
        let lost = |line: &&str| line.starts_with("foliocache: lost: ");
        assert_eq!(said.lines().filter(lost).count(), 1, "{body}: {said}");
        let other = fs::read_to_string(source.path().join("other"));
        assert_eq!(other.unwrap(), "written", "{body}: {said}");
    }
}

/// Writes a file beside one that cannot be written.
fn written_beside_a_failure(directory: &Directory) -> File {
    ignore_sigxfsz();
    let failed = written_without_room(directory);
    failed.sync_data().unwrap_err();
    drop(failed);
    let mut options = directory.open_options();
    let file = options.write(true).create(true).open("other").unwrap();
    file.write_all_at(b"written", 0).unwrap();
    file
}

#[test]
fn drop_beside_a_failure() {
    if let Some((cache, directory)) = open() {
        let file = written_beside_a_failure(&directory);
        drop((file, directory, cache));
    }
}

#[test]
fn drop_after_a_failed_close() {
    if let Some((cache, directory)) = open() {
        let file = written_beside_a_failure(&directory);
        let refused = cache.close().unwrap_err();
        file.write_all_at(b"written", 0).unwrap();
        drop((file, directory, refused));
    }
}

/// The thread that drops a cache writes back too.
fn ignore_sigxfsz() {
    // SAFETY: signals have no other user here.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[test]
fn drop_without_room() {
    if let Some((cache, directory)) = open() {
        ignore_sigxfsz();
        drop(written_without_room(&directory));
        drop((directory, cache));
    }
}

#[test]
fn drop_file_after_its_cache_without_room() {
    if let Some((cache, directory)) = open() {
        ignore_sigxfsz();
        let file = written_without_room(&directory);
        drop((directory, cache));
        drop(file);
    }
}

#[test]
fn drop_without_room_with_a_log() {
    if let Some((cache, directory)) = open() {
        ignore_sigxfsz();
        tracing_subscriber::fmt().with_ansi(false).init();
        drop(written_without_room(&directory));
        drop((directory, cache));
    }
}

#[test]
fn a_forked_child_that_exits_writes_nothing_back() {
    assert_eq!(content(&run_well("exit_in_a_child")), "new");
}

#[test]
fn exit_in_a_child() {
    if let Some((cache, directory)) = open() {
        cache.close_on_exit().unwrap();
        mem::forget(written(&directory));
        let source = env::var_os(SOURCE).unwrap();
        // SAFETY: see the module's header.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: see the module's header: a child may exit.
            unsafe { libc::exit(0) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        let file = Path::new(&source).join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), "old");
        process::exit(0);
    }
}
