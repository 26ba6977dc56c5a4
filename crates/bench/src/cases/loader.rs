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
//! Beside ours is what loaders have today: `O_DIRECT` by an io_uring, in batches and with 64 requests under way all the time, a mapping
//! (`MADV_RANDOM`, but for epochs), and pread(2). Each is a process in a memory cgroup of one size, which holds all that it needs: our bound
//! is smaller by what the process and the cache's descriptors take. All take turns, and go on from turn to turn with what is cached. A
//! ratio with `O_DIRECT` is with the better of the two rings, but latencies are of batches. What each had read from the device is what the kernel
//! counts for its process.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use super::{BUFFERED, FILE_PER_MEMORY, KERNEL_DEFAULT, KERNEL_RANDOM, OURS, memory};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::kernel::KernelSide;
use crate::loader::{Load, SHARD, Set, Shape, Way, request};
use crate::passes::{RandomResult, Until};
use crate::place::Place;
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Loader;

const DIRECT_BATCHES: &str = "O_DIRECT, io_uring, 64 at once";
const DIRECT_DEPTH: &str = "O_DIRECT, io_uring, depth 64";

/// Least memory: rings of large requests take 16 MiB of it.
const LEAST: u64 = 32 << 20;

/// Of the memory, what the process of ours needs beside its bound.
fn bound(memory: u64) -> u64 {
    memory - memory / 8 - (8 << 20)
}

/// A shape, by whom it is read, and what the ratios are called.
struct Row {
    name: &'static str,
    shape: Shape,
    unit: &'static str,
    ways: &'static [(Way, &'static str)],
    ratios: &'static [RatioPlan],
}

const OF_BATCHES: [(Way, &str); 5] = [
    (Way::Ours, OURS),
    (Way::DirectBatches, DIRECT_BATCHES),
    (Way::DirectDepth, DIRECT_DEPTH),
    (Way::Mapping, KERNEL_RANDOM),
    (Way::Pread, BUFFERED),
];

const OF_EPOCHS: [(Way, &str); 4] = [
    (Way::Ours, OURS),
    (Way::DirectDepth, DIRECT_DEPTH),
    (Way::Mapping, KERNEL_DEFAULT),
    (Way::Pread, BUFFERED),
];

/// The sets, and by whom each is read: pages that one process has in the kernel's cache do not count in another's cgroup.
const SETS: [(&str, &[Way]); 3] = [
    ("shard", &[Way::Ours, Way::DirectBatches, Way::DirectDepth]),
    ("shard-mapped", &[Way::Mapping]),
    ("shard-of-pread", &[Way::Pread]),
];

/// To the better of the two rings.
const fn vs_direct(name: &'static str) -> RatioPlan {
    RatioPlan {
        or: Some((0, 2)),
        ..RatioPlan::new(name, 0, 1)
    }
}

const ROWS: [Row; 4] = [
    Row {
        name: "load 64 samples of 4 KiB, uniform",
        shape: Shape::Uniform,
        unit: "samples/s",
        ways: &OF_BATCHES,
        ratios: &[
            vs_direct("loader_uniform_vs_direct").at_least(0.8),
            RatioPlan::new("loader_uniform_vs_mmap", 0, 3),
            RatioPlan::new("loader_uniform_vs_pread", 0, 4),
            RatioPlan::new("loader_uniform_p99_vs_direct", 0, 1).of_p99(),
        ],
    },
    Row {
        name: "load 64 samples of 4 KiB, 90 of 100 of a tenth",
        shape: Shape::Hot,
        unit: "samples/s",
        ways: &OF_BATCHES,
        ratios: &[
            vs_direct("loader_hot_vs_direct").at_least(1.1),
            RatioPlan::new("loader_hot_vs_mmap", 0, 3),
            RatioPlan::new("loader_hot_vs_pread", 0, 4),
            RatioPlan::new("loader_hot_p99_vs_direct", 0, 1).of_p99(),
        ],
    },
    Row {
        name: "load 64 samples of 4 KiB, cached",
        shape: Shape::Cached,
        unit: "samples/s",
        ways: &OF_BATCHES,
        ratios: &[
            RatioPlan::new("loader_batch_vs_mmap", 0, 3),
            RatioPlan::new("loader_batch_vs_pread", 0, 4),
            vs_direct("loader_batch_vs_direct"),
            RatioPlan::new("loader_batch_p99_vs_mmap", 0, 3).of_p99(),
        ],
    },
    Row {
        name: "pass over all shards by 256 KiB, in an order at random",
        shape: Shape::Epochs,
        unit: "MB/s",
        ways: &OF_EPOCHS,
        ratios: &[
            RatioPlan::new("loader_epoch_vs_direct", 0, 1),
            RatioPlan::new("loader_epoch_vs_mmap", 0, 2),
            RatioPlan::new("loader_epoch_vs_pread", 0, 3),
        ],
    },
];

