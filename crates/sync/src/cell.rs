//! Cells: the raw one, in loom's shape, and one that is set once.
//!
//! # Model
//!
//! [`UnsafeCell`] hands its pointer to a closure, so that loom sees where an access begins and ends.
//! [`OnceLock`] is `std`'s in the normal build; in a model it is built from a model's mutex and flag,
//! which loom and shuttle can schedule.

pub use std::cell::{Cell, RefCell};

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

#[cfg(not(any(loom, shuttle)))]
pub use std::sync::OnceLock;

#[cfg(any(loom, shuttle))]
pub use model::OnceLock;

/// A cell whose accesses run inside closures, where loom watches them.
///
/// It is `Send` as its content is, and never `Sync`: a type that shares one says why it may.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell holding `value`. `const` except under loom.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Passes on a pointer to read through; the caller's protocol keeps writers away meanwhile.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Passes on a pointer to write through; the caller's protocol keeps everyone else away meanwhile.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(any(loom, shuttle))]
mod model;
