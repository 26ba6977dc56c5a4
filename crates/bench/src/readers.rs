//! Ways to read at many places of a file, or of several files as one: ours, and the kernel's.
//!
//! # Model
//!
//! A [`Set`] is the files and a [`Way`] how they are read. Both are sent to the kernel's side unchanged, so that a
//! reader is opened in the process whose cache it uses.

use foliocache::{Cache, DirectoryOptions, File, ReadRequest};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::files::{PAGE, whole};
use crate::latency::Times;
use crate::mapped::{Kernels, Mapped, copy};
use crate::ring::{Files, Ring};
use crate::streams::Stream;

/// Requests of a batch, and those of a ring at once.
pub(crate) const MANY: usize = 64;

/// Files that are read as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) paths: Vec<PathBuf>,
    /// Bytes of each.
    pub(crate) each: u64,
}

impl Set {
    pub(crate) fn one(path: PathBuf) -> Self {
        Self {
            paths: vec![path],
            each: u64::MAX,
        }
    }
}

/// How a set is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// Through a cache of ours with this bound in bytes, in batches if there are several places.
    Ours { bound: u64 },
    /// By pread(2).
    Pread,
    /// Through a mapping; with the advice that reads are at random, or without.
    Mapping { advised: bool },
    /// By an io_uring, [`MANY`] at once, all of them waited for; past the kernel's cache or not.
    Ring { direct: bool },
    /// Past the kernel's cache by an io_uring, with this many requests always in flight.
    Depth(usize),
}

/// The reader of one thread.
pub(crate) trait Reader: Send {
    /// Reads from each position into its part of `to`; all parts have one length.
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()>;

    /// Waits for the requests in flight. Replaces `times` by the times of the requests, if those are not the times
    /// of the calls.
    fn end(&mut self, _times: &mut Times) -> io::Result<()> {
        Ok(())
    }
}

impl Way {
    /// Opens the readers of `threads` threads.
    pub(crate) fn open(self, set: &Set, threads: usize) -> io::Result<Vec<Box<dyn Reader>>> {
        let each = set.each;
        let mut mappings = Vec::new();
        if let Self::Mapping { advised } = self {
            for path in &set.paths {
                mappings.push(Arc::new(Kernels::open(path, advised)?));
            }
        }
        let one = |_| -> io::Result<Box<dyn Reader>> {
            Ok(match self {
                Self::Ours { bound } => Box::new(Ours::open(set, bound)?),
                Self::Pread => {
                    let files = set.paths.iter().map(fs::File::open);
                    let files = files.collect::<io::Result<_>>()?;
                    Box::new(Calls { files, each })
                }
                Self::Mapping { .. } => Box::new(Mappings {
                    files: mappings.clone(),
                    each,
                }),
                Self::Ring { direct } => Box::new(Rings {
                    direct,
                    ..Rings::cached(set.clone())
                }),
                Self::Depth(depth) => Box::new(Rings {
                    depth,
                    direct: true,
                    waits: false,
                    ..Rings::cached(set.clone())
                }),
            })
        };
        (0..threads).map(one).collect()
    }

    /// Whether nothing is cached.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::Ring { direct: true } | Self::Depth(_))
    }
}

/// The parts of a buffer, each with its file and the position in it.
#[inline]
fn parts<'a>(
    each: u64,
    positions: &'a [u64],
    to: &'a mut [u8],
) -> impl Iterator<Item = (usize, u64, &'a mut [u8])> {
    let parts = to.chunks_mut(to.len() / positions.len());
    positions.iter().zip(parts).map(move |(&pos, part)| {
        // One file is the usual case: a division takes as long as a small read of a mapping.
        let (file, pos) = match each {
            u64::MAX => (0, pos),
            each => ((pos / each) as usize, pos % each),
        };
        (file, pos, part)
    })
}

/// Ours.
pub(crate) struct Ours {
    pub(crate) files: Vec<Arc<File>>,
    pub(crate) each: u64,
    /// Requests of a batch.
    pub(crate) at_once: usize,
}

impl Ours {
    /// One file.
    pub(crate) fn new(file: &Arc<File>, at_once: usize) -> Self {
        Self {
            files: vec![Arc::clone(file)],
            each: u64::MAX,
            at_once,
        }
    }

    /// Files in one folder, through a new cache.
    fn open(set: &Set, bound: u64) -> io::Result<Self> {
        let folder = set.paths[0].parent().ok_or(io::ErrorKind::NotFound)?;
        let cache = Cache::builder().memory(bound).build()?;
        // Other processes have the directory open.
        let options = DirectoryOptions::new().read_only(true);
        let directory = cache.directory_with(folder, options)?;
        let names = set.paths.iter().filter_map(|path| path.file_name());
        let files = names.map(|name| directory.open(name).map(Arc::new));
        Ok(Self {
            files: files.collect::<foliocache::Result<_>>()?,
            each: set.each,
            at_once: MANY,
        })
    }
}

