//! The traits of `std`: those of `std::io`, over a handle's position, and that of reads and writes elsewhere.
//!
//! # Locking
//!
//! *Protects*: the position. *Order*: before everything below. *May block*: a read or write runs
//! under it, so that two of them through one handle follow one another, as in the kernel.

use foliocache_sync::MutexGuard;
use foliocache_sys::Errno;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use crate::error::{Operation, Result};
use crate::file::File;

impl File {
    /// The position. In a forked child, where a thread of the parent may have held it for good, it
    /// is not waited for.
    fn lock_cursor(&self) -> Result<MutexGuard<'_, u64>> {
        self.check(Operation::Seek)?;
        Ok(self.cursor().lock())
    }

    /// The position that a seek from `pos` leads to.
    ///
    /// # Errors
    /// `EINVAL` for one before the start, or too large.
    pub(crate) fn sought(&self, to: SeekFrom, pos: u64, len: impl FnOnce() -> u64) -> Result<u64> {
        let position = match to {
            SeekFrom::Start(pos) => Some(pos),
            SeekFrom::Current(by) => pos.checked_add_signed(by),
            SeekFrom::End(by) => len().checked_add_signed(by),
        };
        let position = position.filter(|&pos| i64::try_from(pos).is_ok());
        position.ok_or_else(|| self.error(Operation::Seek, pos, 0, Errno::EINVAL))
    }
}

macro_rules! io {
    ($($handle:ty),*) => {
        $(
            impl Read for $handle {
                fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                    let mut cursor = self.lock_cursor()?;
                    let n = self.read_at(buf, *cursor)?;
                    *cursor += n as u64;
                    Ok(n)
                }

                fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                    let mut cursor = self.lock_cursor()?;
                    let n = self.read_vectored_at(bufs, *cursor)?;
                    *cursor += n as u64;
                    Ok(n)
                }
            }

            impl Write for $handle {
                fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                    let mut cursor = self.lock_cursor()?;
                    let (pos, n) = match self.appends() {
                        true => self.append(buf)?,
                        false => (*cursor, self.write_at(buf, *cursor)?),
                    };
                    *cursor = pos + n as u64;
                    Ok(n)
                }

                fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                    let mut cursor = self.lock_cursor()?;
                    let (end, n) = self.write_vectored_from(bufs, *cursor)?;
                    *cursor = end;
                    Ok(n)
                }

                /// Does nothing: written bytes are in the cache. [`File::sync_data`] makes them
                /// durable.
                fn flush(&mut self) -> io::Result<()> {
                    Ok(())
                }
            }

            impl Seek for $handle {
                fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
                    let mut cursor = self.lock_cursor()?;
                    *cursor = self.sought(to, *cursor, || self.len())?;
                    Ok(*cursor)
                }
            }
        )*
    };
}

io!(File, &File);

/// For generic code; [`File::read_at`] and the like have more documentation.
impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, pos)?)
    }

    fn write_at(&self, buf: &[u8], pos: u64) -> io::Result<usize> {
        Ok(File::write_at(self, buf, pos)?)
    }
}
