//! Several directories in a process that may have few files open.
//!
//! A separate program, because it lowers the limit of the whole process.

use foliocache::{Cache, File, FileOptions};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::sync::{Mutex, MutexGuard, PoisonError};

const LIMIT: u64 = 384;
const DIRECTORIES: usize = 6;
const FILES: usize = 400;

/// Lowers the limit; for one test at a time.
fn few_descriptors() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = Rlimit {
        current: Some(LIMIT),
        maximum: Some(LIMIT),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    one
}

/// Many directories whose names are looked up, in two caches, and files that the program itself has open.
#[test]
fn descriptors_for_names_are_shared_too() {
    let _one = few_descriptors();
    let caches = [0, 1].map(|_| Cache::builder().memory("32M").build().unwrap());
    let mut all = Vec::new();
    for number in 0..12 {
        let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for name in 0..100 {
            std::fs::write(source.path().join(name.to_string()), "data").unwrap();
        }
        let directory = caches[number % 2].directory(source.path()).unwrap();
        for name in 0..100 {
            directory.metadata(name.to_string()).unwrap();
        }
        all.push((directory, source));
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 200, "{open} descriptors");

    // The program's other descriptors take the rest: the directories give up theirs.
    let null = || std::fs::File::open("/dev/null").ok();
    let mut others: Vec<_> = std::iter::from_fn(null).collect();
    others.truncate(others.len() - 8);
    for (directory, _) in &all {
        for name in 0..100 {
            let file = directory.open(name.to_string()).unwrap();
            assert_eq!(file.len(), 4);
        }
    }
}

/// Listings, syncs of directories and direct I/O find a descriptor among those that the cache only keeps.
#[test]
fn descriptors_that_are_only_kept_make_room_for_all_calls() {
    let _one = few_descriptors();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(source.path().join("large"), vec![1; 8 << 20]).unwrap();
    std::fs::File::open(source.path().join("large"))
        .and_then(|large| large.sync_all())
        .unwrap();
    let directory = cache.directory(source.path()).unwrap();
    let mut round = 0;
    // Runs `act` while the process has no descriptor left, but the cache keeps some.
    let mut without = |act: &dyn Fn()| {
        round += 1;
        for name in 0..20 {
            let name = format!("{round}-{name}");
            std::fs::create_dir(source.path().join(&name)).unwrap();
            // The directory's descriptor is kept.
            assert!(!directory.exists(format!("{name}/none")).unwrap());
        }
        let null = || std::fs::File::open("/dev/null").ok();
        let _others: Vec<_> = std::iter::from_fn(null).collect();
        act();
    };
    let large = directory.open("large").unwrap();
    without(&|| {
        let mut bytes = vec![0; 4 << 20];
        large.read_exact_at(&mut bytes, 0).unwrap();
    });
    let stats = directory.stats().unwrap().unwrap();
    let fallbacks = format!("{:?}", stats.fallbacks);
    assert!(!fallbacks.contains("EMFILE"), "{fallbacks}");
    without(&|| assert!(directory.read_dir(".").unwrap().count() > 20));
    let new = directory.create("new").unwrap();
    without(&|| new.sync_all().unwrap());
}

#[test]
fn directories_share_the_descriptors_of_the_process() {
    let _one = few_descriptors();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let mut all = Vec::new();
    for number in 0..DIRECTORIES {
        let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let directory = cache.directory(source.path()).unwrap();
        for name in 0..FILES {
            let file = directory.create(name.to_string()).unwrap();
            file.write_all_at(&[number as u8; 5000], 0).unwrap();
        }
        all.push((directory, source));
    }
    cache.sync().unwrap();
    for (number, (_, source)) in all.iter().enumerate() {
        for name in 0..FILES {
            let bytes = std::fs::read(source.path().join(name.to_string())).unwrap();
            assert!(bytes == [number as u8; 5000]);
        }
    }
}

