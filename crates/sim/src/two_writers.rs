//! A cache and a program beside it change one directory, in turns. Both do the same to a second directory,
//! without a cache, and the two have to be equal.
//!
//! # Model
//!
//! Operations without a promise of the cache are left out: while a file has bytes of ours that are not written
//! back, neither side writes to a page that the other has written to, and others do not change its size; they give
//! no file a second name, which would cause no event; and a read after a change of theirs comes a moment later.
//!
//! [`play`] has a cache, as a [`Way`] to the directory, do its half. `FOLIOCACHE_SEED` is the first of `FOLIOCACHE_SEEDS` runs.

use crate::Rng;
use foliocache_sys::fd::{self, AsFd};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const STEPS: u64 = 150;

/// A change, or a look. Paths are relative to the directory.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Step {
    Write {
        path: String,
        at: u64,
        len: usize,
        byte: u8,
        create: bool,
    },
    Replace {
        path: String,
        len: usize,
        byte: u8,
    },
    SetLen(String, u64),
    PunchHole(String, u64, u64),
    Chmod(String, u32),
    Unlink(String),
    Rename(String, String),
    Link(String, String),
    Symlink(&'static str, String),
    Mkdir(String),
    Rmdir(String),
    Read(String),
    List(String),
}

use Step::*;

fn file_name(random: &mut Rng) -> String {
    let dir = ["", "a/", "b/", "a/c/"][random.below(4) as usize];
    format!("{dir}n{}", random.below(5))
}

fn dir_name(random: &mut Rng) -> String {
    ["a", "b", "a/c", "b/e"][random.below(4) as usize].into()
}

impl Step {
    fn any(random: &mut Rng) -> Step {
        let path = file_name(random);
        let byte = 1 + random.below(255) as u8;
        match random.below(20) {
            0..=5 => Write {
                path,
                at: random.below(20_000),
                len: 1 + random.below(600) as usize,
                byte,
                create: random.below(3) == 0,
            },
            6 => Replace {
                path,
                len: random.below(9000) as usize,
                byte,
            },
            7 => SetLen(path, random.below(20_000)),
            8 => PunchHole(path, random.below(15_000), 1 + random.below(9000)),
            9 => Chmod(path, [0o644, 0o600, 0o755][random.below(3) as usize]),
            10 => Unlink(path),
            11 | 12 => Rename(path, file_name(random)),
            13 => Link(path, file_name(random)),
            14 => Symlink(["n0", "n1", "c/n2", "n3"][random.below(4) as usize], path),
            15 => Mkdir(dir_name(random)),
            16 => Rmdir(dir_name(random)),
            17 => Rename(dir_name(random), dir_name(random)),
            18 => Read(path),
            _ => List(dir_name(random)),
        }
    }

    /// As a program does it that knows of no cache.
    ///
    /// # Errors
    /// Those of the system.
    pub fn beside(&self, root: &Path) -> io::Result<()> {
        let at = |path: &str| root.join(path);
        let open = |path: &str| OpenOptions::new().write(true).open(at(path));
        match self {
            Write { path, create, .. } => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create(*create).open(at(path))?;
                let (bytes, pos) = self.bytes();
                file.write_all_at(&bytes, pos)
            }
            Replace { path, .. } => fs::write(at(path), self.bytes().0),
            SetLen(path, len) => open(path)?.set_len(*len),
            PunchHole(path, pos, len) => punch_hole(&open(path)?, *pos, *len),
            Chmod(path, mode) => {
                let mode = fs::Permissions::from_mode(*mode);
                fs::set_permissions(at(path), mode)
            }
            Unlink(path) => fs::remove_file(at(path)),
            Rename(from, to) => fs::rename(at(from), at(to)),
            Link(from, to) => fs::hard_link(at(from), at(to)),
            Symlink(target, path) => symlink(target, at(path)),
            Mkdir(path) => fs::create_dir(at(path)),
            Rmdir(path) => fs::remove_dir(at(path)),
            Read(path) => fs::read(at(path)).map(drop),
            List(path) => fs::read_dir(at(path)).map(drop),
        }
    }

    /// The bytes to write, and their position.
    ///
    /// # Panics
    /// If it writes nothing.
    pub fn bytes(&self) -> (Vec<u8>, u64) {
        match *self {
            Write { at, len, byte, .. } => (vec![byte; len], at),
            Replace { len, byte, .. } => (vec![byte; len], 0),
            _ => unreachable!("it writes nothing"),
        }
    }

    /// The file whose data it changes, and the pages that are dirty then, if they become so.
    fn changes(&self) -> Option<(&str, RangeInclusive<u64>)> {
        let pages = |at: u64, len: u64| at / 4096..=(at + len) / 4096;
        match self {
            Write { path, at, len, .. } => Some((path, pages(*at, *len as u64 - 1))),
            Replace { path, len, .. } => Some((path, pages(0, *len as u64))),
            SetLen(path, len) => Some((path, pages(*len, 0))),
            PunchHole(path, pos, len) => Some((path, pages(*pos, *len))),
            _ => None,
        }
    }
}

