//! Walks over trees, and operations on whole trees.

use crate::common::Disk;
use foliocache::{
    Credentials, Directory, Errno, Error, FileKind, FileTimes, Permissions, RenameMode, Walk,
    WalkEntry,
};
use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// On a local directory and in memory.
fn on_both(test: impl Fn(&Directory)) {
    let disk = Disk::new(32);
    test(&disk.dir);
    test(&disk.cache.memfs().unwrap());
}

/// A tree of directories four deep, each with some files, and the set of its paths.
fn tree(dir: &Directory) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut make = vec![(String::new(), 0)];
    while let Some((above, depth)) = make.pop() {
        for i in 0..12 {
            let path = format!("{above}f{i}");
            dir.create(&path).unwrap();
            all.insert(path);
        }
        for i in 0..if depth < 3 { 4 } else { 0 } {
            let path = format!("{above}d{i}");
            dir.create_dir(&path).unwrap();
            make.push((format!("{path}/"), depth + 1));
            all.insert(path);
        }
    }
    all
}

fn path(entry: &WalkEntry) -> String {
    entry.path().to_str().unwrap().to_owned()
}

#[test]
fn a_walk_finds_everything_once() {
    on_both(|dir| {
        dir.create_dir("top").unwrap();
        let top = dir.open_dir("top").unwrap();
        let all = tree(&top);
        for threads in [1, 2, 5] {
            for start in [(dir, "top"), (&top, ".")] {
                let mut seen = BTreeSet::new();
                for entry in start.0.walk(start.1).threads(threads) {
                    let entry = entry.unwrap();
                    assert!(seen.insert(path(&entry)), "{entry:?} twice");
                    assert_eq!(entry.depth(), entry.path().components().count());
                    assert_eq!(entry.metadata().unwrap().file_type(), entry.file_type());
                }
                assert_eq!(seen, all);
            }
            let shallow = top.walk(".").threads(threads).max_depth(1);
            assert_eq!(shallow.into_iter().count(), 16);
        }
    });
}

#[test]
fn an_ordered_walk_is_sorted_and_parents_come_first() {
    on_both(|dir| {
        let all = tree(dir);
        for threads in [1, 3] {
            let walk = dir.walk(".").ordered(true).threads(threads);
            let seen: Vec<_> = walk
                .into_iter()
                .map(|entry| path(&entry.unwrap()))
                .collect();
            let mut sorted: Vec<_> = all.iter().cloned().collect();
            sorted.sort_by(|a, b| a.split('/').cmp(b.split('/')));
            assert_eq!(seen, sorted);
        }
    });
}

/// A tree by chance: names that sort unlike their paths, links, directories that a guest cannot read.
pub(crate) fn random_tree(dir: &Directory, seed: u64) {
    let mut state = seed;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut make, mut made, mut closed) = (vec![(String::new(), 0)], 0, Vec::new());
    while let Some((above, depth)) = make.pop() {
        let names = match depth {
            0 => 20,
            _ if made > 2000 => 0,
            _ => random(20),
        };
        made += names;
        for i in 0..names {
            let path = format!(
                "{above}{}{i}",
                ["f", "d-", "d.", "d", "D "][random(5) as usize]
            );
            match random(8) {
                0..3 if depth < 5 => {
                    dir.create_dir(&path).unwrap();
                    make.push((path + "/", depth + 1));
                }
                3 => {
                    let targets = ["..", "d0", "../d1/f2", "../../d.1", "nowhere", "/etc", "."];
                    dir.symlink(targets[random(7) as usize], &path).unwrap();
                }
                _ => drop(dir.create(&path).unwrap()),
            }
        }
        if depth > 1 && random(8) == 0 {
            closed.push((above, [0, 0o111, 0o444][random(3) as usize]));
        }
    }
    // After everything is made, the deepest first: without root privileges they cannot be entered
    // then.
    closed.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
    for (path, mode) in closed {
        dir.set_permissions(path.trim_end_matches('/'), Permissions::from_mode(mode))
            .unwrap();
    }
}

