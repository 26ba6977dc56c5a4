//! Closed files, which are written to the store soon.
//!
//! # Model
//!
//! ```text
//!  last close of a writer ──▶ listed ──a moment──▶ the flusher writes all that are listed, a turn each
//!                                                          ├─ all of it is with the store: gone
//!                                                          └─ more is dirty: listed again
//! ```
//!
//! Data that the store has outlives this process. It is not flushed: that is left to its age, as for other files.
//!
//! The moment is for loops that open, append and close: they are written once in [`MOMENT`], not once a close. What was listed
//! meanwhile is written along, so the flusher wakes up no more often.
//!
//! A file is written once from its beginning to the end that it had when it was closed. What is dirtied behind the flusher by a
//! new writer waits for the next close, or for its age.
//!
//! # Locking
//!
//! *Protects*: the list. *Order*: as the list of dirty files. *May block*: no.

use foliocache_sync::time::Duration;
use foliocache_sync::time::monotonic_ns;

use crate::counters::Count;
use crate::dirty::ClosedFile;
use crate::records::{AddressSpace, BackingDevInfo};
use crate::slab::SlabArc;
use crate::types::pages_for;

/// From the close to the write, at most, if the store is not busy.
const MOMENT: Duration = Duration::from_millis(50);

impl AddressSpace {
    /// Has the flusher write what is dirty, within some ten milliseconds. It is with the store then, and not durable. Does
    /// not block. Does nothing if nothing is dirty that did not fail before, and after a fork.
    #[doc(alias = "filemap_flush")]
    pub fn begin_writeback(&self) {
        let bdi = self.bdi();
        let to_write = self.counts.get(Count::Dirty) > self.counts.get(Count::Failed);
        if bdi.is_memory()
            || !to_write
            || self.mm().check_fork().is_err()
            || foliocache_sync::planted!(closed_file_not_written)
        {
            return;
        }
        let file = (SlabArc::downgrade(&self.share()), 0..pages_for(self.size()));
        if bdi.list_closed(self.id(), file, monotonic_ns()) {
            bdi.flusher.wake();
        }
    }
}

impl BackingDevInfo {
    /// Lists a file; whether no other was listed. The flusher comes by itself for the others.
    fn list_closed(&self, id: u64, file: ClosedFile<AddressSpace>, since: u64) -> bool {
        let mut closed = self.closed.lock();
        let first = closed.files.is_empty();
        if first {
            closed.since = since;
        }
        closed.files.insert(id, file);
        first
    }

    /// When the flusher has to come for closed files.
    pub(super) fn closed_due(&self) -> Option<Duration> {
        let closed = self.closed.lock();
        let age = Duration::from_nanos(monotonic_ns().saturating_sub(closed.since));
        (!closed.files.is_empty()).then(|| MOMENT.saturating_sub(age))
    }

    /// The flusher's turn on closed files, one on each. Returns whether some are due at once.
    pub(super) fn write_closed(&self) -> bool {
        if self.closed_due() != Some(Duration::ZERO) {
            return false;
        }
        let (files, since) = {
            let mut closed = self.closed.lock();
            (std::mem::take(&mut closed.files), closed.since)
        };
        let mut again = false;
        for (id, (file, pages)) in files {
            let Some(file) = file.upgrade().filter(|_| !pages.is_empty()) else {
                continue;
            };
            if file.is_awaited() {
                // The thread that waits may be about to write a part only.
                self.relist_closed(id, (SlabArc::downgrade(&file), pages), monotonic_ns());
                continue;
            }
            let next = file.write_range(pages.clone(), self.turn());
            if let Some(next) = next {
                self.relist_closed(id, (SlabArc::downgrade(&file), next.0..pages.end), since);
                again = true;
            } else {
                // The store is promised one at a time. An error is told by the flush that finds it again.
                let _wb = file.wb_lock.lock();
                let _ = file.ask_store(|ops| ops.write_inode());
            }
        }
        again
    }

    /// Lists a file for its next turn, unless it was closed again meanwhile: then all of it is listed.
    fn relist_closed(&self, id: u64, file: ClosedFile<AddressSpace>, since: u64) {
        let mut closed = self.closed.lock();
        closed.since = since;
        closed.files.entry(id).or_insert(file);
    }
}
