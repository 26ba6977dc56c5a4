//! Reads at random places: which they are, and turns of them by each way to read.
//!
//! # Model
//!
//! ```text
//!  Trace ─▶ Reads: for each thread its next places ─┐
//!  Set, Way ─▶ a Reader for each thread ────────────┴─▶ RandomResult: reads, cost, times, misses
//! ```
//!
//! The same trace gives the same places in whatever process. A [`Source`] is both together, here or in a process of the
//! kernel's side, with all that it has cached: turns go on where the last one ended.

use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::case::{Outcome, Work};
use crate::cost::{Cost, Meter};
use crate::files::PAGE;
use crate::kernel::KernelSide;
use crate::latency::{Latency, Times};
use crate::place::{Buffer, Random};
use crate::readers::{Reader, Set, Way};
use crate::threads::on_threads;
use crate::trace::Zipf;

/// Bytes of a shard of training data.
pub(crate) const SHARD: u64 = 4 << 20;

/// Bytes of a request of a pass over all shards.
pub(crate) const PIECE: usize = 256 << 10;

/// Pages in a list of popular ones.
const LISTED: usize = 1 << 19;

/// A prime: its multiples scatter over any number of pages that it does not divide.
const SCATTER: u64 = 1_000_003;

/// An odd number whose multiples are far apart.
const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;

/// When reads end: with the first of the two.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Until {
    pub(crate) seconds: f64,
    pub(crate) reads: u64,
}

/// Which places are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shape {
    /// Any page, all alike. Chosen as they are read: no cache learns that they come again.
    Uniform,
    /// By rank, scattered over the file.
    Zipf,
    /// Nine of ten are of a tenth of the pages, which lies scattered over all.
    Hot,
    /// Any of the first pages, which the memory holds.
    Cached,
    /// All shards in an order at random, each from front to back, and then in another order.
    Epochs,
}

/// Threads read a file, or several as one, with this many pages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) threads: usize,
    pub(crate) pages: u32,
    pub(crate) seed: u64,
    /// [`Shape::Zipf`] is to be read.
    pub(crate) zipf: bool,
    /// Pages of [`Shape::Cached`].
    pub(crate) cached: u32,
}

impl Trace {
    /// Of a file of `len` bytes.
    pub(crate) fn new(threads: usize, len: u64, seed: u64) -> Self {
        Self {
            threads,
            pages: (len / PAGE as u64) as u32,
            seed,
            zipf: false,
            cached: 0,
        }
    }
}

/// The reads of a turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Read {
    pub(crate) shape: Shape,
    /// Bytes of a read; of a page, but for epochs.
    pub(crate) len: usize,
    /// Reads of a call, whose times are of all of them.
    pub(crate) at_once: usize,
    pub(crate) until: Until,
    /// Pages that came from the device are counted, and not the reads that missed their page.
    pub(crate) device: bool,
}

impl Read {
    /// Reads of `len` bytes one by one, for `seconds`.
    pub(crate) fn new(shape: Shape, len: usize, seconds: f64) -> Self {
        Self {
            shape,
            len,
            at_once: 1,
            until: Until {
                seconds,
                reads: u64::MAX,
            },
            device: false,
        }
    }
}

/// The result of reads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RandomResult {
    pub(crate) reads: u64,
    pub(crate) cost: Cost,
    pub(crate) latency: Latency,
    /// Pages that came from the disk meanwhile.
    pub(crate) misses: u64,
}

/// Places to read, for each thread, and how far each has come.
pub(crate) struct Reads(Vec<Places>);

struct Places {
    trace: Trace,
    random: Random,
    /// Popular pages, read over and over.
    list: Vec<u32>,
    /// Places chosen so far.
    at: usize,
    /// The shards of this pass, and the pieces of it that were read.
    shards: Vec<u64>,
    pieces: u64,
    times: Times,
}

impl Reads {
    /// All threads find the same pages popular.
    pub(crate) fn new(trace: &Trace) -> Self {
        let mut random = Random(trace.seed);
        let zipf = trace.zipf.then(|| Zipf::new(trace.pages, &mut random));
        let listed = if trace.zipf { LISTED } else { 0 };
        let mut places = |_| Places {
            trace: *trace,
            list: (zipf.iter().cycle().take(listed))
                .map(|zipf| zipf.page(&mut random))
                .collect(),
            random: Random(random.next()),
            at: 0,
            shards: Vec::new(),
            pieces: 0,
            times: Times::new(),
        };
        Self((0..trace.threads).map(&mut places).collect())
    }

