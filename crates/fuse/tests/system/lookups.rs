//! Look-ups are counted exactly: in the end the kernel has forgotten as many as it was told of.
//!
//! Another process makes the load, this program once more: a thread of the process that serves a
//! mount must not wait for it.
//!
//! Needs FUSE and root.

use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_fuse::{Mount, MountOptions};
use foliocache_mm::{Mm, MmConfig};
use foliocache_vfs::SuperBlock;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The folder of the load; set for the other process alone.
const PLACE: &str = "FOLIOCACHE_LOOKUPS_PLACE";
const THREADS: u64 = 8;
const ROUNDS: u64 = 3000;

/// Another thread may have changed the same names first.
fn may_race(done: io::Result<()>) {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound, PermissionDenied,
    };
    if let Err(error) = done {
        let expected = [
            AlreadyExists,
            DirectoryNotEmpty,
            IsADirectory,
            NotADirectory,
            NotFound,
            // A hard link to a directory.
            PermissionDenied,
        ];
        assert!(expected.contains(&error.kind()), "{error}");
    }
}

fn list(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        // With attributes, so that the kernel requests the entries with theirs.
        may_race(entry?.metadata().map(drop));
    }
    Ok(())
}

/// Makes, renames, links, unlinks, examines and lists a few names from many threads.
fn churn(place: &Path, thread: u64) {
    let mut state = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..ROUNDS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let dir = place.join(format!("d{}", state >> 8 & 3));
        let one = dir.join(format!("n{}", state >> 16 & 63));
        let other = place.join(format!("d{}/n{}", state >> 24 & 3, state >> 32 & 63));
        match state >> 40 & 15 {
            0..=3 => may_race(File::create(&one).map(drop)),
            4 => may_race(fs::create_dir(&one)),
            5..=6 => may_race(fs::rename(&one, &other)),
            7 => may_race(fs::hard_link(&one, &other)),
            8 => may_race(std::os::unix::fs::symlink("nowhere", &one)),
            9..=10 => may_race(fs::remove_file(&one)),
            11 => may_race(fs::remove_dir(&one)),
            12 => may_race(list(&dir)),
            13 => may_race(list(&one)),
            _ => may_race(fs::symlink_metadata(&one).map(drop)),
        }
    }
}

#[test]
#[ignore = "system tier"]
fn load() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    for dir in 0..4 {
        fs::create_dir_all(place.join(format!("d{dir}"))).unwrap();
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let place = &place;
            scope.spawn(move || churn(place, thread + 1));
        }
    });
}

/// Waits for `done`, with `step` in between.
fn wait_for(what: &str, mut done: impl FnMut() -> bool, step: impl Fn()) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        step();
        thread::sleep(Duration::from_millis(50));
    }
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
}

/// Makes the kernel forget every unused name.
fn drop_caches() {
    run(Command::new("sh").args(["-c", "echo 2 > /proc/sys/vm/drop_caches"]));
}

/// Descriptors that keep unlinked files.
fn unlinked_files_kept() -> usize {
    let gone = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let ours = fs::read_link(&path).ok()?.to_str()?.contains("/lookups-");
        // The link count of the open file, not of the symbolic link.
        let links = fs::metadata(&path).ok()?.nlink();
        (ours && links == 0).then_some(())
    };
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(gone)
        .count()
}

#[test]
#[ignore = "system tier"]
fn the_kernel_forgets_every_inode_it_looked_up() {
    let top =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lookups-{}", std::process::id()));
    let (source, mount_point) = (top.join("source"), top.join("mount"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir_all(&mount_point).unwrap();
    let mm = Mm::new(MmConfig::new(64 << 20)).unwrap();
    let fs = Arc::new(DirFs::open(&mm, &source, DirFsOptions::default()).unwrap());
    let names = Arc::new(SuperBlock::new(fs, &mm));
    let mut mount = Mount::new(names, &mount_point, &MountOptions::new("lookups")).unwrap();
    let mut most = 0;
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "lookups::load", "--include-ignored"]);
        let mut child = child.env(PLACE, &mount_point).spawn().unwrap();
        let mut status = None;
        wait_for(
            "the load",
            || {
                most = most.max(mount.stats().lookups);
                status = child.try_wait().unwrap();
                status.is_some()
            },
            || {},
        );
        assert!(status.unwrap().success());
        wait_for(
            "look-ups that are never forgotten",
            || mount.stats().lookups == 0,
            drop_caches,
        );
        assert_eq!(unlinked_files_kept(), 0);
    }
    assert!(most > 100, "{most}");
    let stats = mount.stats();
    assert_eq!((stats.panics, stats.open_files), (0, 0), "{stats:?}");
    mount.unmount().unwrap();
    drop(mount);
    fs::remove_dir_all(&top).unwrap();
}
