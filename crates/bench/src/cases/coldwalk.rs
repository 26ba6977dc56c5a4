//! Passes over trees on a disk of which no name is cached, as backups and scans make them.
//!
//! # Model
//!
//! The workload of the kernel's change by which its inode hash came to be looked up under RCU: a backup appliance that looks at
//! each of some million files once. No name is cached when it is asked for. The original has 20 trees with 1,000 directories of 1,000 files each
//! (`--threads 20 --dirs 1000 --files 1000 --memory 48G`).
//!
//! | contestant | what it does |
//! |---|---|
//! | foliocache | `Directory::walk`, uncached, by some threads |
//! | foliocache, 1 thread | the same by the caller alone |
//! | foliocache, names cached | a walk that brings each name into the cache, which cannot hold them all |
//! | kernel | reads a directory, then asks for each name in the order in which it was read: a good backup program |
//! | kernel, threads | the same by some threads, each with the next directory that was found |
//!
//! Each is a process in a memory cgroup of one size, the kernel's dentries and inodes that it brings in included. Below our walk
//! the kernel finds each name, too, so both sides need room for them: the kernel kills a process whose inodes do not fit, on
//! ext4, which allocates inodes where none may be reclaimed. Before each turn the kernel drops its dentries and inodes (that needs root), and ours
//! begins with a new cache. Blocks of the file system stay in the kernel's cache as far as they fit.

use crate::case::Figure;
use crate::cases::prelude::*;
use crate::passes::{Pass, Way};
use crate::place::DROP_CACHES;
use crate::trees::Trees;

const NAME: &str = "walk, names not cached";
const ALONE: &str = "foliocache, 1 thread";
const CACHED: &str = "foliocache, names cached";
const KERNEL_THREADS: &str = "kernel, threads";

/// Bytes of the disk that a name takes, at most: its inode and its entry.
const ON_DISK: u64 = 512;

/// Bytes of an inode on the disk: the bytes of a name, where a cost is one for each byte.
const INODE: u64 = 256;

/// Bytes that the kernel's caches take for a name, at most.
const IN_KERNEL: u64 = 2048;

/// The bound of our cache.
const BOUND: u64 = 16 << 20;

/// Bytes of a process besides the kernel's names.
const PROCESS: u64 = BOUND + (48 << 20);

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    let trees = Trees::of(settings)?;
    let files = trees.all_files() as u64;
    let need = files * IN_KERNEL + PROCESS;
    if memory < need {
        return Err(BenchError::Refused(format!(
            "the kernel kills a process whose inodes do not fit into its memory: {files} files take {} MiB, and --memory gives {}",
            need.div_ceil(1 << 20),
            memory >> 20
        )));
    }
    let can_drop = fs::OpenOptions::new().write(true).open(DROP_CACHES);
    can_drop.map_err(|error| {
        let why = "one side would find the names that the other has left in the kernel's cache";
        BenchError::Refused(format!("{why}: {DROP_CACHES}: {error}"))
    })?;
    let folder = Folder::on_disk(settings)?;
    check_room(folder.path(), files * ON_DISK, files)?;
    trees.make(folder.path())?;
    let threads = trees.threads;
    let ours = |threads, uncached| Way::Ours {
        threads,
        memory: BOUND,
        uncached,
    };
    let ways = [
        (OURS, threads, ours(threads, true)),
        (ALONE, 1, ours(1, true)),
        (CACHED, threads, ours(threads, false)),
        (KERNEL, 1, Way::Kernel { threads: 1 }),
        (KERNEL_THREADS, threads, Way::Kernel { threads }),
    ];
    let mut one = Match::default();
    for (variant, threads, way) in ways {
        let mut side = KernelSide::start(&settings.helper, folder.guard(), memory, None)?;
        let pass = Pass {
            folder: folder.path().to_owned(),
            way,
            trees,
        };
        let walk = move || {
            fs::write(DROP_CACHES, "2")?;
            let passed = side.pass(&pass)?;
            if passed.names != trees.all_names() {
                return Err(io::Error::other(format!("{} names", passed.names)));
            }
            let outcome = Outcome::plain(passed.names as f64 / passed.cost.seconds);
            let mut outcome = outcome.cost(passed.cost, passed.names as u64 * INODE);
            outcome.hit_ratio = Some(passed.hits);
            Ok(outcome)
        };
        one.add(NAME, variant, Work::pass(threads, "names/s", walk));
    }
    ratios! { one;
        "coldwalk_vs_kernel" => OURS / KERNEL, at_least(1.0);
        "coldwalk_alone_vs_kernel" => ALONE / KERNEL;
        "coldwalk_vs_kernel_threads" => OURS / KERNEL_THREADS;
        "coldwalk_cached_vs_kernel" => CACHED / KERNEL;
        "coldwalk_cpu_vs_kernel" => OURS / KERNEL, of_figure(Figure::Cpu);
    }
    let description = folder.describe();
    let mut plan = Plan::at(vec![one], folder, description);
    plan.notes.push(format!(
        "{} names; each side in a memory cgroup of {} MiB, of which our cache has {}; a name counts as its inode's {INODE} bytes in CPU s/GB",
        trees.all_names(),
        memory >> 20,
        BOUND >> 20
    ));
    Ok(plan)
}
