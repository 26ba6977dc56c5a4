//! Two fences in place of the system's asymmetric pair.
//!
//! # Memory ordering
//!
//! `SeqCst`: the fence in [`heavy`] pairs with the one in [`light`].

use crate::atomic::{Ordering, fence};

pub(crate) fn heavy() {
    // SeqCst: see the module's header.
    fence(Ordering::SeqCst);
}

pub(crate) fn light() {
    // SeqCst: see the module's header.
    fence(Ordering::SeqCst);
}

pub(crate) fn register() -> bool {
    true
}
