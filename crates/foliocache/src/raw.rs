//! Reads and writes by address, for callers that have no slices: C, and memory that may be bad.
//!
//! # Safety
//!
//! The caller's contract covers the addresses. They go unchanged to the cache's copy, which touches nothing else.
#![allow(unsafe_code)]

use foliocache_mm::IovIter;

use crate::error::Result;
use crate::file::File;

impl File {
    /// As [`File::read_at`], into `len` bytes at `addr`.
    ///
    /// # Errors
    /// As [`File::read_at`], and `EFAULT` if not even the first byte can be written.
    ///
    /// # Safety
    /// The bytes are writable for the whole call and nothing else relies on them. Or the fault handlers are installed
    /// ([`CacheBuilder::fault_handlers`]), and those bytes that are writable may be overwritten.
    ///
    /// [`CacheBuilder::fault_handlers`]: crate::CacheBuilder::fault_handlers
    #[inline]
    pub unsafe fn read_raw_at(&self, addr: *mut u8, len: usize, pos: u64) -> Result<usize> {
        // SAFETY: the caller's contract, for as long as the call lasts.
        let mut iter = unsafe { IovIter::raw_destination(addr, len) };
        self.read_iter(&mut iter, pos, len)
    }

    /// As [`File::write_at`], from `len` bytes at `addr`. If they change meanwhile, the file gets the bytes that were read.
    ///
    /// # Errors
    /// As [`File::write_at`], and `EFAULT` if not even the first byte can be read.
    ///
    /// # Safety
    /// The bytes are readable for the whole call, or the fault handlers are installed
    /// ([`CacheBuilder::fault_handlers`]).
    ///
    /// [`CacheBuilder::fault_handlers`]: crate::CacheBuilder::fault_handlers
    #[inline]
    pub unsafe fn write_raw_at(&self, addr: *const u8, len: usize, pos: u64) -> Result<usize> {
        // SAFETY: the caller's contract, for as long as the call lasts.
        let mut iter = unsafe { IovIter::raw_source(addr, len) };
        self.write_iter(&mut iter, pos, len)
    }
}
