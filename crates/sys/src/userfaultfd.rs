//! Page faults of shared memory that the process resolves itself: userfaultfd.
//!
//! # Model
//!
//! A *window* is a shared mapping of a memfd that is registered here. The program can access a page only once
//! [`Userfaultfd::map`] has put the memfd's page into its page tables (`UFFDIO_CONTINUE`). Until then a touch is a
//! fault that goes to a [`Handler`]:
//!
//! | the memfd | the page tables | the program | the fault |
//! |---|---|---|---|
//! | has no page | empty | reads or writes | [`Fault::missing`] |
//! | has a page | empty | reads or writes | a minor one |
//! | has a page | write-protected | writes | a write-protection one |
//!
//! Zapping or punching a write-protected page leaves a mark in the page table, which keeps the table and makes
//! [`Userfaultfd::poison`] fail. A map replaces it, and [`Userfaultfd::allow_writes`] removes it.
//! [`WindowArea::zap`](crate::memory::WindowArea::zap) of whole 2 MiB frees a table without marks (since Linux
//! 6.14).
//!
//! No event of the address space (fork, remap, remove) is requested: an unread event makes every call fail with
//! `EAGAIN`.
//!
//! # Errors
//!
//! Calls on memory that is no window fail with `ENOENT` or `EINVAL` and change nothing. The kernel does not ask
//! of which userfaultfd a window is.
//!
//! # Safety
//!
//! A touch of a window may fault without a resolver, so a window covers only memory of its caller
//! ([`Userfaultfd::register`]). The other calls change only page tables of pages that the memfd has, or make
//! untouched pages: no byte of memory changes. Structures and numbers are those of `linux-raw-sys`, which are made
//! from the kernel's header; those that it lacks stand here. A test compiles all of them against the installed
//! header.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod inline;
#[cfg(target_arch = "x86_64")]
mod slot;
#[cfg(target_arch = "x86_64")]
mod stack;
#[cfg(not(target_arch = "x86_64"))]
mod inline {
    /// There is none.
    #[derive(Debug)]
    pub enum InlineFaults {}
}

pub use inline::InlineFaults;

use crate::Errno;
use linux_raw_sys::general as raw;
use linux_raw_sys::ioctl as opcode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl};
use rustix::mm::UserfaultfdFlags;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

/// The receiver of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Handler {
    /// A thread reads [`Userfaultfd::next_fault`]; the thread that touched the page sleeps until it
    /// is mapped.
    Thread,
    /// The thread that touched the page, by SIGBUS. A system call that touches it fails with `EFAULT`.
    Signal,
}

/// Why there is no userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The process may not have one that resolves faults of the kernel's own accesses, as [`Handler::Thread`] needs.
    Forbidden,
    /// The kernel lacks one of the features: before Linux 6.6, or built without them.
    Unsupported,
    /// Another error of the kernel's.
    Failed(Errno),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Forbidden => f.write_str(
                "userfaultfd is forbidden: set vm.unprivileged_userfaultfd to 1, give access to /dev/userfaultfd, \
                 or give the process CAP_SYS_PTRACE",
            ),
            OpenError::Unsupported => f.write_str(
                "the kernel's userfaultfd lacks minor faults, write protection or poison of shared memory (Linux 6.6 has all)",
            ),
            OpenError::Failed(errno) => write!(f, "userfaultfd: {errno}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// The program's rights to pages that are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read; a write is a fault.
    Read,
    /// Read and write.
    Write,
}

impl Access {
    fn mode(self) -> u64 {
        match self {
            Access::Read => WRITE_PROTECTED,
            Access::Write => 0,
        }
    }
}

/// How far a call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes from the start that are mapped (or poisoned) now and were not before.
    pub bytes: usize,
    /// Why it stopped: `EEXIST` if the next page is mapped already, `EFAULT` if the memfd has none, `EAGAIN` for
    /// either of them after some progress: the next call, which begins there, returns which.
    pub stopped: Option<Errno>,
}

/// A fault that a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Start of the page.
    pub address: usize,
    flags: u64,
}

