//! Walks over everything below a directory.
//!
//! # Model
//!
//! ```text
//!  Walk ──into_iter──▶ one thread: the caller reads directories as it goes, depth first     (steps)
//!                   └▶ several: each does so below a directory that it took, into one queue  (team)
//! ```
//!
//! Each directory is opened from the one that it was found in, without following a link: what is moved
//! meanwhile takes no walk out of its start.

mod steps;
mod team;

use foliocache_sync::Arc;
use foliocache_vfs::FileKind;
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::Result;
use crate::metadata::Metadata;
use steps::{Job, Steps, Walker};
use team::Team;

/// How the entries below a directory are to be walked. From [`Directory::walk`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cache = foliocache::Cache::builder().memory("16M").build()?;
/// let dir = cache.memfs()?;
/// dir.create_dir_all("logs/today")?;
/// dir.create("logs/today/app")?;
/// for entry in dir.walk(".").ordered(true) {
///     println!("{}", entry?.path().display());
/// }
/// assert_eq!(dir.walk("logs").threads(4).into_iter().count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it walks when it is iterated over"]
pub struct Walk {
    directory: Directory,
    path: PathBuf,
    threads: usize,
    ordered: bool,
    follow: bool,
    max_depth: usize,
}

impl Walk {
    pub(crate) fn new(directory: &Directory, path: &Path) -> Self {
        Self {
            directory: directory.clone(),
            path: path.to_owned(),
            threads: 1,
            ordered: false,
            follow: false,
            max_depth: usize::MAX,
        }
    }

    /// How many threads read directories; 1 unless said. With one it is the caller's own.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Whether entries come sorted by name, and all of a directory right after it. One thread walks
    /// then, and the names of the directories on the way to an entry are in memory. Without,
    /// entries come as they are found.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    /// Whether symbolic links are followed. One that leads to a directory that it is in is `ELOOP`,
    /// one that leads out of the [`Directory`] is an [`Error::Escape`](crate::Error::Escape).
    pub fn follow_links(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// How far down it goes: 1 is the directory's own entries.
    pub fn max_depth(mut self, depth: usize) -> Self {
        self.max_depth = depth;
        self
    }
}

impl IntoIterator for Walk {
    type Item = Result<WalkEntry>;
    type IntoIter = WalkIter;

    fn into_iter(self) -> WalkIter {
        let walker = Arc::new(Walker {
            start: Arc::new(self.directory),
            path: self.path,
            ordered: self.ordered,
            follow: self.follow,
            max_depth: self.max_depth,
        });
        let start = Job::start(&walker);
        let alone = |start| By::Caller(Box::new(Steps::new(&walker, start)));
        WalkIter(match self.threads {
            2.. if !self.ordered => match Team::new(&walker, start, self.threads) {
                Ok(team) => By::Team(team),
                Err(start) => alone(start),
            },
            _ => alone(start),
        })
    }
}

/// The entries below a directory. What cannot be read is an error among them, and the walk goes on
/// with the rest.
///
/// What is there throughout comes once, unless it or a directory above it is moved meanwhile.
/// Memory is taken for the directories that are open and for a queue of a fixed length. Dropped
/// early, its threads end.
#[derive(Debug)]
pub struct WalkIter(By);

#[derive(Debug)]
enum By {
    Caller(Box<Steps>),
    Team(Team),
}

impl Iterator for WalkIter {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        match &mut self.0 {
            By::Caller(steps) => {
                let (entry, job) = steps.next()?;
                if let Some(job) = job {
                    steps.descend(job);
                }
                Some(entry)
            }
            By::Team(team) => team.next(),
        }
    }
}

/// What a walk came to.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// From where `name` leads to it.
    from: Arc<Directory>,
    name: PathBuf,
    path: PathBuf,
    kind: FileKind,
    depth: usize,
    follow: bool,
}

impl WalkEntry {
    /// The path from where the walk started.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path, given away.
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    /// What it is, or what it leads to where links are followed; [`FileKind::Unknown`] where the
    /// directory does not say.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// How far down it is; 1 for the entries of the directory where the walk started.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The attributes, as they are now, of what has the name in the directory that was walked.
    ///
    /// # Errors
    /// As [`Directory::metadata`].
    pub fn metadata(&self) -> Result<Metadata> {
        self.from.stat(&self.name, self.follow)
    }
}