fn punch_hole(file: &File, pos: u64, len: u64) -> io::Result<()> {
    fd::punch_hole(file.as_fd(), pos, len)
        .map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
}

/// The names in a directory below `root`.
///
/// # Errors
/// Those of the system.
pub fn names(root: &Path, path: &str) -> io::Result<BTreeSet<PathBuf>> {
    fs::read_dir(root.join(path))?
        .map(|entry| Ok(entry?.file_name().into()))
        .collect()
}

/// Everything that is in a directory.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    fn add(root: &Path, dir: &Path, all: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(root.join(dir)).expect("a directory") {
            let path = dir.join(entry.expect("an entry").file_name());
            let at = root.join(&path);
            let meta = fs::symlink_metadata(&at).expect("it is there");
            let what = match (meta.is_dir(), meta.is_symlink()) {
                (true, _) => String::new(),
                (_, true) => format!("to {}", fs::read_link(&at).expect("a link").display()),
                _ => {
                    let bytes = fs::read(&at).expect("a file");
                    format!("{} names, {bytes:?}", meta.nlink())
                }
            };
            if meta.is_dir() {
                add(root, &path, all);
            }
            all.insert(path, format!("{:o} {what}", meta.mode()));
        }
    }
    let mut all = BTreeMap::new();
    add(root, Path::new(""), &mut all);
    all
}

/// A way to the directory that goes through a cache.
pub trait Way {
    /// A handle that is open for reading and writing.
    type Handle;

    /// By then the cache knows the changes of others.
    const A_MOMENT: Duration;

    /// Does it.
    ///
    /// # Errors
    /// Those that the system has.
    fn step(&self, step: &Step) -> io::Result<()>;

    /// The handle of a file that opens.
    fn open(&self, path: &str) -> Option<Self::Handle>;

    /// Mode and size of the file at a path, if it exists, not following a link at its end.
    fn attributes(&self, path: &str) -> Option<(u32, u64)>;

    /// The content of a file.
    ///
    /// # Errors
    /// Those that the system has.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The names in a directory, if it is one.
    fn names(&self, path: &str) -> Option<BTreeSet<PathBuf>>;

    /// Makes everything durable that was written this way.
    fn sync(&self);
}

struct World<'a, W: Way> {
    source: &'a Path,
    shadow: &'a Path,
    way: W,
    /// By the number of a file in the shadow: the pages that may not be written back yet.
    dirty: HashMap<u64, BTreeSet<u64>>,
    /// Those of such files that others have written to.
    theirs: HashMap<u64, BTreeSet<u64>>,
    /// Others changed something a moment ago.
    news: bool,
    /// Our handles that write nothing.
    open: VecDeque<W::Handle>,
    log: Vec<String>,
}

