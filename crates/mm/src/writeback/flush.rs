//! Flushes: from unstable to clean, while writes of the file go on. Decision 36 says why so.
//!
//! # Model
//!
//! The flushes of a file are numbered, and one runs at a time. A write belongs to the *generation* of
//! the last flush that had begun when it ended: that flush may not cover it, the next one does.
//!
//! ```text
//!   flush          ├──── 1 ────┤       ├──── 2 ────┤
//!   write ends   ×       ×          ×        ×
//!   generation   0       1          1        2           clean after flush 1, 2, 2, 3
//! ```
//!
//! Folios of two generations are unstable at most: those that the running flush covers, and those
//! written since it began. Each has an index mark, by the lowest bit of its generation. A folio that
//! is written again moves to the later generation.
//!
//! A flush that fails makes both generations dirty again: the store may report the loss of a later write
//! to the running flush, and only once.
//!
//! # Invariants
//!
//! 1. `begun` grows with `flush_lock` and `wb_lock` held, so no write ends while it does.
//! 2. When a flush begins, no folio has the mark that writes get from then on: the flush before the
//!    last one cleaned those folios, or made them dirty.
//! 3. `failures` and `error` change with both locks held, after all that was unstable is dirty: a
//!    caller whose ticket has the same number of failures has lost nothing.
//!
//! # Locking
//!
//! `flush_lock` *protects* the running flush and [`FlushState`]. *Order*: after `i_rwsem`, before
//! `wb_lock`, which is held to begin a flush and to end one that failed, not over its I/O. *May block*:
//! for I/O.

use foliocache_sync::time::coarse_monotonic_ms;
use foliocache_sys::Errno;
use foliocache_xarray::Mark;

use super::{SIZE_NOT_KNOWN, XA_BATCH};
use crate::counters::Count;
use crate::dirty::{FlushState, Ticket, UNSTABLE};
use crate::folio::{LockedFolio, flag, grains};
use crate::records::AddressSpace;
use crate::types::PageIndex;

/// A flush that runs. Dropped before it succeeded, by a panic of the store too, it has failed.
struct Running<'a> {
    mapping: &'a AddressSpace,
    state: &'a mut FlushState,
    number: u32,
    /// When the last pass began that had ended before the flush.
    passed: u64,
    /// Whether the file's writeback failed last: a success ends its back-off.
    failing: bool,
    covered: Mark,
    /// Direct writes that had ended before the flush, if one was not durable.
    direct: Option<u32>,
    error: Errno,
}

impl Running<'_> {
    fn succeeded(self) {
        let mapping = self.mapping;
        mapping.clean_unstable(self.covered);
        if foliocache_sync::planted!(flush_cleans_a_later_generation) {
            UNSTABLE
                .iter()
                .for_each(|&mark| mapping.clean_unstable(mark));
        }
        if let Some(begun) = self.direct {
            mapping.direct.end(begun);
        }
        if mapping.counts.get(Count::Failed) == 0 {
            // Data that was dirty before the pass is durable, so all that is dirty now is younger.
            mapping.bdi().note_younger(mapping, self.passed);
            if self.failing {
                mapping.wb_lock.lock().note(Ok(()));
            }
        }
        self.state.done = self.number;
        std::mem::forget(self);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut wb = self.mapping.wb_lock.lock();
        wb.store_size = SIZE_NOT_KNOWN;
        self.mapping.redirty_unstable(self.error);
        wb.note(Err(self.error));
        wb.flushes.failures = wb.flushes.failures.wrapping_add(1);
        self.state.failures = wb.flushes.failures;
        self.state.error = Some(self.error);
    }
}

impl AddressSpace {
    /// Makes the writes of `ticket` durable: flushes the backing store, unless a flush of somebody
    /// else did since.
    ///
    /// Context: blocks for I/O, `flush_lock` and `wb_lock`.
    ///
    /// # Errors
    /// That of the flush, whose data is dirty again. The ticket is of no use afterwards.
    pub(super) fn flush_through(&self, ticket: Ticket) -> Result<(), Errno> {
        let mut state = self.flush_lock.lock();
        if state.failures != ticket.failures {
            return Err(state.error.unwrap_or(Errno::EIO));
        }
        if ticket.flush.wrapping_sub(state.done) as i32 <= 0 {
            return Ok(());
        }
        let flushed = self.flush_unstable(&mut state);
        self.bdi().set_error(flushed.err().or(self.failed_error()));
        drop(state);
        if self.mm().frames.below_low() {
            self.mm().reclaimer.worker.wake();
        }
        flushed
    }

