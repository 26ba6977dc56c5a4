//! The kernel's side of a comparison: a process whose page cache a memory cgroup bounds.
//!
//! # Model
//!
//! ```text
//!  case ──orders, a line each──▶ process in a memory cgroup of the bound's size
//!       ◀──answers, a line each──   reads files through the kernel's cache
//! ```
//!
//! Pages are charged to the cgroup of the process that read them first, so it has to be a process
//! of its own, which joins the cgroup before it opens a file, and the files have to leave the cache
//! before that. What it needs for itself, buffers and traces, it takes before it joins.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::BenchError;
use crate::files::PAGE;
use crate::guard::{Guard, Thing, command, tell};
use crate::loader::{Load, Loader};
use crate::mapped::{Kernels, page_faults, read};
use crate::passes::{RandomReads, RandomResult, Trace, Until, filled};
use crate::ring::ReadRing;
use crate::streams::{Access, Shape, Stream, Streamed, ThroughKernel};

/// The argument that makes a kernel's side of a process.
pub(crate) const ROLE: &str = "kernel";

/// What the process is told.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Take the memory for random reads.
    Trace(Trace),
    /// Go on reading by the trace.
    Random {
        path: PathBuf,
        way: Way,
        /// Bytes of a read.
        len: usize,
        until: Until,
    },
    /// Read or write streams.
    Streams {
        path: PathBuf,
        shape: Shape,
        access: Access,
    },
    /// Go on loading samples.
    Load(Load),
}

/// How random reads are done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Way {
    /// By pread(2).
    Call,
    /// Through a mapping; with the advice that they are at random, or without.
    Mapping { advised: bool },
    /// By a ring, so many reads at once, through the cache or past it.
    Ring { at_once: usize, direct: bool },
}

/// What it answers; the text is of an error.
type Answer = Result<Done, String>;

#[derive(Debug, Serialize, Deserialize)]
enum Done {
    Ready,
    Random(RandomResult),
    Streams(Streamed),
}

/// The process, from outside.
pub(crate) struct KernelSide {
    child: Child,
    answers: BufReader<ChildStdout>,
    /// The cgroup goes after the process.
    _guard: Guard,
}

impl KernelSide {
    /// Starts it, has it take the memory that it needs for random reads, and moves it into a cgroup of
    /// `memory` bytes.
    ///
    /// # Errors
    /// There are no memory cgroups, or they may not be used.
    pub(crate) fn start(
        helper: &[OsString],
        guard: &Guard,
        memory: u64,
        trace: Option<Trace>,
    ) -> Result<Self, BenchError> {
        let cannot = |error| BenchError::setup("the kernel's side of the comparison", error);
        let group = cgroup(guard, memory)?;
        let mut child = command(helper, ROLE)?.spawn().map_err(cannot)?;
        let answers = child.stdout.take().map(BufReader::new);
        let answers = answers.ok_or_else(|| cannot(io::ErrorKind::BrokenPipe.into()))?;
        let mut side = Self {
            child,
            answers,
            _guard: guard.clone(),
        };
        if let Some(trace) = trace {
            side.order(&Order::Trace(trace)).map_err(cannot)?;
        }
        let joined = fs::write(group.join("cgroup.procs"), side.child.id().to_string());
        joined.map_err(cannot)?;
        Ok(side)
    }

    /// Goes on reading a file at random, `len` bytes each time.
    pub(crate) fn random(
        &mut self,
        path: &Path,
        way: Way,
        len: usize,
        until: Until,
    ) -> io::Result<RandomResult> {
        let order = Order::Random {
            path: path.to_owned(),
            way,
            len,
            until,
        };
        match self.order(&order)? {
            Done::Random(result) => Ok(result),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads or writes streams; written ones are made durable.
    pub(crate) fn streams(
        &mut self,
        path: &Path,
        shape: Shape,
        access: Access,
    ) -> io::Result<Streamed> {
        let path = path.to_owned();
        let order = Order::Streams {
            path,
            shape,
            access,
        };
        match self.order(&order)? {
            Done::Streams(result) => Ok(result),
            other => Err(unexpected(&other)),
        }
    }

    /// Goes on loading samples.
    pub(crate) fn load(&mut self, load: Load) -> io::Result<RandomResult> {
        match self.order(&Order::Load(load))? {
            Done::Random(result) => Ok(result),
            other => Err(unexpected(&other)),
        }
    }

    fn order(&mut self, order: &Order) -> io::Result<Done> {
        tell(&mut self.child, order)?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the process ended"));
        }
        serde_json::from_str::<Answer>(&line)?.map_err(io::Error::other)
    }
}

impl Drop for KernelSide {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends at the end of its orders; how does not matter any more.
        let _ = self.child.wait();
    }
}

