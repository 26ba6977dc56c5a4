//! A log over a local directory: short records, each made durable before the next.

use crate::common::{cache, dirfs, lacks, on_disk, pattern, read_all, write_all};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_vfs::{FileSystem, OpContext, OpenFile, OpenFlags};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const ROOT: OpContext = OpContext::ROOT;
/// Bytes of a record.
const RECORD: usize = 100;

fn create(fs: &DirFs) -> OpenFile {
    let name = OsStr::new("log");
    fs.create(&ROOT, &fs.root(), name, 0o644, OpenFlags::READ_WRITE)
        .expect("create")
}

fn open(fs: &DirFs, flags: OpenFlags) -> OpenFile {
    let inode = fs.lookup(&fs.root(), OsStr::new("log")).expect("lookup");
    fs.open(&ROOT, &inode, flags).expect("open")
}

/// Appends records, each durable.
fn append(file: &OpenFile, records: usize) {
    for _ in 0..records {
        let end = file.mapping().size();
        write_all(file, &pattern(end, RECORD), end);
        file.fdatasync().expect("fdatasync");
    }
}

/// The bytes of `n` records.
fn records(n: usize) -> Vec<u8> {
    let record = |at| pattern((at * RECORD) as u64, RECORD);
    (0..n).flat_map(record).collect()
}

/// Bytes of a file that are in the kernel's cache.
fn in_kernel_cache(path: &Path) -> u64 {
    let mut fincore = Command::new("fincore");
    let output = fincore.args(["-b", "-n", "-r", "-o", "RES"]).arg(path);
    let output = output.output().expect("fincore").stdout;
    let text = String::from_utf8(output).expect("a number");
    text.trim().parse().expect("a number")
}

#[test]
fn only_the_last_page_of_a_log_stays_in_the_kernels_cache_and_only_while_it_is_open() {
    if lacks("fincore") {
        return;
    }
    let source = on_disk();
    let path = source.path().join("log");
    let fs = dirfs(&cache(64), source.path(), DirFsOptions::default());
    let file = create(&fs);
    for n in [1, 40, 41, 100, 200] {
        append(&file, n - file.mapping().size() as usize / RECORD);
        assert_eq!(in_kernel_cache(&path), 4096, "after {n} records");
    }
    let reader = open(&fs, OpenFlags::READ);
    drop(file);
    assert_eq!(in_kernel_cache(&path), 0, "there are no appends any more");
    assert!(read_all(&reader) == records(200));
    assert!(fs::read(&path).expect("read") == records(200));
}

#[test]
fn change_from_outside_after_the_last_flush_of_a_log_is_seen_at_the_next_open() {
    let source = on_disk();
    let path = source.path().join("log");
    let fs = dirfs(&cache(64), source.path(), DirFsOptions::default());
    let file = create(&fs);
    append(&file, 5);
    let outside = fs::File::options().write(true).open(&path).expect("open");
    outside.write_all_at(b"XY", 1).expect("write");
    let theirs = fs::metadata(&path).expect("stat").mtime_nsec();
    drop(file);
    assert_eq!(fs::metadata(&path).expect("stat").mtime_nsec(), theirs);
    let file = open(&fs, OpenFlags::READ_WRITE);
    let mut expected = records(5);
    expected[1..3].copy_from_slice(b"XY");
    assert!(read_all(&file) == expected);
    assert_eq!(fs.stats().invalidations, 1);

    // Beside records of ours: theirs is kept where ours do not touch its page.
    append(&file, 100);
    outside.write_all_at(b"Z", 0).expect("write");
    append(&file, 1);
    drop((file, fs));
    let text = fs::read(&path).expect("read");
    assert_eq!(text[..3], *b"ZXY");
    assert!(text[3..] == records(106)[3..]);
}

/// Other processes do not read the times, so records cost no call for them.
#[test]
fn a_log_that_is_ours_alone_gets_its_times_when_it_is_closed_or_synced() {
    let source = on_disk();
    let path = source.path().join("log");
    let mut options = DirFsOptions::default();
    options.exclusive = true;
    let fs = dirfs(&cache(64), source.path(), options);
    let file = create(&fs);
    let ours = || {
        let mtime = fs.getattr(file.inode()).expect("attributes").mtime;
        (mtime.sec, i64::from(mtime.nsec))
    };
    let theirs = || {
        let stat = fs::metadata(&path).expect("stat");
        (stat.mtime(), stat.mtime_nsec())
    };
    let record = || {
        let end = file.mapping().size();
        write_all(&file, &pattern(end, RECORD), end);
        // The source stamps the write-out later than this.
        std::thread::sleep(std::time::Duration::from_millis(30));
        file.fdatasync().expect("fdatasync");
    };
    record();
    assert_ne!(theirs(), ours());
    file.fsync().expect("fsync");
    assert_eq!(theirs(), ours());
    record();
    assert_ne!(theirs(), ours());
    let last = ours();
    drop(file);
    assert_eq!(theirs(), last);
}
