//! Small files as a newcomer meets them: default settings, over a directory of the local disk.
//!
//! # Model
//!
//! The files have 6 KB. Each match is run with the usual soft limit of 1,024 descriptors and, where the hard
//! limit is larger, once more with that one; the names of those ratios end in `_hard`.
//!
//! | match | what it compares |
//! |---|---|
//! | hot | files at random in a tree that is in memory on both sides: open, read and close; `metadata`; a walk of all names. Then the same, each lap right after another process has changed a file in each directory |
//! | seen | how long it takes until ours shows a change that another process made, names and bytes; in milliseconds, so a ratio to one |
//! | cold | open, read and close of files with nothing cached, neither here nor in the kernel; only as root |
//! | create | files made in a fresh tree; the same with the flush that makes them durable; how often the device writes for 1,000 of them and one flush |
//! | 100k | the first tenth and the last of all files of a tree (see [`create`](super::create)): the settings make 100,000 |
//!
//! The kernel is asked relative to a descriptor of the tree, as ours is; only its walk opens each directory by its
//! path, once for all the names in it. What the device writes for others is
//! counted, too: nobody can tell.

mod tree;

use foliocache::Directory;
use foliocache_sys::dir;
use foliocache_sys::fd;
use std::ffi::CString;
use std::fs;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::tree::{Opened, Outsider, Seen, Tree, read, read_kernel};
use super::create::{Makers, Ours, USUAL_LIMIT, pass};
use super::{DIRFS, KERNEL};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::latency::Times;
use crate::place::{DROP_CACHES, Folder, Random, check_room, find_memory};
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Small;

/// Bytes of a file.
const LEN: usize = 6 << 10;
/// What a file takes of the disk, at most.
const ON_DISK: usize = 12 << 10;
/// Files of a tree that are in memory, for each of 1,000 that the case makes in one go.
const HOT: usize = 200;
/// Files that are made while the device's writes are counted, with one flush at the end.
const COUNTED: usize = 1000;
/// How often a pass goes through the tree: as many operations as it has files each time, or a walk.
const LAPS: usize = 5;

impl Case for Small {
    fn name(&self) -> &'static str {
        "small"
    }

    fn about(&self) -> &'static str {
        "small files on default settings: opened and read, hot and cold; stats, walks, creation"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, dirs, files) = match quick {
            true => (4, 100, 50),
            false => (6, 100, 1000),
        };
        Settings {
            samples,
            memory: Some(1 << 30),
            dirs: Some(dirs),
            files: Some(files),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 60 } else { 900 }
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
        let made = 2 * (settings.samples + 1) * (2 * all + 12 * (all / 10 + dirs) + COUNTED) + all;
        check_room(folder.path(), (made * ON_DISK) as u64, made as u64)?;
        let failed = |error| BenchError::setup("a tree of small files", error);
        let folder = Arc::new(folder);
        let tree = Tree::new(&folder, dirs, (files * HOT).div_ceil(1000)).map_err(failed)?;
        let mut plan = Plan {
            place: Some(folder.describe()),
            ..Plan::default()
        };
        let cold = fs::OpenOptions::new().write(true).open(DROP_CACHES);
        if cold.is_err() {
            plan.notes.push(format!(
                "nothing cold: {DROP_CACHES} is not to be written to"
            ));
        }
        let device = device(folder.path());
        if device.is_none() {
            plan.notes
                .push("no count of the device's writes: it keeps none".to_owned());
        }
        let before = fd::open_file_limit();
        let _ = fd::set_open_file_limit(u64::MAX);
        let hard = fd::open_file_limit();
        let _ = fd::set_open_file_limit(before);
        if hard <= USUAL_LIMIT {
            plan.notes.push(format!(
                "the hard limit of open files is {hard}: it is not run apart"
            ));
        }
        let hard = (hard > USUAL_LIMIT).then_some((hard, &HARD));
        for (descriptors, names) in [(USUAL_LIMIT, &SOFT)].into_iter().chain(hard) {
            let ours = Ours {
                memory,
                descriptors: Some(descriptors),
            };
            plan.matches.push(hot(&tree, ours, names).map_err(failed)?);
            plan.matches.push(seen(&tree, ours, names).map_err(failed)?);
            if cold.is_ok() {
                plan.matches.push(cold_reads(&tree, ours, names, all / 10));
            }
            let new = |ours| Makers::new(&folder, dirs, 1, LEN, ours);
            plan.matches
                .push(creation(&new, ours, names, all / 10, device.as_deref()));
            plan.matches.push(late(&new, ours, names, all));
        }
        Ok(plan)
    }
}

