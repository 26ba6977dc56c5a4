//! A regular file in use: opens its descriptors when they are needed, ends its changes, keeps its errors.
//!
//! # Locking
//!
//! As [`state`](super::state) says.

use super::descriptors::{Descriptors, access};
use super::node::DirNode;
use super::state::OngoingChange;
use crate::coherence::Asked;
use foliocache_sync::Arc;
use foliocache_sys::fd::{Advice, AsFd, OFlags, Stat};
use foliocache_sys::{Errno, fd};

impl DirNode {
    /// The file's descriptors, opened if need be, writable if asked.
    ///
    /// # Errors
    /// Those of `open(2)`; `ESTALE` if the file cannot be found again.
    pub(super) fn descriptors(&self, writable: bool) -> Result<Arc<Descriptors>, Errno> {
        Ok(self.open_descriptors(writable)?.0)
    }

    /// As [`DirNode::descriptors`], with what the source said of the file if it was asked.
    pub(super) fn open_descriptors(
        &self,
        writable: bool,
    ) -> Result<(Arc<Descriptors>, Option<Stat>), Errno> {
        let file = self.file();
        let held = file.io.lock().fds.clone();
        if let Some(fds) = held
            && (fds.writable || !writable)
        {
            return Ok((fds, None));
        }
        let open = |how| self.shared.with_room(|| self.open(how));
        let opened = open(access(writable));
        // A file that is append-only can be opened for writing with `O_APPEND` alone.
        let appends = writable && matches!(opened, Err(Errno::EPERM));
        let (fd, stat) = match appends {
            true => open(OFlags::RDWR | OFlags::APPEND)?,
            false => opened?,
        };
        let mut opened = Descriptors::new(fd, writable);
        opened.appends = appends;
        let fds = file.install(opened);
        self.stand_in_line(&fds);
        Ok((fds, stat))
    }

    /// Gives a file that is opened for writing an ordinary descriptor, if it was append-only and is no longer.
    ///
    /// Context: `opens` held.
    pub(super) fn look_whether_it_appends(&self) {
        let file = self.file();
        if !file.appends_only() || file.unflushed() {
            return;
        }
        if let Ok((fd, _)) = self.shared.with_room(|| self.open(OFlags::RDWR)) {
            file.install(Descriptors::new(fd, true));
        }
    }

    /// A change of our own is over, see [`FileState::end_change`]: the source shows other attributes.
    pub(super) fn end_change(&self, change: OngoingChange, stat: Option<&Stat>) -> Asked {
        let look = self.file().end_change(change, stat);
        self.attributes.doubt();
        look
    }

    /// The kernel reported an error to a call with another purpose. It will not report it to the flush of the written data.
    pub(super) fn told_early(&self, error: Errno) {
        let file = self.file();
        if file.unflushed() {
            file.io.lock().error = Some(error);
        }
    }

    /// After a failed flush: takes the file's pages out of the kernel's cache, see [`file`](super::file). Pages that
    /// another process has mapped stay.
    pub(super) fn drop_stale(&self, fds: &Descriptors) {
        let fd = fds.buffered.as_fd();
        // To the end of the file. All that was written before the failure was known is dirty again, or will be: an error
        // is of what is written once more anyway, and may be the one that a batch was told of.
        let _ = fd::sync_file_range(fd, 0, 0, fd::SyncRange::Wait);
        // A hint: where it is refused, nothing else can be done.
        let _ = fd::fadvise(fd, 0, 0, Advice::DontNeed);
        let mut io = self.file().io.lock();
        io.stale = false;
        io.cached = None;
    }
}
