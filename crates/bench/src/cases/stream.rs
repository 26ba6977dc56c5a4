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
//! | read | ours cached, uncached, uncached again, views; kernel buffered and `RWF_DONTCACHE`; `O_DIRECT` |
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

use foliocache::{Advice, IoOptions};
use foliocache_sys::Errno;
use foliocache_sys::fd;
use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

mod beside;

use super::{BUFFERED, FILE_PER_MEMORY, OURS, memory};
use crate::case::{Case, Figure, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::{PAGE, whole};
use crate::host::Host;
use crate::kernel::KernelSide;
use crate::place::{Buffer, Place, drop_from_kernel_cache};
use crate::ring::DirectReads;
use crate::settings::{Settings, Uses};
use crate::stats::median;
use crate::streams::{Access, REQUEST, Shape, Steps, Stream, Streamed, ThroughKernel, Time};

/// See the module.
pub(crate) struct Streams;

/// The file that is read and written.
const FILE: &str = "data";
/// That of the writer beside the one that is measured.
const BESIDE: &str = "data-beside";
/// The hot set.
const HOT: &str = "hot";

/// The bound is so many times the hot set.
const MEMORY_PER_HOT: u64 = 2;

const UNCACHED: &str = "foliocache uncached";
const VIEWS: &str = "foliocache views";
const UNCACHED_AGAIN: &str = "foliocache uncached again";
const DONT_CACHE: &str = "kernel RWF_DONTCACHE, cgroup";

/// Depths of an io_uring, and how they are called.
const DEPTHS: [(usize, &str); 4] = [
    (1, "O_DIRECT, io_uring, depth 1"),
    (4, "O_DIRECT, io_uring, depth 4"),
    (16, "O_DIRECT, io_uring, depth 16"),
    (64, "O_DIRECT, io_uring, depth 64"),
];

/// Turns of each depth before the fastest is known.
const TRIALS: usize = 3;

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
            false => Settings::bounded(5, 4.0, 256 << 20),
        };
        Settings {
            threads: 4,
            ..settings
        }
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
        let bed = Bed::new(disk, settings, memory, len)?;
        let make = |name, len| bed.place.make(name, len);
        make(BESIDE, len)?;
        make(HOT, memory / MEMORY_PER_HOT)?;
        bed.matches(&ON_DISK, &mut plan)?;
        plan.matches.push(bed.fairness());
        plan.matches.push(bed.hot_set());
        match Place::on_zram(settings, memory, len) {
            Ok(zram) => Bed::new(zram, settings, memory, len)?.matches(&ON_ZRAM, &mut plan)?,
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
    aa: &'static str,
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
    aa: "stream_aa",
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
    aa: "stream_aa_zram",
    flatness: RatioPlan::new("stream_flatness_zram", 0, 0),
    cpu: RatioPlan::new("stream_cpu_vs_kernel_buffered_zram", 0, 0),
    cpu_of_threads: "stream_cpu_threads_vs_kernel_buffered_zram",
    write_vs_buffered: RatioPlan::new("write_uncached_vs_buffered_zram", 0, 0),
    write_vs_kernel: "write_uncached_vs_kernel_buffered_zram",
    write_kernels: "write_kernel_dontcache_vs_kernel_buffered_zram",
};

/// What all passes over one place share. Fields go in this order: the kernel's side leaves its cgroup before the
/// place's guard takes that away.
struct Bed {
    kernel: RefCell<KernelSide>,
    place: Place,
    memory: u64,
    /// Timed turns of several threads.
    shape: Shape,
}

/// Who reads or writes.
#[derive(Clone, Copy)]
enum By {
    Ours {
        uncached: bool,
    },
    /// Ours, without a copy.
    Views,
    Kernel {
        dont_cache: bool,
    },
    Direct {
        depth: usize,
    },
}

impl Bed {
    fn new(
        place: Place,
        settings: &Settings,
        memory: u64,
        len: u64,
    ) -> Result<Rc<Self>, BenchError> {
        let kernel = KernelSide::start(&settings.helper, place.guard(), memory, None)?;
        place.make(FILE, len)?;
        let time = Some(Time {
            seconds: settings.seconds,
            interval: settings.interval(),
        });
        let threads = settings.threads;
        Ok(Rc::new(Self {
            kernel: RefCell::new(kernel),
            place,
            memory,
            shape: Shape { threads, len, time },
        }))
    }

