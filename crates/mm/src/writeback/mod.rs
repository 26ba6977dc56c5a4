//! Writeback: from dirty to unstable to clean.
//!
//! # Model
//!
//! ```text
//!            write              writepages ok              flush ok
//!   clean ─────────▶ dirty ──▶ writeback ──▶ unstable ─────────────▶ clean
//!                     ▲           │ failed       │ flush failed
//!                     └───────────┴──────────────┘  (dirty again, and failed)
//! ```
//!
//! One pass at a time per file, under `wb_lock`: its holder knows that no write of the file is in
//! flight. A pass goes once through the file in ascending order, so it ends even while others keep
//! dirtying; it merges neighbouring dirty folios into one large write and has many writes in flight. Flushes ([`flush`]) run beside it.
//!
//! # Invariants
//!
//! 1. A folio leaves `DIRTY` only into `WRITEBACK`, and `WRITEBACK` only into `UNSTABLE` or back:
//!    no path loses it.
//! 2. `UNSTABLE` is cleared only by a flush that began after the last write of the folio ended.
//! 3. The error sequence of a file counts a folio's failure when it becomes failed; retries that
//!    fail again do not count again.
//!
//! # Locking
//!
//! `wb_lock` *protects* the states above; a flush that succeeded goes from unstable to clean without
//! it, under `xa_lock`. *Order*: `i_rwsem`, `flush_lock`, `wb_lock`, `invalidate_lock`. *May block*: for
//! I/O. Folio locks are held only to change states, never over I/O.

mod closed;
mod device;
mod flush;
mod flusher;
mod fsync;
mod handed;
mod room;
mod run;
mod wait;

pub(crate) use room::ReservedSpace;
use run::Choice;

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::monotonic_ns;
use foliocache_sys::Errno;
use std::ops::Range;

use crate::counters::Count;
use crate::dirty::WritebackState;
use crate::folio::{LockedFolio, flag};
use crate::frames::BLOCK_FRAMES;
use crate::records::AddressSpace;
use crate::types::{PAGE_SIZE, PageIndex, pages_for};

/// Entries handled under one hold of `xa_lock`.
const XA_BATCH: usize = 256;

/// How often a failed write is halved though both halves fail: enough to find several bad spots
/// in one run, and a bound on what a dead store is asked in vain.
const MAX_BLIND_HALVINGS: u32 = 3;

/// Folios that a turn for room alone may leave to the next one, for each page that it may write.
const SPARED: u64 = 16;

/// The purpose of a pass over a file's dirty folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Somebody wants all of it on the medium: an error does not end it.
    Sync,
    /// As `Sync`, for a piece of a run that failed: what fails is left to the caller.
    Piece,
    /// The flusher's turn, with what failed before.
    Retry,
    /// The flusher's turn while what failed waits for its time.
    Fresh,
}

impl Pass {
    fn is_turn(self) -> bool {
        matches!(self, Self::Retry | Self::Fresh)
    }
}

/// Longer than any file, so that a write of known length leaves it.
const SIZE_NOT_KNOWN: u64 = u64::MAX;

impl AddressSpace {
    /// Writes what is dirty from `first` to `last`, at most about `budget` pages; returns where it
    /// stopped, `None` for the end. Where the store only appends it begins with the first of the file, and ends with an error.
    ///
    /// Context: `wb_lock` held. Blocks for I/O and folio locks.
    ///
    /// # Errors
    /// The first error; what failed is dirty again. [`Pass::Sync`] goes on after an error: what can be
    /// written is.
    fn write_dirty(
        &self,
        first: PageIndex,
        last: PageIndex,
        budget: u64,
        pass: Pass,
        wb: &mut WritebackState,
    ) -> (Option<PageIndex>, Result<(), Errno>) {
        self.write_chosen(first, last, budget, &mut Choice::of(pass), wb)
    }