    /// Goes on reading. `missed` counts the pages that came from the disk so far.
    pub(crate) fn run(
        &mut self,
        readers: &mut [Box<dyn Reader>],
        read: &Read,
        missed: impl Fn() -> io::Result<u64>,
    ) -> io::Result<RandomResult> {
        let most = read.until.reads.div_ceil(self.0.len() as u64);
        let before = missed()?;
        let meter = Meter::start();
        let deadline = Instant::now() + Duration::from_secs_f64(read.until.seconds);
        let threads = self.0.iter_mut().zip(readers);
        let reads = on_threads(threads, |_, (places, reader)| {
            places.go(&mut **reader, read, deadline, most)
        })?;
        Ok(RandomResult {
            reads: reads.into_iter().sum(),
            cost: meter.stop(),
            latency: Times::drain(self.0.iter_mut().map(|places| &mut places.times)),
            misses: missed()?.saturating_sub(before),
        })
    }
}

impl Places {
    fn go(
        &mut self,
        reader: &mut dyn Reader,
        read: &Read,
        deadline: Instant,
        most: u64,
    ) -> io::Result<u64> {
        let mut to = Buffer::random(read.at_once * read.len, 0);
        let mut positions = vec![0; read.at_once];
        let (mut reads, mut now) = (0, Instant::now());
        // One at least: threads may start late on a machine that is busy.
        while reads < most && (reads == 0 || now < deadline) {
            positions.fill_with(|| self.next(read));
            reader.read(&positions, to.bytes())?;
            reads += read.at_once as u64;
            // One look at the clock a read: the end of one is where the next begins.
            let end = Instant::now();
            self.times.add(end - now);
            now = end;
        }
        reader.end(&mut self.times)?;
        Ok(reads)
    }

    /// Where the next read is.
    fn next(&mut self, read: &Read) -> u64 {
        let pages = self.trace.pages as usize;
        let page = match read.shape {
            Shape::Epochs => return self.next_piece(),
            Shape::Uniform => self.random.below(pages),
            Shape::Zipf => self.list[self.at % self.list.len()] as usize,
            Shape::Cached => self.random.below(pages.min(self.trace.cached as usize)),
            Shape::Hot => {
                let hot = self.random.below(10) > 0;
                let number = self.random.below(if hot { pages / 10 } else { pages });
                (number as u64 * SCATTER % pages as u64) as usize
            }
        };
        // Another place of the page each time.
        let part = self.at.wrapping_mul(SPREAD) >> 32;
        self.at += 1;
        (page * PAGE + part % (PAGE / read.len) * read.len) as u64
    }

    /// Where the next piece of a pass over the shards is.
    fn next_piece(&mut self) -> u64 {
        const PIECES: u64 = SHARD / PIECE as u64;
        if self.pieces == self.shards.len() as u64 * PIECES {
            let shards = u64::from(self.trace.pages) * PAGE as u64 / SHARD;
            self.shards = (0..shards).collect();
            self.random.shuffle(&mut self.shards);
            self.pieces = 0;
        }
        let shard = self.shards[(self.pieces / PIECES) as usize];
        let piece = self.pieces % PIECES;
        self.pieces += 1;
        shard * SHARD + piece * PIECE as u64
    }
}

type Go = dyn FnMut(&Read) -> io::Result<RandomResult>;

/// A reader, with its cache.
#[derive(Clone)]
pub(crate) struct Source {
    go: Rc<RefCell<Go>>,
    threads: usize,
    /// The reads before the first turn.
    warm_up: Rc<Cell<Option<Until>>>,
}

impl Source {
    /// Before the first turn of all clones it reads with `go` until `warm_up`.
    pub(crate) fn new(
        threads: usize,
        warm_up: Option<Until>,
        go: impl FnMut(&Read) -> io::Result<RandomResult> + 'static,
    ) -> Self {
        Self {
            go: Rc::new(RefCell::new(go)),
            threads,
            warm_up: Rc::new(Cell::new(warm_up)),
        }
    }

    /// Readers in this process; `missed` counts the pages that came from the disk so far.
    pub(crate) fn here(
        trace: &Trace,
        warm_up: Option<Until>,
        mut readers: Vec<Box<dyn Reader>>,
        missed: impl Fn() -> io::Result<u64> + 'static,
    ) -> Self {
        let mut reads = Reads::new(trace);
        let go = move |read: &Read| reads.run(&mut readers, read, &missed);
        Self::new(trace.threads, warm_up, go)
    }

    /// A process, bounded by its cgroup.
    pub(crate) fn kernel(
        threads: usize,
        warm_up: Option<Until>,
        kernel: &Rc<RefCell<KernelSide>>,
        (set, way): (Set, Way),
    ) -> Self {
        let kernel = Rc::clone(kernel);
        let go = move |read: &Read| kernel.borrow_mut().read(&set, way, read);
        Self::new(threads, warm_up, go)
    }

    /// The same with another warm-up.
    pub(crate) fn warming_up(&self, warm_up: Option<Until>) -> Self {
        Self {
            warm_up: Rc::new(Cell::new(warm_up)),
            ..self.clone()
        }
    }

