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
//! that were not read from the disk. `O_DIRECT` reads the same trace past both caches, by each thread one read at a
//! time, and as many as are fastest here, by an io_uring of each thread; it has no hits.
//!
//! Hits are awaited on one page in memory, by a thread that polls once: a hit that is not ready then
//! is an error. Beside it the same open file is read by the blocking call.

use foliocache::{AsyncFile, File};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use super::{BUFFERED, FILE_PER_MEMORY, OURS, memory};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work, Worker, repeat};
use crate::error::BenchError;
use crate::file_bed::DIRECT;
use crate::files::{Ours as Hot, PAGE, PageBuf, whole};
use crate::kernel::{KernelSide, Way};
use crate::passes::{Popularity, RandomReads, RandomResult, Trace, Until};
use crate::place::{Place, drop_from_kernel_cache};
use crate::ring::{DirectRing, fastest_depth};
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
        let settings = match quick {
            true => Settings::bounded(4, 0.5, 64 << 20),
            false => Settings::bounded(10, 1.0, 256 << 20),
        };
        Settings {
            threads: 8,
            ..settings
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 240 }
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
        let disk = Place::on_disk(settings, memory, 2 * len)?;
        let mut plan = Plan {
            place: Some(disk.describe()),
            ..Plan::default()
        };
        plan.matches.push(hits()?);
        beside_others(disk, settings, memory, &ON_DISK, &mut plan)?;
        match Place::on_zram(settings, memory, 2 * len) {
            Ok(zram) => beside_others(zram, settings, memory, &ON_ZRAM, &mut plan)?,
            Err(error) => plan.notes.push(format!("nothing on zram: {error}")),
        }
        Ok(plan)
    }
}

/// What rows and ratios are called.
struct Names {
    place: &'static str,
    read: &'static str,
    vs_kernel: RatioPlan,
    /// To `O_DIRECT`, at depth 1 and at the fastest.
    vs_direct1: &'static str,
    vs_direct: &'static str,
}

const ON_DISK: Names = Names {
    place: "the disk",
    read: "read 4 KiB, zipf",
    vs_kernel: RatioPlan::new("rand_read_vs_kernel", 0, 0).at_least(1.0),
    vs_direct1: "rand_read_vs_direct_depth1",
    vs_direct: "rand_read_vs_direct",
};

const ON_ZRAM: Names = Names {
    place: "zram",
    read: "zram, read 4 KiB, zipf",
    vs_kernel: RatioPlan::new("rand_read_vs_kernel_zram", 0, 0),
    vs_direct1: "rand_read_vs_direct_depth1_zram",
    vs_direct: "rand_read_vs_direct_zram",
};

