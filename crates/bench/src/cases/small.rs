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
//! The kernel is called relative to a descriptor of the tree, as ours is; only its walk opens each directory by its
//! path, once for all the names in it. Writes of the device for other programs are counted too, since they cannot
//! be told apart.

mod tree;

use foliocache::Directory;
use foliocache_sys::{fd, testing};
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use self::tree::{Opened, Outsider, Tree, read, read_kernel, unseen};
use super::create::{Makers, Ours, create, first_and_last};
use crate::cases::prelude::*;
use crate::place::{DROP_CACHES, USUAL_LIMIT, device_number, find_memory};

/// Bytes of a file.
const LEN: usize = 6 << 10;
/// The most room on the disk that a file takes.
const ON_DISK: usize = 12 << 10;
/// Files of a tree that are in memory, for each of 1,000 that the case makes in one go.
const HOT: usize = 200;
/// Files that are made while the device's writes are counted, with one flush at the end.
const COUNTED: usize = 1000;
/// How often a pass goes through the tree: as many operations as it has files each time, or a walk.
const LAPS: usize = 5;

/// The other contestant of a figure that is a count or a time.
const ONE: &str = "one";

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let (memory, (dirs, files)) = (settings.bound()?, settings.tree()?);
    let folder = Folder::on_disk(settings)?;
    let all = (dirs * files).max(10);
    let made = 2 * (settings.samples + 1) * (2 * all + 12 * (all / 10 + dirs) + COUNTED) + all;
    check_room(folder.path(), (made * ON_DISK) as u64, made as u64)?;
    let failed = "a tree of small files";
    let tree = Tree::new(&folder, dirs, (files * HOT).div_ceil(1000)).setting_up(failed)?;
    let mut plan = Plan::default();
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
    let mut limits = vec![(USUAL_LIMIT, "")];
    match hard > USUAL_LIMIT {
        true => limits.push((hard, "_hard")),
        false => plan.notes.push(format!(
            "the hard limit of open files is {hard}: it is not run apart"
        )),
    }
    let names = ["create, first of all", "create, last of all"];
    for (descriptors, suffix) in limits {
        let descriptors = Some(descriptors);
        let ours = Ours {
            memory,
            descriptors,
        };
        let new = |ours| Makers::new(&folder, dirs, 1, LEN, ours);
        let mut matches = vec![
            hot(&tree, ours).setting_up(failed)?,
            seen(&tree, ours).setting_up(failed)?,
        ];
        if cold.is_ok() {
            matches.push(cold_reads(&tree, ours, all / 10));
        }
        matches.push(creation(&new, ours, all / 10, device.as_deref()));
        let mut late = first_and_last(names, [new(Some(ours)), new(None)], all);
        ratios! { late;
            "create_100k_last_vs_first" => 1 / 0, control_of(0), at_least(0.7);
            "create_100k_last_vs_first_kernel" => 3 / 2, control_of(2);
        }
        matches.push(late);
        let ratios = matches.iter_mut().flat_map(|one| &mut one.ratios);
        ratios.for_each(|ratio| ratio.name += suffix);
        plan.matches.extend(matches);
    }
    plan.place = Some(folder.describe());
    plan.holds.push(Rc::new(folder));
    Ok(plan)
}

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Read(usize),
    Metadata,
    Walk,
}

/// Operations on a tree that is in memory: row, operation, ratio, aim. Then the same after changes from outside.
#[rustfmt::skip]
const ON_HOT: [(&str, Operation, &str, f64, bool); 7] = [
    ("open, read 6 KiB, close", Operation::Read(LEN), "open_read_close_vs_kernel", 2.5, false),
    ("open, read 64 B, close", Operation::Read(64), "open_read64_close_vs_kernel", 4.0, false),
    ("metadata", Operation::Metadata, "metadata_vs_kernel", 4.0, false),
    ("walk", Operation::Walk, "walk_default_vs_kernel", 3.0, false),
    ("open, read 6 KiB, close", Operation::Read(LEN), "open_read_close_changed_vs_kernel", 2.5, true),
    ("metadata", Operation::Metadata, "metadata_changed_vs_kernel", 4.0, true),
    ("walk", Operation::Walk, "walk_changed_vs_kernel", 3.0, true),
];

