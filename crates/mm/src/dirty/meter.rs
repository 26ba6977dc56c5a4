//! The meter: bytes a second that a file system's store takes.
//!
//! # Model
//!
//! Only time in which there was something to write counts, flushes included. Only work above the
//! background limit is counted: a small write with its flush says what a small write costs, not what the
//! store takes.
//!
//! The rate is a mean over time, each sample weighted by how long it took, so that it is right however work
//! and flushes fall into the samples. At first it remembers no longer than it has measured, so a wrong guess
//! of the beginning is soon forgotten. Beside it stands the speed of the writes alone.
//!
//! # Invariants
//!
//! 1. While work is under way and nothing comes of it, the rate that is told falls: who hangs is slow.

use super::law::SECOND;

/// Shortest time that makes a sample.
const WINDOW: u64 = 50_000_000;

/// Time over which the rate is a mean.
const MEMORY: u64 = SECOND;

/// The weight of the first guess, in time.
const GUESS: u64 = SECOND / 10;

/// Bytes over which the speed of writes is a mean.
const WRITES_MEMORY: u64 = 8 << 20;

/// The speed that is assumed of a store that nothing is known of, in bytes a second.
const INITIAL: f64 = (100 << 20) as f64;

/// No store is taken to be slower, bytes a second: a rate of nothing would stop the law.
const SLOWEST: f64 = (64 << 10) as f64;

/// Measures one store. Times are nanoseconds from any start.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    rate: f64,
    /// Time that went into it, at most [`MEMORY`].
    measured: u64,
    /// Bytes a second of writes alone, flushes left out.
    write_speed: f64,
    /// When the interval began that is open while there is work.
    since: Option<u64>,
    /// Of the sample that is open.
    bytes: u64,
    time: u64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            rate: INITIAL,
            measured: GUESS,
            write_speed: INITIAL,
            ..Self::default()
        }
    }

    pub(crate) fn begin(&mut self, now: u64) {
        self.since = Some(now);
    }

    pub(crate) fn end(&mut self, now: u64) {
        self.sample(now);
        self.since = None;
    }

    /// The store took `bytes` bytes in `took` nanoseconds, for a pass or for somebody else.
    pub(crate) fn wrote(&mut self, now: u64, bytes: u64, took: u64) {
        if took > 0 && bytes > 0 {
            let seen = bytes as f64 / took as f64 * SECOND as f64;
            // Writes of much count for more: what a small one takes is mostly its latency.
            let weight = bytes as f64 / (bytes + WRITES_MEMORY) as f64;
            self.write_speed += (seen - self.write_speed) * weight;
        }
        if self.since.is_some() {
            self.bytes += bytes;
            self.sample(now);
        }
    }

    fn sample(&mut self, now: u64) {
        let since = self.since.replace(now).unwrap_or(now);
        self.time += now.saturating_sub(since);
        if self.time >= WINDOW {
            self.rate = self.blend(self.time);
            self.measured = (self.measured + self.time).min(MEMORY);
            (self.bytes, self.time) = (0, 0);
        }
    }

    /// The rate with a sample of `time` nanoseconds taken in.
    fn blend(&self, time: u64) -> f64 {
        let seen = self.bytes as f64 / time as f64 * SECOND as f64;
        let weight = time as f64 / (time + self.measured) as f64;
        (self.rate + (seen - self.rate) * weight).max(SLOWEST)
    }

    /// Bytes a second, with what is under way taken in (invariant 1).
    pub(crate) fn rate(&self, now: u64) -> u64 {
        let time = self.time + self.since.map_or(0, |since| now.saturating_sub(since));
        match time >= WINDOW {
            true => self.blend(time).min(self.rate) as u64,
            false => self.rate as u64,
        }
    }

    pub(crate) fn write_speed(&self) -> u64 {
        self.write_speed.max(SLOWEST) as u64
    }
}
