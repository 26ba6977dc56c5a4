//! Runs of neighbouring dirty folios, many at once, from dirty to unstable.
//!
//! # Model
//!
//! Of each folio of a run its dirty grains are written, and what adjoins in the file goes in one piece: an
//! [`Extent`]. What of their first and last nobody wrote to goes too, unless others changed the file in the store.
//! The extents of several runs, which lie apart, are handed to the store together: it has many in flight. What is written from
//! a copy goes one by one, and so does all where the store only appends.
//!
//! # Invariants
//!
//! 1. A run's folios are under writeback from [`AddressSpace::collect_runs`] to the end of
//!    [`AddressSpace::write_runs`]: they stay in the index, their frames stay theirs, and they are not
//!    split.
//! 2. Who has folios under writeback that the store was not given waits for no folio's lock: its holder may wait for the end
//!    of writeback.

use foliocache_sync::time::Instant;
use foliocache_sys::Errno;
use foliocache_xarray::Mark;
use std::ops::Range;

use crate::counters::{Count, bump};
use crate::direct_map;
use crate::folio::{Folio, LockedFolio, flag, grains};
use crate::mapped::HoldKind;
use crate::ops::{Extent, IoSegment};
use crate::records::{AddressSpace, Mm};
use crate::types::{PageIndex, offset_in_page, pages_for};
use crate::writeback::{Pass, SIZE_NOT_KNOWN, WritebackState, XA_BATCH};

/// Most pages that a run's folios have, and most that are written together: 16 MiB, or what a folio has more.
const MAX_RUN: u64 = 4096;

/// Most folios in a run: so many locks are held at a time.
const MAX_FOLIOS: usize = 1024;

/// Most runs that are written together. In a turn of the flusher fewer: whoever makes the file durable waits for them.
const MAX_RUNS: usize = 1024;
const MAX_RUNS_OF_A_TURN: usize = 128;

struct RunFolio<'a> {
    folio: &'a Folio,
    grains: u64,
    written: Range<usize>,
    /// It is held for I/O, or a device may write to it.
    stays_dirty: bool,
    /// The byte of the file after the last that is written of it.
    end: u64,
}

struct Run<'a> {
    first: PageIndex,
    end: PageIndex,
    folios: Vec<RunFolio<'a>>,
    extents: Vec<Extent<'a>>,
    /// Whether programs or devices may store to it meanwhile: it is written from a copy.
    copied: bool,
}

/// Runs that the backing store has not answered for. A panic there leaves their folios failed and
/// dirty: under writeback for ever, no fsync would know of them.
struct Unfinished<'a> {
    mapping: &'a AddressSpace,
    runs: Vec<Run<'a>>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for run in &self.runs {
            self.mapping.finish_failed(run, 0, Errno::EIO);
        }
    }
}

/// How far the store got with a run.
struct Outcome {
    bytes: u64,
    /// The byte of the file up to which all of the run is written.
    end: u64,
    result: Result<(), Errno>,
}

/// Runs that are written together.
pub(super) struct Runs<'a> {
    runs: Vec<Run<'a>>,
    /// Where to go on; `None` after the last.
    pub(super) next: Option<PageIndex>,
}

/// A run whose write failed: where it began, its pages, and why.
pub(super) struct FailedRun {
    pub(super) first: PageIndex,
    pub(super) len: u64,
    pub(super) error: Errno,
}

/// The dirty folios that a pass takes.
pub(super) struct Choice {
    pub(super) pass: Pass,
    /// It is written for room alone.
    pub(super) early: bool,
    /// No byte is written beside those that have to be.
    pub(super) exact: bool,
    /// So many folios may be left to another turn, if they were stored to again.
    pub(super) spare: u64,
    /// Some were.
    pub(super) left: bool,
}

impl Choice {
    /// All that is for the pass.
    pub(super) fn of(pass: Pass) -> Choice {
        Choice {
            pass,
            early: false,
            exact: false,
            spare: 0,
            left: false,
        }
    }

