//! A mapping of a file by the kernel, for comparisons with it.
//!
//! # Safety
//!
//! Memory is handed out as a raw pointer; the caller knows whether the file keeps its length, and which pages may
//! be touched.
#![allow(unsafe_code)]

use super::WindowAccess;
use crate::Errno;
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::BorrowedFd;

/// A shared mapping of a file's bytes. Unmapped when it is dropped.
#[derive(Debug)]
#[doc(alias = "mmap")]
pub struct FileMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address range.
unsafe impl Send for FileMapping {}
// SAFETY: the mapping lives until drop; its methods are system calls on the range, which the kernel
// serialises.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the first `len` bytes of a file; a touch beyond its end is SIGBUS. A system call.
    ///
    /// # Errors
    /// `EINVAL` for no bytes, `EACCES` without permission, `ENODEV` for a file without pages,
    /// `ENOMEM` without a mapping.
    pub fn new(
        file: BorrowedFd<'_>,
        len: usize,
        access: WindowAccess,
    ) -> Result<FileMapping, Errno> {
        let flags = MapFlags::SHARED;
        let access = match access {
            WindowAccess::Read => ProtFlags::READ,
            WindowAccess::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory.
        let start = unsafe { mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?;
        Ok(FileMapping { start, len })
    }

    /// Tells the kernel that touches are at random: a fault reads one page. A system call.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn advise_random(&self) -> Result<(), Errno> {
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is ours, and the advice changes no byte.
        Ok(unsafe { madvise(start, self.len, Advice::Random) }?)
    }

    /// Where it begins, at a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its bytes, never 0.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and whoever held pointers into it held this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn stores_are_in_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(10_000).unwrap();
        let mapping = FileMapping::new(file.as_fd(), 10_000, WindowAccess::ReadWrite).unwrap();
        mapping.advise_random().unwrap();
        assert_eq!(mapping.len(), 10_000);
        // SAFETY: the byte lies in the file, whose length does not change, and this test alone uses
        // it.
        unsafe { mapping.as_ptr().wrapping_add(9_999).write(7) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len(), bytes[9_998], bytes[9_999]), (10_000, 0, 7));
        let none = FileMapping::new(file.as_fd(), 0, WindowAccess::Read);
        assert_eq!(none.unwrap_err(), Errno::EINVAL);
    }
}