/// Files that are open and idle give their descriptors up, and open again where they need them.
#[test]
fn more_files_than_descriptors_are_open_for_writing() {
    const OPEN: usize = 1500;
    let _one = few_descriptors();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = cache.directory(source.path()).unwrap();
    let record = |nr: usize, round: u8| vec![round; 100 + nr % 5000];
    let expect = |nr: usize, rounds: &[u8]| {
        let expected: Vec<u8> = rounds.iter().flat_map(|&round| record(nr, round)).collect();
        let bytes = std::fs::read(source.path().join(nr.to_string())).unwrap();
        assert!(bytes == expected, "file {nr}");
    };
    let files: Vec<_> = (0..OPEN)
        .map(|nr| {
            let file = directory.create(nr.to_string()).unwrap();
            file.append_all(&record(nr, 1)).unwrap();
            file
        })
        .collect();
    // Others find descriptors all the while.
    directory.write("other", b"data").unwrap();
    assert_eq!(directory.read("other").unwrap(), b"data");
    assert!(directory.read_dir(".").unwrap().count() > OPEN);
    for (nr, file) in files.iter().enumerate() {
        file.append_all(&record(nr, 2)).unwrap();
    }
    for file in files.iter().rev() {
        file.sync_all().unwrap();
    }
    (0..OPEN).for_each(|nr| expect(nr, &[1, 2]));
    let modified = |nr: usize| {
        let there = std::fs::metadata(source.path().join(nr.to_string()));
        (
            files[nr].metadata().unwrap().modified().unwrap(),
            there.unwrap().modified().unwrap(),
        )
    };
    for (nr, file) in files.iter().enumerate() {
        let (ours, theirs) = modified(nr);
        assert_eq!(ours, theirs, "file {nr}");
        let mut bytes = vec![0; 100];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; 100]);
        // By turns a cut, and a record that only the close brings to the source.
        if nr % 2 == 0 {
            file.set_len(record(nr, 1).len() as u64).unwrap();
        }
        file.append_all(&record(nr, 3)).unwrap();
    }
    drop(files);
    cache.sync().unwrap();
    for nr in 0..OPEN {
        expect(nr, if nr % 2 == 0 { &[1, 3] } else { &[1, 2, 3] });
    }
}

/// Unlinked files cannot be found again, so they keep their descriptors; only the one beyond the
/// limit is refused.
#[test]
fn files_that_cannot_give_way_leave_descriptors_for_names() {
    let _one = few_descriptors();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = cache.directory(source.path()).unwrap();
    let mut held = Vec::new();
    let refused = loop {
        match directory.create("gone") {
            Ok(file) => {
                file.append_all(&[7; 100]).unwrap();
                directory.remove_file("gone").unwrap();
                held.push(file);
            }
            Err(error) => break error,
        }
        assert!(held.len() < LIMIT as usize);
    };
    let refused = std::io::Error::from(refused);
    assert_eq!(refused.raw_os_error(), Some(24), "EMFILE: {refused}");
    assert!(!directory.exists("gone").unwrap());
    directory.create_dir("dir").unwrap();
    directory.rename("dir", "moved").unwrap();
    assert_eq!(directory.read_dir(".").unwrap().count(), 1);
    directory.remove_dir("moved").unwrap();
    for file in &held {
        let mut bytes = [0; 100];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 100]);
    }
    held.truncate(held.len() / 2);
    let file = directory.create("new").unwrap();
    file.append_all(b"data").unwrap();
    file.sync_all().unwrap();
}

/// Files without their directories: those that are read give way, and one that is written keeps the descriptor of its lock.
#[test]
fn single_files_give_way_but_for_their_locks() {
    const READ: usize = 1000;
    let _one = few_descriptors();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let source = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |nr: usize| source.path().join(nr.to_string());
    (0..READ).for_each(|nr| std::fs::write(path(nr), nr.to_string()).unwrap());
    let expect = |file: &File, nr: usize| {
        let mut bytes = vec![0; file.len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, nr.to_string().as_bytes());
    };
    let read = |nr| cache.file(path(nr), FileOptions::new().read(true)).unwrap();
    let mut files: Vec<_> = (0..READ).map(read).collect();
    (files.iter().enumerate()).for_each(|(nr, file)| expect(file, nr));
    files.truncate(10);
    let mut options = FileOptions::new();
    options.read(true).write(true);
    let mut locked = Vec::new();
    let refused = loop {
        let nr = locked.len();
        match cache.file(path(nr), &options) {
            Ok(file) => {
                file.write_all_at(nr.to_string().as_bytes(), 0).unwrap();
                file.sync_data().unwrap();
                locked.push(file);
            }
            Err(error) => break std::io::Error::from(error),
        }
    };
    assert_eq!(refused.raw_os_error(), Some(24), "EMFILE: {refused}");
    assert!(locked.len() > LIMIT as usize / 2, "{}", locked.len());
    (files.iter().enumerate()).for_each(|(nr, file)| expect(file, nr));
    (locked.iter().enumerate()).for_each(|(nr, file)| expect(file, nr));
    locked.truncate(locked.len() / 2);
    let file = cache.file(path(READ - 1), &options).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
}