    /// As [`AddressSpace::write_dirty`], what is chosen.
    fn write_chosen(
        &self,
        first: PageIndex,
        last: PageIndex,
        budget: u64,
        choice: &mut Choice,
        wb: &mut WritebackState,
    ) -> (Option<PageIndex>, Result<(), Errno>) {
        let mut result = Ok(());
        let (mut at, mut written) = (first, 0);
        let pass = choice.pass;
        let turn = pass.is_turn();
        let in_order = self.ops.appends_only();
        if in_order {
            if pass == Pass::Fresh && self.counts.get(Count::Failed) > 0 {
                return (None, Ok(()));
            }
            at = PageIndex(0);
        }
        while at <= last && written < budget {
            if turn && written > 0 && self.is_awaited() {
                break;
            }
            let is_clean = self.counts.get(Count::Dirty) == 0;
            // A page that becomes dirty from now on is for another pass: written without a look, it would hide what others wrote.
            if is_clean && !foliocache_sync::planted!(dirtied_after_no_look) {
                return (None, result);
            }
            choice.exact = !is_clean && self.ask_store(|ops| ops.look_before_writeback());
            let runs = self.collect_runs(at, last, budget - written, choice);
            if runs.is_empty() {
                return (None, result);
            }
            let next = runs.next;
            written += runs.len();
            for failed in self.write_runs(runs, choice.early, wb) {
                result = result.and(Err(failed.error));
                if in_order || pass == Pass::Piece {
                    continue;
                }
                let blind = wb.failures.min(MAX_BLIND_HALVINGS);
                self.write_halves(failed.first, failed.len, blind, wb);
                if turn {
                    break;
                }
            }
            let ends = result.is_err() && (in_order || turn);
            match next {
                None => return (None, result),
                Some(next) if ends => return (Some(next), result),
                Some(next) => at = next,
            }
        }
        ((at <= last).then_some(at), result)
    }

    /// After the write of `len` pages from `first` on failed: tries them in smaller and smaller
    /// pieces, so that one bad spot does not keep its neighbours from the medium.
    ///
    /// A half that works shows that the store lives. Where both fail it may be dead: that is followed only
    /// `blind` times, once more with each pass that failed before. A dead store so costs two more writes a
    /// run at first; one bad page among 1024 costs twenty.
    ///
    /// Context: as [`AddressSpace::write_dirty`].
    fn write_halves(&self, first: PageIndex, len: u64, blind: u32, wb: &mut WritebackState) {
        let is_one = |unit| unit == first && len <= u64::from(BLOCK_FRAMES);
        if len < 2 || self.huge_unit(first).is_some_and(is_one) {
            return;
        }
        let halves = [(first, len / 2), (first.add(len / 2), len - len / 2)];
        // A large folio is written in one piece: where there is memory it is split.
        self.split_at(halves[1].0);
        let failed = halves.map(|(first, len)| {
            let last = first.add(len - 1);
            let (_, result) = self.write_dirty(first, last, u64::MAX, Pass::Piece, wb);
            result.is_err()
        });
        let blind = match failed {
            [true, true] if blind == 0 => return,
            [true, true] => blind - 1,
            _ => blind,
        };
        for ((first, len), failed) in halves.into_iter().zip(failed) {
            if failed {
                self.write_halves(first, len, blind, wb);
            }
        }
    }

    /// Writes everything that is dirty now in a range of bytes and makes it durable.
    ///
    /// Context: blocks for I/O, `flush_lock` and `wb_lock`.
    fn write_and_flush(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        let size = self.size();
        let last = PageIndex(pages_for(size.min(bytes.end)).saturating_sub(1));
        let (written, ticket) = {
            let mut wb = self.lock_awaited();
            let began = monotonic_ns();
            let first = PageIndex::of(bytes.start);
            // A folio may begin before it, and is not split while it is dirty and the lock is held.
            let first = self
                .lock_folio(first)
                .map_or(first, |locked| locked.index());
            let (_, written) = self.write_dirty(first, last, u64::MAX, Pass::Sync, &mut wb);
            if bytes.start == 0 && bytes.end >= size {
                wb.passed = began;
            }
            if written.is_err() {
                wb.note(written);
            }
            (written, wb.flushes.ticket())
        };
        let flushed = self.flush_through(ticket);
        self.bdi().note_progress(self);
        written.and(flushed)
    }

