//! Plain stores and loads in the direct map, by whoever owns the frame.
//!
//! # Safety
//!
//! The addresses are those of frames of the cache, which are mapped, readable and writable as long
//! as the cache lives; the caller owns them through a folio lock or because nobody else knows the
//! frame yet. A lockless reader may read meanwhile and validates afterwards.
#![allow(unsafe_code)]

use crate::types::PAGE_SIZE;

/// Copies `len` bytes from one frame to another.
pub(crate) fn copy(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(len <= PAGE_SIZE);
    // SAFETY: two different frames, each valid for a page (the module's premise).
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Zeroes `len` bytes from `offset` within one frame.
pub(crate) fn zero(frame: *mut u8, offset: usize, len: usize) {
    debug_assert!(offset + len <= PAGE_SIZE);
    // SAFETY: inside one frame, valid for a page (the module's premise).
    unsafe { std::ptr::write_bytes(frame.wrapping_add(offset), 0, len) }
}
