//! Walks of trees on a disk that are larger than the cache: no name is cached when it is asked for.
//!
//! # Model
//!
//! The test of the kernel's change by which its inode hash came to be looked up under RCU: each thread walks a tree of
//! its own, directory by directory, and stats each file once. No name is cached when it is asked for; the directories on the
//! way are. The original has 20 threads with 1,000 directories of 1,000 files each
//! (`--threads 20 --dirs 1000 --files 1000 --memory 4G`).
//!
//! Before each turn the kernel drops its dentries and inodes (that needs root), for both sides: below ours it has to find
//! each name as well. Ours begins with a new cache, with default settings but for a bound that holds less than half of the
//! names, so it evicts as it goes. The kernel has the whole machine for its caches and evicts nothing unless the trees are
//! larger than that: bounded by a memory cgroup it is killed on ext4, whose inodes are allocated where no inode may be
//! reclaimed. Blocks of the file system stay in the kernel's cache as far as they fit.

use std::fs::{self, Permissions};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::Instant;

use foliocache::Cache;

use super::{DIRFS, KERNEL, memory};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::latency::Times;
use crate::names::{KernelUser, Make};
use crate::place::{DROP_CACHES, Folder, check_room};
use crate::settings::{Settings, Uses};
use crate::trees::{FilePath, Trees, top};

/// See the module.
pub(crate) struct ColdWalk;

const NAME: &str = "walk, names not cached";

/// Bytes of the disk that a name takes, at most: its inode and its entry.
const ON_DISK: u64 = 512;

impl Case for ColdWalk {
    fn name(&self) -> &'static str {
        "coldwalk"
    }

    fn about(&self) -> &'static str {
        "walks of trees on a disk that are larger than the cache: no name is cached"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, dirs, memory) = match quick {
            true => (2, 30, 8 << 20),
            false => (10, 200, 64 << 20),
        };
        Settings {
            samples,
            memory: Some(memory),
            dirs: Some(dirs),
            files: Some(1000),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 300 }
    }

    fn uses(&self) -> Uses {
        Uses {
            threads: true,
            memory: true,
            dir: true,
            tree: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let trees = Trees::of(settings)?;
        if trees.memory() < 2 * memory {
            return Err(BenchError::Refused(format!(
                "the names of {} files fit into {} MiB: give less --memory or more --files",
                trees.all_files(),
                (2 * memory) >> 20
            )));
        }
        let can_drop = fs::OpenOptions::new().write(true).open(DROP_CACHES);
        can_drop.map_err(|error| {
            let why = "one side would find the names that the other has left in the kernel's cache";
            BenchError::Refused(format!("{why}: {DROP_CACHES}: {error}"))
        })?;
        let folder = Folder::on_disk(settings)?;
        let files = trees.all_files() as u64;
        check_room(folder.path(), files * ON_DISK, files)?;
        trees.make(&OnDisk(&folder))?;
        let place = Some(folder.describe());
        let folder = Rc::new(folder);
        let mut one = Match::default();
        for (variant, bound) in [(DIRFS, Some(memory)), (KERNEL, None)] {
            let walk = Walk {
                bound,
                trees,
                folder: Rc::clone(&folder),
            };
            one.add(NAME, variant, Work::pass(trees.threads, "files/s", walk));
        }
        one.ratios = vec![RatioPlan::new("coldwalk_vs_kernel", 0, 1)];
        Ok(Plan {
            matches: vec![one],
            place,
            notes: vec![format!(
                "{files} files; ours has a bound of {} MiB, the kernel the whole machine",
                memory >> 20
            )],
        })
    }
}

/// Trees in a folder.
struct OnDisk<'a>(&'a Folder);

impl Make for OnDisk<'_> {
    fn dir(&self, path: &str) -> io::Result<()> {
        let path = self.0.path().join(path);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))
    }

    fn file(&self, path: &str) -> io::Result<()> {
        fs::File::create_new(self.0.path().join(path)).map(drop)
    }
}

/// One side's walk of all trees.
struct Walk {
    /// Of our cache; None for the kernel's side.
    bound: Option<u64>,
    trees: Trees,
    folder: Rc<Folder>,
}

impl Pass for Walk {
    fn prepare(&mut self) -> io::Result<()> {
        fs::write(DROP_CACHES, "2")
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let (path, trees) = (self.folder.path(), self.trees);
        match self.bound {
            Some(bound) => {
                let cache = Cache::builder().memory(bound).build()?;
                let all = cache.directory(path)?;
                walk(trees, |thread| {
                    let directory = all.open_dir(top(thread))?;
                    Ok(move |path: &FilePath| {
                        black_box(directory.metadata(path.os_str())?);
                        Ok(())
                    })
                })
            }
            None => walk(trees, |thread| {
                let user = KernelUser::at(&path.join(top(thread)))?;
                Ok(move |path: &FilePath| user.stat(path.c_str()))
            }),
        }
    }
}

/// Walks all trees once; `user` makes what stats a file of a thread's tree.
fn walk<F>(trees: Trees, user: impl Fn(usize) -> io::Result<F>) -> io::Result<Outcome>
where
    F: FnMut(&FilePath) -> io::Result<()> + Send,
{
    let timed = |thread| {
        let mut stat = user(thread)?;
        Ok((Times::new(), move |times: &mut Times, path: &FilePath| {
            let start = Instant::now();
            stat(path)?;
            times.add(start.elapsed());
            Ok(())
        }))
    };
    let users = (0..trees.threads)
        .map(timed)
        .collect::<io::Result<Vec<_>>>()?;
    let (mut times, stats): (Vec<Times>, Vec<_>) = users.into_iter().unzip();
    let mut stats: Vec<_> = times
        .iter_mut()
        .zip(stats)
        .map(|(times, mut stat)| move |path: &FilePath| stat(times, path))
        .collect();
    let start = Instant::now();
    trees.walk_all(&mut stats, 1)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(stats);
    Ok(Outcome {
        latency: Some(Times::drain(times.iter_mut())),
        ..Outcome::plain(trees.all_files() as f64 / seconds)
    })
}