/// Names of the ratios with one limit of descriptors.
struct Names {
    open_read: &'static str,
    open_read64: &'static str,
    metadata: &'static str,
    walk: &'static str,
    open_read_changed: &'static str,
    metadata_changed: &'static str,
    walk_changed: &'static str,
    seen: &'static str,
    cold: &'static str,
    create: &'static str,
    durable: &'static str,
    writes: &'static str,
    late: &'static str,
    late_kernel: &'static str,
}

/// With the usual limit.
static SOFT: Names = Names {
    open_read: "open_read_close_vs_kernel",
    open_read64: "open_read64_close_vs_kernel",
    metadata: "metadata_vs_kernel",
    walk: "walk_default_vs_kernel",
    open_read_changed: "open_read_close_changed_vs_kernel",
    metadata_changed: "metadata_changed_vs_kernel",
    walk_changed: "walk_changed_vs_kernel",
    seen: "change_seen_p99_ms",
    cold: "cold_open_read_vs_kernel",
    create: "create_vs_kernel",
    durable: "create_durable_vs_kernel",
    writes: "create_device_writes_per_1000",
    late: "create_100k_last_vs_first",
    late_kernel: "create_100k_last_vs_first_kernel",
};

/// With the hard one.
static HARD: Names = Names {
    open_read: "open_read_close_vs_kernel_hard",
    open_read64: "open_read64_close_vs_kernel_hard",
    metadata: "metadata_vs_kernel_hard",
    walk: "walk_default_vs_kernel_hard",
    open_read_changed: "open_read_close_changed_vs_kernel_hard",
    metadata_changed: "metadata_changed_vs_kernel_hard",
    walk_changed: "walk_changed_vs_kernel_hard",
    seen: "change_seen_p99_ms_hard",
    cold: "cold_open_read_vs_kernel_hard",
    create: "create_vs_kernel_hard",
    durable: "create_durable_vs_kernel_hard",
    writes: "create_device_writes_per_1000_hard",
    late: "create_100k_last_vs_first_hard",
    late_kernel: "create_100k_last_vs_first_kernel_hard",
};

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Read(usize),
    Metadata,
    Walk,
}

/// Operations on a tree that is in memory.
struct Hot {
    tree: Arc<Tree>,
    ours: Arc<Mutex<Opened>>,
    kernel: bool,
    operation: Operation,
    /// Changes files before each lap.
    outsider: Option<Arc<Mutex<Outsider>>>,
    random: Random,
    /// The names that the laps of a pass use, in that order: looking them up in the list of all would be measured as well.
    drawn: Vec<(String, CString)>,
}

impl Hot {
    fn lap_of_ours(&self, directory: &Directory, drawn: &[(String, CString)]) -> io::Result<usize> {
        match self.operation {
            Operation::Read(len) => {
                for (name, _) in drawn {
                    read(directory, name, len)?;
                }
                Ok(drawn.len())
            }
            Operation::Metadata => {
                for (name, _) in drawn {
                    black_box(directory.metadata(name)?);
                }
                Ok(drawn.len())
            }
            Operation::Walk => {
                let mut found = 0;
                for entry in directory.walk(".") {
                    black_box(entry?);
                    found += 1;
                }
                Ok(found)
            }
        }
    }

    fn lap_of_kernel(&self, drawn: &[(String, CString)]) -> io::Result<usize> {
        let tree = &self.tree;
        match self.operation {
            Operation::Read(len) => {
                for (_, name) in drawn {
                    read_kernel(tree, name, len)?;
                }
                Ok(drawn.len())
            }
            Operation::Metadata => {
                for (_, name) in drawn {
                    black_box(dir::stat_path(tree.fd.as_fd(), name)?);
                }
                Ok(drawn.len())
            }
            Operation::Walk => {
                let mut found = 0;
                for dir in fs::read_dir(&tree.path)? {
                    for entry in fs::read_dir(dir?.path())? {
                        black_box(entry?);
                        found += 1;
                    }
                    found += 1;
                }
                Ok(found)
            }
        }
    }

    fn change_files(&self) -> io::Result<()> {
        if let Some(outsider) = &self.outsider {
            let mut outsider = outsider.lock().expect("no panic");
            for name in self.tree.in_each_dir() {
                outsider.change(name)?;
            }
        }
        Ok(())
    }
}

