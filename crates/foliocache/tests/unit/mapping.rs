//! Mapped files, as a user of the library has them.
//!
//! # Safety
//!
//! Addresses are accessed within their mapping, while it lives. Slices are made of mappings that do not change
//! meanwhile. A forked child allocates (which glibc allows), uses the handles under test, and leaves by `_exit`.
#![allow(unsafe_code)]

use crate::common::{Disk, PAGE, is_alone, on_disk, pattern, run_alone};
use foliocache::{
    Advice, Cache, Directory, Errno, Error, FaultsError, File, LockedAccess, MapAccess, MapError,
    Mapping, MappingFaults, Result,
};
use foliocache_sim::{Effect, Faults, FaultyBackend, OpSet, Rule};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const MODES: [MappingFaults; 2] = [MappingFaults::Thread, MappingFaults::Inline];

fn cache(mode: MappingFaults) -> Cache {
    let builder = Cache::builder().memory("64M").mapping_faults(mode);
    builder.build().unwrap()
}

/// A cache and an empty directory, in each mode.
fn disks() -> impl Iterator<Item = Disk> {
    MODES.into_iter().map(|mode| {
        let (cache, source) = (cache(mode), on_disk());
        let dir = cache.directory(source.path()).unwrap();
        Disk { cache, dir, source }
    })
}

/// Runs a test on a file system in memory and on one over a directory, in each mode.
fn on_both(test: impl Fn(&Directory)) {
    for disk in disks() {
        test(&disk.cache.memfs().unwrap());
        test(&disk.dir);
        disk.cache.close().unwrap();
    }
}

fn load(mapping: &Mapping, at: usize) -> u8 {
    assert!(at < mapping.len());
    // SAFETY: see the module's header.
    unsafe { mapping.as_ptr().wrapping_add(at).read_volatile() }
}

fn store(mapping: &Mapping, at: usize, byte: u8) {
    mapping.as_atomics().expect("it is for stores")[at].store(byte, Relaxed);
}

fn refused<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it went through"),
        Err(error) => error.errno(),
    }
}

/// A file of `size` zeros over a store with faults.
fn over(mode: MappingFaults, faults: &Faults, size: u64) -> (Cache, File) {
    let cache = cache(mode);
    let backend = FaultyBackend::new("faulty", faults);
    let mut files = cache.open_store(backend, size, 1).unwrap();
    (cache, files.pop().expect("one handle"))
}

/// Runs the test `body` of this test program in a separate process for each mode, which ends by SIGBUS after it has
/// announced it.
fn run_to_sigbus(body: &str) {
    for mode in ["0", "1"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("mapping::{body}"), "--nocapture"])
            .arg("--test-threads=1")
            .envs([(crate::common::ALONE, "1"), (MODE, mode)])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{mode}: {said}");
        assert!(said.contains("now it comes"), "{mode}: {said}");
    }
}

/// Says to a process of [`run_to_sigbus`] which of [`MODES`] it has.
const MODE: &str = "FOLIOCACHE_TEST_MODE";

fn mode_alone() -> usize {
    std::env::var(MODE).unwrap().parse().unwrap()
}

#[test]
fn stores_are_seen_by_every_reader_and_in_the_source_after_a_sync() {
    for disk in disks() {
        let memory = disk.cache.memfs().unwrap();
        for dir in [&disk.dir, &memory] {
            let file = dir.create("f").unwrap();
            let mut expected = pattern(1, 40 * PAGE);
            file.write_all_at(&expected, 0).unwrap();
            let other = dir.open("f").unwrap();
            let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
            // SAFETY: the file does not change.
            assert!(unsafe { mapping.as_slice() } == expected);
            for round in 1..4 {
                for at in [0, 5 * PAGE + 7, 40 * PAGE - 1] {
                    store(&mapping, at, round);
                    expected[at] = round;
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at as u64).unwrap();
                    assert_eq!(byte, [round]);
                    other.read_exact_at(&mut byte, at as u64).unwrap();
                    assert_eq!(byte, [round]);
                }
                mapping.sync(5 * PAGE..6 * PAGE).unwrap();
                mapping.sync(..).unwrap();
                if dir.path() == disk.dir.path() {
                    assert!(std::fs::read(disk.in_source("f")).unwrap() == expected);
                }
            }
            file.write_all_at(b"written", 9 * PAGE as u64).unwrap();
            assert_eq!(load(&mapping, 9 * PAGE), b'w');
            let stats = file.stats().unwrap();
            assert!(stats.faults > 0 && stats.mapped_pages >= 40, "{stats:?}");
        }
        assert!(disk.cache.stats().unwrap().memory.linear_bytes > 0);
        disk.cache.close().unwrap();
    }
}

