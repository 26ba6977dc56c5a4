//! The memory that walks hold, and walks whose threads are slow, fast or panic.

use super::team::{BATCH, WAITING};
use super::{By, WalkIter};
use crate::{Cache, Directory, Errno};
use std::path::Path;
use std::thread;
use std::time::Duration;

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

/// Directories and entries that wait.
fn held(walk: &WalkIter) -> (usize, usize) {
    match &walk.0 {
        By::Caller(_) => panic!("it has threads"),
        By::Team(team) => team.held(),
    }
}

fn sorted(mut paths: Vec<String>) -> Vec<String> {
    paths.sort_by(|a, b| Path::new(a).cmp(Path::new(b)));
    paths
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
fn slow_threads_and_a_slow_caller_change_nothing() {
    let dir = memfs();
    for i in 0..60 {
        fill(&dir, &format!("{}/{i}/{}", i % 4, i % 7), 5);
    }
    let expected = told(dir.walk(".").ordered(true));
    let slow = |_: &Path| {
        if in_the_team() {
            thread::sleep(Duration::from_millis(2));
        }
    };
    for threads in [2, 4] {
        let mut walk = dir.walk(".").threads(threads);
        let late = walk.clone().into_iter().inspect(|_| {
            thread::sleep(Duration::from_micros(100));
        });
        assert!(sorted(late.map(tell).collect()) == expected);
        walk.opening = slow;
        assert!(sorted(told(walk.clone())) == expected);
        // In order by the caller alone.
        assert!(told(walk.ordered(true)) == expected);
    }
}

#[test]
fn a_panic_is_an_error_among_the_entries() {
    let dir = memfs();
    for i in 0..50 {
        fill(&dir, &format!("{i:02}/bad"), 3);
        fill(&dir, &format!("{i:02}/good"), 3);
    }
    for threads in [2, 4] {
        let before = dir.panics().count();
        let mut walk = dir.walk(".").threads(threads);
        walk.opening = |path| assert!(!path.ends_with("bad"), "for the test");
        let all: Vec<_> = walk.into_iter().collect();
        let errors = all.iter().filter_map(|entry| entry.as_ref().err());
        let errors: Vec<_> = errors.collect();
        assert!(!errors.is_empty());
        assert!(errors.iter().all(|error| error.errno() == Errno::EIO));
        assert_eq!(dir.panics().count(), errors.len() as u64 + before);
        let found = all.iter().filter_map(|entry| entry.as_ref().ok());
        let found: Vec<_> = found.map(|entry| entry.path()).collect();
        assert!(found.iter().any(|path| path.starts_with("00")));
        let in_bad = |path: &&&Path| path.parent().is_some_and(|dir| dir.ends_with("bad"));
        assert_eq!(found.iter().filter(in_bad).count(), 0);
    }
}
