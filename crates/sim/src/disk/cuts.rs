//! Power cuts of something that keeps a tree on a disk.
//!
//! # Model
//!
//! ```text
//!  run:     op  op  sync  op  sync …      on a mounted disk; after each the position in its log, and what is promised
//!  cut:     at a position, with nothing or some of what no flush covers
//!  check:   the image is mounted, which recovers it, and read: the judge of the tree says whether it may be so
//!  again:   the recovery itself was recorded: it is cut anywhere, and recovered once more
//! ```
//!
//! The position is noted right after an operation returned. An image that ends at the last flush before it contains
//! everything that the operation promised, or the promise was broken.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::{Disk, DiskImage, Format, Mounted};
use crate::Rng;
use crate::tree::{Found, How, Subject, TreeOp, TreeOracle};

/// The number of images that `FOLIOCACHE_CUTS` asks for in all, or `usual`; and the first seed: that of
/// `FOLIOCACHE_SEED`, or a fresh one. Printed, so that a run can be repeated.
pub fn wanted(usual: u64) -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let fresh = || std::time::SystemTime::UNIX_EPOCH.elapsed();
    let fresh = || fresh().map_or(1, |age| age.as_millis() as u64 % 1_000_000_000);
    let seed = number("FOLIOCACHE_SEED").unwrap_or_else(fresh);
    (number("FOLIOCACHE_CUTS").unwrap_or(usual), seed)
}

/// Counts of the checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Images that were recovered and checked.
    pub images: u64,
    /// Those of them that end at the last flush before an operation returned.
    pub acknowledged: u64,
    /// Cuts of a recovery among them.
    pub recoveries: u64,
    /// Operations that promised something.
    pub promises: u64,
    /// Runs.
    pub runs: u64,
}

/// A disk that is cut again and again.
#[derive(Debug)]
pub struct Cuts {
    /// Names a group of runs in messages.
    name: String,
    /// The disk for recovering images. The first field, because it depends on the same server.
    copy: Option<Disk>,
    mounted: Option<Mounted>,
    disk: Disk,
    report: Report,
}

/// An operation that is over.
struct Step {
    /// The position right after it.
    position: u64,
    /// The states that are allowed once the step has begun.
    during: TreeOracle,
    /// The states that are allowed now.
    after: TreeOracle,
    promises: bool,
}

impl Cuts {
    /// A new disk with a mounted file system.
    ///
    /// # Errors
    /// Those of [`Disk::new`].
    pub fn new(name: &str, format: Format, seed: u64) -> io::Result<Cuts> {
        let disk = Disk::new(format, seed)?;
        Ok(Cuts {
            name: format!("{name} on {}", format.name()),
            copy: None,
            mounted: Some(disk.mount()?),
            disk,
            report: Report::default(),
        })
    }

    /// The root of the mounted file system.
    ///
    /// # Panics
    /// Never: it is mounted as long as this value lives.
    pub fn path(&self) -> &Path {
        self.mounted.as_ref().expect("mounted").path()
    }

