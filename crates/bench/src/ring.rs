//! Requests through an io_uring, each waited for when its place is needed or all of them together; and how many at once
//! are fastest.
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
use crate::files::whole;
use crate::latency::Times;
use crate::place::{Buffer, open_direct};
use crate::stats::median;
use crate::streams::Stream;

/// Files that are read as one, `each` bytes of each.
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

    /// The file of a position, and the position in it.
    fn at(&self, pos: u64) -> (types::Fd, u64) {
        let file = &self.files[(pos / self.each) as usize];
        (types::Fd(file.as_raw_fd()), pos % self.each)
    }
}

/// Requests of one length, with a fixed number in flight.
pub(crate) struct Ring {
    ring: IoUring,
    files: Files,
    write: bool,
    buffer: Buffer,
    /// Bytes of a request.
    pub(crate) len: usize,
    /// Places in the buffer, and those that no request is under way for.
    places: usize,
    free: Vec<usize>,
    /// When each place's request began, and how long each took until it was waited for; empty unless requested,
    /// since reading the clock takes time.
    begun: Vec<Instant>,
    pub(crate) times: Times,
}

impl Ring {
    /// For as many requests at once as `places` says.
    pub(crate) fn new(
        files: Files,
        places: usize,
        len: usize,
        (write, timed): (bool, bool),
    ) -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(places as u32)?,
            files,
            write,
            buffer: Buffer::random(places * len, 0),
            len,
            places,
            free: (0..places).collect(),
            begun: vec![Instant::now(); if timed { places } else { 0 }],
            times: Times::new(),
        })
    }

    /// The same over one file, past the kernel's cache.
    pub(crate) fn direct(path: &Path, places: usize, len: usize, write: bool) -> io::Result<Self> {
        let files = Files::open(&[path.to_owned()], u64::MAX, true)?;
        Self::new(files, places, len, (write, true))
    }

    /// Waits for at least `n` requests; returns their bytes.
    fn wait(&mut self, n: usize) -> io::Result<u64> {
        while let Err(error) = self.ring.submit_and_wait(n) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let now = self.begun.first().map(|_| Instant::now());
        let (mut moved, mut result) = (0, Ok(()));
        for done in self.ring.completion() {
            let place = done.user_data() as usize;
            if let Some(now) = now {
                self.times.add(now - self.begun[place]);
            }
            self.free.push(place);
            moved += self.len as u64;
            result = result.and(match usize::try_from(done.result()) {
                Ok(read) => whole(read, self.len),
                Err(_) => Err(io::Error::from_raw_os_error(-done.result())),
            });
        }
        result.map(|()| moved)
    }

    fn under_way(&self) -> usize {
        self.places - self.free.len()
    }
}

impl Stream for Ring {
    fn step(&mut self, pos: u64) -> io::Result<u64> {
        let mut moved = 0;
        let place = loop {
            match self.free.pop() {
                Some(place) => break place,
                None => moved += self.wait(1)?,
            }
        };
        if let Some(begun) = self.begun.get_mut(place) {
            *begun = Instant::now();
        }
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
        while self.under_way() > 0 {
            moved += self.wait(self.under_way())?;
        }
        Ok(moved)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.under_way() > 0 {
            let free = self.free.len();
            // A request that failed has ended too.
            let _ = self.wait(1);
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