#[test]
fn a_part_is_mapped_and_the_copies_end_where_it_does_and_the_file_does() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        let bytes = pattern(2, 8 * PAGE + 10);
        file.write_all_at(&bytes, 0).unwrap();
        // Beyond the end of the file.
        let start = 4 * PAGE;
        let mapping = file
            .map(start as u64..20 * PAGE as u64, MapAccess::ReadWrite)
            .unwrap();
        assert_eq!(mapping.file_range(), start as u64..20 * PAGE as u64);
        assert_eq!((mapping.len(), mapping.is_empty()), (16 * PAGE, false));
        assert_eq!(load(&mapping, 3), bytes[start + 3]);
        let mut buf = vec![0; 6 * PAGE];
        assert_eq!(mapping.read_at(&mut buf, 0).unwrap(), 4 * PAGE + 10);
        assert!(buf[..4 * PAGE + 10] == bytes[start..]);
        for offset in [4 * PAGE + 10, 5 * PAGE, 16 * PAGE, usize::MAX] {
            assert_eq!(mapping.read_at(&mut buf, offset).unwrap(), 0);
            assert_eq!(refused(mapping.write_at(b"x", offset)), Errno::EFAULT);
        }
        assert_eq!(mapping.write_at(&[7; 100], 4 * PAGE).unwrap(), 10);
        assert_eq!(file.len(), bytes.len() as u64, "it makes no file longer");
        assert_eq!(load(&mapping, 4 * PAGE + 9), 7);
        // The file grows into it.
        file.write_all_at(&[9; PAGE], 19 * PAGE as u64).unwrap();
        assert_eq!(
            (load(&mapping, 10 * PAGE), load(&mapping, 15 * PAGE)),
            (0, 9)
        );
        assert_eq!(mapping.read_at(&mut buf, 15 * PAGE).unwrap(), PAGE);
        // And ends with it, not with the file.
        file.write_all_at(&[9; PAGE], 20 * PAGE as u64).unwrap();
        assert_eq!(mapping.read_at(&mut buf, 15 * PAGE).unwrap(), PAGE);
        assert_eq!(mapping.write_at(&[1; 2 * PAGE], 15 * PAGE).unwrap(), PAGE);
        assert_eq!(refused(mapping.sync(..16 * PAGE + 1)), Errno::EINVAL);
        assert_eq!(refused(mapping.populate(17 * PAGE..)), Errno::EINVAL);
    });
}

#[test]
fn a_mapping_outlives_its_file_its_name_and_its_cache() {
    for Disk { cache, dir, source } in disks() {
        let memory = cache.memfs().unwrap();
        let mappings = [&dir, &memory].map(|dir| {
            let file = dir.create("f").unwrap();
            file.write_all_at(&pattern(3, 20 * PAGE), 0).unwrap();
            let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
            drop(file);
            dir.remove_file("f").unwrap();
            mapping
        });
        drop((dir, memory));
        cache.close().unwrap();
        let deleted = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            let links = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            let ours = links.filter(|link| link.starts_with(source.path()));
            ours.filter(|link| link.to_string_lossy().ends_with("(deleted)"))
                .count()
        };
        for mapping in &mappings {
            mapping.advise(Advice::DontNeed, ..).unwrap();
            for (at, expected) in pattern(3, 20 * PAGE).into_iter().enumerate().step_by(999) {
                assert_eq!(load(mapping, at), expected);
            }
            store(mapping, 100, 200);
            mapping.sync(..).unwrap();
            let mut byte = [0];
            mapping.read_at(&mut byte, 100).unwrap();
            assert_eq!(byte, [200]);
        }
        assert!(deleted() > 0);
        drop(mappings);
        assert_eq!(deleted(), 0, "the file is closed");
    }
}

#[test]
fn many_caches_with_mappings_leave_addresses_to_the_program() {
    let caches: Vec<Cache> = (0..24).map(|_| cache(MappingFaults::Inline)).collect();
    let mapped = |cache: &Cache| {
        let file = cache.memfs().unwrap().create("f").unwrap();
        file.set_len(64 << 20).unwrap();
        file.map(.., MapAccess::Read).unwrap()
    };
    let mappings: Vec<Mapping> = caches.iter().map(mapped).collect();
    assert!(mappings.iter().all(|mapping| load(mapping, 63 << 20) == 0));
    let others = foliocache_sys::memory::ReservedRange::reserve(1 << 40);
    assert!(others.is_ok(), "{others:?}");
}

#[test]
fn map_refuses_bad_ranges_and_missing_rights() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        assert_eq!(refused(file.map(.., MapAccess::Read)), Errno::EINVAL);
        file.write_all_at(&[1; 3 * PAGE], 0).unwrap();
        for range in [1..10, 7..PAGE as u64 + 7, PAGE as u64..PAGE as u64] {
            assert_eq!(refused(file.map(range, MapAccess::Read)), Errno::EINVAL);
        }
        assert_eq!(
            refused(file.map(u64::MAX - 4095.., MapAccess::Read)),
            Errno::EINVAL
        );
        assert_eq!(refused(file.map(..u64::MAX, MapAccess::Read)), Errno::EFBIG);
        let reader = dir.open_options().read(true).open("f").unwrap();
        let writer = dir.open_options().write(true).open("f").unwrap();
        let mut appender = dir.open_options();
        let appender = appender.read(true).append(true).open("f").unwrap();
        let map = |file: &File, access| file.map(.., access).map(|_| ());
        for (file, refuses) in [
            (&reader, &[MapAccess::ReadWrite][..]),
            (&writer, &[MapAccess::Read, MapAccess::ReadWrite]),
            (&appender, &[MapAccess::ReadWrite]),
        ] {
            for access in [MapAccess::Read, MapAccess::ReadWrite] {
                match refuses.contains(&access) {
                    true => assert_eq!(refused(map(file, access)), Errno::EACCES),
                    false => map(file, access).unwrap(),
                }
            }
        }
        let error = reader.map(PAGE as u64.., MapAccess::ReadWrite);
        let error = error.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot map {}, bytes 4096..12288: {}",
                reader.path().display(),
                Errno::EACCES
            )
        );
        let mapping = reader.map(.., MapAccess::Read).unwrap();
        assert!(mapping.as_atomics().is_none());
        assert_eq!(refused(mapping.write_at(b"x", 0)), Errno::EACCES);
    });
}