#[test]
fn a_walk_by_several_threads_finds_what_an_ordered_one_finds() {
    for seed in 1..5 {
        on_both(|dir| {
            random_tree(dir, seed * 0x9e37_79b9);
            let guest = dir.with_credentials(Credentials::new(1000, 1000, &[]));
            for (dir, follow, depth) in [
                (dir, false, usize::MAX),
                (&guest, false, usize::MAX),
                (&guest, true, 6),
                (dir, true, 2),
            ] {
                let walk = dir.walk(".").follow_links(follow).max_depth(depth);
                let found = |walk: Walk| {
                    let entries = walk.into_iter().map(|entry| match entry {
                        Ok(entry) => {
                            format!("{} {:?} {}", path(&entry), entry.file_type(), entry.depth())
                        }
                        Err(error) => error.to_string(),
                    });
                    let mut entries: Vec<_> = entries.collect();
                    entries.sort();
                    entries
                };
                let ordered = found(walk.clone().ordered(true));
                assert!(ordered.len() >= 20);
                for threads in [1, 2, 4] {
                    let unordered = found(walk.clone().threads(threads));
                    assert_eq!(unordered, ordered, "seed {seed}, {threads} threads");
                }
            }
        });
    }
}

#[test]
fn a_walk_follows_links_as_far_as_they_stay_inside() {
    on_both(|dir| {
        dir.create_dir_all("start/a/b").unwrap();
        dir.create("start/a/b/f").unwrap();
        dir.create_dir("outside").unwrap();
        dir.create("outside/secret").unwrap();
        dir.symlink("../a", "start/a/loop").unwrap();
        dir.symlink("b/f", "start/a/file").unwrap();
        dir.symlink("a/b", "start/to_b").unwrap();
        dir.symlink("../outside", "start/out").unwrap();
        dir.symlink("nowhere", "start/dangling").unwrap();
        let start = dir.open_dir("start").unwrap();
        for threads in [1, 3] {
            let (mut found, mut errors) = (HashSet::new(), Vec::new());
            for entry in start.walk(".").threads(threads).follow_links(true) {
                match entry {
                    Ok(entry) => {
                        assert_eq!(entry.metadata().unwrap().file_type(), entry.file_type());
                        found.insert((path(&entry), entry.file_type()));
                    }
                    Err(Error::Escape { .. }) => errors.push(Errno::EXDEV),
                    Err(error) => errors.push(error.errno()),
                }
            }
            errors.sort_by_key(|errno| errno.raw());
            assert_eq!(errors, [Errno::ENOENT, Errno::EXDEV, Errno::ELOOP]);
            let (file, directory) = (FileKind::Regular, FileKind::Directory);
            let expected = [
                ("a", directory),
                ("a/b", directory),
                ("a/b/f", file),
                ("a/file", file),
                ("a/loop", directory),
                ("to_b", directory),
                ("to_b/f", file),
            ];
            let expected = expected.map(|(path, kind)| (path.to_owned(), kind));
            assert_eq!(found, HashSet::from(expected));
            // Not followed they are entries as others.
            let links = start.walk(".").threads(threads).into_iter();
            let links =
                links.filter(|entry| entry.as_ref().unwrap().file_type() == FileKind::Symlink);
            assert_eq!(links.count(), 5);
        }
        let missing = dir.walk("missing").into_iter().collect::<Vec<_>>();
        assert!(matches!(&missing[..], [Err(error)] if error.errno() == Errno::ENOENT));
    });
}

#[test]
fn a_walk_that_is_dropped_early_ends() {
    let disk = Disk::new(32);
    let dir = disk.cache.memfs().unwrap();
    let count = tree(&dir).len();
    for taken in [0, 1, 200, count] {
        for threads in [1, 4] {
            for ordered in [false, true] {
                let walk = dir.walk(".").threads(threads).ordered(ordered);
                let mut walk = walk.into_iter();
                assert_eq!(walk.by_ref().take(taken).count(), taken);
            }
        }
    }
    // A drop waits for the threads: each has ended.
}

