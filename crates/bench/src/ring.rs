//! Requests of the kernel's through an io_uring: many reads at once, at random and all of them waited for, or requests
//! past its cache one after another, each waited for when its place is needed; and how many of those are fastest.
//!
//! # Safety
//!
//! A request's memory is the ring's buffer, which is there until every request has ended: one that cannot be waited for
//! leaks it.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::BenchError;
use crate::files::{PAGE, whole};
use crate::latency::Times;
use crate::place::{Buffer, open_direct};
use crate::stats::median;
use crate::streams::Stream;

/// Files that are read as one, each of them `each` bytes of it.
pub(crate) struct Files {
    files: Vec<OwnedFd>,
    each: u64,
}

impl Files {
    /// Opens them, past the kernel's cache or not.
    pub(crate) fn open(paths: &[PathBuf], each: u64, direct: bool) -> io::Result<Self> {
        let open = |path: &PathBuf| match direct {
            true => open_direct(path),
            false => Ok(fs::File::open(path)?.into()),
        };
        let files = paths.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { files, each })
    }

    fn one(path: &Path, direct: bool) -> io::Result<Self> {
        Self::open(&[path.to_owned()], u64::MAX, direct)
    }

    /// The file of a position, and the position in it.
    fn at(&self, pos: u64) -> (types::Fd, u64) {
        let file = &self.files[(pos / self.each) as usize];
        (types::Fd(file.as_raw_fd()), pos % self.each)
    }
}

/// A ring and the files that it reads.
pub(crate) struct ReadRing {
    ring: IoUring,
    files: Files,
    /// With `O_DIRECT` whole pages are read.
    direct: bool,
    buffer: Buffer,
}

impl ReadRing {
    /// A ring for as many reads at once as `at_once` says, of files that are open past the kernel's cache or not.
    pub(crate) fn over(files: Files, at_once: usize, direct: bool) -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(at_once as u32)?,
            files,
            direct,
            buffer: Buffer::random(at_once * PAGE, 0),
        })
    }

    /// Reads `len` bytes, a page at most, from each position; no more of them than are read at once.
    pub(crate) fn read(&mut self, positions: &[u64], len: usize) -> io::Result<()> {
        let buffer = self.buffer.bytes();
        for (to, &pos) in buffer.chunks_mut(PAGE).zip(positions) {
            let (pos, len) = match self.direct {
                true => (pos - pos % PAGE as u64, PAGE),
                false => (pos, len),
            };
            let (file, pos) = self.files.at(pos);
            let read = opcode::Read::new(file, to.as_mut_ptr(), len as u32).offset(pos);
            // SAFETY: the module's premise.
            let pushed = unsafe { self.ring.submission().push(&read.build()) };
            pushed.map_err(io::Error::other)?;
        }
        let expected = if self.direct { PAGE } else { len };
        let (mut ended, mut result) = (0, Ok(()));
        while ended < positions.len() {
            match self.ring.submit_and_wait(positions.len() - ended) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    std::mem::forget(std::mem::replace(&mut self.buffer, Buffer::random(0, 0)));
                    return Err(error);
                }
            }
            for done in self.ring.completion() {
                ended += 1;
                if result.is_ok() {
                    result = match usize::try_from(done.result()) {
                        Ok(read) => whole(read, expected),
                        Err(_) => Err(io::Error::from_raw_os_error(-done.result())),
                    };
                }
            }
        }
        result
    }
}

/// Requests past the kernel's cache, so many of them under way at once.
pub(crate) struct DirectRing {
    ring: IoUring,
    files: Files,
    write: bool,
    buffer: Buffer,
    /// Bytes of a request.
    len: usize,
    /// When the request of each place in the buffer began.
    begun: Vec<Instant>,
    /// Places that no request is under way for.
    free: Vec<usize>,
    /// How long each took, from its beginning until it was waited for.
    pub(crate) times: Times,
}

impl DirectRing {
    /// Opens a file for as many requests of `len` bytes at once.
    pub(crate) fn open(path: &Path, at_once: usize, len: usize, write: bool) -> io::Result<Self> {
        Self::over(Files::one(path, true)?, at_once, len, write)
    }

