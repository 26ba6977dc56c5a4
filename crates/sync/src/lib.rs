//! Synchronisation for foliocache: the std, loom and shuttle facade, RCU, seqcount, lockref and
//! ranked locks.
//!
//! # Model
//!
//! Everything above this crate takes its atomics, locks, threads and clocks from here, so that one
//! source text runs in three builds:
//!
//! | build | switched by | what it is for |
//! |---|---|---|
//! | normal | nothing | the product |
//! | loom | `RUSTFLAGS="--cfg loom"` | every interleaving and every weak ordering of a small model |
//! | shuttle | `RUSTFLAGS="--cfg shuttle"` | many random interleavings of a large one |
//!
//! Differences between the builds that a caller must know:
//!
//! - **Constructors** are `const` in the normal and the shuttle build, and plain functions under
//!   loom. A static therefore is declared with [`global!`], which makes it anew for every execution
//!   of a model.
//! - **[`Arc`] and [`Weak`]** are those of `std` in all three builds, because loom has no `Weak`
//!   and its `Arc` cannot become an `Arc<dyn Trait>`. So a model sees no ordering through a
//!   reference count; every ordering that code relies on comes from an atomic or a lock of this
//!   crate.
//! - **[`cell::UnsafeCell`]** has loom's shape (`with`, `with_mut`) everywhere, so that loom can see
//!   the accesses.
//! - **Timeouts** never happen in a model ([`Condvar::wait_timeout`]): a model that goes on only
//!   because of a timeout deadlocks, which is how a lost wake-up shows itself. [`time::sleep`] yields,
//!   and [`time::Instant`] stands still. A shuttle model may run in virtual time instead, which passes while all
//!   threads wait (`model::with_virtual_time`).
//! - **Hash maps** of [`collections`] have the same order in each execution of a model.
//! - **`thread::scope`** is missing under loom.
//! - **Thread locals** are declared with [`thread_local!`](crate::thread_local!) and used through
//!   `with` and `try_with` alone.
//!
//! # Locking
//!
//! The order of all locks of the project is [`rank::Rank`]; debug builds check it on every
//! acquisition. The locks here are not poisoned by a panic, see [`Mutex`].
#![deny(unsafe_code)]
#![cfg_attr(
    any(loom, shuttle),
    allow(
        clippy::absurd_extreme_comparisons,
        clippy::reversed_empty_ranges,
        reason = "a model spins zero times before it yields or sleeps"
    )
)]

/// Makes a constructor `const` except under loom, whose objects register with the running model.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $vis const fn $($rest)*

        #[cfg(loom)]
        $(#[$meta])*
        $vis fn $($rest)*
    };
}

pub mod background;
pub mod cell;
pub mod collections;
pub mod durability;
mod facade;
mod lock;
pub mod lockref;
#[cfg(any(loom, shuttle))]
pub mod model;
mod once;
pub mod padded;
mod planted;
mod prefetch;
pub mod rank;
pub mod rcu;
pub mod retired;
pub mod seqcount;
mod shard;
pub mod time;
pub mod wait;
pub mod workers;

pub use facade::{__private, Arc, Weak, atomic, hint, thread};
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use once::OnceBox;
pub use padded::{CachePadded, LazyCounter, ShardedCounter};
#[doc(hidden)]
pub use planted::is_planted;
pub use prefetch::prefetch;
pub use shard::{shard_count, thread_shard};
