//! Programs on a mount, and programs beside it, change one directory, in turns: [`two_writers`](foliocache_sim::two_writers).
//!
//! Needs FUSE and root.

use crate::common::{Folder, no_root_or_fuse};
use foliocache_sim::two_writers::{Step, Way, names, play, seeds};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

struct Mount {
    point: PathBuf,
}

fn sync_below(dir: &Path) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its kind");
        if kind.is_dir() {
            sync_below(&entry.path());
        } else if kind.is_file() {
            let file = File::open(entry.path()).expect("it opens");
            file.sync_all().expect("durable");
        }
    }
}

impl Way for Mount {
    type Handle = File;

    /// The kernel is told a little after the cache.
    const A_MOMENT: Duration = Duration::from_millis(100);

    fn step(&self, step: &Step) -> io::Result<()> {
        step.beside(&self.point)
    }

    fn open(&self, path: &str) -> Option<File> {
        let mut options = OpenOptions::new();
        let at = self.point.join(path);
        options.read(true).write(true).open(at).ok()
    }

    fn attributes(&self, path: &str) -> Option<(u32, u64)> {
        let meta = fs::symlink_metadata(self.point.join(path)).ok()?;
        Some((meta.mode(), meta.len()))
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.point.join(path))
    }

    fn names(&self, path: &str) -> Option<BTreeSet<PathBuf>> {
        names(&self.point, path).ok()
    }

    /// The kernel does not pass `sync(2)` on to FUSE.
    fn sync(&self) {
        sync_below(&self.point);
    }
}

fn run(kernel_cache: &str) {
    if no_root_or_fuse() {
        return;
    }
    for seed in seeds(3) {
        let folder = Folder::public(&format!("two-writers-{kernel_cache}-{seed}"));
        let mounted = OnceCell::new();
        play(seed, &folder.source(), &folder.plain(), || {
            let arguments = ["--memory", "64M", "--kernel-cache", kernel_cache];
            let _ = mounted.set(folder.mount(&arguments));
            let point = folder.mount_point();
            Mount { point }
        });
        mounted.into_inner().expect("it is mounted").end_well();
    }
}

#[test]
#[ignore = "system tier"]
fn programs_on_a_mount_and_beside_it_lose_nothing_of_each_other() {
    run("none");
}

#[test]
#[ignore = "system tier"]
fn the_same_where_the_kernel_keeps_pages() {
    run("all");
}