impl Pass for Hot {
    fn prepare(&mut self) -> io::Result<()> {
        self.ours.lock().expect("no panic").warm(&self.tree)?;
        self.drawn.clear();
        if self.operation != Operation::Walk {
            for _ in 0..LAPS * self.tree.names.len() {
                self.drawn.push(self.tree.any(&mut self.random).clone());
            }
        }
        Ok(())
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let ours = self.ours.lock().expect("no panic");
        let each = self.drawn.len() / LAPS;
        let (mut n, mut took) = (0, Duration::ZERO);
        for lap in 0..LAPS {
            self.change_files()?;
            let drawn = &self.drawn[lap * each..][..each];
            let start = Instant::now();
            n += match self.kernel {
                true => self.lap_of_kernel(drawn)?,
                false => self.lap_of_ours(ours.directory(), drawn)?,
            };
            took += start.elapsed();
        }
        Ok(Outcome::plain(n as f64 / took.as_secs_f64()))
    }
}

fn contestant(
    name: &'static str,
    variant: &'static str,
    unit: &'static str,
    pass: impl Pass + 'static,
) -> Contestant {
    Contestant {
        name,
        variant,
        work: Work::Pass {
            threads: 1,
            unit,
            pass: Box::new(pass),
        },
    }
}

/// A tree that is in memory.
fn hot(tree: &Arc<Tree>, ours: Ours, names: &Names) -> io::Result<Match> {
    let ours = Arc::new(Mutex::new(Opened { ours, made: None }));
    let outsider = Arc::new(Mutex::new(Outsider::new(tree)?));
    let read = "open, read 6 KiB, close";
    let metadata = "metadata";
    let walk = "walk";
    let plans = [
        (read, Operation::Read(LEN), false, names.open_read, 2.5),
        (
            "open, read 64 B, close",
            Operation::Read(64),
            false,
            names.open_read64,
            4.0,
        ),
        (metadata, Operation::Metadata, false, names.metadata, 4.0),
        (walk, Operation::Walk, false, names.walk, 3.0),
        (
            read,
            Operation::Read(LEN),
            true,
            names.open_read_changed,
            2.5,
        ),
        (
            metadata,
            Operation::Metadata,
            true,
            names.metadata_changed,
            4.0,
        ),
        (walk, Operation::Walk, true, names.walk_changed, 3.0),
    ];
    let mut hot = Match::default();
    for (at, (name, operation, changed, ratio, least)) in plans.into_iter().enumerate() {
        let unit = match operation {
            Operation::Walk => "names/s",
            Operation::Read(_) | Operation::Metadata => "op/s",
        };
        for (variant, kernel) in [(DIRFS, false), (KERNEL, true)] {
            let pass = Hot {
                tree: tree.clone(),
                ours: ours.clone(),
                kernel,
                operation,
                outsider: changed.then(|| outsider.clone()),
                random: Random(at as u64),
                drawn: Vec::new(),
            };
            hot.contestants.push(contestant(name, variant, unit, pass));
        }
        let ratio = RatioPlan::new(ratio, 2 * at, 2 * at + 1);
        hot.ratios.push(ratio.at_least(least));
    }
    Ok(hot)
}

/// What is one of its unit.
struct One;

impl Pass for One {
    fn run(&mut self) -> io::Result<Outcome> {
        Ok(Outcome::plain(1.0))
    }
}

fn seen(tree: &Arc<Tree>, ours: Ours, names: &Names) -> io::Result<Match> {
    let pass = Seen {
        tree: tree.clone(),
        ours: Opened { ours, made: None },
        outsider: Outsider::new(tree)?,
    };
    Ok(Match {
        contestants: vec![
            contestant("changes unseen, p99", DIRFS, "ms", pass),
            contestant("changes unseen, p99", "one", "ms", One),
        ],
        ratios: vec![RatioPlan::new(names.seen, 0, 1).at_most(50.0)],
        ..Match::default()
    })
}

/// Open, read and close of files that are cached nowhere.
struct Cold {
    tree: Arc<Tree>,
    /// The kernel's without.
    ours: Option<Opened>,
    n: usize,
    random: Random,
}

impl Pass for Cold {
    fn prepare(&mut self) -> io::Result<()> {
        if let Some(ours) = &mut self.ours {
            ours.fresh(&self.tree)?;
        }
        fd::syncfs(fs::File::open(&self.tree.path)?.as_fd())?;
        fs::write(DROP_CACHES, "3")?;
        find_memory(self.n * ON_DISK)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        // Each file once at most.
        let mut order: Vec<_> = self.tree.names.iter().collect();
        let n = self.n.min(order.len());
        for at in 0..n {
            let other = at + self.random.below(order.len() - at);
            order.swap(at, other);
        }
        let (start, mut times) = (Instant::now(), Times::new());
        for (name, path) in &order[..n] {
            let begun = Instant::now();
            match &self.ours {
                Some(ours) => read(ours.directory(), name, LEN)?,
                None => read_kernel(&self.tree, path, LEN)?,
            }
            times.add(begun.elapsed());
        }
        Ok(Outcome {
            latency: Some(Times::drain([&mut times].into_iter())),
            ..Outcome::plain(n as f64 / start.elapsed().as_secs_f64())
        })
    }
}

