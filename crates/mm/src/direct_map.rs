//! Plain stores and loads in the direct map, by the owner of the frame.
//!
//! # Safety
//!
//! The addresses are those of frames of the cache, which are mapped, readable and writable as long
//! as the cache lives; the caller owns them through a folio lock or because nobody else knows the
//! frame yet. A lockless reader may read meanwhile and validates afterwards.
#![allow(unsafe_code)]

use foliocache_sys::usercopy;
use smallvec::SmallVec;

use crate::frames::BLOCK_SIZE;
use crate::ops::IoSegment;

/// A piece of I/O memory: `len` bytes of a folio's frames.
///
/// The caller keeps the folio locked or under writeback as long as the segment is used.
pub(crate) fn segment<'a>(frame: *mut u8, len: usize) -> IoSegment<'a> {
    debug_assert!(len <= BLOCK_SIZE);
    // SAFETY: the module's premise; references into the direct map are made by `filemap::in_place` under a lock
    // that keeps stores away, and by `filemap::view` of bytes that nobody stores to; what reads a segment expects the bytes to change.
    unsafe { IoSegment::new(frame, len) }
}

/// Appends `next` to a list, joined to its last segment where the two adjoin.
pub(crate) fn push_merged<'a>(list: &mut SmallVec<[IoSegment<'a>; 1]>, next: IoSegment<'a>) {
    match list
        .last_mut()
        .and_then(|last| Some((last.joined(&next)?, last)))
    {
        Some((joined, last)) => *last = joined,
        None => list.push(next),
    }
}

/// The segments of `list` from their byte `start` on.
pub(crate) fn after<'a>(list: &[IoSegment<'a>], start: usize) -> Vec<IoSegment<'a>> {
    let mut skip = start;
    let mut rest = Vec::with_capacity(list.len());
    for segment in list {
        let here = skip.min(segment.len());
        skip -= here;
        if here < segment.len() {
            rest.push(segment.sub(here, segment.len() - here));
        }
    }
    rest
}

/// Copies `len` bytes from one folio's frames to another's; whether the memory of both could be accessed.
pub(crate) fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
    debug_assert!(len <= BLOCK_SIZE);
    // SAFETY: the frames of two different folios, valid for their bytes (the module's premise).
    unsafe { usercopy::copy(to, from, len) }.is_ok()
}

/// Stores `bytes` at the beginning of a folio's frames.
pub(crate) fn store(to: *mut u8, bytes: &[u8]) {
    debug_assert!(bytes.len() <= BLOCK_SIZE);
    // SAFETY: as for `zero`; nobody has a reference to the frames.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}

/// Whether `len` bytes of a folio's frames are zero.
pub(crate) fn is_zero(at: *const u8, len: usize) -> bool {
    debug_assert!(len <= BLOCK_SIZE);
    // SAFETY: inside the frames of one folio (the module's premise); a program may store to them meanwhile.
    (0..len).all(|i| unsafe { at.wrapping_add(i).read_volatile() } == 0)
}

pub(crate) fn zero(at: *mut u8, len: usize) {
    debug_assert!(len <= BLOCK_SIZE);
    // SAFETY: inside the frames of one folio (the module's premise).
    unsafe { std::ptr::write_bytes(at, 0, len) }
}
