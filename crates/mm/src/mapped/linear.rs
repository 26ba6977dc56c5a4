//! [`LinearFile`]: the state of a file that was mapped. The procedures are in `linear.rs`.

use foliocache_sync::atomic::AtomicBool;
use foliocache_sync::rank::{Rank, RankedRwLock};
use foliocache_sync::{Arc, Mutex};
use std::ops::Range;

use super::held::Held;
use super::window::Window;
use crate::frames::{FrameNumber, LinearRange};

/// The linear ranges of a file, its windows, and its held pages.
pub(crate) struct LinearFile<F> {
    /// Pages that the ranges cover, with linear frames throughout.
    pub(crate) making: Mutex<u64>,
    pub(crate) ranges: RankedRwLock<{ Rank::Leaf as u8 }, Vec<Arc<LinearRange>>>,
    pub(crate) windows: RankedRwLock<{ Rank::IMmap as u8 }, Vec<Arc<Window<F>>>>,
    pub(crate) held: RankedRwLock<{ Rank::Leaf as u8 }, Vec<Held>>,
    pub(crate) wants: Wants,
}

impl<F> Default for LinearFile<F> {
    fn default() -> Self {
        Self {
            making: Mutex::new(0),
            ranges: RankedRwLock::new(Vec::new()),
            windows: RankedRwLock::new(Vec::new()),
            held: RankedRwLock::new(Vec::new()),
            wants: Wants::default(),
        }
    }
}

impl<F> LinearFile<F> {
    pub(crate) fn pages(&self) -> u64 {
        self.ranges.read().last().map_or(0, |range| range.end())
    }

    /// The linear frames of pages, run by run, each with its first page.
    pub(crate) fn runs(&self, pages: Range<u64>) -> Vec<(u64, Range<FrameNumber>)> {
        let runs = |range: &Arc<LinearRange>| {
            let part = range.part(&pages);
            let frame = |page: u64| range.base().add(page as u32);
            (!part.is_empty())
                .then(|| (range.first + part.start, frame(part.start)..frame(part.end)))
        };
        self.ranges.read().iter().filter_map(runs).collect()
    }
}

/// The locks that a mapping waits for and others would share.
#[derive(Default)]
pub(crate) struct Wants {
    pub(crate) i_rwsem: AtomicBool,
    pub(crate) invalidate_lock: AtomicBool,
}