#[test]
fn populated_pages_are_touched_without_a_fault() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        file.write_all_at(&pattern(4, 600 * PAGE), 0).unwrap();
        file.sync_data().unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        mapping.advise(Advice::DontNeed, ..).unwrap();
        mapping.populate(10 * PAGE..590 * PAGE).unwrap();
        let before = file.stats().unwrap().faults;
        for at in (10 * PAGE..590 * PAGE).step_by(PAGE) {
            load(&mapping, at);
        }
        assert_eq!(file.stats().unwrap().faults, before);
        file.set_len(100 * PAGE as u64).unwrap();
        assert_eq!(refused(mapping.populate(90 * PAGE..)), Errno::EFAULT);
    });
}

#[test]
fn random_advice_reads_only_touched_pages() {
    for disk in disks() {
        let file = disk.dir.create("f").unwrap();
        file.write_all_at(&pattern(4, 4096 * PAGE), 0).unwrap();
        file.sync_data().unwrap();
        let mapping = file.map(.., MapAccess::Read).unwrap();
        // Pages under writeback stay, so retry.
        let deadline = Instant::now() + Duration::from_secs(20);
        while file.stats().unwrap().resident_pages > 0 {
            assert!(Instant::now() < deadline, "{:?}", file.stats());
            mapping.advise(Advice::DontNeed, ..).unwrap();
        }
        mapping.advise(Advice::Random, ..).unwrap();
        let before = file.stats().unwrap().read_bytes;
        for page in (0..4096).step_by(256) {
            load(&mapping, page * PAGE);
        }
        // A page is there a moment before it is counted.
        let (wanted, read) = (16 * PAGE as u64, || {
            file.stats().unwrap().read_bytes - before
        });
        while read() < wanted {
            assert!(Instant::now() < deadline, "{:?}", file.stats());
            std::thread::yield_now();
        }
        assert_eq!(read(), wanted);
    }
}

#[test]
fn the_times_move_with_the_first_store_after_each_writeback() {
    for disk in disks() {
        let memory = disk.cache.memfs().unwrap();
        for dir in [&disk.dir, &memory] {
            let file = dir.create("f").unwrap();
            file.write_all_at(&pattern(5, 10 * PAGE), 0).unwrap();
            file.sync_all().unwrap();
            let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
            let times = || {
                let metadata = file.metadata().unwrap();
                let changed = (metadata.ctime(), metadata.ctime_nsec());
                (metadata.modified().unwrap(), changed)
            };
            let mut last = times();
            // Data that is never written back moves them once, and not at all if a load made the
            // page writable before.
            let rounds = if dir.path() == memory.path() { 1 } else { 3 };
            for round in 0..rounds {
                std::thread::sleep(Duration::from_millis(20));
                if rounds > 1 {
                    load(&mapping, 3 * PAGE);
                }
                assert_eq!(times(), last, "loads move no time");
                store(&mapping, 3 * PAGE, round);
                let now = times();
                assert!(now.0 > last.0 && now.1 > last.1, "{now:?} {last:?}");
                mapping.sync(..).unwrap();
                last = times();
                assert_eq!(last.0, now.0, "the sync keeps it");
            }
            if dir.path() == disk.dir.path() {
                let source = std::fs::metadata(disk.in_source("f")).unwrap();
                assert_eq!(source.modified().unwrap(), last.0);
            }
        }
    }
}