impl Fault {
    /// Whether the program wants to write.
    pub fn write(&self) -> bool {
        self.flags & u64::from(raw::UFFD_PAGEFAULT_FLAG_WRITE) != 0
    }

    /// Whether the memfd has no page.
    pub fn missing(&self) -> bool {
        let has = raw::UFFD_PAGEFAULT_FLAG_MINOR | raw::UFFD_PAGEFAULT_FLAG_WP;
        self.flags & u64::from(has) == 0
    }
}

/// As [`raw::uffd_msg`] lies in memory: event, padding, flags, address, thread.
const MESSAGE: usize = size_of::<raw::uffd_msg>();

/// `UFFDIO_POISON`, of Linux 6.6.
const POISON: Opcode = rustix::ioctl::opcode::read_write::<raw::uffdio_poison>(
    raw::UFFDIO as u8,
    raw::_UFFDIO_POISON as u8,
);

/// `UFFDIO_COPY_MODE_WP`, and `UFFDIO_CONTINUE_MODE_WP` of Linux 6.4.
const WRITE_PROTECTED: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1 << 0;

const FEATURES: u32 = raw::UFFD_FEATURE_MISSING_SHMEM
    | raw::UFFD_FEATURE_MINOR_SHMEM
    | raw::UFFD_FEATURE_MISSING_HUGETLBFS
    | raw::UFFD_FEATURE_MINOR_HUGETLBFS
    | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | raw::UFFD_FEATURE_POISON;

/// How windows are registered.
const MODES: u32 = raw::UFFDIO_REGISTER_MODE_MISSING
    | raw::UFFDIO_REGISTER_MODE_MINOR
    | raw::UFFDIO_REGISTER_MODE_WP;

/// The calls that a window must allow.
const CALLS: u64 = 1 << raw::_UFFDIO_COPY
    | 1 << raw::_UFFDIO_CONTINUE
    | 1 << raw::_UFFDIO_WRITEPROTECT
    | 1 << raw::_UFFDIO_WAKE
    | 1 << raw::_UFFDIO_POISON;

/// The faults of the windows that are registered with it. Windows stay as they are when it is dropped, but are
/// ordinary mappings then.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
}

