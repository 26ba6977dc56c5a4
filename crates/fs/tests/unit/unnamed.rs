//! The cached pages of an unlinked file: they stay while its inode is held, and go with the last
//! holder.

use crate::common::{cache, dirfs, on_disk, pattern, read_all, write_all};
use foliocache_fs::{DirFs, DirFsOptions, WritebackAtClose};
use foliocache_mm::Mm;
use foliocache_vfs::{
    FileSystem, Inode, OpContext, OpenFile, OpenFlags, Remove, RenameMode, SlabArc,
};
use std::ffi::OsStr;
use std::sync::Arc;
use tempfile::TempDir;

const ROOT: OpContext = OpContext::ROOT;

/// Too large for batches of small files.
const LEN: usize = 100_000;

const MODES: [WritebackAtClose; 3] = [
    WritebackAtClose::Begin,
    WritebackAtClose::Wait,
    WritebackAtClose::Delayed,
];

/// A source seen through a small cache.
struct Source {
    fs: DirFs,
    mm: Arc<Mm>,
    _folder: TempDir,
}

impl Source {
    fn new(mode: WritebackAtClose) -> Source {
        let (mm, folder) = (cache(16), on_disk());
        let mut options = DirFsOptions::default();
        options.writeback_at_close = mode;
        Source {
            fs: dirfs(&mm, folder.path(), options),
            mm,
            _folder: folder,
        }
    }

    /// Makes a file of these bytes, open.
    fn create(&self, name: &str, bytes: &[u8]) -> OpenFile {
        let (root, how) = (self.fs.root(), OpenFlags::READ_WRITE);
        let made = self.fs.create(&ROOT, &root, OsStr::new(name), 0o644, how);
        let file = made.expect("create");
        write_all(&file, bytes, 0);
        file
    }

    /// As a thread that is about to open it.
    fn find(&self, name: &str) -> SlabArc<Inode> {
        let found = self.fs.lookup(&self.fs.root(), OsStr::new(name));
        found.expect("lookup")
    }

    fn read(&self, inode: &SlabArc<Inode>) -> Vec<u8> {
        let file = self.fs.open(&ROOT, inode, OpenFlags::READ);
        read_all(&file.expect("open"))
    }

    fn unlink(&self, name: &str) {
        let unlinked = self
            .fs
            .remove(&self.fs.root(), OsStr::new(name), Remove::File);
        unlinked.expect("unlink");
    }

    fn rename(&self, from: &str, to: &str) {
        let (root, mode) = (self.fs.root(), RenameMode::Replace);
        let renamed = (self.fs).rename(&root, OsStr::new(from), &root, OsStr::new(to), mode);
        renamed.expect("rename");
    }

    /// Whether nothing is cached or waits to be written.
    fn is_empty(&self) -> bool {
        (
            self.mm.stats().files.resident_pages,
            self.fs.bdi().nr_not_durable(),
        ) == (0, 0)
    }
}

#[test]
fn a_file_that_was_looked_up_keeps_its_data_when_its_name_goes() {
    for mode in MODES {
        let source = Source::new(mode);
        for seed in 1..4 {
            for small in [true, false] {
                let bytes = pattern(seed, if small { 5000 } else { LEN });
                drop(source.create("removed", &bytes));
                drop(source.create("replaced", &bytes));
                drop(source.create("new", b"new"));
                let (removed, replaced) = (source.find("removed"), source.find("replaced"));
                source.unlink("removed");
                source.rename("new", "replaced");
                source.unlink("replaced");
                for inode in [&removed, &replaced] {
                    assert!(source.read(inode) == bytes, "{mode:?}");
                }
            }
        }
    }
}

#[test]
fn a_file_that_was_looked_up_keeps_its_data_after_its_last_close() {
    for mode in MODES {
        let source = Source::new(mode);
        for seed in 1..4 {
            let bytes = pattern(seed, LEN);
            let file = source.create("file", &bytes);
            let inode = source.find("file");
            source.unlink("file");
            drop(file);
            // Twice: the second open finds the state that the first one's close left.
            for _ in 0..2 {
                assert!(source.read(&inode) == bytes, "{mode:?}");
            }
            let file = source.fs.open(&ROOT, &inode, OpenFlags::READ_WRITE);
            let (file, more) = (file.expect("open"), pattern(seed + 10, LEN));
            write_all(&file, &more, LEN as u64);
            drop(file);
            assert!(source.read(&inode) == [bytes, more].concat(), "{mode:?}");
        }
    }
}

/// Otherwise its pages would be written although no one can read them.
#[test]
fn data_of_a_file_without_a_name_goes_with_its_last_holder() {
    for mode in MODES {
        let source = Source::new(mode);
        for by_put in [true, false] {
            let file = source.create("file", &pattern(1, LEN));
            let inode = source.find("file");
            source.unlink("file");
            drop(file);
            assert!(!source.is_empty(), "it has a holder");
            match by_put {
                true => Inode::put(inode),
                false => {
                    drop(inode);
                    // The cache's own reference waits for readers.
                    while source.fs.reap() > 0 {
                        std::thread::yield_now();
                    }
                }
            }
            assert!(source.is_empty(), "{mode:?}, by put: {by_put}");
        }
    }
}

#[test]
fn temporary_files_are_not_written() {
    for mode in MODES {
        let source = Source::new(mode);
        for round in 0..100 {
            let file = source.create("temporary", &pattern(round, LEN));
            source.unlink("temporary");
            assert!(read_all(&file) == pattern(round, LEN));
            drop(file);
            assert!(source.is_empty());
        }
        let stats = source.fs.stats();
        assert_eq!(
            (stats.direct_writes, stats.buffered_writes),
            (0, 0),
            "{mode:?}"
        );
    }
}

/// It is written like that of other files when memory is short.
#[test]
fn data_of_held_files_without_names_makes_room_for_more() {
    const SIZE: usize = 1 << 20;
    let content = |number: u8| vec![number + 1; SIZE];
    let source = Source::new(WritebackAtClose::Begin);
    let held: Vec<_> = (0..30)
        .map(|number| {
            drop(source.create("file", &content(number)));
            let inode = source.find("file");
            source.unlink("file");
            inode
        })
        .collect();
    for (number, inode) in (0..).zip(&held) {
        assert!(source.read(inode) == content(number), "file {number}");
    }
    held.into_iter().for_each(Inode::put);
    assert!(source.is_empty());
}
