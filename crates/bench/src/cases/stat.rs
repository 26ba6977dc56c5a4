//! Stats of one file by a path of six components, by one thread and by all.
//!
//! # Model
//!
//! The file is in memory on both sides and everything on the way to it is cached. Ours is asked as user 1000,
//! whose permissions are checked in each directory, on a memfs and on a dirfs; the kernel by `statx` on a
//! tmpfs, from a directory's descriptor that each thread has for itself, so that nobody waits for anybody's
//! count but the file's own.
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

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use super::{AGAIN, DIRFS, KERNEL, OURS};
use crate::case::{Case, Contestant, Match, Plan, RatioPlan, Work, Worker, repeat};
use crate::error::BenchError;
use crate::names::{KernelTree, Make, Names, c_path};
use crate::references::{Chain, Path, Referenced};
use crate::settings::Settings;

/// See the module.
pub(crate) struct Stat;

const NAME: &str = "stat, six components";
const PRIVATE: &str = "stat, six components, each its own";
const MODEL: &str = "stat, model of the lines read";

/// Directories, and a file in the last of them.
const PATH: &str = "usr/share/doc/packages/library-1.2.3/readme.txt";

/// Memory of each cache: a few names.
const MEMORY: u64 = 16 << 20;

impl Case for Stat {
    fn name(&self) -> &'static str {
        "stat"
    }

    fn about(&self) -> &'static str {
        "stats of one cached file by a path of six components, by all threads"
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let tree = KernelTree::new(&settings.helper)?;
        fill(&*tree)?;
        let memfs = in_memory()?;
        let sides = Sides {
            memfs: &memfs,
            dirfs: &Names::over(&tree, MEMORY)?,
            kernel: &tree,
        };
        let threads = settings.threads;
        let mut matches = vec![sides.alone()?];
        if threads > 1 {
            matches.push(sides.together(threads)?);
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

/// Makes the file and what is above it.
fn fill(tree: &impl Make) -> Result<(), BenchError> {
    let made = || {
        for (end, _) in PATH.match_indices('/') {
            tree.dir(&PATH[..end])?;
        }
        tree.file(PATH)
    };
    made().map_err(|error| BenchError::setup(PATH, error))
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
    fn alone(&self) -> Result<Match, BenchError> {
        Ok(Match {
            contestants: vec![
                contestant(NAME, OURS, ours(self.memfs, 1)?),
                contestant(NAME, AGAIN, ours(self.memfs, 1)?),
                contestant(NAME, DIRFS, ours(self.dirfs, 1)?),
                contestant(NAME, KERNEL, kernel(self.kernel, 1)?),
            ],
            ratios: vec![
                RatioPlan::new("stat_vs_kernel", 0, 3),
                RatioPlan::new("stat_dirfs_vs_kernel", 2, 3),
                RatioPlan::new("stat_aa", 1, 0),
            ],
        })
    }

    fn together(&self, threads: usize) -> Result<Match, BenchError> {
        let names = RatioNames::of(threads);
        Ok(Match {
            contestants: vec![
                contestant(NAME, OURS, ours(self.memfs, threads)?),
                contestant(NAME, DIRFS, ours(self.dirfs, threads)?),
                contestant(NAME, KERNEL, kernel(self.kernel, threads)?),
            ],
            ratios: vec![
                RatioPlan::new(names.vs_kernel, 0, 2).at_least(10.0),
                RatioPlan::new(names.dirfs_vs_kernel, 1, 2),
            ],
        })
    }
}

/// What ratios of several threads are called: two are the usual case.
struct RatioNames {
    vs_kernel: &'static str,
    dirfs_vs_kernel: &'static str,
    scaling: &'static str,
    private_scaling: &'static str,
}

impl RatioNames {
    fn of(threads: usize) -> Self {
        match threads {
            2 => Self {
                vs_kernel: "stat_vs_kernel_2t",
                dirfs_vs_kernel: "stat_dirfs_vs_kernel_2t",
                scaling: "stat_scaling_2t",
                private_scaling: "stat_private_scaling_2t",
            },
            _ => Self {
                vs_kernel: "stat_vs_kernel_threads",
                dirfs_vs_kernel: "stat_dirfs_vs_kernel_threads",
                scaling: "stat_scaling_threads",
                private_scaling: "stat_private_scaling_threads",
            },
        }
    }
}

/// One file, one thread and several, beside as many threads with a file system each.
fn scaling(shared: &Arc<Names>, threads: usize) -> Result<Match, BenchError> {
    let own: Vec<_> = (0..threads)
        .map(|_| in_memory())
        .collect::<Result<_, _>>()?;
    let private = |threads: usize| -> Result<_, BenchError> {
        let each = own[..threads].iter().map(stat);
        Ok(contestant(PRIVATE, OURS, each.collect::<Result<_, _>>()?))
    };
    let names = RatioNames::of(threads);
    let mut scaling = RatioPlan::new(names.scaling, 2, 0).at_least(0.95);
    scaling.control = Some((3, 1));
    Ok(Match {
        contestants: vec![
            contestant(NAME, OURS, ours(shared, 1)?),
            private(1)?,
            contestant(NAME, OURS, ours(shared, threads)?),
            private(threads)?,
        ],
        ratios: vec![scaling, RatioPlan::new(names.private_scaling, 3, 1)],
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
    })
}

/// The lines that such a stat reads, with the count among them and apart; and without those references.
fn layouts(threads: usize) -> Match {
    let packed = Chain::<false>::new(PATH);
    let split = Chain::<true>::new(PATH);
    let disturbed = "stat, model of the lines read, beside references";
    let packed_beside = beside_references(&packed, &packed, threads);
    let split_beside = || beside_references(&split, &split, threads);
    Match {
        contestants: vec![
            contestant(disturbed, "count among", packed_beside),
            contestant(disturbed, "count apart", split_beside()),
            contestant(disturbed, "count apart again", split_beside()),
            contestant(MODEL, "count among", vec![walker(&packed)]),
            contestant(MODEL, "count apart", vec![walker(&split)]),
        ],
        ratios: vec![
            RatioPlan::new("stat_split_vs_packed", 1, 0),
            RatioPlan::new("stat_split_aa", 2, 1),
            RatioPlan::new("stat_split_vs_packed_alone", 4, 3),
        ],
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

fn ours(names: &Arc<Names>, threads: usize) -> Result<Vec<Box<dyn Worker>>, BenchError> {
    (0..threads).map(|_| stat(names)).collect()
}

fn stat(names: &Arc<Names>) -> Result<Box<dyn Worker>, BenchError> {
    let user = names.user("");
    let user = user.map_err(|error| BenchError::setup("the top of a tree", error))?;
    Ok(repeat(move || user.stat(OsStr::new(PATH))))
}

fn kernel(tree: &KernelTree, threads: usize) -> Result<Vec<Box<dyn Worker>>, BenchError> {
    let each = (0..threads).map(|_| {
        let (user, path) = (tree.user("")?, c_path(PATH));
        Ok(repeat(move || user.stat(&path)))
    });
    let each: io::Result<_> = each.collect();
    each.map_err(|error| BenchError::setup("the top of a tree", error))
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
