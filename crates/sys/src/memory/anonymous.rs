//! Pages of ordinary private memory, for an allocator.
//!
//! # Invariants
//!
//! 1. The range is mapped, readable and writable, from creation to drop, and nobody else's.
//!
//! # Safety
//!
//! Memory is handed out as a raw pointer; what is in use, and by whom, is the caller's knowledge.
#![allow(unsafe_code)]

use super::PAGE_SIZE;
use crate::Errno;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::{self, NonNull};
use core::slice;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A mapping of zeros that costs memory where it is touched, page by page. A forked child has a copy.
#[derive(Debug)]
pub struct AnonymousRange {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address range; every method is a system call on it, which the kernel
// serialises.
unsafe impl Send for AnonymousRange {}
// SAFETY: as above.
unsafe impl Sync for AnonymousRange {}

impl AnonymousRange {
    /// Maps `pages` pages. Takes a system call, and no memory yet.
    ///
    /// # Errors
    /// `EINVAL` for none or too many, `ENOMEM` when the address space is used up.
    pub fn map(pages: usize) -> Result<AnonymousRange, Errno> {
        let len = pages.checked_mul(PAGE_SIZE).ok_or(Errno::EINVAL)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(AnonymousRange { base, len })
    }

    /// Where it begins, at a page.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Pages of it.
    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    /// Gives the memory of some pages back, by their numbers; when they are touched next they are zeros.
    /// A system call.
    ///
    /// # Errors
    /// `EINVAL` for pages that are not there.
    ///
    /// # Safety
    ///
    /// Nobody uses these pages during the call.
    pub unsafe fn discard(&self, pages: Range<usize>) -> Result<(), Errno> {
        if pages.start > pages.end || pages.end > self.pages() {
            return Err(Errno::EINVAL);
        }
        let start = self.base.as_ptr().wrapping_add(pages.start * PAGE_SIZE);
        // SAFETY: the pages are ours (invariant 1), and not in use, by the caller's contract.
        unsafe { super::discard(start.cast(), pages.len() * PAGE_SIZE) }
    }
}

impl Drop for AnonymousRange {
    fn drop(&mut self) {
        // SAFETY: the range is ours (invariant 1), and whoever held pointers into it held this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Bytes in pages of their own. The kernel has these back at once when the value is dropped; those of an
/// allocator may stay with the process.
#[derive(Debug)]
pub struct PageBytes {
    range: AnonymousRange,
    /// Bytes of the range that are in use.
    len: usize,
}

impl PageBytes {
    /// A copy of `bytes`. Takes a system call, and whole pages of memory.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is used up.
    pub fn copy_of(bytes: &[u8]) -> Result<PageBytes, Errno> {
        let mut copy = PageBytes::zeroed(bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }

    /// `len` zeros; takes a system call, and memory once they are written to.
    ///
    /// # Errors
    /// As [`PageBytes::copy_of`].
    pub fn zeroed(len: usize) -> Result<PageBytes, Errno> {
        let range = AnonymousRange::map(len.div_ceil(PAGE_SIZE).max(1))?;
        Ok(PageBytes { range, len })
    }
}

impl Deref for PageBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, as long, initialised by the kernel, and nobody else's (invariant 1).
        unsafe { slice::from_raw_parts(self.range.as_ptr().as_ptr(), self.len) }
    }
}

impl DerefMut for PageBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.range.as_ptr().as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_pages_has_the_bytes() {
        for len in [0, 1, PAGE_SIZE, PAGE_SIZE + 1] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let copy = PageBytes::copy_of(&bytes).expect("memory");
            assert!(*copy == *bytes, "{len}");
        }
    }

    #[test]
    fn what_was_discarded_is_zeros() {
        let range = AnonymousRange::map(3).expect("memory");
        assert_eq!(range.pages(), 3);
        let byte = |page: usize| range.as_ptr().as_ptr().wrapping_add(page * PAGE_SIZE);
        for page in 0..3 {
            // SAFETY: mapped, and nobody else's.
            unsafe { byte(page).write(7) };
        }
        // SAFETY: nobody uses the page.
        unsafe { range.discard(1..2) }.expect("it is there");
        // SAFETY: mapped, and initialised by the kernel.
        let bytes = [0, 1, 2].map(|page| unsafe { byte(page).read() });
        assert_eq!(bytes, [7, 0, 7]);
        // SAFETY: there is no such page.
        assert_eq!(unsafe { range.discard(2..4) }, Err(Errno::EINVAL));
        assert_eq!(AnonymousRange::map(0).err(), Some(Errno::EINVAL));
        assert_eq!(AnonymousRange::map(usize::MAX).err(), Some(Errno::EINVAL));
    }
}
