//! Renames that replace another file, beside a writer and other renames: data written before such a rename is in
//! the store before the name is.

use crate::names::{B, FILE_OF_A, FILE_OF_B, Names, paths};
use foliocache_sync::model::sample;
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use foliocache_vfs::{RenameMode, SuperBlock};
use std::ffi::OsStr;

/// Renames `a/f` to `b/f`, unless it is gone, and checks that the store had the moved file's
/// earlier writes.
fn rename(names: &SuperBlock, store: &Names, mode: RenameMode) {
    let dir = |name| {
        let dir = paths(names, None).lookup(OsStr::new(name), true);
        dir.unwrap_or_else(|error| panic!("{error:?}"))
    };
    let (a, b, name) = (dir("a"), dir("b"), OsStr::new("f"));
    let before = store.written();
    let done = names.rename(&a, name, &b, name, mode, None);
    if done == Err(Errno::ENOENT) && mode == RenameMode::Exchange {
        // The other rename was faster.
        return;
    }
    assert_eq!(done, Ok(()));
    let stored = store.stored_when_moved(mode).expect("it was moved");
    let moved = match mode {
        RenameMode::Exchange => vec![FILE_OF_A, FILE_OF_B],
        // The other rename, if there is one, ends before this or does nothing.
        _ => store.leads_to(B, "f").into_iter().collect(),
    };
    for file in moved {
        let file = file as usize;
        assert!(stored[file] >= before[file], "{before:?}, {stored:?}");
    }
}

/// Runs renames of these kinds beside each other and beside a writer.
fn race(modes: &'static [RenameMode]) {
    sample(2000, move || {
        let store = Arc::new(Names::new());
        let names = Arc::new(SuperBlock::unbounded(store.clone()));
        store.write(FILE_OF_A);
        store.write(FILE_OF_B);
        let written = store.clone();
        let writer = thread::spawn(move || {
            for file in [FILE_OF_A, FILE_OF_B, FILE_OF_A] {
                written.write(file);
            }
        });
        let renamers: Vec<_> = (modes.iter())
            .map(|&mode| {
                let (names, store) = (names.clone(), store.clone());
                thread::spawn(move || rename(&names, &store, mode))
            })
            .collect();
        for thread in renamers {
            thread.join().unwrap();
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_file_renamed_over_another_brings_its_earlier_writes() {
    race(&[RenameMode::Replace]);
}

#[test]
fn exchanged_files_bring_their_earlier_writes() {
    race(&[RenameMode::Exchange]);
}

#[test]
fn a_file_put_in_place_by_another_rename_brings_its_earlier_writes() {
    race(&[RenameMode::Exchange, RenameMode::Replace]);
}
