//! The memory that a process takes for mapped files, measured from outside while it touches many times the bound:
//! its anonymous and shared memory and its page tables, and the charge of its memory cgroup.
//!
//! # Safety
//!
//! Addresses are touched within their mapping, which lives as long.
#![allow(unsafe_code)]

use crate::common::{ALONE, PAGE, is_alone};
use foliocache::{Advice, Cache, Errno, MapAccess, Mapping, MappingFaults};
use foliocache_mm::{AddressSpaceOperations, IoSegment};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BOUND: u64 = 64 * MIB;

/// Beside the bound and the process's earlier memory: stacks and descriptors of the cache's threads, upper page
/// tables, the heap of the test.
const SLACK: u64 = 4 * MIB;

const CASE: &str = "FOLIOCACHE_TEST_CASE";

/// Number `page` in the first 8 bytes of each page, and whether it was stored to in the next.
struct Numbers {
    size: u64,
    written: Vec<AtomicU64>,
}

impl Numbers {
    fn of(size: u64) -> Arc<Numbers> {
        let words = size.div_ceil(PAGE as u64 * 64);
        Arc::new(Numbers {
            size,
            written: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn pages_written(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Relaxed).count_ones());
        self.written.iter().map(ones).sum()
    }
}

impl AddressSpaceOperations for Numbers {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut page = pos / PAGE as u64;
        let mut bytes = [0; PAGE];
        for segment in segments {
            for at in (0..segment.len()).step_by(PAGE) {
                bytes[..8].copy_from_slice(&page.to_le_bytes());
                let written = self.written[(page / 64) as usize].load(Relaxed);
                bytes[8] = (written >> (page % 64) & 1) as u8;
                segment.copy_from(at, &bytes);
                page += 1;
            }
        }
        Ok((page * PAGE as u64).min(self.size).saturating_sub(pos) as usize)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut page = pos / PAGE as u64;
        for segment in segments {
            for at in (0..segment.len()).step_by(PAGE) {
                let mut bytes = [0; 9];
                segment.copy_to(at, &mut bytes);
                assert_eq!(bytes[..8], page.to_le_bytes(), "page {page}");
                // A page that became writable with its neighbours may be dirty before the store.
                let stored = u64::from(bytes[8]) << (page % 64);
                self.written[(page / 64) as usize].fetch_or(stored, Relaxed);
                page += 1;
            }
        }
        Ok((page * PAGE as u64 - pos) as usize)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn describe(&self) -> String {
        "numbers".into()
    }
}

fn load(mapping: &Mapping, page: u64) -> (u64, u8) {
    let at = page as usize * PAGE;
    assert!(at < mapping.len());
    let place = mapping.as_ptr().wrapping_add(at);
    // SAFETY: see the module's header.
    let number = unsafe { place.cast::<u64>().read_volatile() };
    // SAFETY: the page that was just read, within the mapping.
    (number, unsafe { place.wrapping_add(8).read_volatile() })
}

/// A memory cgroup of version 1, which goes with it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(case: &str) -> Option<Cgroup> {
        let name = format!("foliocache-{case}-{}", std::process::id());
        let path = PathBuf::from("/sys/fs/cgroup/memory").join(name);
        fs::create_dir(&path).ok().map(|()| Cgroup(path))
    }

    /// Its charge without pages of files on disks, and the part of it that the kernel could
    /// reclaim.
    fn bytes(&self) -> u64 {
        let usage = fs::read_to_string(self.0.join("memory.usage_in_bytes")).unwrap();
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let field = |name: &str| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|&(field, _)| field == name);
            found.map_or(0, |(_, bytes)| bytes.parse::<u64>().unwrap())
        };
        let of_disks = field("cache").saturating_sub(field("shmem"));
        usage
            .trim()
            .parse::<u64>()
            .unwrap()
            .saturating_sub(of_disks)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Looks while a child stands still, so that all that is read is of one moment: a page that moves from one mapping to another
/// would be counted twice.
fn at_rest<R>(pid: u32, look: impl FnOnce() -> R) -> R {
    let pid = Pid::from_raw(pid as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // Its end is left to the child's handle.
    let rest = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), rest).unwrap();
    let seen = look();
    kill_process(pid, Signal::CONT).unwrap();
    seen
}

/// Anonymous and shared memory of a process, and its page tables; `None` once it has ended.
fn resident(pid: u32) -> Option<u64> {
    let sum = |file: &str, fields: &[&str]| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let wanted = lines.filter(|(name, _)| fields.contains(name));
        let kib = wanted.map(|(_, rest)| rest.trim().split(' ').next()?.parse::<u64>().ok());
        kib.sum::<Option<u64>>().map(|kib| kib << 10)
    };
    Some(sum("smaps_rollup", &["Anonymous", "Pss_Shmem"])? + sum("status", &["VmPTE"])?)
}