impl Userfaultfd {
    /// Opens one. Two to four system calls.
    ///
    /// # Errors
    /// See [`OpenError`]. [`Handler::Signal`] needs no privilege.
    pub fn open(handler: Handler) -> Result<Userfaultfd, OpenError> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let (fd, features) = match handler {
            Handler::Signal => {
                // SAFETY: it sees no memory before a window is registered.
                let fd = unsafe { rustix::mm::userfaultfd(flags | user_mode_only()) };
                (fd.map_err(refused)?, FEATURES | raw::UFFD_FEATURE_SIGBUS)
            }
            Handler::Thread => {
                // SAFETY: it sees no memory before a window is registered.
                let fd = unsafe { rustix::mm::userfaultfd(flags) };
                let fd = match fd {
                    Err(rustix::io::Errno::PERM) => from_device(flags)?,
                    other => other.map_err(refused)?,
                };
                (fd, FEATURES)
            }
        };
        let new = Userfaultfd { fd };
        new.enable(features)?;
        Ok(new)
    }

    fn enable(&self, features: u32) -> Result<(), OpenError> {
        let mut api = raw::uffdio_api {
            api: u64::from(raw::UFFD_API),
            features: u64::from(features),
            ioctls: 0,
        };
        match self.call::<{ opcode::UFFDIO_API as Opcode }, _>(&mut api) {
            Ok(()) => Ok(()),
            Err(Errno::EINVAL) => Err(OpenError::Unsupported),
            Err(errno) => Err(OpenError::Failed(errno)),
        }
    }

    fn call<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each caller passes the structure that the kernel's header names for this code.
        let call = unsafe { Updater::<OPCODE, T>::new(argument) };
        // SAFETY: the kernel writes to the structure alone; the effect on windows is covered by the
        // contract of `register`.
        Ok(unsafe { ioctl(&self.fd, call) }?)
    }

    /// Makes a mapping a window: all its pages have to be mapped here from now on. A system call.
    ///
    /// # Errors
    /// `EINVAL` unless the window is on page boundaries and a shared mapping of a memfd, `EBUSY` if another
    /// userfaultfd has it, `EOPNOTSUPP` where the kernel does not resolve its faults.
    ///
    /// # Safety
    ///
    /// The range is a mapping of the caller's, and whoever touches it until it is unmapped is ready for its faults.
    pub unsafe fn register(&self, window: Range<usize>) -> Result<(), Errno> {
        let mut register = raw::uffdio_register {
            range: range(&window),
            mode: u64::from(MODES),
            ioctls: 0,
        };
        self.call::<{ opcode::UFFDIO_REGISTER as Opcode }, _>(&mut register)?;
        if register.ioctls & CALLS != CALLS {
            self.call::<{ opcode::UFFDIO_UNREGISTER as Opcode }, _>(&mut range(&window))?;
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(())
    }

    /// Maps pages of the memfd, up to the first one that it lacks or that is mapped, and wakes their waiters. One
    /// system call: 1.4 to 4 µs for a page, 50 to 100 µs for 512.
    pub fn map(&self, pages: Range<usize>, access: Access) -> Progress {
        let mut wanted = raw::uffdio_continue {
            range: range(&pages),
            mode: access.mode(),
            mapped: 0,
        };
        let called = self.call::<{ opcode::UFFDIO_CONTINUE as Opcode }, _>(&mut wanted);
        progress(wanted.mapped, called)
    }

    /// Makes missing pages of the memfd from these bytes, up to the first present one, maps them at `to`, and wakes
    /// their waiters. They are mapped nowhere else. One system call: 2 µs for a page.
    pub fn copy(&self, to: usize, from: &[u8], access: Access) -> Progress {
        let mut wanted = raw::uffdio_copy {
            dst: to as u64,
            src: from.as_ptr() as u64,
            len: from.len() as u64,
            mode: access.mode(),
            copy: 0,
        };
        let called = self.call::<{ opcode::UFFDIO_COPY as Opcode }, _>(&mut wanted);
        progress(wanted.copy, called)
    }

    /// Makes touches of unmapped pages raise SIGBUS, up to the first mapped page, and wakes their waiters.
    /// [`Userfaultfd::map`] ends it, and so does [`WindowArea::zap`](crate::memory::WindowArea::zap). A system
    /// call.
    pub fn poison(&self, pages: Range<usize>) -> Progress {
        let mut wanted = raw::uffdio_poison {
            range: range(&pages),
            mode: 0,
            updated: 0,
        };
        let called = self.call::<POISON, _>(&mut wanted);
        progress(wanted.updated, called)
    }

    /// Makes writes to mapped pages fault. Pages that are not mapped stay unprotected. A system call, which
    /// interrupts all processors that run the process.
    ///
    /// # Errors
    /// Those of the module.
    pub fn write_protect(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.set_protection(pages, PROTECT)
    }

    /// Allows writes to mapped pages, and wakes their waiters. A system call.
    ///
    /// # Errors
    /// Those of the module.
    pub fn allow_writes(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.set_protection(pages, 0)
    }

    fn set_protection(&self, pages: Range<usize>, mode: u64) -> Result<(), Errno> {
        let range = range(&pages);
        let mut protection = raw::uffdio_writeprotect { range, mode };
        self.call::<{ opcode::UFFDIO_WRITEPROTECT as Opcode }, _>(&mut protection)
    }

    /// Wakes the waiters of these pages, which retry the touch. A system call.
    ///
    /// # Errors
    /// `EINVAL` unless `pages` is on page boundaries.
    pub fn wake(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.call::<{ opcode::UFFDIO_WAKE as Opcode }, _>(&mut range(&pages))
    }

    /// The next fault for a thread, or none if there is none. A system call that does not wait.
    ///
    /// # Errors
    /// Those of read(2) but `EAGAIN`.
    pub fn next_fault(&self) -> Result<Option<Fault>, Errno> {
        let mut message = [0; MESSAGE];
        match rustix::io::read(&self.fd, &mut message) {
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(read) => {
                debug_assert_eq!(read, MESSAGE);
                debug_assert_eq!(u32::from(message[0]), raw::UFFD_EVENT_PAGEFAULT);
                let word = |at: usize| {
                    let bytes = message[at..].first_chunk().expect("32 bytes");
                    u64::from_ne_bytes(*bytes)
                };
                Ok(Some(Fault {
                    address: word(16) as usize,
                    flags: word(8),
                }))
            }
        }
    }

    /// Waits until there is a fault, or until `stop` can be read; whether it can.
    ///
    /// # Errors
    /// Those of poll(2) but `EINTR`.
    pub fn wait(&self, stop: &OwnedFd) -> Result<bool, Errno> {
        let mut fds = [
            PollFd::new(&self.fd, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => Ok(!fds[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Resolves the faults of an area, for [`resolve_inline`].
pub trait ResolveFault: Send + Sync {
    /// Makes the page of this address accessible for a read, or for a `write`; false gives the program the SIGBUS.
    ///
    /// Called on the faulting thread, on a separate stack of 256 KiB, with all signals blocked and errno saved. It
    /// may wait. A panic ends the process, and so does a fault: SIGSEGV and SIGBUS are blocked, so memory that may
    /// be unmapped must not be touched here, not even with [`usercopy`](crate::usercopy).
    fn resolve(&self, address: usize, write: bool) -> bool;
}

/// Has faults of windows in an area resolved by the threads that touch them, until the value is dropped: of windows
/// of a userfaultfd with [`Handler::Signal`]. Installs the handlers of [`usercopy`](crate::usercopy).
///
/// The drop waits for calls under way, except those of its own thread. Touches of
/// [`usercopy::copy`](crate::usercopy::copy) are not resolved: the copy ends there, and `fault_in_readable` and
/// `fault_in_writable` resolve the fault.
///
/// # Errors
/// `EOPNOTSUPP` on other architectures than x86-64, `EINVAL` for an empty area, `ENOSPC` when 64 areas are in use,
/// `ENOMEM`.
pub fn resolve_inline(
    area: Range<usize>,
    resolver: Box<dyn ResolveFault>,
) -> Result<InlineFaults, Errno> {
    #[cfg(target_arch = "x86_64")]
    return inline::resolve(area, resolver);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (area, resolver);
        Err(Errno::EOPNOTSUPP)
    }
}

/// `done` is the negative error number where there was no progress.
fn progress(done: i64, called: Result<(), Errno>) -> Progress {
    Progress {
        bytes: done.max(0) as usize,
        stopped: called.err(),
    }
}

fn range(bytes: &Range<usize>) -> raw::uffdio_range {
    raw::uffdio_range {
        start: bytes.start as u64,
        len: bytes.len() as u64,
    }
}

fn user_mode_only() -> UserfaultfdFlags {
    UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY)
}

/// From `/dev/userfaultfd`, whose permissions decide.
fn from_device(flags: UserfaultfdFlags) -> Result<OwnedFd, OpenError> {
    let access = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", access, Mode::empty());
    let device = device.map_err(|_| OpenError::Forbidden)?;
    // SAFETY: the call takes flags and touches no memory.
    unsafe { ioctl(device, New(flags)) }.map_err(refused)
}

/// `USERFAULTFD_IOC_NEW`.
struct New(UserfaultfdFlags);

// SAFETY: the argument is a number, and the answer a descriptor that is ours.
unsafe impl Ioctl for New {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::none(raw::UFFDIO as u8, 0)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::without_provenance_mut(self.0.bits() as usize)
    }

    unsafe fn output_from_ptr(new: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the call succeeded, so the number is a new descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(new) })
    }
}

fn refused(error: rustix::io::Errno) -> OpenError {
    match error {
        rustix::io::Errno::PERM => OpenError::Forbidden,
        rustix::io::Errno::NOSYS => OpenError::Unsupported,
        other => OpenError::Failed(other.into()),
    }
}

#[cfg(test)]
mod tests;
