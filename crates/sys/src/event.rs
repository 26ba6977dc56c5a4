//! A descriptor that is readable from `set` to `clear`. Threads that wait in poll(2) are woken with
//! it.

use crate::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{BorrowedFd, OwnedFd};

/// See the module.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// One that is not set. Takes a descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Event, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Event(eventfd(0, flags)?))
    }

    /// Sets it. A system call; does not block.
    pub fn set(&self) {
        // It fails only where it was set 2^64 times before.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until it is set, which clears it, or until `other` can be read, if there is one.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>) {
        let own = PollFd::new(&self.0, PollFlags::IN);
        let mut fds = [own.clone(), own];
        if let Some(other) = &other {
            fds[1] = PollFd::new(other, PollFlags::IN);
        }
        let came = poll(&mut fds, None);
        if came.is_ok() && !fds[0].revents().is_empty() {
            self.clear();
        }
    }

    /// Clears it. A system call.
    pub(crate) fn clear(&self) {
        // It fails only where it is not set.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// The descriptor for poll(2).
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }
}
