//! Others replace files in the source while the library opens, reads and maps them.
//!
//! The contents of a file say which version they are: a read that mixes two, or ends early, shows.

#![allow(unsafe_code)]

use crate::common::{Disk, cache, on_disk, pattern};
use foliocache::{Advice, Directory, DirectoryOptions, Errno, File, MapAccess, Result};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses between two replacements: some 30 and some 1,000 a second.
const PAUSES: [Duration; 2] = [Duration::from_millis(30), Duration::from_millis(1)];

/// How long others replace a file.
const RACE: Duration = Duration::from_secs(3);

/// The contents of a version of a file.
fn version(number: u64) -> Vec<u8> {
    let len = 5000 + (number * 7919 % 40_000) as usize;
    let mut contents = number.to_le_bytes().to_vec();
    contents.extend(pattern(number, len));
    contents
}

/// Which version these contents are. Panics if they are none.
fn version_of(contents: &[u8]) -> u64 {
    let number = contents
        .first_chunk()
        .map(|number| u64::from_le_bytes(*number));
    let number = number.unwrap_or_else(|| panic!("only {} bytes", contents.len()));
    assert!(
        contents == version(number),
        "no whole version, but parts of {number}"
    );
    number
}

/// As programs replace configuration: a new file, renamed over the old one.
fn replace(path: &Path, number: u64) {
    let new = path.with_extension("new");
    fs::write(&new, version(number)).unwrap();
    fs::rename(new, path).unwrap();
}

/// Reads a file from beginning to end, a few pages at a time.
fn read(file: &File) -> Result<Vec<u8>> {
    let (mut contents, mut buf) = (Vec::new(), [0; 9000]);
    loop {
        let n = file.read_at(&mut buf, contents.len() as u64)?;
        contents.extend_from_slice(&buf[..n]);
        if n == 0 {
            return Ok(contents);
        }
        thread::yield_now();
    }
}

/// Runs `act` again and again while others replace the file `v`, once per pause, for each of [`PAUSES`]; with the newest version
/// that the source certainly had before.
fn beside_replacement(options: DirectoryOptions, act: impl Fn(&Directory)) {
    for pause in PAUSES {
        let (cache, source) = (cache(32), on_disk());
        let path = source.path().join("v");
        replace(&path, 1);
        let dir = cache
            .directory_with(source.path(), options.clone())
            .unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: it only ends the loop.
                for number in (2..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    replace(&path, number);
                    thread::sleep(pause);
                }
            });
            let end = Stop(&stop);
            let until = Instant::now() + RACE;
            while Instant::now() < until {
                act(&dir);
            }
            drop(end);
        });
    }
}

/// Ends the other thread, after a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        // Relaxed: it publishes nothing else.
        self.0.store(true, Ordering::Relaxed);
    }
}

fn open_and_read(dir: &Directory) {
    let file = dir.open("v").unwrap();
    let before = file.metadata().unwrap().len();
    let contents = read(&file).unwrap();
    version_of(&contents);
    assert_eq!(before, contents.len() as u64);
    assert_eq!(file.metadata().unwrap().len(), before);
    assert!(read(&file).unwrap() == contents, "it became another");
}

#[test]
fn every_open_reads_one_whole_version_beside_replacement() {
    beside_replacement(DirectoryOptions::new(), open_and_read);
}

#[test]
fn every_open_reads_one_whole_version_where_nothing_is_watched() {
    let options = DirectoryOptions::new().watch(false);
    beside_replacement(options, open_and_read);
}

#[test]
fn no_operation_by_path_fails_beside_replacement() {
    beside_replacement(DirectoryOptions::new(), |dir| {
        version_of(&dir.read("v").unwrap());
        assert!(dir.metadata("v").unwrap().is_file());
        let file = dir
            .open_options()
            .read(true)
            .write(true)
            .create(true)
            .open("v");
        version_of(&read(&file.unwrap()).unwrap());
        assert!(dir.symlink_metadata("v").unwrap().len() > 0);
    });
}

#[test]
fn no_link_fails_beside_its_replacement() {
    for pause in PAUSES {
        let Disk {
            cache: _cache,
            dir,
            source,
        } = Disk::new(16);
        let (link, new) = (source.path().join("link"), source.path().join("new"));
        for number in [0, 1] {
            replace(&source.path().join(format!("v{number}")), number);
        }
        std::os::unix::fs::symlink("v0", &link).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: it only ends the loop.
                for number in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    std::os::unix::fs::symlink(format!("v{}", number % 2), &new).unwrap();
                    fs::rename(&new, &link).unwrap();
                    thread::sleep(pause);
                }
            });
            let _end = Stop(&stop);
            let until = Instant::now() + RACE;
            while Instant::now() < until {
                let target = dir.read_link("link").unwrap();
                assert!(target == Path::new("v0") || target == Path::new("v1"));
                version_of(&dir.read("link").unwrap());
                assert!(dir.metadata("link").unwrap().is_file());
            }
        });
    }
}

#[test]
fn a_mapping_shows_one_whole_version_beside_replacement() {
    beside_replacement(DirectoryOptions::new(), |dir| {
        let file = dir.open("v").unwrap();
        let mapping = file.map(.., MapAccess::Read).unwrap();
        // SAFETY: a version never changes; a new one replaces it.
        version_of(unsafe { mapping.as_slice() });
    });
}

