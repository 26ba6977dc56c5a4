//! Answers of a store that reports its changes, beside these changes: `SuperBlock` as front doors call it, over a
//! file system in memory that is also changed from outside.
//!
//! In a model news are never recent enough to be used unread. So a reader that begins after a change has returned
//! sees it, whatever others ask, enter or read meanwhile. If the reported name's dentry is removed at the same
//! time, that holds once all have returned.
//!
//! Mutations that are found, in `belief`:
//! - the epoch stays when news are lost;
//! - `read_at` is the time at which the reading ended, or each watch sets it.
//!
//! In `super_block`:
//! - `ask` does not compare the doubts, compares them without their lock, or believes by time where they differ;
//! - `believe_ours` does not compare them;
//! - `getattr` does not look whether the dentry is hashed, or in the directory that was watched;
//! - a rename leaves the belief of the name;
//! - the listener looks for the dentry before it counts the doubt;
//! - the listener begins no change of `permissions`, or of it and of `places`;
//! - `invalidate` or `expect_displaced` expects nothing, or a file is expected until the next news alone;
//! - the listener does not look for the expected files, or does before it looks for the dentry, or counts no second
//!   doubt in between (in one of some 6,000 executions).
//!
//! In `attr` and `inode`:
//! - `believe` does not compare the doubts, or overwrites a later answer;
//! - `name_gone` does nothing.

use crate::names::{A, B, FILE_OF_A, FILE_OF_B, Names, Queue, ROOT, paths};
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::model::sample_runs;
use foliocache_sync::{Arc, thread};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    Access, Credentials, FileSystem, Inode, Remove, RenameMode, SuperBlock, Validity, WalkError,
};
use std::ffi::OsStr;
use std::time::Duration;

/// Longer than an execution takes: no answer expires.
const LONG: Validity = Validity {
    present: Duration::from_secs(1000),
    absent: Duration::from_secs(1000),
};

/// Not believed by any later call.
const SHORT: Validity = Validity {
    present: Duration::from_millis(1),
    absent: Duration::from_millis(1),
};

/// The file at a path.
fn walk(sb: &SuperBlock, path: &str) -> Option<u64> {
    walk_as(sb, path, None)
}

