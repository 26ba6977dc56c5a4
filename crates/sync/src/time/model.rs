//! The clocks of a model.

use super::{Duration, Timespec};
use std::ops::Add;

/// The time of the clocks when an execution begins: not zero, which stands for "never" in some places.
const BEGIN: Duration = Duration::from_secs(1_000_000);

/// Time since the execution began.
fn now() -> Duration {
    #[cfg(shuttle)]
    return crate::model::virtual_time::now();
    #[cfg(not(shuttle))]
    Duration::ZERO
}

/// A moment of model time, counted from the start of the execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The present moment.
    pub fn now() -> Self {
        Self(now())
    }

    /// Time since then; none, as long as time stands still.
    pub fn elapsed(&self) -> Duration {
        now().saturating_sub(self.0)
    }

    /// Time since `earlier`, or zero when that is later.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `duration` later.
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

/// Nanoseconds since an arbitrary point.
pub fn monotonic_ns() -> u64 {
    (BEGIN + now()).as_nanos() as u64
}

/// Milliseconds since the same point.
pub fn coarse_monotonic_ms() -> u64 {
    (BEGIN + now()).as_millis() as u64
}

/// Wall time.
pub fn coarse_realtime() -> Timespec {
    realtime()
}

/// Wall time.
pub fn realtime() -> Timespec {
    let time = BEGIN + now();
    Timespec::new(time.as_secs() as i64, time.subsec_nanos())
}

/// Whether time passes, so that a wait with a timeout ends: not, unless the model runs in virtual time.
pub fn passes() -> bool {
    #[cfg(shuttle)]
    return crate::model::virtual_time::is_on();
    #[cfg(not(shuttle))]
    false
}

/// Gives way to another thread; in virtual time until the time is up.
pub fn sleep(duration: Duration) {
    #[cfg(shuttle)]
    if crate::model::virtual_time::sleep(duration) {
        return;
    }
    let _ = duration;
    crate::thread::yield_now();
}
