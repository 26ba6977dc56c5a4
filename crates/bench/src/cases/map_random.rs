//! Random reads through a mapping of a file four times the memory bound; a part of [`fault`](super::fault).
//!
//! # Model
//!
//! Threads read 64 bytes at a time of random pages, all alike or by popularity (zipf, θ = 0.99), of a file four
//! times the bound, on the disk and on a compressed disk in memory. Ours are mappings of caches with that bound, one
//! for each way to resolve faults, without advice. The kernel's side is a process in a memory
//! cgroup of the bound's size, with its default advice (a miss reads what lies around, as much as the device's
//! `read_ahead_kb` says) and with `MADV_RANDOM` (a miss reads its page). All read the same traces, each from a file of
//! its own that was in nobody's cache, and go on from turn to turn with what is cached; before the first turn each
//! has read twice as many pages as the file has, or for ten times the time of a turn.
//!
//! The kernel's hits are the reads that were no major fault; ours, those that read no page. Ratios with the kernel are
//! those of the inline mode.

use foliocache::{MapAccess, MappingFaults};
use std::io;
use std::rc::Rc;

use super::fault::can_map;
use super::rand::{Turns, Warming};
use super::{FILE_PER_MEMORY, INLINE, KERNEL_DEFAULT, KERNEL_RANDOM, THREAD};
use crate::case::{Match, Plan, RatioPlan};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::kernel::{KernelSide, Way};
use crate::mapped::read;
use crate::passes::{Popularity, RandomReads, Trace, Until};
use crate::place::Place;
use crate::settings::Settings;

/// Bytes of a read.
const READ: usize = 64;

/// Of all traces.
const SEED: u64 = 43;

/// What rows and ratios are called, and what ours are to reach.
struct Names {
    popularity: Popularity,
    read: &'static str,
    /// `MADV_RANDOM` against the default.
    advice: &'static str,
    /// Ours against the default.
    vs_default: RatioPlan,
    /// Ours against `MADV_RANDOM`.
    vs_random: RatioPlan,
    /// The same of the 99th percentiles.
    p99: RatioPlan,
    /// The two modes of ours.
    thread: &'static str,
}

const ON_DISK: [Names; 2] = [
    Names {
        popularity: Popularity::Uniform,
        read: "read 64 B, uniform",
        advice: "map_random_kernel_advice",
        vs_default: RatioPlan::new("map_random_vs_kernel_mmap", 0, 0).at_least(3.0),
        vs_random: RatioPlan::new("map_random_vs_madv_random", 0, 0).at_least(0.75),
        p99: RatioPlan::new("map_random_p99_vs_madv_random", 0, 0).p99_at_most(1.5),
        thread: "map_random_thread_vs_inline",
    },
    Names {
        popularity: Popularity::Zipf,
        read: "read 64 B, zipf",
        advice: "map_zipf_kernel_advice",
        vs_default: RatioPlan::new("map_zipf_vs_kernel_mmap", 0, 0).at_least(3.0),
        vs_random: RatioPlan::new("map_zipf_vs_madv_random", 0, 0).at_least(0.75),
        p99: RatioPlan::new("map_zipf_p99_vs_madv_random", 0, 0).p99_at_most(1.5),
        thread: "map_zipf_thread_vs_inline",
    },
];

const ON_ZRAM: [Names; 2] = [
    Names {
        popularity: Popularity::Uniform,
        read: "zram, read 64 B, uniform",
        advice: "map_random_kernel_advice_zram",
        vs_default: RatioPlan::new("map_random_vs_kernel_mmap_zram", 0, 0).at_least(3.0),
        vs_random: RatioPlan::new("map_random_vs_madv_random_zram", 0, 0).at_least(0.4),
        p99: RatioPlan::new("map_random_p99_vs_madv_random_zram", 0, 0).of_p99(),
        thread: "map_random_thread_vs_inline_zram",
    },
    Names {
        popularity: Popularity::Zipf,
        read: "zram, read 64 B, zipf",
        advice: "map_zipf_kernel_advice_zram",
        vs_default: RatioPlan::new("map_zipf_vs_kernel_mmap_zram", 0, 0).at_least(3.0),
        vs_random: RatioPlan::new("map_zipf_vs_madv_random_zram", 0, 0).at_least(0.4),
        p99: RatioPlan::new("map_zipf_p99_vs_madv_random_zram", 0, 0).of_p99(),
        thread: "map_zipf_thread_vs_inline_zram",
    },
];