/// A file opened from cached names: the source was not asked for it, and it has no descriptor.
fn opened_from_the_cache(dir: &Directory, name: &str) -> File {
    for _ in 0..2 {
        version_of(&read(&dir.open(name).unwrap()).unwrap());
    }
    dir.open(name).unwrap()
}

#[test]
fn a_replaced_file_that_is_open_answers_for_its_attributes() {
    let disk = Disk::new(16);
    replace(&disk.in_source("v"), 1);
    let file = opened_from_the_cache(&disk.dir, "v");
    let before = file.metadata().unwrap();
    replace(&disk.in_source("v"), 2);
    assert_eq!(file.seek_data(1).unwrap(), Some(1));
    assert_eq!(file.seek_hole(1).unwrap(), Some(before.len()));
    for _ in 0..3 {
        let now = file.metadata().unwrap();
        assert_eq!(
            (now.len(), now.modified().unwrap()),
            (before.len(), before.modified().unwrap())
        );
        assert_eq!(version_of(&read(&file).unwrap()), 1);
        // The news of it is read by then.
        thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(version_of(&disk.dir.read("v").unwrap()), 2);
    assert_eq!(version_of(&read(&file).unwrap()), 1);
}

/// Descriptors of this process for files in `directory`.
fn descriptors_in(directory: &Path) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let links = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    links.filter(|link| link.starts_with(directory)).count()
}

/// Files that are open without a descriptor, too many for the bound together with the data that is written and read
/// beside them.
fn open_files_under_pressure(replaced: bool) {
    const FILES: u64 = 400;
    let disk = Disk::new(16);
    let (dir, source) = (&disk.dir, disk.source.path());
    let name = |number: u64| format!("f{number}");
    for number in 0..FILES {
        replace(&source.join(name(number)), number);
    }
    let open: Vec<File> = (0..FILES)
        .map(|number| opened_from_the_cache(dir, &name(number)))
        .collect();
    let with = descriptors_in(source);
    assert!(with < FILES as usize / 2, "{with} have a descriptor");
    if replaced {
        for number in 0..FILES {
            replace(&source.join(name(number)), number + FILES);
        }
    }
    let check = || {
        let mut gone = 0;
        for (number, file) in (0..).zip(&open) {
            match read(file) {
                Ok(contents) => assert_eq!(version_of(&contents), number),
                Err(error) if replaced && error.errno() == Errno::ESTALE => gone += 1,
                Err(error) => panic!("{error}"),
            }
            assert_eq!(file.metadata().unwrap().len(), version(number).len() as u64);
        }
        gone
    };
    assert_eq!(check(), 0, "before anything had to go");
    let chunk = pattern(7, 1 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = dir.create("big").unwrap();
            for at in 0..48 {
                file.write_all_at(&chunk, at << 20).unwrap();
            }
            file.sync_data().unwrap();
            for at in (0..48).rev() {
                let mut buf = vec![0; 1 << 20];
                file.read_exact_at(&mut buf, at << 20).unwrap();
                assert!(buf == chunk);
            }
        });
        scope.spawn(check);
    });
    check();
    let stats = disk.cache.stats().unwrap();
    assert!(
        stats.memory.total_bytes() <= stats.memory.limit_bytes,
        "{:?}",
        stats.memory
    );
    for number in 0..FILES {
        let newest = number + if replaced { FILES } else { 0 };
        assert_eq!(version_of(&dir.read(name(number)).unwrap()), newest);
    }
}

#[test]
fn files_open_without_a_descriptor_stay_readable_under_memory_pressure() {
    open_files_under_pressure(false);
}

/// Those whose pages were given up before there was a descriptor are gone: `ESTALE`, and never bytes of two versions.
#[test]
fn replaced_files_that_are_open_leave_memory_at_last() {
    open_files_under_pressure(true);
}

/// A file whose pages are being evicted gets a descriptor first, so a later replacement does not
/// matter.
#[test]
fn a_file_gets_a_descriptor_before_its_first_page_goes() {
    let disk = Disk::new(16);
    replace(&disk.in_source("v"), 1);
    let file = opened_from_the_cache(&disk.dir, "v");
    assert_eq!(descriptors_in(&disk.in_source("v")), 0);
    let big = disk.dir.create("big").unwrap();
    let chunk = pattern(7, 1 << 20);
    let until = Instant::now() + Duration::from_secs(60);
    while descriptors_in(&disk.in_source("v")) == 0 {
        assert!(Instant::now() < until, "no descriptor");
        for at in 0..24 {
            big.write_all_at(&chunk, at << 20).unwrap();
        }
    }
    replace(&disk.in_source("v"), 2);
    file.advise(Advice::DontNeed, ..).unwrap();
    assert_eq!(version_of(&read(&file).unwrap()), 1);
}

/// Pages that exist nowhere else are not evicted.
#[test]
fn pages_of_a_replaced_file_stay_though_they_are_not_needed() {
    let disk = Disk::new(16);
    replace(&disk.in_source("v"), 1);
    let file = opened_from_the_cache(&disk.dir, "v");
    replace(&disk.in_source("v"), 2);
    file.advise(Advice::DontNeed, ..).unwrap();
    assert_eq!(version_of(&read(&file).unwrap()), 1);
    let mapping = file.map(.., MapAccess::Read).unwrap();
    // SAFETY: a version never changes.
    assert_eq!(version_of(unsafe { mapping.as_slice() }), 1);
}
