//! The law of the throttle: how long a writer pauses for the pages it dirtied. Decision 11 says why.
//!
//! # Model
//!
//! Writers pause early and often, a little after each batch of pages, so that all of them together dirty
//! what the store takes.
//!
//! ```text
//!   ratio │ *
//!       4 │  *                                     (1 - x) / x
//!         │   *
//!       2 │     *
//!       1 │· · · · · *
//!       0 └─────────────────────*───────▶ x
//!         freerun  set point   full      limit
//!         x = 0    x = 1/2     x = 1
//!
//!   cost of a batch = bytes · flows / (bandwidth · ratio)
//! ```
//!
//! The amount of dirty data moves to the set point without passing it. A rate that is wrong by a factor k moves the
//! balance to `x = k / (k + 1)`, which is inside the zone, whatever k is.
//!
//! A flow is a file. It has a clock, up to which its dirty pages are paid for: a batch moves it on by what it
//! costs, and the writer sleeps until then. A file that dirties less than its share finds its clock in the past.
//! The clock may lag a little behind (a sleep that took too long is made up for), not more.
//!
//! Flows need not be counted. A file that takes all it is given owes a second of sleep a second, one that
//! takes half of that owes half. What all of them owe in a second, as a mean, *is* their number. If many files are
//! written one after the other, each too briefly to owe anything, the cost rises until it is paid.
//!
//! # Invariants
//!
//! 1. A pause is never longer than [`MAX_PAUSE`].
//! 2. The law reads no clock and takes no lock: time is given to it, in nanoseconds from any start.
//!
//! # Differences from Linux
//!
//! Linux shares among threads and finds each thread's rate by comparing what was dirtied with what
//! was written (`balance_dirty_pages`, from Linux 3.2 on); its curve is a cubic polynomial.

use crate::types::PAGE_SIZE;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Longest pause of a writer that is below the limit, in nanoseconds.
pub(crate) const MAX_PAUSE: u64 = 100_000_000;

/// Most that one charge costs: a single writer of a file pauses no longer.
const MAX_COST: u64 = 50_000_000;

/// Pauses that are owed are put together until they are worth a sleep: a wake-up costs 50 microseconds.
const MIN_PAUSE: u64 = 1_000_000;

/// How far the clock of a file may lag: what a file may dirty at once after it was quiet, and what
/// a sleep that took too long is made up for.
const CREDIT: u64 = 10_000_000;

/// The most time that a batch of pages should cost: threads of one file wait for one another's.
const BATCH_COST: u64 = 2_000_000;

/// Shortest time over which flows are summed.
const WINDOW: u64 = 50_000_000;

/// Time over which the number of flows is a mean.
const FLOWS_MEMORY: f64 = 0.3e9;

/// The ratio below which a file with few dirty pages is not pushed: who fills the cache pays for it.
const FEW_RATIO: f64 = 0.5;

/// The limits of one file system at a moment, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The flusher works from here on if nothing that it writes is dirtied again.
    least: u64,
    /// The flusher works from here on.
    pub(crate) background: u64,
    /// Writers pause from here on.
    pub(crate) freerun: u64,
    /// Writers sleep from here on until pages became durable, those of small files apart.
    pub(crate) full: u64,
    /// All writers sleep from here on.
    pub(crate) limit: u64,
}

impl Limits {
    /// The zones of a share of `limit` pages, where the flusher begins at `background`, and at `least` of data that is written once.
    pub(crate) fn new(least: u64, background: u64, limit: u64) -> Self {
        let full = limit - limit / 16;
        Self {
            least,
            background,
            freerun: ((background + limit) / 2).min(full - 1),
            full,
            limit,
        }
    }

    /// Pages that are written for room at a time: not so few that the writes are small.
    pub(crate) fn piece(&self) -> u64 {
        self.least / 8
    }

    /// Pages that are written before a flush. Until it they count, a second time if they are dirty again: what is dirtied all the time
    /// has no more of them than what is written once.
    pub(crate) fn flush_after(&self) -> u64 {
        self.least / 2
    }

    /// The zones of what an uncached writer's file has waiting, a part of all: up to twice what the flusher begins for by
    /// itself, since such data is written once. So it always has enough for long writes, and half of the limit is left to others.
    pub(crate) fn of_uncached_file(&self) -> Self {
        Self {
            freerun: self.least,
            full: 2 * self.least,
            limit: 2 * self.least,
            ..*self
        }
    }

    /// Dirty pages up to which a file is a small one.
    fn few(&self) -> u64 {
        self.limit / 64
    }

    /// Where the writers of a file sleep that has `own` pages not durable: a small file may use what
    /// lies above `full`, so that who fills the cache does not stop who writes a little.
    pub(crate) fn stop(&self, own: u64) -> u64 {
        match own <= self.few() {
            true => self.limit,
            false => self.full,
        }
    }

    /// The share of the bandwidth that may be dirtied with `held` pages not durable.
    pub(crate) fn ratio(&self, held: u64) -> f64 {
        let zone = (self.full - self.freerun) as f64;
        let x = held.saturating_sub(self.freerun) as f64 / zone;
        // At `freerun` it has no end; a page's worth of the zone is near enough.
        ((1.0 - x) / x.max(1.0 / zone)).max(0.0)
    }
}

#[derive(Debug)]
pub(crate) struct Pace {
    /// Flows, as a mean over [`FLOWS_MEMORY`].
    flows: f64,
    /// Owed in the window that is open, in nanoseconds.
    owed: u64,
    window_start: u64,
}

impl Pace {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            flows: 1.0,
            owed: 0,
            window_start: now,
        }
    }

    /// Charges `pages` pages to the flow whose clock is `clock`, with the ratio for `held` dirty pages of all
    /// files, of which `own` are the flow's; returns how long its writer pauses, in nanoseconds. Zero if
    /// what is owed is not worth a sleep yet: it stays on the clock.
    pub(crate) fn charge(
        &mut self,
        clock: &mut u64,
        now: u64,
        pages: u64,
        bandwidth: u64,
        (limits, held, own): (Limits, u64, u64),
    ) -> u64 {
        self.count_flows(now);
        let mut ratio = limits.ratio(held);
        if own <= limits.few() {
            ratio = ratio.max(FEW_RATIO);
        }
        let bytes = (pages * PAGE_SIZE as u64) as f64;
        // A ratio of zero makes it infinite; the conversion and the bound see to that.
        let cost = bytes * self.flows / (bandwidth as f64 * ratio) * SECOND as f64;
        let cost = (cost as u64).min(MAX_COST);
        let from = (*clock).max(now.saturating_sub(CREDIT));
        *clock = (from + cost).min(now + 2 * MAX_PAUSE);
        self.owed += clock.saturating_sub(from);
        let ahead = clock.saturating_sub(now);
        if ahead < MIN_PAUSE {
            return 0;
        }
        ahead.min(MAX_PAUSE)
    }

    fn count_flows(&mut self, now: u64) {
        let passed = now.saturating_sub(self.window_start);
        if passed < WINDOW {
            return;
        }
        let weight = passed as f64 / (passed as f64 + FLOWS_MEMORY);
        let seen = self.owed as f64 / passed as f64;
        self.flows = (self.flows + (seen - self.flows) * weight).max(1.0);
        (self.owed, self.window_start) = (0, now);
    }

    /// Pages that a writer should dirty between two charges, so that its pauses stay short.
    pub(crate) fn batch(&self, bandwidth: u64) -> u64 {
        let bytes = bandwidth as f64 / self.flows * (BATCH_COST as f64 / SECOND as f64);
        (bytes as u64 / PAGE_SIZE as u64).max(1)
    }
}
