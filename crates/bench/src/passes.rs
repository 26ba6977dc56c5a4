//! Passes over cold trees, as backups and scans make them: every directory read, every name asked for its attributes.
//!
//! # Model
//!
//! A pass runs in a process of its own, in a memory cgroup of the same size for each way ([`KernelSide`](crate::kernel::KernelSide)).
//! A backup program does [`Way::Kernel`] with one thread: it reads a directory and then asks for each name in the order in which it was
//! read. With several threads each takes the next directory that was found.
//!
//! Before a pass a sample of the names is looked for in the kernel's cache, by `openat2` with `RESOLVE_CACHED`, which asks no file system
//! and caches nothing. So its hits are those that the pass would have there.

use foliocache::Cache;
use foliocache_sys::dir::{entries, fstatat, read_entries};
use foliocache_sys::fd::{self, FileKind, OFlags};
use foliocache_sys::testing;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::cost::{Cost, Meter};
use crate::threads::on_threads;
use crate::trees::Trees;

/// Of so many files one is looked for in the kernel's cache.
const SAMPLED: usize = 64;

/// Bytes of entries that a call reads.
const BUFFER: usize = 32 << 10;

/// How a pass is made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// By the kernel's calls.
    Kernel { threads: usize },
    /// By a walk of a new cache with so many bytes.
    Ours {
        threads: usize,
        memory: u64,
        uncached: bool,
    },
}

/// A pass over all that is below a folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pass {
    pub(crate) folder: PathBuf,
    pub(crate) way: Way,
    pub(crate) trees: Trees,
}

/// The result of one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Passed {
    /// Names that were asked for.
    pub(crate) names: usize,
    pub(crate) cost: Cost,
    /// The share of the names that were in a cache before: the kernel's or ours, whichever had more.
    pub(crate) hits: f64,
}

impl Pass {
    pub(crate) fn run(&self) -> io::Result<Passed> {
        let kernel_hits = self.hits_in_kernel()?;
        let meter = Meter::start();
        let (names, hits) = match self.way {
            Way::Kernel { threads } => (kernel(&self.folder, threads)?, 0.0),
            Way::Ours {
                threads,
                memory,
                uncached,
            } => ours(&self.folder, threads, memory, uncached)?,
        };
        Ok(Passed {
            names,
            cost: meter.stop(),
            hits: hits.max(kernel_hits),
        })
    }

    /// The share of a sample of the names that are in the kernel's cache.
    fn hits_in_kernel(&self) -> io::Result<f64> {
        let top = fd::open(&self.folder, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        let (mut sampled, mut cached) = (0, 0);
        self.trees.each_file(SAMPLED, |path| {
            sampled += 1;
            cached += usize::from(testing::is_in_kernel_cache(top.as_fd(), path)?);
            Ok(())
        })?;
        Ok(cached as f64 / f64::from(sampled.max(1)))
    }
}

/// A walk of ours: names, and the share of them that were in memory.
fn ours(folder: &Path, threads: usize, memory: u64, uncached: bool) -> io::Result<(usize, f64)> {
    let cache = Cache::builder().memory(memory).build()?;
    let directory = cache.directory(folder)?;
    let walk = directory.walk(".").threads(threads);
    let mut names = 0;
    for entry in walk.uncached(uncached) {
        black_box(entry?.metadata()?);
        names += 1;
    }
    let known = directory
        .stats()?
        .map_or(0, |stats| stats.uncached_names_known);
    Ok((names, known as f64 / names.max(1) as f64))
}

/// Directories that are to be read, and threads that may find more.
struct Jobs {
    state: Mutex<(Vec<PathBuf>, usize)>,
    changed: Condvar,
}

/// A pass by the kernel's calls: names.
fn kernel(folder: &Path, threads: usize) -> io::Result<usize> {
    let jobs = Jobs {
        state: Mutex::new((vec![folder.to_owned()], 0)),
        changed: Condvar::new(),
    };
    let names = on_threads(0..threads, |_, _| {
        let mut buffers = (Vec::new(), vec![0; BUFFER]);
        let mut names = 0;
        while let Some(directory) = jobs.take() {
            let read = read(&directory, &mut buffers, &jobs);
            jobs.done();
            names += read?;
        }
        Ok(names)
    })?;
    Ok(names.into_iter().sum())
}

impl Jobs {
    fn take(&self) -> Option<PathBuf> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (waiting, busy) = &mut *state;
            if let Some(job) = waiting.pop() {
                *busy += 1;
                return Some(job);
            }
            if *busy == 0 {
                return None;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add(&self, job: PathBuf) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.push(job);
        self.changed.notify_one();
    }

    fn done(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 -= 1;
        if state.1 == 0 {
            self.changed.notify_all();
        }
    }
}

/// Reads a directory, all of it, and asks for its names in the order in which they came.
fn read(path: &Path, (found, buf): &mut (Vec<u8>, Vec<u8>), jobs: &Jobs) -> io::Result<usize> {
    let directory = fd::open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    found.clear();
    loop {
        let filled = read_entries(directory.as_fd(), buf)?;
        if filled == 0 {
            break;
        }
        found.extend_from_slice(&buf[..filled]);
    }
    let mut names = 0;
    for entry in entries(found) {
        let entry = entry?;
        if entry.name == "." || entry.name == ".." {
            continue;
        }
        black_box(&fstatat(directory.as_fd(), entry.name)?);
        names += 1;
        if entry.kind == FileKind::Directory {
            jobs.add(path.join(entry.name));
        }
    }
    Ok(names)
}
