//! The library and a program beside it change one directory, in turns: [`two_writers`](foliocache_sim::two_writers).

use crate::common::on_disk;
use foliocache::{Cache, Directory, DirectoryOptions, File, Permissions, Result};
use foliocache_sim::two_writers::{Step, Way, play, seeds};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

struct Library {
    cache: Cache,
    dir: Directory,
}

impl Library {
    fn new(source: &Path, watch: bool) -> Library {
        let cache = crate::common::cache(32);
        let options = match watch {
            true => DirectoryOptions::new(),
            false => DirectoryOptions::new()
                .watch(false)
                .revalidate_after(Duration::ZERO),
        };
        let dir = cache.directory_with(source, options);
        Library {
            dir: dir.expect("a directory"),
            cache,
        }
    }

    fn try_step(&self, step: &Step) -> Result<()> {
        use Step::*;
        let dir = &self.dir;
        let open = |path: &str| dir.open_options().write(true).open(path);
        match step {
            Write { path, create, .. } => {
                let mut options = dir.open_options();
                let file = options.write(true).create(*create).open(path)?;
                let (bytes, pos) = step.bytes();
                file.write_all_at(&bytes, pos)
            }
            Replace { path, .. } => dir.write(path, step.bytes().0),
            SetLen(path, len) => open(path)?.set_len(*len),
            PunchHole(path, pos, len) => open(path)?.punch_hole(*pos, *len),
            Chmod(path, mode) => dir.set_permissions(path, Permissions::from_mode(*mode)),
            Unlink(path) => dir.remove_file(path),
            Rename(from, to) => dir.rename(from, to),
            Link(from, to) => dir.hard_link(from, to),
            Symlink(target, path) => dir.symlink(target, path),
            Mkdir(path) => dir.create_dir(path),
            Rmdir(path) => dir.remove_dir(path),
            Read(path) => dir.read(path).map(drop),
            List(path) => self.try_names(path).map(drop),
        }
    }

    fn try_names(&self, path: &str) -> Result<BTreeSet<PathBuf>> {
        (self.dir.read_dir(path)?)
            .map(|entry| Ok(entry?.file_name().into()))
            .collect()
    }
}

impl Way for Library {
    type Handle = File;

    const A_MOMENT: Duration = Duration::from_millis(25);

    fn step(&self, step: &Step) -> io::Result<()> {
        self.try_step(step).map_err(io::Error::from)
    }

    fn open(&self, path: &str) -> Option<File> {
        let mut options = self.dir.open_options();
        options.read(true).write(true).open(path).ok()
    }

    fn attributes(&self, path: &str) -> Option<(u32, u64)> {
        let meta = self.dir.symlink_metadata(path).ok()?;
        Some((meta.mode(), meta.len()))
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.dir.read(path).map_err(io::Error::from)
    }

    fn names(&self, path: &str) -> Option<BTreeSet<PathBuf>> {
        self.try_names(path).ok()
    }

    fn sync(&self) {
        self.cache.sync().expect("everything durable");
    }
}

fn run(watch: bool) {
    for seed in seeds(6) {
        let (source, shadow) = (on_disk(), on_disk());
        let begin = || Library::new(source.path(), watch);
        play(seed, source.path(), shadow.path(), begin);
    }
}

#[test]
fn a_cache_and_a_program_beside_it_lose_nothing_of_each_other() {
    run(true);
}

#[test]
fn the_same_without_watches() {
    run(false);
}
