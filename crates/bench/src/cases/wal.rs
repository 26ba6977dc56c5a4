//! Logs: records that are durable before the next one is written. Default settings, over a directory of the local disk, with
//! the usual soft limit of 1,024 descriptors.
//!
//! # Model
//!
//! | match | what a thread does, over and over |
//! |---|---|
//! | append | writes a record of 100 B, 4 KiB or 16 KiB at the end of a file that grows, `fdatasync` |
//! | group | the same with 4 KiB by four threads on one file: each takes the next place |
//! | overwrite | writes 4 KiB at a random place of a file that is larger than the processor's caches, `fdatasync` |
//!
//! Beside it the kernel's buffered calls, and `O_DIRECT` with `O_DSYNC`; there a record of 100 B is a write of the last
//! block. Each turn of an append begins with an empty file. Nothing else is on its way to the disk then. A file that is
//! overwritten stays, and both its copies are in memory.

use foliocache::{Cache, Directory, File};
use foliocache_sys::fd::{self, OFlags};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::create::{Ours, USUAL_LIMIT};
use super::{DIRFS, KERNEL};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::latency::Times;
use crate::place::{Buffer, Folder, MIB, Random, check_room};
use crate::ratio::Target;
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Wal;

const DIRECT: &str = "kernel O_DIRECT, O_DSYNC";

/// Threads of a group.
const GROUP: usize = 4;

/// The file that is overwritten takes this part of the memory.
const MEMORY_PER_FILE: u64 = 4;

/// Bytes that a second of appends may take, at most: for the room that is asked for.
const PER_SECOND: f64 = 500e6;

impl Case for Wal {
    fn name(&self) -> &'static str {
        "wal"
    }

    fn about(&self) -> &'static str {
        "records of a log, each durable before the next: appended by one thread and by four, overwritten"
    }

    fn settings(&self, quick: bool) -> Settings {
        match quick {
            true => Settings::bounded(6, 0.1, 256 << 20),
            false => Settings::bounded(12, 0.4, 1 << 30),
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 20 } else { 120 }
    }

    fn uses(&self) -> Uses {
        Uses::FILES
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = super::memory(settings, self)?;
        let folder = Folder::on_disk(settings)?;
        let len = memory / MEMORY_PER_FILE;
        let room = 4 * len + (4.0 * PER_SECOND * settings.seconds) as u64;
        check_room(folder.path(), room, 16)?;
        let failed = |error| BenchError::setup("the file of a log", error);
        let side = Ours {
            memory,
            descriptors: Some(USUAL_LIMIT),
        };
        let (directory, cache) = side.open(folder.path()).map_err(failed)?;
        let bed = Arc::new(Bed {
            directory,
            _cache: cache,
            made: AtomicU64::new(0),
            seconds: Duration::from_secs_f64(settings.seconds),
            folder,
        });
        let mut plan = Plan {
            place: Some(bed.folder.describe()),
            ..Plan::default()
        };
        for shape in &SHAPES {
            let mut one = Match::default();
            for (variant, by) in SIDES {
                let pass = Log {
                    bed: bed.clone(),
                    shape,
                    by,
                    len,
                    file: None,
                    times: (0..shape.threads)
                        .map(|_| Mutex::new(Times::new()))
                        .collect(),
                };
                one.contestants.push(Contestant {
                    name: shape.name,
                    variant,
                    work: Work::pass(shape.threads, "op/s", pass),
                });
            }
            let mut vs_kernel = RatioPlan::new(shape.vs_kernel, 0, 1);
            vs_kernel.target = shape.target;
            one.ratios = vec![
                vs_kernel,
                RatioPlan::new(shape.p99_vs_kernel, 0, 1).of_p99(),
                RatioPlan::new(shape.vs_direct, 0, 2),
            ];
            plan.matches.push(one);
        }
        Ok(plan)
    }
}

/// Who writes, in the order of the turns.
const SIDES: [(&str, By); 3] = [
    (DIRFS, By::Ours),
    (KERNEL, By::Kernel),
    (DIRECT, By::Direct),
];

#[derive(Clone, Copy, PartialEq)]
enum By {
    Ours,
    Kernel,
    Direct,
}

/// What is written, and what its ratios are called.
struct Shape {
    name: &'static str,
    record: usize,
    threads: usize,
    overwrite: bool,
    vs_kernel: &'static str,
    target: Option<Target>,
    p99_vs_kernel: &'static str,
    vs_direct: &'static str,
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "append 100 B, fdatasync",
        record: 100,
        threads: 1,
        overwrite: false,
        vs_kernel: "wal_append100_vs_kernel",
        target: Some(Target::AtLeast(0.95)),
        p99_vs_kernel: "wal_append100_p99_vs_kernel",
        vs_direct: "wal_append100_vs_direct",
    },
    Shape {
        name: "append 4 KiB, fdatasync",
        record: 4 << 10,
        threads: 1,
        overwrite: false,
        vs_kernel: "wal_append4k_vs_kernel",
        target: Some(Target::AtLeast(1.0)),
        p99_vs_kernel: "wal_append4k_p99_vs_kernel",
        vs_direct: "wal_append4k_vs_direct",
    },
    Shape {
        name: "append 16 KiB, fdatasync",
        record: 16 << 10,
        threads: 1,
        overwrite: false,
        vs_kernel: "wal_append16k_vs_kernel",
        target: None,
        p99_vs_kernel: "wal_append16k_p99_vs_kernel",
        vs_direct: "wal_append16k_vs_direct",
    },
    Shape {
        name: "append 4 KiB, fdatasync, one file",
        record: 4 << 10,
        threads: GROUP,
        overwrite: false,
        vs_kernel: "wal_group4_vs_kernel",
        target: Some(Target::AtLeast(1.0)),
        p99_vs_kernel: "wal_group4_p99_vs_kernel",
        vs_direct: "wal_group4_vs_direct",
    },
    Shape {
        name: "overwrite 4 KiB at random, fdatasync",
        record: 4 << 10,
        threads: 1,
        overwrite: true,
        vs_kernel: "wal_overwrite_vs_kernel",
        target: Some(Target::AtLeast(1.0)),
        p99_vs_kernel: "wal_overwrite_p99_vs_kernel",
        vs_direct: "wal_overwrite_vs_direct",
    },
];