fn walk_as(sb: &SuperBlock, path: &str, credentials: Option<&Credentials>) -> Option<u64> {
    match paths(sb, credentials).lookup(OsStr::new(path), true) {
        Ok(dentry) => dentry.inode().map(|inode| inode.ino()),
        Err(WalkError::Errno(Errno::ENOENT | Errno::EACCES)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// A user whom the changed file excludes.
fn user() -> Credentials {
    Credentials::new(7, 7, &[])
}

/// How often the file behind a path has changed.
fn changes(sb: &SuperBlock, path: &str) -> Option<u64> {
    match paths(sb, None).stat(OsStr::new(path), true) {
        Ok(attr) => Some(attr.attributes.size),
        Err(WalkError::Errno(Errno::ENOENT)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

const EXECUTIONS: usize = 2000;

type Look = fn(&SuperBlock) -> Option<u64>;

/// A thread looks while another changes the store from outside and a third reads the news: a look that begins after
/// the change returned sees it.
fn race(room: usize, look: Look, change: fn(&Names), before: Option<u64>, after: Option<u64>) {
    for (is_known, delay) in [(true, 0), (false, 0), (false, 100)] {
        sample_runs(EXECUTIONS, move || {
            let names = Arc::new(Names::watched(LONG, Queue::new(room, &[])));
            let sb = Arc::new(SuperBlock::unbounded(names.clone()));
            let changed = Arc::new(AtomicU64::new(0));
            assert_eq!(walk(&sb, "a/h"), None);
            if is_known {
                assert_eq!(look(&sb), before);
            }
            let (looks, seen) = (sb.clone(), changed.clone());
            let looker = thread::spawn(move || {
                // The third walk uses the remembered prefix.
                for _ in 0..4 {
                    // Acquire pairs with the Release below.
                    let over = seen.load(Ordering::Acquire) == 1;
                    let found = look(&looks);
                    assert!(found == after || !over && found == before, "{found:?}");
                }
            });
            let (outside, looks) = (names.clone(), sb.clone());
            let changer = thread::spawn(move || {
                outside.wait(delay);
                change(&outside);
                changed.store(1, Ordering::Release);
                assert_eq!(look(&looks), after);
            });
            let looks = sb.clone();
            let reader = thread::spawn(move || {
                looks.fs().belief().now();
                walk(&looks, "b/h");
            });
            looker.join().unwrap();
            changer.join().unwrap();
            reader.join().unwrap();
            assert_eq!(look(&sb), after);
            // And is believed from then on.
            let asked = names.asked();
            assert_eq!(look(&sb), after);
            assert_eq!(names.asked(), asked);
        });
    }
}

#[test]
fn a_name_that_is_removed_outside_is_not_believed() {
    let remove = |names: &Names| drop(names.take(A, "f").unwrap());
    race(9, |sb| walk(sb, "a/f"), remove, Some(FILE_OF_A), None);
}

#[test]
fn a_name_that_is_made_outside_is_not_believed_to_be_missing() {
    let make = |names: &Names| names.move_to((B, "f"), (A, "g"), false).unwrap();
    race(9, |sb| walk(sb, "a/g"), make, None, Some(FILE_OF_B));
}

#[test]
fn a_name_replaced_from_outside_does_not_lead_to_the_old_file() {
    let replace = |names: &Names| names.move_to((B, "f"), (A, "f"), false).unwrap();
    race(
        9,
        |sb| walk(sb, "a/f"),
        replace,
        Some(FILE_OF_A),
        Some(FILE_OF_B),
    );
}

#[test]
fn attributes_that_change_outside_are_not_believed() {
    let touch = |names: &Names| names.touch(A, "f");
    race(9, |sb| changes(sb, "a/f"), touch, Some(0), Some(1));
}

#[test]
fn attributes_of_a_directory_are_told_by_its_own_watch() {
    let touch = |names: &Names| names.touch(ROOT, "a");
    race(9, |sb| changes(sb, "a"), touch, Some(0), Some(1));
}

#[test]
fn a_name_that_changes_outside_changes_its_directory() {
    let remove = |names: &Names| drop(names.take(A, "f").unwrap());
    race(9, |sb| changes(sb, "a"), remove, Some(0), Some(1));
}

#[test]
fn a_way_that_is_moved_outside_is_not_gone() {
    let away = |names: &Names| names.move_to((ROOT, "a"), (ROOT, "c"), false).unwrap();
    race(9, |sb| walk(sb, "a/f"), away, Some(FILE_OF_A), None);
}

#[test]
fn a_way_that_is_closed_outside_is_not_gone() {
    let close = |names: &Names| names.touch(ROOT, "a");
    race(
        9,
        |sb| walk_as(sb, "a/f", Some(&user())),
        close,
        Some(FILE_OF_A),
        None,
    );
}

#[test]
fn a_way_from_a_root_that_is_closed_outside_is_not_gone() {
    let close = |names: &Names| names.touch_root();
    race(
        9,
        |sb| walk_as(sb, "a/f", Some(&user())),
        close,
        Some(FILE_OF_A),
        None,
    );
}

#[test]
fn lost_news_end_the_belief_in_names() {
    let lose = |names: &Names| {
        names.touch(B, "f");
        names.touch(A, "f");
        names.move_to((B, "f"), (A, "f"), false).unwrap();
    };
    let look = |sb: &SuperBlock| {
        walk(sb, "b/g");
        walk(sb, "a/f")
    };
    race(1, look, lose, Some(FILE_OF_A), Some(FILE_OF_B));
}

#[test]
fn lost_news_end_the_belief_in_attributes() {
    let lose = |names: &Names| {
        names.touch(ROOT, "b");
        names.touch(A, "f");
    };
    race(1, |sb| changes(sb, "a/f"), lose, Some(0), Some(1));
}

/// Others replace a file while several look it up, and the news were not read yet.
#[test]
fn a_name_that_was_seen_to_lead_elsewhere_does_not_lead_back() {
    for evicts in [false, true] {
        sample_runs(EXECUTIONS, move || {
            let queue = Queue::new(9, &[]);
            let names = Arc::new(Names::watched(LONG, queue.clone()));
            let sb = Arc::new(SuperBlock::unbounded(names.clone()));
            assert_eq!(walk(&sb, "a/h"), None);
            queue.hold_back();
            names.answer_late(FILE_OF_A);
            let asked = names.asked();
            let lookers = [0; 2].map(|_| {
                let sb = sb.clone();
                thread::spawn(move || {
                    let found = [0; 3].map(|_| walk(&sb, "a/f"));
                    let is_new = |file: &Option<u64>| *file == Some(FILE_OF_B);
                    assert!(found.is_sorted_by_key(is_new), "{found:?}");
                })
            });
            let evictor = sb.clone();
            let evictor = thread::spawn(move || {
                if evicts {
                    evictor.evict_unused();
                }
            });
            while names.asked() == asked {
                thread::yield_now();
            }
            names.move_to((B, "f"), (A, "f"), false).unwrap();
            for thread in lookers.into_iter().chain([evictor]) {
                thread.join().unwrap();
            }
        });
    }
}

/// Attributes are requested, while `unhash` removes the dentry from its place and others change
/// them.
fn race_for_attributes(unhash: fn(&SuperBlock), outside: fn(&Names)) {
    sample_runs(EXECUTIONS, move || {
        let names = Arc::new(Names::watched(LONG, Queue::new(9, &[])));
        let sb = Arc::new(SuperBlock::unbounded(names.clone()));
        walk(&sb, "a/f");
        let (stats, unhashes) = (sb.clone(), sb.clone());
        let threads = [
            thread::spawn(move || {
                changes(&stats, "a/f");
            }),
            thread::spawn(move || unhash(&unhashes)),
            thread::spawn(move || outside(&names)),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        // The name alone: a query of the attributes would make them known.
        assert_eq!(walk(&sb, "a/f"), Some(FILE_OF_A));
        assert_eq!(changes(&sb, "a/f"), Some(1));
    });
}

#[test]
fn attributes_of_an_evicted_dentry_are_not_believed() {
    race_for_attributes(SuperBlock::evict_unused, |names| names.touch(A, "f"));
}

#[test]
fn attributes_of_a_displaced_dentry_are_not_believed() {
    let ask = |sb: &SuperBlock| {
        let dir = paths(sb, None).lookup(OsStr::new("a"), true).unwrap();
        let _ = sb.lookup_name(&dir, OsStr::new("f"));
    };
    let outside = |names: &Names| {
        names.move_to((A, "f"), (A, "h"), false).unwrap();
        names.move_to((A, "h"), (A, "f"), false).unwrap();
        names.touch(A, "f");
    };
    race_for_attributes(ask, outside);
}

/// Others remove the name of a file, or give it to another one, while a thread uses the name and news are read:
/// once every change was reported, the file system is asked whether the file is gone.
fn race_for_a_file_that_is_gone(outside: fn(&Names), uses: [fn(&SuperBlock, &Dir); 2]) {
    sample_runs(EXECUTIONS, move || {
        let names = Arc::new(Names::watched(LONG, Queue::new(9, &[])));
        let sb = Arc::new(SuperBlock::unbounded(names.clone()));
        // As its pages do.
        let _kept = paths(&sb, None)
            .lookup(OsStr::new("a/f"), true)
            .unwrap()
            .inode();
        let removes = names.clone();
        let remover = thread::spawn(move || outside(&removes));
        let users = uses.map(|uses| {
            let sb = sb.clone();
            thread::spawn(move || {
                let dir = paths(&sb, None).lookup(OsStr::new("a"), true);
                if let Ok(dir) = dir {
                    uses(&sb, &dir);
                }
            })
        });
        let looks = sb.clone();
        let reader = thread::spawn(move || {
            looks.fs().belief().now();
            looks.give_up_removed();
        });
        for thread in users.into_iter().chain([remover, reader]) {
            thread.join().unwrap();
        }
        for _ in 0..2 {
            names.belief().now();
        }
        sb.give_up_removed();
        assert!(names.looked_at(FILE_OF_A));
    });
}

fn ask(sb: &SuperBlock, dir: &Dir) {
    let _ = sb.lookup_name(dir, OsStr::new("f"));
}

fn take(sb: &SuperBlock, dir: &Dir) {
    let _ = sb.remove(dir, OsStr::new("f"), Remove::File, None);
}

fn replace(sb: &SuperBlock, dir: &Dir) {
    let b = paths(sb, None).lookup(OsStr::new("b"), true).unwrap();
    let (from, to) = (OsStr::new("g"), OsStr::new("f"));
    let _ = sb.rename(&b, from, dir, to, RenameMode::Replace, None);
}

#[test]
fn a_file_that_is_removed_outside_is_given_up() {
    let remove = |names: &Names| drop(names.take(A, "f"));
    race_for_a_file_that_is_gone(remove, [ask, ask]);
}

#[test]
fn a_file_that_is_replaced_outside_is_given_up() {
    let outside = |names: &Names| {
        let _ = names.move_to((B, "f"), (A, "f"), false);
    };
    race_for_a_file_that_is_gone(outside, [ask, ask]);
    race_for_a_file_that_is_gone(outside, [ask, take]);
}

#[test]
fn a_file_is_given_up_whose_name_others_and_we_give_away() {
    let outside = |names: &Names| {
        let _ = names.move_to((B, "f"), (B, "g"), false);
        let _ = names.take(A, "f");
    };
    race_for_a_file_that_is_gone(outside, [ask, replace]);
}

type Dir = DentryRef<Inode>;

/// As soon as our own change of `name` in `dir` is in the store, it is changed again from outside, and the news are
/// read.
fn race_with_ours(
    ours: fn(&SuperBlock, &Dir, &Dir) -> Result<(), Errno>,
    (dir, name, is_there): (u64, &'static str, bool),
    outside: fn(&Names),
    after: Option<u64>,
) {
    sample_runs(EXECUTIONS, move || {
        let names = Arc::new(Names::watched(LONG, Queue::new(9, &[])));
        let sb = Arc::new(SuperBlock::unbounded(names.clone()));
        let path = if dir == A { "a" } else { "b" }.to_owned() + "/" + name;
        walk(&sb, &path);
        let changes = sb.clone();
        let us = thread::spawn(move || {
            let dir = |name| paths(&changes, None).lookup(OsStr::new(name), true);
            let (a, b) = (dir("a").unwrap(), dir("b").unwrap());
            assert_eq!(ours(&changes, &a, &b), Ok(()));
        });
        let (looks, way) = (sb.clone(), path.clone());
        let others = thread::spawn(move || {
            names.wait_for(dir, name, is_there);
            outside(&names);
            names.belief().now();
            assert_eq!(walk(&looks, &way), after);
        });
        us.join().unwrap();
        others.join().unwrap();
        assert_eq!(walk(&sb, &path), after);
    });
}

#[test]
fn a_name_that_we_make_and_others_remove_is_not_believed() {
    let link = |sb: &SuperBlock, a: &Dir, b: &Dir| {
        let file = sb.lookup_name(b, OsStr::new("f"))?;
        sb.link(&file.inode, a, OsStr::new("g"), None).map(drop)
    };
    let remove = |names: &Names| drop(names.take(A, "g").unwrap());
    race_with_ours(link, (A, "g", true), remove, None);
}

#[test]
fn a_name_that_we_remove_and_others_make_is_not_believed_missing() {
    let unlink =
        |sb: &SuperBlock, a: &Dir, _: &Dir| sb.remove(a, OsStr::new("f"), Remove::File, None);
    let make = |names: &Names| names.move_to((B, "f"), (A, "f"), false).unwrap();
    race_with_ours(unlink, (A, "f", false), make, Some(FILE_OF_B));
}

#[test]
fn a_name_that_we_move_and_others_remove_is_not_believed() {
    let rename = |sb: &SuperBlock, a: &Dir, b: &Dir| {
        let (from, to) = (OsStr::new("f"), OsStr::new("g"));
        sb.rename(a, from, b, to, RenameMode::Replace, None)
    };
    let remove = |names: &Names| drop(names.take(B, "g").unwrap());
    race_with_ours(rename, (B, "g", true), remove, None);
}

/// Changes in the target directory are not reported.
fn race_with_our_rename(mode: RenameMode) {
    sample_runs(EXECUTIONS, move || {
        let names = Arc::new(Names::watched(SHORT, Queue::new(9, &[B])));
        let sb = Arc::new(SuperBlock::unbounded(names.clone()));
        walk(&sb, "a/f");
        walk(&sb, "b");
        let (stats, moves, belief) = (sb.clone(), sb.clone(), names.belief());
        let threads = [
            thread::spawn(move || {
                changes(&stats, "a/f");
            }),
            thread::spawn(move || {
                let dir = |name| paths(&moves, None).lookup(OsStr::new(name), true);
                let (a, b) = (dir("a").unwrap(), dir("b").unwrap());
                let f = OsStr::new("f");
                moves.rename(&a, f, &b, f, mode, None).unwrap();
            }),
            thread::spawn(move || {
                belief.now();
                belief.now();
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        let dir = paths(&sb, None).lookup(OsStr::new("b"), true).unwrap();
        let moved = sb.lookup_name(&dir, OsStr::new("f")).unwrap().inode;
        names.touch(B, "f");
        let checked = sb.check(&moved, Access::READ, Some(&user()));
        assert_eq!(checked, Err(Errno::EACCES));
        names.take(B, "f").unwrap();
        assert_eq!(walk(&sb, "b/f"), None);
    });
}

#[test]
fn a_moved_file_is_not_believed_by_the_watch_of_its_old_directory() {
    race_with_our_rename(RenameMode::Replace);
}

#[test]
fn an_exchanged_file_is_not_believed_by_the_watch_of_its_old_directory() {
    race_with_our_rename(RenameMode::Exchange);
}
