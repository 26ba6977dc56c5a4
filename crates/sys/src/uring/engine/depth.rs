//! How many long operations to keep in flight: as many as make the device faster, and no more. Short ones count
//! by their bytes.
//!
//! # Model
//!
//! More operations in flight make a device faster up to a point. Beyond it they only lengthen each
//! wait, including those of blocking callers on the same device. No interface reports that point,
//! so it is searched for, one step at a time:
//!
//! ```text
//!            measure ──up──▶ twice the depth: faster by 5 %? ──yes──▶ keep, go on up
//!   Rest ──┤                                                 ──no───▶ back, rest
//!            measure ─down─▶ three quarters: as fast, but for 2 %? ─yes─▶ keep, go on down
//!                                                                  ─no──▶ back, rest
//! ```
//!
//! The speed is work over time while the depth limits the I/O: in intervals between completions
//! during which operations waited for their turn. Without such intervals the depth makes no
//! difference, and nothing is concluded. The work of an operation is its length and a constant.
//!
//! A rest grows each time a step gained nothing, so a device that does not change is left alone,
//! and shrinks after a gain.

/// The cost of one operation besides its bytes, expressed in bytes.
const COST: u64 = 16 << 10;

/// Shortest time that speed is measured over, in nanoseconds.
const SPAN: u64 = 5_000_000;

/// Longest rest, in measurements.
const LONGEST_REST: u32 = 64;

/// The measurement under way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Nothing, for this many intervals.
    Rest(u32),
    /// Whether the depth, twice `from`, is faster than `before`.
    Up { from: usize, before: f64 },
    /// Whether the depth, less than `from`, is as fast as `before`.
    Down { from: usize, before: f64 },
}

/// The depth of one device.
#[derive(Debug)]
pub(super) struct Depth {
    limit: usize,
    max: usize,
    phase: Phase,
    /// Whether the next try goes up.
    up_next: bool,
    rest: u32,
    /// The last completion, in nanoseconds, if operations waited for their turn after it.
    since: Option<u64>,
    time: u64,
    work: u64,
    completions: usize,
}

impl Depth {
    /// A depth between 1 and `max`, which begins at `start`.
    pub(super) fn new(start: usize, max: usize) -> Depth {
        Depth {
            limit: start.clamp(1, max.max(1)),
            max: max.max(1),
            phase: Phase::Rest(0),
            up_next: true,
            rest: 1,
            since: None,
            time: 0,
            work: 0,
            completions: 0,
        }
    }

    /// Operations to keep in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes in that at `now`, in nanoseconds, completions came of operations that were `len` bytes
    /// long. `held_back` says whether others wait for their turn still.
    pub(super) fn completed(
        &mut self,
        now: u64,
        lens: impl Iterator<Item = usize>,
        held_back: bool,
    ) {
        let since = std::mem::replace(&mut self.since, held_back.then_some(now));
        let Some(since) = since else { return };
        self.time += now.saturating_sub(since);
        for len in lens {
            self.work += len as u64 + COST;
            self.completions += 1;
        }
        if self.time >= SPAN && self.completions >= (2 * self.limit).max(32) {
            let speed = self.work as f64 / self.time as f64;
            (self.time, self.work, self.completions) = (0, 0, 0);
            self.measured(speed);
        }
    }

    fn measured(&mut self, speed: f64) {
        match self.phase {
            Phase::Rest(left) if left > 0 => self.phase = Phase::Rest(left - 1),
            Phase::Rest(_) => {
                let up = self.up_next;
                self.up_next = !up;
                if !self.step(up, speed) && !self.step(!up, speed) {
                    self.pause(false);
                }
            }
            Phase::Up { from, before } if speed < before * 1.05 => {
                self.limit = from;
                self.pause(false);
            }
            Phase::Up { .. } => {
                if !self.step(true, speed) {
                    self.pause(true);
                }
            }
            Phase::Down { from, before } if speed < before * 0.98 => {
                self.limit = from;
                self.pause(false);
            }
            // The first speed stays the measure, or many small losses would add up.
            Phase::Down { before, .. } => {
                if !self.step(false, before.max(speed)) {
                    self.pause(true);
                }
            }
        }
    }

    /// Tries another depth against the speed of this one; `false` where there is none.
    fn step(&mut self, up: bool, before: f64) -> bool {
        let from = self.limit;
        if up {
            self.limit = (2 * from).min(self.max);
            self.phase = Phase::Up { from, before };
        } else {
            self.limit = (from * 3 / 4).max(1);
            self.phase = Phase::Down { from, before };
        }
        self.limit != from
    }

    fn pause(&mut self, gained: bool) {
        self.rest = if gained {
            1
        } else {
            (2 * self.rest).min(LONGEST_REST)
        };
        self.phase = Phase::Rest(self.rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Lets a device work whose speed at a depth is `speed`, operations of 1 MiB a millisecond, for
    /// `n` completions; the depths it went through.
    fn drive(depth: &mut Depth, n: usize, mut speed: impl FnMut(usize) -> f64) -> Vec<usize> {
        let mut now = 0.0;
        (0..n)
            .map(|_| {
                now += MS as f64 / speed(depth.limit());
                depth.completed(now as u64, std::iter::once(1 << 20), true);
                depth.limit()
            })
            .collect()
    }

    /// The depth that was used longest in the second half.
    fn settled(depths: &[usize]) -> usize {
        let mut times = std::collections::BTreeMap::new();
        for depth in &depths[depths.len() / 2..] {
            *times.entry(*depth).or_insert(0) += 1;
        }
        let most = times.into_iter().max_by_key(|&(_, times)| times);
        most.expect("a depth").0
    }

    #[test]
    fn a_device_that_takes_any_depth_gets_the_most() {
        let mut depth = Depth::new(8, 64);
        let depths = drive(&mut depth, 20_000, |depth| depth as f64);
        assert_eq!(settled(&depths), 64);
    }

    #[test]
    fn a_device_that_gains_nothing_gets_little() {
        let mut depth = Depth::new(32, 64);
        let depths = drive(&mut depth, 40_000, |_| 1.0);
        assert!(settled(&depths) <= 2, "{}", settled(&depths));
    }

    #[test]
    fn a_device_with_a_knee_is_kept_near_it() {
        for start in [1, 8, 64] {
            let mut depth = Depth::new(start, 64);
            let depths = drive(&mut depth, 60_000, |depth| depth.min(12) as f64);
            let settled = settled(&depths);
            assert!((12..=24).contains(&settled), "from {start}: {settled}");
        }
    }

    #[test]
    fn a_device_that_changes_is_followed() {
        let mut depth = Depth::new(8, 64);
        drive(&mut depth, 20_000, |depth| depth.min(4) as f64);
        let depths = drive(&mut depth, 80_000, |depth| depth as f64);
        assert!(settled(&depths) >= 32, "{}", settled(&depths));
    }

    #[test]
    fn noise_does_not_starve_a_device() {
        let mut random = 1_u64;
        let mut noise = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            0.75 + (random >> 33) as f64 / (1_u64 << 32) as f64
        };
        let mut depth = Depth::new(8, 64);
        let depths = drive(&mut depth, 60_000, |depth| depth.min(8) as f64 * noise());
        assert!(settled(&depths) >= 6, "{}", settled(&depths));
    }

    #[test]
    fn nothing_is_concluded_while_nothing_waits() {
        let mut depth = Depth::new(8, 64);
        for at in 0..10_000 {
            depth.completed(at * MS, std::iter::once(1 << 20), false);
        }
        assert_eq!(depth.limit(), 8);
    }
}
