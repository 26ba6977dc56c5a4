//! The memory that walks hold, and walks whose threads are slow, fast or panic.

use super::ahead::{DIRECTORIES, ENTRIES};
use super::team::{BATCH, WAITING};
use super::{By, Walk, WalkIter};
use crate::{Cache, Directory, Errno};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn memfs() -> Directory {
    let cache = Cache::builder().memory(256_u64 << 20).build().unwrap();
    cache.memfs().unwrap()
}

/// `names` names in a directory that is made.
fn fill(dir: &Directory, path: &str, names: usize) {
    dir.create_dir_all(path).unwrap();
    let path = dir.open_dir(path).unwrap();
    path.create("0").unwrap();
    for i in 1..names {
        path.hard_link("0", i.to_string()).unwrap();
    }
}

fn in_the_team() -> bool {
    thread::current().name() == Some("foliocache-walk")
}

fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let start = Instant::now();
    while !come() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Paths, and errors.
fn told(walk: impl IntoIterator<IntoIter = WalkIter>) -> Vec<String> {
    walk.into_iter().map(tell).collect()
}

fn tell(entry: crate::Result<super::WalkEntry>) -> String {
    match entry {
        Ok(entry) => entry.path().display().to_string(),
        Err(error) => error.to_string(),
    }
}

/// Directories and entries that are read ahead, or wait.
fn held(walk: &WalkIter) -> (usize, usize) {
    match &walk.0 {
        By::Caller(steps) => steps.ahead.as_ref().unwrap().held(),
        By::Team(team) => team.held(),
    }
}

fn ordered(dir: &Directory, threads: usize) -> Walk {
    dir.walk(".").ordered(true).threads(threads)
}

#[test]
fn an_ordered_walk_reads_ahead_within_its_bounds() {
    let dir = memfs();
    for i in 0..100 {
        fill(&dir, &format!("a{i}"), 700);
        fill(&dir, &format!("c{i}"), 3);
    }
    fill(&dir, "b", 200_000);
    let mut deep = dir.open_dir(".").unwrap();
    for _ in 0..200 {
        fill(&deep, "d", 20);
        fill(&deep, "e", 300);
        deep = deep.open_dir("d").unwrap();
    }
    let expected = told(ordered(&dir, 1));
    for threads in [2, 4] {
        let mut walk = ordered(&dir, threads).into_iter();
        let (mut most, mut seen) = ((0, 0), Vec::new());
        while let Some(entry) = walk.next() {
            seen.push(tell(entry));
            if seen.len() % 500 == 0 {
                // As long as they need to go as far as they may.
                thread::sleep(Duration::from_millis(1));
                let now = held(&walk);
                most = (most.0.max(now.0), most.1.max(now.1));
            }
        }
        assert!(seen == expected);
        assert_eq!(held(&walk), (0, 0));
        assert!(most.0 <= DIRECTORIES * threads, "{most:?}");
        assert!(most.1 <= ENTRIES, "{most:?}");
        // They went far enough for that to say something.
        assert!(most.0 > DIRECTORIES && most.1 > ENTRIES / 2, "{most:?}");
    }
}

#[test]
fn an_unordered_walk_bounds_its_waiting_entries() {
    let dir = memfs();
    for i in 0..2000 {
        fill(&dir, &format!("d{i}"), 8);
    }
    fill(&dir, "wide", 50_000);
    for threads in [2, 4] {
        let mut walk = dir.walk(".").threads(threads).into_iter();
        let most = BATCH * WAITING * threads;
        let (mut count, mut full) = (0, 0);
        while walk.next().is_some() {
            count += 1;
            if count % 5000 == 0 {
                thread::sleep(Duration::from_millis(5));
                let (directories, entries) = held(&walk);
                assert!(directories <= WAITING * threads && entries <= most);
                full += usize::from(entries > most / 2);
            }
        }
        assert_eq!(count, 2000 * 9 + 50_001);
        assert!(full > 0, "they are slower than the caller");
    }
}

#[test]
fn the_next_directory_is_read_when_the_read_ahead_is_full() {
    static GO: AtomicBool = AtomicBool::new(false);
    let dir = memfs();
    fill(&dir, "b", 100_000);
    for i in 0..100 {
        fill(&dir, &format!("a/{i}/x"), 10);
        fill(&dir, &format!("c{i}"), 300);
    }
    let expected = told(ordered(&dir, 1));
    let mut walk = ordered(&dir, 2);
    walk.opening = |path| {
        // Acquire: pairs with the store below.
        let go = || GO.load(Ordering::Acquire);
        if in_the_team() && path == Path::new("a") {
            wait_until("nobody reads ahead", go);
        }
    };
    let mut walk = walk.into_iter();
    let mut seen = vec![tell(walk.next().unwrap())];
    // One thread is in `a`, the other reads what comes after it all, as far as it may.
    wait_until("it reads ahead", || {
        let (directories, entries) = held(&walk);
        directories == 2 * DIRECTORIES || entries > ENTRIES - 256
    });
    // Release: pairs with the load above.
    GO.store(true, Ordering::Release);
    seen.extend(walk.map(tell));
    assert!(seen == expected);
}

#[test]
fn slow_threads_and_a_slow_caller_change_nothing() {
    let dir = memfs();
    for i in 0..60 {
        fill(&dir, &format!("{}/{i}/{}", i % 4, i % 7), 5);
    }
    let expected = told(ordered(&dir, 1));
    let slow = |_: &Path| {
        if in_the_team() {
            thread::sleep(Duration::from_millis(2));
        }
    };
    for threads in [2, 4] {
        let mut walk = ordered(&dir, threads);
        walk.opening = slow;
        assert!(told(walk.clone()) == expected);
        let mut unordered = told(walk.ordered(false));
        unordered.sort_by(|a, b| Path::new(a).cmp(Path::new(b)));
        assert!(unordered == expected);
        let late = ordered(&dir, threads).into_iter().inspect(|_| {
            thread::sleep(Duration::from_micros(100));
        });
        assert!(late.map(tell).eq(expected.iter().cloned()));
    }
}

#[test]
fn a_panic_is_an_error_among_the_entries() {
    let dir = memfs();
    for i in 0..50 {
        fill(&dir, &format!("{i:02}/bad"), 3);
        fill(&dir, &format!("{i:02}/good"), 3);
    }
    let panics = |path: &Path| assert!(!in_the_team() || !path.ends_with("bad"), "for the test");
    for threads in [2, 4] {
        let before = dir.panics().count();
        let mut walk = ordered(&dir, threads);
        walk.opening = panics;
        let mut entries = walk.clone().into_iter();
        let mut all = vec![entries.next().unwrap()];
        // Some they read, others the caller.
        wait_until("it reads ahead", || {
            held(&entries).0 == DIRECTORIES * threads
        });
        all.extend(entries);
        let errors = all.iter().filter_map(|entry| entry.as_ref().err());
        let errors: Vec<_> = errors.collect();
        assert!(!errors.is_empty());
        assert!(errors.iter().all(|error| error.errno() == Errno::EIO));
        // All of a directory that was not read is missing, and nothing else.
        let directories = 50 * 3;
        assert_eq!(
            all.len() - errors.len(),
            directories + 50 * 6 - 3 * errors.len()
        );

        let counted = dir.panics().count();
        assert_eq!(counted, errors.len() as u64 + before);

        let all: Vec<_> = walk.ordered(false).into_iter().collect();
        assert!(all.iter().any(|entry| entry.is_err()));
        assert!(all.iter().any(|entry| entry.is_ok()));
    }
}
