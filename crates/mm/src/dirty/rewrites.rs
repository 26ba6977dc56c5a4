//! How much of what the flusher writes for room is dirtied again.
//!
//! # Model
//!
//! ```text
//!   over the background limit ──▶ written, and EARLY ──▶ dirtied again: written in vain
//!
//!   in vain, of what was written     both limits
//!        a quarter                   half of the way up      looked at when a 16th of the limit was written
//!        a half or more              all of the way
//!        less than an eighth         a step of eight down, to what is configured at least; when a quarter was
//! ```
//!
//! Data that is written before it is old makes room for more. If programs change it again, the write was in vain: what a database
//! loads into an index is written six times over. So more may be dirty, and the flusher begins later, for those who write the same pages
//! again; those who do not have the limits that are configured.
//!
//! A folio is `EARLY` from such a write to the next store, or until it leaves the cache. What was written because it was old, because
//! memory was short or because somebody asked for it does not count: it would have been written in any case.
//!
//! # Memory ordering
//!
//! All is Relaxed: counts that steer. The flusher alone moves the level.

use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::law::Limits;

/// Steps from the lowest background limit to the highest.
const STEPS: u32 = 8;

/// Pages after which the level is looked at, at least.
const FEWEST: u64 = 256;

/// Parts of the dirty limit that are written before the level rises, and before it falls.
const RISES_AFTER: u64 = 16;
const FALLS_AFTER: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct Rewrites {
    /// Pages that were written early, and those of them that were dirtied again, since the level was looked at.
    early: AtomicU64,
    again: AtomicU64,
    level: AtomicU32,
}

impl Rewrites {
    /// So many pages that were written early are dirty again.
    pub(crate) fn dirtied_again(&self, pages: u64) {
        if !foliocache_sync::planted!(written_in_vain_not_counted) {
            self.again.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// So many pages were written early, where no more than `limits` allow are dirty.
    pub(crate) fn wrote_early(&self, pages: u64, limits: Limits) {
        let early = self.early.fetch_add(pages, Ordering::Relaxed) + pages;
        let again = self.again.load(Ordering::Relaxed);
        let looks_after = |part| early >= FEWEST.max(limits.limit / part);
        let level = self.level.load(Ordering::Relaxed);
        let next = match (again * 8).checked_div(early).unwrap_or(0) {
            eighths @ 2.. if looks_after(RISES_AFTER) => {
                (u64::from(level) + 2 * eighths).min(STEPS.into())
            }
            1 if looks_after(FALLS_AFTER) => level.into(),
            0 if looks_after(FALLS_AFTER) => level.saturating_sub(1).into(),
            _ => return,
        };
        self.early.store(0, Ordering::Relaxed);
        self.again.fetch_sub(again, Ordering::Relaxed);
        self.level.store(next as u32, Ordering::Relaxed);
    }

    /// A limit between that for data which is written once and that for what is written all the time.
    pub(crate) fn between(&self, least: u64, most: u64) -> u64 {
        let level = u64::from(self.level.load(Ordering::Relaxed));
        least + most.saturating_sub(least) * level / u64::from(STEPS)
    }
}
