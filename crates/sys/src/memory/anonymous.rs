//! Pages of ordinary private memory, for an allocator.
//!
//! # Invariants
//!
//! 1. The range is mapped, readable and writable, from creation to drop, and private to this value.
//!
//! # Safety
//!
//! Memory is handed out as a raw pointer; the caller knows which parts are in use.
#![allow(unsafe_code)]

use super::PAGE_SIZE;
use crate::Errno;
use core::ops::Range;
use core::ptr::{self, NonNull};
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
// SAFETY: a shared range only hands out its address, see `Send` above.
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

    /// Its length in pages.
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
    /// The pages are not in use during the call.
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
        if unmapped.is_err() {
            // At `vm.max_map_count`, part of a larger mapping cannot be unmapped: its memory is freed, its
            // addresses are not.
            // SAFETY: the range is private to this value, which is being dropped.
            let discarded = unsafe { super::discard(self.base.as_ptr().cast(), self.len) };
            debug_assert!(discarded.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_pages_read_as_zeros() {
        let range = AnonymousRange::map(3).expect("memory");
        assert_eq!(range.pages(), 3);
        let byte = |page: usize| range.as_ptr().as_ptr().wrapping_add(page * PAGE_SIZE);
        for page in 0..3 {
            // SAFETY: mapped, and private to this test.
            unsafe { byte(page).write(7) };
        }
        // SAFETY: the page is not in use.
        unsafe { range.discard(1..2) }.expect("it is there");
        // SAFETY: mapped, and initialised by the kernel.
        let bytes = [0, 1, 2].map(|page| unsafe { byte(page).read() });
        assert_eq!(bytes, [7, 0, 7]);
        // SAFETY: the pages do not exist.
        assert_eq!(unsafe { range.discard(2..4) }, Err(Errno::EINVAL));
        assert_eq!(AnonymousRange::map(0).err(), Some(Errno::EINVAL));
        assert_eq!(AnonymousRange::map(usize::MAX).err(), Some(Errno::EINVAL));
    }
}
