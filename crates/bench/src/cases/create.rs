//! Many small files: made, written and closed, in random directories, ours over a directory and the kernel's.
//!
//! # Model
//!
//! A pass makes a tenth of all files, 4 KiB each. Ours over a directory with room for all of them; the kernel's
//! with `openat(2)`, `write(2)` and `close(2)` in a tree of the same shape. Both start from a descriptor of the
//! tree. Neither waits for the medium at the end. Ours makes the files durable meanwhile, on a background thread;
//! the kernel's data is still in its cache. Each turn begins without dirty data. After a turn of ours, the rest is
//! made durable outside the clock: its threads are idle in the others' turns.
//!
//! No tree is removed before the end. ext4 does not use the number of a removed inode again for minutes, and
//! a creation in the same block group looks at each such number: the first files after a removal took 7 ms each.
//!
//! | match | what it compares |
//! |---|---|
//! | many | the first tenth of the files in a fresh tree and the last one, after all others are durable; the kernel's, too |
//! | threads | one thread and two, each in directories of its own; the kernel's, too |

use foliocache::{Cache, Directory};
use foliocache_sys::fd::{OFlags, OwnedFd};
use foliocache_sys::memory::PAGE_SIZE;
use foliocache_sys::{fd, testing};
use std::ffi::CString;
use std::io;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cases::prelude::*;
use crate::latency::Latency;
use crate::place::find_memory;
use crate::threads::on_threads;

/// Bytes of a file, and for the estimate of the room.
const LEN: usize = 4096;

/// How the kernel makes a file.
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL);

/// Trees made so far: each needs a new path, so that no file exists before.
static TREES: AtomicUsize = AtomicUsize::new(0);

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let (memory, (dirs, files)) = (settings.bound()?, settings.tree()?);
    let folder = Folder::on_disk(settings)?;
    let all = (dirs * files).max(10);
    // Those of a round: two whole trees and a tenth more, and eight of a tenth with the controls. A block for each
    // file and one for its inode.
    let made = (settings.samples + 1) * (2 * all + 10 * (all / 10 + dirs));
    check_room(folder.path(), (made * 2 * LEN) as u64, made as u64)?;
    let descriptors = None;
    let ours = Ours {
        memory,
        descriptors,
    };
    let new = |ours, threads| Makers::new(&folder, dirs, threads, LEN, ours);
    let names = ["create, first tenth", "create, last tenth"];
    let mut many = first_and_last(names, [new(Some(ours), 1), new(None, 1)], all);
    ratios! { many;
        "create_late_vs_early" => 1 / 0, control_of(0), at_least(0.7);
        "create_late_vs_early_kernel" => 3 / 2, control_of(2);
        "create_vs_kernel" => 0 / 2;
        "create_late_vs_kernel" => 1 / 3;
    }
    let mut threads = Match::default();
    for (variant, ours) in [(DIRFS, Some(ours)), (KERNEL, None)] {
        for number in [1, 2] {
            let makers = new(ours, number);
            threads.add("create", variant, create(&makers, None, all / 10));
        }
    }
    ratios! { threads;
        "create_2t_vs_1t" => 1 / 0, at_least(1.6);
        "create_2t_vs_1t_kernel" => 3 / 2;
    }
    let description = folder.describe();
    Ok(Plan::at(vec![many, threads], folder, description))
}

/// The first tenth of all files of a tree, and the last one; ours and the kernel's.
pub(super) fn first_and_last(
    [first, last]: [&str; 2],
    [ours, kernels]: [Rc<RefCell<Makers>>; 2],
    all: usize,
) -> Match {
    let mut one = Match::default();
    let tenth = all / 10;
    for (variant, makers) in [(DIRFS, ours), (KERNEL, kernels)] {
        one.add(first, variant, create(&makers, None, tenth));
        one.add(last, variant, create(&makers, Some(all - tenth), tenth));
    }
    one
}

/// Makes `n` files after `skip` others, which are not measured, or in a fresh tree.
pub(super) fn create(makers: &Rc<RefCell<Makers>>, skip: Option<usize>, n: usize) -> Work {
    let (makers, threads) = (Rc::clone(makers), makers.borrow().threads);
    Work::pass(threads, "files/s", move || {
        let mut makers = makers.borrow_mut();
        let made = makers.tree.as_ref().map(|tree| tree.made);
        // Each turn makes the same files, whichever turn came before.
        if skip.is_none() || made > skip {
            makers.fresh()?;
        }
        if let Some(skip) = skip {
            let made = makers.tree.as_ref().map_or(0, |tree| tree.made);
            makers.make(skip - made)?;
            // Nothing is left to be written, here or in the kernel.
            makers.sync()?;
            let tree = makers.tree.as_ref();
            tree.map_or(Ok(()), |tree| fd::syncfs(tree.fd.as_fd()))?;
        }
        makers.find_memory(n)?;
        let start = Instant::now();
        let latency = makers.make(n)?;
        let outcome = Outcome::per_second(n, start).latency(latency);
        // The threads of ours have nothing to do in the turns of others. Outside the clock.
        if makers.ours.is_some() {
            makers.sync()?;
        }
        Ok(outcome)
    })
}

