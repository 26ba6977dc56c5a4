//! Set-up of a program's own process before it starts its first thread.
//!
//! # Model
//!
//! ```text
//!  take_variable, inherited_descriptor ──▶ fork_into_background ──▶ threads ──▶ detach_standard_streams
//! ```
//!
//! The environment is changed, and the process is forked, only while it has one thread. Each call looks for that by itself.
//!
//! # Safety
//!
//! A fork copies the calling thread alone, and changing the environment is safe only while no thread reads it: both calls
//! count the threads first. The calling thread is the only one that could start another in between.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::FdFlags;
use rustix::process::{WaitOptions, setsid, waitpid};

use crate::Errno;

/// Which process this is after [`fork_into_background`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The one that called it.
    Starter,
    /// The one in the background.
    Background,
}

/// `EBUSY` if the process has a second thread.
fn one_thread() -> Result<(), Errno> {
    match fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(Errno::EBUSY),
    }
}

/// The value of an environment variable, which is removed: processes that are started later do not get it.
///
/// # Errors
///
/// `EBUSY` if the variable is set and the process has a second thread.
pub fn take_variable(name: &str) -> Result<Option<OsString>, Errno> {
    let Some(value) = env::var_os(name) else {
        return Ok(None);
    };
    one_thread()?;
    // SAFETY: no other thread reads the environment, see the module's header.
    unsafe { env::remove_var(name) };
    Ok(Some(value))
}

/// A descriptor that the process was started with. It belongs to the caller from now on, and is closed on `exec`.
///
/// `FD_CLOEXEC` distinguishes the process's own descriptors from inherited ones: the kernel would have closed an
/// inherited one that has it, and this library and the standard library set it on everything they open.
///
/// # Errors
///
/// `EINVAL` for the standard streams, `EBADF` if it is not open or not inherited.
pub fn inherited_descriptor(number: i32) -> Result<OwnedFd, Errno> {
    if number <= 2 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: asks for flags, and fails for a number that is not open.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if Errno::result(flags)? & libc::FD_CLOEXEC != 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: open and inherited, so nothing in this process owns it; a second call finds the flag set below.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Forks a process into a new session that it does not lead: it has no terminal and cannot get one. It is no child
/// of the caller. Returns in both processes. Blocks for the time of two forks.
///
/// # Errors
///
/// `EBUSY` if the process has a second thread; those of `fork(2)` and `setsid(2)`. There is no second process then.
pub fn fork_into_background() -> Result<Forked, Errno> {
    one_thread()?;
    let middle = fork()?;
    if middle != 0 {
        let pid = rustix::process::Pid::from_raw(middle);
        let ended = loop {
            match waitpid(pid, WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                ended => break ended?,
            }
        };
        return match ended.and_then(|(_, status)| status.exit_status()) {
            Some(0) => Ok(Forked::Starter),
            Some(errno) => Err(Errno::from_raw(errno)),
            None => Err(Errno::ECHILD),
        };
    }
    // The process in the middle: its exit status says how it went.
    match setsid().map_err(Errno::from).and_then(|_| fork()) {
        Ok(0) => Ok(Forked::Background),
        // SAFETY: ends this process at once. Exit handlers run in the process that started it.
        Ok(_) => unsafe { libc::_exit(0) },
        // SAFETY: ends this process at once. Error numbers are small.
        Err(errno) => unsafe { libc::_exit(errno.raw()) },
    }
}

/// Zero in the child.
fn fork() -> Result<i32, Errno> {
    // SAFETY: the process has one thread, see the module's header: the child finds no lock held.
    Errno::result(unsafe { libc::fork() })
}

/// Standard input and output become `/dev/null`, and standard error becomes `error`, or `/dev/null` without it.
///
/// # Errors
///
/// Those of opening `/dev/null`.
pub fn detach_standard_streams(error: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    set_standard_error(error.unwrap_or(null.as_fd()))
}

/// Standard error becomes `fd`.
///
/// # Errors
///
/// Those of `dup2(2)`.
pub fn set_standard_error(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    Ok(rustix::stdio::dup2_stderr(fd)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    /// Runs `check` while the process has two threads at least.
    fn beside_a_thread(check: impl FnOnce()) {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        check();
        drop(end);
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn process_with_threads_is_not_forked_and_keeps_its_environment() {
        beside_a_thread(|| {
            assert_eq!(fork_into_background(), Err(Errno::EBUSY));
            assert_eq!(take_variable("PATH"), Err(Errno::EBUSY));
            assert!(env::var_os("PATH").is_some());
            assert_eq!(take_variable("FOLIOCACHE_NO_SUCH_VARIABLE"), Ok(None));
        });
    }

    #[test]
    fn inherited_descriptor_is_taken_once_and_own_ones_never() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let own = writer.as_raw_fd();
        assert_eq!(inherited_descriptor(own).unwrap_err(), Errno::EBADF);
        // SAFETY: a new descriptor without the flag, as an inherited one is.
        let number = unsafe { libc::dup(own) };
        let taken = inherited_descriptor(number).unwrap();
        assert_eq!(inherited_descriptor(number).unwrap_err(), Errno::EBADF);
        drop(writer);
        fs::File::from(taken).write_all(b"x").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert_eq!(inherited_descriptor(2).unwrap_err(), Errno::EINVAL);
        // The highest number that can be had is not open.
        assert_eq!(inherited_descriptor(i32::MAX).unwrap_err(), Errno::EBADF);
    }
}
