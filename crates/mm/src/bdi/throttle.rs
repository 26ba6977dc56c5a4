//! Writers that wait, and the flusher's turns that are measured for them.
//!
//! # Locking
//!
//! *Protects*: the pace of the flows, their files' clocks, and the meter. *Order*: leaves.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::time::sleep;
use foliocache_sys::Errno;
use std::time::Duration;

use crate::counters::{Count, bump};
use crate::dirty::{LONGEST_BATCH, Limits, SECOND, turn};
use crate::records::{AddressSpace, BackingDevInfo};

/// Longest sleep at the limit before the writer checks again.
const RECHECK_AFTER: Duration = Duration::from_millis(100);

/// Pages that a writer may owe while it holds `i_rwsem`: 1 MiB.
const MOST_OWED: u64 = 256;

/// Where the writers of a file stand: the limits, what counts in them, and what of the file is not durable.
type Position = (Limits, u64, u64);

fn is_full((limits, held, own): Position) -> bool {
    held >= limits.stop(own)
}

/// Measures what the store takes from its making to its drop.
pub(crate) struct MeasuredPass<'a>(&'a BackingDevInfo);

impl Drop for MeasuredPass<'_> {
    fn drop(&mut self) {
        let bdi = self.0;
        bdi.throttle.meter.lock().end(bdi.mm.shares.now());
    }
}

impl BackingDevInfo {
    /// Bytes a second that the store took lately when it was kept busy, flushes included.
    pub fn write_bandwidth(&self) -> u64 {
        self.throttle.meter.lock().rate(self.mm.shares.now())
    }

    /// Pages that a writer should dirty at a time: fewer for a slow store that many write to. Costs a load.
    pub fn dirty_batch(&self) -> u64 {
        self.throttle.batch.load(Ordering::Relaxed)
    }

