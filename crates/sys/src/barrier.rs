//! An asymmetric pair of memory barriers: free for the many readers, a system call for the writer.
//!
//! # Model
//!
//! A reader announces itself with a store, calls [`light`], and then makes its loads. A writer
//! unpublishes with a store, calls [`heavy`], and then checks whether a reader has announced
//! itself. With both barriers at least one of the two sees the other's store. An ordinary pair is
//! two SeqCst fences, paid by every reader; with membarrier(2) the reader's fence shrinks to a
//! barrier for the compiler alone, and the writer makes the kernel run a full barrier on every CPU
//! that runs a thread of this process.
//!
//! Where membarrier is refused (seccomp, old kernels) both sides are SeqCst fences.
//!
//! # Invariants
//!
//! 1. `MODE` leaves `UNKNOWN` once and never changes again.
//! 2. `light` acts as a compiler barrier only while `MODE` is `EXPEDITED`, which is stored after the
//!    kernel accepted the registration. Before that it is a real fence, which pairs with `heavy` in
//!    either mode, since `heavy` always fences its own thread as well.
//!
//! # Locking
//!
//! None. [`register`] may take milliseconds the first time (the kernel waits for a grace period of
//! its own); `heavy` costs some microseconds and an interrupt of every CPU that runs our threads.
//!
//! # Memory ordering
//!
//! `MODE` is Relaxed everywhere: it publishes nothing but itself. A `light` that reads an old value
//! takes the stronger fence (invariant 2), and a `heavy` decides only after a `register` of its own
//! thread. The SeqCst fence in `light` pairs with the one in `heavy`, and, in expedited mode, the
//! compiler fence in `light` pairs with the kernel's barrier inside `heavy`.

use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
use rustix::io::Errno as OsErrno;
use rustix::thread::{MembarrierCommand, membarrier};

const UNKNOWN: u8 = 0;
const EXPEDITED: u8 = 1;
const FENCES: u8 = 2;

/// Invariant 1.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Asks the kernel for expedited barriers, once per process; cheap when already done.
///
/// Returns whether [`light`] is free from now on. Call it when the first cache is built: until then
/// `light` costs a full fence, which is slower but right. May block for milliseconds.
pub fn register() -> bool {
    // Relaxed: invariant 1, and the value publishes nothing but itself.
    match MODE.load(Ordering::Relaxed) {
        EXPEDITED => return true,
        FENCES => return false,
        _ => {}
    }
    // Miri does not know the call; there both sides are fences, which it does know.
    let accepted = !cfg!(miri) && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    let mode = if accepted { EXPEDITED } else { FENCES };
    // Relaxed: `MODE` publishes nothing but itself. The first thread decides for all: two threads
    // may run under different seccomp filters.
    match MODE.compare_exchange(UNKNOWN, mode, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => accepted,
        Err(earlier) => earlier == EXPEDITED,
    }
}

/// The reader's half: orders its earlier stores before its later loads, as seen by [`heavy`].
///
/// With membarrier: one load and a branch that is always predicted, no instruction that waits.
#[inline(always)]
pub fn light() {
    // Relaxed: an old value takes the stronger branch, invariant 2.
    if MODE.load(Ordering::Relaxed) == EXPEDITED {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The writer's half: a full barrier on this thread and on every other thread of the process.
///
/// Blocks for some microseconds where membarrier is there. Panics when the kernel takes the
/// registration back, which leaves no correct way on (a seccomp filter put on a running thread).
pub fn heavy() {
    fence(Ordering::SeqCst);
    if register() {
        while let Err(error) = membarrier(MembarrierCommand::PrivateExpedited) {
            match error {
                // No memory for the set of CPUs, or a signal: the next try may do.
                OsErrno::NOMEM | OsErrno::INTR | OsErrno::AGAIN => {}
                // The registration belongs to the address space. A copy of it must register again.
                OsErrno::PERM => {
                    membarrier(MembarrierCommand::RegisterPrivateExpedited)
                        .expect("membarrier was registered and is refused now");
                }
                other => panic!("membarrier was registered and fails now: {other}"),
            }
        }
    }
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    /// Store buffering: without the pair both sides may read zero. Runs both sides in rounds.
    #[test]
    fn one_of_the_two_sees_the_other() {
        register();
        const ROUNDS: usize = 2000;
        let announced = AtomicUsize::new(0);
        let unpublished = AtomicUsize::new(0);
        let reader_saw = AtomicUsize::new(0);
        let writer_saw = AtomicUsize::new(0);
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    barrier.wait();
                    announced.store(round, Ordering::Relaxed);
                    light();
                    reader_saw.store(unpublished.load(Ordering::Relaxed), Ordering::Relaxed);
                    barrier.wait();
                }
            });
            for round in 1..=ROUNDS {
                barrier.wait();
                unpublished.store(round, Ordering::Relaxed);
                heavy();
                writer_saw.store(announced.load(Ordering::Relaxed), Ordering::Relaxed);
                barrier.wait();
                let seen = [
                    reader_saw.load(Ordering::Relaxed),
                    writer_saw.load(Ordering::Relaxed),
                ];
                assert!(
                    seen.contains(&round),
                    "round {round}: neither saw the other"
                );
            }
        });
    }

    #[test]
    fn registration_is_stable() {
        let first = register();
        assert_eq!(register(), first);
        light();
        heavy();
    }
}
