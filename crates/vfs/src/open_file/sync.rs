//! Making writes through an open file durable, and reporting failures.

use super::OpenFile;
use foliocache_mm::ErrSeqCursor;
use foliocache_sys::Errno;
use std::ops::Range;

impl OpenFile {
    /// Makes everything durable that was written before the call, with the attributes and, for a
    /// file that was made, renamed or linked since, its name. Blocks for the I/O.
    ///
    /// # Errors
    /// The first failure of writeback since this handle last asked, once; data that could not be
    /// written stays dirty and is tried again.
    pub fn fsync(&self) -> Result<(), Errno> {
        self.sync_with(&self.wb_err, false)
    }

    /// Writes dirty data to the backing store, without making it durable. Blocks for the I/O. For the end of a
    /// handle that may write; does nothing for others.
    ///
    /// # Errors
    /// As [`OpenFile::fsync`].
    #[doc(alias = "flush")]
    pub fn write_back(&self) -> Result<(), Errno> {
        if !self.flags.write {
            return Ok(());
        }
        self.inode.ops().write_back(&self.inode);
        self.mapping.check_wb_err(&self.wb_err)
    }

    /// As [`OpenFile::fdatasync`] for a range of bytes: [`AddressSpace::fsync_range`](foliocache_mm::AddressSpace::fsync_range).
    ///
    /// # Errors
    /// As [`OpenFile::fsync`].
    #[doc(alias = "msync")]
    pub fn sync_range(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.mapping.fsync_range(bytes, &self.wb_err)?;
        self.inode.ops().sync(&self.inode, true)
    }

    /// As [`OpenFile::fsync`], attributes only as far as they are needed to find the data.
    ///
    /// # Errors
    /// As [`OpenFile::fsync`].
    pub fn fdatasync(&self) -> Result<(), Errno> {
        self.sync_with(&self.wb_err, true)
    }

    fn sync_with(&self, cursor: &ErrSeqCursor, datasync: bool) -> Result<(), Errno> {
        self.mapping.fsync(cursor)?;
        self.inode.ops().sync(&self.inode, datasync)
    }

    /// As [`OpenFile::fsync`], or as [`OpenFile::fdatasync`], for a caller that may be gone when it
    /// ends: this handle has reported a failure only once the caller passes the returned cursor to
    /// [`OpenFile::was_told`].
    pub fn sync_on_behalf(&self, datasync: bool) -> (Result<(), Errno>, ErrSeqCursor) {
        let cursor = self.wb_err.clone();
        (self.sync_with(&cursor, datasync), cursor)
    }

    /// The result of a sync for a caller has reached it.
    pub fn was_told(&self, cursor: &ErrSeqCursor) {
        self.wb_err.advance_to(cursor);
    }
}
