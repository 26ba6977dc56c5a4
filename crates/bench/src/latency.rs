//! How long each of many operations took.
//!
//! # Model
//!
//! Counts by time: exact below 32 ns, and above it 32 counts between a power of two and the next, so that a
//! percentile is known to a thirtieth.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Percentiles of the time that operations took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Half of the operations took at most this long.
    pub(crate) p50: f64,
    /// 99 of 100.
    pub(crate) p99: f64,
    /// 999 of 1,000.
    pub(crate) p99_9: f64,
}

/// Counts in a doubling of the time.
const STEPS: usize = 32;

/// log2 of [`STEPS`].
const STEPS_LOG: usize = STEPS.ilog2() as usize;

/// The times of one thread.
pub(crate) struct Times(Box<[u32]>);

impl Times {
    pub(crate) fn new() -> Self {
        Self(vec![0; place(u64::MAX) + 1].into())
    }

    #[inline]
    pub(crate) fn add(&mut self, time: Duration) {
        self.0[place(time.as_nanos() as u64)] += 1;
    }

    /// The percentiles of all of them together, which become empty.
    pub(crate) fn drain<'a>(all: impl Iterator<Item = &'a mut Times>) -> Latency {
        let mut counts = vec![0_u64; place(u64::MAX) + 1];
        for times in all {
            for (sum, count) in counts.iter_mut().zip(&mut times.0) {
                *sum += u64::from(std::mem::take(count));
            }
        }
        let total: u64 = counts.iter().sum();
        let within = |share: f64| {
            let wanted = (total as f64 * share).ceil() as u64;
            let mut sum = 0;
            let found = counts.iter().position(|count| {
                sum += count;
                sum >= wanted
            });
            found.map_or(0.0, |place| longest(place) as f64 / 1e3)
        };
        Latency {
            p50: within(0.5),
            p99: within(0.99),
            p99_9: within(0.999),
        }
    }
}

/// The place of a time in nanoseconds.
#[inline]
fn place(ns: u64) -> usize {
    let doubling = (ns.max(1).ilog2() as usize).saturating_sub(STEPS_LOG);
    doubling * STEPS + (ns >> doubling) as usize
}

/// The longest time of a place.
fn longest(place: usize) -> u64 {
    let doubling = (place / STEPS).saturating_sub(1);
    let step = (place - doubling * STEPS) as u64;
    ((step + 1) << doubling).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other() {
        let mut last = 0;
        for ns in (0..100_000).chain([u64::MAX]) {
            let place = place(ns);
            assert!(place == last || place == last + 1 || ns == u64::MAX, "{ns}");
            let longest = longest(place);
            assert!(longest >= ns && longest - ns <= ns / STEPS as u64, "{ns}");
            last = place;
        }
    }

    #[test]
    fn percentiles() {
        let mut times = [Times::new(), Times::new()];
        for us in 1..=500 {
            times[0].add(Duration::from_micros(us));
            times[1].add(Duration::from_micros(500 + us));
        }
        let latency = Times::drain(times.iter_mut());
        for (found, exact) in [
            (latency.p50, 500.0),
            (latency.p99, 990.0),
            (latency.p99_9, 999.0),
        ] {
            assert!(exact <= found && found < exact * 1.04, "{found} {exact}");
        }
        assert_eq!(Times::drain(times.iter_mut()), Latency::default());
    }
}
