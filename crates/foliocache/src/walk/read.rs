//! The directories of a walk: found, opened, and read in order or as they come.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::FileKind;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::vec;

use super::{Walk, WalkEntry, WalkName};
use crate::directory::{DirEntry, Directory, ReadDir};
use crate::error::{Operation, Result};
use crate::joined::joined;

/// A directory that is to be walked.
pub(super) struct Job {
    pub(super) entry: WalkEntry,
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
    pub(super) place: WalkDir,
    pub(super) entries: Entries,
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
pub(super) struct WalkDir {
    directory: Arc<Directory>,
    path: PathBuf,
    /// Of the entries.
    depth: usize,
    above: Option<Arc<Above>>,
}

impl WalkDir {
    /// One of the entries.
    fn entry(&self, name: &OsStr, kind: FileKind) -> WalkEntry {
        let path = joined(&self.path, name);
        WalkEntry {
            from: Arc::clone(&self.directory),
            name: WalkName::End(name.len()),
            path,
            kind,
            depth: self.depth,
            follow: false,
        }
    }
}

pub(super) enum Entries {
    Read(Box<ReadDir>),
    Sorted(vec::IntoIter<Result<DirEntry>>),
}

impl Entries {
    /// What `take` makes of the next one.
    pub(super) fn next<R>(
        &mut self,
        take: impl FnOnce(Result<(FileKind, &OsStr)>) -> R,
    ) -> Option<R> {
        match self {
            Entries::Read(entries) => entries.next_borrowed().map(take),
            Entries::Sorted(entries) => Some(match entries.next()? {
                Ok(entry) => take(Ok((entry.kind(), entry.name()))),
                Err(error) => take(Err(error)),
            }),
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
            (Ok(a), Ok(b)) => a.name().cmp(b.name()),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
        Open {
            place: self.place,
            entries: Entries::Sorted(self.entries.into_iter()),
        }
    }
}

/// The directories in another whose entries are in order, from one of them on. It owns the
/// names, because the caller takes the entries.
pub(super) struct Below {
    place: WalkDir,
    name: OsString,
    rest: vec::IntoIter<OsString>,
}

impl Below {
    /// All of them, unless that is as far down as the walk goes.
    pub(super) fn all(walk: &Walk, open: &Open) -> Option<Self> {
        let Entries::Sorted(entries) = &open.entries else {
            return None;
        };
        if open.place.depth >= walk.max_depth {
            return None;
        }
        let entries = entries.as_slice().iter().flatten();
        let directories = entries.filter(|entry| entry.kind() == FileKind::Directory);
        let names = directories.map(|entry| entry.name().to_owned());
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
            entry: self.place.entry(&self.name, FileKind::Directory),
            above: self.place.above.clone(),
        }
    }
}

impl Walk {
    /// The directory where it starts.
    pub(super) fn job(&self) -> Job {
        let entry = WalkEntry {
            from: Arc::clone(&self.start),
            name: WalkName::Path(self.path.clone()),
            path: PathBuf::new(),
            kind: FileKind::Directory,
            depth: 0,
            follow: true,
        };
        Job { entry, above: None }
    }

    pub(super) fn open(&self, job: Job) -> Result<Open> {
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

    fn read(&self, Job { entry, mut above }: Job) -> Result<(WalkDir, ReadDir)> {
        #[cfg(test)]
        (self.opening)(&entry.path);
        let directory = entry.from.open_below(entry.name(), entry.follow)?;
        if self.follow {
            let ino = directory.metadata(".")?.attr().ino;
            let mut at = &above;
            while let Some(here) = at {
                if here.ino == ino {
                    let (operation, errno) = (Operation::ReadDir, Errno::ELOOP);
                    return Err(entry.from.error(operation, entry.name(), errno));
                }
                at = &here.above;
            }
            above = Some(Arc::new(Above { ino, above }));
        }
        let read = directory.read_dir(".")?;
        let place = WalkDir {
            directory: Arc::new(directory),
            path: entry.path,
            depth: entry.depth + 1,
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
    pub(super) fn entry(&self, place: &WalkDir, entry: Result<(FileKind, &OsStr)>) -> Step {
        let (kind, name) = entry?;
        let mut found = place.entry(name, kind);
        if found.kind == FileKind::Unknown {
            found.kind = found.metadata()?.file_type();
        }
        if found.kind == FileKind::Symlink && self.follow {
            // From the start, which it must not lead out of.
            found.from = Arc::clone(&self.start);
            found.name = WalkName::Path(self.path.join(&found.path));
            found.follow = true;
            found.kind = found.metadata()?.file_type();
        }
        let walked = found.kind == FileKind::Directory && place.depth < self.max_depth;
        let job = walked.then(|| {
            Box::new(Job {
                entry: found.clone(),
                above: place.above.clone(),
            })
        });
        Ok((found, job))
    }
}

/// An entry; a directory that is to be walked comes with it.
pub(super) type Step = Result<(WalkEntry, Option<Box<Job>>)>;
