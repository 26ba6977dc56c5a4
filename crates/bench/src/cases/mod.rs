//! The cases: a table of them, and their shared helpers.

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

/// Names that most cases use.
mod prelude {
    pub(super) use super::{
        At, BUFFERED, DIRFS, DIRFS_AS_USER, FILE_PER_MEMORY, INLINE, KERNEL, KERNEL_DEFAULT,
        KERNEL_MMAP, KERNEL_RANDOM, OURS, OURS_AS_USER, THREAD, on_disk_and_zram,
    };
    pub(super) use crate::case::{Match, Outcome, Plan, RatioPlan, Work, Worker, ratios, repeat};
    pub(super) use crate::error::{BenchError, OrSetup, set_up};
    pub(super) use crate::files::{PAGE, PageBuf, whole};
    pub(super) use crate::kernel::KernelSide;
    pub(super) use crate::latency::Times;
    pub(super) use crate::place::{Folder, MIB, Place, Random, check_room};
    pub(super) use crate::settings::Settings;
    pub(super) use std::cell::RefCell;
    pub(super) use std::fs;
    pub(super) use std::hint::black_box;
    pub(super) use std::io;
    pub(super) use std::rc::Rc;
    pub(super) use std::sync::Arc;
    pub(super) use std::time::{Duration, Instant};
}

use crate::case::{Case, Match, Plan};
use crate::error::BenchError;
use crate::place::Place;
use crate::settings::{Settings, Size, Uses};
use std::rc::Rc;

/// How ours is done.
pub(crate) const OURS: &str = "foliocache";
/// How the kernel's is done.
pub(crate) const KERNEL: &str = "kernel";
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

/// The file of a case on files, as a multiple of the bound.
const FILE_PER_MEMORY: u64 = 4;

const TREES_ON_DISK: Uses = Uses::MEMORY.and(Uses::DIR).and(Uses::TREE);

/// All of them. Seconds, and sizes: quick, and whole.
#[rustfmt::skip]
static CASES: [Case; 19] = [
    Case { name: "pwrite", takes: [30, 240], sizes: [Size::QUICK, Size::WHOLE], uses: Uses::HOT, plan: pwrite::plan,
        about: "overwrites at offset 0 of a file in memory, as will-it-scale's pwrite1: of 4 KiB, and of 64 B to 128 KiB" },
    Case { name: "pread", takes: [20, 140], sizes: [Size::QUICK, Size::WHOLE], uses: Uses::HOT, plan: pread::plan,
        about: "reads of 4 KiB and 64 bytes at offset 0 of a file in memory, and of one page by all threads" },
    Case { name: "hits", takes: [35, 320], uses: Uses::FILES, plan: hits::plan,
        sizes: [Size::QUICK.threads(1).mib(64), Size::WHOLE.threads(1).mib(1024)],
        about: "random reads of cached data in working sets of 16 KiB to 1 GiB" },
    Case { name: "seq", takes: [60, 420], uses: Uses::MEMORY.and(Uses::DIR), plan: seq::plan,
        sizes: [Size::new(4, 0.2).mib(64), Size::new(10, 0.2).mib(256)],
        about: "sequential reads and writes of a file four times the memory, on the disk and on zram" },
    Case { name: "rand", takes: [60, 240], uses: Uses::FILES.and(Uses::THREADS), plan: rand::plan,
        sizes: [Size::new(4, 0.5).threads(8).mib(64), Size::new(10, 1.0).threads(8).mib(256)],
        about: "random 4 KiB reads of a file four times the memory, zipf, by 8 threads" },
    Case { name: "batch", takes: [40, 420], uses: Uses::FILES, plan: batch::plan,
        sizes: [Size::new(4, 0.05).threads(1).mib(64), Size::new(10, 0.5).threads(1).mib(256)],
        about: "random reads of 8 bytes to 4 KiB, one by one and 64 in a call, cached and not" },
    Case { name: "loader", takes: [80, 300], uses: Uses::FILES, plan: loader::plan,
        sizes: [Size::new(4, 0.4).mib(64), Size::new(10, 1.0).mib(256)],
        about: "samples of files four times the memory, as a loader of training data reads them" },
    Case { name: "stream", takes: [75, 1200], uses: Uses::FILES.and(Uses::THREADS), plan: stream::plan,
        sizes: [Size::new(2, 0.4).threads(4).mib(64), Size::new(6, 4.0).threads(4).mib(256)],
        about: "uncached reads and writes of a file four times the memory, by several threads, second by second" },
    Case { name: "hitratio", takes: [10, 60], uses: Uses::MEMORY.and(Uses::TRACE), plan: hitratio::plan,
        sizes: [Size::new(2, 0.2).mib(16), Size::new(4, 0.2).mib(64)],
        about: "hit ratios beside LRU and quick_cache, on five traces or on one that is given" },
    Case { name: "stat", takes: [40, 300], sizes: [Size::QUICK, Size::WHOLE], uses: Uses::HOT, plan: stat::plan,
        about: "stats of cached files by paths of six components: one path, and 20,000 at random" },
    Case { name: "walk", takes: [10, 30], uses: Uses::THREADS.and(Uses::TREE), plan: walk::plan,
        sizes: [Size::new(10, 0.2).tree(10, 100), Size::new(22, 0.2).tree(50, 200)],
        about: "walks of trees of files, one for each thread, cached and not" },
    Case { name: "coldwalk", takes: [60, 300], uses: TREES_ON_DISK.and(Uses::THREADS), plan: coldwalk::plan,
        sizes: [Size::new(2, 0.2).mib(192).tree(300, 100), Size::new(10, 0.2).mib(512).tree(1000, 100)],
        about: "passes over trees on a disk, as backups make them: no name is cached, both sides in one memory" },
    Case { name: "scale", takes: [30, 180], uses: Uses::SECONDS.and(Uses::MEMORY), plan: scale::plan,
        sizes: [Size::new(6, 0.05).mib(4 << 10), Size::new(22, 0.05).mib(16 << 10)],
        about: "a unit of work at the largest size over the smallest: files, bound, file systems, shrinking" },
    Case { name: "create", takes: [60, 360], uses: TREES_ON_DISK, plan: create::plan,
        sizes: [Size::new(4, 0.2).mib(1024).tree(100, 200), Size::new(6, 0.2).mib(1024).tree(100, 1000)],
        about: "many small files made, written and closed in random directories" },
    Case { name: "small", takes: [60, 900], uses: TREES_ON_DISK, plan: small::plan,
        sizes: [Size::new(4, 0.2).mib(1024).tree(100, 50), Size::new(6, 0.2).mib(1024).tree(100, 1000)],
        about: "small files on default settings: opened and read, hot and cold; stats, walks, creation" },
    Case { name: "wal", takes: [20, 120], uses: Uses::FILES, plan: wal::plan,
        sizes: [Size::new(6, 0.1).mib(256), Size::new(12, 0.4).mib(1024)],
        about: "records of a log, each durable before the next: appended by one thread and by four, overwritten" },
    Case { name: "scatter", takes: [25, 200], uses: Uses::FILES, plan: scatter::plan,
        sizes: [Size::new(6, 0.2).mib(256), Size::new(12, 1.0).mib(1024)],
        about: "1 to 5,000 pages written at random places of a file, durable together" },
    Case { name: "fault", takes: [75, 480], uses: Uses::FILES.and(Uses::THREADS), plan: fault::plan,
        sizes: [Size::new(4, 0.2).mib(64), Size::new(10, 1.0).mib(256)],
        about: "page faults of mapped files: page_fault3, and random reads of a file four times the memory" },
    Case { name: "pin", takes: [40, 400], uses: Uses::FILES, plan: pin::plan,
        sizes: [Size::new(4, 0.3).mib(16), Size::new(16, 1.0).mib(256)],
        about: "direct reads of 4 and 128 KiB into pinned folios, by one thread and by two; one pin and unpin" },
];

