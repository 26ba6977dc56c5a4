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

    /// A moment of model time, counted from the start of the execution; [`now`](Self::now) never
    /// advances.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// The one moment there is.
        pub fn now() -> Self {
            Self(Duration::ZERO)
        }

        /// None.
        pub fn elapsed(&self) -> Duration {
            Duration::ZERO
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

    /// Gives way to another thread; a model knows no time.
    pub fn sleep(_duration: Duration) {
        crate::thread::yield_now();
    }
}
