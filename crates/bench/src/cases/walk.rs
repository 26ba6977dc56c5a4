//! Threads that each walk a tree of their own, and threads that bring its inodes into one cache.
//!
//! # Model
//!
//! A tree has so many directories with so many files in each; its thread looks each file up by directory and
//! name and stats it. With `--threads 20 --dirs 1000 --files 1000` that is the test of the kernel's change by
//! which its inode hash came to be looked up under RCU.
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

use foliocache_mm::AddressSpace;
use foliocache_vfs::dcache::DENTRY_BYTES;
use foliocache_vfs::inode_bytes;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use foliocache_sys::memory::total_memory;

use super::{AGAIN, DIRFS, KERNEL, OURS};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::misses::{Counted, Form, Misses};
use crate::names::{KernelTree, Make, Names};
use crate::ratio::Target;
use crate::settings::{Settings, Uses};

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
            true => (9, 10, 100),
            false => (21, 50, 200),
        };
        Settings {
            samples,
            dirs: Some(dirs),
            files: Some(files),
            ..Settings::default()
        }
    }

    fn uses(&self) -> Uses {
        Uses {
            threads: true,
            tree: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let shape = Shape::of(settings)?;
        let tree = KernelTree::new(&settings.helper)?;
        shape.make(&*tree)?;
        let memfs = Names::memory(shape.memory())?;
        shape.make(&*memfs)?;
        let dirfs = Names::over(&tree, shape.memory())?;
        Ok(Plan {
            matches: vec![
                cached(shape, &memfs, &dirfs, &tree)?,
                missed(shape),
                locks(shape),
            ],
            ..Plan::default()
        })
    }
}

/// How many trees there are, and of what size.
#[derive(Clone, Copy)]
struct Shape {
    threads: usize,
    dirs: usize,
    files: usize,
}

impl Shape {
    /// # Errors
    /// The machine has too little memory.
    fn of(settings: &Settings) -> Result<Self, BenchError> {
        let (dirs, files) = settings
            .dirs
            .zip(settings.files)
            .ok_or(BenchError::Setting(
                "a tree has a number of directories and of files",
            ))?;
        let shape = Self {
            threads: settings.threads,
            dirs,
            files,
        };
        // On three sides: in a memfs, in a dirfs, and in the kernel.
        let need = 3 * shape.memory();
        if need > total_memory() / 2 {
            return Err(BenchError::Refused(format!(
                "trees of {} files take {} MiB, more than half of this machine's memory",
                shape.threads * shape.each(),
                need >> 20
            )));
        }
        Ok(shape)
    }

    /// Files of a tree.
    fn each(self) -> usize {
        self.dirs * self.files
    }

    /// How often a tree is walked in a pass.
    fn laps(self) -> usize {
        LEAST.div_ceil(self.threads * self.each())
    }

    /// What a cache has to have for all names, tables and what is charged in advance included.
    fn memory(self) -> u64 {
        let names = self.threads * (self.each() + self.dirs + 1);
        let each = 2 * (inode_bytes() + AddressSpace::memory_bytes() as u64 + DENTRY_BYTES);
        (64 << 20) + names as u64 * each
    }

    fn make(self, tree: &impl Make) -> Result<(), BenchError> {
        let made = || {
            for thread in 0..self.threads {
                let top = top(thread);
                tree.dir(&top)?;
                let mut path = FilePath::new();
                for dir in 0..self.dirs {
                    path.set_dir(dir);
                    tree.dir(&format!("{top}/{}", path.dir()))?;
                    for file in 0..self.files {
                        path.set_file(file);
                        tree.file(&format!("{top}/{}", path.text()))?;
                    }
                }
            }
            Ok(())
        };
        made().map_err(|error: io::Error| BenchError::setup("trees of files", error))
    }

    /// Calls `stat` with the path of each file of a tree, over and over.
    fn walk(self, mut stat: impl FnMut(&FilePath) -> io::Result<()>) -> io::Result<()> {
        let mut path = FilePath::new();
        for _ in 0..self.laps() {
            for dir in 0..self.dirs {
                path.set_dir(dir);
                for file in 0..self.files {
                    path.set_file(file);
                    stat(&path)?;
                }
            }
        }
        Ok(())
    }
}

/// The name of a thread's tree.
fn top(thread: usize) -> String {
    format!("tree{thread}")
}

/// The path of a file in its tree, written in place: to make a new text for each stat would cost as much as
/// one of ours.
struct FilePath([u8; 14]);

/// Where the numbers are.
const DIR: std::ops::Range<usize> = 1..6;
const FILE: std::ops::Range<usize> = 8..13;

impl FilePath {
    fn new() -> Self {
        Self(*b"d00000/f00000\0")
    }

    fn set_dir(&mut self, number: usize) {
        write_number(&mut self.0[DIR], number);
    }

