//! What a loader of training samples reads, in a process whose memory a cgroup bounds: ours, the kernel's, and `O_DIRECT`.
//!
//! # Model
//!
//! A set of shards, files of one size, that is larger than the memory. A sample is a page of one of them. A loader asks for 64
//! samples at once, or passes over the whole set: all shards in an order at random, each from front to back, and
//! then in another order.
//!
//! The process makes its cache, its mappings or its rings in the cgroup, so their memory counts there. What it had read
//! from the device is what the kernel says of the process.

use foliocache::{Cache, Directory, DirectoryOptions, File, ReadRequest};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cached::MANY;
use crate::cost::Meter;
use crate::files::{PAGE, whole};
use crate::kernel::read_from_disk;
use crate::latency::Times;
use crate::mapped::{Kernels, copy};
use crate::passes::{RandomResult, Until, filled};
use crate::place::Random;
use crate::ring::{DirectRing, Files, ReadRing};
use crate::streams::Stream;

/// Bytes of a shard.
pub(crate) const SHARD: u64 = 4 << 20;

/// Bytes of a request of a pass over the set.
const PIECE: usize = 256 << 10;

/// Of the samples.
const SEED: u64 = 45;

/// A prime: its multiples scatter over any number of samples that it does not divide.
const SCATTER: u64 = 1_000_003;

/// The files of a loader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) folder: PathBuf,
    /// With which their names begin.
    pub(crate) prefix: String,
    pub(crate) shards: u64,
    /// The bound of our cache.
    pub(crate) bound: u64,
}

impl Set {
    /// The name of a shard.
    pub(crate) fn name(&self, shard: u64) -> String {
        format!("{}-{shard:04}", self.prefix)
    }

    fn paths(&self) -> Vec<PathBuf> {
        let names = (0..self.shards).map(|shard| self.name(shard));
        names.map(|name| self.folder.join(name)).collect()
    }

    fn samples(&self) -> u64 {
        self.shards * SHARD / PAGE as u64
    }
}

/// How the set is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// Through a cache of ours; samples in batches of 64.
    Ours,
    /// Past the kernel's cache, 64 requests at once, all of them waited for.
    DirectBatches,
    /// Past the kernel's cache, 64 requests under way all the time.
    DirectDepth,
    /// Through a mapping, which knows whether reads are at random.
    Mapping,
    /// By pread(2).
    Pread,
}

/// Which samples are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shape {
    /// Any, all alike.
    Uniform,
    /// Nine of ten are of a tenth of the set, which lies scattered over it.
    Hot,
    /// Any of the first shards, which half of the bound holds.
    Cached,
    /// All, shard by shard.
    Epochs,
}

/// What the process is told: to go on loading.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) set: Set,
    pub(crate) way: Way,
    pub(crate) shape: Shape,
    pub(crate) until: Until,
}

/// The loader, which goes on where it was.
pub(crate) struct Loader {
    set: Set,
    reader: Box<dyn Reader>,
    random: Random,
    epochs: Epochs,
}

impl Loader {
    pub(crate) fn new(load: &Load) -> io::Result<Self> {
        let (set, paths) = (load.set.clone(), load.set.paths());
        let reader: Box<dyn Reader> = match load.way {
            Way::Ours => Box::new(Ours::open(&set)?),
            Way::DirectBatches => {
                let files = Files::open(&paths, SHARD, true)?;
                Box::new(ReadRing::over(files, MANY, true)?)
            }
            Way::DirectDepth => Box::new(Depth {
                paths,
                ring: None,
                times: Times::new(),
            }),
            Way::Mapping => {
                let open = |advised| {
                    let mapped = paths.iter().map(|path| Kernels::open(path, advised));
                    mapped.collect::<io::Result<Vec<_>>>()
                };
                Box::new(Mappings {
                    random: open(true)?,
                    in_order: open(false)?,
                })
            }
            Way::Pread => {
                let files = paths.iter().map(fs::File::open);
                Box::new(Calls(files.collect::<io::Result<_>>()?))
            }
        };
        Ok(Self {
            set,
            reader,
            random: Random(SEED),
            epochs: Epochs {
                order: Vec::new(),
                at: 0,
            },
        })
    }

    /// Goes on until then. The time of a batch is that of all of its samples.
    pub(crate) fn run(&mut self, load: &Load) -> io::Result<RandomResult> {
        let (shape, until) = (load.shape, load.until);
        let (len, at_once) = match shape {
            Shape::Epochs => (PIECE, 1),
            _ => (PAGE, MANY),
        };
        let mut to = vec![0; at_once * len];
        let mut positions = vec![0; at_once];
        let (mut times, mut reads) = (Times::new(), 0);
        let before = read_from_disk()?;
        let meter = Meter::start();
        let deadline = Instant::now() + Duration::from_secs_f64(until.seconds);
        let mut now = Instant::now();
        while reads < until.reads && (reads == 0 || now < deadline) {
            positions.fill_with(|| self.next(shape));
            self.reader.read(&positions, &mut to)?;
            reads += at_once as u64;
            let end = Instant::now();
            times.add(end - now);
            now = end;
        }
        self.reader.end(&mut times)?;
        Ok(RandomResult {
            reads,
            cost: meter.stop(),
            latency: Times::drain([&mut times].into_iter()),
            misses: read_from_disk()?.saturating_sub(before),
        })
    }