fn unexpected(answer: &Done) -> io::Error {
    io::Error::other(format!("an answer to something else: {answer:?}"))
}

/// Where memory cgroups are made, and the file with a group's limit: version 1, version 2.
const CGROUPS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
];

/// A new memory cgroup that holds `memory` bytes.
fn cgroup(guard: &Guard, memory: u64) -> Result<PathBuf, BenchError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("foliocache-bench-{}-{number}", process::id());
    let cannot = |why: String| {
        BenchError::Refused(format!(
            "no memory cgroup bounds the kernel's page cache for the comparison: {why}"
        ))
    };
    let mounted = |(parent, _): &&(&str, &str)| Path::new(parent).join("cgroup.procs").exists();
    let (parent, limit) = CGROUPS
        .iter()
        .find(mounted)
        .ok_or_else(|| cannot("none are mounted".to_owned()))?;
    let path = Path::new(parent).join(name);
    guard.of(&Thing::Cgroup(path.clone()))?;
    // Version 2 has no such file in a group whose parent keeps the controller to itself.
    let made = fs::create_dir(&path).and_then(|()| {
        let file = fs::File::options().write(true).open(path.join(limit));
        file?.write_all(memory.to_string().as_bytes())
    });
    made.map_err(|error| cannot(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The process's own life: does as it is told until nobody is there any more.
pub(crate) fn main() -> io::Result<()> {
    let mut state = State {
        reads: None,
        threads: 0,
        files: Vec::new(),
        mapping: None,
        ring: None,
        loader: None,
    };
    for line in io::stdin().lock().lines() {
        let order = serde_json::from_str(&line?)?;
        let answer: Answer = state.obey(order).map_err(|error| error.to_string());
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}

struct State {
    reads: Option<RandomReads>,
    threads: usize,
    /// The file that random reads are in, opened once for each thread.
    files: Vec<fs::File>,
    /// That file, mapped.
    mapping: Option<Kernels>,
    /// That file, by a ring.
    ring: Option<Mutex<ReadRing>>,
    loader: Option<Loader>,
}

impl State {
    fn obey(&mut self, order: Order) -> io::Result<Done> {
        match order {
            Order::Trace(trace) => {
                self.threads = trace.threads;
                self.reads = Some(RandomReads::new(&trace));
                Ok(Done::Ready)
            }
            Order::Random {
                path,
                way,
                len,
                until,
            } => {
                let reads = self.reads.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
                let result = match way {
                    Way::Call => {
                        while self.files.len() < self.threads {
                            self.files.push(fs::File::open(&path)?);
                        }
                        let files = &self.files;
                        let read = |who: usize, part: &mut [u8], pos| {
                            let len = part.len();
                            filled(files[who].read_at(part, pos), len)
                        };
                        reads.run(until, len, read, read_from_disk)
                    }
                    Way::Mapping { advised } => {
                        let mapping = match &mut self.mapping {
                            Some(mapping) => mapping,
                            none => none.insert(Kernels::open(&path, advised)?),
                        };
                        let missed = || Ok(page_faults()?.major);
                        let read = |_, part: &mut [u8], pos| read(mapping, part, pos);
                        reads.run(until, len, read, missed)
                    }
                    Way::Ring { at_once, direct } => {
                        let ring = match &mut self.ring {
                            Some(ring) => ring,
                            none => {
                                none.insert(Mutex::new(ReadRing::open(&path, at_once, direct)?))
                            }
                        };
                        let read = |positions: &[u64]| lock(ring).read(positions, len);
                        reads.run_batches(until, len, at_once, read, read_from_disk)
                    }
                };
                Ok(Done::Random(result?))
            }
            Order::Streams {
                path,
                shape,
                access,
            } => {
                let stream = |number| {
                    let stream = ThroughKernel::open(&path, access, shape.request, number)?;
                    Ok(Box::new(stream) as _)
                };
                let streams = (0..shape.threads as u64).map(stream);
                let mut streams: Vec<Box<dyn Stream>> = streams.collect::<io::Result<_>>()?;
                let sync = || match access.write {
                    true => fs::File::open(&path)?.sync_data(),
                    false => Ok(()),
                };
                Ok(Done::Streams(shape.run(&mut streams, sync)?))
            }
            Order::Load(load) => {
                let loader = match &mut self.loader {
                    Some(loader) => loader,
                    none => none.insert(Loader::new(&load)?),
                };
                Ok(Done::Random(loader.run(&load)?))
            }
        }
    }
}

/// For one thread at a time; what another left when it panicked ends the run.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pages that the process has had read from disks.
pub(crate) fn read_from_disk() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    let number = line.and_then(|number| number.parse::<u64>().ok());
    let number = number.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(number / PAGE as u64)
}