    fn failed_error(&self) -> Option<Errno> {
        (self.counts.get(Count::Failed) > 0).then(|| self.wb_err.newest().unwrap_or(Errno::EIO))
    }

    /// Makes grains of a locked folio dirty, and it failed; whether it was not failed before
    /// (invariant 3).
    fn mark_failed(&self, locked: &LockedFolio<'_>, grains: u64, written: Range<usize>) -> bool {
        self.mark_grains_dirty(locked, grains, written);
        let newly = !locked.state.set(flag::ERROR).has(flag::ERROR);
        if newly {
            self.count(Count::Failed, locked.nr_pages());
        }
        newly
    }

    /// One turn of the flusher on this file: at most `budget` pages, `early` if nothing but room is wanted. Whether it wrote anything,
    /// and without an error, and whether a flush has to follow: if `flush` says so, which learns whether the pass came to its end.
    ///
    /// Context: blocks for I/O and for `wb_lock`.
    pub(crate) fn background_writeback(
        &self,
        budget: u64,
        early: bool,
        flush: impl FnOnce(bool) -> bool,
    ) -> (bool, bool) {
        if self.is_awaited() {
            // The caller that makes the file durable does all that this could do.
            return (false, false);
        }
        let mut wb = self.wb_lock.lock();
        // Data that failed waits for its time. The rest of the file does not, or memory would: neither
        // dirty data beside it, nor data that is written and only lacks the flush.
        let retry = !wb.backing_off();
        let fresh = self.counts.get(Count::Dirty) > self.counts.get(Count::Failed);
        let unflushed = || self.counts.get(Count::Unstable) > 0 || !self.direct.is_durable();
        if !retry && !fresh && !unflushed() {
            return (false, false);
        }
        let pass = if retry { Pass::Retry } else { Pass::Fresh };
        // Relaxed: changes under `wb_lock` alone.
        let written = || self.counters.written.load(Ordering::Relaxed);
        let before = written();
        let last = PageIndex(pages_for(self.size()).saturating_sub(1));
        // Data that a pass left is written by one that leaves nothing, from the beginning on.
        let start = if wb.next <= last && (early || !wb.has_left()) {
            wb.next
        } else {
            PageIndex(0)
        };
        if start.0 == 0 {
            wb.begin_pass();
        }
        let spares = early && !self.ops.appends_only();
        let mut choice = Choice {
            early,
            spare: if spares { budget * SPARED } else { 0 },
            ..Choice::of(pass)
        };
        let (next, mut result) = self.write_chosen(start, last, budget, &mut choice, &mut wb);
        wb.next = next.unwrap_or_default();
        wb.note_left(std::mem::take(&mut choice.left));
        if next.is_none() && result.is_ok() {
            wb.end_pass();
        }
        if start.0 > 0 && next.is_none() && result.is_ok() {
            let before = PageIndex(start.0 - 1);
            let (next, wrapped) =
                self.write_chosen(PageIndex(0), before, budget, &mut choice, &mut wb);
            wb.next = next.unwrap_or_default();
            wb.note_left(std::mem::take(&mut choice.left));
            result = wrapped;
        }
        let short = budget.saturating_sub((written() - before) / PAGE_SIZE as u64);
        if spares && short > 0 && result.is_ok() && wb.next.0 == 0 {
            // All that is left was stored to again.
            choice.spare = 0;
            wb.begin_pass();
            let (next, wrote) = self.write_chosen(PageIndex(0), last, short, &mut choice, &mut wb);
            if next.is_none() && wrote.is_ok() {
                wb.end_pass();
            }
            result = wrote;
        }
        let worked = written() != before;
        let flush = !self.is_awaited() && flush(wb.next.0 == 0) && unflushed();
        // A flush that follows says itself how it went.
        if result.is_err() || (retry && !flush) {
            wb.note(result);
        }
        drop(wb);
        self.bdi().note_progress(self);
        (worked && result.is_ok(), flush)
    }
}
