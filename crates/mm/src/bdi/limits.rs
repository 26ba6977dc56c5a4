//! The dirty limits of one file system: its share of the bound.
//!
//! # Model
//!
//! A file system alone with dirty data has the whole dirty limit. Several share it: a quarter
//! evenly, the rest as their stores take data. So each has about as many seconds of work waiting, and a
//! newcomer has something to begin with.
//!
//! **A share grows at once and falls slowly**: no faster than half of what the store takes, so that
//! writers who are at the old limit are slowed down rather than stopped; but by a quarter a second
//! at least, so that a dead store's falls, too. What the shares pass the dirty limit by meanwhile is
//! within invariant 3 of the module above.
//!
//! # Locking
//!
//! *Protects*: who shares out. *Order*: a leaf, and only ever tried. *May block*: no.

use foliocache_sync::Arc;
use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;

use crate::counters::Count;
use crate::dirty::{Limits, WHOLE, slew, target};
use crate::records::{BackingDevInfo, Mm};
use crate::types::PAGE_SIZE;

/// Most that data which is dirtied again and again may raise the dirty limit to, in percent: the budget of what cannot be reclaimed.
/// Where there are other file systems something of it is left to those.
const MOST_ALONE: u32 = 75;
const MOST_BESIDE_OTHERS: u32 = 60;

/// Shares are looked at so often, in nanoseconds.
const INTERVAL: u64 = 50_000_000;

impl Mm {
    /// Shares the dirty limit out again, if that is due and nobody else does.
    ///
    /// Context: may let go of a file system that nobody uses any more, and then waits for its
    /// flusher, which has no file and so needs no lock of one.
    fn share_out(&self) {
        let now = self.shares.now();
        // Relaxed: the lock below sees to it that one does it.
        if now < self.shares.due.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut last) = self.shares.last.try_lock() else {
            return;
        };
        self.shares.due.store(now + INTERVAL, Ordering::Relaxed);
        let passed = now.saturating_sub(std::mem::replace(&mut *last, now));
        let bdis: Vec<Arc<BackingDevInfo>> = self
            .bdis()
            .into_iter()
            .filter(|bdi| bdi.nr_not_durable() > 0)
            .collect();
        let rates: Vec<u64> = bdis.iter().map(|bdi| bdi.write_bandwidth()).collect();
        let all = rates.iter().sum();
        let percent = u64::from(self.config.dirty_percent);
        let whole = self.frames.capacity() * percent / 100 * PAGE_SIZE as u64;
        for (bdi, &rate) in bdis.iter().zip(&rates) {
            let target = target(rate, all, bdis.len() as u64);
            let share = bdi.share.load(Ordering::Relaxed);
            let next = slew(share, target, passed, rate, whole);
            bdi.share.store(next, Ordering::Relaxed);
        }
        drop(last);
    }
}

/// The dirty limit, in percent, for data that is dirtied again as soon as it is written; `once` is that for data that is not.
fn most_rewritten(once: u32, alone: bool) -> u32 {
    let most = match alone {
        true => MOST_ALONE,
        false => MOST_BESIDE_OTHERS,
    };
    (2 * once).min(most).max(once)
}

impl BackingDevInfo {
    /// This file system's part of the dirty limit, of [`WHOLE`].
    fn dirty_share(&self) -> u64 {
        if self.mm.shares.nr_dirty.load(Ordering::Relaxed) > 1 {
            self.mm.share_out();
        } else if self.share.load(Ordering::Relaxed) != WHOLE {
            self.share.store(WHOLE, Ordering::Relaxed);
        }
        self.share.load(Ordering::Relaxed).max(1)
    }

    /// This file system's limits now.
    ///
    /// Context: as [`Mm::share_out`].
    pub(crate) fn dirty_limits(&self) -> Limits {
        let frames = self.mm.frames.capacity();
        let share = self.dirty_share();
        let percent = |percent: u32| frames * u64::from(percent) / 100 * share / WHOLE;
        // Data of others that cannot be written must leave readers something (invariant 3).
        let others = self.mm.nr_to_write().saturating_sub(self.nr_to_write());
        let ceiling = self.mm.unreclaimable().most_dirty();
        let config = &self.mm.config;
        let once = config.dirty_percent;
        let again = most_rewritten(once, self.mm.shares.nr_stores.load(Ordering::Relaxed) <= 1);
        let limit = (self.rewrites.between(percent(once), percent(again)))
            .min(ceiling.saturating_sub(others))
            .max(16);
        let least = percent(config.dirty_background_percent)
            .min(limit / 2)
            .max(8);
        let background = self.rewrites.between(least, limit / 16 * 13);
        Limits::new(least, background, limit)
    }

    /// The stored error, when this file system has failed pages and waiting for room would not
    /// end: they passed the cap of all, or its own share is used up (invariant 2).
    #[inline]
    pub(crate) fn check_failed_cap(&self) -> Result<(), Errno> {
        match self.counts.get(Count::Failed) {
            0 => Ok(()),
            _ => self.failed_cap(),
        }
    }

    #[cold]
    fn failed_cap(&self) -> Result<(), Errno> {
        if self.mm.unreclaimable().refuses_failed()
            || self.nr_to_write() >= self.dirty_limits().full
        {
            return Err(self.error().unwrap_or(Errno::EIO));
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::records::{BdiKind, MmConfig};

    #[test]
    fn raised_limits_leave_something_to_other_file_systems() {
        let mut config = MmConfig::new(64 << 20);
        config.external_pressure = false;
        let mm = Mm::new(config).unwrap();
        let new = |name| BackingDevInfo::new(&mm, name, BdiKind::Storage).unwrap();
        let bdi = new("database");
        let limits = bdi.dirty_limits();
        let percent = || bdi.dirty_limits().limit * 100 / mm.frames.capacity();
        assert!((39..=40).contains(&percent()), "{}", percent());
        // All was written in vain.
        bdi.rewrites.dirtied_again(limits.limit);
        bdi.rewrites.wrote_early(limits.limit, limits);
        assert!((74..=75).contains(&percent()), "{}", percent());
        let other = new("other");
        assert!((59..=60).contains(&percent()), "{}", percent());
        drop(other);
        assert!((74..=75).contains(&percent()), "{}", percent());
    }
}
