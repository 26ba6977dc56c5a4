//! Files that are append-only in the source, where the kernel takes bytes at their end alone.
//!
//! Needs root and a file system that knows such files.

use crate::common::{cache, dirfs, lacks, on_disk, pattern, read_all, run, write_all};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_mm::VmaAccess;
use foliocache_sys::Errno;
use foliocache_vfs::{
    Advice, FallocateMode, FileSystem, OpContext, OpenFile, OpenFlags, SetAttr, SetTime,
};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const ROOT: OpContext = OpContext::ROOT;
const APPEND: OpenFlags = OpenFlags::READ_WRITE.append();

/// A file of the source that is append-only while this lives.
struct Log(PathBuf);

impl Log {
    fn new(source: &Path, bytes: &[u8]) -> Log {
        let log = Log(source.join("log"));
        fs::write(&log.0, bytes).expect("write");
        log.set("+a");
        log
    }

    fn set(&self, flag: &str) {
        run("chattr", &[flag.as_ref(), self.0.as_ref()]);
    }

    /// Appends beside the cache.
    fn append(&self, bytes: &[u8]) {
        let file = fs::OpenOptions::new().append(true).open(&self.0);
        file.expect("open").write_all(bytes).expect("append");
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.0).expect("read")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.set("-a");
    }
}

fn open(fs: &DirFs, flags: OpenFlags) -> Result<OpenFile, Errno> {
    let inode = fs.lookup(&fs.root(), OsStr::new("log")).expect("lookup");
    fs.open(&ROOT, &inode, flags)
}

/// Options with different ways to write back.
fn ways() -> [DirFsOptions; 3] {
    let mut ways = [(); 3].map(|()| DirFsOptions::default());
    ways[1].exclusive = true;
    ways[2].direct = false;
    ways
}

#[test]
fn appends_reach_the_source_and_nothing_else_is_taken() {
    if lacks("root") {
        return;
    }
    for options in ways() {
        let source = on_disk();
        let log = Log::new(source.path(), b"first\n");
        let fs = dirfs(&cache(64), source.path(), options);
        let mut expected = b"first\n".to_vec();
        // Within a page, across pages, and in one go of many.
        for len in [1, 10, 4085, 4096, 5000, 100_000, 3 << 20] {
            let file = open(&fs, APPEND).expect("open");
            let bytes = pattern(len as u64, len);
            file.append_all(&bytes, false).expect("append");
            expected.extend_from_slice(&bytes);
            file.fsync().expect("fsync");
            assert!(log.bytes() == expected, "{len} bytes");
            // At its end a write is an append.
            let plain = open(&fs, OpenFlags::READ_WRITE).expect("open");
            write_all(&plain, b"end", expected.len() as u64);
            expected.extend_from_slice(b"end");
            drop((plain, file));
            let file = open(&fs, OpenFlags::READ).expect("open");
            assert!(read_all(&file) == expected, "{len} bytes");
        }
        let file = open(&fs, OpenFlags::READ_WRITE).expect("open");
        let size = expected.len() as u64;
        assert_eq!(file.write_at(b"x", 0), Err(Errno::EPERM));
        assert_eq!(file.write_at(b"xx", size - 1), Err(Errno::EPERM));
        assert_eq!(file.set_len(1), Err(Errno::EPERM));
        assert_eq!(file.set_len(size + 1), Err(Errno::EPERM));
        assert_eq!(file.punch_hole(0, 4096), Err(Errno::EPERM));
        let zeros = FallocateMode::ZeroRange;
        assert_eq!(file.fallocate(zeros, 0, 4096), Err(Errno::EPERM));
        let mapped = file.map(0, 4096, VmaAccess::ReadWrite);
        assert_eq!(mapped.err().map(|error| error.errno()), Some(Errno::EACCES));
        let cut = open(&fs, OpenFlags::WRITE.truncate()).map(drop);
        assert_eq!(cut, Err(Errno::EPERM));
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        fs.setattr(&ROOT, file.inode(), &set).expect("touch");
        file.fsync().expect("nothing was made dirty");
        drop(file);
        fs.sync_fs().expect("sync");
        assert!(log.bytes() == expected);
        assert_eq!(fs.bdi().nr_not_durable(), 0);
    }
}