/// A tree that is in memory.
fn hot(tree: &Rc<Tree>, ours: Ours) -> io::Result<Match> {
    let ours = Rc::new(RefCell::new(Opened::new(ours)));
    let outsider = Rc::new(RefCell::new(Outsider::new(tree)?));
    let mut hot = Match::default();
    for (at, (name, operation, ratio, least, changed)) in ON_HOT.into_iter().enumerate() {
        let unit = match operation {
            Operation::Walk => "names/s",
            Operation::Read(_) | Operation::Metadata => "op/s",
        };
        for (variant, kernel) in [(DIRFS, false), (KERNEL, true)] {
            let (tree, ours, mut random) = (tree.clone(), ours.clone(), Random(at as u64));
            let outsider = changed.then(|| outsider.clone());
            let turn = move || {
                ours.borrow_mut().warm(&tree)?;
                let ours = ours.borrow();
                let ours = (!kernel).then(|| ours.directory());
                // The names that the laps use, in that order: looking them up in the list of all would be measured as well.
                let names = match operation {
                    Operation::Walk => 0,
                    _ => tree.names.len(),
                };
                let any = |_| tree.any(&mut random).clone();
                let drawn: Vec<_> = (0..LAPS * names).map(any).collect();
                let (mut n, mut took) = (0, Duration::ZERO);
                for lap in 0..LAPS {
                    if let Some(outsider) = &outsider {
                        let mut outsider = outsider.borrow_mut();
                        for name in tree.in_each_dir() {
                            outsider.change(name)?;
                        }
                    }
                    let start = Instant::now();
                    n += operate(operation, &tree, ours, &drawn[lap * names..][..names])?;
                    took += start.elapsed();
                }
                Ok(Outcome::plain(n as f64 / took.as_secs_f64()))
            };
            hot.add(name, variant, Work::pass(1, unit, turn));
        }
        hot.ratio(RatioPlan::new(ratio, 2 * at, 2 * at + 1).at_least(least));
    }
    Ok(hot)
}

/// Does it with all of these names, through ours or the kernel's; returns how many names it was.
fn operate(
    operation: Operation,
    tree: &Tree,
    ours: Option<&Directory>,
    drawn: &[(String, CString)],
) -> io::Result<usize> {
    let mut found = drawn.len();
    match (operation, ours) {
        (Operation::Read(len), Some(directory)) => drawn
            .iter()
            .try_for_each(|(name, _)| read(directory, name, len))?,
        (Operation::Read(len), None) => drawn
            .iter()
            .try_for_each(|(_, name)| read_kernel(tree, name, len))?,
        (Operation::Metadata, Some(directory)) => {
            for (name, _) in drawn {
                black_box(directory.metadata(name)?);
            }
        }
        (Operation::Metadata, None) => {
            for (_, name) in drawn {
                black_box(testing::stat_path(tree.fd.as_fd(), name)?);
            }
        }
        (Operation::Walk, Some(directory)) => {
            for entry in directory.walk(".") {
                black_box(entry?);
                found += 1;
            }
        }
        (Operation::Walk, None) => {
            for dir in fs::read_dir(&tree.path)? {
                for entry in fs::read_dir(dir?.path())? {
                    black_box(entry?);
                    found += 1;
                }
                found += 1;
            }
        }
    }
    Ok(found)
}

/// Adds a contestant with a single unit of work.
fn add_one(to: &mut Match, name: &str, unit: &'static str) {
    to.add(name, ONE, Work::pass(1, unit, || Ok(Outcome::plain(1.0))));
}

fn seen(tree: &Rc<Tree>, ours: Ours) -> io::Result<Match> {
    let (tree, mut ours) = (Rc::clone(tree), Opened::new(ours));
    let mut outsider = Outsider::new(&tree)?;
    let turn = move || {
        ours.warm(&tree)?;
        unseen(&tree, ours.directory(), &mut outsider)
    };
    let (mut one, name) = (Match::default(), "changes unseen, p99");
    one.add(name, DIRFS, Work::pass(1, "ms", turn));
    add_one(&mut one, name, "ms");
    ratios! { one; "change_seen_p99_ms" => 0 / 1, at_most(50.0); }
    Ok(one)
}

