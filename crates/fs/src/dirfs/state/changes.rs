//! Changes of our own, and questions to the source beside them: the input of a file's [`Coherence`].
//!
//! # Locking
//!
//! `io` guards the machine. It is not held while the queue of a mark is read.

use super::{FileState, IoState};
use crate::coherence::{Asked, Coherence, LocalChange, OwnChange, Token, nanoseconds};
use crate::dirfs::writers::MarkedFile;
use foliocache_sync::Arc;
use foliocache_sync::rank::RankedMutexGuard;
use foliocache_sync::time::realtime;
use foliocache_sys::fd::Stat;

/// A change of our own that is under way.
pub(in crate::dirfs) struct OngoingChange {
    pub(in crate::dirfs) own: OwnChange,
    /// The mark of the file when it began.
    marked: Option<Arc<MarkedFile>>,
}

impl FileState {
    /// A change of our own begins. One of data waits for [looks](FileState::look_between_changes).
    #[must_use = "a change has an end"]
    pub(in crate::dirfs) fn begin_change(&self, what: LocalChange) -> OngoingChange {
        let mut begun: Option<Arc<MarkedFile>> = None;
        let mut io = self.io.lock();
        loop {
            if what == LocalChange::Data {
                io = self.wait_for_looks(io);
            }
            let is_begun = |mark: &Arc<MarkedFile>| {
                begun.as_ref().is_some_and(|begun| Arc::ptr_eq(begun, mark))
            };
            let Some(mark) = io.marked.clone().filter(|mark| !is_begun(mark)) else {
                break;
            };
            drop(io);
            mark.begin_change();
            if let Some(old) = begun.replace(mark) {
                old.end_change();
            }
            io = self.io.lock();
        }
        OngoingChange {
            own: io.coherence.begin(what),
            marked: begun,
        }
    }

    /// A change of our own is over; `stat` is the answer of the source since, if it was asked.
    pub(in crate::dirfs) fn end_change(&self, change: OngoingChange, stat: Option<&Stat>) -> Asked {
        // While these are held the file gets no other. They may be the last references, which go after the lock.
        let OngoingChange { own, marked } = change;
        let mut io = self.io.lock();
        let is_same = |mark: &Arc<MarkedFile>| {
            marked
                .as_ref()
                .is_some_and(|marked| Arc::ptr_eq(marked, mark))
        };
        let counts = io.coherence.is_before_mark(&own);
        let later = io.marked.clone().filter(|mark| counts && !is_same(mark));
        let mut now = 0;
        if marked.is_some() || later.is_some() {
            drop(io);
            for mark in [&marked, &later].into_iter().flatten() {
                mark.end_change();
            }
            now = nanoseconds(realtime());
            io = self.io.lock();
        }
        io.coherence.end(&own, stat.map(Token::of), now)
    }

    /// The state, with what the kernel has counted of a marked file by now.
    ///
    /// Context: `io` not held.
    pub(in crate::dirfs) fn lock_told(&self) -> (RankedMutexGuard<'_, IoState>, Option<u64>) {
        let io = self.io.lock();
        let Some(marked) = io.marked.clone() else {
            return (io, None);
        };
        drop(io);
        let told = marked.written_by_others();
        drop(marked);
        (self.io.lock(), Some(told))
    }

    /// To be asked before a look at the source.
    pub(in crate::dirfs) fn look(&self) -> Asked {
        let (io, told) = self.lock_told();
        io.coherence.ask(told)
    }

    /// Whether what was asked for is still the last word: no change of our own was under way nor has begun since.
    pub(in crate::dirfs) fn holds(&self, asked: Asked) -> bool {
        self.io.lock().coherence.holds(asked)
    }

    /// Runs something on the machine, with `io` locked.
    pub(in crate::dirfs) fn coherence<R>(&self, tell: impl FnOnce(&mut Coherence) -> R) -> R {
        tell(&mut self.io.lock().coherence)
    }
}