/// All cases.
pub fn cases() -> &'static [Case] {
    &CASES
}

/// The case of this name.
///
/// # Errors
/// [`BenchError::UnknownCase`], which names those there are.
pub fn find(name: &str) -> Result<&'static Case, BenchError> {
    let found = CASES.iter().find(|case| case.name == name);
    found.ok_or_else(|| {
        let names = CASES.each_ref().map(|case| case.name);
        BenchError::UnknownCase {
            name: name.to_owned(),
            known: names.join(", "),
        }
    })
}

/// Where the files of some matches are: on the disk, or on a [compressed disk in memory](crate::zram), whose rows and
/// ratios say so in their names.
#[derive(Clone, Copy)]
struct At {
    zram: bool,
}

impl At {
    /// One of two values: the disk's or zram's.
    fn pick<T>(self, disk: T, zram: T) -> T {
        if self.zram { zram } else { disk }
    }

    /// The place, for a note.
    fn name(self) -> &'static str {
        self.pick("the disk", "zram")
    }

    fn new_match(self) -> Match {
        Match {
            prefix: self.pick("", "zram, "),
            suffix: self.pick("", "_zram"),
            ..Match::default()
        }
    }
}

/// Adds matches of files on the disk, and on zram where the machine has one; `lens` are the bytes for both.
fn on_disk_and_zram(
    plan: &mut Plan,
    settings: &Settings,
    lens: [u64; 2],
    matches: impl Fn(&Rc<Place>, At, &mut Plan) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let memory = settings.bound()?;
    let disk = Rc::new(Place::on_disk(settings, memory, lens[0])?);
    plan.place.get_or_insert_with(|| disk.describe());
    plan.holds.push(Rc::clone(&disk) as _);
    matches(&disk, At { zram: false }, plan)?;
    match Place::on_zram(settings, memory, lens[1]).map(Rc::new) {
        Ok(zram) => {
            plan.holds.push(Rc::clone(&zram) as _);
            matches(&zram, At { zram: true }, plan)?;
        }
        Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
    }
    Ok(())
}