#[test]
fn a_file_is_read_into_its_own_mapping_and_into_anothers() {
    on_both(|dir| {
        let [one, two] = ["one", "two"].map(|name| dir.create(name).unwrap());
        let [first, second] = [6, 7].map(|seed| pattern(seed, 64 * PAGE));
        one.write_all_at(&first, 0).unwrap();
        two.write_all_at(&second, 0).unwrap();
        for populated in [false, true] {
            let [mut into_one, mut into_two] =
                [&one, &two].map(|file| file.map(.., MapAccess::ReadWrite).unwrap());
            if populated {
                into_one.populate(..).unwrap();
                into_two.populate(..).unwrap();
            }
            // SAFETY: see the module's header. The bytes that are read lie beside those that
            // change.
            let to_one = unsafe { into_one.as_mut_slice() };
            // SAFETY: see the module's header. The bytes that are read lie beside those that
            // change.
            let to_two = unsafe { into_two.as_mut_slice() };
            let half = 32 * PAGE;
            one.read_exact_at(&mut to_one[half..], 0).unwrap();
            two.read_exact_at(&mut to_one[..PAGE], half as u64).unwrap();
            one.read_exact_at(&mut to_two[..PAGE], half as u64).unwrap();
            let [mut now_one, mut now_two] = [vec![0; 64 * PAGE], vec![0; 64 * PAGE]];
            one.read_exact_at(&mut now_one, 0).unwrap();
            two.read_exact_at(&mut now_two, 0).unwrap();
            assert!(now_one[half..] == first[..half]);
            assert!(now_one[..PAGE] == second[half..][..PAGE]);
            assert!(now_two[..PAGE] == first[..PAGE]);
            one.write_all_at(&first, 0).unwrap();
            two.write_all_at(&second, 0).unwrap();
        }
    });
}

#[test]
fn a_failed_writeback_is_told_to_the_file_and_to_the_mapping_once() {
    for mode in MODES {
        let faults = Faults::new(1);
        let (_cache, file) = over(mode, &faults, 0);
        file.write_all_at(&[1; 4 * PAGE], 0).unwrap();
        file.sync_data().unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        store(&mapping, PAGE, 2);
        faults.add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)));
        assert_eq!(refused(mapping.sync(..)), Errno::EIO);
        faults.heal();
        assert_eq!(refused(file.sync_data()), Errno::EIO, "told once");
        mapping.sync(..).unwrap();
        file.sync_data().unwrap();
    }
}

#[test]
fn a_sync_of_a_range_leaves_the_rest_of_the_file_alone() {
    for mode in MODES {
        let faults = Faults::new(1);
        let (_cache, file) = over(mode, &faults, 0);
        file.write_all_at(&vec![1; 8 << 20], 0).unwrap();
        file.sync_data().unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        let broken = Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO));
        faults.add(broken.range(4 << 20..5 << 20));
        store(&mapping, 100, 2);
        store(&mapping, 4 << 20, 2);
        let before = file.stats().unwrap().written_bytes;
        mapping.sync(..PAGE).unwrap();
        // A large folio is written in pieces of up to 32 KiB.
        let written = file.stats().unwrap().written_bytes - before;
        assert!((PAGE..=8 * PAGE).contains(&(written as usize)), "{written}");
        assert_eq!(refused(mapping.sync(4 << 20..)), Errno::EIO);
        mapping.sync(..PAGE).unwrap();
        faults.heal();
        mapping.sync(4 << 20..).unwrap();
        assert_eq!(file.stats().unwrap().dirty_pages, 0);
    }
}

#[test]
fn a_touch_beyond_the_end_is_sigbus_and_nothing_before_it() {
    run_to_sigbus("touch_beyond_the_end");
}

#[test]
fn touch_beyond_the_end() {
    if !is_alone() {
        return;
    }
    let disk = disks().nth(mode_alone()).unwrap();
    let file = disk.dir.create("f").unwrap();
    file.write_all_at(&pattern(8, 100 * PAGE), 0).unwrap();
    let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
    mapping.populate(..).unwrap();
    file.set_len(50 * PAGE as u64 + 10).unwrap();
    for page in 0..=50 {
        load(&mapping, page * PAGE);
        store(&mapping, page * PAGE, 1);
    }
    let mut byte = [0];
    assert_eq!(mapping.read_at(&mut byte, 51 * PAGE).unwrap(), 0);
    println!("now it comes");
    load(&mapping, 51 * PAGE);
}

#[test]
fn a_page_that_cannot_be_read_is_sigbus_and_an_error_of_the_copy() {
    run_to_sigbus("touch_what_cannot_be_read");
}

#[test]
fn touch_what_cannot_be_read() {
    if !is_alone() {
        return;
    }
    let faults = Faults::new(2);
    let (_cache, file) = over(MODES[mode_alone()], &faults, 4 * PAGE as u64);
    let mapping = file.map(.., MapAccess::Read).unwrap();
    faults.add(Rule::new(OpSet::READ, Effect::Fail(Errno::EIO)));
    assert_eq!(refused(mapping.read_at(&mut [0], 0)), Errno::EIO);
    assert_eq!(refused(mapping.populate(..)), Errno::EIO);
    faults.heal();
    assert_eq!(load(&mapping, PAGE), 0);
    mapping.advise(Advice::DontNeed, ..).unwrap();
    faults.add(Rule::new(OpSet::READ, Effect::Fail(Errno::EIO)));
    println!("now it comes");
    load(&mapping, 3 * PAGE);
}

#[test]
fn where_faults_may_not_be_resolved_the_error_names_the_setting() {
    let said = run_alone("mapping::map_without_privilege");
    let allowed = said.contains("all users may");
    assert!(said.contains("it was refused") || allowed, "{said}");
}

