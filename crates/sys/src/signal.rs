//! Signals that a thread waits for, or never gets, instead of handlers that interrupt it.
//!
//! # Model
//!
//! [`Signals::block`] keeps the signals from interrupting the calling thread and every thread that
//! it starts afterwards, and makes a descriptor on which they are read one by one. It is called
//! before the first thread is started; a thread from before would still be killed.
//!
//! Threads of the cache are started [`undisturbed`]: handlers of the program run on threads of the program alone. One
//! that touched a mapping on the thread that resolves its faults would wait for itself.
//!
//! # Safety
//!
//! Signal sets live on the stack and are initialised by `sigemptyset` before they are used.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use rustix::process::Signal;

use crate::Errno;

/// The signals that can be waited for, and their names.
const WAITED_FOR: [(Signal, &str); 5] = [
    (Signal::INT, "SIGINT"),
    (Signal::TERM, "SIGTERM"),
    (Signal::HUP, "SIGHUP"),
    (Signal::USR1, "SIGUSR1"),
    (Signal::USR2, "SIGUSR2"),
];

/// The name of a signal that can be waited for, as in the manual.
pub fn signal_name(signal: Signal) -> &'static str {
    let mut known = WAITED_FOR.iter().filter(|(known, _)| *known == signal);
    known.next().map_or("a signal", |(_, name)| name)
}

/// Runs `start`. The threads that it starts block all signals, but those that their own faults raise, whatever the
/// calling thread blocks: it may be resolving a fault.
///
/// Two system calls.
pub fn undisturbed<R>(start: impl FnOnce() -> R) -> R {
    struct Before(libc::sigset_t);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: a mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to a whole set, which the call initialises.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: initialised just now.
    let mut all = unsafe { all.assume_init() };
    let own = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    for signal in own.into_iter().chain([libc::SIGTRAP, libc::SIGSYS]) {
        // SAFETY: a set, and a signal.
        unsafe { libc::sigdelset(&mut all, signal) };
    }
    let mut before = Before(all);
    // SAFETY: both are sets. It fails for a wrong first argument alone.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before.0) };
    start()
}

/// Signals of this process, waited for instead of handled.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Takes all of [`Signal`] over for the life of the process.
    ///
    /// # Errors
    ///
    /// Those of `signalfd(2)`.
    pub fn block() -> Result<Signals, Errno> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the pointer is to a whole set, which the call initialises.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for (signal, _) in WAITED_FOR {
            // SAFETY: the set was initialised above.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal.as_raw()) };
        }
        // SAFETY: the set was initialised above; the old mask pointer is null.
        let masked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        if masked != 0 {
            return Err(Errno::from_raw(masked));
        }
        // SAFETY: the set was initialised above; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        let fd = Errno::result(fd)?;
        // SAFETY: the call just made the descriptor, which has no other owner.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for the next signal, at most for `timeout`; `None` when that is over.
    ///
    /// # Errors
    ///
    /// Those of `poll(2)` and `read(2)`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Signal>, Errno> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            read => _ = read?,
        }
        // It begins with the number.
        let [a, b, c, d, ..] = info;
        let number = libc::c_int::from_ne_bytes([a, b, c, d]);
        let mut known = WAITED_FOR.iter().map(|(signal, _)| *signal);
        Ok(known.find(|signal| signal.as_raw() == number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that the calling thread blocks.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    #[test]
    fn an_undisturbed_thread_gets_its_own_faults_alone() {
        let before = blocked();
        let start = || undisturbed(|| std::thread::spawn(blocked)).join().unwrap();
        let mask = start();
        assert_eq!(blocked(), before);
        for signal in 1..=31 {
            let own = [4, 5, 7, 8, 11, 31].contains(&signal);
            let never = [libc::SIGKILL, libc::SIGSTOP].contains(&signal);
            let blocked = mask & 1 << (signal - 1) != 0;
            assert_eq!(blocked, !own && !never, "signal {signal}");
        }
        // As in a resolver of faults, whose thread blocks all.
        let from_such = std::thread::spawn(move || {
            let (all, none) = (u64::MAX, std::ptr::null_mut::<u64>());
            let (how, call) = (libc::SIG_SETMASK, libc::SYS_rt_sigprocmask);
            // SAFETY: a set of the kernel's size.
            unsafe { libc::syscall(call, how, &raw const all, none, size_of::<u64>()) };
            start()
        });
        assert_eq!(from_such.join().unwrap(), mask);
        let failed = std::panic::catch_unwind(|| undisturbed(|| panic!("no thread")));
        assert!(failed.is_err());
        assert_eq!(blocked(), before);
    }

    #[test]
    fn a_signal_is_waited_for() {
        // On a separate thread, so that the other tests' threads keep their signal masks.
        std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            assert_eq!(signals.wait(Duration::ZERO).unwrap(), None);
            // SAFETY: asks for the handle of this very thread.
            let this = unsafe { libc::pthread_self() };
            for (signal, _) in WAITED_FOR {
                // SAFETY: sends a signal that is blocked to this very thread, which lives.
                unsafe { libc::pthread_kill(this, signal.as_raw()) };
                let waited = signals.wait(Duration::from_secs(5)).unwrap();
                assert_eq!(waited, Some(signal));
            }
        })
        .join()
        .unwrap();
    }
}
