//! The space of a removed file is free again when the call returns that took its last name or
//! handle, and soon after whoever else held it let go.

use crate::common::executor::block_on;
use crate::common::{Disk, cache};
use foliocache::{Directory, Errno, File};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Almost all that a memory file system may have of [`BOUND`].
const LARGE: u64 = 31 * MIB;

/// The bound of the caches here, in MiB.
const BOUND: u64 = 64;

/// Writes this many bytes to a file.
fn fill(file: &File, bytes: u64) -> Result<(), Errno> {
    let chunk = vec![0x5a; MIB as usize];
    for at in (0..bytes).step_by(chunk.len()) {
        let written = file.write_all_at(&chunk, at);
        written.map_err(|error| error.errno())?;
    }
    Ok(())
}

/// Makes a large file, has `remove` remove it and everything that leads to it, and makes the next.
fn in_memory(remove: impl Fn(&Directory, File)) {
    let cache = cache(BOUND);
    let dir = cache.memfs().unwrap();
    for round in 0..4 {
        let file = dir.create("large").unwrap();
        let filled = fill(&file, LARGE);
        assert_eq!(filled, Ok(()), "round {round}");
        remove(&dir, file);
    }
}

#[test]
fn memory_of_a_removed_file_is_free_at_once() {
    in_memory(|dir, file| {
        drop(file);
        dir.remove_file("large").unwrap();
    });
}

#[test]
fn memory_of_a_replaced_file_is_free_at_once() {
    in_memory(|dir, file| {
        drop(file);
        dir.create("small").unwrap();
        dir.rename("small", "large").unwrap();
        dir.remove_file("large").unwrap();
    });
}

#[test]
fn memory_of_an_unlinked_file_is_free_at_its_last_close() {
    in_memory(|dir, file| {
        let other = dir.open("large").unwrap();
        dir.remove_file("large").unwrap();
        drop(file);
        let mut byte = [0];
        other.read_exact_at(&mut byte, LARGE - 1).unwrap();
        assert_eq!(byte, [0x5a]);
        drop(other);
    });
}

#[test]
fn memory_of_a_removed_tree_is_free_at_once() {
    let cache = cache(BOUND);
    let dir = cache.memfs().unwrap();
    for _ in 0..4 {
        dir.create_dir_all("a/b/c").unwrap();
        for path in ["a/one", "a/b/two", "a/b/c/three"] {
            fill(&dir.create(path).unwrap(), 10 * MIB).unwrap();
        }
        dir.remove_dir_all("a").unwrap();
    }
}

#[test]
fn memory_of_an_unlinked_file_is_free_when_an_async_file_is_dropped() {
    in_memory(|dir, file| {
        let file = file.into_async().unwrap();
        let clone = file.clone();
        dir.remove_file("large").unwrap();
        let mut byte = [0];
        block_on(clone.read_exact_at(&mut byte, LARGE - 1)).unwrap();
        drop((file, clone));
    });
}

/// Files below `source` that have no name and that this process keeps open.
fn kept(source: &Path) -> Vec<String> {
    let source = source.to_str().unwrap();
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .filter(|link| link.starts_with(source) && link.ends_with("(deleted)"))
        .collect()
}

/// Removed files keep no blocks, except while data of theirs is under writeback, where
/// `may_be_written`.
fn assert_none_kept(source: &Path, may_be_written: bool) {
    // Sooner than dirty pages expire: they are not written for this.
    let give_up = Instant::now() + Duration::from_secs(2);
    while may_be_written && !kept(source).is_empty() && Instant::now() < give_up {
        sleep(Duration::from_millis(1));
    }
    assert_eq!(kept(source), [""; 0], "may be written: {may_be_written}");
}

/// As [`in_memory`], in a directory on disk: nothing keeps the file's blocks.
fn on_disk(remove: impl Fn(&Directory, File)) {
    let disk = Disk::new(BOUND);
    for synced in [true, false] {
        let file = disk.dir.create("large").unwrap();
        fill(&file, 3 * MIB).unwrap();
        if synced {
            file.sync_all().unwrap();
        }
        remove(&disk.dir, file);
        assert_none_kept(disk.source.path(), !synced);
    }
}

#[test]
fn blocks_of_a_removed_file_are_free_at_once() {
    on_disk(|dir, file| {
        drop(file);
        dir.remove_file("large").unwrap();
    });
}

#[test]
fn blocks_of_a_replaced_file_are_free_at_once() {
    on_disk(|dir, file| {
        drop(file);
        dir.create("small").unwrap();
        dir.rename("small", "large").unwrap();
    });
}

#[test]
fn blocks_of_an_unlinked_file_are_free_at_its_last_close() {
    on_disk(|dir, file| {
        let other = dir.open("large").unwrap();
        dir.remove_file("large").unwrap();
        drop(file);
        let mut byte = [0];
        other.read_exact_at(&mut byte, 3 * MIB - 1).unwrap();
        assert_eq!(byte, [0x5a]);
        drop(other);
    });
}

#[test]
fn blocks_of_a_removed_tree_are_free_at_once() {
    let disk = Disk::new(BOUND);
    disk.dir.create_dir_all("a/b/c").unwrap();
    for path in ["a/one", "a/b/two", "a/b/c/three"] {
        fill(&disk.dir.create(path).unwrap(), MIB).unwrap();
    }
    disk.dir.remove_dir_all("a").unwrap();
    assert_none_kept(disk.source.path(), true);
}

#[test]
fn blocks_of_an_unlinked_file_are_free_when_an_async_file_is_dropped() {
    on_disk(|dir, file| {
        let file = file.into_async().unwrap();
        dir.remove_file("large").unwrap();
        block_on(file.write_all_at(b"more", 0)).unwrap();
        drop(file);
    });
}

/// Two threads let go of a file at the same moment, so that neither may know that it is the last.
#[test]
fn a_removed_file_closed_by_two_threads_is_freed_in_an_idle_process() {
    let (disk, memory) = (Disk::new(BOUND), cache(BOUND));
    let in_memory = memory.memfs().unwrap();
    for dir in [&disk.dir, &in_memory] {
        for _ in 0..200 {
            let file = dir.create("file").unwrap();
            file.write_all_at(b"bytes", 0).unwrap();
            let other = dir.open("file").unwrap();
            dir.remove_file("file").unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for file in [file, other] {
                    scope.spawn(|| {
                        start.wait();
                        drop(file);
                    });
                }
            });
        }
    }
    // Nothing is called any more that could free something.
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        let kept = kept(disk.source.path());
        let files = [&disk.cache, &memory].map(|cache| cache.stats().unwrap().known_files);
        if kept.is_empty() && files == [0, 0] {
            return;
        }
        assert!(Instant::now() < give_up, "{kept:?}, files: {files:?}");
        sleep(Duration::from_millis(1));
    }
}
