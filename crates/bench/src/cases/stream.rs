//! Files four times the memory, read and written by several threads, with and without leaving them in the cache.
//!
//! # Model
//!
//! Requests of 64 KiB, each thread through its part of the file, round and round: the shape of the measurements
//! that came with the kernel's own uncached reads. Each turn begins with the file in nobody's cache, so a cache fills
//! up in the first part of a turn and evicts in the rest; the series shows it, a line for each second.
//!
//! | match | contestants |
//! |---|---|
//! | read | ours cached, uncached, views; kernel buffered and `RWF_DONTCACHE`; `O_DIRECT` |
//! | one thread | ours uncached, kernel buffered: processor time |
//! | write | ours cached, uncached; kernel buffered and `RWF_DONTCACHE`; once through, fdatasync included |
//! | fairness | a cached writer beside an uncached one, and beside a second cached one, each in its file |
//! | hot set | pages of a second file, read twice, that are in the cache after an uncached scan, and without one |
//!
//! `O_DIRECT` is there at depth 1, a request of each thread at a time, and at that depth of an io_uring for each
//! thread that is fastest here, found before the match. The kernel's are processes in a memory cgroup of the bound's
//! size; its threads reclaim by themselves, so their time is the callers'. On the disk first, then on a
//! [compressed disk in memory](crate::zram), where the processor is the limit: there `O_DIRECT` of the same requests and
//! threads is compared with, and the fastest depth stated beside.

use foliocache_sys::Errno;
use foliocache_sys::fd;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

mod beside;

use super::{BUFFERED, FILE_PER_MEMORY, OURS, memory};
use crate::case::{Case, Figure, Match, Plan, RatioPlan};
use crate::error::BenchError;
use crate::file_bed::{By, DIRECT, FILE, FileBed};
use crate::files::PAGE;
use crate::host::Host;
use crate::place::{Buffer, Place};
use crate::settings::{Settings, Uses};
use crate::streams::{Shape, Time};

/// See the module.
pub(crate) struct Streams;

/// Bytes of a request.
const REQUEST: usize = 64 << 10;

/// The file of the writer beside the one that is measured.
const BESIDE: &str = "data-beside";
/// The hot set.
const HOT: &str = "hot";

/// The bound is so many times the hot set.
const MEMORY_PER_HOT: u64 = 2;

const UNCACHED: &str = "foliocache uncached";
const VIEWS: &str = "foliocache views";
const DONT_CACHE: &str = "kernel RWF_DONTCACHE, cgroup";

impl Case for Streams {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn about(&self) -> &'static str {
        "uncached reads and writes of a file four times the memory, by several threads, second by second"
    }

    fn settings(&self, quick: bool) -> Settings {
        let settings = match quick {
            true => Settings::bounded(2, 0.4, 64 << 20),
            false => Settings::bounded(6, 4.0, 256 << 20),
        };
        Settings {
            threads: 4,
            ..settings
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 900 }
    }

    fn uses(&self) -> Uses {
        Uses {
            threads: true,
            ..Uses::FILES
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let len = FILE_PER_MEMORY * memory;
        let disk = Place::on_disk(settings, memory, 2 * len + memory / MEMORY_PER_HOT)?;
        let mut plan = Plan {
            place: Some(disk.describe()),
            ..Plan::default()
        };
        let shape = Shape {
            threads: settings.threads,
            in_turn: 1,
            len,
            request: REQUEST,
            time: Some(Time {
                seconds: settings.seconds,
                interval: settings.interval(),
            }),
        };
        let bed = FileBed::new(disk, settings, memory, len)?;
        bed.place.make(BESIDE, len)?;
        bed.place.make(HOT, memory / MEMORY_PER_HOT)?;
        matches(&bed, shape, &ON_DISK, &mut plan)?;
        plan.matches.push(beside::fairness(&bed, shape));
        plan.matches.push(beside::hot_set(&bed, shape));
        match Place::on_zram(settings, memory, len) {
            Ok(zram) => {
                let bed = FileBed::new(zram, settings, memory, len)?;
                matches(&bed, shape, &ON_ZRAM, &mut plan)?;
            }
            Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
        }
        Ok(plan)
    }
}

/// What rows and ratios are called and what they are to reach.
struct Names {
    place: &'static str,
    read: &'static str,
    write: &'static str,
    /// Ours uncached to `O_DIRECT` at depth 1 and at the fastest.
    vs_direct1: RatioPlan,
    vs_fastest: RatioPlan,
    /// Views to `O_DIRECT` at depth 1.
    views: RatioPlan,
    vs_dont_cache: &'static str,
    vs_cached: &'static str,
    vs_buffered: &'static str,
    flatness: RatioPlan,
    cpu: RatioPlan,
    cpu_of_threads: &'static str,
    write_vs_buffered: RatioPlan,
    write_vs_kernel: &'static str,
    write_kernels: &'static str,
}

const ON_DISK: Names = Names {
    place: "the disk",
    read: "read 64 KiB",
    write: "write 64 KiB, fdatasync",
    vs_direct1: RatioPlan::new("stream_uncached_vs_direct_depth1", 0, 0),
    vs_fastest: RatioPlan::new("stream_uncached_vs_direct", 0, 0).at_least(0.98),
    views: RatioPlan::new("stream_view_vs_direct_depth1", 0, 0),
    vs_dont_cache: "stream_uncached_vs_kernel_dontcache",
    vs_cached: "stream_uncached_vs_cached",
    vs_buffered: "stream_uncached_vs_kernel_buffered",
    flatness: RatioPlan::new("stream_flatness", 0, 0).at_least(0.9),
    cpu: RatioPlan::new("stream_cpu_vs_kernel_buffered", 0, 0).at_most(1.1),
    cpu_of_threads: "stream_cpu_threads_vs_kernel_buffered",
    write_vs_buffered: RatioPlan::new("write_uncached_vs_buffered", 0, 0).at_least(0.9),
    write_vs_kernel: "write_uncached_vs_kernel_buffered",
    write_kernels: "write_kernel_dontcache_vs_kernel_buffered",
};

