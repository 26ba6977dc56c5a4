//! The modification time that a write had, and the source's stamp, which comes later.
//!
//! # Model
//!
//! ```text
//!  written back ──▶ its time is set, and looked at: a change by others shows another one
//!        └─ of a log, a few times soon after the write ──▶ marked: the kernel tells of others' writes
//!  marked, or ours alone ──▶ the source's stamp stays until an fsync, or until the last writer closes
//! ```
//!
//! On ext4 without a journal each time that is set, or was looked at before the next write, makes a flush write the inode's block too.
//!
//! # Locking
//!
//! As [`state`](super::state) says.

use super::descriptors::Descriptors;
use super::node::DirNode;
use super::state::OngoingChange;
use super::transfer;
use crate::coherence::{LocalChange, Token, Verdict, nanoseconds};
use foliocache_sync::Arc;
use foliocache_sys::fd::{AsFd, SetTime, Stat};
use foliocache_sys::{Errno, clock, fd};

/// A write that is written back so soon, in nanoseconds, may keep the source's stamp for a while.
const SOON: u64 = 100_000_000;
/// How often a file that is open for writing is written back so soon before it is marked.
const MARKED_AFTER: u8 = 4;

impl DirNode {
    /// The last handle that may write is closed: sets the times that waited, ends the file's mark, and takes its last page out of
    /// the kernel's cache.
    ///
    /// Context: `opens` held.
    pub(super) fn end_writing(&self) {
        let file = self.file();
        let mut io = file.io.lock();
        io.writing = false;
        io.soon = 0;
        let marked = io.marked.clone();
        let times_waited = marked.is_some() || self.shared.options.exclusive;
        if let Some(fds) = io.fds.clone().filter(|_| times_waited) {
            drop(io);
            // A failed one is tried again when the times are made durable.
            let _ = self.restamp(&fds);
            io = file.io.lock();
        }
        if let Some(marked) = marked {
            drop(io);
            // After the file was looked at, and what it shows taken for what we wrote.
            let told = marked.end();
            io = file.io.lock();
            io.coherence.unmark(told);
            let unmarked = io.marked.take();
            drop(io);
            drop((unmarked, marked));
            io = file.io.lock();
        }
        // The next flush drops what is not flushed yet.
        let cached = io.cached.take_if(|_| !file.unflushed());
        if let Some((cached, fds)) = cached.zip(io.fds.clone()) {
            drop(io);
            transfer::drop_behind(fds.buffered.as_fd(), cached);
        }
    }

    /// Whether a file that is open for writing, and was just written back, is marked, so that its times can wait. If it is
    /// written back soon after each write it is marked now, and its times are set once more.
    pub(super) fn is_marked_or_marks(&self, fds: &Descriptors) -> bool {
        let (now, mtime) = (clock::coarse_realtime(), self.attributes.get().mtime);
        let late = nanoseconds(now).wrapping_sub(nanoseconds(mtime));
        let file = self.file();
        let mut io = file.io.lock();
        if late.unsigned_abs() > SOON || self.shared.watches.is_none() {
            return false;
        }
        if io.marked.is_some() {
            return true;
        }
        if io.soon >= MARKED_AFTER {
            return false;
        }
        io.soon += 1;
        if io.soon < MARKED_AFTER {
            return false;
        }
        drop(io);
        let marked = (self.shared.writers).mark(&fds.buffered, self.identity.dev);
        // Where it is refused it is not tried again before the last writer has closed the file.
        let Ok(marked) = marked.map(Arc::new) else {
            return false;
        };
        file.set_marked(&marked);
        false
    }

    /// Sets the modification time again that the source lost when data was written late.
    pub(super) fn restamp(&self, fds: &Descriptors) -> Result<(), Errno> {
        let file = self.file();
        let _stamping = file.stamping.lock();
        let Some(begun) = file.times.begin() else {
            return Ok(());
        };
        self.look_for_others();
        let change = file.begin_change(LocalChange::Data);
        let mtime = self.attributes.get().mtime;
        let look = || fd::fstat(fds.buffered.as_fd()).ok();
        let is_right = |stat: &Stat| stat.mtime == mtime;
        let others_wrote = self.is_stamped_by_others(&change, look);
        // The source may have stamped the write with its very time, if it came soon after.
        let right = (!others_wrote && clock::coarse_realtime() == mtime).then(look);
        let (result, stat) = match right.flatten().filter(is_right) {
            // The time may be theirs.
            _ if others_wrote => (Ok(()), None),
            Some(stat) => (Ok(()), Some(stat)),
            None => {
                let mtime = Some(SetTime::At(mtime));
                let set = fd::futimens(fds.buffered.as_fd(), None, mtime);
                (set, look())
            }
        };
        self.end_change(change, stat.as_ref());
        if others_wrote {
            file.coherence(|machine| machine.doubt_data());
        }
        match result {
            // This process may not set it, or no call can: the source's own time has to do.
            Ok(())
            | Err(
                Errno::EPERM
                | Errno::EACCES
                | Errno::EROFS
                | Errno::ENOSYS
                | Errno::EOPNOTSUPP
                | Errno::EINVAL,
            ) => {
                file.times.end(begun);
                Ok(())
            }
            failed => failed,
        }
    }

    /// Whether the modification time that the source has is that of a write by others, during `change`.
    fn is_stamped_by_others(
        &self,
        change: &OngoingChange,
        look: impl FnOnce() -> Option<Stat>,
    ) -> bool {
        let file = self.file();
        let ask =
            |told, token| file.coherence(|machine| machine.before_stamp(&change.own, told, token));
        let told = file.lock_told().1;
        let verdict = match ask(told, None) {
            Verdict::Ask => match look() {
                Some(stat) => ask(told, Some(Token::of(&stat))),
                None => Verdict::Valid,
            },
            verdict => verdict,
        };
        verdict != Verdict::Valid
    }
}
