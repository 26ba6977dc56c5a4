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

use foliocache::{File, MapAccess, Mapping, MappingFaults};
use std::io;
use std::rc::Rc;

use super::fault::can_map;
use super::rand::{KernelTurn, outcome};
use super::{FILE_PER_MEMORY, INLINE, KERNEL_DEFAULT, KERNEL_RANDOM, THREAD};
use crate::case::{Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::kernel::{KernelSide, Way};
use crate::mapped::read;
use crate::passes::{Popularity, RandomReads, RandomResult, Trace, Until};
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
    let (helper, dir) = (&settings.helper[..], settings.dir.as_deref());
    let disk = Place::on_disk(helper, dir, memory, FILES * len)?;
    if let Some(kib) = disk.read_ahead() {
        let note = format!("the kernel's default on the disk: it reads {kib} KiB around a miss");
        plan.notes.push(note);
    }
    plan.matches
        .extend(matches(disk, settings, memory, &ON_DISK)?);
    match Place::on_zram(helper, dir, memory, FILES * len) {
        Ok(zram) => plan
            .matches
            .extend(matches(zram, settings, memory, &ON_ZRAM)?),
        Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
    }
    Ok(())
}

fn matches(
    mut place: Place,
    settings: &Settings,
    memory: u64,
    names: &[Names],
) -> Result<Vec<Match>, BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let pages = (len / PAGE as u64) as u32;
    for name in [FILE_DEFAULT, FILE_RANDOM, FILE_OURS] {
        place.make(name, len)?;
    }
    let until = Until::seconds(settings.seconds);
    let warm_up = Until {
        seconds: 10.0 * settings.seconds,
        reads: 2 * u64::from(pages),
    };
    let mut sides = Vec::new();
    for names in names {
        let trace = Trace {
            threads: settings.threads,
            pages,
            popularity: names.popularity,
            len: READ,
            seed: SEED,
        };
        let mut side = || KernelSide::start(&settings.helper, place.guard(), memory, Some(trace));
        sides.push((trace, [side()?, side()?]));
    }
    let place = Rc::new(place);
    let of_one = |(names, (trace, [default, random])): (&Names, (Trace, [KernelSide; 2]))| {
        let contestant = |variant, pass| Contestant {
            name: names.read,
            variant,
            work: Work::Pass {
                threads: settings.threads,
                unit: "op/s",
                pass,
            },
        };
        let kernels = |kernel, file, advised| {
            Box::new(KernelTurn {
                kernel,
                path: place.path(file),
                way: Way::Mapping { advised },
                warm_up: Some(warm_up),
                until,
                len: READ,
                _place: Rc::clone(&place),
            })
        };
        let mut contestants: Vec<Contestant> = vec![
            contestant(KERNEL_DEFAULT, kernels(default, FILE_DEFAULT, false)),
            contestant(KERNEL_RANDOM, kernels(random, FILE_RANDOM, true)),
        ];
        let mut ratios = vec![RatioPlan::new(names.advice, 1, 0)];
        for (variant, faults) in [
            (INLINE, MappingFaults::Inline),
            (THREAD, MappingFaults::Thread),
        ] {
            if can_map(faults).is_err() {
                continue;
            }
            let ours = Ours::new(&place, memory, faults, &trace, warm_up, until);
            let ours = ours.map_err(|error| BenchError::setup(variant, error))?;
            contestants.push(contestant(variant, Box::new(ours)));
            let of = contestants.len() - 1;
            if faults == MappingFaults::Inline {
                let plans = [(names.vs_default, 0), (names.vs_random, 1), (names.p99, 1)];
                ratios.extend(plans.map(|(plan, to)| RatioPlan { of, to, ..plan }));
            } else if of > 2 {
                ratios.push(RatioPlan::new(names.thread, of, 2));
            }
        }
        Ok(Match {
            contestants,
            ratios,
        })
    };
    names.iter().zip(sides).map(of_one).collect()
}

/// Ours. The mapping and its file go before the place.
struct Ours {
    mapping: Mapping,
    file: File,
    reads: RandomReads,
    /// What is read before the first turn.
    warm_up: Option<Until>,
    until: Until,
    _place: Rc<Place>,
}

impl Ours {
    fn new(
        place: &Rc<Place>,
        memory: u64,
        faults: MappingFaults,
        trace: &Trace,
        warm_up: Until,
        until: Until,
    ) -> io::Result<Self> {
        let file = place.of_own_cache(FILE_OURS, memory, faults)?;
        Ok(Self {
            mapping: file.map(.., MapAccess::Read)?,
            file,
            reads: RandomReads::new(trace),
            warm_up: Some(warm_up),
            until,
            _place: Rc::clone(place),
        })
    }

    fn read(&mut self, until: Until) -> io::Result<RandomResult> {
        let mapping = &self.mapping;
        let missed = || Ok(self.file.stats()?.misses);
        let read = |_, part: &mut [u8], pos| read(mapping, part, pos);
        self.reads.run(until, read, missed)
    }
}

impl Pass for Ours {
    fn prepare(&mut self) -> io::Result<()> {
        match self.warm_up.take() {
            Some(until) => self.read(until).map(drop),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> io::Result<Outcome> {
        Ok(outcome(&self.read(self.until)?, READ))
    }
}