#[test]
fn map_without_privilege() {
    if !is_alone() {
        return;
    }
    // SAFETY: the process is this test's alone.
    unsafe { libc::setresuid(65534, 65534, 65534) };
    let [file, inline] = MODES.map(|mode| {
        let file = cache(mode).memfs().unwrap().create("f").unwrap();
        file.write_all_at(&[1; PAGE], 0).unwrap();
        file
    });
    // A fault that the program's own thread resolves needs no privilege.
    load(&inline.map(.., MapAccess::Read).unwrap(), 0);
    let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let device = std::fs::File::open("/dev/userfaultfd");
    if setting.is_ok_and(|on| on.trim() == "1") || device.is_ok() {
        println!("all users may");
        return;
    }
    let error = file.map(.., MapAccess::Read).unwrap_err();
    let text = error.to_string();
    for part in [
        "cannot map memfs/f, bytes 0..4096: ",
        "vm.unprivileged_userfaultfd",
        "CAP_SYS_PTRACE",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(error.errno(), Errno::EPERM);
    let Error::Map { cause, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(cause, MapError::Faults(FaultsError::Forbidden)));
    println!("it was refused");
}

/// Releases hanging operations when it is dropped.
struct Released<'a>(&'a Faults);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.heal();
        self.0.release(Ok(()));
    }
}

#[test]
fn a_mapping_waits_for_io_that_is_in_the_way_and_not_for_ever() {
    let busy = |file: &File, holder: &str| {
        let start = Instant::now();
        let error = file.map(.., MapAccess::Read).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(error.errno(), Errno::EBUSY);
        assert!(error.to_string().contains(holder), "{error}");
    };
    let wait = |until: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !until() {
            assert!(start.elapsed().as_secs() < 10);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let faults = Faults::new(1);
            let (_cache, file) = over(MappingFaults::Inline, &faults, 4 << 20);
            let hang = Rule::new(OpSet::READ, Effect::Hang);
            faults.add(hang.range(2 << 20..3 << 20));
            std::thread::scope(|scope| {
                let _released = Released(&faults);
                scope.spawn(|| file.read_exact_at(&mut [1; 10], 2 << 20).unwrap());
                assert!(faults.wait_hung(1, Duration::from_secs(60)));
                busy(&file, "by I/O or a lent slice at byte 2097152");
                // Others go on.
                file.read_exact_at(&mut [1; 10], 0).unwrap();
            });
            load(&file.map(.., MapAccess::Read).unwrap(), 2 << 20);
        });
        scope.spawn(|| {
            let faults = Faults::new(1);
            let (_cache, file) = over(MappingFaults::Inline, &faults, 4 << 20);
            file.write_all_at(&[1; PAGE], 0).unwrap();
            faults.add(Rule::new(OpSet::WRITE, Effect::Hang));
            std::thread::scope(|scope| {
                let _released = Released(&faults);
                scope.spawn(|| file.sync_data().unwrap());
                wait(&|| file.stats().unwrap().writeback_pages > 0);
                busy(&file, "by writeback of the file");
            });
            assert_eq!(load(&file.map(.., MapAccess::Read).unwrap(), 0), 1);
        });
    });
}

#[test]
fn streams_of_reads_and_writes_keep_no_mapping_out() {
    let faults = Faults::new(1);
    let (_cache, file) = over(MappingFaults::Inline, &faults, 128 << 20);
    faults.add(Rule::new(
        OpSet::READ,
        Effect::Delay(Duration::from_millis(5)),
    ));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, done) = (&file, &done);
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let mut at = thread;
                while !done.load(Relaxed) {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let pos = (at >> 33) % (128 << 20);
                    match thread % 4 {
                        0 => drop(file.write_at(&[1; 10], pos).unwrap()),
                        _ => drop(file.read_at(&mut [0; 10], pos).unwrap()),
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        for mib in [1, 20, 40, 60, 80, 100, 128] {
            let mapping = file.map(..mib << 20, MapAccess::Read).unwrap();
            load(&mapping, 0);
        }
        done.store(true, Relaxed);
    });
}

/// Fills the cache with other data, twice as much as fits.
fn crowd(disk: &Disk) {
    let other = disk.dir.create("crowd").unwrap();
    for at in 0..128 {
        other
            .write_all_at(&[at; 1 << 20], u64::from(at) << 20)
            .unwrap();
    }
    other.sync_data().unwrap();
    disk.dir.remove_file("crowd").unwrap();
}

