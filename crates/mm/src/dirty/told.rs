//! Log lines about a store, and how few of a kind go through. `told.rs` writes them.

use foliocache_sync::Mutex;
use foliocache_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lines of a kind in an interval, and its milliseconds.
const MOST_LINES: usize = 5;
const INTERVAL_MS: u64 = 10_000;

/// Lets few lines of a kind through.
#[derive(Debug, Default)]
pub(crate) struct Limiter(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// When the interval began, in milliseconds.
    since: u64,
    /// The subjects of the interval's lines.
    told: Vec<(u64, i32)>,
    left_out: u64,
}

impl Limiter {
    /// Whether a line about `what` may be written `now`; with how many were left out before it.
    pub(crate) fn admit(&self, what: (u64, i32), now: u64) -> Option<LeftOut> {
        let mut lines = self.0.lock();
        if lines.told.is_empty() || now.saturating_sub(lines.since) >= INTERVAL_MS {
            lines.since = now;
            lines.told.clear();
        }
        if lines.told.len() >= MOST_LINES || lines.told.contains(&what) {
            lines.left_out += 1;
            return None;
        }
        lines.told.push(what);
        Some(std::mem::take(&mut lines.left_out))
    }

    pub(crate) fn take_left_out(&self) -> LeftOut {
        std::mem::take(&mut self.0.lock().left_out)
    }
}

/// Lines that were not written.
pub(crate) type LeftOut = u64;

/// For a field of a line: absent where there is nothing to say.
pub(crate) fn shown(left_out: LeftOut) -> Option<LeftOut> {
    (left_out > 0).then_some(left_out)
}

/// The lines about one store.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) failures: Limiter,
    pub(crate) slow: Limiter,
    pub(crate) waits: Limiter,
    /// Since when writing fails, and what had been written by then.
    pub(crate) fault: Mutex<Option<(u64, u64)>>,
    /// Bytes written, ever.
    pub(crate) written: AtomicU64,
    /// Reads, writes and flushes that are under way.
    pub(crate) asked: AtomicU64,
    /// When one of them ended last, or began beside no other, in milliseconds.
    pub(crate) answered: AtomicU64,
    /// Whether the log was told that nothing is answered.
    pub(crate) hung: AtomicBool,
}

impl Told {
    // Relaxed, both: a figure.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_file_and_cause_and_few_of_a_kind_in_an_interval() {
        let limiter = Limiter::default();
        assert_eq!(limiter.admit((1, 5), 1_000), Some(0));
        for _ in 0..1_000 {
            assert_eq!(limiter.admit((1, 5), 1_500), None);
        }
        assert_eq!(limiter.admit((1, 28), 2_000), Some(1_000), "another cause");
        for file in 2..100 {
            let admitted = limiter.admit((file, 5), 3_000);
            assert_eq!(admitted.is_some(), file < 2 + MOST_LINES as u64 - 2);
        }
        assert_eq!(limiter.admit((1, 5), 1_000 + INTERVAL_MS), Some(95));
    }
}
