//! A sorted table four times as large as the memory, searched through a mapping: this cache's beside the kernel's.
//!
//! The table has records of 64 bytes: a key and its value. Each search is a binary search for a random existing
//! key, through one plain slice over the whole file. The output has the searches per second, the times of single
//! searches, and the peak memory of the process, from its memory cgroup. The kernel's contestants are in a cgroup
//! (version 1) with as much memory as the cache; that needs root.
//!
//! ```text
//! sorted_table DIRECTORY [MEMORY [SECONDS [THREADS]]]
//! ```
//!
//! Unless given: 256M of memory, 10 seconds for each contestant after 5 of warming up, 1 thread. The table stays in
//! the directory for the next run.
//!
//! # Safety
//!
//! The table does not change while it is searched. Mappings live as long as the slices.
#![allow(unsafe_code)]

use foliocache::{Advice, Cache, MapAccess, MappingFaults, MemorySize};
use std::error::Error;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const RECORD: usize = 64;
const CONTESTANTS: [&str; 6] = [
    "inline",
    "inline, random",
    "thread",
    "thread, random",
    "kernel",
    "kernel, random",
];
const CGROUPS: &str = "/sys/fs/cgroup/memory";

/// The keys of the table: ascending, with gaps.
fn key(index: u64) -> u64 {
    index * 1000 + index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1000
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("which directory?")?;
    let or = |at: usize, default: &str| {
        let given: Option<&String> = arguments.get(at);
        given.map_or(default, String::as_str).to_owned()
    };
    let memory = or(1, "256M").as_str().in_bytes()?;
    let seconds = Duration::from_secs(or(2, "10").parse()?);
    let threads = or(3, "1").parse()?;
    let records = 4 * memory / RECORD as u64;
    let path = Path::new(directory).join("sorted_table");
    if let Some(contestant) = arguments.get(4) {
        return run(contestant, &path, memory, records, seconds, threads);
    }
    make(&path, records)?;
    println!(
        "{records} records, {} MiB; {} MiB of memory",
        (4 * memory) >> 20,
        memory >> 20
    );
    for contestant in CONTESTANTS {
        let cgroup = Cgroup::new(contestant, memory);
        let status = Command::new(std::env::current_exe()?)
            .args([
                directory,
                &memory.to_string(),
                &seconds.as_secs().to_string(),
            ])
            .args([&threads.to_string(), contestant])
            .env(
                "CGROUP",
                cgroup.as_ref().map_or(Path::new(""), |cgroup| &cgroup.0),
            )
            .status()?;
        match cgroup {
            _ if !status.success() => println!("{contestant:16} failed: {status}"),
            Some(cgroup) => println!("{:>16} {:6} MiB at most", "", cgroup.peak()? >> 20),
            None => println!("{:>16} memory unknown: no memory cgroups of version 1", ""),
        }
    }
    Ok(())
}

/// Makes the table, unless it is there.
fn make(path: &Path, records: u64) -> Result<(), Box<dyn Error>> {
    let bytes = records * RECORD as u64;
    if fs::metadata(path).is_ok_and(|there| there.len() == bytes) {
        return Ok(());
    }
    let cache = Cache::builder().memory("64M").build()?;
    let directory = cache.directory(path.parent().expect("it is in a directory"))?;
    let file = directory.create("sorted_table")?;
    let mut chunk = Vec::new();
    for index in 0..records {
        chunk.extend(key(index).to_le_bytes());
        chunk.resize(chunk.len() + RECORD - 8, index as u8);
        if chunk.len() == 1 << 20 || index + 1 == records {
            file.append(&chunk)?;
            chunk.clear();
        }
    }
    file.sync_all()?;
    drop(file);
    Ok(cache.close()?)
}

