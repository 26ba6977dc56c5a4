//! The cell of a model that is set once.
//!
//! # Memory ordering
//!
//! `ready` is stored Release after the value is set and loaded Acquire before it is read: they are partners.

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
