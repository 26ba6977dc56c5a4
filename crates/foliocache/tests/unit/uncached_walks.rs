//! Walks that leave the caches as they are.

use crate::common::{Disk, cache, is_alone, run_alone};
use crate::trees::random_tree;
use foliocache::{Credentials, Directory, Errno, FileKind, Walk, WalkEntry};
use foliocache_sys::fd::set_open_file_limit;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

/// `names` files in a directory of the source that is made.
fn fill(path: &Path, names: usize) {
    fs::create_dir_all(path).unwrap();
    for i in 0..names {
        fs::write(path.join(i.to_string()), "x".repeat(i % 9)).unwrap();
    }
}

/// Directories with files in the source, behind a cache that has seen none of them.
fn cold(directories: usize, files: usize) -> Disk {
    let disk = Disk::new(32);
    for i in 0..directories {
        fill(&disk.in_source(&format!("d{i}/below")), files);
    }
    disk
}

/// Names and inodes in memory.
fn cached(dir: &Directory) -> (u64, u64) {
    let (names, _) = dir.whole_file_system().unwrap().unwrap();
    (
        names.dentry_stats().dentries,
        dir.stats().unwrap().unwrap().inodes,
    )
}

/// All that a walk says, by path, but for times of access, which reading moves; errors without a path last.
fn all(walk: Walk) -> BTreeMap<(PathBuf, usize), String> {
    let mut errors = 0;
    let tell = |entry: foliocache::Result<WalkEntry>| match entry {
        Ok(entry) => {
            let metadata = entry.metadata().map_err(|error| error.errno());
            let metadata = metadata.map(|of| {
                let who = (of.ino(), of.dev(), of.nlink(), of.uid(), of.gid());
                (who, of.mode(), of.len(), of.mtime(), of.mtime_nsec())
            });
            let said = format!("{:?} {} {metadata:?}", entry.file_type(), entry.depth());
            ((entry.into_path(), 0), said)
        }
        Err(error) => {
            errors += 1;
            let said = format!("{:?}", error.errno());
            (("~error".into(), errors), said)
        }
    };
    walk.into_iter().map(tell).collect()
}

/// As [`all`], with errors counted.
fn counted(walk: Walk) -> (Vec<(PathBuf, String)>, BTreeMap<String, usize>) {
    let (mut entries, mut errors) = (Vec::new(), BTreeMap::new());
    for (key, said) in all(walk) {
        match key.1 {
            0 => entries.push((key.0, said)),
            _ => *errors.entry(said).or_default() += 1,
        }
    }
    (entries, errors)
}

#[test]
fn an_uncached_walk_says_what_an_ordinary_one_says() {
    for seed in 1..4 {
        let disk = Disk::new(32);
        random_tree(&disk.dir, seed * 0x9e37_79b9);
        let guest = (disk.dir).with_credentials(Credentials::new(1000, 1000, &[]));
        for dir in [&disk.dir, &guest] {
            for (follow, depth) in [(false, usize::MAX), (true, 5), (false, 2)] {
                for (start, ordered) in [(".", false), (".", true), ("d0/..", true)] {
                    let walk = || {
                        let walk = dir.walk(start).follow_links(follow).max_depth(depth);
                        walk.ordered(ordered)
                    };
                    let ordinary = counted(walk());
                    for threads in [1, 3] {
                        let uncached = counted(walk().threads(threads).uncached(true));
                        assert_eq!(uncached, ordinary, "{seed} {start} {follow} {depth}");
                    }
                }
            }
        }
    }
}

#[test]
fn names_are_gone_after_an_uncached_walk_and_those_of_others_stay() {
    let disk = cold(40, 50);
    for i in 0..20 {
        disk.dir.metadata(format!("d{i}/below/{i}")).unwrap();
    }
    let before = cached(&disk.dir);
    for (threads, ordered) in [(1, false), (1, true), (3, false), (3, true)] {
        let walk = disk.dir.walk(".").threads(threads).ordered(ordered);
        let entries = walk.uncached(true).into_iter();
        let lengths = entries.map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(lengths.sum::<u64>() > 0);
        assert_eq!(cached(&disk.dir), before);
    }
    let stats = disk.dir.stats().unwrap().unwrap();
    assert_eq!(stats.uncached_names, 4 * (40 * 52));
    // Directories on the way to the hot files are in memory, too.
    assert_eq!(stats.uncached_names_known, 4 * 3 * 20);
    let walk = disk.dir.walk(".").into_iter();
    walk.for_each(|entry| drop(entry.unwrap().metadata()));
    let after = cached(&disk.dir);
    assert!(after.0 >= before.0 + 2000 && after.1 >= before.1 + 2000);
}

