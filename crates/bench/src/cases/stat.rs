//! Stats by paths of six components, of one file and of 20,000, by one thread and by all.
//!
//! # Model
//!
//! The file is in memory on both sides and everything on the way to it is cached. Ours is asked as user 1000,
//! whose permissions are checked in each directory, on a memfs and on a dirfs; the kernel by `statx` on a
//! tmpfs, from a directory's descriptor that each thread has for itself, so that nobody waits for anybody's
//! count but the file's own.
//!
//! One path over and over is the best that there is: its directories are those that the thread
//! [remembers](../../../../docs/decisions/0019-each-thread-remembers-the-directories-of-its-paths.md).
//! 20,000 paths in an order at random, in 1,000 directories, are the other end: a thread remembers 32 directories, and one
//! comes again after 1,000 others, so what it remembers is of no use, and names come from memory that the processor
//! has not cached. Lists of paths are read from front to back.
//!
//! Scaling: one file by several threads over the same by one, divided by what the same loop gains where each
//! thread has a file system of its own. What all of these have in common, the RCU domain for one, shows in
//! the control's own gain, which is reported beside it.
//!
//! References: half of the threads stat while the others take references of the same name and drop them, or
//! of another path's. That a dentry has its count on a line that no look-up reads should make these the same.
//! What the distance is worth is measured over a [model](crate::references) of both layouts. Only the stats are
//! counted. Where two processors are two threads of one core they
//! share its cache, and a line that goes to and fro between them costs next to nothing.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::{DIRFS_AS_USER, KERNEL, OURS_AS_USER};
use crate::case::{Case, Contestant, Match, Plan, RatioPlan, Work, Worker, repeat};
use crate::error::BenchError;
use crate::names::{KernelTree, Make, Names, c_path};
use crate::place::Random;
use crate::references::{Chain, Path, Referenced};
use crate::settings::Settings;

/// See the module.
pub(crate) struct Stat;

const NAME: &str = "stat, six components";
const MANY: &str = "stat, six components, 20,000 paths in 1,000 directories";
const PRIVATE: &str = "stat, six components, each its own";
const MODEL: &str = "stat, model of the lines read";

/// Directories, and a file in the last of them.
const PATH: &str = "usr/share/doc/packages/library-1.2.3/readme.txt";

/// Directories at each of three levels, and files in each of the lowest: 1,000 and 20,000.
const WIDTH: usize = 10;
const FILES: usize = 20;

/// Of the order of many paths.
const SEED: u64 = 45;

/// Memory of each cache: room for all names.
const MEMORY: u64 = 128 << 20;

impl Case for Stat {
    fn name(&self) -> &'static str {
        "stat"
    }

    fn about(&self) -> &'static str {
        "stats of cached files by paths of six components: one path, and 20,000 at random"
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 40 } else { 300 }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let tree = KernelTree::new(&settings.helper)?;
        fill(&*tree)?;
        fill_many(&*tree)?;
        let memfs = in_memory()?;
        fill_many(&*memfs)?;
        let sides = Sides {
            memfs: &memfs,
            dirfs: &Names::over(&tree, MEMORY)?,
            kernel: &tree,
        };
        let threads = settings.threads;
        let mut matches = Vec::new();
        for paths in [&vec![c_path(PATH)], &many_paths()] {
            matches.push(sides.of(paths, 1)?);
            if threads > 1 {
                matches.push(sides.of(paths, threads)?);
            }
        }
        if threads > 1 {
            matches.push(scaling(&memfs, threads)?);
            matches.push(references(threads)?);
            matches.push(layouts(threads));
        }
        Ok(Plan {
            matches,
            ..Plan::default()
        })
    }
}

/// Makes the one file and what is above it.
fn fill(tree: &impl Make) -> Result<(), BenchError> {
    let made = || {
        for (end, _) in PATH.match_indices('/') {
            tree.dir(&PATH[..end])?;
        }
        tree.file(PATH)
    };
    made().map_err(|error| BenchError::setup(PATH, error))
}

/// Makes the others.
fn fill_many(tree: &impl Make) -> Result<(), BenchError> {
    let made = || {
        let mut last = String::new();
        for path in tree_paths() {
            for (end, _) in path.match_indices('/').skip(2) {
                // Each directory before the first file in it.
                if !last.starts_with(&path[..=end]) {
                    tree.dir(&path[..end])?;
                }
            }
            tree.file(&path)?;
            last = path;
        }
        Ok(())
    };
    made().map_err(|error: io::Error| BenchError::setup("a tree of files", error))
}

/// 20,000 paths below `usr/share`, directory by directory.
fn tree_paths() -> impl Iterator<Item = String> {
    let dirs = WIDTH * WIDTH * WIDTH;
    (0..dirs * FILES).map(|number| {
        let (dir, file) = (number / FILES, number % FILES);
        let (a, b, c) = (dir / WIDTH / WIDTH, dir / WIDTH % WIDTH, dir % WIDTH);
        format!("usr/share/{a}/{b}/{c}/file-{file}.txt")
    })
}