    fn takes(&mut self, locked: &LockedFolio<'_>) -> bool {
        let seen = locked.state.load();
        if foliocache_sync::planted!(folio_skipped) && locked.index().0 % 8 == 7 {
            return false;
        }
        let wanted = seen.has(flag::DIRTY)
            && !(self.pass == Pass::Fresh && seen.has(flag::ERROR))
            && !(self.pass.is_turn() && locked.hold_counts().device_writes() > 0);
        let spared = wanted && self.spare > 0 && seen.has(flag::AGAIN);
        if spared {
            self.spare -= 1;
            self.left = true;
            locked.state.clear(flag::AGAIN);
        }
        wanted && !spared
    }
}

/// The next run to be written.
enum Next<'a> {
    Run(Run<'a>),
    /// There is one, perhaps, from here on, whose folio somebody has locked.
    Locked(PageIndex),
    End,
}

impl Run<'_> {
    fn len(&self) -> u64 {
        self.end.0 - self.first.0
    }

    /// The pages that are written, parts of pages as whole ones.
    fn written_pages(&self) -> u64 {
        let pages = |extent: &Extent<'_>| pages_for(extent.bytes() as u64);
        self.extents.iter().map(pages).sum()
    }
}

impl Runs<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Their pages.
    pub(super) fn len(&self) -> u64 {
        self.runs.iter().map(Run::len).sum()
    }
}

impl AddressSpace {
    /// Takes the next runs of dirty folios that begin at `at` to `last` into writeback, with folios of `most` pages together
    /// or one more.
    ///
    /// Context: `wb_lock` held. Blocks for the lock of the first folio; the others are
    /// tried, and the run or all ends where one is taken. The flusher leaves out what a device may write, and in a
    /// [`Pass::Fresh`] what failed before.
    pub(super) fn collect_runs(
        &self,
        at: PageIndex,
        last: PageIndex,
        most: u64,
        choice: &mut Choice,
    ) -> Runs<'_> {
        let most_runs = match (self.ops.appends_only(), choice.pass.is_turn()) {
            (true, _) => 1,
            (false, true) => MAX_RUNS_OF_A_TURN,
            (false, false) => MAX_RUNS,
        };
        let (mut runs, mut at): (Vec<Run<'_>>, _) = (Vec::new(), at);
        // Of a large folio few pages may be dirty.
        let (mut pages, mut written) = (0, 0);
        while pages < most && written < MAX_RUN && runs.len() < most_runs && at <= last {
            let most = (most - pages).min(MAX_RUN - written);
            let run = match self.next_run(at, last, most, choice, runs.is_empty()) {
                Next::Run(run) => run,
                Next::Locked(next) => {
                    at = next;
                    break;
                }
                Next::End => return Runs { runs, next: None },
            };
            at = run.end;
            pages += run.len();
            written += run.written_pages();
            runs.push(run);
        }
        let next = (at <= last).then_some(at);
        Runs { runs, next }
    }

