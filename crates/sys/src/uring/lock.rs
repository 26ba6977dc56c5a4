//! The blocking locks, shared pointers and the thread of this module: the one place of this crate
//! that names the standard ones, since the crate that wraps them for everybody else lies above.

use std::sync::PoisonError;
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
pub(super) use std::thread::{
    Builder as ThreadBuilder, JoinHandle, current as current_thread, panicking,
};

/// Takes `mutex`; a panic of an earlier holder is not passed on, since no holder here leaves its
/// data half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
