//! [`PageVec`]: a vector backed by its own mapping.
//!
//! # Invariants
//!
//! 1. The first `len` elements are in the range, and no other.
//!
//! # Safety
//!
//! Elements are read and written within the range, whose pages begin on a multiple of every alignment that is
//! allowed, and moved bit by bit, as any vector does.
#![allow(unsafe_code)]

use super::{AnonymousRange, PAGE_SIZE};
use crate::Errno;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::slice;

/// A vector that returns its memory to the kernel as soon as it is freed, where an allocator may keep it. Its room
/// is set explicitly, in whole pages.
#[derive(Debug)]
pub struct PageVec<T> {
    /// None if there is no room.
    range: Option<AnonymousRange>,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T> Default for PageVec<T> {
    fn default() -> Self {
        PageVec {
            range: None,
            len: 0,
            _elements: PhantomData,
        }
    }
}

impl<T> PageVec<T> {
    /// Bytes of memory for this many elements.
    pub const fn bytes_for(room: usize) -> usize {
        (room * size_of::<T>()).next_multiple_of(PAGE_SIZE)
    }

    /// Moves the elements to a place with room for `room` of them, or as many as there are. Takes system calls. As any
    /// allocator it ends the process when there is no memory.
    pub fn set_room(&mut self, room: usize) {
        const {
            assert!(align_of::<T>() <= PAGE_SIZE && size_of::<T>() > 0);
        }
        let bytes = Self::bytes_for(room.max(self.len));
        let range = (bytes > 0).then(|| {
            AnonymousRange::map(bytes / PAGE_SIZE).unwrap_or_else(|_| {
                std::alloc::handle_alloc_error(Layout::new::<[u8; PAGE_SIZE]>())
            })
        });
        if let (Some(from), Some(to)) = (&self.range, &range) {
            // SAFETY: two mappings with room for all elements; from here on they are in the new one
            // (invariant 1).
            unsafe {
                ptr::copy_nonoverlapping(
                    from.as_ptr().as_ptr(),
                    to.as_ptr().as_ptr(),
                    self.len * size_of::<T>(),
                )
            };
        }
        self.range = range;
    }

    fn start(&self) -> ptr::NonNull<T> {
        let range = self.range.as_ref();
        range.map_or(ptr::NonNull::dangling(), |range| range.as_ptr().cast())
    }

    /// Adds an element; panics if there is no room.
    pub fn push(&mut self, element: T) {
        let bytes = self
            .range
            .as_ref()
            .map_or(0, |range| range.pages() * PAGE_SIZE);
        assert!((self.len + 1) * size_of::<T>() <= bytes, "no room");
        // SAFETY: within the range, as just asserted, and not an element yet.
        unsafe { self.start().as_ptr().wrapping_add(self.len).write(element) };
        self.len += 1;
    }

    /// Takes an element out; the last one gets its place.
    pub fn swap_remove(&mut self, at: usize) -> T {
        let last = self.len - 1;
        self.swap(at, last);
        self.len = last;
        // SAFETY: it was the last element, and is none any more.
        unsafe { self.start().as_ptr().wrapping_add(last).read() }
    }
}

impl PageVec<u8> {
    /// `len` zeros; takes a system call, and memory once they are written to.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is used up.
    pub fn zeroed(len: usize) -> Result<PageVec<u8>, Errno> {
        let range = AnonymousRange::map(len.div_ceil(PAGE_SIZE).max(1))?;
        Ok(PageVec {
            range: Some(range),
            len,
            _elements: PhantomData,
        })
    }

    /// A copy of `bytes`. Takes a system call, and whole pages of memory.
    ///
    /// # Errors
    /// As [`PageVec::zeroed`].
    pub fn copy_of(bytes: &[u8]) -> Result<PageVec<u8>, Errno> {
        let mut copy = PageVec::zeroed(bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }
}

impl<T> Deref for PageVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: invariant 1.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PageVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: invariant 1, and borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl<T> Drop for PageVec<T> {
    fn drop(&mut self) {
        let elements: *mut [T] = &mut **self;
        // SAFETY: the elements are initialised (invariant 1) and not used again.
        unsafe { ptr::drop_in_place(elements) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_copy_in_pages_has_the_bytes() {
        for len in [0, 1, PAGE_SIZE, PAGE_SIZE + 1] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let copy = PageVec::copy_of(&bytes).expect("memory");
            assert!(*copy == *bytes, "{len}");
        }
    }

    #[test]
    fn elements_move_with_the_room_and_are_dropped_once() {
        let element = Arc::new(());
        let mut vec = PageVec::default();
        for at in 0..3000_usize {
            if at.is_power_of_two() || at == 0 {
                vec.set_room(2 * at + 1);
            }
            vec.push((at, element.clone()));
        }
        assert_eq!(vec.swap_remove(1000).0, 1000);
        assert_eq!((vec[1000].0, vec.len()), (2999, 2999));
        while vec.len() > 10 {
            drop(vec.swap_remove(10));
        }
        vec.set_room(0);
        assert_eq!(PageVec::<(usize, Arc<()>)>::bytes_for(10), PAGE_SIZE);
        assert!((0..10).eq(vec.iter().map(|(at, _)| *at)));
        assert_eq!(Arc::strong_count(&element), 11);
        drop(vec);
        assert_eq!(Arc::strong_count(&element), 1);
    }
}
