//! Reads of 8 bytes to 4 KiB at random places, one by one and many in one call: of a file that is cached, and of
//! one four times the memory bound.
//!
//! # Model
//!
//! *Hits*: a file four times the bound, all of it in a cache of its own that holds it, read in from front to back, so that
//! its folios are large; for 64 bytes also read in page by page, at random, so that each page has a folio of its
//! own. Ours one by one, in batches of 8 and of 64; the kernel's, of the same file in its page cache: pread(2), a loop
//! over a mapping, and an io_uring, 64 reads at once. Pages of 4 KiB are also viewed one by one, and copied out of the
//! view as they are out of the mapping. All read the same places, one thread each; there is no list of them, which
//! would come to be in the processor's caches with all that it leads to.
//!
//! *Misses*: a cache of the bound's size. Ours one by one and in batches of 64; the kernel's are processes in
//! memory cgroups of that size: pread, a mapping with `MADV_RANDOM`, and an io_uring, 64 reads submitted at once and all waited
//! for, through the kernel's cache and past it (`O_DIRECT`, which reads whole pages and keeps none). The ratio
//! is with the better of the rings. All have the same trace, and go on from turn to turn with what is cached, also
//! when the length of the reads changes; before the first turn each has read twice as many pages as the file has, or
//! for twenty times the time of a turn. Latencies are of a batch.

