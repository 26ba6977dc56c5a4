//! Pages of a file four times the memory bound, by popularity, read by several threads; and what
//! awaiting a hit costs.
//!
//! # Model
//!
//! Reads of 4 KiB with a zipf distribution of θ = 0.99, scattered over the file, by eight threads,
//! each with a handle of its own and no advice given. Ours and the kernel's read the same traces,
//! each from a file of its own, and go on from turn to turn with what is in their caches; both have
//! read twice as many pages as the file has before the first turn.
//!
//! The kernel's side is a process in a memory cgroup of the bound's size. Its hits are the reads
//! that were not read from the disk.
//!
//! Hits are awaited on one page in memory, by a thread that polls once: a hit that is not ready then
//! is an error. Beside it the same open file is read by the blocking call.

use foliocache::{AsyncFile, File};
use std::cell::RefCell;
use std::future::Future;
use std::hint::black_box;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{AGAIN, BUFFERED, FILE_PER_MEMORY, OURS, memory};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work, Worker, repeat};
use crate::error::BenchError;
use crate::files::{Ours as Hot, PAGE, PageBuf, whole};
use crate::kernel::{KernelSide, Way};
use crate::passes::{Popularity, RandomReads, RandomResult, Trace, Until};
use crate::place::{Place, drop_from_kernel_cache};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Rand;

/// The files: what one side has read is in nobody's cache for the other.
const FILE_OURS: &str = "data";
const FILE_KERNEL: &str = "data-of-the-kernels";

/// Of all traces.
const SEED: u64 = 42;

impl Case for Rand {
    fn name(&self) -> &'static str {
        "rand"
    }

    fn about(&self) -> &'static str {
        "random 4 KiB reads of a file four times the memory, zipf, by 8 threads"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, seconds, memory) = match quick {
            true => (3, 0.5, 64 << 20),
            false => (9, 1.0, 256 << 20),
        };
        Settings {
            samples,
            seconds,
            threads: 8,
            memory: Some(memory),
            ..Settings::default()
        }
    }

    fn uses(&self) -> Uses {
        Uses {
            seconds: true,
            threads: true,
            memory: true,
            dir: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let len = FILE_PER_MEMORY * memory;
        let (helper, dir) = (&settings.helper[..], settings.dir.as_deref());
        let disk = Place::on_disk(helper, dir, memory, 2 * len)?;
        let place = Some(disk.describe());
        let mut matches = vec![hits()?, against_kernel(disk, settings, memory, &ON_DISK)?];
        let mut notes = Vec::new();
        match Place::on_zram(helper, dir, memory, 2 * len) {
            Ok(zram) => matches.push(against_kernel(zram, settings, memory, &ON_ZRAM)?),
            Err(error) => notes.push(format!("nothing on zram: {error}")),
        }
        Ok(Plan {
            matches,
            place,
            notes,
        })
    }
}

/// What rows and ratios are called.
struct Names {
    read: &'static str,
    vs_kernel: &'static str,
    aa: &'static str,
    least: Option<f64>,
}

const ON_DISK: Names = Names {
    read: "read 4 KiB, zipf",
    vs_kernel: "rand_read_vs_kernel",
    aa: "rand_aa",
    least: Some(1.0),
};

const ON_ZRAM: Names = Names {
    read: "zram, read 4 KiB, zipf",
    vs_kernel: "rand_read_vs_kernel_zram",
    aa: "rand_aa_zram",
    least: None,
};

/// Hits, awaited and not.
fn hits() -> Result<Match, BenchError> {
    let file = Hot::new()?.async_file("hit")?;
    let contestant = |variant, worker| Contestant {
        name: "read 4 KiB, hit",
        variant,
        work: Work::Operations(vec![worker]),
    };
    Ok(Match {
        contestants: vec![
            contestant("foliocache, async", awaited(file.clone())),
            contestant(OURS, blocking(file.clone())),
            contestant(AGAIN, blocking(file)),
        ],
        ratios: vec![
            RatioPlan::new("async_vs_blocking_hits", 0, 1),
            RatioPlan::new("hits_aa", 1, 2),
        ],
    })
}

fn awaited(file: AsyncFile) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || {
        let read = pin!(file.read_at(black_box(&mut page.0), 0));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => whole(read.map_err(io::Error::from)?, PAGE),
            Poll::Pending => Err(io::Error::other("a hit was not ready at its first poll")),
        }
    })
}

fn blocking(file: AsyncFile) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || {
        let read = file.blocking().read_at(black_box(&mut page.0), 0);
        whole(read.map_err(io::Error::from)?, PAGE)
    })
}