fn cold_reads(tree: &Arc<Tree>, ours: Ours, names: &Names, n: usize) -> Match {
    let cold = |variant, ours: Option<Ours>| {
        let pass = Cold {
            tree: tree.clone(),
            ours: ours.map(|ours| Opened { ours, made: None }),
            n,
            random: Random(1),
        };
        contestant("cold open, read, close", variant, "op/s", pass)
    };
    Match {
        contestants: vec![cold(DIRFS, Some(ours)), cold(KERNEL, None)],
        ratios: vec![RatioPlan::new(names.cold, 0, 1).at_least(0.8)],
        ..Match::default()
    }
}

/// Files made in a fresh tree, and durable at the end.
struct Durable {
    makers: Arc<Mutex<Makers>>,
    n: usize,
    /// Count the writes of this device in place of the time.
    device: Option<PathBuf>,
}

impl Pass for Durable {
    fn prepare(&mut self) -> io::Result<()> {
        let mut makers = self.makers.lock().expect("no panic");
        makers.fresh()?;
        makers.find_memory(self.n)
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let mut makers = self.makers.lock().expect("no panic");
        let before = self.device.as_deref().map(writes).transpose()?;
        let start = Instant::now();
        makers.make(self.n)?;
        makers.sync()?;
        Ok(Outcome::plain(match before.zip(self.device.as_deref()) {
            Some((before, device)) => writes(device)? - before,
            None => self.n as f64 / start.elapsed().as_secs_f64(),
        }))
    }
}

/// Where the kernel counts for the device that a folder is on, if it does.
fn device(path: &Path) -> Option<PathBuf> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
    let counts = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    writes(&counts).is_ok().then_some(counts)
}

/// Writes that a device has completed.
fn writes(counts: &Path) -> io::Result<f64> {
    let text = fs::read_to_string(counts)?;
    let writes = text.split_whitespace().nth(4);
    let writes = writes.and_then(|writes| writes.parse().ok());
    writes.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn creation(
    new: &impl Fn(Option<Ours>) -> Arc<Mutex<Makers>>,
    ours: Ours,
    names: &Names,
    n: usize,
    device: Option<&Path>,
) -> Match {
    let durable = |makers, n, device: Option<&Path>| Durable {
        makers,
        n,
        device: device.map(Path::to_owned),
    };
    let name = "create, durable";
    let mut creation = Match {
        contestants: vec![
            pass("create", DIRFS, &new(Some(ours)), None, n),
            pass("create", KERNEL, &new(None), None, n),
            contestant(name, DIRFS, "files/s", durable(new(Some(ours)), n, None)),
            contestant(name, KERNEL, "files/s", durable(new(None), n, None)),
        ],
        ratios: vec![
            RatioPlan::new(names.create, 0, 1).at_least(0.8),
            RatioPlan::new(names.durable, 2, 3).at_least(0.6),
        ],
        ..Match::default()
    };
    if device.is_some() {
        let name = "create 1,000, durable";
        let counted = durable(new(Some(ours)), COUNTED, device);
        creation.contestants.extend([
            contestant(name, DIRFS, "writes", counted),
            contestant(name, "one", "writes", One),
        ]);
        let ratio = RatioPlan::new(names.writes, 4, 5).at_most(100.0);
        creation.ratios.push(ratio);
    }
    creation
}

/// The first files of a tree, and the last ones.
fn late(
    new: &impl Fn(Option<Ours>) -> Arc<Mutex<Makers>>,
    ours: Ours,
    names: &Names,
    all: usize,
) -> Match {
    let (first, last) = ("create, first of all", "create, last of all");
    let (many, kernels) = (new(Some(ours)), new(None));
    let (tenth, skip) = (all / 10, Some(all - all / 10));
    Match {
        contestants: vec![
            pass(first, DIRFS, &many, None, tenth),
            pass(last, DIRFS, &many, skip, tenth),
            pass(first, KERNEL, &kernels, None, tenth),
            pass(last, KERNEL, &kernels, skip, tenth),
        ],
        ratios: vec![
            RatioPlan::new(names.late, 1, 0).control_of(0).at_least(0.7),
            RatioPlan::new(names.late_kernel, 3, 2).control_of(2),
        ],
        ..Match::default()
    }
}