    /// The disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The counts so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Does `operations` in a new directory of the disk, through the subject that `open` makes of its name, and checks
    /// `images` power cuts. Everything but the timing of threads follows from `seed`.
    ///
    /// # Errors
    /// The first image that is not allowed, with everything that is needed to see why.
    pub fn run<S: Subject>(
        &mut self,
        seed: u64,
        operations: &[TreeOp],
        images: u64,
        open: impl FnOnce(&str) -> S,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let folder = format!("run-{}", self.report.runs);
        self.report.runs += 1;
        let path = self.path().join(&folder);
        fs::create_dir(&path).map_err(text)?;
        let root = File::open(self.path()).map_err(text)?;
        rustix::fs::syncfs(&root).map_err(|error| error.to_string())?;
        drop(root);
        self.disk.trim(self.disk.position());
        let start = self.disk.position();

        let mut subject = open(&folder);
        let steps = self.steps(&mut subject, seed, operations)?;
        let mut rng = Rng::new(seed ^ 0xc07);
        // The last promise first: it has all of them behind it.
        let promises: Vec<usize> = (0..steps.len()).filter(|&at| steps[at].promises).collect();
        for number in 0..images {
            let at = match (number, promises.len()) {
                (0, 1..) => promises[promises.len() - 1],
                (_, 1..) if rng.one_in(3, 4) => promises[rng.below(promises.len() as u64) as usize],
                _ => rng.below(steps.len() as u64) as usize,
            };
            let step = &steps[at];
            let before = at.checked_sub(1).map_or(start, |at| steps[at].position);
            let (position, choice, oracle) = match number {
                0 => (step.position, None, &step.after),
                _ if rng.one_in(1, 2) => (step.position, None, &step.after),
                _ if rng.one_in(1, 2) => (step.position, Some(rng.next_u64()), &step.after),
                _ => {
                    let position = rng.between(before, step.position);
                    (position, Some(rng.next_u64()), &step.during)
                }
            };
            self.report.acknowledged += u64::from(choice.is_none());
            let image = match choice {
                None => self.disk.image_at(position),
                Some(seed) => self.disk.image_with(position, seed),
            };
            let done = &operations[..=at];
            let again = number % 5 == 4;
            self.check(&image, &folder, oracle, again.then_some(&mut rng))
                .map_err(|error| {
                    let choice = match choice {
                        None => "what the last flush before it covers".to_owned(),
                        Some(seed) => format!("some of what no flush covers (seed {seed})"),
                    };
                    let first = done.len().saturating_sub(30);
                    let list: Vec<_> = done[first..].iter().map(|op| format!("  {op:?}")).collect();
                    let logged = self.disk.logged_since(before.saturating_sub(8));
                    format!(
                        "{}: {error}\n cut at {position} of the log ({choice}), after or amid the last of\n{}\n \
                         the log from before that one on: {logged:?}",
                        self.about(seed),
                        list.join("\n")
                    )
                })?;
        }
        drop(subject);
        // A mount may still show the directory.
        fs::remove_dir_all(&path)
            .or_else(|_| fs::remove_dir_all(&path))
            .map_err(text)
    }

    fn about(&self, seed: u64) -> String {
        format!("{}, seed {seed}", self.name)
    }

    fn steps(
        &mut self,
        subject: &mut impl Subject,
        seed: u64,
        operations: &[TreeOp],
    ) -> Result<Vec<Step>, String> {
        let mut oracle = TreeOracle::default();
        let mut steps = Vec::new();
        for operation in operations {
            oracle.record(operation);
            let during = oracle.clone();
            subject
                .apply(operation)
                .map_err(|error| format!("{}: {operation:?}: {error}", self.about(seed)))?;
            // Before anything else: nothing that comes later may make it good.
            let position = self.disk.position();
            oracle.acknowledge(operation);
            let promises = operation.promises();
            self.report.promises += u64::from(promises);
            steps.push(Step {
                position,
                during,
                after: oracle.clone(),
                promises,
            });
        }
        Ok(steps)
    }

    /// Recovers an image and judges the directory `folder`; with `again`, cuts the recovery too.
    fn check(
        &mut self,
        image: &DiskImage,
        folder: &str,
        oracle: &TreeOracle,
        again: Option<&mut Rng>,
    ) -> Result<(), String> {
        self.report.images += 1;
        let copy = match self.copy.take() {
            Some(copy) => copy.load(image).map(|()| copy),
            None => Disk::beside(image, self.disk.seed()),
        };
        let copy = copy.map_err(|error| format!("another disk: {error}"))?;
        let recovered = recover(&copy, folder);
        if let (Ok((_, end)), Some(rng)) = (&recovered, again) {
            // Anywhere in it, or after it.
            let position = match rng.one_in(1, 4) {
                true => *end,
                false => rng.between(0, *end),
            };
            let image = copy.image_with(position, rng.next_u64());
            self.copy = Some(copy);
            self.report.recoveries += 1;
            self.check(&image, folder, oracle, None)
                .map_err(|error| format!("after a cut of the recovery at {position}: {error}"))?;
        } else {
            self.copy = Some(copy);
        }
        oracle.check(&recovered?.0)
    }
}

impl Drop for Cuts {
    fn drop(&mut self) {
        self.copy = None;
        self.mounted = None;
    }
}

