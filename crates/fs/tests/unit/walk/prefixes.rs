//! The prefixes that a thread remembers never outlive a change.

use super::{Calls, STAY, directory, errno, memory, on_both_believing};
use crate::common::{Paths as _, WalkFlags};
use foliocache_fs::DirFsOptions;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use foliocache_sys::Errno;
use foliocache_vfs::{Credentials, Remove, RenameMode, SetAttr, SuperBlock, WalkError};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

/// Directories, one in the other, with files in the last.
const WAY: [&str; 3] = ["first", "first/second", "first/second/third"];
const FILE: &str = "first/second/third/file";

fn make(names: &SuperBlock) {
    for dir in WAY {
        names.make_dir(dir);
    }
    names.make_file(FILE);
}

/// Walks until the way is remembered.
fn learn(names: &SuperBlock, who: Option<&Credentials>) {
    walk_until_known(names, who, true);
}

fn walk_until_known(names: &SuperBlock, who: Option<&Credentials>, is_there: bool) {
    let begun = Instant::now();
    loop {
        for _ in 0..3 {
            let found = names.stat(names.root(), OsStr::new(FILE), STAY, who);
            assert_eq!(found.is_ok(), is_there, "{found:?}");
        }
        if knows(names, who) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

fn knows(names: &SuperBlock, who: Option<&Credentials>) -> bool {
    names.remembers(names.root(), OsStr::new(FILE), who)
}

/// Nothing on the way has changed. In a directory of the disk news of renames before may come at any moment, so there it may
/// have to be walked once more.
fn is_as_it_was(names: &SuperBlock, is_there: bool) {
    match names.fs().kind() {
        "dirfs" => walk_until_known(names, None, is_there),
        _ => assert!(knows(names, None)),
    }
}

fn rename(names: &SuperBlock, from: &str, to: &str, mode: RenameMode) {
    let root = names.root();
    let done = names.rename(root, OsStr::new(from), root, OsStr::new(to), mode, None);
    assert_eq!(done, Ok(()));
}

fn chmod(names: &SuperBlock, path: &str, mode: u32) {
    let inode = names.dir(path).inode().expect("it is there");
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let ctx = foliocache_vfs::OpContext::ROOT;
    names.fs().setattr(&ctx, &inode, &set).expect("set");
}

#[test]
fn directories_that_move_or_go_are_not_found_where_they_were() {
    on_both_believing(|names| {
        make(names);
        let file = names.ino(FILE).expect("it was made");
        learn(names, None);
        // One above, to another place and back.
        rename(names, "first", "elsewhere", RenameMode::Replace);
        assert!(!knows(names, None));
        assert_eq!(names.ino(FILE), Err(errno(Errno::ENOENT)));
        rename(names, "elsewhere", "first", RenameMode::Replace);
        assert_eq!(names.ino(FILE), Ok(file));
        learn(names, None);
        // Two that change places.
        names.make_dir("other");
        names.make_file("other/file");
        is_as_it_was(names, true);
        rename(names, "first", "other", RenameMode::Exchange);
        assert_eq!(names.ino(FILE), Err(errno(Errno::ENOENT)));
        rename(names, "first", "other", RenameMode::Exchange);
        learn(names, None);
        // Only directories are remembered.
        let below = format!("{FILE}/below");
        for _ in 0..4 {
            assert_eq!(names.ino(&below), Err(errno(Errno::ENOTDIR)));
        }
        assert!(!names.remembers(names.root(), OsStr::new(&below), None));
        // A file in it comes and goes, while the way stays.
        let third = names.dir(WAY[2]);
        names
            .remove(&third, OsStr::new("file"), Remove::File, None)
            .expect("it was there");
        is_as_it_was(names, false);
        // The directory itself, and one of the same name.
        let second = names.dir(WAY[1]);
        names
            .remove(&second, OsStr::new("third"), Remove::Directory, None)
            .expect("it is empty");
        assert_eq!(names.ino(FILE), Err(errno(Errno::ENOENT)));
        names.make_dir(WAY[2]);
        assert_eq!(names.ino(FILE), Err(errno(Errno::ENOENT)));
        names.make_file(FILE);
        learn(names, None);
        // A symbolic link in its place, and a file.
        rename(names, "first", "moved", RenameMode::Replace);
        names.make_link("first", "moved");
        let through = names.ino(FILE).expect("through the link");
        for _ in 0..3 {
            assert_eq!(names.ino(FILE), Ok(through));
        }
        assert!(
            !knows(names, None),
            "a way through a link is walked each time"
        );
        let root = names.root();
        names
            .remove(root, OsStr::new("first"), Remove::File, None)
            .expect("the link");
        names.make_file("first");
        assert_eq!(names.ino(FILE), Err(errno(Errno::ENOTDIR)));
    });
}

#[test]
fn another_mode_or_another_caller_is_another_matter() {
    let names = &memory();
    make(names);
    let (user, twin) = (Credentials::new(9, 9, &[4]), Credentials::new(9, 9, &[4]));
    learn(names, Some(&user));
    assert!(!knows(names, None));
    assert!(!knows(names, Some(&Credentials::new(9, 8, &[4]))));
    assert!(!knows(names, Some(&Credentials::new(9, 9, &[]))));
    assert!(knows(names, Some(&user.clone())));
    assert!(!knows(names, Some(&twin)), "equal groups, in another place");
    let stat = |who: &Credentials| {
        let found = names.stat(names.root(), OsStr::new(FILE), STAY, Some(who));
        found.map(|_| ()).map_err(WalkError::errno)
    };
    chmod(names, WAY[0], 0o700);
    assert!(!knows(names, Some(&user)));
    for _ in 0..4 {
        assert_eq!(stat(&user), Err(Errno::EACCES));
        assert_eq!(stat(&Credentials::new(0, 0, &[])), Ok(()));
    }
    chmod(names, WAY[0], 0o705);
    learn(names, Some(&user));
    // The last directory's is looked at each time.
    chmod(names, WAY[2], 0o700);
    assert_eq!(stat(&user), Err(Errno::EACCES));
    chmod(names, WAY[2], 0o755);
    learn(names, Some(&user));
    // A path walk does not check a file's own mode.
    chmod(names, FILE, 0o600);
    assert!(knows(names, Some(&user)));
}

#[test]
fn a_way_is_one_from_its_start() {
    let names = &memory();
    make(names);
    let file = names.ino(FILE).expect("it was made");
    names.make_dir("first/second/third/first");
    names.make_dir("first/second/third/first/second");
    names.make_dir("first/second/third/first/second/third");
    learn(names, None);
    let (path, below) = (OsStr::new(FILE), names.dir(WAY[2]));
    for _ in 0..3 {
        assert!(names.stat(&below, path, STAY, None).is_err());
        assert_eq!(names.ino(FILE), Ok(file));
    }
    // From the root, for callers that may.
    let free = WalkFlags {
        beneath: false,
        ..STAY
    };
    let absolute = format!("/{FILE}");
    for _ in 0..3 {
        let found = names.stat(&below, OsStr::new(&absolute), free, None);
        assert_eq!(found.map(|attr| attr.ino), Ok(file));
        let refused = names.stat(&below, OsStr::new(&absolute), STAY, None);
        assert_eq!(refused.map(|attr| attr.ino), Err(WalkError::Escape));
    }
    // Ways that end otherwise than in a name.
    for (path, means) in [
        ("first/second/third/.", names.ino(WAY[2])),
        ("first/second/third/..", names.ino(WAY[1])),
        ("first/second/third/", names.ino(WAY[2])),
        ("first/second//third//file", Ok(file)),
        ("first/second/../second/third/file", Ok(file)),
        ("first/second/third/file/", Err(errno(Errno::ENOTDIR))),
        ("first/second/third/file/x", Err(errno(Errno::ENOTDIR))),
        ("first/second/nothing/file", Err(errno(Errno::ENOENT))),
    ] {
        for _ in 0..4 {
            assert_eq!(names.ino(path), means, "{path}");
        }
    }
}

#[test]
fn a_way_is_believed_as_long_as_its_names_are() {
    let source = tempfile::tempdir().expect("a directory");
    // Longer than the time between two changes here, even on a busy machine.
    let believed = Duration::from_secs(2);
    let mut options = DirFsOptions::default();
    options.watch = false;
    options.revalidate_after = believed;
    let names = &directory(source.path(), options);
    make(names);
    learn(names, None);
    std::fs::rename(source.path().join("first"), source.path().join("gone")).expect("moved");
    let start = Instant::now();
    while names.ino(FILE).is_ok() {
        assert!(start.elapsed() < 4 * believed, "believed for too long");
    }
    std::fs::rename(source.path().join("gone"), source.path().join("first")).expect("moved");
    learn(names, None);
    thread::sleep(believed + Duration::from_millis(50));
    assert!(!knows(names, None));
}

/// Names that are evicted leave nothing behind that a thread would follow.
#[test]
fn prefixes_of_evicted_directories_are_forgotten() {
    let source = tempfile::tempdir().expect("a directory");
    let names = &directory(source.path(), DirFsOptions::default());
    make(names);
    let file = names.ino(FILE).expect("it was made");
    for _ in 0..20 {
        learn(names, None);
        names.evict_unused();
        assert_eq!(names.dentry_stats().dentries, 1, "only the root is held");
        assert!(!knows(names, None));
        assert_eq!(names.ino(FILE), Ok(file));
    }
}

/// Prefixes of a dropped file system are not used for another one, whose numbers start again and whose dentries may
/// have the same addresses.
#[test]
fn ways_of_another_file_system_are_not_followed() {
    let mut addresses = HashSet::new();
    let mut again = 0;
    for round in 0..200 {
        let names = &memory();
        again += usize::from(!addresses.insert(ptr::from_ref(&**names.root()).addr()));
        assert!(!knows(names, None), "in round {round}, of the one before");
        make(names);
        let file = names.ino(FILE).expect("it was made");
        learn(names, None);
        assert_eq!(names.ino(FILE), Ok(file));
    }
    assert!(again > 0, "no root lay where another had");
}

/// A path leads where it led when the call began or later: while directories are exchanged, closed and opened,
/// removed and made, a thread that sees no change begin during its call sees the state of that time.
#[test]
fn a_walk_sees_every_change_made_before_it_began() {
    let names = &memory();
    make(names);
    names.make_dir("other");
    names.make_dir("other/second");
    names.make_dir("other/second/third");
    names.make_file("other/second/third/file");
    let inos = [FILE, "other/second/third/file"].map(|path| names.ino(path).expect("made"));
    // Odd while something changes. Otherwise: (it / 2) % 6 says which state it is.
    let state = AtomicU64::new(0);
    let (over, checked) = (AtomicBool::new(false), AtomicU64::new(0));
    let user = Credentials::new(9, 9, &[]);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let before = state.load(Ordering::Acquire);
                    let found = names.stat(names.root(), OsStr::new(FILE), STAY, Some(&user));
                    let found = found.map(|attr| attr.ino).map_err(WalkError::errno);
                    if before % 2 == 1 || state.load(Ordering::Acquire) != before {
                        continue;
                    }
                    let expected = match before / 2 % 6 {
                        0 => Ok(inos[0]),
                        1 | 4 => Ok(inos[1]),
                        2 => Err(Errno::EACCES),
                        3 => Ok(inos[1]),
                        _ => Err(Errno::ENOENT),
                    };
                    assert_eq!(found, expected, "in state {before}");
                    checked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            let step = |change: &dyn Fn()| {
                state.fetch_add(1, Ordering::AcqRel);
                change();
                state.fetch_add(1, Ordering::AcqRel);
                for _ in 0..200 {
                    std::hint::spin_loop();
                }
            };
            step(&|| rename(names, "first", "other", RenameMode::Exchange));
            step(&|| chmod(names, "first/second", 0o700));
            step(&|| chmod(names, "first/second", 0o755));
            step(&|| names.make_dir("first/second/more"));
            step(&|| {
                let dir = names.dir("first/second");
                names
                    .remove(&dir, OsStr::new("more"), Remove::Directory, None)
                    .expect("it is empty");
                rename(names, "first", "aside", RenameMode::Replace);
            });
            step(&|| {
                rename(names, "aside", "first", RenameMode::Replace);
                rename(names, "first", "other", RenameMode::Exchange);
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(checked.into_inner() > 1000, "hardly anything was looked at");
}
