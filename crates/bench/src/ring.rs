//! Random reads of the kernel's through an io_uring: many at once, and all of them waited for.
//!
//! # Safety
//!
//! A read's memory is the ring's buffer, which is there until every read has ended: one that cannot be waited for
//! leaks it.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::files::{PAGE, whole};
use crate::place::{Buffer, open_direct};

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
