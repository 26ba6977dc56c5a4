//! Pages that uncached writers hand to the flusher.
//!
//! # Model
//!
//! An uncached write copies into the cache like any other and hands its range over. The flusher writes it without waiting for
//! the background limit, flushes, and the flush drops the folios that are marked ([`AddressSpace::drop_durable`]).
//! The writer itself never writes: it is slowed down as others are, and also by what of its file is not durable.
//!
//! The flusher is woken for a MiB; less waits for its next round. Above the background limit it leaves the ranges alone: all
//! files get their turns then, these among them, and no more of them than others.
//!
//! # Locking
//!
//! *Protects*: the ranges. *Order*: as the list of dirty files. *May block*: no.

use std::ops::Range;

use super::Pass;
use crate::counters::Count;
use crate::dirty::HandedFile;
use crate::records::{AddressSpace, BackingDevInfo};
use crate::slab::SlabArc;
use crate::types::PageIndex;

/// Pages for which the flusher is woken.
const WORTH_A_ROUND: u64 = 256;

impl BackingDevInfo {
    /// Hands pages of a file to the flusher.
    pub(crate) fn hand_over(&self, file: &AddressSpace, pages: Range<u64>) {
        let worth = WORTH_A_ROUND.min(self.dirty_limits().background / 4);
        let mut all = self.handed.lock();
        let handed = all.entry(file.id()).or_insert_with(|| HandedFile {
            file: SlabArc::downgrade(&file.share()),
            pages: pages.clone(),
            nr_pages: 0,
        });
        let around = &mut handed.pages;
        *around = around.start.min(pages.start)..around.end.max(pages.end);
        handed.nr_pages += pages.end - pages.start;
        let wake = handed.nr_pages >= worth;
        drop(all);
        if wake {
            self.flusher.wake();
        }
    }

    /// The flusher's turn on what was handed over, one on each file: more may come all the time. Returns whether there is more.
    pub(super) fn write_handed(&self) -> bool {
        let over = || self.nr_to_write() > self.dirty_limits().background;
        let mut written = Vec::new();
        let ids: Vec<u64> = self.handed.lock().keys().copied().collect();
        for id in ids {
            if over() {
                break;
            }
            let Some(handed) = self.handed.lock().remove(&id) else {
                continue;
            };
            let Some(file) = handed.file.upgrade() else {
                continue;
            };
            let pages = handed.pages;
            let next = file.write_range(pages.clone(), self.turn());
            if let Some(next) = next {
                self.hand_over(&file, next.0..pages.end);
            }
            written.push(file);
            // A stream that is handed over without end is flushed now and then.
            if self.counts.get(Count::Unstable) >= self.dirty_limits().flush_after() {
                super::flusher::flush_all(&mut written);
            }
        }
        written.sort_by_key(|file| file.id());
        written.dedup_by_key(|file| file.id());
        super::flusher::flush_all(&mut written);
        !over() && !self.handed.lock().is_empty()
    }
}

impl AddressSpace {
    /// Writes what is dirty of `pages` and did not fail before, at most `budget` pages; returns where it stopped.
    ///
    /// Context: blocks for I/O and for `wb_lock`.
    pub(super) fn write_range(&self, pages: Range<u64>, budget: u64) -> Option<PageIndex> {
        if self.is_awaited() {
            // The caller that makes the file durable does all that this could do.
            return None;
        }
        let mut wb = self.wb_lock.lock();
        let (first, last) = (PageIndex(pages.start), PageIndex(pages.end - 1));
        // A folio may begin before it.
        let first = self
            .lock_folio(first)
            .map_or(first, |locked| locked.index());
        let (next, result) = self.write_dirty(first, last, budget, Pass::Fresh, &mut wb);
        if result.is_err() {
            wb.note(result);
        }
        drop(wb);
        self.bdi().note_progress(self);
        next.filter(|_| result.is_ok())
    }
}
