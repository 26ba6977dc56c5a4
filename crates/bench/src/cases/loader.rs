//! Samples of a set of files four times the memory, as a loader of training data reads them.
//!
//! # Model
//!
//! The set is shards of 4 MiB, and a sample is a page. Four shapes:
//!
//! - *uniform*: batches of 64 samples, all alike;
//! - *hot*: the same, and nine of ten samples are of a tenth of the set, which the memory holds;
//! - *cached*: the same, of shards that the memory holds;
//! - *epochs*: all shards in an order at random, each from front to back by 256 KiB, and again in another order.
//!
//! Ours runs beside today's loaders: `O_DIRECT` through an io_uring, in batches and with 64 requests always in
//! flight, a mapping (`MADV_RANDOM`, except for epochs), and pread(2). Each is a process in a memory cgroup of one
//! size, which covers all its memory: our bound is smaller by the memory of the process and of the cache's
//! descriptors. All take turns, and keep their caches from turn to turn. A ratio with `O_DIRECT` is with the better
//! of the two rings, but latencies are those of batches. The bytes read from the device are those that the kernel
//! counts for each process.

use crate::cases::prelude::*;
use crate::readers::{MANY, Set, Way};
use crate::reads::{PIECE, Read, SHARD, Shape, Source, Trace, Until};

const DIRECT_BATCHES: &str = "O_DIRECT, io_uring, 64 at once";
const DIRECT_DEPTH: &str = "O_DIRECT, io_uring, depth 64";

/// Least memory: rings of large requests take 16 MiB of it.
const LEAST: u64 = 32 << 20;

const SEED: u64 = 45;

/// Our bound: the memory less the needs of the process.
fn bound(memory: u64) -> u64 {
    memory - memory / 8 - (8 << 20)
}

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    if memory < LEAST {
        return Err(BenchError::Setting("memory: at least 32 MiB for a loader"));
    }
    let len = FILE_PER_MEMORY * memory;
    let trace = Trace {
        cached: (bound(memory) / 2 / PAGE as u64) as u32,
        ..Trace::new(1, len, SEED)
    };
    let mapping = |advised| Way::Mapping { advised };
    let ours = Way::Ours {
        bound: bound(memory),
    };
    // The sets, and the readers of each, a process for each list: pages that one process has in the kernel's cache
    // do not count in another's cgroup.
    let sets: [(&str, &[&[_]]); 3] = [
        (
            "shard",
            &[
                &[(OURS, ours)],
                &[(DIRECT_BATCHES, Way::Ring { direct: true })],
                &[(DIRECT_DEPTH, Way::Depth(MANY))],
            ],
        ),
        (
            "shard-mapped",
            &[&[
                (KERNEL_RANDOM, mapping(true)),
                (KERNEL_DEFAULT, mapping(false)),
            ]],
        ),
        ("shard-of-pread", &[&[(BUFFERED, Way::Pread)]]),
    ];
    let place = Place::on_disk(settings, memory, sets.len() as u64 * len)?;
    let mut sources = Vec::new();
    for (prefix, processes) in sets {
        let mut set = Set {
            paths: Vec::new(),
            each: SHARD,
        };
        for shard in 0..len / SHARD {
            let name = format!("{prefix}-{shard:04}");
            place.make(&name, SHARD)?;
            set.paths.push(place.path(&name));
        }
        for ways in processes {
            let side = KernelSide::start(&settings.helper, place.guard(), memory, Some(trace))?;
            let side = Rc::new(RefCell::new(side));
            for &(variant, way) in *ways {
                let source = Source::kernel(1, None, &side, (set.clone(), way));
                sources.push((variant, way, source));
            }
        }
    }
    let samples = u64::from(trace.pages);
    // Reads before the first turn, until a cache is as full as it will be, and turns at most. Hot samples come
    // nine times in ten.
    #[rustfmt::skip]
    let shapes = [
        (Shape::Uniform, "uniform", "load 64 samples of 4 KiB, uniform", samples, 20.0),
        (Shape::Hot, "hot", "load 64 samples of 4 KiB, 90 of 100 of a tenth", 2 * samples, 20.0),
        (Shape::Cached, "batch", "load 64 samples of 4 KiB, cached", samples, 20.0),
        (Shape::Epochs, "epoch", "pass over all shards by 256 KiB, in an order at random", u64::MAX, 1.0),
    ];
    let mut matches = Vec::new();
    for (shape, id, name, reads, turns) in shapes {
        let (mapped, len, at_once) = match shape {
            Shape::Epochs => (KERNEL_DEFAULT, PIECE, 1),
            _ => (KERNEL_RANDOM, PAGE, MANY),
        };
        let mut variants = vec![OURS, DIRECT_BATCHES, DIRECT_DEPTH, mapped, BUFFERED];
        variants.retain(|variant| at_once > 1 || *variant != DIRECT_BATCHES);
        let mut one = Match::default();
        for variant in variants {
            let source = sources.iter().find(|(of, ..)| *of == variant);
            let (_, way, source) = source.expect("each variant has a source");
            let warm_up = Until {
                seconds: turns * settings.seconds,
                reads,
            };
            // The memory is full of another shape's samples.
            let source = source.warming_up((!way.is_direct()).then_some(warm_up));
            let read = Read {
                at_once,
                device: true,
                ..Read::new(shape, len, settings.seconds)
            };
            one.add(name, variant, source.work(read));
        }
        ratios! { one;
            format!("loader_{id}_vs_mmap") => OURS / mapped;
            format!("loader_{id}_vs_pread") => OURS / BUFFERED;
        }
        match shape {
            Shape::Epochs => ratios! { one; "loader_epoch_vs_direct" => OURS / DIRECT_DEPTH; },
            Shape::Cached => ratios! { one;
                "loader_batch_vs_direct" => 0 / 1, or(0, 2);
                "loader_batch_p99_vs_mmap" => OURS / mapped, of_p99();
            },
            _ => ratios! { one;
                format!("loader_{id}_vs_direct") => 0 / 1, or(0, 2), at_least(if id == "hot" { 1.1 } else { 0.8 });
                format!("loader_{id}_p99_vs_direct") => OURS / DIRECT_BATCHES, of_p99();
            },
        }
        matches.push(one);
    }
    Ok(Plan {
        matches,
        place: Some(place.describe()),
        holds: vec![Rc::new(place)],
        notes: vec![format!(
            "the set has {} MiB, each process {} MiB, of which our cache has {}",
            len >> 20,
            memory >> 20,
            bound(memory) >> 20
        )],
    })
}
