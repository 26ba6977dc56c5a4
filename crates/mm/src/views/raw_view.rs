//! Views as C has them: a token, an address and a length.
//!
//! # Safety
//!
//! A token is a view in a box of its own. [`View::from_raw`] has it from [`View::into_raw`], once: its caller's contract.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

use super::View;

/// A view that was given away by [`View::into_raw`]: for callbacks of C, which hand a pointer out and get it back.
///
/// Dropping it drops no view.
#[must_use = "without its token the view is kept for ever"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RawView {
    /// What [`View::from_raw`] takes, and nothing else does. Two views never have the same one at the same time.
    pub token: NonNull<c_void>,
    /// The first byte. Other views may have the same one.
    pub address: *const u8,
    /// How many bytes may be read there until the view is taken back.
    pub len: usize,
}

impl View {
    /// Gives the view away as a token the size of a pointer, with the address and the length of its bytes, which stay
    /// readable until [`View::from_raw`] takes it back, on any thread.
    ///
    /// A token that is never given back keeps the memory of the view, which stays counted
    /// ([`Unreclaimable::viewed_pages`](crate::Unreclaimable::viewed_pages), [`MmStats::copied_view_bytes`](crate::MmStats::copied_view_bytes),
    /// [`Mm::holders`](crate::Mm::holders)). Does not block; allocates as many bytes as a `View` has, outside the bound.
    pub fn into_raw(self) -> RawView {
        let (address, len) = (self.as_ptr(), self.len());
        let token = NonNull::from(Box::leak(Box::new(self))).cast();
        RawView {
            token,
            address,
            len,
        }
    }

    /// The view of a token. Neither blocks nor allocates.
    ///
    /// # Safety
    /// The token is from [`View::into_raw`] in this process (or its parent, for a forked child), and was not given back before.
    pub unsafe fn from_raw(token: NonNull<c_void>) -> Self {
        // SAFETY: the caller's contract; it is the box that `into_raw` leaked.
        let view = unsafe { Box::from_raw(token.cast::<Self>().as_ptr()) };
        *view
    }
}
