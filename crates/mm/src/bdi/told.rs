//! What the log is told of a store: what fails, what is slow, who waits for it, and when it is well again.
//!
//! # Model
//!
//! A line for each file and cause, and [`MOST_LINES`] lines of a kind, in [`INTERVAL_MS`]. What is left out is counted, and the
//! count stands in the next line of the kind, or in the line that tells of the recovery. Failures and recoveries are for
//! whoever runs the program; slow I/O and waits are on the level below.
//!
//! # Locking
//!
//! Leaves. Nothing is written to the log with one held.

use foliocache_sync::Mutex;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::time::Duration;
use foliocache_sys::Errno;
use foliocache_sys::clock::coarse_monotonic_ms;

use super::BackingDevInfo;
use crate::address_space::AddressSpace;
use crate::show::{Bytes, Time};

/// The target of the lines that tell that something works again.
const RECOVERY: &str = "foliocache::recovery";

/// An I/O that takes longer is slow, in milliseconds.
const SLOW_MS: u64 = 1_000;

/// A wait of a writer that is told of, in milliseconds.
const LONG_WAIT_MS: u64 = 100;

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
    /// What lines of the interval were about.
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

    fn take_left_out(&self) -> LeftOut {
        std::mem::take(&mut self.0.lock().left_out)
    }
}

/// Lines that were not written.
pub(crate) type LeftOut = u64;

/// For a field of a line: absent where there is nothing to say.
pub(crate) fn shown(left_out: LeftOut) -> Option<LeftOut> {
    (left_out > 0).then_some(left_out)
}

/// What was told of one store.
#[derive(Debug, Default)]
pub(super) struct Told {
    failures: Limiter,
    slow: Limiter,
    waits: Limiter,
    /// Since when writing fails, and what had been written by then.
    fault: Mutex<Option<(u64, u64)>>,
    /// Bytes written, ever.
    written: AtomicU64,
}

impl Told {
    // Relaxed, both: a figure.
    pub(super) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

impl BackingDevInfo {
    /// A write, a flush or a read of a file failed.
    pub(crate) fn tell_failure(
        &self,
        mapping: &AddressSpace,
        what: &'static str,
        bytes: Option<u64>,
        error: Errno,
    ) {
        let about = (mapping.id(), error.raw());
        let Some(left_out) = self.told.failures.admit(about, coarse_monotonic_ms()) else {
            return;
        };
        let (file, left_out) = (mapping.name(), shown(left_out));
        let bytes = bytes.map(|bytes| tracing::field::display(Bytes(bytes)));
        tracing::warn!(file, bytes, %error, left_out, "{what}");
    }

    /// An I/O of a file took `took` milliseconds.
    #[inline]
    pub(crate) fn tell_slow(
        &self,
        mapping: &AddressSpace,
        what: &'static str,
        bytes: u64,
        took: u64,
    ) {
        if took >= SLOW_MS {
            self.tell_slow_io(mapping, what, bytes, took);
        }
    }

    #[cold]
    fn tell_slow_io(&self, mapping: &AddressSpace, what: &str, bytes: u64, took: u64) {
        let Some(left_out) = self
            .told
            .slow
            .admit((mapping.id(), 0), coarse_monotonic_ms())
        else {
            return;
        };
        let took = Time(Duration::from_millis(took));
        let (file, bytes, left_out) = (mapping.name(), Bytes(bytes), shown(left_out));
        tracing::info!(file, %bytes, %took, left_out, "slow I/O: {what}");
    }

    /// A writer waited because too much was dirty, `took` nanoseconds.
    pub(super) fn tell_wait(&self, took: u64) {
        if took / 1_000_000 < LONG_WAIT_MS {
            return;
        }
        if let Some(left_out) = self.told.waits.admit((0, 0), coarse_monotonic_ms()) {
            let (took, left_out) = (Time(Duration::from_nanos(took)), shown(left_out));
            tracing::info!(
                store = self.name(), waited = %took, left_out,
                "writers wait: they write faster than the store takes it"
            );
        }
    }

    /// Writing to the store begins to fail, or works again.
    pub(super) fn tell_change(&self, error: Option<Errno>) {
        let (now, written) = (coarse_monotonic_ms(), self.told.written());
        let mut fault = self.told.fault.lock();
        let (since, before) = match (error, *fault) {
            (None, Some(fault)) => fault,
            (Some(_), None) => {
                *fault = Some((now, written));
                return;
            }
            _ => return,
        };
        *fault = None;
        drop(fault);
        let after = Time(Duration::from_millis(now.saturating_sub(since)));
        let written = Bytes(written - before);
        let left_out = shown(self.told.failures.take_left_out());
        tracing::info!(
            target: RECOVERY, store = self.name(), left_out,
            "the store takes writes again after {after}; {written} written"
        );
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
