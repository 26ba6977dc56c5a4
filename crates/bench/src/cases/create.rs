//! Many small files: made, written and closed, in random directories, ours over a directory and the kernel's.
//!
//! # Model
//!
//! A pass makes a tenth of all files, 4 KiB each. Ours over a directory with room for all of them; the kernel's
//! with `openat(2)`, `write(2)` and `close(2)` in a tree of the same shape. Both start from a descriptor of the tree.
//! Neither waits for the medium at the end. Ours makes the files durable as it goes, in a thread of its own; the
//! kernel's data is still in its cache. Each turn begins with nothing to be written. What ours has left after its
//! turn is made durable outside the clock: its threads are idle in the others' turns.
//!
//! No tree is removed before the end. ext4 does not use the number of a removed inode again for minutes, and
//! a creation in the same block group looks at each such number: the first files after a removal took 7 ms each.
//!
//! | match | what it compares |
//! |---|---|
//! | many | the first tenth of the files in a fresh tree and the last one, after all others are durable; the kernel's, too |
//! | threads | one thread and two, each in directories of its own; the kernel's, too |

use foliocache::{Cache, Directory};
use foliocache_sys::dir;
use foliocache_sys::fd::{self, OFlags, OwnedFd};
use foliocache_sys::memory::PAGE_SIZE;
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use super::{DIRFS, KERNEL};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::latency::{Latency, Times};
use crate::place::{Folder, Random, check_room, find_memory};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Create;

const FIRST: &str = "create, first tenth";
const LAST: &str = "create, last tenth";
const NAME: &str = "create";

/// The soft limit of open files that most processes have.
pub(super) const USUAL_LIMIT: u64 = 1024;

/// Bytes of a file, and for the room that is asked for.
const LEN: usize = 4096;

/// How the kernel makes a file.
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL);

/// Trees made so far: each has a path of its own, or files would be made that are there.
static TREES: AtomicUsize = AtomicUsize::new(0);

impl Case for Create {
    fn name(&self) -> &'static str {
        "create"
    }

    fn about(&self) -> &'static str {
        "many small files made, written and closed in random directories"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, dirs, files) = match quick {
            true => (4, 100, 200),
            false => (6, 100, 1000),
        };
        Settings {
            samples,
            threads: 2,
            memory: Some(1 << 30),
            dirs: Some(dirs),
            files: Some(files),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 360 }
    }

    fn uses(&self) -> Uses {
        Uses {
            memory: true,
            dir: true,
            tree: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = super::memory(settings, self)?;
        let (dirs, files) = settings
            .dirs
            .zip(settings.files)
            .ok_or(BenchError::Setting("no tree"))?;
        let folder = Folder::on_disk(settings)?;
        let all = (dirs * files).max(10);
        // Those of a round: two whole trees and a tenth more, and eight of a tenth with the controls. A block for each
        // file and one for its inode.
        let made = (settings.samples + 1) * (2 * all + 10 * (all / 10 + dirs));
        check_room(folder.path(), (made * 2 * LEN) as u64, made as u64)?;
        let place = folder.describe();
        let folder = Arc::new(folder);
        let kernel = |threads: usize| Makers::new(&folder, dirs, threads, LEN, None);
        let ours = |threads: usize| {
            let side = Ours {
                memory,
                descriptors: None,
            };
            Makers::new(&folder, dirs, threads, LEN, Some(side))
        };
        let (many, kernels) = (ours(1), kernel(1));
        let tenth = all / 10;
        Ok(Plan {
            matches: vec![
                Match {
                    contestants: vec![
                        pass(FIRST, DIRFS, &many, None, tenth),
                        pass(LAST, DIRFS, &many, Some(all - tenth), tenth),
                        pass(FIRST, KERNEL, &kernels, None, tenth),
                        pass(LAST, KERNEL, &kernels, Some(all - tenth), tenth),
                    ],
                    ratios: vec![
                        RatioPlan::new("create_late_vs_early", 1, 0)
                            .control_of(0)
                            .at_least(0.7),
                        RatioPlan::new("create_late_vs_early_kernel", 3, 2).control_of(2),
                        RatioPlan::new("create_vs_kernel", 0, 2),
                        RatioPlan::new("create_late_vs_kernel", 1, 3),
                    ],
                    ..Match::default()
                },
                Match {
                    contestants: vec![
                        pass(NAME, DIRFS, &ours(1), None, tenth),
                        pass(NAME, DIRFS, &ours(2), None, tenth),
                        pass(NAME, KERNEL, &kernel(1), None, tenth),
                        pass(NAME, KERNEL, &kernel(2), None, tenth),
                    ],
                    ratios: vec![
                        RatioPlan::new("create_2t_vs_1t", 1, 0).at_least(1.6),
                        RatioPlan::new("create_2t_vs_1t_kernel", 3, 2),
                    ],
                    ..Match::default()
                },
            ],
            place: Some(place),
            ..Plan::default()
        })
    }
}

