//! The cases.

mod batch;
mod coldwalk;
mod create;
mod fault;
mod hitratio;
mod hits;
mod loader;
mod map_random;
mod pin;
mod pread;
mod pwrite;
mod rand;
mod scale;
mod scatter;
mod seq;
mod small;
mod stat;
mod stream;
mod wal;
mod walk;

use foliocache_sys::memory::total_memory;

use crate::case::Case;
use crate::error::BenchError;
use crate::settings::Settings;

/// How ours is done.
pub(crate) const OURS: &str = "foliocache";
/// How the kernel's is done.
const KERNEL: &str = "kernel";
/// A copy out of the kernel's mapping.
const KERNEL_MMAP: &str = "kernel mmap";
/// Ours through a mapping whose faults are resolved on the thread that touches the page.
const INLINE: &str = "foliocache inline";
/// Ours through a mapping whose faults threads of the cache resolve.
const THREAD: &str = "foliocache thread";
/// Ours over a directory.
const DIRFS: &str = "foliocache, dirfs";
/// Ours on behalf of a user, whose permissions are checked in each directory; by default none are.
const OURS_AS_USER: &str = "foliocache, user 1000";
/// The same over a directory.
const DIRFS_AS_USER: &str = "foliocache, dirfs, user 1000";
/// The kernel's page cache in a memory cgroup of the bound's size.
const BUFFERED: &str = "kernel buffered, cgroup";

/// The kernel's mapping in such a cgroup, without advice.
const KERNEL_DEFAULT: &str = "kernel mmap, cgroup";
/// The same, advised that reads are at random.
const KERNEL_RANDOM: &str = "kernel mmap, MADV_RANDOM, cgroup";

/// The file of a case on files is so many times the bound.
const FILE_PER_MEMORY: u64 = 4;

/// The memory bound of a case on files.
fn memory(settings: &Settings, case: &dyn Case) -> Result<u64, BenchError> {
    let memory = settings.memory.or(case.settings(false).memory);
    let memory = memory.ok_or(BenchError::Setting("no memory bound"))?;
    // Whole requests, and room for the cache's own least.
    match memory {
        ..LEAST_MEMORY => Err(BenchError::Setting("memory: at least 8 MiB")),
        memory if memory > total_memory() / 2 => Err(BenchError::Setting(
            "memory: more than half of this machine's, which others need, too",
        )),
        memory => Ok(memory / (1 << 20) * (1 << 20)),
    }
}

/// The least memory bound of cases on files.
const LEAST_MEMORY: u64 = 8 << 20;

/// All cases.
pub fn cases() -> &'static [&'static dyn Case] {
    &[
        &pwrite::Pwrite,
        &pread::Pread,
        &hits::Hits,
        &seq::Seq,
        &rand::Rand,
        &batch::Batch,
        &loader::Loader,
        &stream::Streams,
        &hitratio::HitRatio,
        &stat::Stat,
        &walk::Walk,
        &coldwalk::ColdWalk,
        &scale::Scale,
        &create::Create,
        &small::Small,
        &wal::Wal,
        &scatter::Scatter,
        &fault::Fault,
        &pin::Pin,
    ]
}

/// The case of this name.
///
/// # Errors
/// [`BenchError::UnknownCase`], which names those there are.
pub fn find(name: &str) -> Result<&'static dyn Case, BenchError> {
    let found = cases().iter().find(|case| case.name() == name);
    found.copied().ok_or_else(|| {
        let names: Vec<_> = cases().iter().map(|case| case.name()).collect();
        BenchError::UnknownCase {
            name: name.to_owned(),
            known: names.join(", "),
        }
    })
}