impl Case for Loader {
    fn name(&self) -> &'static str {
        "loader"
    }

    fn about(&self) -> &'static str {
        "samples of files four times the memory, as a loader of training data reads them"
    }

    fn settings(&self, quick: bool) -> Settings {
        match quick {
            true => Settings::bounded(4, 0.4, 64 << 20),
            false => Settings::bounded(10, 1.0, 256 << 20),
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 80 } else { 300 }
    }

    fn uses(&self) -> Uses {
        Uses::FILES
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        if memory < LEAST {
            return Err(BenchError::Setting("memory: at least 32 MiB for a loader"));
        }
        let len = FILE_PER_MEMORY * memory;
        let place = Place::on_disk(settings, memory, SETS.len() as u64 * len)?;
        let describe = place.describe();
        let mut sides = Vec::new();
        for (prefix, ways) in SETS {
            let set = Set {
                folder: place.path("."),
                prefix: prefix.to_owned(),
                shards: len / SHARD,
                bound: bound(memory),
            };
            for shard in 0..set.shards {
                place.make(&set.name(shard), SHARD)?;
            }
            for &way in ways {
                let side = KernelSide::start(&settings.helper, place.guard(), memory, None)?;
                sides.push((way, set.clone(), Rc::new(RefCell::new(side))));
            }
        }
        let place = Rc::new(place);
        let matches = ROWS.iter().map(|row| {
            let mut one = Match::default();
            for &(way, variant) in row.ways {
                let side = sides.iter().find(|(of, ..)| *of == way);
                let (_, set, side) = side.expect("each way has a process");
                let turn = Turn {
                    side: Rc::clone(side),
                    load: Load {
                        set: set.clone(),
                        way,
                        shape: row.shape,
                        until: Until::seconds(settings.seconds),
                    },
                    is_warm: false,
                    _place: Rc::clone(&place),
                };
                one.add(row.name, variant, Work::pass(1, row.unit, turn));
            }
            one.ratios = row.ratios.to_vec();
            one
        });
        Ok(Plan {
            matches: matches.collect(),
            place: Some(describe),
            notes: vec![format!(
                "the set has {} MiB, each process {} MiB, of which our cache has {}",
                len >> 20,
                memory >> 20,
                bound(memory) >> 20
            )],
        })
    }
}

/// Turns of one process with one shape. The process ends before its files go.
struct Turn {
    side: Rc<RefCell<KernelSide>>,
    load: Load,
    is_warm: bool,
    _place: Rc<Place>,
}

impl Turn {
    /// What is read before the first turn: until a cache has what it will have.
    fn warm_up(&self) -> Until {
        let samples = self.load.set.shards * SHARD / PAGE as u64;
        let (reads, turns) = match self.load.shape {
            // The memory is full of others' samples. Hot ones come nine times in ten.
            Shape::Hot => (2 * samples, 20.0),
            Shape::Uniform | Shape::Cached => (samples, 20.0),
            Shape::Epochs => (u64::MAX, 1.0),
        };
        Until {
            seconds: turns * self.load.until.seconds,
            reads,
        }
    }
}

impl Pass for Turn {
    fn prepare(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_warm, true) {
            return Ok(());
        }
        let uncached = matches!(self.load.way, Way::DirectBatches | Way::DirectDepth);
        if uncached {
            return Ok(());
        }
        let warm_up = Load {
            until: self.warm_up(),
            ..self.load.clone()
        };
        self.side.borrow_mut().load(warm_up).map(drop)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let result = self.side.borrow_mut().load(self.load.clone())?;
        Ok(outcome(&result, self.load.shape))
    }
}

fn outcome(result: &RandomResult, shape: Shape) -> Outcome {
    let bytes = result.reads * request(shape) as u64;
    let value = match shape {
        Shape::Epochs => bytes as f64 / 1e6 / result.cost.seconds,
        _ => result.reads as f64 / result.cost.seconds,
    };
    Outcome {
        value,
        cost: Some((result.cost, bytes)),
        device: Some((result.misses * PAGE as u64) as f64 / bytes as f64),
        latency: Some(result.latency),
        ..Outcome::plain(value)
    }
}