/// Hits, awaited and not.
fn hits() -> Result<Match, BenchError> {
    let file = Hot::new()?.async_file("hit")?;
    let mut hits = Match::default();
    let mut add = |variant, worker| {
        let work = Work::Operations(vec![worker]);
        hits.add("read 4 KiB, hit", variant, work)
    };
    let awaited = add("foliocache, async", awaited(file.clone()));
    let ours = add(OURS, blocking(file));
    hits.ratios = vec![RatioPlan::new("async_vs_blocking_hits", awaited, ours)];
    Ok(hits)
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

fn beside_others(
    place: Place,
    settings: &Settings,
    memory: u64,
    names: &Names,
    plan: &mut Plan,
) -> Result<(), BenchError> {
    let len = FILE_PER_MEMORY * memory;
    let pages = (len / PAGE as u64) as u32;
    let trace = Trace {
        threads: settings.threads,
        pages,
        popularity: Popularity::Zipf,
        seed: SEED,
    };
    let kernel = KernelSide::start(&settings.helper, place.guard(), memory, Some(trace))?;
    place.make(FILE_OURS, len)?;
    place.make(FILE_KERNEL, len)?;
    let ours = || (0..trace.threads).map(|_| place.ours(FILE_OURS)).collect();
    let files: io::Result<Vec<File>> = ours();
    let files = files.map_err(|error| BenchError::setup(FILE_OURS, error))?;
    let turns = Turns {
        warm_up: Until {
            seconds: 600.0,
            reads: 2 * u64::from(pages),
        },
        until: Until::seconds(settings.seconds),
        threads: trace.threads,
        place: Rc::new(place),
    };
    let mut reads = RandomReads::new(&trace);
    let ours = turns.cache(move |len, until| {
        let read = |who: usize, part: &mut [u8], pos| {
            let read = files[who].read_at(part, pos);
            whole(read.map_err(io::Error::from)?, len)
        };
        reads.run(until, len, read, || Ok(files[0].stats()?.missed_pages))
    });
    let kernel = turns.kernel(kernel, FILE_KERNEL, Way::Call);
    let path = turns.place.path(FILE_KERNEL);
    let direct = |depth| -> io::Result<_> {
        let rings = (0..trace.threads)
            .map(|_| Ok(Mutex::new(DirectRing::open(&path, depth, PAGE, false)?)));
        let rings = rings.collect::<io::Result<Vec<_>>>()?;
        let mut reads = RandomReads::new(&trace);
        Ok(move |_len, until| reads.run_direct(until, &rings))
    };
    let trial = Until::seconds(settings.seconds / 4.0);
    let (depth, fastest) = fastest_depth(|depth| {
        let result = direct(depth)?(PAGE, trial)?;
        Ok(result.reads as f64 / result.cost.seconds)
    })?;
    plan.notes.push(format!(
        "O_DIRECT on {}: fastest with {depth} reads of each thread under way",
        names.place
    ));
    let failed = |error| BenchError::setup("O_DIRECT by io_uring", error);
    let direct1 = turns.uncached(direct(1).map_err(failed)?);
    let direct = turns.uncached(direct(depth).map_err(failed)?);
    let mut one = Match::default();
    let mut add = |variant, cache| one.add(names.read, variant, turns.work(cache, PAGE));
    let ours = add(OURS, &ours);
    let kernel = add(BUFFERED, &kernel);
    let direct1 = add(DIRECT, &direct1);
    let direct = add(fastest, &direct);
    one.ratios = vec![
        names.vs_kernel.between(ours, kernel),
        RatioPlan::new(names.vs_direct1, ours, direct1),
        RatioPlan::new(names.vs_direct, ours, direct),
    ];
    plan.matches.push(one);
    Ok(())
}

/// Of reads of `len` bytes each.
fn outcome(result: &RandomResult, len: usize) -> Outcome {
    let reads = result.reads as f64;
    Outcome {
        value: reads / result.cost.seconds,
        cost: Some((result.cost, result.reads * len as u64)),
        // A kernel that reads ahead reads more from the disk than was missed.
        hit_ratio: Some((1.0 - result.misses as f64 / reads).max(0.0)),
        device: None,
        latency: Some(result.latency),
        series: Vec::new(),
    }
}

/// What turns of random reads have in common.
pub(super) struct Turns {
    /// What is read before the first turn of a cache.
    pub(super) warm_up: Until,
    pub(super) until: Until,
    pub(super) threads: usize,
    pub(super) place: Rc<Place>,
}

/// Goes on reading, so many bytes each time.
type Read = dyn FnMut(usize, Until) -> io::Result<RandomResult>;

/// A cache that is read at random, and that stays as it is between two turns. What is read goes before the place.
#[derive(Clone)]
pub(super) struct Warming {
    read: Rc<RefCell<Read>>,
    /// What is to be read before the first turn.
    warm_up: Rc<Cell<Option<Until>>>,
    _place: Rc<Place>,
}

impl Turns {
    /// A cache that `read` reads from.
    pub(super) fn cache(
        &self,
        read: impl FnMut(usize, Until) -> io::Result<RandomResult> + 'static,
    ) -> Warming {
        Warming {
            read: Rc::new(RefCell::new(read)),
            warm_up: Rc::new(Cell::new(Some(self.warm_up))),
            _place: Rc::clone(&self.place),
        }
    }

    /// Reads past all caches: there is nothing to warm up.
    fn uncached(
        &self,
        read: impl FnMut(usize, Until) -> io::Result<RandomResult> + 'static,
    ) -> Warming {
        let cache = self.cache(read);
        cache.warm_up.set(None);
        cache
    }

    /// That of a process, bounded by its cgroup, over a file that nobody else has in a cache now.
    pub(super) fn kernel(&self, mut kernel: KernelSide, file: &str, way: Way) -> Warming {
        let path = self.place.path(file);
        let mut fresh = true;
        self.cache(move |len, until| {
            if std::mem::take(&mut fresh) {
                drop_from_kernel_cache(&path)?;
            }
            kernel.random(&path, way, len, until)
        })
    }

    /// Turns of reads of `len` bytes.
    pub(super) fn work(&self, cache: &Warming, len: usize) -> Work {
        let turn = Turn {
            cache: cache.clone(),
            until: self.until,
            len,
        };
        Work::pass(self.threads, "op/s", turn)
    }
}

struct Turn {
    cache: Warming,
    until: Until,
    len: usize,
}

impl Turn {
    fn read(&self, until: Until) -> io::Result<RandomResult> {
        (self.cache.read.borrow_mut())(self.len, until)
    }
}

impl Pass for Turn {
    fn prepare(&mut self) -> io::Result<()> {
        match self.cache.warm_up.take() {
            Some(until) => self.read(until).map(drop),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> io::Result<Outcome> {
        Ok(outcome(&self.read(self.until)?, self.len))
    }
}
