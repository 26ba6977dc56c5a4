//! The directories of a walk: found, opened, and read in order or as they come.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_vfs::{Attr, FileKind, Found, UncachedDir};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec;

use super::uncached::Uncached;
use super::{Walk, WalkEntry, WalkName};
use crate::directory::{Directory, ReadDir};
use crate::error::{Operation, Result};
use crate::joined::joined;

/// A directory that is to be walked.
pub(super) struct Job {
    pub(super) entry: WalkEntry,
    above: Option<Arc<Above>>,
    /// The directory that it was found in, if names are not cached there.
    found_in: Option<Arc<dyn UncachedDir>>,
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

/// Where the entries of a directory are.
pub(super) struct WalkDir {
    /// The directory through which entries are asked for: this one, or one above it if names are not cached.
    directory: Arc<Directory>,
    /// Bytes of the path that lead to `directory`.
    prefix: usize,
    path: PathBuf,
    /// Of the entries.
    depth: usize,
    above: Option<Arc<Above>>,
    uncached: Option<Arc<dyn UncachedDir>>,
}

impl WalkDir {
    /// One of the entries.
    fn entry(&self, name: &OsStr, kind: FileKind) -> WalkEntry {
        let path = joined(&self.path, name);
        WalkEntry {
            from: Arc::clone(&self.directory),
            name: WalkName::End(path.as_os_str().len() - self.prefix),
            path,
            kind,
            depth: self.depth,
            follow: false,
            attr: None,
        }
    }

    fn job(&self, entry: WalkEntry) -> Job {
        Job {
            entry,
            above: self.above.clone(),
            found_in: self.uncached.clone(),
        }
    }
}

/// The same with a name of its own.
pub(super) struct Named {
    name: OsString,
    kind: FileKind,
    attr: Option<Result<Attr, Errno>>,
}

/// A directory that is being read.
pub(super) enum Reading {
    Cached(Box<ReadDir>),
    Uncached(Box<Uncached>),
}

impl Reading {
    fn next<R>(&mut self, place: &WalkDir, take: impl FnOnce(Result<Found<'_>>) -> R) -> Option<R> {
        match self {
            Reading::Cached(entries) => Some(take(entries.next_borrowed()?)),
            Reading::Uncached(entries) => Some(take(entries.next()?.map_err(|errno| {
                let path = &place.path.as_os_str().as_bytes();
                let path = Path::new(OsStr::from_bytes(path.get(place.prefix..).unwrap_or(b"")));
                place.directory.error(Operation::ReadDir, path, errno)
            }))),
        }
    }

    /// All that is left: names in order, then what went wrong.
    fn sorted(mut self, place: &WalkDir) -> Vec<Result<Named>> {
        let named = |Found { name, kind, attr }: Found<'_>| Named {
            name: name.to_owned(),
            kind,
            attr,
        };
        let next = || self.next(place, |found| found.map(named));
        let mut entries: Vec<_> = std::iter::from_fn(next).collect();
        entries.sort_by(|a, b| match (a, b) {
            (Ok(a), Ok(b)) => a.name.cmp(&b.name),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
        entries
    }
}

pub(super) enum Entries {
    AsRead(Reading),
    Sorted(vec::IntoIter<Result<Named>>),
}

impl Entries {
    /// What `take` makes of the next one.
    pub(super) fn next<R>(
        &mut self,
        place: &WalkDir,
        take: impl FnOnce(Result<Found<'_>>) -> R,
    ) -> Option<R> {
        match self {
            Entries::AsRead(entries) => entries.next(place, take),
            Entries::Sorted(entries) => Some(match entries.next()? {
                Ok(Named { name, kind, attr }) => take(Ok(Found {
                    name: &name,
                    kind,
                    attr,
                })),
                Err(error) => take(Err(error)),
            }),
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
            attr: None,
        };
        Job {
            entry,
            above: None,
            found_in: None,
        }
    }

    pub(super) fn open(&self, job: Job) -> Result<Open> {
        let (place, reading) = self.read(job)?;
        let entries = match self.ordered {
            false => Entries::AsRead(reading),
            true => Entries::Sorted(reading.sorted(&place).into_iter()),
        };
        Ok(Open { place, entries })
    }

    fn read(&self, job: Job) -> Result<(WalkDir, Reading)> {
        let Job {
            entry,
            mut above,
            found_in,
        } = job;
        #[cfg(test)]
        (self.opening)(&entry.path);
        let (directory, uncached) = match found_in.filter(|_| !entry.follow) {
            Some(found_in) => {
                let dir = Self::open_uncached(&entry, &*found_in)?;
                (Arc::clone(&entry.from), Some(dir))
            }
            None => {
                let directory = entry.from.open_below(entry.name(), entry.follow)?;
                let uncached = match self.uncached {
                    true => directory.open_uncached()?,
                    false => None,
                };
                (Arc::new(directory), uncached)
            }
        };
        let uncached: Option<Arc<dyn UncachedDir>> = uncached.map(Arc::from);
        if self.follow {
            let ino = match &uncached {
                Some(dir) => dir.attr().ino,
                None => directory.metadata(".")?.attr().ino,
            };
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
        let reading = match &uncached {
            Some(dir) => Reading::Uncached(Box::new(Uncached::new(dir))),
            None => Reading::Cached(Box::new(directory.read_dir(".")?)),
        };
        let is_below = uncached.is_some() && Arc::ptr_eq(&directory, &entry.from);
        let prefix = match entry.path.as_os_str().len() {
            0 => 0,
            len if is_below => len - entry.name().as_os_str().len(),
            len => len + 1,
        };
        let place = WalkDir {
            directory,
            prefix,
            path: entry.path,
            depth: entry.depth + 1,
            above,
            uncached,
        };
        Ok((place, reading))
    }

    /// Does what a thread of the walk does with a directory. If that panics, which is counted, there is an
    /// error for what is below it.
    pub(super) fn catch<R>(&self, path: &Path, work: impl FnOnce() -> R) -> Result<R> {
        let panics = self.start.panics();
        panics.catch("walk", work).ok_or_else(|| {
            let path = self.path.join(path);
            self.start.error(Operation::ReadDir, &path, Errno::EIO)
        })
    }

    /// An entry of a directory, and that as a directory to be walked.
    pub(super) fn entry(&self, place: &WalkDir, found: Result<Found<'_>>) -> Step {
        let Found { name, kind, attr } = found?;
        let mut found = place.entry(name, kind);
        found.attr = attr;
        if found.kind == FileKind::Unknown {
            found.kind = found.metadata()?.file_type();
        }
        if found.kind == FileKind::Symlink && self.follow {
            // From the start, which it must not lead out of.
            found.from = Arc::clone(&self.start);
            found.name = WalkName::Path(self.path.join(&found.path));
            (found.follow, found.attr) = (true, None);
            found.kind = found.metadata()?.file_type();
        }
        let walked = found.kind == FileKind::Directory && place.depth < self.max_depth;
        let job = walked.then(|| Box::new(place.job(found.clone())));
        Ok((found, job))
    }
}

/// An entry; a directory that is to be walked comes with it.
pub(super) type Step = Result<(WalkEntry, Option<Box<Job>>)>;
