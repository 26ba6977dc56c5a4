//! Having what was written with the store, without making it durable.
//!
//! # Model
//!
//! ```text
//!  has_unwritten  ── whether a reader of the store would miss something, at a glance
//!  write_and_wait ── from here on the store has all that was written before the call
//! ```
//!
//! For operations of the store whose place among the writes matters: a name that takes the place of another, privileges
//! that a write takes away.
//!
//! # Locking
//!
//! `wb_lock`, under which no write of the file is in flight; for a size that no write brings about `i_rwsem` and
//! `invalidate_lock` around it.

use foliocache_sys::Errno;

use crate::counters::Count;
use crate::records::AddressSpace;
use crate::types::{PageIndex, pages_for};
use crate::writeback::{Pass, SIZE_NOT_KNOWN, WritebackState};

impl WritebackState {
    /// Whether the store may have another size than `size`, the file's own.
    fn lacks_size(&self, size: u64) -> bool {
        self.store_size == SIZE_NOT_KNOWN || self.store_size < size
    }
}

impl AddressSpace {
    /// Whether the store lacks something that was written to the file: what is dirty, under writeback, stored through a
    /// mapping, or a size. Never blocks. While somebody writes the file back it may say so though all is written.
    pub fn has_unwritten(&self) -> bool {
        if self.bdi().is_memory() {
            return false;
        }
        let pages = self.counts.get(Count::Dirty) + self.counts.get(Count::Writeback);
        let lacks_size = || match self.wb_lock.try_lock() {
            Some(wb) => wb.lacks_size(self.size()),
            None => true,
        };
        pages > 0 || self.has_unnoticed_stores() || lacks_size()
    }

    /// Writes everything that is dirty now, and waits for what is being written: the store has it afterwards, with the size
    /// of the file. Nothing is durable by that. What others write meanwhile is left to later.
    ///
    /// Blocks for I/O, also for `i_rwsem`. Uses no memory of the bound.
    ///
    /// # Errors
    /// The first error of the store. What failed stays dirty and is retried, and every handle is told; `ECHILD` after a fork.
    #[doc(alias = "filemap_write_and_wait")]
    pub fn write_and_wait(&self) -> Result<(), Errno> {
        self.mm().check_fork()?;
        if self.bdi().is_memory() {
            return Ok(());
        }
        let pages = pages_for(self.size());
        self.dirty_unnoticed(&(0..pages));
        {
            let mut wb = self.lock_awaited();
            let last = PageIndex(pages.saturating_sub(1));
            let (_, written) = self.write_dirty(PageIndex(0), last, u64::MAX, Pass::Sync, &mut wb);
            if written.is_err() {
                wb.note(written);
                return written;
            }
            if !wb.lacks_size(self.size()) {
                return Ok(());
            }
        }
        let _exclusive = self.i_rwsem.write();
        let mut wb = self.wb_lock.lock();
        let _invalidate = self.invalidate_lock.write();
        match wb.lacks_size(self.size()) {
            true => self.store_size(&mut wb),
            false => Ok(()),
        }
    }
}