    /// Where the next sample is, or the next piece.
    fn next(&mut self, shape: Shape) -> u64 {
        let samples = self.set.samples();
        let random = &mut self.random;
        let mut below = |end: u64| random.below(end as usize) as u64;
        let sample = match shape {
            Shape::Epochs => return self.epochs.next(self.set.shards, random),
            Shape::Uniform => below(samples),
            Shape::Cached => below((self.set.bound / 2 / PAGE as u64).min(samples)),
            Shape::Hot => {
                let number = match below(10) {
                    0 => below(samples),
                    _ => below(samples / 10),
                };
                number * SCATTER % samples
            }
        };
        sample * PAGE as u64
    }
}

/// Bytes of a request of this shape.
pub(crate) fn request(shape: Shape) -> usize {
    match shape {
        Shape::Epochs => PIECE,
        _ => PAGE,
    }
}

/// Passes over the set.
struct Epochs {
    /// The shards of this pass.
    order: Vec<u64>,
    /// The pieces of it that were read.
    at: u64,
}

impl Epochs {
    fn next(&mut self, shards: u64, random: &mut Random) -> u64 {
        const PIECES: u64 = SHARD / PIECE as u64;
        if self.at == self.order.len() as u64 * PIECES {
            self.order = (0..shards).collect();
            random.shuffle(&mut self.order);
            self.at = 0;
        }
        let shard = self.order[(self.at / PIECES) as usize];
        let piece = self.at % PIECES;
        self.at += 1;
        shard * SHARD + piece * PIECE as u64
    }
}

/// One way to read.
trait Reader {
    /// Reads from each position into its part of `to`; all parts have one length.
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()>;

    /// Waits for what is under way, and says how long each took if that is not known yet.
    fn end(&mut self, _times: &mut Times) -> io::Result<()> {
        Ok(())
    }
}

/// The parts of a buffer, each with its shard and the position in it.
fn parts<'a>(
    positions: &'a [u64],
    to: &'a mut [u8],
) -> impl Iterator<Item = (usize, u64, &'a mut [u8])> {
    let parts = to.chunks_mut(to.len() / positions.len());
    let places = positions
        .iter()
        .map(|pos| ((pos / SHARD) as usize, pos % SHARD));
    let all = places.zip(parts);
    all.map(|((shard, pos), part)| (shard, pos, part))
}

/// Ours. The files go before their directory, and that before its cache.
struct Ours {
    files: Vec<File>,
    _directory: Directory,
    _cache: Cache,
}

impl Ours {
    fn open(set: &Set) -> io::Result<Self> {
        let cache = Cache::builder().memory(set.bound).build()?;
        // Others have the directory open.
        let options = DirectoryOptions::new().read_only(true);
        let directory = cache.directory_with(&set.folder, options)?;
        let files = (0..set.shards).map(|shard| directory.open(set.name(shard)));
        Ok(Self {
            files: files.collect::<foliocache::Result<_>>()?,
            _directory: directory,
            _cache: cache,
        })
    }
}

impl Reader for Ours {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        if positions.len() == 1 {
            for (shard, pos, part) in parts(positions, to) {
                let len = part.len();
                whole(self.files[shard].read_at(part, pos)?, len)?;
            }
            return Ok(());
        }
        let len = to.len() / positions.len();
        let requests = parts(positions, to);
        let mut requests: Vec<ReadRequest<'_>> = requests
            .map(|(shard, pos, part)| self.files[shard].read_request(part, pos))
            .collect();
        File::read_batch(&mut requests)?;
        for request in &requests {
            whole(request.result()?, len)?;
        }
        Ok(())
    }
}

impl Reader for ReadRing {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        ReadRing::read(self, positions, to.len() / positions.len())
    }
}

/// A ring whose depth stays full from batch to batch.
struct Depth {
    paths: Vec<PathBuf>,
    /// With the bytes of its requests.
    ring: Option<(usize, DirectRing)>,
    times: Times,
}

