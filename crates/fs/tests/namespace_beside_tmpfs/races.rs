//! Moves beside walks: the results that a walk may have.

use crate::common::tmpfs;
use crate::steps::Random;
use crate::world::{Ours, World};
use foliocache_sys::Errno;
use foliocache_vfs::dcache::DentryRef;
use foliocache_vfs::{
    Inode, Namei, New, OpContext, OpenFlags, OpenHow, Remove, RenameMode, WalkError,
};
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

const ROUNDS: usize = 4000;

const MAKE: OpenHow = OpenHow {
    flags: OpenFlags::WRITE,
    create: true,
    exclusive: true,
    follow: false,
    mode: 0o644,
};

/// Calls from `start`.
fn calls<'a>(world: &'a World, start: &'a DentryRef<Inode>) -> Namei<'a> {
    Namei {
        names: &world.names,
        start,
        beneath: true,
        ctx: OpContext::ROOT,
        credentials: None,
    }
}

/// Makes directories (with a slash at the end) and files.
fn make(namei: &Namei<'_>, paths: &[&str]) {
    for path in paths {
        match path.strip_suffix('/') {
            Some(path) => namei
                .make(OsStr::new(path), New::Directory { mode: 0o755 })
                .map(drop),
            None => namei.open(OsStr::new(path), MAKE).map(drop),
        }
        .expect("made");
    }
}

fn ino(namei: &Namei<'_>, path: &str) -> u64 {
    namei.stat(OsStr::new(path), true).expect("it is there").ino
}

/// Runs `change` many times, and two threads with `walk` until it is done.
fn beside(change: impl FnMut(usize), walk: impl Fn(&mut Random) + Sync) {
    let (stop, walk) = (&AtomicBool::new(false), &walk);
    // Stops the walks also when the changes panic.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            // Relaxed: nothing else is read by it.
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        for seed in 1..3 {
            scope.spawn(move || {
                let mut random = Random::new(seed);
                // Relaxed: see above.
                while !stop.load(Ordering::Relaxed) {
                    walk(&mut random);
                }
            });
        }
        let _stop = Stop(stop);
        (0..ROUNDS).for_each(change);
    });
}

fn on_each(test: impl Fn(&World)) {
    let Some(tmpfs) = tmpfs() else { return };
    for ours in [Ours::MemFs, Ours::DirFs, Ours::DirFsDoubted] {
        test(&World::new(ours, tmpfs));
    }
}

/// Legal: either of the two files for a name that is exchanged or replaced, but never `ENOENT`. The kernel finds no
/// less.
#[test]
fn a_name_that_is_replaced_is_found_at_every_moment() {
    on_each(|world| {
        let namei = calls(world, world.names.root());
        make(&namei, &["d/", "e/", "d/f", "e/f", "p", "q"]);
        let both = ["d/f", "e/f"].map(|path| ino(&namei, path));
        let two = ["p", "q"].map(|path| ino(&namei, path));
        let rename = |from: &str, to: &str, mode| {
            let done = namei.rename(OsStr::new(from), &namei, OsStr::new(to), mode);
            done.expect("moved");
        };
        beside(
            |round| {
                rename("d", "e", RenameMode::Exchange);
                rename("p", "q", RenameMode::Exchange);
                let new = format!("new{}", round % 2);
                namei.open(OsStr::new(&new), MAKE).expect("made");
                rename(&new, "replaced", RenameMode::Replace);
            },
            |random| {
                let (path, legal) = match random.below(5) {
                    0 => ("d/f", both),
                    1 => ("e/f", both),
                    2 => ("p", two),
                    3 => ("d/../e/./f", both),
                    _ => ("q", two),
                };
                let attr = namei.stat(OsStr::new(path), true);
                let attr = attr.unwrap_or_else(|error| panic!("{path}: {error:?}"));
                assert!(legal.contains(&attr.ino), "{path}");
                let found = namei.inode(OsStr::new(path), true);
                assert!(
                    found.is_ok_and(|found| legal.contains(&found.ino())),
                    "{path}"
                );
            },
        );
    });
}