    /// Turns of such reads.
    pub(crate) fn work(&self, read: Read) -> Work {
        let source = self.clone();
        let unit = match read.shape {
            Shape::Epochs => "MB/s",
            _ if read.device => "samples/s",
            _ => "op/s",
        };
        Work::pass(self.threads, unit, move || {
            let mut go = source.go.borrow_mut();
            if let Some(until) = source.warm_up.take() {
                go(&Read { until, ..read })?;
            }
            Ok(outcome(&go(&read)?, &read))
        })
    }
}

fn outcome(result: &RandomResult, read: &Read) -> Outcome {
    let (reads, misses) = (result.reads as f64, result.misses as f64);
    let bytes = result.reads * read.len as u64;
    let outcome = match read.shape {
        Shape::Epochs => Outcome::of_bytes(bytes, result.cost),
        _ => Outcome::plain(reads / result.cost.seconds).cost(result.cost, bytes),
    };
    Outcome {
        device: (read.device).then(|| misses * PAGE as f64 / bytes as f64),
        // A kernel that reads ahead reads more from the disk than was missed.
        hit_ratio: (!read.device).then(|| (1.0 - misses / reads).max(0.0)),
        ..outcome.latency(result.latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    const SHARDS: u64 = 3;

    fn trace(threads: usize) -> Trace {
        Trace::new(threads, SHARDS * SHARD, 9)
    }

    fn read(shape: Shape, len: usize) -> Read {
        let mut read = Read::new(shape, len, 600.0);
        read.until.reads = 10;
        read
    }

    #[test]
    fn traces_go_on_where_they_ended() {
        struct Noted(usize, Arc<Mutex<Vec<(usize, u64)>>>);
        impl Reader for Noted {
            fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
                assert_eq!((to.len(), positions[0] % 64), (64, 0));
                self.1.lock().unwrap().push((self.0, positions[0]));
                Ok(())
            }
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut readers: Vec<Box<dyn Reader>> = Vec::new();
        for who in 0..2 {
            readers.push(Box::new(Noted(who, Arc::clone(&seen))));
        }
        let (mut reads, read) = (Reads::new(&trace(2)), read(Shape::Uniform, 64));
        for _ in 0..2 {
            let done = reads.run(&mut readers, &read, || Ok(0)).unwrap();
            assert_eq!((done.reads, done.misses), (10, 0));
        }
        for who in 0..2 {
            let seen = seen.lock().unwrap();
            let places = seen
                .iter()
                .filter(|(by, _)| *by == who)
                .map(|(_, pos)| *pos);
            let mut same = Reads::new(&trace(2));
            assert!(places.eq((0..10).map(|_| same.0[who].next(&read))));
        }
    }

    #[test]
    fn an_epoch_has_each_piece_once_in_the_order_of_its_shard() {
        let (mut reads, read) = (Reads::new(&trace(1)), read(Shape::Epochs, PIECE));
        let pieces = SHARDS * SHARD / PIECE as u64;
        let mut orders = BTreeSet::new();
        for _ in 0..20 {
            let epoch: Vec<u64> = (0..pieces).map(|_| reads.0[0].next(&read)).collect();
            let of_shard = |at: &u64| at / SHARD;
            let order: Vec<u64> = epoch
                .chunk_by(|a, b| of_shard(a) == of_shard(b))
                .map(|of_one| {
                    assert!(of_one.is_sorted() && of_one.len() as u64 * SHARDS == pieces);
                    of_shard(&of_one[0])
                })
                .collect();
            assert_eq!(order.len() as u64, SHARDS);
            orders.insert(order);
            let all: BTreeSet<u64> = epoch.into_iter().collect();
            assert_eq!(all.len() as u64, pieces);
        }
        assert!(orders.len() > 1, "each epoch has the same order");
    }

    #[test]
    fn nine_of_ten_samples_are_hot() {
        let (mut reads, read) = (Reads::new(&trace(1)), read(Shape::Hot, PAGE));
        let (mut counts, n) = (BTreeMap::<u64, u64>::new(), 100_000);
        for _ in 0..n {
            let pos = reads.0[0].next(&read);
            assert!(pos < SHARDS * SHARD && pos.is_multiple_of(PAGE as u64));
            *counts.entry(pos).or_default() += 1;
        }
        let mut by_count: Vec<u64> = counts.values().copied().collect();
        by_count.sort_by_key(|count| std::cmp::Reverse(*count));
        let hot: u64 = by_count[..trace(1).pages as usize / 10].iter().sum();
        assert!((88_000..94_000).contains(&hot), "{hot} of {n}");
        // They are in all shards.
        let hottest = counts.iter().filter(|(_, count)| **count > 50);
        let shards: BTreeSet<u64> = hottest.map(|(pos, _)| pos / SHARD).collect();
        assert_eq!(shards.len() as u64, SHARDS);
    }
}
