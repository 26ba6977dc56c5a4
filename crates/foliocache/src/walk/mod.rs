//! Walks over everything below a directory.
//!
//! # Model
//!
//! ```text
//!  Walk ──into_iter──▶ one thread: the caller reads directories as it goes, depth first     (steps)
//!                   └▶ several: each does so below a directory that it took, into one queue  (team)
//! ```
//!
//! Entries come from the caches of names, or past them with their attributes (uncached).
//!
//! Each directory is opened from the one that it was found in, without following a link: what is moved
//! meanwhile takes no walk out of its start.

mod read;
mod steps;
mod team;
#[cfg(test)]
mod tests;
mod uncached;

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Attr, FileKind};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::{Operation, Result};
use crate::metadata::Metadata;
use crate::setters::setters;
use steps::Steps;
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
    start: Arc<Directory>,
    /// From there to where the walk starts.
    path: PathBuf,
    threads: usize,
    ordered: bool,
    follow: bool,
    uncached: bool,
    max_depth: usize,
    /// Runs before a directory is opened.
    #[cfg(test)]
    opening: fn(&Path),
}

impl Directory {
    /// Everything below a directory; `"."` is this one. See [`Walk`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cache = foliocache::Cache::builder().memory("16M").build()?;
    /// let dir = cache.memfs()?;
    /// let mut bytes = 0;
    /// for entry in dir.walk(".").threads(2) {
    ///     bytes += entry?.metadata()?.len();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn walk(&self, path: impl AsRef<Path>) -> Walk {
        Walk::new(self, path.as_ref())
    }
}

impl Walk {
    fn new(directory: &Directory, path: &Path) -> Self {
        Self {
            start: Arc::new(directory.clone()),
            path: path.to_owned(),
            threads: 1,
            ordered: false,
            follow: false,
            uncached: false,
            max_depth: usize::MAX,
            #[cfg(test)]
            opening: |_| {},
        }
    }

    setters! {
        /// How many threads walk, each below a directory that it took. Default: 1, the caller's own, which also an
        /// [`ordered`](Self::ordered) walk has.
        threads(threads: usize) => threads = threads.max(1);

        /// Whether entries come sorted by name, and all of a directory right after it. Without, entries come as they are found.
        ///
        /// The caller reads the directories itself, whatever [`threads`](Self::threads) says. All names of a directory are read
        /// before its first entry is returned, and those of the directories above an entry stay in memory.
        ordered(ordered: bool) => ordered = ordered;

        /// Whether symbolic links are followed. One that leads to a directory that it is in is `ELOOP`,
        /// one that leads out of the [`Directory`] is an [`Error::Escape`](crate::Error::Escape).
        follow_links(follow: bool) => follow = follow;

        /// Whether the walk leaves the caches as they are, as a backup or a scan should: it brings in no name and no attributes, so it
        /// pushes out none. Entries come with their attributes, asked for a directory at a time, 1024 names at once, in the order
        /// of inode numbers. Without [`ordered`](Self::ordered) they come in that order, too: a program that reads the files as they
        /// come moves least on the disk.
        ///
        /// [`WalkEntry::metadata`] gives these attributes without asking again. They are as [`Directory::metadata`] would have shown them: those of
        /// files with unwritten data include it. Targets of followed links are looked up, and cached, as usual. A file system in memory
        /// has all names in memory, and walks it as without this.
        ///
        /// Directories are read by descriptors: one for each directory that a thread has open, 64 of them at most besides those that are
        /// read just then. A directory deeper than that is opened again from the start of the walk; if it was moved meanwhile that is
        /// `ESTALE`.
        uncached(uncached: bool) => uncached = uncached;

        /// How far down it goes: 1 is the directory's own entries.
        max_depth(depth: usize) => max_depth = depth;
    }
}

impl IntoIterator for Walk {
    type Item = Result<WalkEntry>;
    type IntoIter = WalkIter;

    fn into_iter(self) -> WalkIter {
        let start = Box::new(self.job());
        let walk = &Arc::new(self);
        let caller = |start| By::Caller(Box::new(Steps::new(walk, start)));
        WalkIter(match walk.threads {
            threads if threads > 1 && !walk.ordered => {
                Team::new(walk, start, threads).map_or_else(caller, By::Team)
            }
            _ => caller(start),
        })
    }
}

/// The entries below a directory. An unreadable directory is an error among them, and the walk goes on with the rest.
///
/// An entry that is there throughout is returned once, unless it or a directory above it is moved meanwhile. A panic in a thread is
/// `EIO` for the directory that it walked.
///
/// Memory in order: see [`Walk::ordered`]. Out of order each thread has a directory open for each level of its depth, and up to
/// 256 entries of each, an [uncached](Walk::uncached) walk some 2000. For each thread at most 4 directories and 4 times 128 entries wait for others. None of that grows with the
/// number of entries: threads wait for a slow caller.
///
/// `next` may block while a directory is read. A drop waits until the threads have ended: each finishes what it is reading, 256
/// entries at most.
pub struct WalkIter(By);

enum By {
    Caller(Box<Steps>),
    Team(Team),
}

impl fmt::Debug for WalkIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WalkIter").finish_non_exhaustive()
    }
}

impl Iterator for WalkIter {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        match &mut self.0 {
            By::Caller(steps) => Some(steps.next()?.map(|(entry, job)| {
                steps.descend(job);
                entry
            })),
            By::Team(team) => team.next(),
        }
    }
}

/// The path to an entry from its `from`.
#[derive(Clone, Debug)]
enum WalkName {
    /// The last so many bytes of its path.
    End(usize),
    Path(PathBuf),
}

/// An entry that a walk came to.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    from: Arc<Directory>,
    name: WalkName,
    path: PathBuf,
    kind: FileKind,
    depth: usize,
    follow: bool,
    /// The attributes, if they were read with the directory.
    attr: Option<Result<Attr, Errno>>,
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

    /// Its kind, or that of its target if links are followed.
    pub fn file_type(&self) -> FileKind {
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
        match self.attr {
            None => self.from.stat(self.name(), self.follow),
            Some(Ok(attr)) => Ok(self.from.metadata_of(attr)),
            Some(Err(errno)) => Err(self.from.error(Operation::Metadata, self.name(), errno)),
        }
    }

    fn name(&self) -> &Path {
        match &self.name {
            WalkName::End(len) => {
                let path = self.path.as_os_str().as_bytes();
                Path::new(OsStr::from_bytes(&path[path.len() - len..]))
            }
            WalkName::Path(path) => path,
        }
    }
}
