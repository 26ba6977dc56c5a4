//! The exit of a process whose disk does not answer.
//!
//! Needs root.

use crate::common::{is_alone, lacks, on_disk};
use foliocache::Cache;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, mem, thread};

const SOURCE: &str = "FOLIOCACHE_TEST_SOURCE";

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// A frozen file system, which is thawed and unmounted at the end.
struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run(Command::new("fsfreeze").arg("-u").arg(self.0));
        // The process may be on its way out.
        thread::sleep(Duration::from_millis(500));
        run(Command::new("umount").arg("-l").arg(self.0));
    }
}

#[test]
#[ignore = "system tier"]
fn exit_does_not_wait_for_ever_for_a_disk_and_lists_lost_files() {
    if lacks("root") {
        return;
    }
    let top = on_disk();
    let (image, source) = (top.path().join("image"), top.path().join("source"));
    File::create(&image).unwrap().set_len(32 << 20).unwrap();
    fs::create_dir(&source).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let mut mount = Command::new("mount");
    run(mount.args(["-o", "loop"]).arg(&image).arg(&source));
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "exit::exit_beside_a_frozen_disk", "--nocapture"]);
    command.args(["--test-threads=1", "--include-ignored"]);
    command.env(crate::common::ALONE, "1").env(SOURCE, &source);
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap());
    let mut lines = said.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "written"));
    run(Command::new("fsfreeze").arg("-f").arg(&source));
    let frozen = Frozen(&source);
    fs::write(top.path().join("go"), "").unwrap();
    let start = Instant::now();
    let lost = lines.find(|line| line.contains("lost at exit: "));
    let waited = start.elapsed();
    // A call that the frozen disk holds keeps the process from ending.
    drop(frozen);
    child.wait().unwrap();
    assert!(lost.is_some_and(|line| line.contains("/file: 1000000 bytes")));
    assert!(waited < Duration::from_secs(20), "{waited:?}");
}

#[test]
#[ignore = "system tier"]
fn exit_beside_a_frozen_disk() {
    let Some(source) = env::var_os(SOURCE).filter(|_| is_alone()) else {
        return;
    };
    let source = PathBuf::from(source);
    let cache = Cache::builder().memory("32M").build().unwrap();
    cache.close_on_exit().unwrap();
    let file = cache.directory(&source).unwrap().create("file").unwrap();
    file.write_all_at(&[1; 1_000_000], 0).unwrap();
    mem::forget((file, cache));
    eprintln!("written");
    while !source.with_file_name("go").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    process::exit(0);
}
