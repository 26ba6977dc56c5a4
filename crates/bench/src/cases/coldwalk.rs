//! Walks of trees that are larger than the memory, on a disk: no name is cached when it is asked for.
//!
//! # Model
//!
//! The test of the kernel's change by which its inode hash came to be looked up under RCU: each thread walks a tree of
//! its own, directory by directory, and stats each file once. All files together do not fit the memory, so a name that
//! was cached is evicted before the walk comes to it again; the directories on the way are hits. The original has 20
//! threads with 1,000 directories of 1,000 files each (`--threads 20 --dirs 1000 --files 1000 --memory 4G`).
//!
//! Ours and the kernel's walk the same trees, each in a process with the same memory cgroup. The kernel has all of it for its
//! caches. Ours has half of it as its bound, with default settings; the rest is for the kernel below it, which has to
//! find each name as well. Before each turn the kernel drops its dentries and inodes (that needs root), so that one side
//! finds nothing of the other's. Blocks of the file system stay in its cache as far as they fit.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use super::{DIRFS, KERNEL, memory};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::kernel::KernelSide;
use crate::names::Make;
use crate::place::{DROP_CACHES, Folder, check_room};
use crate::settings::{Settings, Uses};
use crate::trees::Trees;

/// See the module.
pub(crate) struct ColdWalk;

const NAME: &str = "walk, names not cached";

/// What each process has of the cgroup's memory for itself.
const OWN: u64 = 16 << 20;

/// Bytes of the disk that a name takes, at most: its inode and its entry.
const ON_DISK: u64 = 512;

impl Case for ColdWalk {
    fn name(&self) -> &'static str {
        "coldwalk"
    }

    fn about(&self) -> &'static str {
        "walks of trees on a disk that are larger than the memory: no name is cached"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, dirs, memory) = match quick {
            true => (2, 30, 8 << 20),
            false => (10, 200, 64 << 20),
        };
        Settings {
            samples,
            memory: Some(memory),
            dirs: Some(dirs),
            files: Some(1000),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 20 } else { 300 }
    }

    fn uses(&self) -> Uses {
        Uses {
            threads: true,
            memory: true,
            dir: true,
            tree: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
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
        let side = || KernelSide::start(&settings.helper, folder.guard(), 2 * memory + OWN, None);
        let sides = [(DIRFS, side()?, Some(memory)), (KERNEL, side()?, None)];
        trees.make(&OnDisk(&folder))?;
        let place = Some(folder.describe());
        let folder = Rc::new(folder);
        let mut one = Match::default();
        for (variant, process, bound) in sides {
            let walk = Walk {
                process: RefCell::new(process),
                bound,
                trees,
                folder: Rc::clone(&folder),
            };
            one.add(NAME, variant, Work::pass(trees.threads, "files/s", walk));
        }
        one.ratios = vec![RatioPlan::new("coldwalk_vs_kernel", 0, 1)];
        Ok(Plan {
            matches: vec![one],
            place,
            notes: vec![format!(
                "{files} files; ours has a bound of {} MiB, either side {} MiB in all",
                memory >> 20,
                (2 * memory + OWN) >> 20
            )],
        })
    }
}

/// Trees in a folder.
struct OnDisk<'a>(&'a Folder);

impl Make for OnDisk<'_> {
    fn dir(&self, path: &str) -> io::Result<()> {
        let path = self.0.path().join(path);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))
    }

    fn file(&self, path: &str) -> io::Result<()> {
        fs::File::create_new(self.0.path().join(path)).map(drop)
    }
}

/// One side's walk of all trees. Its process ends before the folder is taken away.
struct Walk {
    process: RefCell<KernelSide>,
    /// Of our cache; None for the kernel's side.
    bound: Option<u64>,
    trees: Trees,
    folder: Rc<Folder>,
}

impl Pass for Walk {
    fn prepare(&mut self) -> io::Result<()> {
        fs::write(DROP_CACHES, "2")
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let mut process = self.process.borrow_mut();
        let (cost, latency) = process.walk(self.folder.path(), self.trees, self.bound)?;
        let files = self.trees.all_files() as f64;
        Ok(Outcome {
            latency: Some(latency),
            ..Outcome::plain(files / cost.seconds)
        })
    }
}
