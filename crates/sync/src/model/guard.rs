//! A held mutex of a shuttle model. It knows its mutex, because a wait in virtual time releases that and takes it again.

use crate::facade::imp;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// A held mutex.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a imp::Mutex<T>,
    guard: imp::MutexGuard<'a, T>,
}

impl<'a, T> MutexGuard<'a, T> {
    /// Waits for the mutex and takes it.
    #[track_caller]
    pub(crate) fn lock(mutex: &'a imp::Mutex<T>) -> Self {
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Self::new(mutex, guard)
    }

    /// From shuttle's guard of the mutex.
    pub(crate) fn new(mutex: &'a imp::Mutex<T>, guard: imp::MutexGuard<'a, T>) -> Self {
        Self { mutex, guard }
    }

    /// Releases the mutex. Other threads run before that, and not after.
    pub(crate) fn unlock(self) -> &'a imp::Mutex<T> {
        self.mutex
    }

    /// Does something with shuttle's guard.
    pub(crate) fn map(
        self,
        f: impl FnOnce(imp::MutexGuard<'a, T>) -> imp::MutexGuard<'a, T>,
    ) -> Self {
        Self {
            guard: f(self.guard),
            ..self
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
