//! A walk in one thread, depth first: the directories that are open, innermost last.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::FileKind;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::vec;

use super::WalkEntry;
use super::ahead::Ahead;
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
    /// Runs before a directory is opened.
    #[cfg(test)]
    pub(super) opening: fn(&Path),
}

/// A directory that is to be walked.
pub(super) struct Job {
    from: Arc<Directory>,
    name: PathBuf,
    follow: bool,
    /// From where the walk started.
    pub(super) path: PathBuf,
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
pub(super) struct Open {
    place: WalkDir,
    entries: Entries,
}

#[cfg(test)]
impl Open {
    /// How many entries are held.
    pub(super) fn len(&self) -> usize {
        match &self.entries {
            Entries::Read(_) => 0,
            Entries::Sorted(entries) => entries.len(),
        }
    }
}

/// Where the entries of a directory are.
#[derive(Clone)]
struct WalkDir {
    directory: Arc<Directory>,
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

/// A directory whose entries are being read, to be put in order.
pub(super) struct Unsorted {
    place: WalkDir,
    read: Box<ReadDir>,
    entries: Vec<Result<DirEntry>>,
}

impl Unsorted {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reads entries, `count` at most; says whether there may be more.
    pub(super) fn read(&mut self, count: usize) -> bool {
        self.entries.extend(self.read.by_ref().take(count));
        !self.read.has_ended()
    }

    /// Reads what is left.
    pub(super) fn sort(mut self) -> Open {
        self.read(usize::MAX);
        // Names first, then what went wrong.
        self.entries.sort_by(|a, b| match (a, b) {
            (Ok(a), Ok(b)) => a.file_name().cmp(b.file_name()),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
        Open {
            place: self.place,
            entries: Entries::Sorted(self.entries.into_iter()),
        }
    }
}

/// The directories in another whose entries are in order, from one of them on. Names of its own, as who
/// iterates gives the entries away.
pub(super) struct Below {
    place: WalkDir,
    name: OsString,
    rest: vec::IntoIter<OsString>,
}

impl Below {
    /// All of them, unless that is as far down as the walk goes.
    pub(super) fn all(walker: &Walker, open: &Open) -> Option<Self> {
        let Entries::Sorted(entries) = &open.entries else {
            return None;
        };
        if open.place.depth >= walker.max_depth {
            return None;
        }
        let entries = entries.as_slice().iter().flatten();
        let directories = entries.filter(|entry| entry.kind() == FileKind::Directory);
        let names = directories.map(|entry| entry.file_name().to_owned());
        let mut names: Vec<_> = names.collect();
        // One that was moved away and made again may be there twice.
        names.dedup();
        let mut rest = names.into_iter();
        Some(Self {
            name: rest.next()?,
            place: open.place.clone(),
            rest,
        })
    }

    /// From the next one on.
    pub(super) fn next(mut self) -> Option<Self> {
        self.name = self.rest.next()?;
        Some(self)
    }

    /// From where the walk started.
    pub(super) fn path(&self) -> PathBuf {
        self.place.path.join(&self.name)
    }

    pub(super) fn job(&self) -> Job {
        Job {
            from: Arc::clone(&self.place.directory),
            name: PathBuf::from(&self.name),
            follow: false,
            path: self.path(),
            depth: self.place.depth + 1,
            above: self.place.above.clone(),
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
        let (place, read) = self.read(job)?;
        let entries = Entries::Read(Box::new(read));
        Ok(Open { place, entries })
    }

    /// Opens a directory whose entries are to be put in order.
    pub(super) fn unsorted(&self, job: Job) -> Result<Unsorted> {
        let (place, read) = self.read(job)?;
        Ok(Unsorted {
            place,
            read: Box::new(read),
            entries: Vec::new(),
        })
    }

    fn read(&self, job: Job) -> Result<(WalkDir, ReadDir)> {
        #[cfg(test)]
        (self.opening)(&job.path);
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
        let place = WalkDir {
            directory,
            path: job.path,
            depth: job.depth,
            above,
        };
        Ok((place, read))
    }

    /// Does what a thread of the walk does with a directory. If that panics, which is counted, there is an
    /// error for the directory, or for what is below it.
    pub(super) fn catch<R>(&self, path: &Path, work: impl FnOnce() -> R) -> Result<R> {
        let panics = self.start.panics();
        panics.catch("walk", work).ok_or_else(|| {
            let path = self.path.join(path);
            self.start.error(Operation::ReadDir, &path, Errno::EIO)
        })
    }

    /// An entry of a directory, and that as a directory to be walked.
    fn entry(&self, place: &WalkDir, entry: Result<DirEntry>) -> (Result<WalkEntry>, Option<Job>) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return (Err(error), None),
        };
        let mut kind = entry.kind();
        let name = PathBuf::from(entry.into_file_name());
        let path = place.path.join(&name);
        let mut found = WalkEntry {
            from: Arc::clone(&place.directory),
            name,
            path,
            kind,
            depth: place.depth,
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
        let job = (kind == FileKind::Directory && place.depth < self.max_depth).then(|| Job {
            from: Arc::clone(&found.from),
            name: found.name.clone(),
            follow: found.follow,
            path: found.path.clone(),
            depth: place.depth + 1,
            above: place.above.clone(),
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
    pub(super) ahead: Option<Ahead>,
}

impl Steps {
    pub(super) fn new(walker: &Arc<Walker>, job: Job, ahead: Option<Ahead>) -> Self {
        Self {
            walker: Arc::clone(walker),
            open: Vec::new(),
            next: Some(job),
            ahead,
        }
    }

    fn open(&self, job: Job) -> Result<Open> {
        match &self.ahead {
            Some(ahead) => ahead.open(&self.walker, job),
            None if self.walker.ordered => self.walker.unsorted(job).map(Unsorted::sort),
            None => self.walker.open(job),
        }
    }

    /// The next entry; a directory that is to be walked comes with it.
    pub(super) fn next(&mut self) -> Option<(Result<WalkEntry>, Option<Job>)> {
        loop {
            if let Some(job) = self.next.take() {
                match self.open(job) {
                    Ok(open) => self.open.push(open),
                    Err(error) => return Some((Err(error), None)),
                }
            }
            let open = self.open.last_mut()?;
            match open.entries.next() {
                Some(entry) => return Some(self.walker.entry(&open.place, entry)),
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