impl Reader for Depth {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        let len = to.len() / positions.len();
        let ring = match &mut self.ring {
            Some((of, ring)) if *of == len => ring,
            other => {
                let files = Files::open(&self.paths, SHARD, true)?;
                let ring = DirectRing::over(files, MANY, len, false)?;
                &mut other.insert((len, ring)).1
            }
        };
        for &pos in positions {
            ring.step(pos)?;
        }
        Ok(())
    }

    fn end(&mut self, times: &mut Times) -> io::Result<()> {
        if let Some((_, ring)) = &mut self.ring {
            ring.end()?;
            // Of each request. What is forgotten is how long it took to submit them.
            std::mem::swap(&mut self.times, &mut ring.times);
            std::mem::swap(&mut self.times, times);
            self.times = Times::new();
        }
        Ok(())
    }
}

/// The kernel's mappings: advised that reads are at random, and not.
struct Mappings {
    random: Vec<Kernels>,
    in_order: Vec<Kernels>,
}

impl Reader for Mappings {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        let mappings = match positions.len() {
            1 => &self.in_order,
            _ => &self.random,
        };
        let mut parts = parts(positions, to);
        parts.try_for_each(|(shard, pos, part)| copy(&mappings[shard], part, pos))
    }
}

/// The kernel's calls.
struct Calls(Vec<fs::File>);

impl Reader for Calls {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        let mut parts = parts(positions, to);
        parts.try_for_each(|(shard, pos, part)| {
            let len = part.len();
            filled(self.0[shard].read_at(part, pos), len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SHARDS: u64 = 3;

    fn loader() -> Loader {
        struct Nothing;
        impl Reader for Nothing {
            fn read(&mut self, _: &[u64], _: &mut [u8]) -> io::Result<()> {
                Ok(())
            }
        }
        Loader {
            set: Set {
                folder: PathBuf::new(),
                prefix: String::new(),
                shards: SHARDS,
                bound: 1 << 20,
            },
            reader: Box::new(Nothing),
            random: Random(1),
            epochs: Epochs {
                order: Vec::new(),
                at: 0,
            },
        }
    }

    #[test]
    fn an_epoch_has_each_piece_once_in_the_order_of_its_shard() {
        let mut loader = loader();
        let pieces = SHARDS * SHARD / PIECE as u64;
        let mut orders = BTreeSet::new();
        for _ in 0..20 {
            let epoch: Vec<u64> = (0..pieces).map(|_| loader.next(Shape::Epochs)).collect();
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
        let mut loader = loader();
        let (mut counts, reads) = (BTreeMap::<u64, u64>::new(), 100_000);
        for _ in 0..reads {
            let pos = loader.next(Shape::Hot);
            assert!(pos < SHARDS * SHARD && pos.is_multiple_of(PAGE as u64));
            *counts.entry(pos).or_default() += 1;
        }
        let mut by_count: Vec<u64> = counts.values().copied().collect();
        by_count.sort_by_key(|count| std::cmp::Reverse(*count));
        let hot: u64 = by_count[..loader.set.samples() as usize / 10].iter().sum();
        assert!((88_000..94_000).contains(&hot), "{hot} of {reads}");
        // They are in all shards.
        let hottest = counts.iter().filter(|(_, count)| **count > 50);
        let shards: BTreeSet<u64> = hottest.map(|(pos, _)| pos / SHARD).collect();
        assert_eq!(shards.len() as u64, SHARDS);
    }

    #[test]
    fn every_way_reads_what_the_shards_hold() {
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("foliocache-loader-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let set = Set {
            folder: folder.clone(),
            prefix: "shard".to_owned(),
            shards: SHARDS,
            bound: 16 << 20,
        };
        let byte = |pos: u64| (pos / PAGE as u64 * 7 + pos / SHARD) as u8;
        for shard in 0..SHARDS {
            let bytes: Vec<u8> = (0..SHARD).map(|pos| byte(shard * SHARD + pos)).collect();
            fs::write(folder.join(set.name(shard)), bytes).unwrap();
        }
        for way in [Way::Ours, Way::Mapping, Way::Pread] {
            let load = |shape| Load {
                set: set.clone(),
                way,
                shape,
                until: Until {
                    seconds: 600.0,
                    reads: 128,
                },
            };
            let mut loader = Loader::new(&load(Shape::Uniform)).unwrap();
            for len in [PAGE, PIECE] {
                let positions: Vec<u64> = (0..2 * SHARDS)
                    .map(|at| at * SHARD / 2 + at * len as u64)
                    .collect();
                let positions = match len {
                    PAGE => &positions[..],
                    _ => &positions[2..3],
                };
                let mut to = vec![0; positions.len() * len];
                loader.reader.read(positions, &mut to).unwrap();
                for (&pos, part) in positions.iter().zip(to.chunks(len)) {
                    let right = |(at, found): (usize, &u8)| *found == byte(pos + at as u64);
                    assert!(part.iter().enumerate().all(right), "{way:?} at {pos}");
                }
            }
            let done = loader.run(&load(Shape::Hot)).unwrap();
            assert_eq!(done.reads, 128, "{way:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
