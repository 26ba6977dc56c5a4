//! One large write: a run of neighbouring dirty folios, from dirty to unstable.
//!
//! # Invariants
//!
//! 1. A run's folios are under writeback from [`AddressSpace::collect_run`] to the end of
//!    [`AddressSpace::write_run`]: they stay in the index, and their frames stay theirs.

use foliocache_sync::Arc;
use foliocache_sync::time::Instant;
use foliocache_sys::Errno;
use foliocache_xarray::Mark;

use crate::address_space::AddressSpace;
use crate::direct_map;
use crate::folio::{Folio, LockedFolio, flag};
use crate::mm::Mm;
use crate::ops::IoSegment;
use crate::stats::Count;
use crate::types::{PAGE_SIZE, PageIndex, pages_for};
use crate::writeback::WritebackState;

/// Most folios in a run: 4 MiB.
const MAX_RUN: usize = 1024;

/// Folios under writeback that follow one another in the file.
pub(super) struct Run<'a> {
    first: PageIndex,
    folios: Vec<&'a Folio>,
    segments: Vec<IoSegment<'a>>,
    /// Bytes to write: whole pages but for the last one, which ends with the file.
    bytes: usize,
}

/// A run that the backing store has not answered for. A panic there leaves its folios failed and
/// dirty: under writeback for ever, no fsync would know of them.
struct Unfinished<'a> {
    mapping: &'a Arc<AddressSpace>,
    run: &'a Run<'a>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.mapping.finish_failed(self.run, 0, Errno::EIO);
    }
}

impl Run<'_> {
    pub(super) fn first(&self) -> PageIndex {
        self.first
    }

    pub(super) fn len(&self) -> u64 {
        self.folios.len() as u64
    }
}