#[test]
fn removing_a_tree_does_not_follow_its_links() {
    on_both(|dir| {
        dir.create_dir_all("gone/a").unwrap();
        tree(&dir.open_dir("gone/a").unwrap());
        dir.create_dir("kept").unwrap();
        dir.create("kept/file").unwrap();
        dir.symlink("../../kept", "gone/a/link").unwrap();
        dir.symlink("gone", "link").unwrap();
        dir.remove_dir_all("link").unwrap();
        assert!(!dir.exists("link").unwrap());
        assert!(dir.exists("gone/a/d1/f1").unwrap());
        dir.remove_dir_all("gone").unwrap();
        assert!(!dir.exists("gone").unwrap());
        assert!(dir.exists("kept/file").unwrap());
        assert_eq!(
            dir.remove_dir_all("gone").unwrap_err().errno(),
            Errno::ENOENT
        );
        let file = dir.remove_dir_all("kept/file").unwrap_err();
        assert_eq!(file.errno(), Errno::ENOTDIR);
        assert_eq!(
            dir.exists("kept/file/x").unwrap_err().errno(),
            Errno::ENOTDIR
        );
    });
}

#[test]
fn a_removal_follows_no_link_that_takes_a_directorys_place() {
    on_both(|dir| {
        dir.create_dir("kept").unwrap();
        dir.create("kept/file").unwrap();
        dir.symlink("../kept", "swap").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: nothing else is read by it.
                while !stop.load(Ordering::Relaxed) {
                    let _ = dir.rename_with("swap", "gone/d", RenameMode::Exchange);
                }
            });
            for _ in 0..300 {
                dir.create_dir_all("gone/d").unwrap();
                for i in 0..4 {
                    let _ = dir.create(format!("gone/d/{i}"));
                }
                let _ = dir.remove_dir_all("gone");
                assert!(dir.exists("kept/file").unwrap());
                if !dir
                    .symlink_metadata("swap")
                    .is_ok_and(|swap| swap.is_symlink())
                {
                    let _ = dir.remove_dir_all("swap");
                    let _ = dir.symlink("../kept", "swap");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn times_are_set_and_names_exchanged() {
    on_both(|dir| {
        dir.create("a").unwrap();
        dir.create_dir("b").unwrap();
        let after = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        let before = UNIX_EPOCH - Duration::new(10, 250_000_000);
        let times = FileTimes::new().set_accessed(before).set_modified(after);
        dir.set_times("a", times).unwrap();
        let times = dir.metadata("a").unwrap();
        assert_eq!(times.accessed().unwrap(), before);
        assert_eq!(times.modified().unwrap(), after);
        dir.set_times("a", FileTimes::new().set_modified(before))
            .unwrap();
        assert_eq!(dir.metadata("a").unwrap().modified().unwrap(), before);
        dir.rename_with("a", "b", RenameMode::Exchange).unwrap();
        assert!(dir.metadata("a").unwrap().is_dir());
        let there = dir
            .rename_with("b", "a", RenameMode::NoReplace)
            .unwrap_err();
        assert_eq!(there.errno(), Errno::EEXIST);
        let missing = dir.rename_with("b", "c", RenameMode::Exchange).unwrap_err();
        assert_eq!(missing.errno(), Errno::ENOENT);
    });
}

#[test]
fn a_whiteout_is_found_where_a_name_was() {
    on_both(|dir| {
        dir.create("a").unwrap();
        dir.create("b").unwrap();
        assert!(dir.metadata("a").unwrap().is_file());
        match dir.rename_with("a", "b", RenameMode::Whiteout) {
            Ok(()) => {
                let found = dir.metadata("a").unwrap();
                assert_eq!(found.attr().kind, FileKind::CharDevice);
                assert_eq!((found.attr().rdev.major, found.attr().rdev.minor), (0, 0));
                assert!(dir.metadata("b").unwrap().is_file());
                dir.remove_file("a").unwrap();
                assert_eq!(dir.metadata("a").unwrap_err().errno(), Errno::ENOENT);
            }
            // Memory, and sources that make none.
            Err(error) => {
                assert_eq!(error.errno(), Errno::EINVAL);
                assert!(dir.metadata("a").unwrap().is_file());
            }
        }
    });
}