#[test]
fn an_uncached_walk_pushes_nothing_out_of_a_small_cache() {
    let disk = Disk::new(8);
    for i in 0..12 {
        fill(&disk.in_source(&format!("{i}")), 1000);
    }
    for i in 0..300 {
        disk.dir.metadata(format!("{}/{i}", i % 2)).unwrap();
    }
    let before = cached(&disk.dir);
    let walk = disk.dir.walk(".").threads(2).uncached(true);
    assert_eq!(walk.into_iter().count(), 12 * 1001);
    assert_eq!(cached(&disk.dir), before);
    // An ordinary walk has no room for them beside its own.
    let walk = disk.dir.walk(".").into_iter();
    walk.for_each(|entry| drop(entry.unwrap().metadata()));
    let (names, _) = disk.dir.whole_file_system().unwrap().unwrap();
    assert!(names.dentry_stats().evicted > 0);
}

#[test]
fn entries_come_in_the_order_of_inode_numbers_or_of_names() {
    let disk = cold(1, 3000);
    let start = "d0/below";
    let walk = disk.dir.walk(start).uncached(true);
    let found = |walk: Walk| -> Vec<(u64, String)> {
        let entries = walk.into_iter().map(|entry| entry.unwrap());
        let each = entries.map(|entry| {
            let ino = entry.metadata().unwrap().ino();
            (ino, entry.path().to_str().unwrap().to_owned())
        });
        each.collect()
    };
    for threads in [1, 3] {
        let unordered = found(walk.clone().threads(threads));
        let falls = unordered.windows(2).filter(|pair| pair[1].0 <= pair[0].0);
        // 1024 names at once, or somewhat more: as many as the last call brings.
        assert!(falls.count() <= 2);
        let ordered = found(walk.clone().threads(threads).ordered(true));
        assert!(ordered.windows(2).all(|pair| pair[0].1 < pair[1].1));
        let sorted: BTreeMap<_, _> = unordered.into_iter().map(|(i, name)| (name, i)).collect();
        assert_eq!(sorted.len(), 3000, "each once");
        assert!(ordered.iter().all(|(ino, name)| sorted[name] == *ino));
    }
}

#[test]
fn an_uncached_walk_shows_data_that_is_not_written_yet() {
    let disk = cold(2, 10);
    let file = disk.dir.append("d1/below/3").unwrap();
    file.append_all(&[1; 5000]).unwrap();
    let walk = disk.dir.walk("d1").uncached(true).into_iter();
    let entries = walk.map(|entry| entry.unwrap());
    let mut found = entries.filter(|entry| entry.path() == Path::new("below/3"));
    assert_eq!(found.next().unwrap().metadata().unwrap().len(), 5003);
}

#[test]
fn names_that_go_during_an_uncached_walk_are_errors_of_their_own() {
    let disk = cold(30, 40);
    let mut walk = disk.dir.walk(".").ordered(true).uncached(true).into_iter();
    assert_eq!(walk.next().unwrap().unwrap().path(), Path::new("d0"));
    // All of the top was read.
    fs::remove_dir_all(disk.in_source("d7")).unwrap();
    let (mut found, mut errors) = (0, Vec::new());
    for entry in walk {
        match entry {
            Ok(_) => found += 1,
            Err(error) => errors.push((error.errno(), error.to_string())),
        }
    }
    assert_eq!(found, 30 + 29 * 41 - 1);
    let [(errno, said)] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert!(*errno == Errno::ENOENT && said.contains("d7"), "{said}");

    let stop = AtomicBool::new(false);
    let source = disk.source.path();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: nothing else is read by it.
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::remove_dir_all(source.join("d3/below"));
                fill(&source.join("d3/below"), 60);
            }
        });
        let mut errors = Vec::new();
        for round in 0..30 {
            let walk = disk.dir.walk("d3").threads(1 + round % 3).uncached(true);
            let gone = walk.into_iter().filter_map(|entry| match entry {
                Ok(entry) => entry.metadata().err(),
                Err(error) => Some(error),
            });
            errors.extend(gone);
        }
        stop.store(true, Ordering::Relaxed);
        errors.retain(|error| error.errno() != Errno::ENOENT);
        assert!(errors.is_empty(), "{errors:?}");
    });
}

#[test]
fn an_uncached_walk_follows_no_link_that_takes_a_directorys_place() {
    let disk = cold(2, 5);
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "").unwrap();
    let mut walk = disk.dir.walk(".").ordered(true).uncached(true).into_iter();
    assert_eq!(walk.next().unwrap().unwrap().path(), Path::new("d0"));
    fs::rename(disk.in_source("d1"), disk.in_source("moved")).unwrap();
    std::os::unix::fs::symlink(outside.path(), disk.in_source("d1")).unwrap();
    let mut errors = Vec::new();
    for entry in walk {
        match entry {
            Ok(entry) => assert!(!entry.path().ends_with("secret")),
            Err(error) => errors.push(error.errno()),
        }
    }
    assert!(
        matches!(errors[..], [Errno::ENOTDIR | Errno::ELOOP]),
        "{errors:?}"
    );
}