use foliocache::{File, MappingFaults};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::rand::{Turns, Warming};
use super::{BUFFERED, FILE_PER_MEMORY, KERNEL_MMAP, KERNEL_RANDOM, OURS, memory};
use crate::cached::{Folios, Hits, How, MANY, kernels, read_batch, read_in};
use crate::case::{Case, Match, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::{PAGE, whole};
use crate::host::processor_cache;
use crate::kernel::{KernelSide, Way, lock};
use crate::passes::{Popularity, RandomReads, Trace, Until};
use crate::place::Place;
use crate::ring::ReadRing;
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Batch;

/// Requests of a small batch.
const FEW: usize = 8;

const OURS_FEW: &str = "foliocache, batches of 8";
const OURS_MANY: &str = "foliocache, batches of 64";
const VIEWS: &str = "foliocache views";
const PREAD: &str = "kernel pread";
const RING: &str = "kernel io_uring, 64 at once";
const RING_BUFFERED: &str = "kernel io_uring, 64 at once, cgroup";
const RING_DIRECT: &str = "kernel io_uring, 64 at once, O_DIRECT";

const FILE_HITS: &str = "cached";
const FILE_OURS: &str = "data";
const FILE_PREAD: &str = "data-of-pread";
const FILE_MMAP: &str = "data-mapped";
const FILE_RING: &str = "data-of-the-ring";

const SEED: u64 = 44;

/// What rows and ratios are called, and what ours are to reach.
struct Names {
    len: usize,
    hit: &'static str,
    /// Batches of 64 against one by one, against the mapping, batches of 8 against one by one.
    hit_ratios: [RatioPlan; 3],
    cold: &'static str,
    /// Batches of 64 against the ring, against one by one.
    cold_ratios: [RatioPlan; 2],
}

const NAMES: [Names; 4] = [
    Names {
        len: 8,
        hit: "read 8 B, hit",
        hit_ratios: [
            RatioPlan::new("batch64_hit_vs_single_8", 0, 0),
            RatioPlan::new("batch64_hit_vs_mmap_8", 0, 0),
            RatioPlan::new("batch8_hit_vs_single_8", 0, 0),
        ],
        cold: "read 8 B",
        cold_ratios: [
            RatioPlan::new("batch64_cold_vs_io_uring_8", 0, 0),
            RatioPlan::new("batch64_cold_vs_single_8", 0, 0),
        ],
    },
    Names {
        len: 64,
        hit: "read 64 B, hit",
        hit_ratios: [
            RatioPlan::new("batch64_hit_vs_single", 0, 0).at_least(2.5),
            RatioPlan::new("batch64_hit_vs_mmap", 0, 0).at_least(0.6),
            RatioPlan::new("batch8_hit_vs_single", 0, 0),
        ],
        cold: "read 64 B",
        cold_ratios: [
            RatioPlan::new("batch64_cold_vs_io_uring", 0, 0).at_least(0.95),
            RatioPlan::new("batch64_cold_vs_single", 0, 0),
        ],
    },
    Names {
        len: 1024,
        hit: "read 1 KiB, hit",
        hit_ratios: [
            RatioPlan::new("batch64_hit_vs_single_1k", 0, 0),
            RatioPlan::new("batch64_hit_vs_mmap_1k", 0, 0),
            RatioPlan::new("batch8_hit_vs_single_1k", 0, 0),
        ],
        cold: "read 1 KiB",
        cold_ratios: [
            RatioPlan::new("batch64_cold_vs_io_uring_1k", 0, 0),
            RatioPlan::new("batch64_cold_vs_single_1k", 0, 0),
        ],
    },
    Names {
        len: PAGE,
        hit: "read 4 KiB, hit",
        hit_ratios: [
            RatioPlan::new("batch64_hit_vs_single_4k", 0, 0),
            RatioPlan::new("batch64_hit_vs_mmap_4k", 0, 0),
            RatioPlan::new("batch8_hit_vs_single_4k", 0, 0),
        ],
        cold: "read 4 KiB",
        cold_ratios: [
            RatioPlan::new("batch64_cold_vs_io_uring_4k", 0, 0),
            RatioPlan::new("batch64_cold_vs_single_4k", 0, 0),
        ],
    },
];

/// Of 64 bytes from folios of a page each.
const SINGLE_PAGES: Names = Names {
    hit: "read 64 B, hit, folios of 4 KiB",
    hit_ratios: [
        RatioPlan::new("batch64_hit_vs_single_pages", 0, 0).at_least(2.5),
        RatioPlan::new("batch64_hit_vs_mmap_pages", 0, 0),
        RatioPlan::new("batch8_hit_vs_single_pages", 0, 0),
    ],
    ..NAMES[1]
};

impl Case for Batch {
    fn name(&self) -> &'static str {
        "batch"
    }

    fn about(&self) -> &'static str {
        "random reads of 8 bytes to 4 KiB, one by one and 64 in a call, cached and not"
    }

    fn settings(&self, quick: bool) -> Settings {
        let settings = match quick {
            true => Settings::bounded(4, 0.05, 64 << 20),
            false => Settings::bounded(10, 0.5, 256 << 20),
        };
        Settings {
            threads: 1,
            ..settings
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 40 } else { 420 }
    }

    fn uses(&self) -> Uses {
        Uses::FILES
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let len = FILE_PER_MEMORY * memory;
        let files = [FILE_HITS, FILE_OURS, FILE_PREAD, FILE_MMAP, FILE_RING];
        let place = Place::on_disk(settings, memory, files.len() as u64 * len)?;
        let describe = place.describe();
        for name in files {
            place.make(name, len)?;
        }
        let kernels = sides(settings, &place, memory)?;
        let place = Rc::new(place);
        let mut matches = Vec::new();
        let cached = |folios| {
            let bound = len + len / 8 + (64 << 20);
            let file = place.of_own_cache(FILE_HITS, bound, MappingFaults::default());
            let file = file.map_err(|error| BenchError::setup(FILE_HITS, error))?;
            read_in(file, len, folios)
        };
        let large = cached(Folios::Large)?;
        for names in &NAMES {
            matches.push(hits(&place, names, &large, len)?);
        }
        let single = cached(Folios::SinglePages)?;
        matches.push(hits(&place, &SINGLE_PAGES, &single, len)?);
        matches.extend(misses(&place, kernels, settings, memory)?);
        Ok(Plan {
            matches,
            place: Some(describe),
            notes: vec![
                format!(
                    "hits are in a file of {} MiB; the processor's largest cache: {}",
                    len >> 20,
                    processor_cache()
                ),
                "ours opens the directory read-only, since its caches are several".to_owned(),
            ],
        })
    }
}

