//! A descriptor that can be read for ever once it was set: what threads that wait in poll(2) are ended with.

use crate::Errno;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;

/// See the module.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// One that is not set. Takes a descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Event, Errno> {
        Ok(Event(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Sets it. A system call.
    pub fn set(&self) {
        // It fails only where it was set 2^64 times before.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// What poll(2) waits for.
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }
}