impl Reader for Ours {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        let (len, at_once) = (
            to.len() / positions.len(),
            self.at_once.min(positions.len()),
        );
        if at_once == 1 {
            let mut parts = parts(self.each, positions, to);
            return parts.try_for_each(|(file, pos, part)| {
                whole(self.files[file].read_at(part, pos)?, len)
            });
        }
        let batches = positions.chunks(at_once).zip(to.chunks_mut(at_once * len));
        for (positions, to) in batches {
            let requests = parts(self.each, positions, to);
            let mut requests: Vec<ReadRequest<'_>> = requests
                .map(|(file, pos, part)| self.files[file].read_request(part, pos))
                .collect();
            File::read_batch(&mut requests)?;
            for request in &requests {
                whole(request.result()?, len)?;
            }
        }
        Ok(())
    }
}

/// Ours, copied out of a view of each place.
pub(crate) struct Views(pub(crate) Arc<File>);

impl Reader for Views {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        parts(u64::MAX, positions, to).try_for_each(|(_, pos, part)| {
            let view = self.0.view(pos..pos + part.len() as u64)?;
            whole(view.len(), part.len())?;
            part.copy_from_slice(&view);
            Ok(())
        })
    }
}

/// The kernel's calls.
pub(crate) struct Calls {
    pub(crate) files: Vec<fs::File>,
    pub(crate) each: u64,
}

impl Reader for Calls {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        parts(self.each, positions, to).try_for_each(|(file, pos, part)| {
            whole(self.files[file].read_at(part, pos)?, part.len())
        })
    }
}

/// Mappings, the kernel's or ours.
pub(crate) struct Mappings<M> {
    pub(crate) files: Vec<Arc<M>>,
    pub(crate) each: u64,
}

impl<M: Mapped + Send + Sync> Reader for Mappings<M> {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        parts(self.each, positions, to)
            .try_for_each(|(file, pos, part)| copy(&*self.files[file], part, pos))
    }
}

/// A ring, opened anew where requests have another length.
pub(crate) struct Rings {
    set: Set,
    depth: usize,
    direct: bool,
    /// All requests of a call are waited for.
    waits: bool,
    ring: Option<Ring>,
}

impl Reader for Rings {
    fn read(&mut self, positions: &[u64], to: &mut [u8]) -> io::Result<()> {
        // Past the cache whole pages are read.
        let least = if self.direct { PAGE } else { 1 };
        let len = (to.len() / positions.len()).max(least);
        let ring = match &mut self.ring {
            Some(ring) if ring.len == len => ring,
            other => {
                let files = Files::open(&self.set.paths, self.set.each, self.direct)?;
                other.insert(Ring::new(files, self.depth, len, (false, !self.waits))?)
            }
        };
        for &pos in positions {
            ring.step(pos - pos % least as u64)?;
        }
        if self.waits {
            ring.end()?;
        }
        Ok(())
    }

    fn end(&mut self, times: &mut Times) -> io::Result<()> {
        if let Some(ring) = self.ring.as_mut().filter(|_| !self.waits) {
            ring.end()?;
            *times = std::mem::replace(&mut ring.times, Times::new());
        }
        Ok(())
    }
}

impl Rings {
    /// Through the kernel's cache, [`MANY`] reads at once.
    pub(crate) fn cached(set: Set) -> Self {
        Self {
            set,
            depth: MANY,
            direct: false,
            waits: true,
            ring: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_returns_the_bytes_of_the_files() {
        const FILES: u64 = 3;
        const EACH: u64 = 1 << 20;
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("foliocache-readers-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let name = |file| folder.join(format!("file-{file}"));
        let set = Set {
            paths: (0..FILES).map(name).collect(),
            each: EACH,
        };
        let byte = |pos: u64| (pos / PAGE as u64 * 7 + pos / EACH) as u8;
        for (file, path) in (0..).zip(&set.paths) {
            let bytes: Vec<u8> = (0..EACH).map(|pos| byte(file * EACH + pos)).collect();
            fs::write(path, bytes).unwrap();
        }
        let ours = Way::Ours { bound: 16 << 20 };
        for way in [ours, Way::Mapping { advised: true }, Way::Pread] {
            let mut reader = way.open(&set, 1).unwrap().remove(0);
            for (len, places) in [(PAGE, 2 * FILES), (64 * PAGE, 1)] {
                let positions: Vec<u64> = (0..places)
                    .map(|at| at * EACH / 2 + at * len as u64)
                    .collect();
                let mut to = vec![0; positions.len() * len];
                reader.read(&positions, &mut to).unwrap();
                for (&pos, part) in positions.iter().zip(to.chunks(len)) {
                    let right = |(at, found): (usize, &u8)| *found == byte(pos + at as u64);
                    assert!(part.iter().enumerate().all(right), "{way:?} at {pos}");
                }
            }
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
