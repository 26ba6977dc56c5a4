//! How long writers waited: a histogram of fixed size, filled without a lock.
//!
//! # Model
//!
//! Four buckets an octave, from a microsecond (2^10 ns) to half a minute (2^35 ns): a figure taken
//! from it is at most a quarter too high. 101 counters.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::time::Duration;

/// Buckets of an octave, as a power of two.
const STEPS: u32 = 2;
/// The shortest wait that is told from none, as a power of two of nanoseconds.
const FIRST: u32 = 10;
const OCTAVES: u32 = 25;
const BUCKETS: usize = ((OCTAVES as usize) << STEPS) + 1;

#[derive(Debug)]
pub(crate) struct Stalls {
    // Relaxed throughout: a statistic; nothing is ordered by it.
    buckets: [AtomicU64; BUCKETS],
    longest: AtomicU64,
}

/// How long writers waited because too much was dirty. One wait is what a batch of pages, at most
/// 256 KiB, had to wait for; a long write waits several times. Percentiles are at most a
/// quarter above the true ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThrottleStats {
    /// Waits.
    pub waits: u64,
    /// Half of the waits were no longer.
    pub p50: Duration,
    /// 99 of 100 waits were no longer.
    pub p99: Duration,
    /// 999 of 1000 waits were no longer.
    pub p999: Duration,
    /// The longest wait.
    pub max: Duration,
}

fn bucket(nanoseconds: u64) -> usize {
    if nanoseconds >> FIRST == 0 {
        return 0;
    }
    let octave = nanoseconds.ilog2();
    let step = (nanoseconds >> (octave - STEPS)) as usize & ((1 << STEPS) - 1);
    ((((octave - FIRST) as usize) << STEPS) + step + 1).min(BUCKETS - 1)
}

fn end_of(bucket: usize) -> u64 {
    let octave = FIRST + (bucket as u32 >> STEPS);
    let step = bucket as u64 & ((1 << STEPS) - 1);
    (1 << octave) + (step << (octave - STEPS)) - 1
}

impl Stalls {
    pub(crate) fn new() -> Self {
        Self {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            longest: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, nanoseconds: u64) {
        self.buckets[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// The counts so far. Waits that are counted meanwhile may be in them or not.
    pub(crate) fn stats(&self) -> ThrottleStats {
        let counts: [u64; BUCKETS] =
            std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed));
        let waits: u64 = counts.iter().sum();
        let max_ns = self.longest.load(Ordering::Relaxed);
        let percentile = |part: u64, whole: u64| {
            // Waits that may be longer.
            let above = waits - (waits * part).div_ceil(whole);
            let mut left = waits;
            let at = counts.iter().position(|count| {
                left -= count;
                left <= above
            });
            Duration::from_nanos(at.map_or(0, end_of).min(max_ns))
        };
        ThrottleStats {
            waits,
            p50: percentile(50, 100),
            p99: percentile(99, 100),
            p999: percentile(999, 1000),
            max: Duration::from_nanos(max_ns),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_wait_falls_into_a_bucket_that_ends_at_most_a_quarter_above_it() {
        for nanoseconds in (0..1 << 14).chain((14..34).map(|octave| (1 << octave) + 12_345)) {
            let end = end_of(bucket(nanoseconds));
            assert!(end >= nanoseconds, "{nanoseconds} ends at {end}");
            let quarter = nanoseconds.max(1 << FIRST) / 4;
            assert!(end <= nanoseconds.max(1 << FIRST) + quarter);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(end_of(0), (1 << FIRST) - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_waits() {
        let stalls = Stalls::new();
        assert_eq!(stalls.stats(), ThrottleStats::default());
        for wait in 1..=10_000 {
            stalls.record(wait * 1000);
        }
        stalls.record(3_000_000_000);
        let stats = stalls.stats();
        assert_eq!(stats.waits, 10_001);
        assert_eq!(stats.max, Duration::from_secs(3));
        for (seen, exact) in [
            (stats.p50, 5_000_000),
            (stats.p99, 9_900_000),
            (stats.p999, 9_990_000),
        ] {
            let exact = Duration::from_nanos(exact);
            assert!(
                seen >= exact && seen <= exact * 5 / 4,
                "{seen:?} for {exact:?}"
            );
        }
    }

    #[test]
    fn a_percentile_is_never_above_the_longest_wait() {
        let stalls = Stalls::new();
        stalls.record(1_100_000);
        let stats = stalls.stats();
        let only = Duration::from_micros(1100);
        assert_eq!((stats.p50, stats.p999), (only, only));
    }
}