/// Runs a case in each mode, in a separate process, and in a memory cgroup where possible; its memory stays within
/// the bound.
fn measure(case: &str) {
    for mode in ["thread", "inline"] {
        let cgroup = Cgroup::new(case);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mapped_memory::scan", "--nocapture", "--ignored"])
            .args(["--test-threads=1"])
            .envs([(ALONE, "1"), (CASE, &format!("{case} {mode}"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        if let Some(cgroup) = &cgroup {
            fs::write(cgroup.0.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        let mut go = child.stdin.take().unwrap();
        go.write_all(b"\n").unwrap();
        let ready = |line: &std::io::Result<String>| line.as_ref().unwrap().ends_with("ready");
        assert!(lines.any(|line| ready(&line)), "it says so");
        let charged = || cgroup.as_ref().map_or(0, Cgroup::bytes);
        let base = [resident(pid).unwrap(), charged()];
        let mut most = base;
        go.write_all(b"\n").unwrap();
        while child.try_wait().unwrap().is_none() {
            let now = at_rest(pid, || [resident(pid).unwrap_or(0), charged()]);
            most = [0, 1].map(|at| most[at].max(now[at]));
            std::thread::sleep(Duration::from_millis(10));
        }
        let said: Vec<_> = lines.map(Result::unwrap).collect();
        let status = child.wait().unwrap();
        let [resident, charged] = [0, 1].map(|at| most[at] - base[at]);
        println!(
            "{case} {mode}: at most {} KiB resident, {} KiB charged, beyond {} and {}",
            resident >> 10,
            charged >> 10,
            base[0] >> 10,
            base[1] >> 10
        );
        assert!(status.success(), "{case} {mode}: {status}\n{said:#?}");
        println!("{}", said.join("\n"));
        assert!(resident > BOUND / 2, "it was measured: {resident}");
        assert!(resident <= BOUND + 2 * SLACK, "{case} {mode}: {resident}");
        // Page tables that the kernel has taken back stay charged until its readers have ended, which takes long on a busy
        // machine. If none were taken back, they would be 400 MB at least.
        let freed = if case == "ever" { 3 * BOUND } else { 0 };
        assert!(charged <= BOUND + SLACK + freed, "{case} {mode}: {charged}");
    }
}

fn wait_for_line() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
#[ignore = "system tier"]
fn scan() {
    if !is_alone() {
        return;
    }
    wait_for_line();
    let (case, mode) = std::env::var(CASE)
        .unwrap()
        .split_once(' ')
        .map(|(case, mode)| (case.to_owned(), mode.to_owned()))
        .unwrap();
    let mode = match &mode[..] {
        "thread" => MappingFaults::Thread,
        _ => MappingFaults::Inline,
    };
    let times = if case == "sparse" { 400 } else { 64 };
    let store = Numbers::of(times * BOUND);
    println!("ready");
    wait_for_line();
    let cache = Cache::builder().memory(BOUND).mapping_faults(mode);
    let cache = cache.external_pressure(false).build().unwrap();
    if case == "ever" {
        return map_ever_more_files(&cache);
    }
    let files = cache.open_store(store.clone(), store.size, 1).unwrap();
    let mapping = files[0].map(.., MapAccess::ReadWrite).unwrap();
    let pages = store.size / PAGE as u64;
    let check = || {
        let memory = cache.stats().unwrap().memory;
        assert!(memory.total_bytes() <= BOUND, "{memory:?}");
    };
    let faults = || files[0].stats().unwrap().faults;
    match &case[..] {
        "loads" => {
            for page in 0..pages {
                assert_eq!(load(&mapping, page), (page, 0));
                if page % 1000 == 0 {
                    check();
                }
            }
            assert!(faults() < pages / 10, "{}", faults());
        }
        "stores" => {
            let bytes = mapping.as_atomics().unwrap();
            for page in 0..pages {
                bytes[page as usize * PAGE + 8].store(1, Relaxed);
                if page % 1000 == 0 {
                    check();
                }
            }
            mapping.sync(..).unwrap();
            assert_eq!(store.pages_written(), pages, "no store is lost");
        }
        _ => std::thread::scope(|scope| {
            mapping.advise(Advice::Random, ..).unwrap();
            for thread in 0..3_u64 {
                let (mapping, check) = (&mapping, &check);
                scope.spawn(move || {
                    let mut random = thread + 1;
                    for at in 0..60_000 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let page = (random >> 33) % pages;
                        assert_eq!(load(mapping, page).0, page);
                        if at % 1000 == 0 {
                            check();
                        }
                    }
                });
            }
        }),
    }
    println!("{} faults, {:?}", faults(), cache.stats().unwrap().memory);
}

/// More addresses than there are, one file after the other.
fn map_ever_more_files(cache: &Cache) {
    let memory = cache.memfs().unwrap();
    let store = |name: &str, len: u64, at: u64| {
        let file = memory.create(name).unwrap();
        file.set_len(len).unwrap();
        let mapping = file.map(.., MapAccess::ReadWrite).unwrap();
        mapping.as_atomics().unwrap()[at as usize].store(1, Relaxed);
        let mut found = [0];
        file.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, [1]);
    };
    for at in 0..100_000_u64 {
        store(&at.to_string(), 20_000, at % 20_000);
        if let Some(old) = at.checked_sub(1_000) {
            memory.remove_file(old.to_string()).unwrap();
        }
        if at % 1000 == 0 {
            let usage = cache.stats().unwrap().memory;
            assert!(usage.total_bytes() <= BOUND, "{usage:?}");
        }
    }
    for at in 0..100 {
        store("large", 900 << 30, at << 33);
        memory.remove_file("large").unwrap();
    }
    println!("{:?}", cache.stats().unwrap().memory);
}

#[test]
#[ignore = "system tier"]
fn a_hundred_thousand_files_mapped_one_after_the_other_stay_within_the_bound() {
    measure("ever");
}

#[test]
#[ignore = "system tier"]
fn loads_of_64_times_the_bound_in_order_stay_within_it() {
    measure("loads");
}

#[test]
#[ignore = "system tier"]
fn stores_to_64_times_the_bound_in_order_stay_within_it() {
    measure("stores");
}

#[test]
#[ignore = "system tier"]
fn loads_at_random_places_of_64_times_the_bound_stay_within_it() {
    measure("random");
}

/// There are more page tables than the bound has room for.
#[test]
#[ignore = "system tier"]
fn loads_at_random_places_of_400_times_the_bound_stay_within_it() {
    measure("sparse");
}
