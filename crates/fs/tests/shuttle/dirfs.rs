//! Files of a real directory under random schedules: one thread replaces or removes a file and syncs nothing, others open it
//! by its name or by an inode that they looked up before, and names and inodes are evicted beside them. Each opening has one
//! version, whole.
//!
//! The directory lies on a tmpfs, so no call to it takes long.

use crate::common::{on_tmpfs, root_namei};
use foliocache_fs::{DirFs, DirFsOptions, WritebackAtClose};
use foliocache_mm::{Mm, MmConfig, PAGE_SIZE};
use foliocache_sync::model::{Execution, run_seeds, with_virtual_time};
use foliocache_sync::time::{Duration, sleep};
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use foliocache_vfs::{
    FileSystem, Inode, OpContext, OpenFile, OpenFlags, OpenHow, RenameMode, SlabArc, SuperBlock,
    WalkError,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;

/// Bytes of a file.
const LEN: usize = 2 * PAGE_SIZE + 100;

/// Versions of a file that a thread makes.
const ROUNDS: u8 = 3;

/// Shared by the models: a directory, behind a small cache.
struct Small {
    mm: Arc<Mm>,
    fs: Arc<DirFs>,
    names: Arc<SuperBlock>,
    folder: tempfile::TempDir,
}

impl Small {
    fn new(seed: u64) -> Small {
        Small::with(seed, |_| {})
    }

    fn with(seed: u64, set: impl FnOnce(&mut DirFsOptions)) -> Small {
        let folder = on_tmpfs();
        let mm = Mm::new(MmConfig::new(8 << 20)).expect("a cache");
        let mut options = DirFsOptions::default();
        (options.watch, options.io_uring, options.direct) = (false, false, false);
        options.writeback_at_close = match seed % 3 {
            0 => WritebackAtClose::Begin,
            1 => WritebackAtClose::Delayed,
            _ => WritebackAtClose::Wait,
        };
        set(&mut options);
        let fs = Arc::new(DirFs::open(&mm, folder.path(), options).expect("a directory"));
        Small {
            names: Arc::new(SuperBlock::new(fs.clone(), &mm)),
            mm,
            fs,
            folder,
        }
    }

    fn open(&self, name: &str, create: bool) -> Result<OpenFile, Errno> {
        let flags = match create {
            true => OpenFlags::READ_WRITE,
            false => OpenFlags::READ,
        };
        let how = OpenHow {
            flags,
            create,
            mode: 0o644,
            ..OpenHow::default()
        };
        let opened = root_namei(&self.names).open(OsStr::new(name), how);
        opened.map_err(|error: WalkError| error.errno())
    }

    /// Makes a file of this byte, open.
    fn make(&self, name: &str, byte: u8) -> OpenFile {
        let file = self.open(name, true).expect("a new file");
        assert_eq!(file.write_at(&[byte; LEN], 0), Ok(LEN));
        file
    }

    fn rename(&self, from: &str, to: &str) {
        let names = root_namei(&self.names);
        let done = names.rename(
            OsStr::new(from),
            &names,
            OsStr::new(to),
            RenameMode::Replace,
        );
        done.expect("a new name");
    }

    fn unlink(&self, name: &str) {
        let done = root_namei(&self.names).unlink(OsStr::new(name));
        done.expect("its name goes");
    }

    /// Takes an inode, as a mount's kernel does.
    fn look_up(&self, name: &str) -> Option<SlabArc<Inode>> {
        match root_namei(&self.names).inode(OsStr::new(name), true) {
            Ok(inode) => Some(inode),
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENOENT);
                None
            }
        }
    }

    fn open_inode(&self, inode: &SlabArc<Inode>) -> OpenFile {
        let opened = self.fs.open(&OpContext::ROOT, inode, OpenFlags::READ);
        opened.expect("it was looked up")
    }

    /// Nothing is left of a file whose last name and holder are gone.
    fn end(self) {
        self.names.evict_unused();
        let left = || {
            let pages = self.mm.stats().files.resident_pages;
            (pages, self.fs.bdi().nr_not_durable())
        };
        // The flusher may be writing a part of it.
        for _ in 0..100 {
            if left() == (0, 0) {
                break;
            }
            sleep(Duration::from_secs(1));
        }
        assert_eq!(left(), (0, 0));
    }
}

#[track_caller]
fn assert_whole(file: &OpenFile) {
    let mut bytes = vec![0xee; LEN + 10];
    let read = file.read_at(&mut bytes, 0).expect("it is open");
    let first = bytes[0];
    assert!(
        (1..=ROUNDS).contains(&first),
        "{read} bytes, the first is {first}"
    );
    assert!(bytes[..read] == [first; LEN], "{read} bytes of {first}");
}

/// Runs `model` with this many seeds, most of which must lead to different schedules.
fn run(seeds: u64, model: fn(u64)) {
    let _alone = crate::alone();
    let schedules = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = std::sync::Arc::clone(&schedules);
    let ended = move |execution: Execution| {
        seen.lock().expect("no panic").insert(execution.hash);
    };
    let ran = run_seeds(0..seeds, ended, move |seed| {
        with_virtual_time(|| model(seed));
    });
    assert_eq!(ran, Ok(()), "the seed that failed");
    let different = schedules.lock().expect("no panic").len() as u64;
    assert!(different >= seeds / 2, "{different} schedules only");
}