impl AddressSpace {
    /// Takes the next run of dirty folios from `at` to `last` into writeback; `None` at the end.
    ///
    /// Context: `wb_lock` held. Blocks for the lock of the run's first folio; the others are
    /// tried, and the run ends where one is taken. With `fresh_only` those that failed before are
    /// left out.
    pub(super) fn collect_run(
        &self,
        at: PageIndex,
        last: PageIndex,
        fresh_only: bool,
    ) -> Option<Run<'_>> {
        let mut at = at;
        let wanted = |locked: &LockedFolio<'_>| {
            let seen = locked.state.load();
            seen.has(flag::DIRTY) && !(fresh_only && seen.has(flag::ERROR))
        };
        let first = loop {
            let found = self.index.lock().find(at.0, last.0, Some(Mark::Dirty))?;
            at = PageIndex(found.index);
            match self.lock_folio(at) {
                Some(locked) if wanted(&locked) => break locked,
                _ => at = at.add(1),
            }
        };
        let mut run = vec![first];
        while run.len() < MAX_RUN {
            let next = at.add(run.len() as u64);
            if next > last {
                break;
            }
            match self.try_lock_folio(next) {
                Some(locked) if wanted(&locked) => run.push(locked),
                _ => break,
            }
        }
        Some(self.start_writeback(at, run))
    }

    /// From dirty to writeback, for a run of locked folios.
    fn start_writeback<'a>(&'a self, first: PageIndex, run: Vec<LockedFolio<'a>>) -> Run<'a> {
        {
            let mut index = self.index.lock();
            for locked in &run {
                index.clear_mark(locked.index().0, Mark::Dirty);
                index.set_mark(locked.index().0, Mark::Writeback);
            }
        }
        for locked in &run {
            locked.state.set(flag::WRITEBACK);
            locked.state.clear(flag::DIRTY);
        }
        self.count(Count::Writeback, run.len() as u64);
        self.uncount(Count::Dirty, run.len() as u64);
        // The size was set before the folios became dirty, so the run holds at least a byte of the
        // file; truncation waits for `wb_lock`.
        debug_assert!(first.0 + run.len() as u64 <= pages_for(self.size()));
        let bytes = (self.size() - first.pos()).min((run.len() * PAGE_SIZE) as u64) as usize;
        let mut segments: Vec<IoSegment<'_>> = Vec::new();
        for (at, locked) in run.iter().enumerate() {
            let next = self.segment(locked, (bytes - at * PAGE_SIZE).min(PAGE_SIZE));
            direct_map::push_merged(&mut segments, next);
        }
        let folios = run.iter().map(LockedFolio::folio).collect();
        Run {
            first,
            folios,
            segments,
            bytes,
        }
    }

    /// Writes a run and sets its folios free, unstable or dirty again.
    ///
    /// Context: `wb_lock` held, no folio lock. Blocks for I/O.
    pub(super) fn write_run(
        self: &Arc<Self>,
        run: Run<'_>,
        wb: &mut WritebackState,
    ) -> Result<(), Errno> {
        let start = Instant::now();
        let unfinished = Unfinished {
            mapping: self,
            run: &run,
        };
        let (whole, result) = self.write_out(&run);
        std::mem::forget(unfinished);
        let stored = run.bytes.min(whole * PAGE_SIZE) as u64;
        if stored > 0 {
            wb.note_stored(run.first.pos() + stored);
        }
        self.note_write(stored, start.elapsed());
        self.finish_written(&run, whole);
        if let Err(error) = result {
            self.finish_failed(&run, whole, error);
        }
        result
    }

    /// Hands a run to the store, and again what a short count left out, until all is written or
    /// the store says why not. Returns the folios that are written whole.
    fn write_out(&self, run: &Run<'_>) -> (usize, Result<(), Errno>) {
        let mut done = 0;
        loop {
            let rest = direct_map::after(&run.segments, done);
            match self.ops.writepages(run.first.pos() + done as u64, &rest) {
                Ok(written) if done + written >= run.bytes => return (run.folios.len(), Ok(())),
                // No whole page and no error: nobody says why.
                Ok(written) if written < PAGE_SIZE => return (done / PAGE_SIZE, Err(Errno::EIO)),
                Ok(written) => done += written - written % PAGE_SIZE,
                Err(error) => return (done / PAGE_SIZE, Err(error)),
            }
        }
    }

    fn finish_written(&self, run: &Run<'_>, whole: usize) {
        let mm: &Mm = self.mm();
        let (mut newly_unstable, mut recovered) = (0, 0);
        {
            let mut index = self.index.lock();
            for (at, folio) in run.folios[..whole].iter().enumerate() {
                let page = run.first.add(at as u64);
                index.clear_mark(page.0, Mark::Writeback);
                index.set_mark(page.0, Mark::Unstable);
                newly_unstable += u64::from(!folio.state.set(flag::UNSTABLE).has(flag::UNSTABLE));
                recovered += u64::from(folio.state.clear(flag::ERROR).has(flag::ERROR));
            }
        }
        self.count(Count::Unstable, newly_unstable);
        self.uncount(Count::Failed, recovered);
        self.uncount(Count::Writeback, whole as u64);
        for folio in &run.folios[..whole] {
            folio.release(flag::WRITEBACK, &mm.waits);
        }
    }

    fn finish_failed(self: &Arc<Self>, run: &Run<'_>, whole: usize, error: Errno) {
        let mm: &Mm = self.mm();
        let mut newly_failed = 0;
        for (at, folio) in run.folios.iter().enumerate().skip(whole) {
            let page = run.first.add(at as u64);
            let locked = folio.lock(&mm.waits);
            newly_failed += u64::from(self.mark_failed(&locked));
            self.index.lock().clear_mark(page.0, Mark::Writeback);
            self.uncount(Count::Writeback, 1);
            folio.release(flag::WRITEBACK, &mm.waits);
        }
        self.bdi().set_error(Some(error));
        if newly_failed > 0 {
            self.wb_err.record(error);
            tracing::warn!(
                file = %self.ops.describe(), pos = run.first.pos(), bytes = run.bytes, %error,
                "writeback failed; the data stays dirty and is retried"
            );
        }
    }
}
