//! Threads that each walk a private tree, and threads that bring its inodes into one cache.
//!
//! # Model
//!
//! The directories of a tree and the files in each are given; its thread looks each file up by directory and name
//! and stats it. With uncached names this is the test from the kernel's change that moved look-ups of the inode
//! hash under RCU: see [`coldwalk`](super::coldwalk).
//!
//! | match | what it compares |
//! |---|---|
//! | cached | whole trees, all names in memory: a memfs and a dirfs of ours, the kernel's tmpfs |
//! | missed | inodes that are not there, each looked up and inserted once: the cache under RCU, and with a first look before that, under one of 1,024 locks or under the only one, as the kernel's |
//! | locks | the same, counted: locks of buckets, for each miss |
//!
//! Missed inodes go into a new cache of one file system each time, which all threads share, and which
//! begins as small as a dirfs's own. Locks for growing it are in the time and not in the count: they are
//! taken by the eight buckets, in whichever form.
//!
//! The times of misses are divided, ours under RCU by the locked form's: less is better.

use foliocache_sys::memory::total_memory;
use std::thread;

use crate::cases::prelude::*;
use crate::misses::{Counted, Form, misses};
use crate::names::{KernelTree, KernelUser, Names};
use crate::ratio::Target;
use crate::trees::{FilePath, Trees, top};

const CACHED: &str = "walk, all cached";
const MISSED: &str = "inode, missed";
const LOCKS: &str = "inodes, missed, counted";

/// The least that all threads do in a pass: small trees are walked several times, or a pass would be nothing
/// but the starting of threads.
const LEAST: usize = 200_000;

/// The most inode caches that are there at a time.
const MOST_CACHES: usize = 16;

/// The least misses of all threads that are timed: half a second's, or a pass says more about the machine than about locks.
const LEAST_MISSES: usize = 4_000_000;

/// Processors from which on locks are to cost half of the time.
const MANY: usize = 16;

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let trees = Trees::of(settings)?;
    // The memory for all names, with tables and charges in advance; on three sides: in a
    // memfs, in a dirfs, and in the kernel.
    let memory = (64 << 20) + 2 * trees.memory();
    let need = 3 * memory;
    if need > total_memory() / 2 {
        return Err(BenchError::Refused(format!(
            "trees of {} files take {} MiB, more than half of this machine's memory",
            trees.all_files(),
            need >> 20
        )));
    }
    let tree = KernelTree::new(&settings.helper)?;
    trees.make(tree.path())?;
    let memfs = Names::new(memory, None)?;
    trees.make(&*memfs)?;
    let dirfs = Names::new(memory, Some(&tree))?;

    // All names are in memory after the first round, which is not counted.
    let laps = LEAST.div_ceil(trees.all_files());
    let mut cached = Match::default();
    for (variant, names) in [(OURS_AS_USER, memfs), (DIRFS_AS_USER, dirfs)] {
        let user = |thread| {
            let user = names.user(&top(thread))?;
            Ok(move |path: &FilePath| user.stat(path.os_str()))
        };
        cached.add(CACHED, variant, walks(trees, laps, user)?);
    }
    let user = |thread| {
        let user = KernelUser::at(&tree.path().join(top(thread)))?;
        Ok(move |path: &FilePath| user.stat(path.c_str()))
    };
    cached.add(CACHED, KERNEL, walks(trees, laps, user)?);
    ratios! { cached;
        "walk_cached_vs_kernel" => OURS_AS_USER / KERNEL, at_least(3.0);
        "walk_cached_dirfs_vs_kernel" => DIRFS_AS_USER / KERNEL, at_least(3.0);
    }

    // Inodes brought into one cache by all threads: how long that takes, and the same counted.
    let pass = |form, counted, caches, laps| {
        let (threads, each) = (trees.threads, trees.each());
        let misses = move || misses(threads, each, caches, laps, form, counted).map(Outcome::plain);
        Work::pass(threads, counted.unit(), misses)
    };
    let caches = laps.min(MOST_CACHES);
    let laps = LEAST_MISSES.div_ceil(trees.all_files() * caches);
    let times = |form| pass(form, Counted::Nanoseconds, caches, laps);
    let mut missed = Match::default();
    missed.add(MISSED, "first look under RCU", times(Form::Rcu));
    missed.add(MISSED, "first look locked", times(Form::Locked));
    missed.add(MISSED, "first look under one lock", times(Form::OneLock));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let target = match processors.min(trees.threads) >= MANY {
        true => Target::AtMost(0.5),
        false => Target::NotLonger,
    };
    ratios! { missed;
        "walk_rcu_vs_locked" => 0 / 1, aim(target);
        "walk_rcu_vs_one_lock" => 0 / 2, aim(target);
    }
    let mut locks = Match {
        exact: true,
        ..Match::default()
    };
    for (variant, form, counted) in [
        ("misses", Form::Rcu, Counted::Misses),
        ("locks, first look under RCU", Form::Rcu, Counted::Locks),
        ("locks, first look locked", Form::Locked, Counted::Locks),
    ] {
        locks.add(LOCKS, variant, pass(form, counted, 1, 1));
    }
    ratios! { locks;
        "locks_per_miss_rcu" => 1 / 0, at_most(1.0);
        "locks_per_miss_locked" => 2 / 0;
    }
    Ok(Plan {
        holds: vec![Rc::new(tree)],
        ..vec![cached, missed, locks].into()
    })
}

/// Walks of all trees, each by its thread, `laps` times over.
fn walks<F>(
    trees: Trees,
    laps: usize,
    user: impl Fn(usize) -> io::Result<F>,
) -> Result<Work, BenchError>
where
    F: FnMut(&FilePath) -> io::Result<()> + Send + 'static,
{
    let users = || (0..trees.threads).map(user).collect();
    let mut users: Vec<F> = set_up("the top of a tree", users)?;
    let walk = move || {
        let start = Instant::now();
        trees.walk_all(&mut users, laps)?;
        Ok(Outcome::per_second(trees.all_files() * laps, start))
    };
    Ok(Work::pass(trees.threads, "files/s", walk))
}
