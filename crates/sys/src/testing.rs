//! Calls that only tests and benchmarks make, most of them the kernel's side of a comparison with it.
//!
//! # Safety
//!
//! The memory of a [`FileMapping`] is handed out as a raw pointer; the caller knows whether the file keeps its length, and which
//! pages may be touched.
#![allow(unsafe_code)]

use core::ptr::{self, NonNull};
use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::{preadv2, pwritev2, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::time::ClockId;

use crate::Errno;
use crate::clock;
use crate::fd::{DONTCACHE, Stat, stat_at};
use crate::memory::WindowAccess;

/// Processor time that all threads of the process took, those of its rings among them. A system
/// call; never blocks.
#[doc(alias = "getrusage")]
pub fn process_cpu_time() -> Duration {
    let time = clock::read(ClockId::ProcessCPUTime);
    Duration::new(time.sec as u64, time.nsec)
}

/// Processor time that the calling thread took. A system call; never blocks.
pub fn thread_cpu_time() -> Duration {
    let time = clock::read(ClockId::ThreadCPUTime);
    Duration::new(time.sec as u64, time.nsec)
}

/// One `preadv2(2)` with `RWF_DONTCACHE`; returns the bytes read, which may be fewer than `buf` has. May block.
///
/// # Errors
///
/// Those of `preadv2(2)`, except `EINTR`; `EOPNOTSUPP` where the kernel or the file system does not know the flag.
pub fn pread_dontcache(fd: BorrowedFd<'_>, pos: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    let read = || preadv2(fd, &mut [IoSliceMut::new(buf)], pos, DONTCACHE);
    Ok(retry_on_intr(read)?)
}

/// One `pwritev2(2)` with `RWF_DONTCACHE`; returns the bytes written, which may be fewer than `buf` has. May block.
///
/// # Errors
///
/// Those of `pwritev2(2)`, except `EINTR`; `EOPNOTSUPP` where the kernel or the file system does not know the flag.
pub fn pwrite_dontcache(fd: BorrowedFd<'_>, pos: u64, buf: &[u8]) -> Result<usize, Errno> {
    let write = || pwritev2(fd, &[IoSlice::new(buf)], pos, DONTCACHE);
    Ok(retry_on_intr(write)?)
}

/// Opens the file at `path` from `dir`, close-on-exec, resolved by the kernel with symbolic links followed: see
/// [`stat_path`]. A new file gets the permissions `mode`, less the umask. May block.
///
/// # Errors
///
/// Those of `openat(2)`.
pub fn open_path(
    dir: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| {
        fs::openat(dir, path, flags, Mode::from_raw_mode(mode))
    })?)
}

/// The attributes of the file that `path` leads to from `dir`, resolved by the kernel with symbolic links followed:
/// the path may have several components and leave `dir`. Allocates nothing. May block.
///
/// # Errors
///
/// Those of `statx(2)`.
pub fn stat_path(dir: BorrowedFd<'_>, path: &CStr) -> Result<Stat, Errno> {
    stat_at(dir, path, AtFlags::empty())
}

/// Whether the kernel has `path` from `dir`, links followed, in its cache of names. Asks no file system and caches nothing.
///
/// # Errors
///
/// Those of `openat2(2)` but `EAGAIN`; `EINVAL` before Linux 5.12.
pub fn is_in_kernel_cache(dir: BorrowedFd<'_>, path: &Path) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the calling thread survives a fault that is resolved inline: it does not block SIGBUS. A system call.
pub fn thread_can_fault() -> bool {
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: asks for the mask, and has room for it.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr()) };
    // SAFETY: all zeros is a set, and the call has filled it.
    let blocked = unsafe { blocked.assume_init() };
    // SAFETY: a set, and a signal.
    unsafe { libc::sigismember(&blocked, libc::SIGBUS) == 0 }
}

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
    fn processor_time_is_spent_by_working() {
        let before = process_cpu_time();
        let mut sum = 0_u64;
        while process_cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu_time() > before);
    }

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
