//! The effect of `O_DIRECT`, `RWF_DONTCACHE` and `posix_fadvise(2)` on a mount: which of them reach us, and that
//! reads, writes and mappings agree on all paths.
//!
//! Another process makes the calls, this program once more; this one reads the counters.
//!
//! Needs FUSE and root.
#![allow(unsafe_code)]

use crate::common::no_root_or_fuse;
use foliocache::{Cache, FileStats};
use foliocache_fuse::{FuseStats, MountOptions, mount};
use foliocache_sys::Errno;
use foliocache_sys::memory::WindowAccess;
use foliocache_sys::testing::{FileMapping, pread_dontcache, pwrite_dontcache};
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::mm::{Advice as MemoryAdvice, madvise};
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const SIZE: usize = 4 << 20;
const PAGES: u64 = (SIZE / PAGE) as u64;

/// For the other process: its steps, and their folder.
const STEPS: &str = "FOLIOCACHE_UNCACHED_STEPS";
const TOP: &str = "FOLIOCACHE_UNCACHED_TOP";

fn content() -> Vec<u8> {
    let byte = |at: usize| (at / 509 + at % 251 + at / PAGE) as u8;
    (0..SIZE).map(byte).collect()
}

/// The counters after each step of the other process.
type Seen = (String, FileStats, FuseStats);

/// Has the other process run `steps` on a mount with a file `data`. It has no uncached handle open
/// when it reports.
fn counters_of(steps: &str) -> Vec<Seen> {
    let name = format!("uncached-{steps}-{}", std::process::id());
    let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (source, point) = (top.join("source"), top.join("mount"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir_all(&point).unwrap();
    fs::write(source.join("data"), content()).unwrap();
    let cache = Cache::builder().memory("64M").build().unwrap();
    let directory = cache.directory(&source).unwrap();
    let file = directory.open("data").unwrap();
    let mut mounted = mount(&directory, &point, &MountOptions::new("uncached")).unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "uncached::the_caller",
            "--include-ignored",
            "--nocapture",
        ])
        .env(STEPS, steps)
        .env(TOP, &top)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut go_on = child.stdin.take().unwrap();
    let mut seen = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(what) = line.strip_prefix("now ") {
            // The kernel sends the release after `close(2)` has returned, and reads ahead on its
            // own.
            let patience = Instant::now() + Duration::from_secs(20);
            let mut before = None;
            while file.stats().unwrap().uncached.pending_pages() > 0
                || before != Some(mounted.stats())
            {
                assert!(Instant::now() < patience, "{what}: {:?}", file.stats());
                before = Some(mounted.stats());
                std::thread::sleep(Duration::from_millis(50));
            }
            seen.push((what.to_owned(), file.stats().unwrap(), mounted.stats()));
            writeln!(go_on).unwrap();
        }
    }
    assert!(child.wait().unwrap().success());
    mounted.unmount().unwrap();
    drop((mounted, file, directory, cache));
    fs::remove_dir_all(&top).unwrap();
    seen
}

/// The counters at `what`.
fn at<'a>(seen: &'a [Seen], what: &str) -> (&'a FileStats, &'a FuseStats) {
    let found = seen.iter().find(|(name, ..)| name == what);
    let (_, file, mount) = found.unwrap_or_else(|| panic!("{what} was not reported"));
    (file, mount)
}

#[test]
#[ignore = "system tier"]
fn the_caller() {
    let Some(top) = env::var_os(TOP).map(PathBuf::from) else {
        return;
    };
    let (source, data) = (top.join("source/data"), top.join("mount/data"));
    match env::var(STEPS).unwrap().as_str() {
        "alone" => read_alone(&data),
        "beside" => read_and_write_beside_others(&data, &source),
        "advise" => advise(&data),
        steps => panic!("{steps}"),
    }
}

/// Reports a step to the process that serves the mount, and waits until it has read the counters.
fn report(what: &str) {
    println!("now {what}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn open(path: &Path, flags: OFlags) -> File {
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags(flags.bits() as i32);
    options.open(path).unwrap()
}

/// Bytes read into unaligned memory.
fn read(file: &File, pos: usize, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len + 1];
    let n = file.read_at(&mut buffer[1..], pos as u64).unwrap();
    buffer[1..=n].to_vec()
}

/// Reads sequentially, piece by piece.
fn scan(file: &File, expected: &[u8], piece: usize) {
    for pos in (0..SIZE).step_by(piece) {
        let wanted = &expected[pos..SIZE.min(pos + piece)];
        assert!(read(file, pos, piece) == wanted, "{piece} bytes at {pos}");
    }
}

fn mapped(mapping: &FileMapping, pos: usize, len: usize) -> Vec<u8> {
    assert!(pos + len <= mapping.len());
    // SAFETY: within the mapping of a file of this length; volatile because other threads store to
    // it.
    let byte = |at: usize| unsafe { mapping.as_ptr().wrapping_add(at).read_volatile() };
    (pos..pos + len).map(byte).collect()
}