    /// The same of files that are open past the kernel's cache.
    pub(crate) fn over(files: Files, at_once: usize, len: usize, write: bool) -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(at_once as u32)?,
            files,
            write,
            buffer: Buffer::random(at_once * len, 0),
            len,
            begun: vec![Instant::now(); at_once],
            free: (0..at_once).collect(),
            times: Times::new(),
        })
    }

    /// Waits for one request or more; returns their bytes.
    fn wait(&mut self) -> io::Result<u64> {
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let now = Instant::now();
        let (mut moved, mut result) = (0, Ok(()));
        for done in self.ring.completion() {
            let place = done.user_data() as usize;
            self.times.add(now - self.begun[place]);
            self.free.push(place);
            moved += self.len as u64;
            result = result.and(match usize::try_from(done.result()) {
                Ok(read) => whole(read, self.len),
                Err(_) => Err(io::Error::from_raw_os_error(-done.result())),
            });
        }
        result.map(|()| moved)
    }

    fn under_way(&self) -> bool {
        self.free.len() < self.begun.len()
    }
}

impl Stream for DirectRing {
    fn step(&mut self, pos: u64) -> io::Result<u64> {
        let mut moved = 0;
        let place = loop {
            match self.free.pop() {
                Some(place) => break place,
                None => moved += self.wait()?,
            }
        };
        self.begun[place] = Instant::now();
        let (fd, pos) = self.files.at(pos);
        let part = &mut self.buffer.bytes()[place * self.len..][..self.len];
        let (at, len) = (part.as_mut_ptr(), part.len() as u32);
        let request = match self.write {
            false => opcode::Read::new(fd, at, len).offset(pos).build(),
            true => opcode::Write::new(fd, at, len).offset(pos).build(),
        };
        let request = request.user_data(place as u64);
        // SAFETY: the module's premise.
        let pushed = unsafe { self.ring.submission().push(&request) };
        pushed.map_err(io::Error::other)?;
        Ok(moved)
    }

    fn end(&mut self) -> io::Result<u64> {
        let mut moved = 0;
        while self.under_way() {
            moved += self.wait()?;
        }
        Ok(moved)
    }
}

impl Drop for DirectRing {
    fn drop(&mut self) {
        while self.under_way() {
            let free = self.free.len();
            // A request that failed has ended, too.
            let _ = self.wait();
            if self.free.len() == free {
                std::mem::forget(std::mem::replace(&mut self.buffer, Buffer::random(0, 0)));
                return;
            }
        }
    }
}

/// Depths of an io_uring, and how they are called.
pub(crate) const DEPTHS: [(usize, &str); 4] = [
    (1, "O_DIRECT, io_uring, depth 1"),
    (4, "O_DIRECT, io_uring, depth 4"),
    (16, "O_DIRECT, io_uring, depth 16"),
    (64, "O_DIRECT, io_uring, depth 64"),
];

/// Turns of each depth before the fastest is known.
const TRIALS: usize = 3;

/// The depth at which `O_DIRECT` is fastest, and how that is called; `rate` measures one.
pub(crate) fn fastest_depth(
    mut rate: impl FnMut(usize) -> io::Result<f64>,
) -> Result<(usize, &'static str), BenchError> {
    let mut found = DEPTHS.map(|_| Vec::new());
    for _ in 0..TRIALS {
        for ((depth, _), rates) in DEPTHS.iter().zip(&mut found) {
            let measured = rate(*depth);
            rates.push(measured.map_err(|error| BenchError::setup("O_DIRECT by io_uring", error))?);
        }
    }
    let rated = DEPTHS.iter().zip(found.map(|rates| median(&rates)));
    let fastest = rated.max_by(|(_, a), (_, b)| a.total_cmp(b));
    Ok(*fastest.expect("there are depths").0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_depth_is_that_of_the_best_median() {
        let mut turns = 0;
        let rates = |depth: usize| {
            turns += 1;
            Ok(match depth {
                16 => 3.0,
                // One turn is faster than any other.
                64 if turns <= DEPTHS.len() => 9.0,
                _ => 1.0,
            })
        };
        let (depth, name) = fastest_depth(rates).unwrap();
        assert_eq!((depth, name), (16, "O_DIRECT, io_uring, depth 16"));
        assert_eq!(turns, TRIALS * DEPTHS.len());
        assert!(fastest_depth(|_| Err(io::ErrorKind::Other.into())).is_err());
    }
}
