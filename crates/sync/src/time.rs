//! Time that stands still in a model.
//!
//! # Model
//!
//! The normal build passes on `std::time::Instant` and `std::thread::sleep`. Under loom and shuttle an
//! execution must depend on nothing but the schedule, so every [`Instant`] is the same one and
//! [`sleep`] gives way to another thread.

pub use std::time::Duration;

#[cfg(not(any(loom, shuttle)))]
pub use std::{thread::sleep, time::Instant};

#[cfg(any(loom, shuttle))]
pub use model::{Instant, sleep};

#[cfg(any(loom, shuttle))]
mod model {
    use super::Duration;
    use std::ops::{Add, Sub};

    /// A moment of model time, counted from the start of the execution; [`now`](Self::now) never
    /// advances.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// The one moment there is.
        pub fn now() -> Self {
            // A day in, so that a caller can look back.
            Self(Duration::from_secs(86_400))
        }

        /// Time since this moment.
        pub fn elapsed(&self) -> Duration {
            Self::now().duration_since(*self)
        }

        /// Time since `earlier`, or zero when that is later.
        pub fn duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// Time since `earlier`, or zero when that is later.
        pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// The moment `duration` later.
        pub fn checked_add(&self, duration: Duration) -> Option<Self> {
            self.0.checked_add(duration).map(Self)
        }

        /// The moment `duration` earlier.
        pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
            self.0.checked_sub(duration).map(Self)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;
        fn add(self, duration: Duration) -> Self {
            Self(self.0 + duration)
        }
    }

    impl Sub<Duration> for Instant {
        type Output = Self;
        fn sub(self, duration: Duration) -> Self {
            Self(self.0 - duration)
        }
    }

    impl Sub for Instant {
        type Output = Duration;
        fn sub(self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }

    /// Gives way to another thread; a model knows no time.
    pub fn sleep(_duration: Duration) {
        crate::thread::yield_now();
    }
}
