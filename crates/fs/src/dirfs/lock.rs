//! One cache at a time writes to a source.
//!
//! # Model
//!
//! Two caches know nothing of what the other holds: what one writes back late undoes what was made durable through the other
//! since. So a cache that may write locks the source's directory (flock(2)), until the file system is gone and all is
//! written back. Readers lock nothing.
//!
//! ```text
//!  ordinary   exclusive lock, refused if another has one  ──▶ shared lock
//!  by force   the same; if it is refused, a warning       ──▶ shared lock, beside the others'
//! ```
//!
//! The exclusive lock shows that no other cache writes, and the shared lock keeps others from beginning to. A cache that
//! ignored the lock of another has one too, which is still there when the other is gone.
//!
//! # Limits
//!
//! - A cache of a directory above or below is not noticed, nor is one on another machine. One that holds a file below is, see
//!   [`held`](super::held).
//! - A child of a fork shares the lock. If the process ends without closing its cache (a signal, abort(3), exit(3)), the
//!   lock stays until that child has ended or called exec(2).
//! - Any program may lock the directory with flock(2). Then no cache writes to it, and one by force has no lock.
//! - A source that may not be read, or whose file system has no such locks (NFS locks no directory), is not locked. A
//!   warning in the log says so once.

use super::held::{mark_directory, unmark_directory};
use super::{DirFs, DirFsError};
use foliocache_mm::Mm;
use foliocache_sync::Arc;
use foliocache_sys::Errno;
use foliocache_sys::fd::{self, AsFd, LockKind, OwnedFd};
use std::path::PathBuf;

/// The lock, until this is dropped.
pub(super) struct SourceLock {
    dir: OwnedFd,
    mm: Arc<Mm>,
}

impl Drop for SourceLock {
    fn drop(&mut self) {
        // A child has it only as long as the parent.
        if self.mm.check_fork().is_ok() {
            // Children may hold the descriptor still.
            let _ = fd::unlock(self.dir.as_fd());
            unmark_directory(self.dir.as_fd());
        }
    }
}

/// The lock of a source, once it is taken.
#[derive(Default)]
pub(super) struct LockState {
    held: Option<SourceLock>,
    /// The log says that there is none.
    warned: bool,
}

/// Takes the lock, shared with those that [ignore](DirFs::lock) it.
fn lock_exclusively(dir: &OwnedFd) -> Result<(), Errno> {
    fd::try_lock(dir.as_fd(), LockKind::Exclusive)?;
    mark_directory(dir.as_fd(), false)?;
    fd::try_lock(dir.as_fd(), LockKind::Shared)
}

impl DirFs {
    /// Keeps others from locking the source as long as this lives. Call it before the first write; a further call does nothing.
    /// If the source cannot be locked, the log says so and the call succeeds.
    ///
    /// # Errors
    /// [`DirFsError::Locked`], unless the caller [ignores](super::DirFsOptions::ignore_lock) it. Each caller decides for
    /// itself, not the one that opened the directory first.
    pub fn lock(&self, ignore: bool) -> Result<(), DirFsError> {
        let mut lock = self.lock.lock();
        if lock.held.is_some() {
            return Ok(());
        }
        let source = &self.shared.name;
        let locked = self.shared.reopen_root().and_then(|dir| {
            match lock_exclusively(&dir) {
                Err(Errno::EAGAIN) if ignore || foliocache_sync::planted!(lock_of_another_ignored) => {
                    tracing::warn!(
                        source,
                        "another cache writes to this directory: what one of them writes may undo what the other made durable"
                    );
                    fd::try_lock(dir.as_fd(), LockKind::Shared)?;
                    mark_directory(dir.as_fd(), true)?;
                }
                done => done?,
            }
            Ok(dir)
        });
        match locked {
            Ok(dir) => {
                let mm = self.shared.bdi.mm().clone();
                lock.held = Some(SourceLock { dir, mm });
            }
            Err(Errno::EAGAIN) if !ignore => {
                let path = PathBuf::from(source);
                return Err(DirFsError::Locked { path });
            }
            Err(errno) => {
                if !std::mem::replace(&mut lock.warned, true) {
                    tracing::warn!(source, %errno, "the directory cannot be locked: another cache that writes to it is not noticed");
                }
            }
        }
        Ok(())
    }
}