fn against_kernel(
    mut place: Place,
    settings: &Settings,
    memory: u64,
    names: &Names,
) -> Result<Match, BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let pages = (len / PAGE as u64) as u32;
    let threads = settings.threads;
    let trace = Trace {
        threads,
        pages,
        popularity: Popularity::Zipf,
        len: PAGE,
        seed: SEED,
    };
    let kernel = KernelSide::start(&settings.helper, place.guard(), memory, Some(trace))?;
    place.make(FILE_OURS, len)?;
    place.make(FILE_KERNEL, len)?;
    let ours = || (0..threads).map(|_| place.ours(FILE_OURS)).collect();
    let files: io::Result<Vec<File>> = ours();
    let files = files.map_err(|error| BenchError::setup(FILE_OURS, error))?;
    let until = Until::seconds(settings.seconds);
    let warm_up = Some(Until {
        seconds: 600.0,
        reads: 2 * u64::from(pages),
    });
    let place = Rc::new(place);
    let ours = Rc::new(RefCell::new(Ours {
        files,
        reads: RandomReads::new(&trace),
        warm_up,
        until,
        _place: Rc::clone(&place),
    }));
    let contestant = |variant, pass| Contestant {
        name: names.read,
        variant,
        work: Work::Pass {
            threads,
            unit: "op/s",
            pass,
        },
    };
    let vs_kernel = RatioPlan::new(names.vs_kernel, 0, 1);
    Ok(Match {
        contestants: vec![
            contestant(OURS, Box::new(Turn(Rc::clone(&ours)))),
            contestant(
                BUFFERED,
                Box::new(KernelTurn {
                    kernel,
                    path: place.path(FILE_KERNEL),
                    way: Way::Call,
                    warm_up,
                    until,
                    len: PAGE,
                    _place: place,
                }),
            ),
            contestant(AGAIN, Box::new(Turn(ours))),
        ],
        ratios: vec![
            names
                .least
                .map_or(vs_kernel, |least| vs_kernel.at_least(least)),
            RatioPlan::new(names.aa, 0, 2),
        ],
    })
}

/// Of reads of `len` bytes each.
pub(super) fn outcome(result: &RandomResult, len: usize) -> Outcome {
    let reads = result.reads as f64;
    Outcome {
        value: reads / result.cost.seconds,
        cost: Some((result.cost, result.reads * len as u64)),
        // A kernel that reads ahead reads more from the disk than was missed.
        hit_ratio: Some((1.0 - result.misses as f64 / reads).max(0.0)),
        latency: Some(result.latency),
        series: Vec::new(),
    }
}

/// Ours. Files go before their place.
struct Ours {
    files: Vec<File>,
    reads: RandomReads,
    /// What is read before the first turn.
    warm_up: Option<Until>,
    until: Until,
    _place: Rc<Place>,
}

impl Ours {
    fn read(&mut self, until: Until) -> io::Result<RandomResult> {
        let read = |who: usize, page: &mut [u8], pos| {
            let read = self.files[who].read_at(page, pos);
            whole(read.map_err(io::Error::from)?, PAGE)
        };
        let missed = || Ok(self.files[0].stats()?.misses);
        self.reads.run(until, read, missed)
    }
}

/// A turn of ours; the control has the same cache and goes on with the same traces.
struct Turn(Rc<RefCell<Ours>>);

impl Pass for Turn {
    fn prepare(&mut self) -> io::Result<()> {
        let mut ours = self.0.borrow_mut();
        match ours.warm_up.take() {
            Some(until) => ours.read(until).map(drop),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let mut ours = self.0.borrow_mut();
        let until = ours.until;
        Ok(outcome(&ours.read(until)?, PAGE))
    }
}

/// A turn of a process whose page cache is bounded.
pub(super) struct KernelTurn {
    pub(super) kernel: KernelSide,
    pub(super) path: PathBuf,
    pub(super) way: Way,
    /// What is read before the first turn.
    pub(super) warm_up: Option<Until>,
    pub(super) until: Until,
    /// Bytes of a read.
    pub(super) len: usize,
    pub(super) _place: Rc<Place>,
}

impl Pass for KernelTurn {
    fn prepare(&mut self) -> io::Result<()> {
        let Some(until) = self.warm_up.take() else {
            return Ok(());
        };
        drop_from_kernel_cache(&self.path)?;
        self.kernel.random(&self.path, self.way, until).map(drop)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let result = self.kernel.random(&self.path, self.way, self.until)?;
        Ok(outcome(&result, self.len))
    }
}
