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
//! A panic while a lock is held releases the lock and does nothing else. The protected data stays as the panicking
//! code left it, so a section that can panic keeps its invariants at every point where it can. The project's own
//! panics are broken invariants, after which no promise holds.
//!
//! # Locking
//!
//! All of them may block, except the `try_` forms. None may be taken in a signal handler.

use crate::facade::imp;
#[cfg(not(shuttle))]
pub use crate::facade::imp::MutexGuard;
pub use crate::facade::imp::{RwLockReadGuard, RwLockWriteGuard};
#[cfg(shuttle)]
pub use crate::model::guard::MutexGuard;
#[cfg(shuttle)]
use crate::model::virtual_time::Queue;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

fn unless_poisoned<G>(held: LockResult<G>) -> G {
    held.unwrap_or_else(PoisonError::into_inner)
}

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
        self.held(unless_poisoned(self.0.lock()))
    }

    /// Takes the mutex if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        unless_held(self.0.try_lock()).map(|guard| self.held(guard))
    }

    #[cfg(not(shuttle))]
    #[inline(always)]
    fn held<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard
    }

    #[cfg(shuttle)]
    fn held<'a>(&'a self, guard: imp::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard::new(&self.0, guard)
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

    /// Takes the lock shared, once there is no exclusive holder. May block. Not to be nested: a
    /// writer waiting in between would deadlock the two.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        unless_poisoned(self.0.read())
    }

    /// Takes the lock exclusively, once it is free. May block.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        unless_poisoned(self.0.write())
    }

    /// Takes the lock shared unless it has an exclusive holder.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        unless_held(self.0.try_read())
    }

    /// Takes the lock exclusively if it is free.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        unless_held(self.0.try_write())
    }
}

/// A condition variable. Wake-ups may be spurious: check the condition in a loop.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: imp::Condvar,
    /// The threads that wait in virtual time.
    #[cfg(shuttle)]
    queue: Queue,
}

impl Condvar {
    const_unless_loom! {
        /// A condition variable without waiters. `const` except under loom.
        pub fn new() -> Self {
            Self {
                inner: imp::Condvar::new(),
                #[cfg(shuttle)]
                queue: Queue::new(),
            }
        }
    }

    /// Releases the mutex, sleeps until notified, and takes the mutex again. Blocks.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        #[cfg(shuttle)]
        return self.wait_in_model(guard, None).0;
        #[cfg(not(shuttle))]
        unless_poisoned(self.inner.wait(guard))
    }

    /// Like [`wait`](Self::wait), for at most `timeout`, of virtual time in a model; also returns whether the wait timed
    /// out. In a model without virtual time it never does: code that makes progress only by a timeout deadlocks there,
    /// and is found.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        #[cfg(shuttle)]
        return self.wait_in_model(guard, Some(timeout));
        #[cfg(not(shuttle))]
        {
            let (guard, result) = unless_poisoned(self.inner.wait_timeout(guard, timeout));
            (guard, result.timed_out())
        }
    }

    #[cfg(shuttle)]
    #[track_caller]
    fn wait_in_model<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> (MutexGuard<'a, T>, bool) {
        self.queue.wait(guard, timeout).unwrap_or_else(|guard| {
            let wait = |guard| unless_poisoned(self.inner.wait(guard));
            (guard.map(wait), false)
        })
    }

    /// Wakes one waiter, if there is one.
    #[track_caller]
    pub fn notify_one(&self) {
        #[cfg(shuttle)]
        if self.queue.notify(false) {
            return;
        }
        self.inner.notify_one();
    }

    /// Wakes all waiters.
    #[track_caller]
    pub fn notify_all(&self) {
        #[cfg(shuttle)]
        if self.queue.notify(true) {
            return;
        }
        self.inner.notify_all();
    }
}