#[test]
fn a_locked_mapping_is_touched_without_a_fault_or_a_read() {
    for disk in disks() {
        let memory = disk.cache.memfs().unwrap();
        for dir in [&disk.dir, &memory] {
            let file = dir.create("f").unwrap();
            let bytes = pattern(11, 1000 * PAGE + 100);
            file.write_all_at(&bytes, 0).unwrap();
            file.sync_data().unwrap();
            file.advise(Advice::DontNeed, ..).unwrap();
            let held = |pages: u64| {
                let held = disk.cache.stats().unwrap().unreclaimable.held_pages;
                assert_eq!(
                    held,
                    if dir.path() == memory.path() {
                        0
                    } else {
                        pages
                    }
                );
            };
            let mapping = file.map_locked(.., LockedAccess::Read).unwrap();
            held(1001);
            let part = 8 * PAGE as u64..16 * PAGE as u64;
            let part = file.map_locked(part, LockedAccess::Untracked).unwrap();
            held(1001);
            crowd(&disk);
            let before = file.stats().unwrap();
            // SAFETY: the file does not change meanwhile.
            assert!(unsafe { mapping.as_slice() } == bytes);
            store(&part, 3, 77);
            assert_eq!(load(&mapping, 8 * PAGE + 3), 77);
            let after = file.stats().unwrap();
            assert_eq!(
                (after.faults, after.read_bytes),
                (before.faults, before.read_bytes)
            );
            drop(mapping);
            held(8);
            drop(part);
            held(0);
            let mut byte = [0];
            file.read_exact_at(&mut byte, 8 * PAGE as u64 + 3).unwrap();
            assert_eq!(byte, [77]);
        }
        let max = disk.cache.stats().unwrap().memory;
        assert!(max.in_use_pages <= 64 << 20, "{max:?}");
    }
}

#[test]
fn stores_of_a_locked_mapping_are_durable_after_each_sync() {
    disks().for_each(|disk| stores_are_durable_after_each_sync(&disk));
}

fn stores_are_durable_after_each_sync(disk: &Disk) {
    let file = disk.dir.create("f").unwrap();
    let mut expected = pattern(12, 700 * PAGE + 50);
    file.write_all_at(&expected, 0).unwrap();
    let mapping = file.map_locked(.., LockedAccess::Untracked).unwrap();
    file.sync_data().unwrap();
    let durable = || std::fs::read(disk.in_source("f")).unwrap();
    for round in 1..5 {
        let before = file.metadata().unwrap().modified().unwrap();
        let written = file.stats().unwrap().written_bytes;
        std::thread::sleep(Duration::from_millis(20));
        for at in [0, 9 * PAGE + 7, 600 * PAGE, 700 * PAGE + 49] {
            store(&mapping, at, round);
            expected[at] = round;
        }
        match round % 3 {
            0 => mapping.sync(..).unwrap(),
            1 => file.sync_all().unwrap(),
            _ => disk.cache.sync().unwrap(),
        }
        assert!(durable() == expected, "round {round}");
        assert!(file.metadata().unwrap().modified().unwrap() > before);
        let written = (file.stats().unwrap().written_bytes - written) as usize;
        assert!(written >= 700 * PAGE + 50);
    }
    store(&mapping, 5, 99);
    expected[5] = 99;
    drop(mapping);
    file.sync_data().unwrap();
    assert!(durable() == expected);
}

#[test]
fn a_locked_mapping_outlives_its_cache() {
    for Disk { cache, dir, source } in disks() {
        let file = dir.create("f").unwrap();
        file.write_all_at(&pattern(14, 20 * PAGE), 0).unwrap();
        let mapping = file.map_locked(.., LockedAccess::Untracked).unwrap();
        store(&mapping, 7, 1);
        drop((file, dir));
        cache.close().unwrap();
        let durable = || std::fs::read(source.path().join("f")).unwrap()[7];
        assert_eq!(durable(), 1);
        store(&mapping, 7, 2);
        mapping.sync(..).unwrap();
        assert_eq!(durable(), 2);
    }
}

#[test]
fn a_refused_lock_reports_the_reason() {
    on_both(|dir| {
        let file = dir.create("f").unwrap();
        file.write_all_at(&[1; 3 * PAGE], 0).unwrap();
        let read = LockedAccess::Read;
        assert_eq!(refused(file.map_locked(1.., read)), Errno::EINVAL);
        let beyond = 0..4 * PAGE as u64;
        assert_eq!(refused(file.map_locked(beyond, read)), Errno::EINVAL);
        let reader = dir.open_options().read(true).open("f").unwrap();
        let stores = LockedAccess::Untracked;
        assert_eq!(refused(reader.map_locked(.., stores)), Errno::EACCES);
        let mapping = reader.map_locked(.., read).unwrap();
        assert!(mapping.as_atomics().is_none());
        assert_eq!(refused(mapping.lock_for_io(..0)), Errno::EINVAL);
        let beyond = mapping.lock_for_io(2 * PAGE..3 * PAGE + 1);
        assert_eq!(refused(beyond), Errno::EINVAL);
        let longer = file.map(..8 * PAGE as u64, MapAccess::ReadWrite).unwrap();
        assert_eq!(refused(longer.lock_for_io(..)), Errno::EFAULT);
    });
    for disk in disks() {
        let file = disk.dir.create("f").unwrap();
        file.set_len(80 << 20).unwrap();
        let mapping = file.map(.., MapAccess::Read).unwrap();
        let some = file.map_locked(..10 << 20, LockedAccess::Read).unwrap();
        for error in [
            file.map_locked(.., LockedAccess::Read).unwrap_err(),
            mapping.lock_for_io(..40 << 20).unwrap_err(),
        ] {
            assert_eq!(error.errno(), Errno::ENOBUFS);
            let text = error.to_string();
            assert!(text.contains("mappings hold 10485760 already"), "{text}");
            let Error::Map { cause, .. } = error else {
                panic!("{error}");
            };
            assert!(matches!(cause, MapError::TooMuchHeld { .. }));
        }
        drop(some);
        drop(file.map_locked(..20 << 20, LockedAccess::Read).unwrap());
        drop(mapping.lock_for_io(..20 << 20).unwrap());
        assert_eq!(disk.cache.stats().unwrap().unreclaimable.held_pages, 0);
    }
}