    fn set_file(&mut self, number: usize) {
        write_number(&mut self.0[FILE], number);
    }

    fn bytes(&self) -> &[u8] {
        &self.0[..FILE.end]
    }

    fn text(&self) -> &str {
        str::from_utf8(self.bytes()).expect("letters and digits")
    }

    fn dir(&self) -> &str {
        &self.text()[..DIR.end]
    }

    fn os_str(&self) -> &OsStr {
        OsStr::from_bytes(self.bytes())
    }

    fn c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).expect("one NUL, at the end")
    }
}

/// Writes a number with zeros before it.
fn write_number(digits: &mut [u8], mut number: usize) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Whole trees, whose names are all in memory after the first round, which is not counted.
fn cached(
    shape: Shape,
    memfs: &Arc<Names>,
    dirfs: &Arc<Names>,
    kernel: &Arc<KernelTree>,
) -> Result<Match, BenchError> {
    let ours = |names: &Arc<Names>| {
        let user = |thread| {
            let user = names.user(&top(thread))?;
            Ok(move |path: &FilePath| user.stat(path.os_str()))
        };
        trees(shape, user)
    };
    let kernel = |thread| {
        let user = kernel.user(&top(thread))?;
        Ok(move |path: &FilePath| user.stat(path.c_str()))
    };
    let contestant = |variant, work| Contestant {
        name: CACHED,
        variant,
        work,
    };
    Ok(Match {
        contestants: vec![
            contestant(OURS, ours(memfs)?),
            contestant(AGAIN, ours(memfs)?),
            contestant(DIRFS, ours(dirfs)?),
            contestant(KERNEL, trees(shape, kernel)?),
        ],
        ratios: vec![
            RatioPlan::new("walk_cached_vs_kernel", 0, 3).at_least(3.0),
            RatioPlan::new("walk_cached_dirfs_vs_kernel", 2, 3).at_least(3.0),
            RatioPlan::new("walk_cached_aa", 1, 0),
        ],
    })
}

/// Walks of all trees, each by its thread.
fn trees<F>(shape: Shape, user: impl Fn(usize) -> io::Result<F>) -> Result<Work, BenchError>
where
    F: FnMut(&FilePath) -> io::Result<()> + Send + 'static,
{
    let users: io::Result<Vec<F>> = (0..shape.threads).map(user).collect();
    let users = users.map_err(|error| BenchError::setup("the top of a tree", error))?;
    Ok(Work::Pass {
        threads: shape.threads,
        unit: "files/s",
        pass: Box::new(Trees { shape, users }),
    })
}

struct Trees<F> {
    shape: Shape,
    /// For each thread, what stats a file of its tree.
    users: Vec<F>,
}

impl<F: FnMut(&FilePath) -> io::Result<()> + Send> Pass for Trees<F> {
    fn run(&mut self) -> io::Result<Outcome> {
        let shape = self.shape;
        let start = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .users
                .iter_mut()
                .map(|user| scope.spawn(move || shape.walk(user)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a walker does not panic"))
        })?;
        let files = shape.threads * shape.each() * shape.laps();
        Ok(Outcome::plain(files as f64 / start.elapsed().as_secs_f64()))
    }
}

/// Inodes brought into one cache by all threads: how long that takes.
fn missed(shape: Shape) -> Match {
    let times = |variant, form| misses(shape, MISSED, variant, form, Counted::Nanoseconds);
    let control = "walk_aa";
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let target = match processors.min(shape.threads) >= MANY {
        true => Target::AtMost(0.5),
        false => Target::NotLonger { control },
    };
    Match {
        contestants: vec![
            times("first look under RCU, again", Form::Rcu),
            times("first look under RCU", Form::Rcu),
            times("first look locked", Form::Locked),
        ],
        ratios: vec![
            RatioPlan {
                target: Some(target),
                ..RatioPlan::new("walk_rcu_vs_locked", 1, 2)
            },
            RatioPlan::new(control, 0, 1),
        ],
    }
}

/// The same, counted.
fn locks(shape: Shape) -> Match {
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
    }
}

fn misses(
    shape: Shape,
    name: &'static str,
    variant: &'static str,
    form: Form,
    counted: Counted,
) -> Contestant {
    let caches = match counted {
        Counted::Nanoseconds => shape.laps().min(MOST_CACHES),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_tree() {
        let shape = Shape {
            threads: 1,
            dirs: 2,
            files: 11,
        };
        let mut paths = Vec::new();
        shape
            .walk(|path| {
                assert_eq!(path.c_str().to_bytes(), path.os_str().as_bytes());
                paths.push(path.text().to_owned());
                Ok(())
            })
            .unwrap();
        assert_eq!(paths.len(), 22 * LEAST.div_ceil(22));
        assert_eq!(paths[0], "d00000/f00000");
        assert_eq!(paths[21], "d00001/f00010");
        assert_eq!(paths[22], paths[0]);
    }
}