fn store(mapping: &FileMapping, pos: usize, bytes: &[u8]) {
    assert!(pos + bytes.len() <= mapping.len());
    for (at, &byte) in bytes.iter().enumerate() {
        // SAFETY: as in `mapped`; the mapping is writable.
        unsafe { mapping.as_ptr().wrapping_add(pos + at).write_volatile(byte) };
    }
}

fn read_alone(data: &Path) {
    let expected = content();
    let direct = open(data, OFlags::DIRECT);
    for (pos, len) in [(0, 16 * PAGE), (20 * PAGE, PAGE), (SIZE - 10, 10)] {
        assert!(read(&direct, pos, len) == expected[pos..pos + len]);
    }
    assert!(read(&direct, 3 * PAGE + 7, 1000) == expected[3 * PAGE + 7..][..1000]);
    assert_eq!(read(&direct, SIZE, PAGE), [0u8; 0]);
    scan(&direct, &expected, 1 << 20);
    scan(&direct, &expected, 10_007);
    drop(direct);
    report("opened with O_DIRECT");
    let late = open(data, OFlags::empty());
    let plain = fcntl_getfl(&late).unwrap();
    fcntl_setfl(&late, plain | OFlags::DIRECT).unwrap();
    scan(&late, &expected, 64 << 10);
    fcntl_setfl(&late, plain).unwrap();
    drop(late);
    report("set by fcntl");
    let direct = open(data, OFlags::DIRECT);
    fcntl_setfl(&direct, fcntl_getfl(&direct).unwrap() - OFlags::DIRECT).unwrap();
    scan(&direct, &expected, 64 << 10);
    drop(direct);
    report("taken back by fcntl");
}

#[test]
#[ignore = "system tier"]
fn pages_read_through_o_direct_leave_the_cache() {
    if no_root_or_fuse() {
        return;
    }
    let seen = counters_of("alone");
    let (opened, served) = at(&seen, "opened with O_DIRECT");
    assert!(opened.uncached.asked_pages >= 2 * PAGES, "{opened:?}");
    assert_eq!(opened.resident_pages, 0, "{opened:?}");
    assert_eq!(served.kernel_cache_bytes, 0);
    let (late, _) = at(&seen, "set by fcntl");
    assert!(
        late.uncached.asked_pages >= opened.uncached.asked_pages + PAGES,
        "{late:?}"
    );
    assert_eq!(late.resident_pages, 0, "{late:?}");
    let (plain, _) = at(&seen, "taken back by fcntl");
    assert_eq!(
        plain.uncached.asked_pages, late.uncached.asked_pages,
        "{plain:?}"
    );
    assert_eq!(plain.resident_pages, PAGES, "{plain:?}");
}

fn read_and_write_beside_others(data: &Path, source: &Path) {
    let mut expected = content();
    let cached = open(data, OFlags::empty());
    assert!(read(&cached, 0, SIZE / 4) == expected[..SIZE / 4]);
    report("read in part");
    let direct = open(data, OFlags::DIRECT);
    scan(&direct, &expected, 64 << 10);
    drop(direct);
    report("scanned past O_DIRECT");
    let mapping = FileMapping::new(cached.as_fd(), SIZE, WindowAccess::ReadWrite).unwrap();
    assert!(mapped(&mapping, 0, SIZE) == expected);
    let direct = open(data, OFlags::DIRECT);
    // Within a page, over the edges of pages, and whole pages.
    for (round, (pos, len)) in [
        (5001, 1000),
        (9 * PAGE - 5, 2 * PAGE),
        (600 * PAGE, 32 * PAGE),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = vec![0xd0 + round as u8; len + 1];
        assert_eq!(direct.write_at(&bytes[1..], pos as u64).unwrap(), len);
        expected[pos..pos + len].copy_from_slice(&bytes[1..]);
        let (start, len) = (pos - 10, len + 20);
        let wanted = &expected[start..start + len];
        assert!(read(&cached, start, len) == wanted, "cached, at {pos}");
        assert!(read(&direct, start, len) == wanted, "direct, at {pos}");
        assert!(mapped(&mapping, start, len) == wanted, "mapped, at {pos}");
    }
    // Stores and writes by other paths are visible to it.
    let wanted = [0xee; 5000];
    store(&mapping, 300 * PAGE - 100, &wanted);
    expected[300 * PAGE - 100..][..5000].copy_from_slice(&wanted);
    assert!(read(&direct, 300 * PAGE - 100, 5000) == wanted);
    assert!(read(&cached, 300 * PAGE - 100, 5000) == wanted);
    cached.write_all_at(&wanted[..77], 700_001).unwrap();
    expected[700_001..][..77].copy_from_slice(&wanted[..77]);
    assert!(read(&direct, 700_001, 77) == wanted[..77]);
    assert!(mapped(&mapping, 700_001, 77) == wanted[..77]);
    direct.sync_all().unwrap();
    assert!(fs::read(source).unwrap() == expected, "durable");
    scan(&direct, &expected, 1 << 20);
    drop(direct);
    assert!(mapped(&mapping, 0, SIZE) == expected);
    report("written past O_DIRECT");
}

