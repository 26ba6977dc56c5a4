//! Stats by paths of six components, of one file and of 20,000, by one thread and by all.
//!
//! # Model
//!
//! The file is in memory on both sides, and its whole path is cached. Ours is called as user 1000, whose
//! permissions are checked in each directory, on a memfs and on a dirfs; the kernel by `statx` on a tmpfs, from a
//! directory descriptor for each thread, so that threads share only the file's own count.
//!
//! One repeated path is the best case: its directories are those that the thread
//! [remembers](../../../../docs/decisions/0019-each-thread-remembers-the-directories-of-its-paths.md). 20,000 paths
//! in random order, in 1,000 directories, are the other extreme: a thread remembers 32 directories, and each one
//! recurs after 1,000 others, so the memory is of no use, and names come from memory that is not in the processor's
//! caches. Lists of paths are read from front to back.
//!
//! Scaling: one file by several threads over the same by one, divided by the gain of the same loop where each
//! thread has a separate file system. Costs that these share, such as the RCU domain, show in the control's own
//! gain, which is reported beside it.
//!
//! References: half of the threads stat while the others take references of the same name and drop them, or
//! of another path's. That a dentry has its count on a line that no look-up reads should make these the same. So do whole calls: the others open
//! the file and drop it, or another one, which counts references of its inode, too.
//! The worth of the distance is measured over a [model](crate::references) of both layouts. Only the stats are
//! counted. Where two processors are two threads of one core they
//! share its cache, and a line that goes to and fro between them costs next to nothing.

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

use crate::cases::prelude::*;
use crate::names::{KernelTree, KernelUser, Make, Names, c_path};
use crate::references::{Chain, Path, Referenced};

const NAME: &str = "stat, six components";
const MANY: &str = "stat, six components, 20,000 paths in 1,000 directories";
const PRIVATE: &str = "stat, six components, each its own";
const WALK: &str = "stat, walk only, beside references";
const OPENS: &str = "stat, six components, beside opens";
const MODEL: &str = "stat, model of the lines read";
const DISTURBED: &str = "stat, model of the lines read, beside references";

/// Directories, and a file in the last of them.
const PATH: &str = "usr/share/doc/packages/library-1.2.3/readme.txt";

/// Another file, none of whose directories but the first two are those of [`PATH`]: the first of many.
const OTHER: &str = "usr/share/0/0/0/file-0.txt";

/// Directories at each of three levels, and files in each of the lowest: 1,000 and 20,000.
const WIDTH: usize = 10;
const FILES: usize = 20;

/// Of the order of many paths.
const SEED: u64 = 45;

/// Memory of each cache: room for all names.
const MEMORY: u64 = 128 << 20;

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let tree = KernelTree::new(&settings.helper)?;
    fill(tree.path(), true)?;
    let memfs = Names::new(MEMORY, None)?;
    fill(&*memfs, true)?;
    let dirfs = Names::new(MEMORY, Some(&tree))?;
    let threads = settings.threads;
    // The end of the names of ratios: two is the usual number of threads.
    let of_threads = if threads == 2 { "_2t" } else { "_threads" };
    let mut matches = Vec::new();
    for (name, id, paths, aim) in [
        (NAME, "stat", vec![c_path(PATH)], Some(10.0)),
        (MANY, "stat_many", many_paths(), None),
    ] {
        for (threads, suffix, aim) in [(1, "", None), (threads, of_threads, aim)] {
            if threads == 1 && !suffix.is_empty() {
                continue;
            }
            let mut one = Match {
                suffix,
                ..Match::default()
            };
            for (variant, names) in [(OURS_AS_USER, &memfs), (DIRFS_AS_USER, &dirfs)] {
                one.operations(name, variant, ours(|_| names, &paths, threads)?);
            }
            let kernel = set_up("the top of a tree", || {
                let each = (0..threads).map(|thread| {
                    let user = KernelUser::at(tree.path())?;
                    let mut paths = Round::new(&paths, thread);
                    Ok(repeat(move || user.stat(paths.next())))
                });
                each.collect()
            })?;
            one.operations(name, KERNEL, kernel);
            ratios! { one;
                format!("{id}_vs_kernel") => OURS_AS_USER / KERNEL, at_least(aim);
                format!("{id}_dirfs_vs_kernel") => DIRFS_AS_USER / KERNEL;
            }
            matches.push(one);
        }
    }
    if threads > 1 {
        matches.extend([
            scaling(&memfs, threads, of_threads)?,
            references(threads)?,
            opens(&memfs, &tree, threads)?,
            layouts(threads),
        ]);
    }
    Ok(Plan {
        holds: vec![Rc::new(tree)],
        ..matches.into()
    })
}