/// A file of the kernel's, for direct I/O.
fn direct(disk: &Disk, name: &str) -> std::fs::File {
    let mut options = std::fs::File::options();
    let options = options.read(true).write(true).create(true);
    options.custom_flags(libc::O_DIRECT);
    options.open(disk.in_source(name)).unwrap()
}

#[test]
fn system_calls_get_memory_locked_for_io() {
    for (disk, mode) in disks().zip(MODES) {
        let len = 300 * PAGE;
        let file = disk.dir.create("f").unwrap();
        file.write_all_at(&pattern(13, len), 0).unwrap();
        file.sync_data().unwrap();
        let loads = file.map(.., MapAccess::Read).unwrap();
        for locked in [false, true] {
            let stores = match locked {
                false => file.map(.., MapAccess::ReadWrite),
                true => file.map_locked(.., LockedAccess::Untracked),
            };
            let stores = stores.unwrap();
            let held = if locked { 300 } else { 0 };
            let (source, target) = (direct(&disk, "source"), direct(&disk, "target"));
            let at = |mapping: &Mapping| mapping.as_ptr().wrapping_add(100 * PAGE).cast();
            let read_in = || {
                let to = at(&stores);
                // SAFETY: the bytes are read only afterwards.
                unsafe { libc::pread(source.as_raw_fd(), to, 200 * PAGE, 0) }
            };
            let write_out = || {
                let from = at(&loads);
                // SAFETY: within the mapping.
                unsafe { libc::pwrite(target.as_raw_fd(), from, 200 * PAGE, 0) }
            };
            let all = 200 * PAGE as isize;
            let new = |round: u64| pattern(20 + round, 200 * PAGE);
            std::fs::write(disk.in_source("source"), new(0)).unwrap();
            if mode == MappingFaults::Inline && !locked {
                stores.advise(Advice::DontNeed, ..).unwrap();
                for call in [&read_in as &dyn Fn() -> isize, &write_out] {
                    assert_eq!(call(), -1);
                    let error = std::io::Error::last_os_error();
                    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
                }
            }
            for round in 0..4 {
                std::fs::write(disk.in_source("source"), new(round)).unwrap();
                let locks = (
                    stores.lock_for_io(100 * PAGE..).unwrap(),
                    loads.lock_for_io(100 * PAGE..).unwrap(),
                );
                assert_eq!(
                    disk.cache.stats().unwrap().unreclaimable.held_pages,
                    held.max(200)
                );
                crowd(&disk);
                file.sync_data().unwrap();
                assert_eq!(read_in(), all);
                assert_eq!(write_out(), all);
                drop(locks);
                assert!(std::fs::read(disk.in_source("target")).unwrap() == new(round));
                let mut now = vec![0; 200 * PAGE];
                file.read_exact_at(&mut now, 100 * PAGE as u64).unwrap();
                assert!(now == new(round));
                stores.sync(..).unwrap();
                let durable = std::fs::read(disk.in_source("f")).unwrap();
                assert!(durable[100 * PAGE..] == new(round));
            }
            assert_eq!(disk.cache.stats().unwrap().unreclaimable.held_pages, held);
        }
    }
}

#[test]
fn locked_mappings_stay_within_the_bound() {
    run_alone("mapping::memory_of_locked_mappings");
}

