//! Cells: the raw one, in loom's shape, and one that is set once.
//!
//! # Model
//!
//! [`UnsafeCell`] hands its pointer to a closure, so that loom sees where an access begins and ends.
//! [`OnceLock`] is `std`'s in the normal build; in a model it is built from a model's mutex and flag,
//! which loom and shuttle can schedule.
//!
//! # Memory ordering
//!
//! The model's `ready` is stored Release after the value is set and loaded Acquire before it is read:
//! they are partners.

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
mod model {
    use crate::Mutex;
    use crate::atomic::{AtomicBool, Ordering};

    /// A cell that is set at most once and read without a lock after that.
    ///
    /// # Memory ordering
    ///
    /// `ready` is stored with `Release` after the value and loaded with `Acquire` before it is
    /// read. loom checks these in place of the orderings inside `std`'s type.
    #[derive(Debug)]
    pub struct OnceLock<T> {
        ready: AtomicBool,
        filling: Mutex<()>,
        value: std::sync::OnceLock<T>,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self::new()
        }
    }

    impl<T> OnceLock<T> {
        const_unless_loom! {
            /// An empty cell. `const` except under loom.
            pub fn new() -> Self {
                Self {
                    ready: AtomicBool::new(false),
                    filling: Mutex::new(()),
                    value: std::sync::OnceLock::new(),
                }
            }
        }

        /// The value, if it is set.
        pub fn get(&self) -> Option<&T> {
            // Acquire pairs with the Release store in `get_or_init`.
            if self.ready.load(Ordering::Acquire) {
                self.value.get()
            } else {
                None
            }
        }

        /// The value, made by `init` if there is none yet. May block while another thread makes it.
        pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
            if let Some(value) = self.get() {
                return value;
            }
            let _filling = self.filling.lock();
            let value = self.value.get_or_init(init);
            // Release pairs with the Acquire load in `get`.
            self.ready.store(true, Ordering::Release);
            value
        }

        /// Sets the value, or gives it back if there is one already.
        ///
        /// # Errors
        ///
        /// The rejected value.
        pub fn set(&self, value: T) -> Result<(), T> {
            let mut value = Some(value);
            self.get_or_init(|| value.take().expect("taken once"));
            value.map_or(Ok(()), Err)
        }
    }
}
