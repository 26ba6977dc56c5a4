//! The prefixes that a thread remembers, beside changes of the directories on its paths: the walk, the prefixes and
//! the changes of names as front doors call them, over a file system in memory.
//!
//! The result of a walk may be the state at any moment of it, but none that was over before it
//! began.

use crate::names::{FILE_OF_A, FILE_OF_B, Names, paths};
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, Condvar, Mutex, thread};
use foliocache_sys::Errno;
use foliocache_vfs::{Remove, RenameMode, SuperBlock, WalkError};
use std::ffi::OsStr;

/// The file behind `a/f`.
fn walk(names: &SuperBlock) -> Option<u64> {
    match paths(names, None).lookup(OsStr::new("a/f"), true) {
        Ok(dentry) => dentry.inode().map(|inode| inode.ino()),
        Err(WalkError::Errno(Errno::ENOENT)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// One thread walks to `a/f` `before` times first, from the third on by its remembered prefixes, and then while
/// another makes `change`, after which it leads to `after`.
fn race(before: usize, change: fn(&SuperBlock), after: Option<u64>) {
    sample(1500, move || {
        let names = Arc::new(SuperBlock::unbounded(Arc::new(Names::new())));
        let learnt = Arc::new((Mutex::new(false), Condvar::new()));
        let changed = Arc::new(AtomicU64::new(0));
        let (walked, learns, seen) = (names.clone(), learnt.clone(), changed.clone());
        let walker = thread::spawn(move || {
            for _ in 0..before {
                assert_eq!(walk(&walked), Some(FILE_OF_A));
            }
            let remembers = paths(&walked, None).remembers(OsStr::new("a/f"));
            assert_eq!(remembers, before == 3);
            *learns.0.lock() = true;
            learns.1.notify_all();
            let mut is_over = false;
            // To the end of a walk that began after the change.
            let mut last = false;
            while !last {
                // Acquire pairs with the Release below.
                last = seen.load(Ordering::Acquire) == 1;
                is_over |= last;
                let found = walk(&walked);
                let was_there = !is_over && found == Some(FILE_OF_A);
                assert!(found == after || was_there, "{found:?}");
                is_over |= found == after;
            }
        });
        let changer = thread::spawn(move || {
            let mut ready = learnt.0.lock();
            while !*ready {
                ready = learnt.1.wait(ready);
            }
            drop(ready);
            change(&names);
            changed.store(1, Ordering::Release);
        });
        changer.join().unwrap();
        walker.join().unwrap();
    });
}

fn rename(names: &SuperBlock, to: &str, mode: RenameMode) {
    let root = names.root();
    let done = names.rename(root, OsStr::new("a"), root, OsStr::new(to), mode, None);
    assert_eq!(done, Ok(()));
}

#[test]
fn a_remembered_directory_that_moves_is_not_found_where_it_was() {
    let away = |names: &SuperBlock| rename(names, "c", RenameMode::Replace);
    race(3, away, None);
}

#[test]
fn two_directories_that_change_places_are_found_where_they_are() {
    let exchange = |names: &SuperBlock| rename(names, "b", RenameMode::Exchange);
    race(3, exchange, Some(FILE_OF_B));
}

#[test]
fn a_directory_remembered_beside_a_change_is_not_used_after_it() {
    let exchange = |names: &SuperBlock| rename(names, "b", RenameMode::Exchange);
    race(1, exchange, Some(FILE_OF_B));
}

#[test]
fn a_remembered_directory_that_is_removed_is_not_gone_to() {
    let remove = |names: &SuperBlock| {
        let root = names.root();
        let dir = paths(names, None).lookup(OsStr::new("a"), true).unwrap();
        names
            .remove(&dir, OsStr::new("f"), Remove::File, None)
            .unwrap();
        drop(dir);
        names
            .remove(root, OsStr::new("a"), Remove::Directory, None)
            .unwrap();
    };
    race(3, remove, None);
}
