//! Clocks, and time that stands still in a model.
//!
//! # Model
//!
//! The normal build passes on `std::time::Instant`, `std::thread::sleep` and the clocks of `foliocache-sys`. Under loom and
//! shuttle an execution must depend on nothing but the schedule: every moment is the same one, and [`sleep`] gives way
//! to another thread. A shuttle model may run in virtual time instead, see `virtual_time`.

pub use foliocache_sys::clock::Timespec;
pub use std::time::Duration;

#[cfg(not(any(loom, shuttle)))]
pub use foliocache_sys::clock::{coarse_monotonic_ms, coarse_realtime, monotonic_ns, realtime};
#[cfg(not(any(loom, shuttle)))]
pub use std::{thread::sleep, time::Instant};

/// Whether time passes, so that a wait with a timeout ends: not in a model, unless it runs in virtual time.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub const fn passes() -> bool {
    true
}

#[cfg(any(loom, shuttle))]
pub use model::{
    Instant, coarse_monotonic_ms, coarse_realtime, monotonic_ns, passes, realtime, sleep,
};

#[cfg(any(loom, shuttle))]
mod model;
