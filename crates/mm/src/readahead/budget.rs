//! The pages that readahead may hold: one budget for a cache, and how well readahead pays for each
//! file.
//!
//! # Model
//!
//! A stream *leases* the pages it has read ahead and that its reader has not reached. It renews the
//! lease when it reads further ahead, and gives it back when it ends. Nobody gets more than a
//! quarter of what is left (but a first window, if there is one): streams that renew come to equal
//! shares without anybody counting them.
//!
//! An *epoch* ends when as many pages as the cap were asked for, granted or not. A lease that is not renewed
//! for [`EPOCHS`] of them *lapses*: its stream stands still, its pages are in the cache like any other, and the
//! budget is for streams that read.
//!
//! # Invariants
//!
//! 1. The leases that have not lapsed are at most the cap whenever one of them grows.
//! 2. A lease is counted in the epoch it names, or has lapsed and is counted nowhere.
//!
//! # Locking
//!
//! *Protects* the counts. *Order*: a leaf; taken inside a handle's lock, once a window. *May
//! block*: for a few instructions.

use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;

use super::{FIRST_ENTRIES, FIRST_WINDOW};
use crate::frames::Frames;

/// Readahead may hold one part in this many of the frames, not yet used.
pub(crate) const READAHEAD_PART: u64 = 8;

/// Epochs after which a lease lapses, the current one counted.
const EPOCHS: u64 = 4;

/// Fewer pages are not worth reading ahead.
const MIN_GRANT: u64 = 4;

/// Pages after which the past use of a file's readahead counts half.
const MEMORY: u32 = 4096;

/// The pages that all streams of one cache may hold read ahead and unused, together.
#[derive(Debug)]
pub(crate) struct ReadaheadBudget {
    /// Relaxed: a limit that changes now and then; a lease renewed just before the change used the
    /// old one.
    cap: AtomicU64,
    counts: LeafMutex<Counts>,
    /// Where the tables of streams are charged.
    frames: Option<Arc<Frames>>,
}

#[derive(Debug, Default)]
struct Counts {
    epoch: u64,
    asked: u64,
    /// Pages leased by epoch, those of the last `EPOCHS`.
    leased: [u64; EPOCHS as usize],
}

#[derive(Debug, Default)]
pub(super) struct Lease {
    pages: u64,
    epoch: u64,
}

impl ReadaheadBudget {
    /// A budget of `cap` pages. Tables of streams are charged to the bound of `frames`.
    pub(crate) fn new(cap: u64, frames: Option<Arc<Frames>>) -> Self {
        Self {
            cap: AtomicU64::new(cap),
            counts: LeafMutex::new(Counts::default()),
            frames,
        }
    }

    /// Whether there is room for one more in a table of at most `most`: it grows as the bound has room for it,
    /// beyond the [`FIRST_ENTRIES`] that the handle is charged.
    pub(super) fn grow<T>(&self, table: &mut Vec<T>, most: usize) -> bool {
        let (len, capacity) = (table.len(), table.capacity());
        if len < capacity || len >= most {
            return len < most;
        }
        let more = capacity.max(FIRST_ENTRIES).min(most - len);
        let charged = if capacity == 0 {
            0
        } else {
            more * size_of::<T>()
        };
        let frames = self.frames.as_ref();
        // The first entries are paid for, also where more is charged than there is room for.
        let granted =
            charged == 0 || frames.is_none_or(|frames| frames.try_charge_metadata(charged as u64));
        if granted {
            table.reserve_exact(more);
        }
        granted
    }

    /// Gives the charge of a table back.
    pub(super) fn uncharge<T>(&self, table: &Vec<T>) {
        let entries = table.capacity().saturating_sub(FIRST_ENTRIES);
        if let Some(frames) = &self.frames {
            frames.uncharge_metadata((entries * size_of::<T>()) as u64);
        }
    }

    /// Changes the cap, in pages. Leases beyond it stay; nothing is granted until they are below it
    /// again. Cheap where nothing changes.
    pub(crate) fn set_cap(&self, pages: u64) {
        if self.cap.load(Ordering::Relaxed) != pages {
            self.cap.store(pages, Ordering::Relaxed);
        }
    }

    /// Pages leased now. Takes the lock: for statistics.
    pub(crate) fn leased(&self) -> u64 {
        self.counts.lock().sum()
    }

    /// Renews `lease` for the `keep` pages that are still ahead of the reader and asks for `want`
    /// more; returns how many were granted.
    pub(super) fn renew(&self, lease: &mut Lease, keep: u64, want: u64) -> u64 {
        let cap = self.cap.load(Ordering::Relaxed);
        let mut counts = self.counts.lock();
        counts.release(lease);
        counts.asked += want;
        if counts.asked >= cap.max(1) {
            counts.asked = 0;
            counts.epoch += 1;
            let at = (counts.epoch % EPOCHS) as usize;
            counts.leased[at] = 0;
        }
        let left = cap.saturating_sub(counts.sum());
        let keep = keep.min(left);
        let left = left - keep;
        let mut granted = want.min((left / 4).max(FIRST_WINDOW.min(left)));
        if granted < want.min(MIN_GRANT) {
            granted = 0;
        }
        *lease = Lease {
            pages: keep + granted,
            epoch: counts.epoch,
        };
        let at = (counts.epoch % EPOCHS) as usize;
        counts.leased[at] += lease.pages;
        granted
    }

    pub(super) fn release(&self, lease: &mut Lease) {
        if lease.pages > 0 {
            self.counts.lock().release(lease);
        }
    }
}

impl Counts {
    fn sum(&self) -> u64 {
        self.leased.iter().sum()
    }

    fn release(&mut self, lease: &mut Lease) {
        let Lease { pages, epoch } = std::mem::take(lease);
        if self.epoch - epoch < EPOCHS {
            self.leased[(epoch % EPOCHS) as usize] -= pages;
        }
    }
}

/// How much of the recent readahead of one file was used.
///
/// Relaxed throughout: a guess that sizes windows. An update that is lost to another at the moment
/// of halving is a page more or less.
#[derive(Debug, Default)]
pub(crate) struct ReadaheadFeedback {
    used: AtomicU32,
    wasted: AtomicU32,
}

impl ReadaheadFeedback {
    /// Notes the first use of a folio of `pages` pages that readahead brought in.
    #[inline]
    pub(crate) fn note_used(&self, pages: u32) {
        self.note(&self.used, pages);
    }

    /// Notes that a folio of `pages` pages left unused.
    pub(crate) fn note_wasted(&self, pages: u32) {
        self.note(&self.wasted, pages);
    }

    fn note(&self, count: &AtomicU32, pages: u32) {
        if count.fetch_add(pages, Ordering::Relaxed) > MEMORY {
            for count in [&self.used, &self.wasted] {
                count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    /// The largest window that is worth it where `max` pages are allowed: the square of the share
    /// that was used, but always a little, for a file to show that it has changed.
    pub(super) fn scale(&self, max: u64) -> u64 {
        let used = u64::from(self.used.load(Ordering::Relaxed));
        let wasted = u64::from(self.wasted.load(Ordering::Relaxed));
        let all = used + wasted;
        // An eighth is what ends of streams cost; a handful of pages is no experience.
        if wasted * 8 <= all || wasted < 4 * FIRST_WINDOW {
            return max;
        }
        (max * used / all * used / all).clamp(MIN_GRANT.min(max), max)
    }
}