    fn flush_unstable(&self, state: &mut FlushState) -> Result<(), Errno> {
        let (mut running, attributes) = {
            let mut wb = self.lock_awaited();
            let attributes = self.ask_store(|ops| ops.write_inode());
            let (covered, _) = wb.flushes.marks();
            // From here on what is written belongs to the next flush.
            wb.flushes.begun = wb.flushes.begun.wrapping_add(1);
            let running = Running {
                mapping: self,
                state,
                number: wb.flushes.begun,
                passed: wb.passed,
                failing: wb.failures > 0,
                covered,
                direct: self.direct.begin(),
                error: Errno::EIO,
            };
            (running, attributes)
        };
        if foliocache_sync::planted!(clean_before_the_flush) {
            self.clean_unstable(running.covered);
        }
        let begun = coarse_monotonic_ms();
        let flushed = attributes.and_then(|()| self.ask_store(|ops| ops.flush()));
        let took = coarse_monotonic_ms() - begun;
        self.bdi().tell_slow(self, "a flush", 0, took);
        match flushed {
            Ok(()) => {
                running.succeeded();
                Ok(())
            }
            Err(error) => {
                let what = "a flush failed; what it covers is dirty again and is retried";
                self.bdi().tell_failure(self, what, None, error);
                running.error = error;
                Err(error)
            }
        }
    }

    /// After a flush: the folios with the mark `covered` are clean, unless they were written again.
    ///
    /// Context: `flush_lock` held. A write that ends meanwhile moves its folio to the other mark, under
    /// `xa_lock`.
    fn clean_unstable(&self, covered: Mark) {
        let (mut at, mut uncached) = (0, Vec::new());
        loop {
            let mut index = self.index.lock();
            let (mut cleaned, mut pages) = (0, 0);
            for _ in 0..XA_BATCH {
                let Some(found) = index.find(at, u64::MAX, Some(covered)) else {
                    break;
                };
                index.clear_mark(found.index, covered);
                let folio = self.mm().folios.of_entry(found.entry);
                let before = folio.state.clear(flag::UNSTABLE);
                let again = before.has_any(flag::DIRTY | flag::WRITEBACK);
                if before.has(flag::DROPBEHIND) && !again {
                    uncached.push(PageIndex(found.index));
                }
                cleaned += 1;
                pages += found.last() + 1 - found.index;
                at = found.last() + 1;
            }
            drop(index);
            self.uncount(Count::Unstable, pages);
            uncached.drain(..).for_each(|page| self.drop_durable(page));
            if cleaned < XA_BATCH {
                return;
            }
        }
    }

    /// Takes back that a locked folio was written.
    pub(crate) fn clear_unstable(&self, locked: &LockedFolio<'_>) {
        let mut index = self.index.lock();
        for mark in UNSTABLE {
            index.clear_mark(locked.index().0, mark);
        }
        if locked.state.clear(flag::UNSTABLE).has(flag::UNSTABLE) {
            self.uncount(Count::Unstable, locked.nr_pages());
        }
    }

    /// After a failed flush: what was written may never reach the medium, so it is dirty again.
    ///
    /// Context: `flush_lock` and `wb_lock` held.
    fn redirty_unstable(&self, error: Errno) {
        let (mut failed, mut unstable) = (0, 0);
        if foliocache_sync::planted!(failed_flush_forgotten) {
            return self.wb_err.record(error);
        }
        for mark in UNSTABLE {
            let mut at = 0;
            loop {
                let found = self.index.lock().find(at, u64::MAX, Some(mark));
                let Some(found) = found else { break };
                at = found.index + 1;
                unstable += 1;
                let Some(locked) = self.lock_folio(PageIndex(found.index)) else {
                    continue;
                };
                at = locked.end().0;
                locked.state.clear(flag::UNSTABLE);
                self.index.lock().clear_mark(locked.index().0, mark);
                self.uncount(Count::Unstable, locked.nr_pages());
                // Nobody remembers what was written: all that the folio has.
                let grains = locked.uptodate_grains();
                let all = grains::span(grains, locked.order());
                failed += u64::from(self.mark_failed(&locked, grains, all));
            }
        }
        // Nothing unstable: it was a size or a hole that may be lost, and no folio can say so.
        if failed > 0 || unstable == 0 {
            self.wb_err.record(error);
        }
    }
}