/// Makes the one file with its directories, and the many.
fn fill(tree: &(impl Make + ?Sized), many: bool) -> Result<(), BenchError> {
    set_up("a tree of files", || {
        let mut last = String::new();
        let many = many.then(tree_paths).into_iter().flatten();
        for path in std::iter::once(PATH.to_owned()).chain(many) {
            for (end, _) in path.match_indices('/') {
                // Each directory before the first file in it.
                if !last.starts_with(&path[..=end]) {
                    tree.dir(&path[..end])?;
                }
            }
            tree.file(&path)?;
            last = path;
        }
        Ok(())
    })
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

/// Threads of ours, each with the file system of its number.
fn ours<'a>(
    names: impl Fn(usize) -> &'a Arc<Names>,
    paths: &[CString],
    threads: usize,
) -> Result<Vec<Box<dyn Worker>>, BenchError> {
    set_up("the top of a tree", || {
        let each = (0..threads).map(|thread| {
            let (user, mut paths) = (names(thread).user("")?, Round::new(paths, thread));
            Ok(repeat(move || {
                user.stat(OsStr::from_bytes(paths.next().to_bytes()))
            }))
        });
        each.collect()
    })
}

/// One file, one thread and several, beside as many threads with a file system each.
fn scaling(shared: &Arc<Names>, threads: usize, suffix: &'static str) -> Result<Match, BenchError> {
    let mut own = Vec::new();
    for _ in 0..threads {
        own.push(Names::new(MEMORY, None)?);
        fill(&**own.last().expect("just added"), false)?;
    }
    let path = [c_path(PATH)];
    let mut one = Match {
        suffix,
        ..Match::default()
    };
    for threads in [1, threads] {
        one.operations(NAME, OURS_AS_USER, ours(|_| shared, &path, threads)?);
        let private = ours(|thread| &own[thread], &path, threads)?;
        one.operations(PRIVATE, OURS_AS_USER, private);
    }
    ratios! { one;
        "stat_scaling" => 2 / 0, over((3, 1)), at_least(0.95);
        "stat_private_scaling" => 3 / 1;
    }
    Ok(one)
}

/// Stats of cached names while others take references of the last one, or of another.
fn references(threads: usize) -> Result<Match, BenchError> {
    let (path, other) = (Path::new(PATH)?, Path::new(PATH)?);
    let mut one = Match::default();
    for (variant, referenced) in [("of it", &path), ("of another", &other)] {
        one.operations(WALK, variant, beside_references(&path, referenced, threads));
    }
    ratios! { one; "stat_beside_references" => 0 / 1; }
    Ok(one)
}

/// Stats of a file while others open and drop it, or another one.
fn opens(memfs: &Arc<Names>, tree: &KernelTree, threads: usize) -> Result<Match, BenchError> {
    let mut one = Match::default();
    for (variant, kernels, opened) in [
        ("foliocache, of it", "kernel, of it", PATH),
        ("foliocache, of another", "kernel, of another", OTHER),
    ] {
        let ours = set_up("the top of a tree", || {
            beside(threads, |opens| {
                let user = memfs.user("")?;
                Ok(repeat(move || match opens {
                    true => user.open(OsStr::new(opened)),
                    false => user.stat(OsStr::new(PATH)),
                }))
            })
        })?;
        one.operations(OPENS, variant, ours);
        let kernel = set_up("the top of a tree", || {
            beside(threads, |opens| {
                let user = KernelUser::at(tree.path())?;
                let (path, opened) = (c_path(PATH), c_path(opened));
                Ok(repeat(move || match opens {
                    true => user.open(&opened),
                    false => user.stat(&path),
                }))
            })
        })?;
        one.operations(OPENS, kernels, kernel);
    }
    ratios! { one;
        "stat_beside_opens" => 0 / 2;
        "stat_beside_opens_kernel" => 1 / 3;
        "stat_beside_opens_vs_kernel" => 0 / 1;
    }
    Ok(one)
}

/// The lines that such a stat reads, with the count among them and apart; and without those references.
fn layouts(threads: usize) -> Match {
    let (among, apart) = ("count among", "count apart");
    let packed = Chain::<false>::new(PATH);
    let split = Chain::<true>::new(PATH);
    let mut one = Match::default();
    let beside = beside_references(&packed, &packed, threads);
    one.operations(DISTURBED, among, beside);
    one.operations(DISTURBED, apart, beside_references(&split, &split, threads));
    one.operations(MODEL, among, vec![walker(&packed)]);
    one.operations(MODEL, apart, vec![walker(&split)]);
    ratios! { one;
        "stat_split_vs_packed" => 1 / 0;
        "stat_split_vs_packed_alone" => 3 / 2;
    }
    one
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
    let worker = |takes| match takes {
        true => {
            let referenced = Arc::clone(referenced);
            Ok::<_, Infallible>(repeat(move || {
                referenced.take_and_drop();
                Ok(())
            }))
        }
        false => Ok(walker(path)),
    };
    let Ok(workers) = beside(threads, worker);
    workers
}

/// Workers that are told whether they are in the way: half of them are, and count for nothing.
fn beside<E>(
    threads: usize,
    worker: impl Fn(bool) -> Result<Box<dyn Worker>, E>,
) -> Result<Vec<Box<dyn Worker>>, E> {
    let others = threads / 2;
    let stats = (others..threads).map(|_| worker(false));
    let others = (0..others).map(|_| Ok(Box::new(Uncounted(worker(true)?)) as Box<dyn Worker>));
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
