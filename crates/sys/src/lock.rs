//! The locks, shared pointers and threads of this crate. It uses the standard ones, because the
//! crate that wraps them lies above.

#[cfg(target_arch = "x86_64")]
pub(crate) use core::sync::atomic;
#[cfg(target_arch = "x86_64")]
pub(crate) use std::sync::OnceLock;
use std::sync::PoisonError;
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
pub(crate) use std::thread::{
    Builder as ThreadBuilder, JoinHandle, current as current_thread, panicking, sleep,
};

/// Takes `mutex`; a panic of an earlier holder is not passed on, since no holder here leaves its
/// data half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
