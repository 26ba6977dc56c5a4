//! The state that the pins of all files share, and the names of files whose views outlived their folios. The procedures are
//! in `pin.rs`, its `bar.rs`, and `holder.rs`.
//!
//! # Memory ordering
//!
//! The load of `nr_bars` is SeqCst; its partner is the fence in `PinBar::new` of `pin/bar.rs`.

mod revocable;

use foliocache_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use foliocache_sync::rank::LeafMutex;
use std::ops::Range;

use crate::counters::read;
use crate::mapped::overlap;
use crate::worker::Worker;

pub(crate) use revocable::{Callback, Request, Revocables};
pub use revocable::{PinEvent, RevokeReason};

/// How long short pins are waited for unless said, in nanoseconds.
pub(crate) const PIN_WAIT: u64 = 1_000_000_000;
/// Where in [`Pins::pages`] the count of pages begins that devices may write: there are fewer frames than that.
pub(crate) const DEVICE_WRITES: u32 = 32;

/// The state that the pins of all files share.
#[derive(Debug)]
pub(crate) struct Pins {
    /// Pages that are to get no pin, by the file's number. Only ever a few.
    pub(crate) bars: LeafMutex<Vec<(u64, Range<u64>)>>,
    pub(crate) nr_bars: AtomicUsize,
    /// Nanoseconds that are waited for short pins. Relaxed: a setting.
    pub(crate) wait: AtomicU64,
    /// Pages of folios with pins that do not count as held, and shifted by [`DEVICE_WRITES`] of all that devices may write;
    /// not those of memory file systems. Relaxed: they steer.
    pub(crate) pages: AtomicU64,
    /// Those that count as pinned in linear frames, which so cannot be reclaimed. Relaxed: a hint.
    pub(crate) linear: AtomicU64,
    /// Whether the buffer is there that folios are written from which a device may be writing.
    pub(crate) has_stable: AtomicBool,
    /// Pins that are given up on request.
    pub(crate) revocable: LeafMutex<Revocables>,
    /// Calls their callbacks, from the first such pin on.
    pub(crate) revoker: Worker,
}

impl Default for Pins {
    fn default() -> Self {
        Self {
            bars: LeafMutex::new(Vec::new()),
            nr_bars: AtomicUsize::new(0),
            wait: AtomicU64::new(PIN_WAIT),
            pages: AtomicU64::new(0),
            linear: AtomicU64::new(0),
            has_stable: AtomicBool::new(false),
            revocable: LeafMutex::new(Revocables::default()),
            revoker: Worker::default(),
        }
    }
}

impl Pins {
    /// Pages of folios with pins, apart from those of memory file systems and those that count as held.
    pub(crate) fn pages(&self) -> u64 {
        read(&self.pages) & ((1 << DEVICE_WRITES) - 1)
    }

    /// Pages of all folios that devices may write, those of memory file systems apart.
    pub(crate) fn device_writes(&self) -> u64 {
        read(&self.pages) >> DEVICE_WRITES
    }

    pub(crate) fn is_barred(&self, file: u64, pages: &Range<u64>) -> bool {
        // SeqCst: partner is the fence in `PinBar::new`.
        self.nr_bars.load(Ordering::SeqCst) > 0 && self.is_listed(file, pages)
    }

    #[cold]
    fn is_listed(&self, file: u64, pages: &Range<u64>) -> bool {
        let bars = self.bars.lock();
        bars.iter()
            .any(|(of, barred)| *of == file && overlap(barred, pages))
    }
}