#[test]
fn memory_of_locked_mappings() {
    if !is_alone() {
        return;
    }
    // Shared memory of this process, each page once.
    let measured = || {
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = rollup.lines().find(|line| line.starts_with("Pss_Shmem:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    };
    for disk in disks() {
        let file = disk.dir.create("f").unwrap();
        file.set_len(40 << 20).unwrap();
        let whole = file.map(.., MapAccess::ReadWrite).unwrap();
        let locked = file
            .map_locked(..16 << 20, LockedAccess::Untracked)
            .unwrap();
        let lock = whole.lock_for_io(16 << 20..20 << 20).unwrap();
        for round in 1..3 {
            for at in (0..whole.len()).step_by(PAGE) {
                store(&whole, at, round);
                store(&locked, at % locked.len(), round);
            }
            crowd(&disk);
            let (now, stats) = (measured(), disk.cache.stats().unwrap());
            println!("{now} measured, {:?}", stats.memory);
            // The kernel rounds shares of pages down.
            assert!(
                ((20 << 20) - PAGE as u64..=64 << 20).contains(&now),
                "{now}"
            );
            assert_eq!(stats.unreclaimable.held_pages, 20 << 8);
        }
        drop(lock);
    }
}

#[test]
fn a_child_of_fork_has_no_mapping() {
    let said = run_alone("mapping::mapping_after_fork");
    assert!(said.contains("the child was told"), "{said}");
}

#[test]
fn mapping_after_fork() {
    if !is_alone() {
        return;
    }
    for disk in disks() {
        let file = disk.dir.create("f").unwrap();
        file.write_all_at(&pattern(9, 10 * PAGE), 0).unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        let second = file.map(.., MapAccess::Read).unwrap();
        mapping.populate(..).unwrap();
        let fork = |child: &dyn Fn() -> i32| {
            // SAFETY: see the module's header.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: always allowed.
                unsafe { libc::alarm(30) };
                let status = child();
                // SAFETY: always allowed.
                unsafe { libc::_exit(status) };
            }
            let mut status = 0;
            // SAFETY: `status` is ours.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        };
        let second = std::cell::Cell::new(Some(second));
        let told = fork(&|| {
            let echild = [
                refused(file.map(.., MapAccess::Read)),
                refused(mapping.read_at(&mut [0], 0)),
                refused(mapping.write_at(&[0], 0)),
                refused(mapping.sync(..)),
                refused(mapping.populate(..)),
                refused(file.map_locked(.., LockedAccess::Read)),
                refused(mapping.lock_for_io(..)),
                refused(mapping.advise(Advice::WillNeed, ..)),
            ];
            drop(second.take());
            println!("{mapping:?}");
            i32::from(echild.iter().any(|&errno| errno != Errno::ECHILD))
        });
        assert!(
            libc::WIFEXITED(told) && libc::WEXITSTATUS(told) == 0,
            "{told:#x}"
        );
        let touched = fork(&|| load(&mapping, 0).into());
        assert!(libc::WIFSIGNALED(touched) && libc::WTERMSIG(touched) == libc::SIGSEGV);
        println!("the child was told");
        // Nothing of the parent's is gone.
        let second = second.take().expect("the child's is a copy");
        store(&mapping, 0, 77);
        assert_eq!(
            (load(&second, 0), load(&second, 9 * PAGE)),
            (77, pattern(9, 10 * PAGE)[9 * PAGE])
        );
        mapping.sync(..).unwrap();
        assert_eq!(std::fs::read(disk.in_source("f")).unwrap()[0], 77);
    }
}

/// A source in the mapping of the written file, or of another that is written from this one's, populated or not.
#[test]
fn files_are_written_from_mappings_of_themselves_and_of_each_other() {
    on_both(|dir| {
        let files = ["one", "two"].map(|name| dir.create(name).unwrap());
        for populated in [false, true] {
            for file in &files {
                file.write_all_at(&pattern(10, 64 * PAGE), 0).unwrap();
                file.sync_data().unwrap();
            }
            let mappings = [0, 1].map(|at| files[at].map(.., MapAccess::ReadWrite).unwrap());
            for mapping in &mappings {
                match populated {
                    true => mapping.populate(..).unwrap(),
                    false => mapping.advise(Advice::DontNeed, ..).unwrap(),
                }
            }
            // SAFETY: see the module's header: the written bytes lie elsewhere.
            let sources = [0, 1].map(|at| unsafe { mappings[at].as_slice() });
            // Within one folio, and over a folio's end.
            files[0].write_all_at(&sources[0][..100], 200).unwrap();
            files[0]
                .write_all_at(&sources[0][2 * PAGE + 50..4 * PAGE], 10 * PAGE as u64 + 30)
                .unwrap();
            let expected = pattern(10, 64 * PAGE);
            let mut now = vec![0; 64 * PAGE];
            files[0].read_exact_at(&mut now, 0).unwrap();
            assert!(now[200..300] == expected[..100]);
            assert!(now[10 * PAGE + 30..][..2 * PAGE - 50] == expected[2 * PAGE + 50..4 * PAGE]);
            std::thread::scope(|scope| {
                for at in [0, 1] {
                    let (file, source) = (&files[at], sources[1 - at]);
                    scope.spawn(move || {
                        for round in 0..200 {
                            let from = (32 + round % 16) * PAGE;
                            let to = 16 * PAGE + round % 16 * PAGE;
                            file.write_all_at(&source[from..][..PAGE], to as u64)
                                .unwrap();
                        }
                    });
                }
            });
            for file in &files {
                let mut now = vec![0; 16 * PAGE];
                file.read_exact_at(&mut now, 16 * PAGE as u64).unwrap();
                assert!(now == expected[32 * PAGE..48 * PAGE]);
            }
        }
    });
}

/// All of them together have more addresses than the cache has for mapped files.
#[test]
fn closed_files_give_the_addresses_back_that_they_were_mapped_at() {
    const TIB: u64 = 1 << 40;
    let source = on_disk();
    let cache = cache(MappingFaults::Inline);
    let dir = cache.directory(source.path()).unwrap();
    for i in 0..40 {
        let file = dir.create(format!("{i}")).unwrap();
        file.set_len(TIB / 2).unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        store(&mapping, mapping.len() - 1, i);
        drop((mapping, file));
    }
    for i in 0..40 {
        let file = dir.open(format!("{i}")).unwrap();
        assert_eq!(file.len(), TIB / 2);
        let mapping = file.map(.., MapAccess::Read).unwrap();
        assert_eq!(load(&mapping, mapping.len() - 1), i);
    }
    cache.close().unwrap();
}
