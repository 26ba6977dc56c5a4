//! Reads of the kernel's through an io_uring: many at once, at random and all of them waited for, or one after
//! another and each waited for when its place is needed.
//!
//! # Safety
//!
//! A read's memory is the ring's buffer, which is there until every read has ended: one that cannot be waited for
//! leaks it.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use crate::files::{PAGE, whole};
use crate::place::{Buffer, open_direct};
use crate::streams::Stream;

/// A ring and the file that it reads.
pub(crate) struct ReadRing {
    ring: IoUring,
    file: fs::File,
    /// With `O_DIRECT` whole pages are read.
    direct: bool,
    buffer: Buffer,
}

impl ReadRing {
    /// Opens a file for as many reads at once as `at_once` says, through the kernel's cache or past it.
    pub(crate) fn open(path: &Path, at_once: usize, direct: bool) -> io::Result<Self> {
        let file = match direct {
            true => open_direct(path)?.into(),
            false => fs::File::open(path)?,
        };
        Ok(Self {
            ring: IoUring::new(at_once as u32)?,
            file,
            direct,
            buffer: Buffer::random(at_once * PAGE, 0),
        })
    }

    /// Reads `len` bytes, a page at most, from each position; no more of them than are read at once.
    pub(crate) fn read(&mut self, positions: &[u64], len: usize) -> io::Result<()> {
        let (file, buffer) = (types::Fd(self.file.as_raw_fd()), self.buffer.bytes());
        for (to, &pos) in buffer.chunks_mut(PAGE).zip(positions) {
            let (pos, len) = match self.direct {
                true => (pos - pos % PAGE as u64, PAGE),
                false => (pos, len),
            };
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

/// A stream past the kernel's cache, with many requests under way.
pub(crate) struct DirectReads {
    ring: IoUring,
    file: OwnedFd,
    buffer: Buffer,
    /// Bytes of a request.
    len: usize,
    /// Places in the buffer, and those of them that no request is under way for.
    places: usize,
    free: Vec<usize>,
}

impl DirectReads {
    /// Opens a file for as many requests of `len` bytes at once.
    pub(crate) fn open(path: &Path, at_once: usize, len: usize) -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(at_once as u32)?,
            file: open_direct(path)?,
            buffer: Buffer::random(at_once * len, 0),
            len,
            places: at_once,
            free: (0..at_once).collect(),
        })
    }

    /// Waits for one request or more; returns their bytes.
    fn wait(&mut self) -> io::Result<u64> {
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let (mut moved, mut result) = (0, Ok(()));
        for done in self.ring.completion() {
            self.free.push(done.user_data() as usize);
            moved += self.len as u64;
            result = result.and(match usize::try_from(done.result()) {
                Ok(read) => whole(read, self.len),
                Err(_) => Err(io::Error::from_raw_os_error(-done.result())),
            });
        }
        result.map(|()| moved)
    }
}

impl Stream for DirectReads {
    fn step(&mut self, pos: u64) -> io::Result<u64> {
        let mut moved = 0;
        let place = loop {
            match self.free.pop() {
                Some(place) => break place,
                None => moved += self.wait()?,
            }
        };
        let to = &mut self.buffer.bytes()[place * self.len..][..self.len];
        let read = opcode::Read::new(
            types::Fd(self.file.as_raw_fd()),
            to.as_mut_ptr(),
            to.len() as u32,
        );
        let read = read.offset(pos).build().user_data(place as u64);
        // SAFETY: the module's premise.
        let pushed = unsafe { self.ring.submission().push(&read) };
        pushed.map_err(io::Error::other)?;
        Ok(moved)
    }

    fn end(&mut self) -> io::Result<u64> {
        let mut moved = 0;
        while self.free.len() < self.places {
            moved += self.wait()?;
        }
        Ok(moved)
    }
}

impl Drop for DirectReads {
    fn drop(&mut self) {
        while self.free.len() < self.places {
            let free = self.free.len();
            // A read that failed has ended, too.
            let _ = self.wait();
            if self.free.len() == free {
                std::mem::forget(std::mem::replace(&mut self.buffer, Buffer::random(0, 0)));
                return;
            }
        }
    }
}