const ON_ZRAM: Names = Names {
    place: "zram",
    read: "zram, read 64 KiB",
    write: "zram, write 64 KiB, fdatasync",
    vs_direct1: RatioPlan::new("stream_zram_copy_vs_direct", 0, 0).at_least(0.75),
    vs_fastest: RatioPlan::new("stream_zram_copy_vs_direct_fastest", 0, 0),
    views: RatioPlan::new("stream_zram_view_vs_direct", 0, 0).at_least(0.9),
    vs_dont_cache: "stream_uncached_vs_kernel_dontcache_zram",
    vs_cached: "stream_uncached_vs_cached_zram",
    vs_buffered: "stream_uncached_vs_kernel_buffered_zram",
    flatness: RatioPlan::new("stream_flatness_zram", 0, 0),
    cpu: RatioPlan::new("stream_cpu_vs_kernel_buffered_zram", 0, 0),
    cpu_of_threads: "stream_cpu_threads_vs_kernel_buffered_zram",
    write_vs_buffered: RatioPlan::new("write_uncached_vs_buffered_zram", 0, 0),
    write_vs_kernel: "write_uncached_vs_kernel_buffered_zram",
    write_kernels: "write_kernel_dontcache_vs_kernel_buffered_zram",
};

/// Adds reads by several threads and by one, and writes.
fn matches(
    bed: &Rc<FileBed>,
    shape: Shape,
    names: &Names,
    plan: &mut Plan,
) -> Result<(), BenchError> {
    let (depth, fastest) = bed.fastest_depth(shape, false)?;
    let dont_cache = knows_dont_cache(bed);
    let dont_cache = dont_cache.map_err(|error| BenchError::setup(DONT_CACHE, error))?;
    plan.notes.push(format!(
        "O_DIRECT on {}: fastest with {depth} requests of each thread under way",
        names.place
    ));
    plan.notes.push(match dont_cache {
        true => format!(
            "RWF_DONTCACHE on {} is that of Linux {}",
            names.place,
            Host::now().kernel
        ),
        false => format!(
            "no RWF_DONTCACHE on {}: this kernel or file system does not know it",
            names.place
        ),
    });
    let kernels: &[(&str, bool)] = match dont_cache {
        true => &[(BUFFERED, false), (DONT_CACHE, true)],
        false => &[(BUFFERED, false)],
    };
    let new = RatioPlan::new;

    let mut read = Match::default();
    let mut add = |variant, by| read.add(names.read, variant, bed.turn(by, shape, false));
    let cached = add(OURS, By::Ours { uncached: false });
    let uncached = add(UNCACHED, By::Ours { uncached: true });
    let views = add(VIEWS, By::Views);
    let direct1 = add(DIRECT, By::Direct);
    let direct = add(fastest, By::Ring { depth });
    let kernels_at = kernels
        .iter()
        .map(|&(variant, dont_cache)| add(variant, By::Kernel { dont_cache }));
    let kernels_at: Vec<usize> = kernels_at.collect();
    let of = |plan: RatioPlan, to| plan.between(uncached, to);
    read.ratios = vec![
        of(names.vs_fastest, direct),
        of(names.vs_direct1, direct1),
        new(names.vs_cached, uncached, cached),
        new(names.vs_buffered, uncached, kernels_at[0]),
        names.views.between(views, direct1),
        of(names.flatness, direct).of_figure(Figure::Flatness),
        new(names.cpu_of_threads, uncached, kernels_at[0]).of_figure(Figure::Cpu),
    ];
    if let Some(&kernels) = kernels_at.get(1) {
        let ratio = new(names.vs_dont_cache, uncached, kernels);
        read.ratios.push(ratio);
    }

    let alone = Shape {
        threads: 1,
        ..shape
    };
    let mut one = Match::default();
    let mut add = |variant, by| one.add(names.read, variant, bed.turn(by, alone, false));
    let uncached = add(UNCACHED, By::Ours { uncached: true });
    let kernels_one = add(BUFFERED, By::Kernel { dont_cache: false });
    let cpu = names.cpu.between(uncached, kernels_one);
    one.ratios = vec![cpu.of_figure(Figure::Cpu)];

    // Once through the file, and durable.
    let once = Shape {
        time: None,
        ..shape
    };
    let mut write = Match::default();
    let mut add = |variant, by| write.add(names.write, variant, bed.turn(by, once, true));
    let cached = add(OURS, By::Ours { uncached: false });
    let uncached = add(UNCACHED, By::Ours { uncached: true });
    let kernels_at = kernels
        .iter()
        .map(|&(variant, dont_cache)| add(variant, By::Kernel { dont_cache }));
    let kernels_at: Vec<usize> = kernels_at.collect();
    write.ratios = vec![
        names.write_vs_buffered.between(uncached, cached),
        new(names.write_vs_kernel, uncached, kernels_at[0]),
    ];
    if let [buffered, dont_cache] = kernels_at[..] {
        let ratio = new(names.write_kernels, dont_cache, buffered);
        write.ratios.push(ratio);
    }
    plan.matches.extend([read, one, write]);
    Ok(())
}

fn knows_dont_cache(bed: &FileBed) -> io::Result<bool> {
    let file = fs::File::open(bed.place.path(FILE))?;
    match fd::pread_dontcache(file.as_fd(), 0, Buffer::random(PAGE, 0).bytes()) {
        Ok(_) => Ok(true),
        Err(Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