#[test]
fn a_walk_in_memory_may_be_uncached() {
    let dir = cache(16).memfs().unwrap();
    dir.create_dir_all("a/b").unwrap();
    dir.write("a/b/f", "1234").unwrap();
    let ordinary = all(dir.walk("."));
    assert_eq!(all(dir.walk(".").uncached(true)), ordinary);
    assert_eq!(ordinary.len(), 3);
}

/// Directories so deep that the walk has closed their descriptors, moved in the middle of it. What is lost is told, once for each directory
/// that could not be opened; nothing of what took the place is shown, and all else comes once.
#[test]
fn a_directory_that_moves_during_a_deep_uncached_walk_is_stale() {
    const DEPTH: usize = 90;
    let chain = |top: &Path| {
        let mut path = top.to_owned();
        for _ in 0..DEPTH {
            path.push("d");
            fill(&path, 3);
            fill(&path.join("e"), 1);
        }
    };
    for (threads, ordered) in [(1, true), (1, false), (2, false)] {
        for level in [1, 2, 40] {
            let disk = Disk::new(32);
            chain(disk.source.path());
            let inos = |walk: Walk| -> BTreeMap<PathBuf, u64> {
                let entries = walk.uncached(true).into_iter().map(Result::unwrap);
                let ino = |entry: &WalkEntry| entry.metadata().unwrap().ino();
                entries
                    .map(|entry| (entry.path().to_owned(), ino(&entry)))
                    .collect()
            };
            let all = inos(disk.dir.walk("."));
            assert_eq!(all.len(), DEPTH * 6);
            let walk = disk.dir.walk(".").threads(threads).ordered(ordered);
            let mut walk = walk.uncached(true).into_iter();
            let mut found = Vec::new();
            // Deeper than descriptors are kept.
            while !matches!(found.last(), Some(Ok(entry)) if WalkEntry::depth(entry) == 70) {
                found.extend(walk.next());
            }
            let moved = disk.source.path().join(["d"; DEPTH][..level].join("/"));
            let outside = tempfile::tempdir_in(disk.source.path().parent().unwrap()).unwrap();
            fs::rename(&moved, outside.path().join("moved")).unwrap();
            chain(moved.parent().unwrap());
            found.extend(walk);
            let (mut seen, mut stale) = (BTreeMap::new(), BTreeSet::new());
            for entry in found {
                match entry {
                    Ok(entry) => {
                        let ino = entry.metadata().unwrap().ino();
                        let again = seen.insert(entry.path().to_owned(), ino);
                        assert_eq!(again, None, "{}", entry.path().display());
                    }
                    Err(error) => {
                        // Other threads look also while nothing has taken the place.
                        let is_between = threads > 1 && error.errno() == Errno::ENOENT;
                        assert!(is_between || error.errno() == Errno::ESTALE, "{error}");
                        let said = error.to_string();
                        let (_, below) = said.split_once("/./").unwrap();
                        stale.insert(PathBuf::from(below.split_once(':').unwrap().0));
                    }
                }
            }
            let case = format!("{threads} threads, ordered {ordered}, level {level}");
            for (path, ino) in &all {
                let is_lost = || path.ancestors().skip(1).any(|above| stale.contains(above));
                match seen.get(path) {
                    Some(found) => assert_eq!(found, ino, "{case}: {}", path.display()),
                    None => assert!(is_lost(), "{case}: {} of {stale:?}", path.display()),
                }
            }
            assert!(seen.len() <= all.len(), "{case}");
            // Other threads may have come to the end before.
            assert!(threads > 1 || !stale.is_empty(), "{case}");
        }
    }
}

#[test]
fn a_deep_uncached_walk_needs_few_descriptors() {
    run_alone("uncached_walks::deep_with_few_descriptors");
}

#[test]
#[ignore = "by the test above, in a process of its own"]
fn deep_with_few_descriptors() {
    if !is_alone() {
        return;
    }
    const DEPTH: usize = 300;
    let disk = Disk::new(32);
    let mut path = disk.source.path().to_owned();
    for _ in 0..DEPTH {
        path.push("d");
        fill(&path, 2);
        fs::create_dir(path.join("e")).unwrap();
    }
    set_open_file_limit(160).unwrap();
    for (threads, ordered) in [(1, false), (1, true), (2, false), (2, true)] {
        let walk = disk.dir.walk(".").threads(threads).ordered(ordered);
        let mut kinds = BTreeMap::new();
        for entry in walk.uncached(true) {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            assert_eq!(metadata.file_type(), entry.file_type());
            *kinds
                .entry(entry.file_type() == FileKind::Directory)
                .or_insert(0) += 1;
        }
        assert_eq!(
            kinds,
            BTreeMap::from([(false, 2 * DEPTH), (true, 2 * DEPTH)])
        );
    }
}
