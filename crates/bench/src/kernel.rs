//! The kernel's side of a comparison: a process whose page cache a memory cgroup bounds.
//!
//! # Model
//!
//! ```text
//!  case ──orders, a line each──▶ process in a memory cgroup of the bound's size
//!       ◀──answers, a line each──   reads files through the kernel's cache
//! ```
//!
//! Pages are charged to the cgroup of the process that first read them. So this is a separate
//! process, which joins the cgroup before it opens a file, and the files have to leave the cache
//! before that. It allocates its buffers and traces before it joins.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{BenchError, OrSetup};
use crate::files::PAGE;
use crate::guard::{Guard, Thing, command, tell};
use crate::mapped::page_faults;
use crate::passes::{Pass, Passed};
use crate::place::drop_from_kernel_cache;
use crate::readers::{Reader, Set, Way};
use crate::reads::{RandomResult, Read, Reads, Trace};
use crate::streams::{Access, Shape, Stream, Streamed, ThroughKernel};

/// The argument that makes a kernel's side of a process.
pub(crate) const ROLE: &str = "kernel";

const WHAT: &str = "the kernel's side of the comparison";

/// An order to the process.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Take the memory for random reads.
    Trace(Trace),
    /// Go on reading by the trace.
    Read(Set, Way, Read),
    /// Read or write streams.
    Streams(PathBuf, Shape, Access),
    /// Make a pass over trees.
    Pass(Pass),
}

/// Its answer: a value of the order, or the text of an error.
type Answer = Result<serde_json::Value, String>;

/// The process, from outside.
pub(crate) struct KernelSide {
    child: Child,
    answers: BufReader<ChildStdout>,
    /// It has read nothing yet.
    fresh: bool,
    /// The cgroup goes after the process.
    _guard: Guard,
}

impl KernelSide {
    /// Starts it, has it allocate the memory for random reads, and moves it into a cgroup of `memory` bytes.
    ///
    /// # Errors
    /// There are no memory cgroups, or they may not be used.
    pub(crate) fn start(
        helper: &[OsString],
        guard: &Guard,
        memory: u64,
        trace: Option<Trace>,
    ) -> Result<Self, BenchError> {
        let group = cgroup(guard, memory)?;
        let mut child = command(helper, ROLE)?.spawn().setting_up(WHAT)?;
        let answers = child.stdout.take().map(BufReader::new);
        let mut side = Self {
            child,
            answers: answers.ok_or(io::ErrorKind::BrokenPipe).setting_up(WHAT)?,
            fresh: true,
            _guard: guard.clone(),
        };
        if let Some(trace) = trace {
            let ready: io::Result<()> = side.order(&Order::Trace(trace));
            ready.setting_up(WHAT)?;
        }
        let joined = fs::write(group.join("cgroup.procs"), side.child.id().to_string());
        joined.setting_up(WHAT)?;
        Ok(side)
    }

    /// Goes on reading a set at random. When it begins, nothing of the set is in the kernel's cache.
    pub(crate) fn read(&mut self, set: &Set, way: Way, read: &Read) -> io::Result<RandomResult> {
        if std::mem::take(&mut self.fresh) {
            set.paths
                .iter()
                .try_for_each(|path| drop_from_kernel_cache(path))?;
        }
        self.order(&Order::Read(set.clone(), way, *read))
    }

    /// Reads or writes streams; written ones are made durable.
    pub(crate) fn streams(
        &mut self,
        path: &Path,
        shape: Shape,
        access: Access,
    ) -> io::Result<Streamed> {
        self.order(&Order::Streams(path.to_owned(), shape, access))
    }

    /// Makes a pass over trees, the kernel's or one of ours.
    pub(crate) fn pass(&mut self, pass: &Pass) -> io::Result<Passed> {
        self.order(&Order::Pass(pass.clone()))
    }

    fn order<T: DeserializeOwned>(&mut self, order: &Order) -> io::Result<T> {
        tell(&mut self.child, order)?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the process ended"));
        }
        let answer = serde_json::from_str::<Answer>(&line)?;
        Ok(serde_json::from_value(answer.map_err(io::Error::other)?)?)
    }
}

impl Drop for KernelSide {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends at the end of its orders; how does not matter any more.
        let _ = self.child.wait();
    }
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
    let found = CGROUPS.iter().find(mounted);
    let (parent, limit) = found.ok_or_else(|| cannot("none are mounted".to_owned()))?;
    let path = Path::new(parent).join(name);
    let make = || {
        guard.of(&Thing::Cgroup(path.clone()))?;
        fs::create_dir(&path)?;
        // Version 2 lacks the file in a group whose parent does not delegate the controller.
        let file = fs::File::options().write(true).open(path.join(limit));
        file?.write_all(memory.to_string().as_bytes())
    };
    make().map_err(|error| cannot(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The process's own life: it obeys until its orders end.
pub(crate) fn main() -> io::Result<()> {
    let mut state = State::default();
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

#[derive(Default)]
struct State {
    threads: usize,
    reads: Option<Reads>,
    /// Those of a way are opened when it is first used, so that their memory is the cgroup's.
    readers: Vec<(Way, Vec<Box<dyn Reader>>)>,
}

impl State {
    fn obey(&mut self, order: Order) -> io::Result<serde_json::Value> {
        let answer = match order {
            Order::Trace(trace) => {
                self.threads = trace.threads;
                self.reads = Some(Reads::new(&trace));
                serde_json::to_value(())
            }
            Order::Read(set, way, read) => {
                let reads = self.reads.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
                if !self.readers.iter().any(|(open, _)| *open == way) {
                    self.readers.push((way, way.open(&set, self.threads)?));
                }
                let found = self.readers.iter_mut().find(|(open, _)| *open == way);
                let (_, readers) = found.expect("it was opened");
                let missed = || match way {
                    Way::Mapping { .. } if !read.device => Ok(page_faults()?.major),
                    _ => read_from_disk(),
                };
                serde_json::to_value(reads.run(readers, &read, missed)?)
            }
            Order::Pass(pass) => serde_json::to_value(pass.run()?),
            Order::Streams(path, shape, access) => {
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
                serde_json::to_value(shape.run(&mut streams, sync)?)
            }
        };
        Ok(answer?)
    }
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