    /// A turn of the bed's shape, of so many threads; None: once through the file, and durable.
    fn turn(self: &Rc<Self>, by: By, threads: usize, write: bool) -> Work {
        let time = if write { None } else { self.shape.time };
        let shape = Shape {
            threads,
            time,
            ..self.shape
        };
        pass(
            threads,
            Turn {
                by,
                write,
                shape,
                ready: Vec::new(),
                bed: Rc::clone(self),
            },
        )
    }

    /// Reads by several threads and by one, and writes.
    fn matches(self: &Rc<Self>, names: &Names, plan: &mut Plan) -> Result<(), BenchError> {
        let fastest = self.fastest_depth();
        let fastest = fastest.map_err(|error| BenchError::setup("O_DIRECT by io_uring", error))?;
        let dont_cache = self.knows_dont_cache();
        let dont_cache = dont_cache.map_err(|error| BenchError::setup(DONT_CACHE, error))?;
        plan.notes.push(format!(
            "O_DIRECT on {}: fastest with {} requests of each thread in flight",
            names.place, fastest.0
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
        let threads = self.shape.threads;
        let kernels: &[(&str, bool)] = match dont_cache {
            true => &[(BUFFERED, false), (DONT_CACHE, true)],
            false => &[(BUFFERED, false)],
        };

        let mut read = Match::default();
        let mut add = |variant, by| read.add(names.read, variant, self.turn(by, threads, false));
        let cached = add(OURS, By::Ours { uncached: false });
        let uncached = add(UNCACHED, By::Ours { uncached: true });
        let again = add(UNCACHED_AGAIN, By::Ours { uncached: true });
        let views = add(VIEWS, By::Views);
        let direct1 = add("O_DIRECT, depth 1", By::Direct { depth: 0 });
        let (depth, variant) = fastest;
        let direct = add(variant, By::Direct { depth });
        let kernels_at = kernels.iter().map(|&(variant, dont_cache)| {
            let by = By::Kernel { dont_cache };
            add(variant, by)
        });
        let kernels_at: Vec<usize> = kernels_at.collect();
        let of = |plan: RatioPlan, to| plan.between(uncached, to);
        let new = RatioPlan::new;
        read.ratios = vec![
            of(names.vs_fastest, direct),
            of(names.vs_direct1, direct1),
            new(names.vs_cached, uncached, cached),
            new(names.vs_buffered, uncached, kernels_at[0]),
            new(names.aa, again, uncached),
            names.views.between(views, direct1),
            of(names.flatness, direct).of_figure(Figure::Flatness),
            new(names.cpu_of_threads, uncached, kernels_at[0]).of_figure(Figure::Cpu),
        ];
        if let Some(&kernels) = kernels_at.get(1) {
            read.ratios
                .push(new(names.vs_dont_cache, uncached, kernels));
        }

        let mut one = Match::default();
        let mut add = |variant, by| one.add(names.read, variant, self.turn(by, 1, false));
        let uncached = add(UNCACHED, By::Ours { uncached: true });
        let kernels_one = add(BUFFERED, By::Kernel { dont_cache: false });
        let cpu = names.cpu.between(uncached, kernels_one);
        one.ratios = vec![cpu.of_figure(Figure::Cpu)];

        let mut write = Match::default();
        let mut add = |variant, by| write.add(names.write, variant, self.turn(by, threads, true));
        let cached = add(OURS, By::Ours { uncached: false });
        let uncached = add(UNCACHED, By::Ours { uncached: true });
        let kernels_at = kernels.iter().map(|&(variant, dont_cache)| {
            let by = By::Kernel { dont_cache };
            add(variant, by)
        });
        let kernels_at: Vec<usize> = kernels_at.collect();
        write.ratios = vec![
            names.write_vs_buffered.between(uncached, cached),
            new(names.write_vs_kernel, uncached, kernels_at[0]),
        ];
        if let [buffered, dont_cache] = kernels_at[..] {
            write
                .ratios
                .push(new(names.write_kernels, dont_cache, buffered));
        }
        plan.matches.extend([read, one, write]);
        Ok(())
    }

    /// The depth at which `O_DIRECT` is fastest.
    fn fastest_depth(&self) -> io::Result<(usize, &'static str)> {
        let shape = Shape {
            time: self.shape.time.map(|time| Time {
                seconds: time.seconds.min(1.0),
                ..time
            }),
            ..self.shape
        };
        let mut found = DEPTHS.map(|_| Vec::new());
        for _ in 0..TRIALS {
            for ((depth, _), rates) in DEPTHS.iter().zip(&mut found) {
                let mut streams = self.streams(By::Direct { depth: *depth }, shape, false)?;
                let streamed = shape.run(&mut streams, || Ok(()))?;
                rates.push(streamed.bytes() as f64 / streamed.cost.seconds);
            }
        }
        let rated = DEPTHS.iter().zip(found.map(|rates| median(&rates)));
        let fastest = rated.max_by(|(_, a), (_, b)| a.total_cmp(b));
        Ok(*fastest.expect("there are depths").0)
    }

    fn knows_dont_cache(&self) -> io::Result<bool> {
        let file = fs::File::open(self.place.path(FILE))?;
        match fd::pread_dontcache(file.as_fd(), 0, Buffer::random(PAGE, 0).bytes()) {
            Ok(_) => Ok(true),
            Err(Errno::EOPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Streams over the file in this process.
    fn streams(&self, by: By, shape: Shape, write: bool) -> io::Result<Vec<Box<dyn Stream>>> {
        let path = self.place.path(FILE);
        let stream = |number: u64| -> io::Result<Box<dyn Stream>> {
            Ok(match by {
                By::Ours { uncached } => self.ours(FILE, uncached, write, number, 0)?,
                By::Views => self.views()?,
                By::Direct { depth: 0 } => Box::new(ThroughKernel::direct(&path, number)?),
                By::Direct { depth } => Box::new(DirectReads::open(&path, depth, REQUEST)?),
                By::Kernel { .. } => return Err(io::ErrorKind::InvalidInput.into()),
            })
        };
        (0..shape.threads as u64).map(stream).collect()
    }

    /// A stream of ours. The file begins at `start` of its positions.
    fn ours(
        &self,
        name: &str,
        uncached: bool,
        write: bool,
        number: u64,
        start: u64,
    ) -> io::Result<Box<dyn Stream>> {
        let file = self.place.ours(name)?;
        let mut buffer = Buffer::random(REQUEST, number);
        let options = IoOptions::new().uncached(uncached);
        Ok(match write {
            false => Box::new(Steps(move |pos| {
                let read = file.read_at_with(buffer.bytes(), pos - start, options)?;
                whole(read, REQUEST)
            })),
            true => Box::new(Steps(move |pos| {
                let written = file.write_at_with(buffer.bytes(), pos - start, options)?;
                whole(written, REQUEST)
            })),
        })
    }

    /// A stream of views of the file.
    fn views(&self) -> io::Result<Box<dyn Stream>> {
        let file = self.place.ours(FILE)?;
        Ok(Box::new(Steps(move |pos| {
            let (mut at, end) = (pos, pos + REQUEST as u64);
            while at < end {
                let view = file.view(at..end)?;
                black_box(view.first());
                match view.len() as u64 {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    len => at += len,
                }
            }
            Ok(())
        })))
    }

    /// A file leaves the kernel's cache and ours; what was written becomes durable before.
    fn chill(&self, name: &str) -> io::Result<()> {
        let file = self.place.ours(name)?;
        file.sync_data()?;
        file.advise(Advice::DontNeed, ..)?;
        drop_from_kernel_cache(&self.place.path(name))
    }
}

fn pass(threads: usize, pass: impl Pass + 'static) -> Work {
    Work::pass(threads, "MB/s", pass)
}

/// Of the bytes of all streams.
fn outcome(streamed: Streamed) -> Outcome {
    let bytes = streamed.bytes();
    Outcome {
        cost: Some((streamed.cost, bytes)),
        series: streamed.series,
        ..Outcome::plain(bytes as f64 / 1e6 / streamed.cost.seconds)
    }
}

/// A turn of streams over the file. The streams' files go before the place.
struct Turn {
    by: By,
    write: bool,
    shape: Shape,
    ready: Vec<Box<dyn Stream>>,
    bed: Rc<Bed>,
}

impl Pass for Turn {
    fn prepare(&mut self) -> io::Result<()> {
        self.bed.chill(FILE)?;
        self.ready = match self.by {
            By::Kernel { .. } => Vec::new(),
            by => self.bed.streams(by, self.shape, self.write)?,
        };
        Ok(())
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let (bed, write) = (&self.bed, self.write);
        let mut ready = std::mem::take(&mut self.ready);
        let streamed = match self.by {
            By::Kernel { dont_cache } => {
                let access = Access { write, dont_cache };
                let path = bed.place.path(FILE);
                (bed.kernel.borrow_mut()).streams(&path, self.shape, access)?
            }
            _ if write => {
                let file = bed.place.ours(FILE)?;
                self.shape.run(&mut ready, || Ok(file.sync_data()?))?
            }
            _ => self.shape.run(&mut ready, || Ok(()))?,
        };
        Ok(outcome(streamed))
    }
}
