//! A value that signal handlers find without a lock, and that goes once none of them uses it.
//!
//! # Model
//!
//! ```text
//!   free (null) ──publish──▶ published ──close──▶ CLOSING ──free, when no use is left──▶ free
//! ```
//!
//! # Invariants
//!
//! 1. A value is freed after it was closed and `uses` was seen not to be above the uses of the thread that frees it. A use
//!    looks at the value as it begins, and no more.
//!
//! # Memory ordering
//!
//! A use counts itself, and then loads `value`; a closing replaces `value`, and then loads `uses`. The SeqCst
//! fences between the two steps are partners: one of the two sees the other. The Release decrement of a use pairs
//! with the Acquire load of `is_used`: the use's actions are over. The Release of `publish` and of `free` pairs
//! with the Acquire of uses and of the next `publish`.
//!
//! # Safety
//!
//! A pointer in `value` comes from a box, and is followed and freed by invariant 1.
#![allow(unsafe_code)]

use crate::lock::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use core::ptr::{null_mut, without_provenance_mut};

pub(crate) struct Slot<T> {
    pub(crate) value: AtomicPtr<T>,
    pub(crate) uses: AtomicUsize,
}

/// Counts until it is dropped.
pub(crate) struct Use<'a, T>(&'a Slot<T>);

impl<T> Slot<T> {
    /// In `value` while the last uses end.
    const CLOSING: *mut T = without_provenance_mut(1);

    /// Fails with the value when the slot is not free.
    pub(crate) fn publish(&self, value: Box<T>) -> Result<(), Box<T>> {
        let (new, old) = (Box::into_raw(value), null_mut());
        let published = self
            .value
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        match published {
            Ok(_) => Ok(()),
            // SAFETY: from the box, and published nowhere.
            Err(_) => Err(unsafe { Box::from_raw(new) }),
        }
    }

    /// Begins a use, if there is a value and `look` finds something in it.
    pub(crate) fn begin<R>(&self, look: impl FnOnce(&T) -> Option<R>) -> Option<(Use<'_, T>, R)> {
        self.uses.fetch_add(1, Ordering::Relaxed);
        let counted = Use(self);
        fence(Ordering::SeqCst);
        let value = self.value.load(Ordering::Acquire);
        if value.is_null() || value == Self::CLOSING {
            return None;
        }
        // SAFETY: invariant 1: it was there after the use was counted.
        look(unsafe { &*value }).map(|found| (counted, found))
    }

    /// Lets no use begin from now on. Called once for each value.
    pub(crate) fn close(&self) -> *mut T {
        let value = self.value.swap(Self::CLOSING, Ordering::Acquire);
        fence(Ordering::SeqCst);
        value
    }

    /// Whether there are uses of the closed value, besides `own` of the calling thread.
    pub(crate) fn is_used(&self, own: usize) -> bool {
        self.uses.load(Ordering::Acquire) > own
    }

    /// Ends the value.
    ///
    /// # Safety
    ///
    /// `closed` is the result of `close`, and `is_used` returned false since.
    pub(crate) unsafe fn free(&self, closed: *mut T) {
        // SAFETY: the caller's contract, and invariant 1.
        drop(unsafe { Box::from_raw(closed) });
        self.value.store(null_mut(), Ordering::Release);
    }
}

impl<T> Drop for Use<'_, T> {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::Release);
    }
}