/// The flusher goes on in the middle of a large file, and evicts pages of which the source has the beginning.
#[test]
fn appends_are_written_in_order_under_a_small_bound() {
    if lacks("root") {
        return;
    }
    let source = on_disk();
    let log = Log::new(source.path(), b"first\n");
    let fs = dirfs(&cache(16), source.path(), DirFsOptions::default());
    let mut expected = b"first\n".to_vec();
    let file = open(&fs, APPEND).expect("open");
    for round in 0..3000_usize {
        let bytes = pattern(round as u64, 1 + round * 37 % 20_000);
        file.append_all(&bytes, false).expect("append");
        expected.extend_from_slice(&bytes);
        match round % 100 {
            20 => file.fsync().expect("fsync"),
            50 => file.advise(Advice::DontNeed, 0, 0).expect("advise"),
            70 => file.mapping().begin_writeback(),
            90 => {
                let from = expected.len() as u64 - 100;
                file.mapping().fdatawrite();
                let mut last = [0; 100];
                assert_eq!(file.read_at(&mut last, from), Ok(100));
                assert!(last == expected[from as usize..]);
            }
            _ => {}
        }
    }
    file.fsync().expect("fsync");
    assert!(log.bytes() == expected);
    assert!(read_all(&file) == expected);
}

/// As with two programs that append on ext4: the records of both are there.
#[test]
fn appends_beside_those_of_others_are_all_kept() {
    if lacks("root") {
        return;
    }
    for options in ways() {
        let exclusive = options.exclusive;
        let source = on_disk();
        let log = Log::new(source.path(), b"first\n");
        let fs = dirfs(&cache(64), source.path(), options);
        let file = open(&fs, APPEND).expect("open");
        file.append_all(b"ours\n", false).expect("append");
        log.append(b"theirs\n");
        file.append_all(b"ours again\n", false).expect("append");
        file.fsync().expect("fsync");
        let expected = b"first\ntheirs\nours\nours again\n";
        assert_eq!(log.bytes(), expected);
        file.append_all(b"more\n", false).expect("append");
        file.fsync().expect("fsync");
        let expected = [&expected[..], b"more\n"].concat();
        assert_eq!(log.bytes(), expected);
        drop(file);
        // In an exclusive directory the source is not asked.
        if !exclusive {
            let file = open(&fs, OpenFlags::READ).expect("open");
            assert_eq!(read_all(&file), expected);
        }
    }
}

#[test]
fn a_file_that_is_append_only_no_longer_is_written_anywhere() {
    if lacks("root") {
        return;
    }
    let source = on_disk();
    let log = Log::new(source.path(), b"first\n");
    let fs = dirfs(&cache(64), source.path(), DirFsOptions::default());
    let file = open(&fs, APPEND).expect("open");
    file.append_all(b"second\n", false).expect("append");
    file.fsync().expect("fsync");
    log.set("-a");
    let again = open(&fs, OpenFlags::READ_WRITE).expect("open");
    write_all(&again, b"F", 0);
    file.append_all(b"third\n", false).expect("append");
    again.fsync().expect("fsync");
    assert_eq!(log.bytes(), b"First\nsecond\nthird\n");
    again.set_len(3).expect("set_len");
    assert_eq!(log.bytes(), b"Fir");
}

/// An immutable file is still refused at the open.
#[test]
fn an_immutable_file_is_not_opened_for_writing() {
    if lacks("root") {
        return;
    }
    let source = on_disk();
    let log = Log::new(source.path(), b"first\n");
    log.set("-a");
    log.set("+i");
    let fs = dirfs(&cache(64), source.path(), DirFsOptions::default());
    for flags in [APPEND, OpenFlags::WRITE, OpenFlags::READ_WRITE] {
        assert_eq!(open(&fs, flags).map(drop), Err(Errno::EPERM));
    }
    let file = open(&fs, OpenFlags::READ).expect("open");
    assert_eq!(read_all(&file), b"first\n");
    log.set("-i");
}
