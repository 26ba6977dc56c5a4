//! When the data of a closed file is in the source.

use crate::common::{on_disk, pattern};
use foliocache::{Cache, Directory, DirectoryOptions, WritebackAtClose};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Too large for batches of small files.
const LARGE: usize = 300_000;

/// A directory of a cache that writes nothing because of its age.
fn directory(source: &Path, close: WritebackAtClose) -> (Cache, Directory) {
    let builder = Cache::builder().memory("64M");
    let cache = builder.dirty_expire(Duration::from_secs(3600));
    let cache = cache.build().unwrap();
    let options = DirectoryOptions::new().writeback_at_close(close);
    let directory = cache.directory_with(source, options).unwrap();
    (cache, directory)
}

/// Waits until the source has `content`; how long that took.
#[track_caller]
fn wait_for(path: &Path, content: &[u8]) -> Duration {
    let start = Instant::now();
    while fs::read(path).unwrap() != content {
        assert!(start.elapsed() < Duration::from_secs(20), "not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

#[test]
fn a_closed_file_is_in_the_source_a_moment_later() {
    let source = on_disk();
    let old = source.path().join("old");
    fs::write(&old, pattern(1, 5000)).unwrap();
    let (_cache, directory) = directory(source.path(), WritebackAtClose::Begin);
    // A large new file, and an old one that is also open for reading.
    let content = pattern(2, LARGE);
    directory
        .create("new")
        .unwrap()
        .write_all_at(&content, 0)
        .unwrap();
    let reader = directory.open("old").unwrap();
    let writer = directory.open_options().append(true).open("old").unwrap();
    writer.append(b"more").unwrap();
    let written = writer.metadata().unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(fs::read(&old).unwrap().len(), 5000, "while it is open");
    drop(writer);
    let expected = [pattern(1, 5000), b"more".to_vec()].concat();
    wait_for(&old, &expected);
    wait_for(&source.path().join("new"), &content);
    // With the time of the write, and not durable yet.
    let start = Instant::now();
    while fs::metadata(&old).unwrap().modified().unwrap() != written {
        assert!(start.elapsed() < Duration::from_secs(20), "not stamped");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(reader.stats().unwrap().unstable_pages > 0);
}

#[test]
fn a_close_that_waits_has_written() {
    let source = on_disk();
    let (_cache, directory) = directory(source.path(), WritebackAtClose::Wait);
    for round in 0..20 {
        let content = pattern(round, LARGE);
        let file = directory.create("file").unwrap();
        file.write_all_at(&content, 0).unwrap();
        drop(file);
        assert!(fs::read(source.path().join("file")).unwrap() == content);
    }
}

#[test]
fn a_delayed_file_waits_for_its_age() {
    let source = on_disk();
    fs::write(source.path().join("file"), "short").unwrap();
    let (cache, directory) = directory(source.path(), WritebackAtClose::Delayed);
    let file = directory.open_options().append(true).open("file").unwrap();
    file.append(&pattern(1, LARGE)).unwrap();
    drop(file);
    std::thread::sleep(Duration::from_millis(300));
    let len = || fs::metadata(source.path().join("file")).unwrap().len();
    assert_eq!(len(), 5);
    cache.sync().unwrap();
    assert_eq!(len(), 5 + LARGE as u64);
}

#[test]
fn a_file_that_is_closed_in_a_loop_is_written_seldom() {
    let source = on_disk();
    fs::write(source.path().join("log"), "begin\n").unwrap();
    let (_cache, directory) = directory(source.path(), WritebackAtClose::Begin);
    let start = Instant::now();
    let mut content = b"begin\n".to_vec();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_millis(400) {
        let log = directory.open_options().append(true).open("log").unwrap();
        log.append(b"another line\n").unwrap();
        content.extend_from_slice(b"another line\n");
        rounds += 1;
    }
    let log = directory.open("log").unwrap();
    let pages = log.stats().unwrap().written_bytes / 4096;
    let periods = start.elapsed().as_millis() as u64 / 50 + 1;
    // A page more now and then, when the end of the file moves on to the next.
    let most = 2 * periods + content.len() as u64 / 4096;
    assert!(pages <= most, "{pages} pages for {rounds} rounds");
    drop(log);
    wait_for(&source.path().join("log"), &content);
}

/// Data that the flusher writes while the file is open again is not lost, nor is newer data.
#[test]
fn a_file_that_is_opened_again_goes_on_being_written() {
    let source = on_disk();
    let (cache, directory) = directory(source.path(), WritebackAtClose::Begin);
    let content = pattern(3, 8 << 20);
    let path = source.path().join("file");
    directory
        .create("file")
        .unwrap()
        .write_all_at(&content, 0)
        .unwrap();
    let file = directory
        .open_options()
        .write(true)
        .read(true)
        .open("file")
        .unwrap();
    let start = Instant::now();
    let mut newer = content;
    let mut at = 0;
    while start.elapsed() < Duration::from_millis(300) {
        at = (at + 40_961) % (newer.len() - 100);
        newer[at..at + 100].fill(7);
        file.write_all_at(&[7; 100], at as u64).unwrap();
    }
    drop(file);
    wait_for(&path, &newer);
    cache.sync().unwrap();
    assert!(fs::read(&path).unwrap() == newer);
}

/// A hole, or a new size, in a small file that the kernel has already needs a separate flush, and the file cannot
/// be found for it after a move from outside.
#[test]
fn a_hole_or_new_size_of_a_closed_small_file_is_durable_after_others_move_it() {
    type Change = fn(&foliocache::File) -> foliocache::Result<()>;
    let changes: [Change; 2] = [|file| file.punch_hole(0, 8192), |file| file.set_len(9000)];
    for change in changes {
        let source = on_disk();
        let (cache, directory) = directory(source.path(), WritebackAtClose::Begin);
        let content = pattern(1, 16_000);
        directory.write("new", &content).unwrap();
        let mut options = directory.open_options();
        let file = options.write(true).open("new").unwrap();
        change(&file).unwrap();
        drop(file);
        fs::rename(source.path().join("new"), source.path().join("moved")).unwrap();
        cache.sync().unwrap();
        cache.close().unwrap();
        let moved = fs::read(source.path().join("moved")).unwrap();
        assert_eq!(moved[8192..9000], content[8192..9000]);
    }
}