/// Open, read and close of files that are cached nowhere.
fn cold_reads(tree: &Rc<Tree>, ours: Ours, n: usize) -> Match {
    let mut one = Match::default();
    for (variant, ours) in [(DIRFS, Some(ours)), (KERNEL, None)] {
        let (tree, mut random) = (Rc::clone(tree), Random(1));
        let turn = move || {
            let opened = ours.map(|ours| ours.open(&tree.path)).transpose()?;
            fd::syncfs(fs::File::open(&tree.path)?.as_fd())?;
            fs::write(DROP_CACHES, "3")?;
            find_memory(n * ON_DISK)?;
            // Each file once at most.
            let mut order: Vec<_> = tree.names.iter().collect();
            random.shuffle(&mut order);
            order.truncate(n);
            let (start, mut times) = (Instant::now(), Times::new());
            for (name, path) in &order {
                let begun = Instant::now();
                match &opened {
                    Some((directory, _)) => read(directory, name, LEN)?,
                    None => read_kernel(&tree, path, LEN)?,
                }
                times.add(begun.elapsed());
            }
            let latency = Times::drain([&mut times].into_iter());
            Ok(Outcome::per_second(order.len(), start).latency(latency))
        };
        one.add(
            "cold open, read, close",
            variant,
            Work::pass(1, "op/s", turn),
        );
    }
    ratios! { one; "cold_open_read_vs_kernel" => 0 / 1, at_least(0.8); }
    one
}

/// Where the kernel counts for the device that a folder is on, if it does.
fn device(path: &Path) -> Option<PathBuf> {
    let counts = format!("/sys/dev/block/{}/stat", device_number(path)?);
    let counts = PathBuf::from(counts);
    writes(&counts).is_ok().then_some(counts)
}

/// Writes that a device has completed.
fn writes(counts: &Path) -> io::Result<f64> {
    let text = fs::read_to_string(counts)?;
    let writes = text.split_whitespace().nth(4);
    let writes = writes.and_then(|writes| writes.parse().ok());
    writes.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Files made in a fresh tree, and durable at the end: the writes of a device in place of the time, if there is one.
fn durable(makers: Rc<RefCell<Makers>>, n: usize, device: Option<PathBuf>) -> Work {
    let unit = if device.is_some() {
        "writes"
    } else {
        "files/s"
    };
    Work::pass(1, unit, move || {
        let mut makers = makers.borrow_mut();
        makers.fresh()?;
        makers.find_memory(n)?;
        let count = || device.as_deref().map(writes).transpose();
        let before = count()?;
        let start = Instant::now();
        makers.make(n)?;
        makers.sync()?;
        Ok(match before.zip(count()?) {
            Some((before, after)) => Outcome::plain(after - before),
            None => Outcome::per_second(n, start),
        })
    })
}

fn creation(
    new: &impl Fn(Option<Ours>) -> Rc<RefCell<Makers>>,
    ours: Ours,
    n: usize,
    device: Option<&Path>,
) -> Match {
    let (mut one, sides) = (Match::default(), [(DIRFS, Some(ours)), (KERNEL, None)]);
    for (variant, ours) in sides {
        one.add("create", variant, create(&new(ours), None, n));
    }
    for (variant, ours) in sides {
        one.add("create, durable", variant, durable(new(ours), n, None));
    }
    ratios! { one;
        "create_vs_kernel" => 0 / 1, at_least(0.8);
        "create_durable_vs_kernel" => 2 / 3, at_least(0.6);
    }
    if let Some(device) = device {
        let name = "create 1,000, durable";
        let counted = durable(new(Some(ours)), COUNTED, Some(device.to_owned()));
        one.add(name, DIRFS, counted);
        add_one(&mut one, name, "writes");
        ratios! { one; "create_device_writes_per_1000" => 4 / 5, at_most(100.0); }
    }
    one
}