/// The same at random.
fn many_paths() -> Vec<CString> {
    let mut paths: Vec<String> = tree_paths().collect();
    Random(SEED).shuffle(&mut paths);
    paths.iter().map(|path| c_path(path)).collect()
}

fn in_memory() -> Result<Arc<Names>, BenchError> {
    let names = Names::memory(MEMORY)?;
    fill(&*names)?;
    Ok(names)
}

/// Who is compared.
struct Sides<'a> {
    memfs: &'a Arc<Names>,
    dirfs: &'a Arc<Names>,
    kernel: &'a KernelTree,
}

impl Sides<'_> {
    /// Stats of each of the paths, by so many threads.
    fn of(&self, paths: &[CString], threads: usize) -> Result<Match, BenchError> {
        let names = RatioNames::of(paths.len(), threads);
        let name = if paths.len() > 1 { MANY } else { NAME };
        let mut one = Match::default();
        let mut add = |variant, workers| one.add(name, variant, Work::Operations(workers));
        let memfs = add(OURS_AS_USER, ours(self.memfs, paths, threads)?);
        let dirfs = add(DIRFS_AS_USER, ours(self.dirfs, paths, threads)?);
        let kernel = add(KERNEL, kernel(self.kernel, paths, threads)?);
        one.ratios = vec![
            names.vs_kernel.between(memfs, kernel),
            RatioPlan::new(names.dirfs_vs_kernel, dirfs, kernel),
        ];
        Ok(one)
    }
}

/// What ratios of stats are called: two are the usual case of several threads.
struct RatioNames {
    vs_kernel: RatioPlan,
    dirfs_vs_kernel: &'static str,
}

impl RatioNames {
    fn of(paths: usize, threads: usize) -> Self {
        let (vs_kernel, dirfs_vs_kernel) = match (paths, threads) {
            (1, 1) => ("stat_vs_kernel", "stat_dirfs_vs_kernel"),
            (1, 2) => ("stat_vs_kernel_2t", "stat_dirfs_vs_kernel_2t"),
            (1, _) => ("stat_vs_kernel_threads", "stat_dirfs_vs_kernel_threads"),
            (_, 1) => ("stat_many_vs_kernel", "stat_many_dirfs_vs_kernel"),
            (_, 2) => ("stat_many_vs_kernel_2t", "stat_many_dirfs_vs_kernel_2t"),
            _ => (
                "stat_many_vs_kernel_threads",
                "stat_many_dirfs_vs_kernel_threads",
            ),
        };
        let vs_kernel = RatioPlan::new(vs_kernel, 0, 0);
        Self {
            vs_kernel: match (paths, threads) {
                (1, 2..) => vs_kernel.at_least(10.0),
                _ => vs_kernel,
            },
            dirfs_vs_kernel,
        }
    }
}

/// One file, one thread and several, beside as many threads with a file system each.
fn scaling(shared: &Arc<Names>, threads: usize) -> Result<Match, BenchError> {
    let own: Vec<_> = (0..threads)
        .map(|_| in_memory())
        .collect::<Result<_, _>>()?;
    let path = [c_path(PATH)];
    let private = |threads: usize| -> Result<_, BenchError> {
        let each = own[..threads].iter().map(|names| stat(names, &path, 0));
        let each = each.collect::<Result<_, _>>()?;
        Ok(contestant(PRIVATE, OURS_AS_USER, each))
    };
    let (name, private_name) = match threads {
        2 => ("stat_scaling_2t", "stat_private_scaling_2t"),
        _ => ("stat_scaling_threads", "stat_private_scaling_threads"),
    };
    let mut scaling = RatioPlan::new(name, 2, 0).at_least(0.95);
    scaling.divisor = Some((3, 1));
    Ok(Match {
        contestants: vec![
            contestant(NAME, OURS_AS_USER, ours(shared, &path, 1)?),
            private(1)?,
            contestant(NAME, OURS_AS_USER, ours(shared, &path, threads)?),
            private(threads)?,
        ],
        ratios: vec![scaling, RatioPlan::new(private_name, 3, 1)],
        ..Match::default()
    })
}

/// Stats of cached names while others take references of the last one, or of another.
fn references(threads: usize) -> Result<Match, BenchError> {
    let (path, other) = (Path::new(PATH)?, Path::new(PATH)?);
    let name = "stat, walk only, beside references";
    Ok(Match {
        contestants: vec![
            contestant(name, "of it", beside_references(&path, &path, threads)),
            contestant(
                name,
                "of another",
                beside_references(&path, &other, threads),
            ),
        ],
        ratios: vec![RatioPlan::new("stat_beside_references", 0, 1)],
        ..Match::default()
    })
}

