//! How long and how often a case runs, with how much memory, and where its files are.

use foliocache_sys::memory::total_memory;
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::BenchError;

/// How long and how often a case runs, with how much memory, and where its files are.
///
/// Each case has [its own](crate::Case::settings), and looks at [some of them](Uses) only.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// Rounds, an even number; each gives a figure for each contestant, and every other one turns their order round.
    pub samples: usize,
    /// Seconds that each figure takes.
    pub seconds: f64,
    /// Threads of those contestants that have several.
    pub threads: usize,
    /// The memory bound in bytes of ours and of the kernel's; the case's own if it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The folder below which files are made; a temporary one if it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Directories of each thread's tree; None for cases without trees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirs: Option<usize>,
    /// Files in each of these directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<usize>,
    /// A file with a trace, for cases that read by one: a text with an access in each line, as the number of a
    /// page, or that of the first page and the number of pages. A `#` starts a comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// A program, with its first arguments, that hands the argument after them to
    /// [`helper`](crate::helper). Cases that need a process beside this one need it.
    #[serde(skip)]
    pub helper: Vec<OsString>,
}

/// How large a case is by default.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    samples: usize,
    seconds: f64,
    threads: usize,
    memory: Option<u64>,
    tree: Option<(usize, usize)>,
}

impl Size {
    /// For a first look: well under half a minute a case.
    pub(crate) const QUICK: Self = Self::new(10, 0.05);

    /// Of a whole run.
    pub(crate) const WHOLE: Self = Self::new(22, 0.2);

    /// This many rounds, with this many seconds for each figure.
    pub(crate) const fn new(samples: usize, seconds: f64) -> Self {
        Self {
            samples,
            seconds,
            threads: 2,
            memory: None,
            tree: None,
        }
    }

    pub(crate) const fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// A bound of `mib` MiB.
    pub(crate) const fn mib(mut self, mib: u64) -> Self {
        self.memory = Some(mib << 20);
        self
    }

    /// Directories and files in each of them.
    pub(crate) const fn tree(mut self, dirs: usize, files: usize) -> Self {
        self.tree = Some((dirs, files));
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(Size::WHOLE)
    }
}

impl Settings {
    /// Of a case by default. On a small machine the bound is smaller.
    pub(crate) fn of(size: Size) -> Self {
        Self {
            samples: size.samples,
            seconds: size.seconds,
            threads: size.threads,
            memory: size.memory.map(|memory| memory.min(total_memory() / 4 * 3)),
            dir: None,
            dirs: size.tree.map(|(dirs, _)| dirs),
            files: size.tree.map(|(_, files)| files),
            trace: None,
            helper: Vec::new(),
        }
    }

    /// The memory bound of a case on files: whole MiB, and room for the cache's own least.
    ///
    /// # Errors
    /// Missing, too small, or more than half of the machine's memory.
    pub(crate) fn bound(&self) -> Result<u64, BenchError> {
        match self.memory.ok_or(BenchError::Setting("no memory bound"))? {
            ..LEAST_MEMORY => Err(BenchError::Setting("memory: at least 8 MiB")),
            memory if memory > total_memory() / 2 => Err(BenchError::Setting(
                "memory: more than half of this machine's, which others need, too",
            )),
            memory => Ok(memory / (1 << 20) * (1 << 20)),
        }
    }

    /// Directories and files in each of them.
    pub(crate) fn tree(&self) -> Result<(usize, usize), BenchError> {
        let tree = self.dirs.zip(self.files);
        tree.ok_or(BenchError::Setting(
            "a tree has a number of directories and of files",
        ))
    }

    /// Seconds of an interval, where a turn's figure is also given for each of its intervals: one, or a
    /// quarter of a turn that is shorter than four.
    pub(crate) fn interval(&self) -> f64 {
        (self.seconds / 4.0).min(1.0)
    }

    /// # Errors
    /// No sample or an odd number, no time, no thread or no file.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.samples == 0 || !self.samples.is_multiple_of(2) {
            return Err(BenchError::Setting(
                "samples: an even number from 2 on, half of them in each order",
            ));
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(BenchError::Setting(
                "a sample takes more than 0 seconds and at most 3600",
            ));
        }
        if !(1..=1024).contains(&self.threads) {
            return Err(BenchError::Setting("threads: from 1 to 1024"));
        }
        let mut tree = [self.dirs, self.files].into_iter().flatten();
        if !tree.all(|number| (1..=MOST_NAMES).contains(&number)) {
            return Err(BenchError::Setting("dirs, files: from 1 to 100000"));
        }
        Ok(())
    }
}

/// The least memory bound of cases on files.
const LEAST_MEMORY: u64 = 8 << 20;

/// The most names in a directory of a tree.
const MOST_NAMES: usize = 100_000;

/// The [`Settings`] that a case uses, besides the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses(u8);

impl Uses {
    /// Seconds: a sample is a time, not a piece of work.
    pub const SECONDS: Self = Self(1);
    /// Threads.
    pub const THREADS: Self = Self(2);
    /// The memory bound.
    pub const MEMORY: Self = Self(4);
    /// The folder.
    pub const DIR: Self = Self(8);
    /// The size of trees.
    pub const TREE: Self = Self(16);
    /// A trace that is given.
    pub const TRACE: Self = Self(32);

    /// Those of a case on one page in memory.
    pub(crate) const HOT: Self = Self::SECONDS.and(Self::THREADS);

    /// Those of a case on files, larger than the bound.
    pub(crate) const FILES: Self = Self::SECONDS.and(Self::MEMORY).and(Self::DIR);

    pub(crate) const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Whether it looks at these.
    pub const fn has(self, these: Self) -> bool {
        self.0 & these.0 == these.0
    }
}
