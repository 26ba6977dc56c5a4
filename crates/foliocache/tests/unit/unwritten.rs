//! Files that are replaced or removed while others open them: each opening has one version, whole, though nothing is synced
//! and the data of the older ones is never written.

use crate::common::on_disk;
use foliocache::{Cache, Directory, DirectoryOptions, Errno, File, WritebackAtClose};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use tempfile::TempDir;

/// Too large for batches of small files.
const LEN: usize = 100 << 10;

/// Threads that open files which another one replaces.
const READERS: usize = 3;

const MODES: [WritebackAtClose; 3] = [
    WritebackAtClose::Begin,
    WritebackAtClose::Wait,
    WritebackAtClose::Delayed,
];

/// A directory behind a cache of 16 MiB.
struct Small {
    _cache: Cache,
    dir: Directory,
    _source: TempDir,
}

impl Small {
    fn new(mode: WritebackAtClose) -> Small {
        let (cache, source) = (crate::common::cache(16), on_disk());
        let options = DirectoryOptions::new().writeback_at_close(mode);
        Small {
            dir: cache.directory_with(source.path(), options).unwrap(),
            _cache: cache,
            _source: source,
        }
    }
}

/// A version of the file: no byte is zero, and all are the same.
fn version(round: u64) -> Vec<u8> {
    vec![(round % 255) as u8 + 1; LEN]
}

/// Whether `bytes` are a version.
#[track_caller]
fn assert_whole(bytes: &[u8], mode: WritebackAtClose) {
    let first = bytes.first().copied().unwrap_or(0);
    let whole = bytes.len() == LEN && first != 0 && bytes == vec![first; LEN];
    assert!(
        whole,
        "{mode:?}: {} bytes, the first is {first}",
        bytes.len()
    );
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Runs `write` with the numbers of `rounds` rounds in a thread, and meanwhile `read` in others. They go on until each has
/// done something often enough.
fn beside(
    dir: &Directory,
    rounds: u64,
    write: impl Fn(&Directory, u64) + Sync,
    read: impl Fn(&Directory) -> bool + Sync,
) {
    const ENOUGH: u64 = 100;
    let (done, found) = (AtomicBool::new(false), AtomicU64::new(0));
    let (done, found, write, read) = (&done, &found, &write, &read);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        found.fetch_add(u64::from(read(dir)), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // A reader that failed finds nothing more.
        let failed = || readers.iter().any(|reader| reader.is_finished());
        for round in 0.. {
            if (round >= rounds && found.load(Ordering::Relaxed) >= ENOUGH) || failed() {
                break;
            }
            write(dir, round);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_one_version_whole() {
    for mode in MODES {
        let small = Small::new(mode);
        small.dir.write("v", version(0)).unwrap();
        let replace = |dir: &Directory, round| {
            dir.write(".t", version(round)).unwrap();
            dir.rename(".t", "v").unwrap();
        };
        beside(&small.dir, 300, replace, |dir| {
            assert_whole(&dir.read("v").unwrap(), mode);
            let file = dir.open("v").unwrap();
            assert_whole(&read_all(&file), mode);
            true
        });
    }
}

#[test]
fn a_file_that_is_removed_while_it_is_opened_has_its_data() {
    for mode in MODES {
        let small = Small::new(mode);
        let make_and_remove = |dir: &Directory, round| {
            dir.write(".t", version(round)).unwrap();
            dir.rename(".t", "v").unwrap();
            dir.remove_file("v").unwrap();
        };
        beside(&small.dir, 300, make_and_remove, |dir| {
            match dir.open("v") {
                Ok(file) => {
                    assert_whole(&read_all(&file), mode);
                    true
                }
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ENOENT);
                    false
                }
            }
        });
    }
}

#[test]
fn temporary_files_of_a_program_are_not_written() {
    for mode in MODES {
        let small = Small::new(mode);
        for round in 0..100 {
            let file = small
                .dir
                .open_options()
                .read(true)
                .write(true)
                .create_new(true)
                .open("t");
            let file = file.unwrap();
            file.write_all_at(&version(round), 0).unwrap();
            small.dir.remove_file("t").unwrap();
            assert_whole(&read_all(&file), mode);
            assert_eq!(file.stats().unwrap().written_bytes, 0, "{mode:?}");
        }
    }
}