    /// The first run from `at` on. Without `waits` for no lock (invariant 2).
    fn next_run(
        &self,
        mut at: PageIndex,
        last: PageIndex,
        most: u64,
        choice: &mut Choice,
        waits: bool,
    ) -> Next<'_> {
        let first = loop {
            let Some(found) = self.index.lock().find(at.0, last.0, Some(Mark::Dirty)) else {
                return Next::End;
            };
            if found.index < at.0 {
                at = PageIndex(found.last() + 1);
                continue;
            }
            at = PageIndex(found.index);
            let locked = match waits {
                true => self.lock_folio(at),
                false => match self.try_lock_folio(at) {
                    None => return Next::Locked(at),
                    locked => locked,
                },
            };
            match locked {
                Some(locked) if locked.index() == at && choice.takes(&locked) => break locked,
                _ => at = at.add(1),
            }
        };
        let mut end = first.end();
        let mut run = vec![first];
        while run.len() < MAX_FOLIOS && end.0 - at.0 < most && end <= last {
            match self.try_lock_folio(end) {
                Some(locked) if choice.takes(&locked) => {
                    end = locked.end();
                    run.push(locked);
                }
                _ => break,
            }
        }
        Next::Run(self.start_writeback(run, choice.exact))
    }

    fn start_writeback<'a>(&'a self, folios: Vec<LockedFolio<'a>>, exact: bool) -> Run<'a> {
        // From now on a store through a window is a fault, which waits for the folio's lock.
        // Those that are held for I/O stay as they are, and dirty; so does what a device may write.
        let held: Vec<_> = folios.iter().map(|locked| self.held_as(locked)).collect();
        let device = |locked: &LockedFolio<'_>| locked.hold_counts().device_writes() > 0;
        let device: Vec<_> = folios.iter().map(device).collect();
        let protect =
            |at: usize| folios[at].state.load().has(flag::MAPPED) && held[at] != Some(HoldKind::Io);
        let mut at = 0;
        while at < folios.len() {
            let end = (at..folios.len())
                .find(|&end| !protect(end))
                .unwrap_or(folios.len());
            if at < end && !foliocache_sync::planted!(protected_after_the_write) {
                self.write_protect(folios[at].index().0..folios[end - 1].end().0);
            }
            at = end + 1;
        }
        {
            let mut index = self.index.lock();
            for locked in &folios {
                index.clear_mark(locked.index().0, Mark::Dirty);
            }
        }
        let mut run = Run {
            first: folios[0].index(),
            end: folios[0].index(),
            folios: Vec::with_capacity(folios.len()),
            extents: Vec::new(),
            copied: held.iter().any(Option::is_some)
                || (device.contains(&true)
                    && !foliocache_sync::planted!(device_written_folio_not_copied)),
        };
        // Bytes of a folio beyond the end of the file are not the file's. Truncation waits for
        // `wb_lock`.
        let size = self.size();
        for (locked, (held, device)) in folios.into_iter().zip(held.into_iter().zip(device)) {
            let grains = locked.dirty_grains();
            let written = locked.written();
            let margins = exact.then_some(&written);
            let taken = RunFolio {
                stays_dirty: device || held == Some(HoldKind::Io),
                folio: locked.folio(),
                grains,
                end: self.push_extents(&locked, margins, size, &mut run.extents),
                written,
            };
            locked.set_clean();
            locked.state.set(flag::WRITEBACK);
            locked.state.clear(flag::DIRTY | flag::AGAIN);
            run.end = locked.end();
            run.folios.push(taken);
        }
        self.count(Count::Writeback, run.len());
        self.uncount(Count::Dirty, run.len());
        run
    }

    /// How a locked folio is held for stores, if it is.
    fn held_as(&self, locked: &LockedFolio<'_>) -> Option<HoldKind> {
        let held = locked.state.load().has(flag::HELD);
        held.then(|| self.held_for_stores(locked.pages()))?
    }

    /// Appends what of a folio is dirty, `within` and in the file; returns the byte of the file where it ends.
    fn push_extents<'a>(
        &self,
        locked: &LockedFolio<'a>,
        within: Option<&Range<usize>>,
        size: u64,
        extents: &mut Vec<Extent<'a>>,
    ) -> u64 {
        let start = locked.index().pos();
        let mut end = start;
        for mut bytes in grains::ranges(locked.dirty_grains(), locked.order()) {
            if let Some(within) = within {
                bytes = bytes.start.max(within.start)..bytes.end.min(within.end);
            }
            bytes.end = (size.saturating_sub(start)).min(bytes.end as u64) as usize;
            if bytes.is_empty() {
                break;
            }
            let pos = start + bytes.start as u64;
            end = start + bytes.end as u64;
            let segment = self.segment(locked, bytes.clone());
            match extents.last_mut() {
                Some(extent) if extent.end() == pos => extent.push(segment),
                _ => extents.push(Extent::new(pos, vec![segment])),
            }
        }
        end
    }

    /// Writes runs, `early` for room alone, and sets their folios free, unstable or dirty again. Returns those that failed.
    ///
    /// Context: `wb_lock` held, no folio lock. Blocks for I/O.
    pub(super) fn write_runs(
        &self,
        runs: Runs<'_>,
        early: bool,
        wb: &mut WritebackState,
    ) -> Vec<FailedRun> {
        let start = Instant::now();
        let mut unfinished = Unfinished {
            mapping: self,
            runs: runs.runs,
        };
        self.write_together(&mut unfinished.runs);
        let mut stored = self.ops.appends_only().then_some(wb.store_size);
        let outcomes: Vec<Outcome> = (unfinished.runs.iter_mut())
            .map(|run| self.write_rest(run, &mut stored))
            .collect();
        if foliocache_sync::planted!(protected_after_the_write) {
            (unfinished.runs.iter()).for_each(|run| self.write_protect(run.first.0..run.end.0));
        }
        let runs = std::mem::take(&mut unfinished.runs);
        let bytes = outcomes.iter().map(|outcome| outcome.bytes).sum();
        let ends = outcomes.iter().filter(|outcome| outcome.bytes > 0);
        wb.store_size = ends.fold(wb.store_size, |size, outcome| size.max(outcome.end));
        bump(&self.counters.written, bytes);
        let took = start.elapsed();
        self.bdi().note_written(bytes, took);
        self.bdi()
            .tell_slow(self, "a write", bytes, took.as_millis() as u64);
        let whole = |(run, outcome): (&Run<'_>, &Outcome)| {
            let written = |taken: &&RunFolio<'_>| taken.end <= outcome.end;
            match outcome.result {
                Ok(()) => run.folios.len(),
                Err(_) => run.folios.iter().take_while(written).count(),
            }
        };
        let whole: Vec<usize> = runs.iter().zip(&outcomes).map(whole).collect();
        let written = runs.iter().zip(&whole);
        let written: Vec<&RunFolio<'_>> = written
            .flat_map(|(run, &whole)| &run.folios[..whole])
            .collect();
        self.finish_written(&written, early, wb);
        let mut failed = Vec::new();
        for ((run, whole), outcome) in runs.iter().zip(whole).zip(outcomes) {
            if let Err(error) = outcome.result {
                self.finish_failed(run, whole, error);
                let (first, len) = (run.first, run.len());
                failed.push(FailedRun { first, len, error });
            }
        }
        failed
    }

    /// Hands the extents of several runs to the store together. What it said is noted in them.
    fn write_together(&self, runs: &mut [Run<'_>]) {
        let mut together: Vec<_> = runs.iter_mut().filter(|run| !run.copied).collect();
        let nr: usize = together.iter().map(|run| run.extents.len()).sum();
        if nr < 2 || self.ops.appends_only() {
            return;
        }
        let mut extents: Vec<Extent<'_>> = Vec::with_capacity(nr);
        for run in &mut together {
            extents.append(&mut run.extents);
        }
        self.ask_store(|ops| ops.write_extents(&mut extents));
        if foliocache_sync::planted!(error_beside_a_success_lost)
            && let Some(fine) = extents.iter().find_map(|extent| extent.written?.ok())
        {
            let failed = extents
                .iter_mut()
                .filter(|extent| extent.written.is_none_or(|done| done.is_err()));
            failed.for_each(|extent| extent.written = Some(Ok(fine)));
        }
        let mut extents = extents.into_iter().peekable();
        for run in together {
            let end = run.end.pos();
            while let Some(extent) = extents.next_if(|extent| extent.pos < end) {
                run.extents.push(extent);
            }
        }
    }

    /// Hands a run to the store unless that was done, and again what a short count left out, until all is written or
    /// the store says why not. A store that only appends has `stored` bytes of the file.
    fn write_rest(&self, run: &mut Run<'_>, stored: &mut Option<u64>) -> Outcome {
        let mut outcome = Outcome {
            bytes: 0,
            end: run.first.pos(),
            result: Ok(()),
        };
        for extent in &mut run.extents {
            let (bytes, mut done) = (extent.bytes(), 0);
            while done < bytes {
                let pos = extent.pos + done as u64;
                let store = |segments: &[IoSegment<'_>]| match *stored {
                    None => self.ask_store(|ops| ops.writepages(pos, segments)),
                    Some(stored) => {
                        let stored = Some(stored).filter(|&stored| stored != SIZE_NOT_KNOWN);
                        self.ask_store(|ops| ops.append_pages(pos, segments, stored))
                    }
                };
                let told = extent.written.take();
                let written = told.unwrap_or_else(|| {
                    let rest = direct_map::after(extent.segments(), done);
                    match run.copied {
                        false => store(&rest),
                        true => self.write_copy(pos, &rest, store),
                    }
                });
                let step = match written {
                    Ok(_) if foliocache_sync::planted!(short_write_taken_for_whole) => {
                        Ok(bytes - done)
                    }
                    Ok(written) if written >= bytes - done => Ok(bytes - done),
                    // Bytes that are appended cannot be written once more.
                    Ok(written) if stored.is_some() && written > 0 => Ok(written),
                    // No whole page and no error: nobody says why.
                    Ok(written) => (written.checked_sub(offset_in_page(pos + written as u64)))
                        .filter(|&whole| whole > 0)
                        .ok_or(Errno::EIO),
                    Err(error) => Err(error),
                };
                match step {
                    Ok(step) => {
                        done += step;
                        outcome.bytes += step as u64;
                        outcome.end = extent.pos + done as u64;
                        *stored = stored.map(|stored| stored.max(outcome.end));
                    }
                    Err(error) => {
                        outcome.result = Err(error);
                        return outcome;
                    }
                }
            }
        }
        outcome
    }

    /// Writes what of `segments` fits into the buffer for that with `store`, from there; returns the bytes.
    fn write_copy(
        &self,
        pos: u64,
        segments: &[IoSegment<'_>],
        store: impl FnOnce(&[IoSegment<'_>]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut stable = self.mm().holding.stable.lock();
        // As the store may want it, memory lies in its page as the bytes do in theirs.
        let stable = &mut stable[offset_in_page(pos)..];
        let mut filled = 0;
        for segment in segments {
            let len = segment.len().min(stable.len() - filled);
            segment
                .sub(0, len)
                .copy_to(0, &mut stable[filled..filled + len]);
            filled += len;
        }
        let copy = direct_map::segment(stable.as_mut_ptr(), filled);
        let written = store(&[copy])?;
        Ok(written.min(filled))
    }

    fn finish_written(&self, written: &[&RunFolio<'_>], early: bool, wb: &WritebackState) {
        let (unstable, before) = wb.flushes.marks();
        let written_now = match early {
            true => flag::UNSTABLE | flag::EARLY,
            false => flag::UNSTABLE,
        };
        let (mut pages, mut newly_unstable, mut recovered) = (0, 0, 0);
        for some in written.chunks(XA_BATCH) {
            let mut index = self.index.lock();
            for RunFolio { folio, .. } in some {
                if foliocache_sync::planted!(clean_when_written) {
                    pages += folio.nr_pages();
                    continue;
                }
                index.clear_mark(folio.index().0, before);
                index.set_mark(folio.index().0, unstable);
                let before = folio.state.set(written_now);
                pages += folio.nr_pages();
                newly_unstable += u64::from(!before.has(flag::UNSTABLE)) * folio.nr_pages();
                let before = folio.state.clear(flag::ERROR);
                recovered += u64::from(before.has(flag::ERROR)) * folio.nr_pages();
            }
        }
        self.count(Count::Unstable, newly_unstable);
        self.uncount(Count::Failed, recovered);
        self.uncount(Count::Writeback, pages);
        if early {
            self.bdi().note_early(pages);
        }
        // These may have changed since they were copied. Nothing else keeps one that was unpinned meanwhile.
        let stays = |taken: &&&RunFolio<'_>| {
            taken.stays_dirty && !foliocache_sync::planted!(pinned_folio_left_clean)
        };
        for taken in written.iter().filter(stays) {
            let locked = taken.folio.lock(&self.mm().waits);
            self.mark_grains_dirty(&locked, taken.grains, taken.written.clone());
        }
        for RunFolio { folio, .. } in written {
            folio.state.clear(flag::WRITEBACK);
        }
    }

    fn finish_failed(&self, run: &Run<'_>, whole: usize, error: Errno) {
        let mm: &Mm = self.mm();
        let mut newly_failed = 0;
        for taken in &run.folios[whole..] {
            let locked = taken.folio.lock(&mm.waits);
            let written = taken.written.clone();
            newly_failed += u64::from(self.mark_failed(&locked, taken.grains, written));
            self.uncount(Count::Writeback, locked.nr_pages());
            locked.state.clear(flag::WRITEBACK);
        }
        self.bdi().set_error(Some(error));
        if newly_failed > 0 && !foliocache_sync::planted!(error_told_to_nobody) {
            self.wb_err.record(error);
            let failed = run.folios[whole..].first();
            let start = failed.map_or(run.end.pos(), |taken| taken.folio.index().pos());
            let bytes = run.end.pos().min(self.size()).saturating_sub(start);
            let what = "writeback failed; the data stays dirty and is retried";
            self.bdi().tell_failure(self, what, Some(bytes), error);
        }
    }
}