/// Searches in this process, as one of the contestants.
fn run(
    contestant: &str,
    path: &Path,
    memory: u64,
    records: u64,
    seconds: Duration,
    threads: usize,
) -> Result<(), Box<dyn Error>> {
    if let Some(cgroup) = std::env::var_os("CGROUP").filter(|cgroup| !cgroup.is_empty()) {
        fs::write(
            PathBuf::from(cgroup).join("cgroup.procs"),
            std::process::id().to_string(),
        )?;
    }
    let random = contestant.ends_with("random");
    if contestant.starts_with("kernel") {
        let file = fs::File::open(path)?;
        let table = map_with_the_kernel(&file, random)?;
        report(
            contestant,
            seconds,
            search_for(table, records, seconds, threads),
        );
        return Ok(());
    }
    let faults = match contestant.starts_with("inline") {
        true => MappingFaults::Inline,
        false => MappingFaults::Thread,
    };
    let cache = Cache::builder()
        .memory(memory)
        .mapping_faults(faults)
        .build()?;
    let directory = cache.directory(path.parent().expect("it is in a directory"))?;
    let mapping = directory.open("sorted_table")?.map(.., MapAccess::Read)?;
    if random {
        mapping.advise(Advice::Random, ..)?;
    }
    // SAFETY: see the header.
    let table = unsafe { mapping.as_slice() };
    report(
        contestant,
        seconds,
        search_for(table, records, seconds, threads),
    );
    let stats = cache.stats()?;
    println!(
        "{:>16} {:6} MiB by its own count; {} faults, {} pages mapped, {} MiB read",
        "",
        stats.memory.total_bytes() >> 20,
        stats.files.faults,
        stats.files.mapped_pages,
        stats.files.read_bytes >> 20,
    );
    Ok(())
}

fn map_with_the_kernel(file: &fs::File, random: bool) -> Result<&'static [u8], Box<dyn Error>> {
    let (fd, len) = (file.as_raw_fd(), file.metadata()?.len() as usize);
    // SAFETY: no memory is touched.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    if random {
        // SAFETY: the mapping is ours.
        unsafe { libc::madvise(start, len, libc::MADV_RANDOM) };
    }
    // SAFETY: the mapping is never taken away; see the header.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// Searches for half the time to warm up, and then for all of it; returns nanoseconds of each search.
fn search_for(table: &[u8], records: u64, seconds: Duration, threads: usize) -> Vec<u32> {
    let search_until = |end: Instant, mut state: u64| {
        let mut times = Vec::new();
        while Instant::now() < end {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let wanted = (state >> 20) % records;
            let began = Instant::now();
            let found = search(table, key(wanted));
            times.push(began.elapsed().as_nanos().min(u32::MAX.into()) as u32);
            assert_eq!(found, Some(wanted));
        }
        times
    };
    let all = |time: Duration, seed: u64| {
        let end = Instant::now() + time;
        std::thread::scope(|scope| {
            let searchers: Vec<_> = (0..threads as u64)
                .map(|thread| scope.spawn(move || search_until(end, seed + thread)))
                .collect();
            let times = searchers.into_iter().map(|searcher| searcher.join());
            times.flat_map(|times| times.expect("no panic")).collect()
        })
    };
    let _: Vec<u32> = all(seconds / 2, 1000);
    all(seconds, 2000)
}

fn search(table: &[u8], wanted: u64) -> Option<u64> {
    let (mut low, mut high) = (0, table.len() / RECORD);
    while low < high {
        let middle = low + (high - low) / 2;
        let record = &table[middle * RECORD..][..RECORD];
        let key = u64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
        match key.cmp(&wanted) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => return Some(middle as u64),
        }
    }
    None
}

fn report(contestant: &str, seconds: Duration, mut times: Vec<u32>) {
    times.sort_unstable();
    let at = |part: f64| f64::from(times[((times.len() - 1) as f64 * part) as usize]) / 1e3;
    println!(
        "{contestant:16} {:8.0} searches/s  p50 {:9.1} us  p99 {:9.1} us  p99.9 {:9.1} us",
        times.len() as f64 / seconds.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
    );
}

/// A memory cgroup of version 1, which goes with it.
struct Cgroup(PathBuf);

impl Cgroup {
    /// The kernel's contestants may have `memory` bytes in theirs; the cache's keep their bound by themselves.
    fn new(contestant: &str, memory: u64) -> Option<Cgroup> {
        let path = Path::new(CGROUPS).join(format!("sorted_table.{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let cgroup = Cgroup(path);
        if contestant.starts_with("kernel") {
            fs::write(cgroup.0.join("memory.limit_in_bytes"), memory.to_string()).ok()?;
        }
        Some(cgroup)
    }

    fn peak(&self) -> Result<u64, Box<dyn Error>> {
        let peak = fs::read_to_string(self.0.join("memory.max_usage_in_bytes"))?;
        Ok(peak.trim().parse()?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