fn spawn(small: &Arc<Small>, run: impl FnOnce(&Small) + Send + 'static) -> thread::JoinHandle<()> {
    let small = Arc::clone(small);
    thread::spawn(move || run(&small))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("it does not panic");
    }
}

/// Opens by name, which the writer may have taken away.
fn open_by_name(small: &Small) {
    for _ in 0..ROUNDS {
        match small.open("v", false) {
            Ok(file) => assert_whole(&file),
            Err(error) => assert_eq!(error, Errno::ENOENT),
        }
    }
}

/// Opens a looked-up file, twice.
fn open_by_inode(small: &Small) {
    for _ in 0..ROUNDS {
        let Some(inode) = small.look_up("v") else {
            continue;
        };
        for _ in 0..2 {
            assert_whole(&small.open_inode(&inode));
        }
        small.names.put(inode);
    }
}

#[test]
fn each_open_of_a_replaced_or_removed_file_sees_one_version() {
    run(800, |seed| {
        let small = Arc::new(Small::new(seed));
        drop(small.make("v", 1));
        let removes = seed / 3 % 2 == 1;
        let writer = spawn(&small, move |small| {
            for round in 1..=ROUNDS {
                drop(small.make(".t", round));
                small.rename(".t", "v");
                if removes {
                    small.unlink("v");
                }
            }
        });
        let threads = [
            writer,
            spawn(&small, open_by_name),
            spawn(&small, open_by_inode),
            spawn(&small, |small| small.names.evict_unused()),
        ];
        join(threads);
        if !removes {
            assert_whole(&small.open("v", false).expect("it is there"));
            small.unlink("v");
        }
        let small = Arc::into_inner(small).expect("the threads are gone");
        small.end();
    });
}

/// The last close of a file without a name, beside openings of its inode, and the drop of that.
#[test]
fn a_file_without_a_name_keeps_its_data_from_one_opening_to_the_next() {
    run(800, |seed| {
        let small = Arc::new(Small::new(seed));
        let file = small.make("v", 1);
        let inodes: [_; 2] = std::array::from_fn(|_| small.look_up("v").expect("it is there"));
        small.unlink("v");
        let closer = thread::spawn(move || drop(file));
        let by_put = seed / 3 % 2 == 1;
        let openers = inodes.map(|inode| {
            spawn(&small, move |small| {
                for _ in 0..2 {
                    assert_whole(&small.open_inode(&inode));
                }
                match by_put {
                    true => small.names.put(inode),
                    false => drop(inode),
                }
            })
        });
        join([closer]);
        join(openers);
        let small = Arc::into_inner(small).expect("the threads are gone");
        small.end();
    });
}

/// Queries about a file that was opened without a descriptor, while its name goes.
#[test]
fn a_file_that_was_opened_from_the_cache_has_attributes_when_its_name_goes() {
    run(400, |seed| {
        let small = Arc::new(Small::with(seed, |options| {
            options.exclusive = true;
            options.path_descriptors = 0;
        }));
        std::fs::write(small.folder.path().join("v"), [1; LEN]).expect("a file");
        for _ in 0..2 {
            assert_whole(&small.open("v", false).expect("it is there"));
        }
        let without = small.open("v", false).expect("it is there");
        assert_eq!(small.fs.stats().opens_from_cache, 1);
        let none = OsStr::new("user.none");
        let asker = spawn(&small, move |small| {
            let found = small.fs.getxattr(without.inode(), none);
            assert_eq!(found, Err(Errno::ENODATA));
            assert_whole(&without);
        });
        let remover = spawn(&small, move |small| {
            if seed / 3 % 2 == 1 {
                return small.unlink("v");
            }
            drop(small.make(".t", 2));
            small.rename(".t", "v");
            small.unlink("v");
        });
        join([asker, remover]);
        let small = Arc::into_inner(small).expect("the threads are gone");
        small.end();
    });
}

/// A file is opened to be written anew, beside openings that ask the source.
#[test]
fn a_file_that_is_cut_is_not_taken_for_one_that_others_wrote() {
    const NEW: usize = 100;
    run(1000, |seed| {
        let small = Arc::new(Small::new(seed));
        std::fs::write(small.folder.path().join("v"), [1; LEN]).expect("a file");
        assert_whole(&small.open("v", false).expect("it is there"));
        let writer = spawn(&small, |small| {
            let how = OpenHow {
                flags: OpenFlags::READ_WRITE.truncate(),
                ..OpenHow::default()
            };
            let file = root_namei(&small.names).open(OsStr::new("v"), how);
            let file = file.expect("it is there");
            assert_eq!(file.write_at(&[2; NEW], 0), Ok(NEW));
        });
        let readers = [(); 2].map(|()| {
            spawn(&small, |small| {
                for _ in 0..2 {
                    let file = small.open("v", false).expect("it is there");
                    let mut bytes = [0xee; LEN + 10];
                    let read = file.read_at(&mut bytes, 0).expect("it is open");
                    assert!(bytes[..read].iter().all(|byte| [1, 2].contains(byte)));
                }
            })
        });
        join([writer]);
        join(readers);
        let file = small.open("v", false).expect("it is there");
        assert_eq!(file.read_at(&mut [0; LEN], 0), Ok(NEW));
        drop(file);
        small.unlink("v");
        let small = Arc::into_inner(small).expect("the threads are gone");
        small.end();
    });
}
