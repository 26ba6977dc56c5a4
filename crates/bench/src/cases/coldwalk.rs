//! Walks of trees on a disk that are larger than the cache: each name is a miss.
//!
//! # Model
//!
//! The test from the kernel's change that moved look-ups of the inode hash under RCU: each thread walks its tree,
//! directory by directory, and stats each file once. Each name is a miss; the directories on its path are cached.
//! The original has 20 threads with 1,000 directories of 1,000 files each (`--threads 20 --dirs 1000 --files 1000
//! --memory 4G`).
//!
//! Before each turn the kernel drops its dentries and inodes (that needs root), for both sides: below ours it has to find
//! each name as well. Ours begins with a new cache, with default settings but for a bound that holds less than half of the
//! names, so it evicts as it goes. The kernel has the whole machine for its caches and evicts nothing unless the trees are
//! larger than that: bounded by a memory cgroup it is killed on ext4, whose inodes are allocated where no inode may be
//! reclaimed. Blocks of the file system stay in the kernel's cache as far as they fit.

use foliocache::Cache;

use crate::cases::prelude::*;
use crate::names::KernelUser;
use crate::place::DROP_CACHES;
use crate::trees::{FilePath, Trees, top};

const NAME: &str = "walk, names not cached";

/// Bytes of the disk that a name takes, at most: its inode and its entry.
const ON_DISK: u64 = 512;

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
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
    trees.make(folder.path())?;
    let folder = Rc::new(folder);
    let mut one = Match::default();
    for (variant, bound) in [(DIRFS, Some(memory)), (KERNEL, None)] {
        let folder = Rc::clone(&folder);
        let walk = move || {
            fs::write(DROP_CACHES, "2")?;
            walk_all(&folder, bound, trees)
        };
        one.add(NAME, variant, Work::pass(trees.threads, "files/s", walk));
    }
    ratios! { one; "coldwalk_vs_kernel" => 0 / 1; }
    let mut plan = Plan::at(vec![one], Rc::clone(&folder), folder.describe());
    plan.notes.push(format!(
        "{files} files; ours has a bound of {} MiB, the kernel the whole machine",
        memory >> 20
    ));
    Ok(plan)
}

/// One side's walk of all trees; `bound` is that of our cache.
fn walk_all(folder: &Folder, bound: Option<u64>, trees: Trees) -> io::Result<Outcome> {
    let path = folder.path();
    let Some(bound) = bound else {
        return walk(trees, |thread| {
            let user = KernelUser::at(&path.join(top(thread)))?;
            Ok(move |path: &FilePath| user.stat(path.c_str()))
        });
    };
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

/// Walks all trees once; `user` makes the function that stats a file of a thread's tree.
fn walk<F>(trees: Trees, user: impl Fn(usize) -> io::Result<F>) -> io::Result<Outcome>
where
    F: FnMut(&FilePath) -> io::Result<()> + Send,
{
    struct Timed<F>(Times, F);
    let timed = |thread| Ok(Timed(Times::new(), user(thread)?));
    let users = (0..trees.threads).map(timed);
    let mut users: Vec<_> = users.collect::<io::Result<_>>()?;
    let mut stats: Vec<_> = users
        .iter_mut()
        .map(|Timed(times, stat)| {
            move |path: &FilePath| {
                let start = Instant::now();
                stat(path)?;
                times.add(start.elapsed());
                Ok(())
            }
        })
        .collect();
    let start = Instant::now();
    trees.walk_all(&mut stats, 1)?;
    let outcome = Outcome::per_second(trees.all_files(), start);
    drop(stats);
    let times = users.iter_mut().map(|Timed(times, _)| times);
    Ok(outcome.latency(Times::drain(times)))
}