/// The lines that such a stat reads, with the count among them and apart; and without those references.
fn layouts(threads: usize) -> Match {
    let packed = Chain::<false>::new(PATH);
    let split = Chain::<true>::new(PATH);
    let disturbed = "stat, model of the lines read, beside references";
    let packed_beside = beside_references(&packed, &packed, threads);
    let split_beside = beside_references(&split, &split, threads);
    Match {
        contestants: vec![
            contestant(disturbed, "count among", packed_beside),
            contestant(disturbed, "count apart", split_beside),
            contestant(MODEL, "count among", vec![walker(&packed)]),
            contestant(MODEL, "count apart", vec![walker(&split)]),
        ],
        ratios: vec![
            RatioPlan::new("stat_split_vs_packed", 1, 0),
            RatioPlan::new("stat_split_vs_packed_alone", 3, 2),
        ],
        ..Match::default()
    }
}

fn contestant(
    name: &'static str,
    variant: &'static str,
    workers: Vec<Box<dyn Worker>>,
) -> Contestant {
    Contestant {
        name,
        variant,
        work: Work::Operations(workers),
    }
}

fn ours(
    names: &Arc<Names>,
    paths: &[CString],
    threads: usize,
) -> Result<Vec<Box<dyn Worker>>, BenchError> {
    (0..threads)
        .map(|thread| stat(names, paths, thread))
        .collect()
}

/// One path after another, over and over, of a list that begins elsewhere for each thread.
fn stat(
    names: &Arc<Names>,
    paths: &[CString],
    thread: usize,
) -> Result<Box<dyn Worker>, BenchError> {
    let user = names.user("");
    let user = user.map_err(|error| BenchError::setup("the top of a tree", error))?;
    let mut paths = Round::new(paths, thread);
    Ok(repeat(move || {
        user.stat(OsStr::from_bytes(paths.next().to_bytes()))
    }))
}

fn kernel(
    tree: &KernelTree,
    paths: &[CString],
    threads: usize,
) -> Result<Vec<Box<dyn Worker>>, BenchError> {
    let each = (0..threads).map(|thread| {
        let (user, mut paths) = (tree.user("")?, Round::new(paths, thread));
        Ok(repeat(move || user.stat(paths.next())))
    });
    let each: io::Result<_> = each.collect();
    each.map_err(|error| BenchError::setup("the top of a tree", error))
}

/// The paths of a list, over and over.
struct Round {
    paths: Vec<CString>,
    at: usize,
}

impl Round {
    /// From another place on for each thread.
    fn new(paths: &[CString], thread: usize) -> Self {
        Self {
            paths: paths.to_vec(),
            at: thread * paths.len() / 7,
        }
    }

    #[inline]
    fn next(&mut self) -> &CStr {
        self.at += 1;
        if self.at >= self.paths.len() {
            self.at = 0;
        }
        &self.paths[self.at]
    }
}

fn walker<T: Referenced>(path: &Arc<T>) -> Box<dyn Worker> {
    let path = Arc::clone(path);
    repeat(move || path.stat())
}

/// Half of the threads stat `path`, the others take references of `referenced` and drop them.
fn beside_references<T: Referenced>(
    path: &Arc<T>,
    referenced: &Arc<T>,
    threads: usize,
) -> Vec<Box<dyn Worker>> {
    let others = threads / 2;
    let stats = (others..threads).map(|_| walker(path));
    let others = (0..others).map(|_| {
        let referenced = Arc::clone(referenced);
        let references = repeat(move || {
            referenced.take_and_drop();
            Ok(())
        });
        Box::new(Uncounted(references)) as Box<dyn Worker>
    });
    stats.chain(others).collect()
}

/// Works, and counts for nothing.
struct Uncounted(Box<dyn Worker>);

impl Worker for Uncounted {
    fn batch(&mut self) -> io::Result<u64> {
        self.0.batch().map(|_| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// So little of it that threads remember 32 directories of 1,000 for nothing.
    #[test]
    fn many_paths_seldom_come_back_to_a_directory() {
        let paths = many_paths();
        assert_eq!(paths.iter().collect::<HashSet<_>>().len(), 20_000);
        let dirs: Vec<&[u8]> = paths
            .iter()
            .map(|path| {
                path.to_bytes()
                    .rsplitn(2, |byte| *byte == b'/')
                    .last()
                    .unwrap()
            })
            .collect();
        assert_eq!(dirs.iter().collect::<HashSet<_>>().len(), 1_000);
        assert!(
            paths
                .iter()
                .all(|path| path.to_bytes().split(|byte| *byte == b'/').count() == 6)
        );
        let back = dirs
            .windows(33)
            .filter(|last| last[..32].contains(&last[32]));
        assert!(back.count() < 1_000, "a twentieth");
    }

    #[test]
    fn a_list_goes_round() {
        let paths = ["a", "b", "c"].map(c_path);
        let mut round = Round::new(&paths, 0);
        let seen: Vec<CString> = (0..4).map(|_| round.next().to_owned()).collect();
        assert_eq!(seen, ["b", "c", "a", "b"].map(c_path));
    }
}
