//! The traits of `std::io`, over a handle's position.
//!
//! # Locking
//!
//! *Protects*: the position. *Order*: before everything below. *May block*: a read or write runs
//! under it, so that two of them through one handle follow one another, as in the kernel.

use foliocache_sync::MutexGuard;
use foliocache_sys::Errno;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use crate::error::{Operation, Result};
use crate::file::File;

impl File {
    /// The position. In a forked child, where a thread of the parent may have held it for good, it
    /// is not waited for.
    fn cursor(&self) -> Result<MutexGuard<'_, u64>> {
        self.check(Operation::Seek)?;
        Ok(self.cursor.lock())
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut cursor = self.cursor()?;
        let n = self.read_at(buf, *cursor)?;
        *cursor += n as u64;
        Ok(n)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut cursor = self.cursor()?;
        let n = self.read_vectored_at(bufs, *cursor)?;
        *cursor += n as u64;
        Ok(n)
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut cursor = self.cursor()?;
        let (pos, n) = match self.appends() {
            true => self.append(buf)?,
            false => (*cursor, self.write_at(buf, *cursor)?),
        };
        *cursor = pos + n as u64;
        Ok(n)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut cursor = self.cursor()?;
        let n = self.write_vectored_at(bufs, *cursor)?;
        *cursor = match self.appends() {
            true => self.len(),
            false => *cursor + n as u64,
        };
        Ok(n)
    }

    /// Does nothing: what was written is in the cache. [`File::sync_data`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut cursor = self.cursor()?;
        let position = match to {
            SeekFrom::Start(pos) => Some(pos),
            SeekFrom::Current(by) => cursor.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        match position.filter(|&pos| i64::try_from(pos).is_ok()) {
            Some(pos) => {
                *cursor = pos;
                Ok(pos)
            }
            None => Err(self
                .error(Operation::Seek, *cursor, 0, Errno::EINVAL)
                .into()),
        }
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    /// As that of `&File`.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
