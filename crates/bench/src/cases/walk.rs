//! Threads that each walk a tree of their own, and threads that bring its inodes into one cache.
//!
//! # Model
//!
//! A tree has so many directories with so many files in each; its thread looks each file up by directory and
//! name and stats it. With names that are not cached that is the test of the kernel's change by
//! which its inode hash came to be looked up under RCU: see [`coldwalk`](super::coldwalk).
//!
//! | match | what it compares |
//! |---|---|
//! | cached | whole trees, all names in memory: a memfs and a dirfs of ours, the kernel's tmpfs |
//! | missed | as many inodes that are not there, each looked up and inserted once: the cache under RCU, and with a first look under a lock before that |
//! | locks | the same, counted: locks of buckets, for each miss |
//!
//! What is missed goes into a new cache of one file system each time, which all threads share, and which
//! begins as small as a dirfs's own. Locks for growing it are in the time and not in the count: they are
//! taken by the eight buckets, in whichever form.
//!
//! The times of misses are divided, ours under RCU by the locked form's: less is better.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use foliocache_sys::memory::total_memory;

use super::{DIRFS_AS_USER, KERNEL, OURS_AS_USER};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::misses::{Counted, Form, Misses};
use crate::names::{KernelTree, Names};
use crate::ratio::Target;
use crate::settings::{Settings, Uses};
use crate::trees::{FilePath, Trees, top};

/// See the module.
pub(crate) struct Walk;

const CACHED: &str = "walk, all cached";
const MISSED: &str = "inode, missed";
const LOCKS: &str = "inodes, missed, counted";

/// The least that all threads do in a pass: small trees are walked several times, or a pass would be nothing
/// but the starting of threads.
const LEAST: usize = 200_000;

/// The most new inode caches of a pass.
const MOST_CACHES: usize = 16;

/// Processors from which on locks are to cost half of the time.
const MANY: usize = 16;

impl Case for Walk {
    fn name(&self) -> &'static str {
        "walk"
    }

    fn about(&self) -> &'static str {
        "walks of trees of files, one for each thread, cached and not"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, dirs, files) = match quick {
            true => (10, 10, 100),
            false => (22, 50, 200),
        };
        Settings {
            samples,
            dirs: Some(dirs),
            files: Some(files),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 10 } else { 30 }
    }

    fn uses(&self) -> Uses {
        Uses {
            threads: true,
            tree: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let trees = Trees::of(settings)?;
        // On three sides: in a memfs, in a dirfs, and in the kernel.
        let need = 3 * memory(trees);
        if need > total_memory() / 2 {
            return Err(BenchError::Refused(format!(
                "trees of {} files take {} MiB, more than half of this machine's memory",
                trees.all_files(),
                need >> 20
            )));
        }
        let tree = KernelTree::new(&settings.helper)?;
        trees.make(&*tree)?;
        let memfs = Names::memory(memory(trees))?;
        trees.make(&*memfs)?;
        let dirfs = Names::over(&tree, memory(trees))?;
        Ok(Plan {
            matches: vec![
                cached(trees, &memfs, &dirfs, &tree)?,
                missed(trees),
                locks(trees),
            ],
            ..Plan::default()
        })
    }
}

/// How often trees are walked in a pass.
fn laps(trees: Trees) -> usize {
    LEAST.div_ceil(trees.all_files())
}

/// What a cache has to have for all names, tables and what is charged in advance included.
fn memory(trees: Trees) -> u64 {
    (64 << 20) + 2 * trees.memory()
}