/// A contestant that makes `n` files after `skip` others, or in a fresh tree.
pub(super) fn pass(
    name: &'static str,
    variant: &'static str,
    makers: &Arc<Mutex<Makers>>,
    skip: Option<usize>,
    n: usize,
) -> Contestant {
    Contestant {
        name,
        variant,
        work: Work::Pass {
            threads: makers.lock().expect("no panic").threads,
            unit: "files/s",
            pass: Box::new(Tenth {
                makers: makers.clone(),
                skip,
                n,
            }),
        },
    }
}

/// How ours is set up.
#[derive(Clone, Copy)]
pub(super) struct Ours {
    pub(super) memory: u64,
    /// The soft limit of open files that it gets to see, if not the process's. It stays until the
    /// case is over.
    pub(super) descriptors: Option<u64>,
}

impl Ours {
    /// A cache of its own over a directory, with default settings.
    pub(super) fn open(self, path: &Path) -> io::Result<(Directory, Cache)> {
        if let Some(descriptors) = self.descriptors {
            fd::set_open_file_limit(descriptors)?;
        }
        let cache = Cache::builder().memory(self.memory).build()?;
        Ok((cache.directory(path)?, cache))
    }
}

/// What makes files: a tree, and where ours looks at it.
pub(super) struct Makers {
    folder: Arc<Folder>,
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
    /// What the kernel starts from.
    fd: OwnedFd,
    made: usize,
}

impl Makers {
    pub(super) fn new(
        folder: &Arc<Folder>,
        dirs: usize,
        threads: usize,
        len: usize,
        ours: Option<Ours>,
    ) -> Arc<Mutex<Makers>> {
        Arc::new(Mutex::new(Makers {
            folder: folder.clone(),
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
        // Relaxed: a number that nobody else has, no more.
        let number = TREES.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.path().join(number.to_string());
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
        let part = |thread: usize| -> io::Result<Times> {
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
                        let fd = dir::open_path(tree.fd.as_fd(), &path, NEW, 0o666)?;
                        fs::File::from(fd).write_all(&bytes)?;
                    }
                }
                times.add(start.elapsed());
            }
            Ok(times)
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .map(|thread| scope.spawn(move || part(thread)))
                .collect();
            let mut all = vec![part(0)];
            all.extend(
                others
                    .into_iter()
                    .map(|other| other.join().expect("no panic")),
            );
            let mut all = all.into_iter().collect::<io::Result<Vec<_>>>()?;
            Ok(Times::drain(all.iter_mut()))
        })
    }

    /// Makes durable what was made, files and names.
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

    /// Makes ours durable, so that its threads have nothing to do in the turns of others. Outside the clock.
    pub(super) fn rest(&self) -> io::Result<()> {
        match self.ours {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    /// Leaves nothing to be written, here or in the kernel. Outside the clock.
    fn settle(&self) -> io::Result<()> {
        self.sync()?;
        match &self.tree {
            Some(tree) => Ok(fd::syncfs(tree.fd.as_fd())?),
            None => Ok(()),
        }
    }
}

/// A tenth of the files.
struct Tenth {
    makers: Arc<Mutex<Makers>>,
    /// Files that are made before it, unmeasured; `None` for a fresh tree.
    skip: Option<usize>,
    n: usize,
}

impl Pass for Tenth {
    fn prepare(&mut self) -> io::Result<()> {
        let mut makers = self.makers.lock().expect("no panic");
        let Some(before) = self.skip else {
            makers.fresh()?;
            return makers.find_memory(self.n);
        };
        let mut made = makers.tree.as_ref().map_or(0, |tree| tree.made);
        // Each turn makes the same files, whichever turn came before.
        if made > before {
            makers.fresh()?;
            made = 0;
        }
        makers.make(before - made)?;
        makers.settle()?;
        makers.find_memory(self.n)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let mut makers = self.makers.lock().expect("no panic");
        let start = Instant::now();
        let latency = makers.make(self.n)?;
        let value = self.n as f64 / start.elapsed().as_secs_f64();
        makers.rest()?;
        Ok(Outcome {
            latency: Some(latency),
            ..Outcome::plain(value)
        })
    }
}
