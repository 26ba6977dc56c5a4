//! How the dirty limit is shared among file systems: the shares, and the arithmetic.
//!
//! # Memory ordering
//!
//! `due` and the counts are Relaxed: they steer.

use foliocache_sync::Mutex;
use foliocache_sync::atomic::AtomicU64;
use foliocache_sync::time::Instant;

use super::law::SECOND;

/// The whole dirty limit, in parts.
pub(crate) const WHOLE: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Shares {
    /// The beginning of the throttle's times.
    pub(crate) start: Instant,
    /// When they are due again; zero for at once.
    pub(crate) due: AtomicU64,
    pub(crate) last: Mutex<u64>,
    /// File systems that have dirty files, among which the dirty limit is shared.
    pub(crate) nr_dirty: AtomicU64,
    /// File systems with a store.
    pub(crate) nr_stores: AtomicU64,
}

impl Shares {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            due: AtomicU64::new(0),
            last: Mutex::new(0),
            nr_dirty: AtomicU64::new(0),
            nr_stores: AtomicU64::new(0),
        }
    }

    /// Nanoseconds since the cache was made.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// A share that should be `target`, after `passed` nanoseconds in which the store took `rate` bytes a
/// second; `whole` are the bytes of the whole dirty limit.
pub(crate) fn slew(share: u64, target: u64, passed: u64, rate: u64, whole: u64) -> u64 {
    if target >= share {
        return target;
    }
    let drained = rate as f64 / 2.0 / whole.max(1) as f64 * WHOLE as f64;
    let per_second = drained.max(share as f64 / 4.0);
    let fall = (per_second * passed as f64 / SECOND as f64) as u64;
    share.saturating_sub(fall).max(target)
}

/// The share of a file system of `rate`, of `n` that have `all` together.
pub(crate) fn target(rate: u64, all: u64, n: u64) -> u64 {
    let by_speed = rate as f64 / all.max(1) as f64;
    WHOLE / 4 / n.max(1) + (by_speed * (WHOLE / 4 * 3) as f64) as u64
}
