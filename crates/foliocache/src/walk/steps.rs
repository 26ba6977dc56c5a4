//! A walk in one thread, depth first: the directories that are open, innermost last.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::FileKind;
use std::fmt;
use std::path::PathBuf;
use std::vec;

use super::WalkEntry;
use crate::directory::Directory;
use crate::error::{Operation, Result};
use crate::metadata::{DirEntry, ReadDir};

/// What holds for all of a walk.
#[derive(Debug)]
pub(super) struct Walker {
    pub(super) start: Arc<Directory>,
    /// From there to where the walk starts.
    pub(super) path: PathBuf,
    pub(super) ordered: bool,
    pub(super) follow: bool,
    pub(super) max_depth: usize,
}

/// A directory that is to be walked.
pub(super) struct Job {
    from: Arc<Directory>,
    name: PathBuf,
    follow: bool,
    /// From where the walk started.
    path: PathBuf,
    /// Of the entries in it.
    depth: usize,
    above: Option<Arc<Above>>,
}

/// A directory that is walked, with those above it.
struct Above {
    ino: u64,
    above: Option<Arc<Above>>,
}

impl Drop for Above {
    /// One after the other, however deep it is.
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(above) = next.and_then(Arc::into_inner) {
            next = { above }.above.take();
        }
    }
}

/// A directory that is open.
struct Open {
    directory: Arc<Directory>,
    entries: Entries,
    path: PathBuf,
    depth: usize,
    above: Option<Arc<Above>>,
}

enum Entries {
    Read(Box<ReadDir>),
    Sorted(vec::IntoIter<Result<DirEntry>>),
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        match self {
            Entries::Read(entries) => entries.next(),
            Entries::Sorted(entries) => entries.next(),
        }
    }
}

impl Job {
    /// The directory where a walk starts.
    pub(super) fn start(walker: &Walker) -> Self {
        Self {
            from: Arc::clone(&walker.start),
            name: walker.path.clone(),
            follow: true,
            path: PathBuf::new(),
            depth: 1,
            above: None,
        }
    }
}

impl Walker {
    fn open(&self, job: Job) -> Result<Open> {
        let directory = job.from.open_below(&job.name, job.follow).map(Arc::new)?;
        let mut above = job.above;
        if self.follow {
            let ino = directory.metadata(".")?.ino();
            let mut at = &above;
            while let Some(here) = at {
                if here.ino == ino {
                    return Err(job.from.error(Operation::ReadDir, &job.name, Errno::ELOOP));
                }
                at = &here.above;
            }
            above = Some(Arc::new(Above { ino, above }));
        }
        let read = directory.read_dir(".")?;
        let entries = if self.ordered {
            let mut all: Vec<_> = read.collect();
            // Names first, then what went wrong.
            all.sort_by(|a, b| match (a, b) {
                (Ok(a), Ok(b)) => a.file_name().cmp(b.file_name()),
                (a, b) => a.is_err().cmp(&b.is_err()),
            });
            Entries::Sorted(all.into_iter())
        } else {
            Entries::Read(Box::new(read))
        };
        Ok(Open {
            directory,
            entries,
            path: job.path,
            depth: job.depth,
            above,
        })
    }

    /// An entry of a directory, and that as a directory to be walked.
    fn entry(&self, open: &Open, entry: Result<DirEntry>) -> (Result<WalkEntry>, Option<Job>) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return (Err(error), None),
        };
        let mut kind = entry.kind();
        let name = PathBuf::from(entry.into_file_name());
        let path = open.path.join(&name);
        let mut found = WalkEntry {
            from: Arc::clone(&open.directory),
            name,
            path,
            kind,
            depth: open.depth,
            follow: false,
        };
        if kind == FileKind::Unknown {
            match found.metadata() {
                Ok(metadata) => kind = metadata.kind(),
                Err(error) => return (Err(error), None),
            }
        }
        if kind == FileKind::Symlink && self.follow {
            // From the start, which it must not lead out of.
            found.from = Arc::clone(&self.start);
            found.name = self.path.join(&found.path);
            found.follow = true;
            match found.metadata() {
                Ok(metadata) => kind = metadata.kind(),
                Err(error) => return (Err(error), None),
            }
        }
        found.kind = kind;
        let job = (kind == FileKind::Directory && open.depth < self.max_depth).then(|| Job {
            from: Arc::clone(&found.from),
            name: found.name.clone(),
            follow: found.follow,
            path: found.path.clone(),
            depth: open.depth + 1,
            above: open.above.clone(),
        });
        (Ok(found), job)
    }
}

/// The walk below one directory.
pub(super) struct Steps {
    walker: Arc<Walker>,
    open: Vec<Open>,
    /// To be opened before anything else is read.
    next: Option<Job>,
}

impl Steps {
    pub(super) fn new(walker: &Arc<Walker>, job: Job) -> Self {
        Self {
            walker: Arc::clone(walker),
            open: Vec::new(),
            next: Some(job),
        }
    }

    /// The next entry; a directory that is to be walked comes with it.
    pub(super) fn next(&mut self) -> Option<(Result<WalkEntry>, Option<Job>)> {
        loop {
            if let Some(job) = self.next.take() {
                match self.walker.open(job) {
                    Ok(open) => self.open.push(open),
                    Err(error) => return Some((Err(error), None)),
                }
            }
            let open = self.open.last_mut()?;
            match open.entries.next() {
                Some(entry) => return Some(self.walker.entry(open, entry)),
                None => drop(self.open.pop()),
            }
        }
    }

    /// Walks a directory that came with an entry, next.
    pub(super) fn descend(&mut self, job: Job) {
        self.next = Some(job);
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("walker", &self.walker)
            .field("open", &self.open.len())
            .finish_non_exhaustive()
    }
}