fn hits(place: &Place, names: &Names, file: &Arc<File>, len: u64) -> Result<Match, BenchError> {
    let path = place.path(FILE_HITS);
    let (kernels, mapping) = kernels(&path, len)?;
    let ring = ReadRing::open(&path, MANY, false);
    let ring = ring.map_err(|error| BenchError::setup(RING, error))?;
    let mut one = Match::default();
    let mut add = |variant, how| {
        let worker = Box::new(Hits::new(how, names.len, len));
        one.add(names.hit, variant, Work::Operations(vec![worker]))
    };
    let many = add(OURS_MANY, How::Batches(Arc::clone(file), MANY));
    let single = add(OURS, How::OneByOne(Arc::clone(file)));
    let few = add(OURS_FEW, How::Batches(Arc::clone(file), FEW));
    add(PREAD, How::Pread(kernels));
    let mmap = add(KERNEL_MMAP, How::Mapping(mapping));
    add(RING, How::Ring(Box::new(ring)));
    let [vs_single, vs_mmap, few_vs_single] = names.hit_ratios;
    let mut ratios = vec![
        vs_single.between(many, single),
        vs_mmap.between(many, mmap),
        few_vs_single.between(few, single),
    ];
    if names.len == PAGE {
        let views = add(VIEWS, How::Views(Arc::clone(file)));
        ratios.push(RatioPlan::new("view_hit_vs_mmap_4k", views, mmap));
    }
    one.ratios = ratios;
    Ok(one)
}

fn trace(memory: u64) -> Trace {
    Trace {
        threads: 1,
        pages: (FILE_PER_MEMORY * memory / PAGE as u64) as u32,
        popularity: Popularity::Uniform,
        seed: SEED,
    }
}

/// A way of the kernel's: what it is called, its file, and the process.
type Side = (Way, &'static str, &'static str, KernelSide);

fn sides(settings: &Settings, place: &Place, memory: u64) -> Result<Vec<Side>, BenchError> {
    let ring = |direct| Way::Ring {
        at_once: MANY,
        direct,
    };
    let ways = [
        (ring(false), RING_BUFFERED, FILE_RING),
        (ring(true), RING_DIRECT, FILE_RING),
        (Way::Call, BUFFERED, FILE_PREAD),
        (Way::Mapping { advised: true }, KERNEL_RANDOM, FILE_MMAP),
    ];
    let side = |(way, variant, file)| {
        let trace = Some(trace(memory));
        let kernel = KernelSide::start(&settings.helper, place.guard(), memory, trace)?;
        Ok((way, variant, file, kernel))
    };
    ways.into_iter().map(side).collect()
}

fn misses(
    place: &Rc<Place>,
    kernels: Vec<Side>,
    settings: &Settings,
    memory: u64,
) -> Result<Vec<Match>, BenchError> {
    let turns = Turns {
        warm_up: Until {
            seconds: 20.0 * settings.seconds,
            reads: 2 * u64::from(trace(memory).pages),
        },
        until: Until::seconds(settings.seconds),
        threads: 1,
        place: Rc::clone(place),
    };
    let ours = |at_once| {
        let cache = ours(&turns, memory, at_once);
        cache.map_err(|error| BenchError::setup(FILE_OURS, error))
    };
    let mut caches = vec![(OURS_MANY, ours(MANY)?), (OURS, ours(1)?)];
    for (way, variant, file, kernel) in kernels {
        caches.push((variant, turns.kernel(kernel, file, way)));
    }
    let of_len = |names: &Names| {
        let mut one = Match::default();
        for (variant, cache) in &caches {
            one.add(names.cold, variant, turns.work(cache, names.len));
        }
        let [vs_ring, vs_single] = names.cold_ratios;
        let better = RatioPlan {
            or: Some((0, 3)),
            ..vs_ring.between(0, 2)
        };
        one.ratios = vec![better, vs_single.between(0, 1)];
        one
    };
    Ok(NAMES.iter().map(of_len).collect())
}

/// Ours, of a file that is larger than its cache.
fn ours(turns: &Turns, memory: u64, at_once: usize) -> io::Result<Warming> {
    let file = (turns.place).of_own_cache(FILE_OURS, memory, MappingFaults::default())?;
    let mut reads = RandomReads::new(&trace(memory));
    let to = Mutex::new(vec![0; MANY * PAGE]);
    Ok(turns.cache(move |len, until| {
        let missed = || Ok(file.stats()?.missed_pages);
        match at_once {
            1 => {
                let read = |_, to: &mut [u8], pos| whole(file.read_at(to, pos)?, len);
                reads.run(until, len, read, missed)
            }
            many => {
                let read = |positions: &[u64]| read_batch(&file, positions, &mut lock(&to), len);
                reads.run_batches(until, len, many, read, missed)
            }
        }
    }))
}
