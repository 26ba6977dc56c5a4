//! The entries of a directory, one after another, for async callers.
//!
//! # Model
//!
//! ```text
//!   Idle ──the next entries are known──▶ taken by the poll itself
//!     │ they are not
//!     ▼
//!   Reading: a worker has the directory, and brings it back with up to a batch of entries
//! ```
//!
//! What a worker reads is kept here, not in the future that asked: nothing is lost with a future.

use foliocache_sync::Arc;
use foliocache_sys::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::directory::{BATCH, DirEntry, ReadDir};
use crate::error::{Error, Operation, Result};
use crate::parent_only::ParentOnly;
use crate::workers::{Kind, Offload, Pending};

type Entries = VecDeque<Result<DirEntry>>;

/// The entries of a directory, without `.` and `..`. From [`AsyncDirectory::read_dir`](crate::AsyncDirectory::read_dir).
///
/// An entry that is there throughout is seen once, even if others are made or removed meanwhile.
pub struct AsyncReadDir {
    state: State,
    /// What a worker has read, in order.
    read: Entries,
    offload: Arc<ParentOnly<Offload>>,
    path: PathBuf,
}

enum State {
    Idle(ReadDir),
    Reading(Pending<(ReadDir, Entries)>),
    Ended,
}

impl AsyncReadDir {
    pub(super) fn new(entries: ReadDir, offload: Arc<ParentOnly<Offload>>, path: PathBuf) -> Self {
        Self {
            state: State::Idle(entries),
            read: Entries::new(),
            offload,
            path,
        }
    }

    /// The next entry, or `None` at the end.
    ///
    /// Ready at the first poll for all of a directory that is known, and else for all but one in some hundred entries, which
    /// a worker reads. If the future is dropped no entry is lost: the next call has it.
    ///
    /// # Errors
    /// Those of the backing store; it is the last entry then.
    pub async fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        poll_fn(|context| self.poll_next_entry(context)).await
    }

    /// As [`AsyncReadDir::next_entry`], for streams of one's own.
    pub fn poll_next_entry(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<DirEntry>>> {
        loop {
            if let Some(entry) = self.read.pop_front() {
                return Poll::Ready(entry.map(Some));
            }
            match &mut self.state {
                State::Ended => return Poll::Ready(Ok(None)),
                State::Idle(entries) if entries.is_known() => {
                    let next = entries.next().transpose();
                    if !matches!(next, Ok(Some(_))) {
                        self.state = State::Ended;
                    }
                    return Poll::Ready(next);
                }
                State::Idle(_) => self.read_on()?,
                State::Reading(pending) => {
                    let done = ready!(Pin::new(pending).poll(context));
                    self.state = State::Ended;
                    let (entries, read) = done.map_err(|errno| self.error(errno))?;
                    self.read = read;
                    if !entries.has_ended() && !matches!(self.read.back(), Some(Err(_))) {
                        self.state = State::Idle(entries);
                    }
                }
            }
        }
    }

    /// Has a worker read a batch.
    fn read_on(&mut self) -> Result<()> {
        let State::Idle(entries) = mem::replace(&mut self.state, State::Ended) else {
            return Ok(());
        };
        let mut entries = Some(entries);
        let read = Box::new(move || {
            let mut entries = entries.take().ok_or(Errno::EIO)?;
            let read = entries.by_ref().take(BATCH).collect();
            Ok((entries, read))
        });
        let pending = self.offload.submit(Kind::Read, read);
        self.state = State::Reading(pending.map_err(|errno| self.error(errno))?);
        Ok(())
    }

    fn error(&self, errno: Errno) -> Error {
        Error::Path {
            operation: Operation::ReadDir,
            path: self.path.clone(),
            errno,
        }
    }
}

impl fmt::Debug for AsyncReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncReadDir")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