/// Whole trees, whose names are all in memory after the first round, which is not counted.
fn cached(
    shape: Trees,
    memfs: &Arc<Names>,
    dirfs: &Arc<Names>,
    kernel: &Arc<KernelTree>,
) -> Result<Match, BenchError> {
    let ours = |names: &Arc<Names>| {
        let user = |thread| {
            let user = names.user(&top(thread))?;
            Ok(move |path: &FilePath| user.stat(path.os_str()))
        };
        walks(shape, user)
    };
    let kernel = |thread| {
        let user = kernel.user(&top(thread))?;
        Ok(move |path: &FilePath| user.stat(path.c_str()))
    };
    let mut one = Match::default();
    let memfs = one.add(CACHED, OURS_AS_USER, ours(memfs)?);
    let dirfs = one.add(CACHED, DIRFS_AS_USER, ours(dirfs)?);
    let kernel = one.add(CACHED, KERNEL, walks(shape, kernel)?);
    one.ratios = vec![
        RatioPlan::new("walk_cached_vs_kernel", memfs, kernel).at_least(3.0),
        RatioPlan::new("walk_cached_dirfs_vs_kernel", dirfs, kernel).at_least(3.0),
    ];
    Ok(one)
}

/// Walks of all trees, each by its thread.
fn walks<F>(shape: Trees, user: impl Fn(usize) -> io::Result<F>) -> Result<Work, BenchError>
where
    F: FnMut(&FilePath) -> io::Result<()> + Send + 'static,
{
    let users: io::Result<Vec<F>> = (0..shape.threads).map(user).collect();
    let users = users.map_err(|error| BenchError::setup("the top of a tree", error))?;
    let threads = shape.threads;
    Ok(Work::pass(threads, "files/s", Walks { shape, users }))
}

struct Walks<F> {
    shape: Trees,
    /// For each thread, what stats a file of its tree.
    users: Vec<F>,
}

impl<F: FnMut(&FilePath) -> io::Result<()> + Send> Pass for Walks<F> {
    fn run(&mut self) -> io::Result<Outcome> {
        let (shape, laps) = (self.shape, laps(self.shape));
        let start = Instant::now();
        shape.walk_all(&mut self.users, laps)?;
        let files = (shape.all_files() * laps) as f64;
        Ok(Outcome::plain(files / start.elapsed().as_secs_f64()))
    }
}

/// Inodes brought into one cache by all threads: how long that takes.
fn missed(shape: Trees) -> Match {
    let times = |variant, form| misses(shape, MISSED, variant, form, Counted::Nanoseconds);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let target = match processors.min(shape.threads) >= MANY {
        true => Target::AtMost(0.5),
        false => Target::NotLonger,
    };
    Match {
        contestants: vec![
            times("first look under RCU", Form::Rcu),
            times("first look locked", Form::Locked),
        ],
        ratios: vec![RatioPlan {
            target: Some(target),
            ..RatioPlan::new("walk_rcu_vs_locked", 0, 1)
        }],
        ..Match::default()
    }
}

/// The same, counted.
fn locks(shape: Trees) -> Match {
    let counts = |variant, form, counted| misses(shape, LOCKS, variant, form, counted);
    Match {
        contestants: vec![
            counts("misses", Form::Rcu, Counted::Misses),
            counts("locks, first look under RCU", Form::Rcu, Counted::Locks),
            counts("locks, first look locked", Form::Locked, Counted::Locks),
        ],
        ratios: vec![
            RatioPlan {
                target: Some(Target::AtMost(1.0)),
                ..RatioPlan::new("locks_per_miss_rcu", 1, 0)
            },
            RatioPlan::new("locks_per_miss_locked", 2, 0),
        ],
        exact: true,
    }
}

fn misses(
    shape: Trees,
    name: &'static str,
    variant: &'static str,
    form: Form,
    counted: Counted,
) -> Contestant {
    let caches = match counted {
        Counted::Nanoseconds => laps(shape).min(MOST_CACHES),
        Counted::Locks | Counted::Misses => 1,
    };
    Contestant {
        name,
        variant,
        work: Work::Pass {
            threads: shape.threads,
            unit: counted.unit(),
            pass: Box::new(Misses::new(
                shape.threads,
                shape.each(),
                caches,
                form,
                counted,
            )),
        },
    }
}