    pub(crate) fn measure_pass(&self) -> MeasuredPass<'_> {
        self.throttle.meter.lock().begin(self.mm.shares.now());
        MeasuredPass(self)
    }

    pub(crate) fn note_written(&self, bytes: u64, took: Duration) {
        let now = self.mm.shares.now();
        let mut meter = self.throttle.meter.lock();
        meter.wrote(now, bytes, took.as_nanos() as u64);
        drop(meter);
        self.note_space_used(bytes);
        self.told.wrote(bytes);
    }

    /// So many pages were written for room alone.
    pub(crate) fn note_early(&self, pages: u64) {
        self.rewrites.wrote_early(pages, self.dirty_limits());
    }

    pub(crate) fn turn(&self) -> u64 {
        turn(self.throttle.meter.lock().write_speed())
    }

    /// Lets a writer that just dirtied `pages` pages of a file, `uncached` or not, wait its share. Asks the store for its room
    /// where that is due.
    ///
    /// Context, errors: as [`BackingDevInfo::wait_for_share`].
    pub(crate) fn balance_dirty_pages(
        &self,
        mapping: &AddressSpace,
        pages: u64,
        uncached: bool,
    ) -> Result<(), Errno> {
        if pages > 0 {
            self.note_dirtied(mapping);
        }
        self.wait_for_share(mapping, pages, uncached)
    }

    /// Lets a writer of `pages` pages of a file, `uncached` or not, wait its share, batch by batch.
    ///
    /// Context: sleeps; the caller may hold `i_rwsem`, no lock that writeback takes.
    ///
    /// # Errors
    /// The stored error of the file system when failed pages passed their cap.
    pub(crate) fn wait_for_share(
        &self,
        mapping: &AddressSpace,
        pages: u64,
        uncached: bool,
    ) -> Result<(), Errno> {
        let mut left = if self.is_memory() { 0 } else { pages };
        while left > 0 {
            let batch = left.min(self.dirty_batch());
            left -= batch;
            match self.position(mapping, uncached) {
                Some(position) => self.wait_for_batch(mapping, batch, position, uncached)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Whether a writer that owes for `pages` pages has to wait now, though it holds `i_rwsem` and
    /// could wait when it has let go: where writers have to stop, or if it owes much.
    pub(crate) fn must_wait(&self, mapping: &AddressSpace, pages: u64, uncached: bool) -> bool {
        if self.is_memory() {
            return false;
        }
        let position = self.position(mapping, uncached);
        position.is_some_and(|at| is_full(at) || pages >= MOST_OWED)
    }

    /// Where the writers of a file stand, if they have to pause. Sets the flusher to work where that is due.
    ///
    /// An uncached writer has limits for what of its own file is waiting to be written, too: it takes the slower of both.
    fn position(&self, mapping: &AddressSpace, uncached: bool) -> Option<Position> {
        let limits = self.dirty_limits();
        let (held, own) = (self.nr_to_write(), mapping.counts.not_durable());
        if held > limits.background {
            self.flusher.wake();
        }
        let all = (limits, held, own);
        let failed = mapping.counts.get(Count::Failed);
        let of_file = (
            limits.of_uncached_file(),
            own.min(held).saturating_sub(failed),
            own,
        );
        let positions = if uncached {
            &[all, of_file][..]
        } else {
            &[all]
        };
        let paused = positions.iter().filter(|at| at.1 > at.0.freerun);
        let ratio = |at: &Position| at.0.ratio(at.1);
        paused.min_by(|a, b| ratio(a).total_cmp(&ratio(b))).copied()
    }

    fn wait_for_batch(
        &self,
        mapping: &AddressSpace,
        pages: u64,
        position: Position,
        uncached: bool,
    ) -> Result<(), Errno> {
        self.check_failed_cap()?;
        let start = self.mm.shares.now();
        let pause = self.charge(mapping, pages, start, position);
        let result = if is_full(position) {
            self.wait_for_room(mapping, uncached)
        } else if pause > 0 {
            sleep(Duration::from_nanos(pause));
            Ok(())
        } else {
            return Ok(());
        };
        let took = self.mm.shares.now() - start;
        bump(&mapping.counters.throttled_ns, took);
        self.mm.stalls.record(took);
        self.tell_wait(took);
        result
    }

    /// `EAGAIN` if a writer of a file would have to pause now. Sets the flusher to work where that is due; does
    /// not block.
    pub(crate) fn check_dirty_pages(
        &self,
        mapping: &AddressSpace,
        uncached: bool,
    ) -> Result<(), Errno> {
        match self.is_memory() || self.position(mapping, uncached).is_none() {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }

    /// The pause of a writer for `pages` pages, in nanoseconds.
    fn charge(&self, mapping: &AddressSpace, pages: u64, now: u64, position: Position) -> u64 {
        let bandwidth = self.write_bandwidth();
        let mut pace = self.throttle.pace.lock();
        // Relaxed: changes under the lock alone.
        let mut clock = mapping.dirty_paid_until.load(Ordering::Relaxed);
        let pause = pace.charge(&mut clock, now, pages, bandwidth, position);
        mapping.dirty_paid_until.store(clock, Ordering::Relaxed);
        let batch = pace.batch(bandwidth).min(LONGEST_BATCH);
        self.throttle.batch.store(batch, Ordering::Relaxed);
        debug_assert!(pause <= SECOND);
        pause
    }

    /// Sleeps until fewer pages are dirty than where the writers of `mapping` stop.
    fn wait_for_room(&self, mapping: &AddressSpace, uncached: bool) -> Result<(), Errno> {
        loop {
            self.check_failed_cap()?;
            let held = self.nr_to_write();
            let position = self.position(mapping, uncached);
            if !position.is_some_and(is_full) {
                return Ok(());
            }
            // Relaxed: at worst one more turn.
            if self.stopped.load(Ordering::Relaxed) {
                return Err(self.error().unwrap_or(Errno::EIO));
            }
            self.flusher.wake();
            let mut sleepers = self.progress.0.lock();
            // Looked at under the lock that `note_progress` takes after the counts went down.
            if self.nr_to_write() >= held {
                *sleepers += 1;
                sleepers = self.progress.1.wait_timeout(sleepers, RECHECK_AFTER).0;
                *sleepers -= 1;
            }
        }
    }

    /// Fewer pages of a file are not durable: wakes who waits for that, and takes the file off the list of
    /// dirty files if there are none.
    pub(crate) fn note_progress(&self, mapping: &AddressSpace) {
        let sleepers = *self.progress.0.lock();
        if sleepers > 0 {
            self.progress.1.notify_all();
        }
        self.unqueue_if_durable(mapping);
    }
}
