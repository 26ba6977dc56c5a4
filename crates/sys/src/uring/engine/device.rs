//! Whether a device does its work in the thread that asks for it.
//!
//! # Model
//!
//! A compressed RAM disk copies and unpacks while a read is submitted to it. Through a ring that is
//! slower than `preadv`: the kernel does not let such a device into the submission, and hands each
//! operation to a thread instead. No interface reports such devices, but a blocking read of them
//! does not sleep, and the kernel counts how often a thread slept. So now and then a blocking read
//! is watched:
//!
//! ```text
//!  did not sleep: +1 ──▶ 8    at 6 and more the device is synchronous,
//!  slept:         -2 ──▶ 0    at 2 and less it is not
//! ```
//!
//! Preemption is not sleeping, so a busy machine makes no difference. Until a read has slept, a
//! device counts as synchronous, at 4: a stream whose reads all go through the ring would never
//! show it.
//!
//! # Memory ordering
//!
//! All is Relaxed: hints that protect no memory. Of two concurrent updates one may be lost.
//!
//! # Safety
//!
//! `getrusage` fills a structure on the stack.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::mem::MaybeUninit;

/// One read in this many is watched once the device is known.
const WATCH_EVERY: u32 = 32;

/// The state of one device.
#[derive(Debug)]
pub(super) struct Device {
    score: AtomicU32,
    reads: AtomicU32,
    synchronous: AtomicBool,
}

impl Device {
    /// A device of which nothing is known.
    pub(super) fn new() -> Self {
        Self {
            score: AtomicU32::new(4),
            reads: AtomicU32::new(0),
            synchronous: AtomicBool::new(true),
        }
    }

    pub(super) fn is_synchronous(&self) -> bool {
        // Relaxed: see the module.
        self.synchronous.load(Ordering::Relaxed)
    }

    /// Whether the next one is to be watched.
    fn is_due(&self) -> bool {
        // Relaxed: see the module.
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        reads < 8 || reads.is_multiple_of(WATCH_EVERY)
    }

    /// Runs a blocking read or write; learns from the first ones and from one in 32.
    pub(super) fn run<R>(&self, io: impl FnOnce() -> R) -> R {
        match self.is_due() {
            true => self.watch(io),
            false => io(),
        }
    }

    /// Runs a blocking read or write and learns from it.
    fn watch<R>(&self, read: impl FnOnce() -> R) -> R {
        let before = sleeps();
        let result = read();
        self.learn(sleeps() != before);
        result
    }

    fn learn(&self, slept: bool) {
        // Relaxed, all of them: see the module.
        let score = self.score.load(Ordering::Relaxed);
        let score = if slept {
            score.saturating_sub(2)
        } else {
            (score + 1).min(8)
        };
        self.score.store(score, Ordering::Relaxed);
        if score >= 6 || score <= 2 {
            self.synchronous.store(score >= 6, Ordering::Relaxed);
        }
    }
}

/// How often the calling thread gave its processor up by itself.
fn sleeps() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is there to be filled.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all zeros, or written by the kernel.
    unsafe { usage.assume_init() }.ru_nvcsw
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_device_that_never_sleeps_is_synchronous_until_it_does() {
        let device = Device::new();
        assert!(device.is_synchronous(), "until it sleeps");
        let work = || (0..1000_u64).fold(0, |sum: u64, x| sum.wrapping_mul(x));
        for _ in 0..8 {
            assert!(device.is_due());
            device.watch(work);
        }
        assert!(device.is_synchronous());
        // Once is no proof.
        device.watch(|| std::thread::sleep(Duration::from_millis(1)));
        assert!(device.is_synchronous());
        for _ in 0..3 {
            device.watch(|| std::thread::sleep(Duration::from_millis(1)));
        }
        assert!(!device.is_synchronous());
        let another = Device::new();
        another.watch(|| std::thread::sleep(Duration::from_millis(1)));
        assert!(!another.is_synchronous(), "nothing spoke against it");
        let due = (0..WATCH_EVERY * 4).filter(|_| device.is_due()).count();
        assert_eq!(due, 4);
    }
}
