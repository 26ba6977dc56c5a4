//! Clocks, most of them read through the vDSO, without entering the kernel.
//!
//! # Model
//!
//! File times come from [`coarse_realtime`], the clock that the kernel itself stamps inodes with: it
//! moves once a timer tick (1 to 10 ms), so it costs a few nanoseconds on every write. Durations and
//! deadlines come from [`monotonic_ns`], which no clock setting moves back.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time: seconds and nanoseconds since the epoch of its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timespec {
    /// Whole seconds; negative before the epoch.
    pub sec: i64,
    /// Nanoseconds on top, `0..1_000_000_000`, also before the epoch.
    pub nsec: u32,
}

impl Timespec {
    /// The time `sec` seconds and `nsec` nanoseconds after the epoch.
    pub const fn new(sec: i64, nsec: u32) -> Timespec {
        assert!(nsec < 1_000_000_000);
        Timespec { sec, nsec }
    }

    /// Nanoseconds since the epoch; ends at the limits of `i64` (the years 1677 and 2262).
    pub const fn as_nanos(self) -> i64 {
        self.sec
            .saturating_mul(1_000_000_000)
            .saturating_add(self.nsec as i64)
    }
}

impl From<SystemTime> for Timespec {
    fn from(time: SystemTime) -> Timespec {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timespec::new(after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                // The earliest second, `i64::MIN`, is its own negation.
                let sec = (before.as_secs() as i64).wrapping_neg();
                match before.subsec_nanos() {
                    0 => Timespec::new(sec, 0),
                    nsec => Timespec::new(sec - 1, 1_000_000_000 - nsec),
                }
            }
        }
    }
}

impl From<Timespec> for SystemTime {
    /// The epoch for a timestamp that `SystemTime` cannot represent.
    fn from(time: Timespec) -> SystemTime {
        let whole = Duration::from_secs(time.sec.unsigned_abs());
        let base = match time.sec {
            0.. => UNIX_EPOCH.checked_add(whole),
            _ => UNIX_EPOCH.checked_sub(whole),
        };
        base.and_then(|base| base.checked_add(Duration::from_nanos(time.nsec.into())))
            .unwrap_or(UNIX_EPOCH)
    }
}

pub(crate) fn read(clock: ClockId) -> Timespec {
    let time = clock_gettime(clock);
    Timespec {
        sec: time.tv_sec,
        nsec: time.tv_nsec as u32,
    }
}

/// Wall time, as of the last timer tick. Never blocks and makes no system call.
#[inline]
pub fn coarse_realtime() -> Timespec {
    read(ClockId::RealtimeCoarse)
}

/// Wall time, exact. Never blocks and makes no system call.
#[inline]
pub fn realtime() -> Timespec {
    read(ClockId::Realtime)
}

/// Nanoseconds since an arbitrary point, exact, never going back. Never blocks and makes no system call.
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = read(ClockId::Monotonic);
    now.sec as u64 * 1_000_000_000 + u64::from(now.nsec)
}

/// Milliseconds since the same point as of the last timer tick. Never blocks and makes no system call.
#[inline]
pub fn coarse_monotonic_ms() -> u64 {
    let now = read(ClockId::MonotonicCoarse);
    now.sec as u64 * 1_000 + u64::from(now.nsec / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_follows_the_wall_clock() {
        let coarse = coarse_realtime();
        let wall = Timespec::from(SystemTime::now());
        assert!(coarse <= wall);
        assert!(wall.as_nanos() - coarse.as_nanos() < 5_000_000_000);
        assert!(realtime() >= wall);
    }

    #[test]
    fn monotonic_does_not_go_back() {
        let mut last = monotonic_ns();
        for _ in 0..10_000 {
            let now = monotonic_ns();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn coarse_milliseconds_follow() {
        let before = monotonic_ns() / 1_000_000;
        let coarse = coarse_monotonic_ms();
        assert!(coarse <= before + 1 && before - coarse.min(before) < 5_000);
    }

    #[test]
    fn times_before_the_epoch() {
        let time = UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(Timespec::from(time), Timespec::new(-2, 500_000_000));
        assert_eq!(Timespec::from(time).as_nanos(), -1_500_000_000);
        assert_eq!(
            Timespec::from(UNIX_EPOCH - Duration::from_secs(3)),
            Timespec::new(-3, 0)
        );
        for sec in [i64::MIN, -2, -1, 0, 5] {
            for nsec in [0, 1, 800_000_000] {
                let time = Timespec::new(sec, nsec);
                assert_eq!(Timespec::from(SystemTime::from(time)), time);
            }
        }
    }
}