impl<W: Way> World<'_, W> {
    /// The file at a path in the shadow.
    fn file(&self, path: &str) -> Option<u64> {
        let meta = fs::metadata(self.shadow.join(path)).ok()?;
        meta.is_file().then_some(meta.ino())
    }

    fn keep_open(&mut self, path: &str) {
        self.learn();
        if let Some(file) = self.way.open(path) {
            self.log.push(format!("we keep open: {path}"));
            self.open.push_back(file);
        }
        if self.open.len() > 3 {
            self.open.pop_front();
        }
    }

    fn learn(&mut self) {
        if std::mem::take(&mut self.news) {
            thread::sleep(W::A_MOMENT);
        }
    }

    fn sync(&mut self) {
        self.learn();
        self.log.push("sync".into());
        self.way.sync();
        self.dirty.clear();
        self.theirs.clear();
    }

    /// Whether a change is promised to be kept while our bytes are not written back.
    fn is_promised(&self, step: &Step, ours: bool) -> bool {
        let Some((path, pages)) = step.changes() else {
            return true;
        };
        let Some(file) = self.file(path).filter(|file| self.dirty.contains_key(file)) else {
            return true;
        };
        let touches = |of: &HashMap<u64, BTreeSet<u64>>| {
            let touched = of.get(&file).map(|of| of.range(pages.clone()).next());
            touched.flatten().is_some()
        };
        let written = |at: u64| {
            let meta = fs::metadata(self.source.join(path));
            meta.is_ok_and(|meta| at <= meta.len())
        };
        match step {
            _ if ours => {
                !self.theirs.contains_key(&file)
                    || matches!(step, Write { .. }) && !touches(&self.theirs)
            }
            Write { at, len, .. } => written(at + *len as u64) && !touches(&self.dirty),
            _ => false,
        }
    }

    fn step(&mut self, step: &Step, ours: bool) {
        if ours {
            self.learn();
        }
        if !self.is_promised(step, ours) {
            self.sync();
        }
        let wanted = step.beside(self.shadow);
        let done = match ours {
            true => self.way.step(step),
            false => step.beside(self.source),
        };
        let errno = |result: &io::Result<()>| result.as_ref().err().map(io::Error::raw_os_error);
        let who = if ours { "we" } else { "others" };
        self.log
            .push(format!("{who}: {step:?}: {:?}", errno(&done)));
        assert_eq!(errno(&done), errno(&wanted), "{}", self.told());
        match step.changes() {
            Some((path, pages)) if done.is_ok() => {
                let file = self.file(path).expect("it was written to");
                if ours {
                    self.dirty.entry(file).or_default().extend(pages);
                } else if self.dirty.contains_key(&file) {
                    self.theirs.entry(file).or_default().extend(pages);
                }
            }
            _ => {}
        }
        self.news |= !ours;
    }

    /// Compares the cache's view of one name and of one directory.
    fn look(&mut self, path: &str, dir: &str) {
        self.learn();
        if self
            .file(path)
            .is_some_and(|file| self.dirty.contains_key(&file))
        {
            // Until it is written back the file is as we have it.
            self.sync();
        }
        let at = self.shadow.join(path);
        let wanted = fs::symlink_metadata(&at).ok();
        let shown = self.way.attributes(path);
        let kind = |mode: u32| mode & 0o170_000;
        assert_eq!(
            shown.map(|(mode, _)| kind(mode)),
            wanted.as_ref().map(|wanted| kind(wanted.mode())),
            "{path}: {}",
            self.told()
        );
        if let Some((wanted, shown)) = wanted.zip(shown).filter(|(wanted, _)| wanted.is_file()) {
            // The attributes of a file with several names go by time.
            if wanted.nlink() == 1 {
                assert_eq!(
                    shown,
                    (wanted.mode(), wanted.len()),
                    "{path}: {}",
                    self.told()
                );
            }
            let content = self.way.read(path).expect("it is there");
            assert!(
                content == fs::read(&at).expect("read"),
                "{path}: {}",
                self.told()
            );
        }
        let listed = (self.way.names(dir), names(self.shadow, dir).ok());
        assert_eq!(listed.0, listed.1, "{dir}: {}", self.told());
    }

    fn compare_all(&mut self) {
        self.sync();
        let (source, shadow) = (tree(self.source), tree(self.shadow));
        let differ: Vec<_> = (source.keys().chain(shadow.keys()))
            .filter(|path| source.get(*path) != shadow.get(*path))
            .collect();
        assert!(differ.is_empty(), "{differ:?}: {}", self.told());
    }

    fn told(&self) -> String {
        let last = self.log.len().saturating_sub(60);
        self.log[last..].join("\n")
    }
}

/// The seeds to play, `count` of them if the environment does not say how many.
///
/// # Panics
/// If it says something else than a number.
pub fn seeds(count: u64) -> Range<u64> {
    let first = number("FOLIOCACHE_SEED", 1);
    first..first + number("FOLIOCACHE_SEEDS", count)
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |n| n.parse().expect("a number"))
}

/// Plays a game in two empty directories: in `source` through the cache that `begin` makes and beside it, and in `shadow`.
///
/// # Panics
/// If the two come to differ.
pub fn play<W: Way>(seed: u64, source: &Path, shadow: &Path, begin: impl FnOnce() -> W) {
    eprintln!("FOLIOCACHE_SEED={seed}");
    for root in [source, shadow] {
        for dir in ["a", "b", "a/c"] {
            fs::create_dir(root.join(dir)).expect("a directory");
        }
    }
    let mut random = Rng::new(seed);
    let mut world = World {
        source,
        shadow,
        way: begin(),
        dirty: HashMap::new(),
        theirs: HashMap::new(),
        news: false,
        open: VecDeque::new(),
        log: Vec::new(),
    };
    for _ in 0..STEPS {
        let step = Step::any(&mut random);
        let ours = random.below(2) == 0 || matches!(step, Link(..));
        world.step(&step, ours);
        if random.below(6) == 0 {
            world.keep_open(&file_name(&mut random));
        }
        if random.below(4) == 0 {
            world.look(&file_name(&mut random), &dir_name(&mut random));
        }
        if random.below(25) == 0 {
            world.compare_all();
        }
    }
    world.compare_all();
}
