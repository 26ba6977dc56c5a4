//! Mutex, reader-writer lock and condition variable without poisoning.
//!
//! # Model
//!
//! The three types of `std`, or of the model checker, with the `Result`s taken off. They have no rank;
//! code above this crate uses [`RankedMutex`](crate::rank::RankedMutex) and
//! [`RankedRwLock`](crate::rank::RankedRwLock) unless a lock is a leaf.
//!
//! # Invariants
//!
//! A panic while a lock is held releases the lock and does nothing else. What the lock protects is then
//! as the panicking code left it, so a section that can panic keeps its invariants at every point
//! where it can. The project's own panics are broken invariants, after which no promise holds.
//!
//! # Locking
//!
//! All of them may block, except the `try_` forms. None may be taken in a signal handler.

use crate::facade::imp;
pub use crate::facade::imp::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use crate::time::Duration;
use std::sync::{PoisonError, TryLockError, TryLockResult};

fn unless_held<G>(attempt: TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Mutual exclusion without poisoning: a panic while holding it merely releases it.
#[derive(Debug, Default)]
pub struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    const_unless_loom! {
        /// A mutex that is not held. `const` except under loom.
        pub fn new(value: T) -> Self {
            Self(imp::Mutex::new(value))
        }
    }

    /// Waits for the mutex and takes it. May block.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the mutex if nobody holds it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        unless_held(self.0.try_lock())
    }
}

/// A reader-writer lock without poisoning: a panic while holding it merely releases it.
#[derive(Debug, Default)]
pub struct RwLock<T>(imp::RwLock<T>);

impl<T> RwLock<T> {
    const_unless_loom! {
        /// A lock that is not held. `const` except under loom.
        pub fn new(value: T) -> Self {
            Self(imp::RwLock::new(value))
        }
    }

    /// Waits until nobody holds the lock exclusively, and takes it shared. May block. Not to be
    /// nested: a writer waiting in between would deadlock the two.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody holds the lock, and takes it exclusively. May block.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock shared if nobody holds it exclusively.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        unless_held(self.0.try_read())
    }

    /// Takes the lock exclusively if nobody holds it.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        unless_held(self.0.try_write())
    }
}

/// A condition variable. Wake-ups may be spurious: check the condition in a loop.
#[derive(Debug, Default)]
pub struct Condvar(imp::Condvar);

impl Condvar {
    const_unless_loom! {
        /// A condition variable that nobody waits on. `const` except under loom.
        pub fn new() -> Self {
            Self(imp::Condvar::new())
        }
    }

    /// Releases the mutex, sleeps until notified, and takes the mutex again. Blocks.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`wait`](Self::wait), for at most `timeout`; also says whether the time was up. In a model it never is:
    /// what makes progress only by a timeout deadlocks there, and is thus found.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let (guard, result) = self
            .0
            .wait_timeout(guard, timeout)
            .unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Wakes one waiter, if there is one.
    #[track_caller]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    #[track_caller]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
