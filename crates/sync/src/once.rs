//! A box that is filled once and read without a lock.
//!
//! # Invariants
//!
//! 1. The pointer is null until [`OnceBox::get_or_init`] fills it, and then that of a box that lives as long as the value.
//!
//! # Memory ordering
//!
//! The pointer is published with Release and loaded with Acquire, partners of one another: the reader sees the
//! contents of the box.
//!
//! # Safety
//!
//! Invariant 1.
#![allow(unsafe_code)]

use crate::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::{fmt, ptr};

/// See the module. One word while it is empty.
pub struct OnceBox<T> {
    filled: AtomicPtr<T>,
    _owned: PhantomData<Box<T>>,
}

impl<T> OnceBox<T> {
    /// The value, if there is one. One load.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: invariant 1.
        unsafe { self.filled.load(Ordering::Acquire).as_ref() }
    }

    /// The value; if there is none, `init` makes it. If two threads fill the box at once, one makes its value in vain.
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        if let Some(filled) = self.get() {
            return filled;
        }
        let new = Box::into_raw(Box::new(init()));
        // Release and Acquire: see the module.
        let won =
            self.filled
                .compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        let filled = match won {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: the losing box was never published.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: invariant 1.
        unsafe { &*filled }
    }
}

impl<T> Default for OnceBox<T> {
    fn default() -> Self {
        Self {
            filled: AtomicPtr::new(ptr::null_mut()),
            _owned: PhantomData,
        }
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        // Relaxed: the drop has exclusive access.
        let filled = self.filled.load(Ordering::Relaxed);
        if !filled.is_null() {
            // SAFETY: invariant 1, and this is its end.
            drop(unsafe { Box::from_raw(filled) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceBox").field(&self.get()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Arc, thread};

    #[test]
    fn all_threads_get_the_value_of_one_and_it_is_dropped_once() {
        let once = OnceBox::default();
        assert!(once.get().is_none());
        let values: Vec<_> = (0..4).map(Arc::new).collect();
        let got: Vec<_> = thread::scope(|scope| {
            let fill = |value| once.get_or_init(|| Arc::clone(value));
            let threads: Vec<_> = (values.iter())
                .map(|value| scope.spawn(move || fill(value)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(got.iter().all(|value| Arc::ptr_eq(value, got[0])));
        drop(once);
        assert!(values.iter().all(|value| Arc::strong_count(value) == 1));
    }
}
