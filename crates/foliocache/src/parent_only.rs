//! Values that only the process that made them may drop.
//!
//! # Model
//!
//! A forked child inherits the handles of its parent, but not the memory of the cache behind them.
//! Every call on such a handle gives `ECHILD`; the drop at the end would
//! write back, close and free things of the parent. [`ParentOnly`] leaves it out in a child.
//!
//! # Safety
//!
//! The value is dropped at most once: in [`ParentOnly::drop`], which cannot be called by hand.
#![allow(unsafe_code)]

use foliocache_sys::Errno;
use std::mem::ManuallyDrop;
use std::ops::Deref;

/// Knows the process that it belongs to.
pub(crate) trait Forked {
    /// `ECHILD` in a process forked from the cache's. One load.
    fn check_fork(&self) -> Result<(), Errno>;
}

/// A value that is dropped in the process that made it, and forgotten in that process's children.
pub(crate) struct ParentOnly<T: Forked>(ManuallyDrop<T>);

impl<T: Forked> ParentOnly<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Forked> Deref for ParentOnly<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Forked + Clone> Clone for ParentOnly<T> {
    fn clone(&self) -> Self {
        Self::new(T::clone(self))
    }
}

impl<T: Forked> Drop for ParentOnly<T> {
    fn drop(&mut self) {
        if self.check_fork().is_ok() {
            // SAFETY: this is the only place that drops the value, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
