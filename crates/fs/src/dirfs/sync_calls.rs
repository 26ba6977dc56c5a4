//! The system calls that make things durable: one place, so that tests can delay them and make them fail.
//!
//! ext4 may say that something is durable although the commit of its journal failed, see [`fd::check_journal`]. So
//! after each call it is made to look at its journal, also below an overlay.

use super::magic::{EXT4, OVERLAY};
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, BorrowedFd};

/// A call that makes something durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncCall {
    /// `fdatasync(2)` of a file.
    Data,
    /// `fsync(2)` of a file.
    File,
    /// `fsync(2)` of a directory.
    Directory,
    /// `syncfs(2)` for a batch.
    FileSystem,
    /// `syncfs(2)` of each file system that is seen, to sync everything; or of that of a file or directory which may not be
    /// opened.
    All,
}

/// A test's function that runs before each call; an error is returned in the call's place.
#[cfg(test)]
type Before =
    foliocache_sync::Arc<dyn Fn(SyncCall, BorrowedFd<'_>) -> Result<(), Errno> + Send + Sync>;

/// The calls of one `dirfs`.
pub(super) struct SyncCalls {
    /// The device of the source's root.
    pub(super) dev: u64,
    /// The answer of [`looks_at_journal`] for it.
    look: bool,
    #[cfg(test)]
    pub(super) before: foliocache_sync::rank::LeafMutex<Option<Before>>,
}

/// Whether the journal of the file system of `fd` is to be looked at after each call.
fn looks_at_journal(fd: BorrowedFd<'_>) -> bool {
    matches!(fd::fs_magic(fd), Ok(EXT4 | OVERLAY))
}

impl SyncCalls {
    /// For the source with this root, of device `dev`.
    pub(super) fn new(root: BorrowedFd<'_>, dev: u64) -> SyncCalls {
        SyncCalls {
            dev,
            look: looks_at_journal(root),
            #[cfg(test)]
            before: foliocache_sync::rank::LeafMutex::default(),
        }
    }

    /// Makes a call, with any descriptor of the file system for `syncfs(2)`. `dev` is the device of `fd`.
    ///
    /// # Errors
    /// Those of the call, and of [`fd::check_journal`].
    pub(super) fn make(&self, call: SyncCall, fd: &impl AsFd, dev: u64) -> Result<(), Errno> {
        let fd = fd.as_fd();
        #[cfg(test)]
        {
            let before = self.before.lock().clone();
            before.map_or(Ok(()), |before| before(call, fd))?;
        }
        match call {
            SyncCall::Data if foliocache_sync::planted!(no_fdatasync) => Ok(()),
            SyncCall::Data => fd::fdatasync(fd),
            SyncCall::File | SyncCall::Directory => fd::fsync(fd),
            SyncCall::FileSystem if foliocache_sync::planted!(batch_not_synced) => return Ok(()),
            SyncCall::FileSystem | SyncCall::All => return fd::syncfs(fd),
        }?;
        let look = match dev == self.dev {
            true => self.look,
            // Mounted below the root.
            false => looks_at_journal(fd),
        };
        match look {
            true => fd::check_journal(fd),
            false => Ok(()),
        }
    }
}