#[test]
#[ignore = "system tier"]
fn o_direct_on_a_mount_agrees_with_cached_readers_and_mappings() {
    if no_root_or_fuse() {
        return;
    }
    let seen = counters_of("beside");
    let (read, _) = at(&seen, "read in part");
    assert_eq!(read.uncached.asked_pages, 0);
    assert!(read.resident_pages >= PAGES / 4, "{read:?}");
    let (scanned, _) = at(&seen, "scanned past O_DIRECT");
    assert_eq!(scanned.resident_pages, read.resident_pages, "{scanned:?}");
    assert!(
        scanned.uncached.kept_present_pages >= read.resident_pages,
        "{scanned:?}"
    );
    assert_eq!(scanned.uncached.asked_pages, PAGES, "{scanned:?}");
    let (written, served) = at(&seen, "written past O_DIRECT");
    assert!(
        written.uncached.asked_pages > scanned.uncached.asked_pages,
        "{written:?}"
    );
    assert!(served.kernel_cache_bytes >= SIZE as u64, "{served:?}");
}

/// Removes the pages from the mapping. They stay in the kernel's cache.
fn forget(mapping: &FileMapping) {
    let start = mapping.as_ptr().cast();
    // SAFETY: the range belongs to the mapping; its next touch finds the file's bytes again.
    unsafe { madvise(start, mapping.len(), MemoryAdvice::LinuxDontNeed) }.unwrap();
}

fn advise(data: &Path) {
    let expected = content();
    let file = open(data, OFlags::empty());
    let len = NonZeroU64::new(SIZE as u64);
    let mapping = FileMapping::new(file.as_fd(), SIZE, WindowAccess::Read).unwrap();
    assert!(mapped(&mapping, 0, SIZE) == expected);
    report("mapped");
    for advice in [
        Advice::Sequential,
        Advice::Random,
        Advice::NoReuse,
        Advice::Normal,
    ] {
        fadvise(&file, 0, len, advice).unwrap();
    }
    forget(&mapping);
    assert!(mapped(&mapping, 0, SIZE) == expected);
    report("touched again");
    fadvise(&file, 0, len, Advice::DontNeed).unwrap();
    forget(&mapping);
    assert!(mapped(&mapping, 0, SIZE) == expected);
    report("DONTNEED of mapped pages");
    forget(&mapping);
    fadvise(&file, 0, len, Advice::DontNeed).unwrap();
    report("DONTNEED");
    fadvise(&file, 0, len, Advice::WillNeed).unwrap();
    report("WILLNEED");
    assert!(mapped(&mapping, 0, SIZE) == expected);
    let mut buffer = [0; 100];
    let read_some = pread_dontcache(file.as_fd(), 0, &mut buffer);
    assert_eq!(read_some, Err(Errno::EOPNOTSUPP));
    let written = pwrite_dontcache(file.as_fd(), 0, &buffer);
    assert_eq!(written, Err(Errno::EOPNOTSUPP));
    assert!(read(&file, 0, SIZE) == expected);
    report("RWF_DONTCACHE");
}

#[test]
#[ignore = "system tier"]
fn advice_on_a_mount_is_for_the_kernels_pages_and_dontcache_is_refused() {
    if no_root_or_fuse() {
        return;
    }
    let seen = counters_of("advise");
    // Under memory pressure the kernel keeps some pages despite `DONTNEED`, and drops others: an
    // eighth is tolerated.
    let whole = SIZE as u64;
    let to_kernel = |what: &str| at(&seen, what).1.kernel_cache_bytes;
    let assert_read = |what: &str, times: u64| {
        let read = to_kernel(what);
        let off = read.abs_diff(times * whole);
        assert!(off < whole / 8, "{what}: {read}, not {times} times {whole}");
    };
    assert_read("mapped", 1);
    assert_read("touched again", 1);
    assert_read("DONTNEED of mapped pages", 1);
    assert_read("DONTNEED", 1);
    // As much as the kernel's readahead.
    assert!(to_kernel("WILLNEED") > to_kernel("DONTNEED"));
    assert_read("RWF_DONTCACHE", 2);
    for (what, file, _) in &seen {
        let ours = (file.resident_pages, file.uncached.asked_pages);
        assert_eq!(ours, (PAGES, 0), "{what}");
    }
}