/// How ours is set up.
#[derive(Clone, Copy)]
pub(super) struct Ours {
    pub(super) memory: u64,
    /// The soft limit of open files for the contestant; `None` keeps the process's. It holds until
    /// the case ends.
    pub(super) descriptors: Option<u64>,
}

impl Ours {
    /// A new cache over a directory, with default settings.
    pub(super) fn open(self, path: &Path) -> io::Result<(Directory, Cache)> {
        if let Some(descriptors) = self.descriptors {
            fd::set_open_file_limit(descriptors)?;
        }
        let cache = Cache::builder().memory(self.memory).build()?;
        Ok((cache.directory(path)?, cache))
    }
}

/// A tree in which files are made, and our cache over it.
pub(super) struct Makers {
    folder: PathBuf,
    threads: usize,
    /// Directories of each thread.
    dirs: usize,
    /// Bytes of a file.
    len: usize,
    /// The kernel's without.
    ours: Option<Ours>,
    tree: Option<Tree>,
}

/// A tree of directories.
struct Tree {
    ours: Option<(Directory, Cache)>,
    /// The descriptor from which the kernel's side starts.
    fd: OwnedFd,
    made: usize,
}

impl Makers {
    pub(super) fn new(
        folder: &Folder,
        dirs: usize,
        threads: usize,
        len: usize,
        ours: Option<Ours>,
    ) -> Rc<RefCell<Makers>> {
        Rc::new(RefCell::new(Makers {
            folder: folder.path().to_owned(),
            threads,
            dirs: (dirs / threads).max(1),
            len,
            ours,
            tree: None,
        }))
    }

    /// An empty tree; the old one stays on the disk.
    pub(super) fn fresh(&mut self) -> io::Result<()> {
        self.tree = None;
        // Relaxed: it only has to be a unique number.
        let number = TREES.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(number.to_string());
        for dir in 0..self.dirs * self.threads {
            fs::create_dir_all(path.join(dir.to_string()))?;
        }
        let fd = fd::open(&path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        // Nothing of it is on its way while it is measured.
        fd::syncfs(fd.as_fd())?;
        let ours = self.ours.map(|ours| ours.open(&path));
        self.tree = Some(Tree {
            ours: ours.transpose()?,
            fd,
            made: 0,
        });
        Ok(())
    }

    /// Before `n` files are made and measured: see [`find_memory`].
    pub(super) fn find_memory(&self, n: usize) -> io::Result<()> {
        find_memory(n * (self.len.next_multiple_of(PAGE_SIZE) + PAGE_SIZE))
    }

    /// Makes `n` files, an equal part of them by each thread; how long each took.
    pub(super) fn make(&mut self, n: usize) -> io::Result<Latency> {
        if self.tree.is_none() {
            self.fresh()?;
        }
        let tree = self.tree.as_mut().expect("just made");
        let (first, dirs, threads, len) = (tree.made, self.dirs, self.threads, self.len);
        tree.made += n;
        let tree = &*tree;
        let mut all = on_threads(0..threads, |_, thread| {
            let mut random = Random((first * threads + thread) as u64);
            let (mut bytes, mut times) = (vec![0; len], Times::new());
            for number in (first + thread..first + n).step_by(threads) {
                let name = format!("{}/{number}", thread * dirs + random.below(dirs));
                let path = CString::new(name.as_str())?;
                bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
                let start = Instant::now();
                match &tree.ours {
                    Some((directory, _)) => {
                        directory
                            .create_new(Path::new(&name))?
                            .write_all_at(&bytes, 0)?;
                    }
                    None => {
                        let fd = testing::open_path(tree.fd.as_fd(), &path, NEW, 0o666)?;
                        fs::File::from(fd).write_all(&bytes)?;
                    }
                }
                times.add(start.elapsed());
            }
            Ok(times)
        })?;
        Ok(Times::drain(all.iter_mut()))
    }

    /// Makes the new files and names durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.tree {
            Some(Tree {
                ours: Some((_, cache)),
                ..
            }) => Ok(cache.sync()?),
            Some(tree) => Ok(fd::syncfs(tree.fd.as_fd())?),
            None => Ok(()),
        }
    }
}
