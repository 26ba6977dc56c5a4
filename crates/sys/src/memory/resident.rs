//! How much memory the process and the machine use and have, for limits, tests and benches.
//!
//! RSS counts a page once per mapping, so the numbers to trust are anonymous bytes, PSS, and the
//! memory cgroup's own count.

use super::cgroup::number;
use crate::Errno;
use std::path::Path;

/// Bytes of physical memory of the machine.
pub fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}

/// Huge pages of 2 MiB that could be had now: those of the kernel's pool that are free and not promised, and those
/// that it may add to it. None where the kernel has none. Reads four files of sysfs.
pub fn free_huge_pages() -> u64 {
    let pages = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    let read = |name: &str| number(&pages.join(name));
    let less = |of: &str, taken: &str| Some(read(of)?.saturating_sub(read(taken)?));
    let free = less("free_hugepages", "resv_hugepages");
    let more = less("nr_overcommit_hugepages", "surplus_hugepages");
    free.unwrap_or(0) + more.unwrap_or(0)
}

/// The process's memory, in bytes. The fields are those of `smaps_rollup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resident {
    /// Pages in memory, each divided by the number of its mappings.
    pub pss: u64,
    /// Pages of private anonymous memory.
    pub anonymous: u64,
    /// Of those, in huge pages.
    pub anon_huge_pages: u64,
    /// Pages of shared memory (memfd, tmpfs), by the same division as `pss`.
    pub pss_shmem: u64,
}

impl Resident {
    /// Reads `/proc/self/smaps_rollup`. Walks all page tables of the process: milliseconds per
    /// gigabyte in small pages. Fails as opening that file does.
    pub fn of_process() -> Result<Resident, Errno> {
        Ok(Resident::parse(&std::fs::read_to_string(
            "/proc/self/smaps_rollup",
        )?))
    }

    pub(super) fn parse(text: &str) -> Resident {
        let field = |name: &str| kib_in(text, name).unwrap_or(0);
        Resident {
            pss: field("Pss"),
            anonymous: field("Anonymous"),
            anon_huge_pages: field("AnonHugePages"),
            pss_shmem: field("Pss_Shmem"),
        }
    }
}

/// The bytes behind a name in lines of "name: number kB".
pub(crate) fn kib_in(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}
