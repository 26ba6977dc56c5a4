//! Locks of a handle under random schedules, while other threads of the process write to the file and write it out:
//! they are granted at once, and show the earlier writes of others to the source.
//!
//! The directory lies on a tmpfs, so no call to it takes long.

use crate::common::{on_tmpfs, root_namei};
use foliocache_fs::{DirFs, DirFsOptions};
use foliocache_mm::{Mm, MmConfig, PAGE_SIZE};
use foliocache_sync::model::{Execution, run_seeds, with_virtual_time};
use foliocache_sync::{Arc, RwLock, thread};
use foliocache_sys::fd::LockKind;
use foliocache_vfs::{Contended, FileLocks, OpenFile, OpenFlags, OpenHow, SuperBlock};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Pages of the file: one for each writer, and one for others.
const WRITERS: usize = 2;
const OF_OTHERS: usize = WRITERS;

/// The rounds of each thread.
const ROUNDS: u8 = 4;

fn open(names: &SuperBlock) -> OpenFile {
    let how = OpenHow {
        flags: OpenFlags::READ_WRITE,
        ..OpenHow::default()
    };
    root_namei(names)
        .open(OsStr::new("v"), how)
        .expect("a file")
}

/// Others, with an exclusive lock, do not write at the very moment at which a thread here writes
/// out.
type Turns = RwLock<()>;

/// Writes the page of the writer again and again, and writes it out or makes it durable.
fn write(file: &OpenFile, writer: usize, durable: bool, turns: &Turns) {
    let mapping = file.mapping();
    for round in 1..=ROUNDS {
        let pos = (writer * PAGE_SIZE) as u64;
        assert_eq!(file.write_at(&[round; PAGE_SIZE], pos), Ok(PAGE_SIZE));
        let _turn = turns.read();
        match durable {
            true => assert_eq!(file.fdatasync(), Ok(())),
            false => assert_eq!(mapping.write_and_wait(), Ok(())),
        }
    }
}

/// Locks, and checks that the others' page has their last write.
fn lock(locks: &dyn FileLocks, file: &OpenFile, source: Option<&Path>, turns: &Turns) {
    for round in 1..=ROUNDS {
        if let Some(source) = source {
            let _turn = turns.write();
            let beside = std::fs::File::options().write(true).open(source);
            let pos = (OF_OTHERS * PAGE_SIZE) as u64;
            let written = beside.and_then(|beside| beside.write_all_at(&[round; PAGE_SIZE], pos));
            written.expect("a write to the source");
        }
        let had = locks.lock(Some(&(0..1)), LockKind::Shared, Contended::Fail);
        assert_eq!(had, Ok(()), "there is no other lock");
        if source.is_some() {
            let mut page = [0; PAGE_SIZE];
            let read = file.read_at(&mut page, (OF_OTHERS * PAGE_SIZE) as u64);
            assert_eq!(read, Ok(PAGE_SIZE));
            assert!(
                page == [round; PAGE_SIZE],
                "{} in place of {round}",
                page[0]
            );
        }
        assert_eq!(locks.unlock(Some(&(0..1))), Ok(()));
    }
}

fn model(seed: u64) {
    let folder = on_tmpfs();
    let path = folder.path().join("v");
    std::fs::write(&path, [0; (WRITERS + 1) * PAGE_SIZE]).expect("a file");
    let mm = Mm::new(MmConfig::new(8 << 20)).expect("a cache");
    let mut options = DirFsOptions::default();
    (options.watch, options.io_uring, options.direct) = (false, false, false);
    let fs = Arc::new(DirFs::open(&mm, folder.path(), options).expect("a directory"));
    let names = Arc::new(SuperBlock::new(fs, &mm));
    let (durable, with_others) = (seed % 2 == 1, seed / 2 % 2 == 1);
    let turns = Arc::new(Turns::new(()));
    let mut threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (file, turns) = (open(&names), Arc::clone(&turns));
            thread::spawn(move || write(&file, writer, durable, &turns))
        })
        .collect();
    let file = open(&names);
    threads.push(thread::spawn(move || {
        let inode = file.inode();
        let locks = inode.ops().new_locks(inode, OpenFlags::READ_WRITE);
        let locks = locks.expect("a descriptor");
        lock(&*locks, &file, with_others.then_some(&path), &turns);
    }));
    for thread in threads {
        thread.join().expect("it does not panic");
    }
    let file = open(&names);
    let mut all = vec![0; WRITERS * PAGE_SIZE];
    assert_eq!(file.read_at(&mut all, 0), Ok(WRITERS * PAGE_SIZE));
    assert!(all.iter().all(|&byte| byte == ROUNDS), "a write is lost");
}

#[test]
fn a_lock_beside_writers_shows_writes_by_others() {
    const SEEDS: u64 = 600;
    let _alone = crate::alone();
    let schedules = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = std::sync::Arc::clone(&schedules);
    let ended = move |execution: Execution| {
        seen.lock().expect("no panic").insert(execution.hash);
    };
    let ran = run_seeds(0..SEEDS, ended, |seed| with_virtual_time(|| model(seed)));
    assert_eq!(ran, Ok(()), "the seed that failed");
    let different = schedules.lock().expect("no panic").len() as u64;
    assert!(different >= SEEDS / 2, "{different} schedules only");
}
