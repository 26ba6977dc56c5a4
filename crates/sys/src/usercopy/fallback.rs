//! Architectures without assembly here: a plain copy, and no handlers.
//!
//! # Safety
//!
//! As the functions of the same names in `super`; nothing here survives a fault.
#![allow(unsafe_code)]

/// The result of a routine: always zero bytes left here.
pub(super) struct Outcome {
    pub(super) left: usize,
    pub(super) side: usize,
}

pub(super) const SOURCE: usize = 1;

const DONE: Outcome = Outcome { left: 0, side: 0 };

/// # Safety
///
/// As [`super::copy`] without handlers.
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome {
    // SAFETY: the caller's contract.
    unsafe { core::ptr::copy(src, dst, len) };
    DONE
}

/// # Safety
///
/// As [`super::zero`] without handlers.
#[inline]
pub(super) unsafe fn zero(dst: *mut u8, len: usize) -> Outcome {
    // SAFETY: the caller's contract.
    unsafe { core::ptr::write_bytes(dst, 0, len) };
    DONE
}

/// # Safety
///
/// Without handlers it is never called.
pub(super) unsafe fn touch_read(_at: *const u8) -> bool {
    false
}

/// # Safety
///
/// As [`touch_read`].
pub(super) unsafe fn touch_write(_at: *const u8) -> bool {
    false
}
