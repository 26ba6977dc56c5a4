//! An open file: an inode, what may be done with it, and where readahead and errors stand.
//!
//! # Model
//!
//! An [`OpenFile`] is what the kernel calls an open file description. It has no position: every
//! read and write names its own. Closing is dropping; it never fails and makes nothing durable,
//! errors of writeback are reported by [`OpenFile::fsync`].
//!
//! # Differences from Linux
//!
//! Reads do not move `atime` (as on a `noatime` mount).

use crate::inode::Inode;
use crate::types::{FallocateMode, OpContext, OpenFlags, SeekSparse};
use foliocache_mm::MAX_FILE_SIZE;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::io::{IoSlice, IoSliceMut};

/// What the caller means to do with a file.
#[doc(alias = "posix_fadvise")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// Sequential reading: more readahead.
    Sequential,
    /// Random reading: no readahead.
    Random,
    /// The range will be read soon.
    WillNeed,
    /// The range will not be needed: its clean pages leave the cache.
    DontNeed,
}

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    inode: Arc<Inode>,
    flags: OpenFlags,
    ctx: OpContext,
}

impl OpenFile {
    pub(crate) fn new(inode: Arc<Inode>, flags: OpenFlags, ctx: OpContext) -> OpenFile {
        OpenFile { inode, flags, ctx }
    }

    /// The file.
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Size in bytes. Never blocks.
    pub fn size(&self) -> u64 {
        0
    }

    /// Reads into `buf` from byte `pos` on; returns the bytes read, fewer than asked only at end
    /// of file or before an error. No system call if the pages are cached; otherwise may block on
    /// I/O and for memory of the bound.
    ///
    /// # Errors
    /// `EBADF` if not open for reading, `EINVAL` for a range beyond the largest offset, `EFAULT`,
    /// and those of the backing store.
    pub fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<usize, Errno> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], pos)
    }

    /// As [`OpenFile::read_at`] into several buffers.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], pos: u64) -> Result<usize, Errno> {
        let _ = (bufs, pos);
        Err(Errno::ENOSYS)
    }

    /// Writes `buf` at byte `pos`, or at the end if the file is open for appending; returns the
    /// bytes written. May block for memory of the bound and be throttled by writeback.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EFBIG` at the largest size, `EFAULT`, `ENOSPC`, and those
    /// of the backing store.
    pub fn write_at(&self, buf: &[u8], pos: u64) -> Result<usize, Errno> {
        self.write_vectored_at(&[IoSlice::new(buf)], pos)
    }

    /// As [`OpenFile::write_at`] from several buffers.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], pos: u64) -> Result<usize, Errno> {
        let _ = (bufs, pos);
        Err(Errno::ENOSYS)
    }

    /// Writes `buf` at the end, atomically against other appends; returns where it begins and the
    /// bytes written.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<(u64, usize), Errno> {
        let _ = (&self.ctx, buf, MAX_FILE_SIZE);
        Err(Errno::ENOSYS)
    }

    /// Sets the size; new bytes read as zeros.
    ///
    /// # Errors
    /// `EINVAL` if not open for writing, `EFBIG`, and those of the backing store.
    #[doc(alias = "ftruncate")]
    pub fn set_len(&self, size: u64) -> Result<(), Errno> {
        let _ = size;
        Err(Errno::ENOSYS)
    }

    /// Gives space to a range or takes it away.
    ///
    /// # Errors
    /// `EBADF` if not open for writing, `EINVAL` for an empty range, `EFBIG`, `ENOSPC`,
    /// `EOPNOTSUPP`, and those of the backing store.
    pub fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64) -> Result<(), Errno> {
        let _ = (mode, pos, len);
        Err(Errno::ENOSYS)
    }

    /// The next data or hole from byte `pos` on.
    ///
    /// # Errors
    /// `ENXIO` at or past the end of the file, or if no data follows.
    #[doc(alias = "lseek")]
    pub fn seek_sparse(&self, what: SeekSparse, pos: u64) -> Result<u64, Errno> {
        let _ = (what, pos);
        Err(Errno::ENOSYS)
    }

    /// Makes everything durable that was written before the call, with the attributes and, for a
    /// new file, its name.
    ///
    /// # Errors
    /// The first failure of writeback since this handle last asked, once; data that could not be
    /// written stays dirty and is tried again.
    pub fn fsync(&self) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// As [`OpenFile::fsync`], attributes only as far as they are needed to find the data.
    ///
    /// # Errors
    /// As [`OpenFile::fsync`].
    pub fn fdatasync(&self) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Says how `len` bytes at `pos` will be used; 0 means to the end.
    ///
    /// # Errors
    /// Those of the backing store.
    pub fn advise(&self, advice: Advice, pos: u64, len: u64) -> Result<(), Errno> {
        let _ = (advice, pos, len);
        Err(Errno::ENOSYS)
    }
}
