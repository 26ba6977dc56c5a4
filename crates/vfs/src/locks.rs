//! Locks of an open file, which exclude other handles and other processes.

use foliocache_sys::Errno;
use foliocache_sys::fd::LockKind;
use std::ops::Range;

/// The reaction of a locking call to a conflicting lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contended {
    /// It waits, without end.
    Wait,
    /// It fails with `EAGAIN`.
    Fail,
}

/// The locks of one handle: one of the whole file (`flock(2)`), and locks of byte ranges. The two kinds know nothing of each
/// other.
///
/// The holder of a new lock sees all earlier writes of others to the backing store. Before an exclusive lock ends,
/// or becomes shared, its holder's writes are in the store. The drop releases all locks, in that order; in a forked
/// child it does nothing.
pub trait FileLocks: Send + Sync {
    /// Locks a range, and replaces the handle's locks there, or without one the file, in place of the lock that the handle
    /// has. May block for others, and on I/O.
    ///
    /// # Errors
    /// `EAGAIN` if it must not wait; `ENOLCK`; those of the backing store, and `EBUSY` if writes by others cannot
    /// be taken over: then the handle has no lock. Of a range: `EBADF` for a shared lock of a handle that may not read, or an exclusive
    /// one of a handle that may not write; `EINVAL` for an empty one, or one that begins beyond the largest offset.
    fn lock(
        &self,
        range: Option<&Range<u64>>,
        kind: LockKind,
        contended: Contended,
    ) -> Result<(), Errno>;

    /// Takes the handle's locks in a range away, or without one the lock of the file, if there are any. May block on I/O.
    ///
    /// # Errors
    /// Those of writing to the backing store: then the lock stays.
    fn unlock(&self, range: Option<&Range<u64>>) -> Result<(), Errno>;

    /// Whether another holder has a lock in the range that conflicts with this kind.
    ///
    /// # Errors
    /// As [`FileLocks::lock`].
    fn is_range_locked(&self, range: &Range<u64>, kind: LockKind) -> Result<bool, Errno>;
}