/// Legal: the file, or `ENOENT`, since it may be under the other name at either look. Never another file.
#[test]
fn a_name_that_moves_to_and_fro_is_found_as_itself_or_not() {
    on_each(|world| {
        let namei = calls(world, world.names.root());
        make(&namei, &["a/", "b/", "a/x", "d/", "d/y", "z"]);
        let (x, y) = (ino(&namei, "a/x"), ino(&namei, "d/y"));
        beside(
            |round| {
                let ways = [["a/x", "b/x"], ["b/x", "a/x"], ["d", "a/d"], ["a/d", "d"]];
                for [from, to] in [ways[round % 2], ways[2 + round % 2]] {
                    let (from, to) = (OsStr::new(from), OsStr::new(to));
                    let done = namei.rename(from, &namei, to, RenameMode::NoReplace);
                    done.expect("moved");
                }
            },
            |random| {
                let (path, legal) = match random.below(4) {
                    0 => ("a/x", x),
                    1 => ("b/x", x),
                    2 => ("d/y", y),
                    _ => ("a/d/y", y),
                };
                match namei.stat(OsStr::new(path), true) {
                    Ok(attr) => assert_eq!(attr.ino, legal, "{path}"),
                    Err(WalkError::Errno(Errno::ENOENT)) => {}
                    Err(error) => panic!("{path}: {error:?}"),
                }
            },
        );
        assert!(namei.stat(OsStr::new("z"), true).is_ok());
    });
}

/// A directory moves in and out of the start, and its `..` leads to its neighbours outside. Legal: a file in the
/// start, or in the moving directory; `ENOENT`; an escape error. Never a file outside.
#[test]
fn a_walk_that_stays_below_never_finds_an_outside_file() {
    on_each(|world| {
        let top = calls(world, world.names.root());
        make(
            &top,
            &[
                "start/",
                "start/x/",
                "out/",
                "out/secret",
                "secret",
                "out/m/",
            ],
        );
        make(&top, &["out/m/in", "start/x/own", "out/m/n/", "start/own"]);
        let outside = ["secret", "out/secret"].map(|path| ino(&top, path));
        let start = top.lookup(OsStr::new("start"), true).expect("it is there");
        let namei = calls(world, &start);
        // A held handle of a moving directory is a start too.
        let moving = top.lookup(OsStr::new("out/m"), true).expect("it is there");
        let within = calls(world, &moving);
        beside(
            |round| {
                let (out, into) = (OsStr::new("out/m"), OsStr::new("start/x/m"));
                let (from, to) = match round % 2 {
                    0 => (out, into),
                    _ => (into, out),
                };
                let done = top.rename(from, &top, to, RenameMode::NoReplace);
                done.expect("moved");
            },
            |random| {
                const PATHS: [&str; 9] = [
                    "x/m/../secret",
                    "x/m/n/../../secret",
                    "x/m/../../secret",
                    "x/m/n/../../../secret",
                    "x/m/../../../secret",
                    "x/m/in",
                    "x/m/../own",
                    "x/m/n/../../../own",
                    "x/m/../../../out/secret",
                ];
                let path = PATHS[random.below(PATHS.len())];
                let found = match random.one_in(2) {
                    true => namei.stat(OsStr::new(path), true).map(|attr| attr.ino),
                    false => namei.inode(OsStr::new(path), true).map(|found| found.ino()),
                };
                match found {
                    Ok(ino) => assert!(!outside.contains(&ino), "{path} led out"),
                    Err(WalkError::Escape | WalkError::Errno(Errno::ENOENT)) => {}
                    Err(error) => panic!("{path}: {error:?}"),
                }
                for path in ["../secret", "n/../../secret", "n/../.."] {
                    let found = within.stat(OsStr::new(path), true);
                    assert_eq!(found.err(), Some(WalkError::Escape), "{path}");
                }
            },
        );
    });
}

/// The names in a directory that is removed are not locked: the file system itself keeps it from being filled.
#[test]
fn a_directory_is_removed_or_filled_and_never_both() {
    on_each(|world| {
        let names = &world.names;
        let (top, dir_name, file) = (names.root(), OsStr::new("race"), OsStr::new("file"));
        for _ in 0..ROUNDS / 10 {
            let dir = names.make(
                &OpContext::ROOT,
                top,
                dir_name,
                New::Directory { mode: 0o755 },
                None,
            );
            let dir = dir.expect("mkdir");
            let start = std::sync::Barrier::new(2);
            let (made, removed) = std::thread::scope(|scope| {
                let make = scope.spawn(|| {
                    start.wait();
                    let flags = OpenFlags::WRITE;
                    let made = names.create(&OpContext::ROOT, &dir, file, 0o644, flags, None);
                    made.map(drop)
                });
                start.wait();
                let removed = names.remove(top, dir_name, Remove::Directory, None);
                (make.join().expect("no panic"), removed)
            });
            match made {
                Ok(()) => {
                    assert_eq!(removed, Err(Errno::ENOTEMPTY));
                    names
                        .remove(&dir, file, Remove::File, None)
                        .expect("unlink");
                    names
                        .remove(top, dir_name, Remove::Directory, None)
                        .expect("rmdir");
                }
                Err(error) => {
                    assert!(matches!(error, Errno::ENOENT | Errno::ESTALE), "{error}");
                    assert_eq!(removed, Ok(()));
                }
            }
        }
    });
}