/// What all logs share. Fields go in this order: the cache lets its files go before the folder is taken away.
struct Bed {
    directory: Directory,
    _cache: Cache,
    /// Files made so far: each has a name of its own.
    made: AtomicU64,
    seconds: Duration,
    folder: Folder,
}

/// A log that is open.
enum Open {
    Ours(Box<File>),
    Kernel(fs::File),
}

impl Open {
    fn write(&self, record: &[u8], pos: u64) -> io::Result<()> {
        match self {
            Self::Ours(file) => Ok(file.write_all_at(record, pos)?),
            Self::Kernel(file) => file.write_all_at(record, pos),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Self::Ours(file) => Ok(file.sync_data()?),
            Self::Kernel(file) => file.sync_data(),
        }
    }
}

/// One side's log.
struct Log {
    bed: Arc<Bed>,
    shape: &'static Shape,
    by: By,
    /// Bytes of a file that is overwritten.
    len: u64,
    file: Option<(Open, PathBuf)>,
    /// How long the records of each thread took.
    times: Vec<Mutex<Times>>,
}

impl Log {
    fn open(&self, path: &Path) -> io::Result<Open> {
        Ok(match self.by {
            By::Ours => {
                let mut options = self.bed.directory.open_options();
                let name = path.file_name().expect("it has one");
                let file = options.read(true).write(true).create(true).open(name)?;
                Open::Ours(Box::new(file))
            }
            By::Kernel | By::Direct => {
                let direct = match self.by {
                    By::Direct => OFlags::DIRECT | OFlags::DSYNC,
                    By::Ours | By::Kernel => OFlags::empty(),
                };
                let flags = OFlags::RDWR | OFlags::CREATE | direct;
                Open::Kernel(fd::open(path, flags, 0o600)?.into())
            }
        })
    }

    /// Writes a file to be overwritten, through whoever overwrites it.
    fn fill(&self, file: &Open) -> io::Result<()> {
        let mut buffer = Buffer::random(MIB, self.len);
        for pos in (0..self.len).step_by(MIB) {
            let part = MIB.min((self.len - pos) as usize);
            file.write(&buffer.bytes()[..part], pos)?;
        }
        file.sync()
    }

    /// What one thread does until the time is over; returns its records.
    fn work(&self, thread: usize, start: Instant, end: &AtomicU64) -> io::Result<u64> {
        let file = &self.file.as_ref().expect("prepared").0;
        let mut times = self.times[thread].lock().expect("no panic");
        let mut random = Random(end.load(Ordering::Relaxed) + thread as u64);
        let record = self.shape.record;
        let mut buffer = Buffer::random(record.max(PAGE), thread as u64);
        let mut records = 0;
        loop {
            let begun = Instant::now();
            if begun - start >= self.bed.seconds {
                return Ok(records);
            }
            // Relaxed: a place that nobody else has, no more.
            let mut pos = match self.shape.overwrite {
                false => end.fetch_add(record as u64, Ordering::Relaxed),
                true => (random.below(self.len as usize / record) * record) as u64,
            };
            let mut len = record;
            if self.by == By::Direct {
                (pos, len) = (pos - pos % PAGE as u64, len.max(PAGE));
            }
            file.write(&buffer.bytes()[..len], pos)?;
            if self.by != By::Direct {
                file.sync()?;
            }
            times.add(begun.elapsed());
            records += 1;
        }
    }
}

impl Pass for Log {
    fn prepare(&mut self) -> io::Result<()> {
        if self.shape.overwrite && self.file.is_some() {
            return Ok(());
        }
        if let Some((file, path)) = self.file.take() {
            drop(file);
            fs::remove_file(path)?;
        }
        // Relaxed: a number that nobody else has, no more.
        let number = self.bed.made.fetch_add(1, Ordering::Relaxed);
        let path = self.bed.folder.path().join(number.to_string());
        let file = self.open(&path)?;
        if self.shape.overwrite {
            self.fill(&file)?;
        }
        // Nothing of it is on its way while it is measured.
        fd::syncfs(fs::File::open(self.bed.folder.path())?.as_fd())?;
        self.file = Some((file, path));
        Ok(())
    }

    fn run(&mut self) -> io::Result<Outcome> {
        // An overwrite's threads draw other places each time.
        let end = AtomicU64::new(match self.shape.overwrite {
            true => self.bed.made.fetch_add(1, Ordering::Relaxed),
            false => 0,
        });
        let start = Instant::now();
        let log = &*self;
        let records: u64 = thread::scope(|scope| {
            let end = &end;
            let others: Vec<_> = (1..log.shape.threads)
                .map(|thread| scope.spawn(move || log.work(thread, start, end)))
                .collect();
            let first = log.work(0, start, end);
            let others = others
                .into_iter()
                .map(|other| other.join().expect("no panic"));
            others.chain([first]).sum::<io::Result<u64>>()
        })?;
        let value = records as f64 / start.elapsed().as_secs_f64();
        let times = self.times.iter_mut();
        let times = times.map(|times| times.get_mut().expect("no panic"));
        Ok(Outcome {
            latency: Some(Times::drain(times)),
            ..Outcome::plain(value)
        })
    }
}