/// Mounts, which recovers, and reads. Also where the log ended when everything was read.
fn recover(copy: &Disk, folder: &str) -> Result<(Found, u64), String> {
    let mounted = copy.mount();
    let mounted = mounted.map_err(|error| format!("it cannot be mounted: {error}"))?;
    let found = Found::read(&mounted.path().join(folder));
    let found = found.map_err(|error| format!("it cannot be read: {error}"))?;
    let end = copy.position();
    let unmounted = mounted.unmount();
    unmounted.map_err(|error| format!("it cannot be unmounted: {error}"))?;
    Ok((found, end))
}

/// A directory of the kernel's as a subject: a mount, or a file system itself.
#[derive(Debug)]
pub struct Kernel {
    root: PathBuf,
    /// Files that stay open, by the path that they have now.
    open: HashMap<String, File>,
    /// Whether files stay open.
    keep: bool,
}

impl Kernel {
    /// Works below `root`; files stay open from one operation to the next if `keep`.
    pub fn new(root: &Path, keep: bool) -> Kernel {
        Kernel {
            root: root.to_owned(),
            open: HashMap::new(),
            keep,
        }
    }

    fn file(&mut self, path: &str) -> io::Result<File> {
        if let Some(file) = self.open.get(path) {
            return file.try_clone();
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(self.root.join(path))?;
        if self.keep {
            self.open.insert(path.to_owned(), file.try_clone()?);
        }
        Ok(file)
    }

    fn write(&mut self, path: &str, pos: u64, bytes: &[u8], how: How) -> io::Result<()> {
        match how {
            How::Plain | How::Uncached => self.file(path)?.write_all_at(bytes, pos),
            How::Synced => {
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(OFlags::SYNC.bits() as i32);
                options.open(self.root.join(path))?.write_all_at(bytes, pos)
            }
            How::Mapped => {
                let file = self.file(path)?;
                file.write_all_at(bytes, pos)?;
                file.sync_data()
            }
        }
    }
}

impl Subject for Kernel {
    fn apply(&mut self, operation: &TreeOp) -> io::Result<()> {
        let at = |path: &str| self.root.join(path);
        match operation {
            TreeOp::Create { path } => File::create_new(at(path)).map(drop),
            TreeOp::Mkdir { path } => fs::create_dir(at(path)),
            TreeOp::Write {
                path,
                pos,
                len,
                fill,
                how,
            } => self.write(path, *pos, &fill.bytes(*pos, *len), *how),
            TreeOp::Append { path, len, fill } => {
                let file = self.file(path)?;
                let pos = file.metadata()?.len();
                file.write_all_at(&fill.bytes(pos, *len), pos)
            }
            TreeOp::Truncate { path, size } => self.file(path)?.set_len(*size),
            TreeOp::Punch { path, pos, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(fallocate(self.file(path)?, mode, *pos, *len)?)
            }
            TreeOp::Rename { from, to } => {
                fs::rename(at(from), at(to))?;
                // Those below a directory that moved are opened again.
                let inside = format!("{from}/");
                self.open
                    .retain(|path, _| path != to && !path.starts_with(&inside));
                if let Some(file) = self.open.remove(from) {
                    self.open.insert(to.clone(), file);
                }
                Ok(())
            }
            TreeOp::Link { existing, new } => fs::hard_link(at(existing), at(new)),
            TreeOp::Unlink { path } => {
                fs::remove_file(at(path))?;
                self.open.remove(path);
                Ok(())
            }
            TreeOp::Rmdir { path } => fs::remove_dir(at(path)),
            TreeOp::SyncData { path } => self.file(path)?.sync_data(),
            TreeOp::SyncAll { path } => self.file(path)?.sync_all(),
            TreeOp::SyncDir { path } => File::open(at(path))?.sync_all(),
            TreeOp::SyncEverything => self.sync_everything("."),
        }
    }
}

impl Kernel {
    /// Syncs each file and directory: a mount passes no `syncfs` on.
    fn sync_everything(&mut self, dir: &str) -> io::Result<()> {
        let path = self.root.join(dir);
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type()?.is_dir() {
                true => self.sync_everything(&format!("{dir}/{name}"))?,
                false => File::open(entry.path())?.sync_all()?,
            }
        }
        File::open(path)?.sync_all()
    }
}