/// Files: what one side has read is in nobody's cache for the others.
const FILE_DEFAULT: &str = "data-of-the-kernels";
const FILE_RANDOM: &str = "data-advised";
const FILE_OURS: &str = "data";

/// Files on each disk.
const FILES: u64 = 3;

/// Adds the matches, and what is left out.
pub(super) fn plan(settings: &Settings, memory: u64, plan: &mut Plan) -> Result<(), BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let disk = Place::on_disk(settings, memory, FILES * len)?;
    (plan.notes).push(
        "mappings of ours are of directories opened read-only, since their caches are several"
            .to_owned(),
    );
    if let Some(kib) = disk.read_ahead() {
        let note = format!("the kernel's default on the disk: it reads {kib} KiB around a miss");
        plan.notes.push(note);
    }
    plan.matches
        .extend(matches(disk, settings, memory, &ON_DISK)?);
    match Place::on_zram(settings, memory, FILES * len) {
        Ok(zram) => plan
            .matches
            .extend(matches(zram, settings, memory, &ON_ZRAM)?),
        Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
    }
    Ok(())
}

fn matches(
    place: Place,
    settings: &Settings,
    memory: u64,
    names: &[Names],
) -> Result<Vec<Match>, BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let pages = (len / PAGE as u64) as u32;
    for name in [FILE_DEFAULT, FILE_RANDOM, FILE_OURS] {
        place.make(name, len)?;
    }
    let mut sides = Vec::new();
    for names in names {
        let trace = Trace {
            threads: settings.threads,
            pages,
            popularity: names.popularity,
            seed: SEED,
        };
        let side = || KernelSide::start(&settings.helper, place.guard(), memory, Some(trace));
        sides.push((trace, [side()?, side()?]));
    }
    let turns = Turns {
        warm_up: Until {
            seconds: 10.0 * settings.seconds,
            reads: 2 * u64::from(pages),
        },
        until: Until::seconds(settings.seconds),
        threads: settings.threads,
        place: Rc::new(place),
    };
    let of_one = |(names, (trace, [default, random])): (&Names, (Trace, [KernelSide; 2]))| {
        let mut one = Match::default();
        let kernels = |kernel, file, advised| turns.kernel(kernel, file, Way::Mapping { advised });
        let mut add = |variant, cache| one.add(names.read, variant, turns.work(&cache, READ));
        let default = add(KERNEL_DEFAULT, kernels(default, FILE_DEFAULT, false));
        let random = add(KERNEL_RANDOM, kernels(random, FILE_RANDOM, true));
        let mut ours = Vec::new();
        for (variant, faults) in [
            (INLINE, MappingFaults::Inline),
            (THREAD, MappingFaults::Thread),
        ] {
            if can_map(faults).is_ok() {
                let cache = mapped(&turns, memory, faults, &trace);
                let cache = cache.map_err(|error| BenchError::setup(variant, error))?;
                ours.push((faults, add(variant, cache)));
            }
        }
        one.ratios = vec![RatioPlan::new(names.advice, random, default)];
        if let Some(&(MappingFaults::Inline, inline)) = ours.first() {
            one.ratios.extend([
                names.vs_default.between(inline, default),
                names.vs_random.between(inline, random),
                names.p99.between(inline, random),
            ]);
            let thread = ours.get(1);
            one.ratios
                .extend(thread.map(|&(_, thread)| RatioPlan::new(names.thread, thread, inline)));
        }
        Ok(one)
    };
    names.iter().zip(sides).map(of_one).collect()
}

/// A mapping of ours.
fn mapped(turns: &Turns, memory: u64, faults: MappingFaults, trace: &Trace) -> io::Result<Warming> {
    let file = turns.place.of_own_cache(FILE_OURS, memory, faults)?;
    let mapping = file.map(.., MapAccess::Read)?;
    let mut reads = RandomReads::new(trace);
    Ok(turns.cache(move |len, until| {
        let read = |_, part: &mut [u8], pos| read(&mapping, part, pos);
        reads.run(until, len, read, || Ok(file.stats()?.missed_pages))
    }))
}
