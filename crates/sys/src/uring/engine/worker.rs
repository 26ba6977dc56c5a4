//! The engine's thread: it alone submits to the ring and takes completions from it.
//!
//! # Model
//!
//! ```text
//!   take what is new ──▶ push up to the depth ──▶ enter (wait for one) ──▶ reap ──▶ done …
//!         ▲                                                                          │
//!         └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A poll of the eventfd is always armed, so a submission ends the wait like a completion does.
//!
//! # Invariants
//!
//! 1. `in_flight` counts the pieces pushed to the submission queue whose completion was not taken yet, and
//!    `bytes_in_flight` their remaining bytes. An I/O stays in `active` until all its pieces have ended, so the
//!    kernel never has the address of a freed piece; a worker that unwinds with pieces in flight aborts.
//!
//! # Safety
//!
//! Entries are pushed under invariant 1; the memory is kept by the contract of
//! [`Engine::submit`](super::Engine::submit).
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use core::sync::atomic::Ordering;
use io_uring::{cqueue, opcode, squeue, types};

use super::super::piece::{Next, outcome};
use super::super::ring::{Ring, abort};
use super::depth::Depth;
use super::{Active, DEEPEST, FIRST_DEPTH, IoDone, PIECE, Shared};
use crate::Errno;
use crate::lock::{Arc, panicking};

/// The `user_data` of the poll on the eventfd.
const WAKE: u64 = u64::MAX;

/// Which piece of which I/O.
#[derive(Clone, Copy)]
struct Id {
    io: u32,
    piece: u32,
}

impl Id {
    fn to_user_data(self) -> u64 {
        u64::from(self.io) << 32 | u64::from(self.piece)
    }

    fn of(user_data: u64) -> Id {
        Id {
            io: (user_data >> 32) as u32,
            piece: user_data as u32,
        }
    }
}

/// The poll of the eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Idle,
    /// In the submission queue.
    Queued,
    /// The kernel has it.
    Armed,
}

struct Worker {
    ring: Ring,
    shared: Arc<Shared>,
    active: Vec<Option<Active>>,
    free: Vec<u32>,
    ready: VecDeque<Id>,
    /// Invariant 1.
    in_flight: usize,
    bytes_in_flight: usize,
    wake: Wake,
    depth: Depth,
    began: Instant,
}

/// Closes the engine when the worker unwinds, so that no caller waits for it.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        close(&self.0, Errno::EIO);
    }
}

/// The thread.
pub(super) fn run(shared: Arc<Shared>) {
    // Dropped after the worker and its ring, whichever way they go; if they went in order this finds
    // nothing to do.
    let _closing = Closing(Arc::clone(&shared));
    match Ring::new(2 * DEEPEST as u32) {
        Ok(ring) => Worker::new(ring, shared).run(),
        Err(error) => close(&shared, error),
    }
}

impl Worker {
    fn new(ring: Ring, shared: Arc<Shared>) -> Worker {
        #[cfg(test)]
        shared.ring_fd.store(ring.raw_fd(), Ordering::Relaxed);
        Worker {
            ring,
            shared,
            active: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            in_flight: 0,
            bytes_in_flight: 0,
            wake: Wake::Idle,
            depth: Depth::new(FIRST_DEPTH, DEEPEST),
            began: Instant::now(),
        }
    }
}

/// Closes the engine because of `error`, and fails all its requests.
fn close(shared: &Shared, error: Errno) {
    for active in shared.handoff.fail(error) {
        end(shared, active.done, Err(error));
    }
}

/// Tells an I/O's caller how it ended.
fn end(shared: &Shared, done: IoDone, result: Result<usize, Errno>) {
    // Relaxed, all of them: see the engine's module.
    shared.counters.ios.fetch_add(1, Ordering::Relaxed);
    shared.pending.fetch_sub(1, Ordering::Relaxed);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| done(result))) {
        shared.counters.panics.fetch_add(1, Ordering::Relaxed);
        // Dropping the payload could panic again.
        std::mem::forget(panic);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.in_flight > 0 && !self.ring.broken {
            abort("unwinding with I/O in flight");
        }
        if !panicking() {
            return;
        }
        // Relaxed: see the engine's module.
        self.shared.counters.panics.fetch_add(1, Ordering::Relaxed);
        // Before the callbacks run: a caller whose I/O failed then asks whether the engine did.
        close(&self.shared, Errno::EIO);
        for active in self.active.iter_mut().filter_map(Option::take) {
            end(&self.shared, active.done, Err(Errno::EIO));
        }
    }
}

impl Worker {
    fn run(mut self) {
        loop {
            let closing = self.take();
            if closing && self.in_flight == 0 && self.ready.is_empty() {
                break;
            }
            if let Err(error) = self.turn() {
                self.fail(error);
                let shared = Arc::clone(&self.shared);
                drop(self);
                close(&shared, error);
                return;
            }
        }
    }

    /// Takes over new requests; returns whether the engine is closing.
    fn take(&mut self) -> bool {
        let (requests, closing) = self.shared.handoff.take();
        for active in requests {
            self.admit(active);
        }
        #[cfg(test)]
        assert!(
            !self.shared.inject_panic.swap(false, Ordering::Relaxed),
            "injected by the test"
        );
        closing
    }

    fn admit(&mut self, active: Active) {
        let io = self.free.pop().unwrap_or_else(|| {
            self.active.push(None);
            (self.active.len() - 1) as u32
        });
        let pieces = 0..active.left as u32;
        self.ready.extend(pieces.map(|piece| Id { io, piece }));
        self.active[io as usize] = Some(active);
    }

    /// Submits as much as the depth allows, waits for an event, and handles it.
    fn turn(&mut self) -> Result<(), Errno> {
        self.arm_wake()?;
        self.push();
        self.ring.enter(1)?;
        self.reap();
        Ok(())
    }

    /// Has the kernel watch the eventfd, if it does not.
    fn arm_wake(&mut self) -> Result<(), Errno> {
        if self.wake != Wake::Armed {
            let fd = types::Fd(self.shared.wake.fd().as_raw_fd());
            // Of one type where rustix calls the kernel, of another where it calls the C library.
            let flags = rustix::event::PollFlags::IN.bits() as u32;
            let poll = opcode::PollAdd::new(fd, flags).multi(true);
            self.push_entry(&poll.build().user_data(WAKE));
            // Alone in its submission, so that it is known whether the kernel has it.
            self.wake = Wake::Queued;
            self.ring.enter(0)?;
            self.wake = Wake::Armed;
        }
        Ok(())
    }

    /// Pushes ready pieces until the depth is reached; returns how many.
    fn push(&mut self) -> usize {
        let most_bytes = self.depth.limit() * PIECE;
        let mut pushed = 0;
        while self.in_flight < DEEPEST
            && self.bytes_in_flight < most_bytes
            && let Some(id) = self.ready.pop_front()
        {
            let active = self.active(id);
            let piece = &active.pieces[id.piece as usize];
            let entry = piece.entry(active.fd.as_fd()).user_data(id.to_user_data());
            let bytes = piece.memory.left();
            self.push_entry(&entry);
            self.in_flight += 1;
            self.bytes_in_flight += bytes;
            pushed += 1;
        }
        // Relaxed, both: see the engine's module.
        let counters = &self.shared.counters;
        counters.in_flight.store(self.in_flight, Ordering::Relaxed);
        counters
            .deepest
            .fetch_max(self.in_flight, Ordering::Relaxed);
        pushed
    }

    fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: invariant 1: all that the entry points to outlives its completion.
        let pushed = unsafe { self.ring.kernel.submission().push(entry) };
        // The queue is emptied by every successful `enter` and holds twice the greatest depth.
        assert!(pushed.is_ok(), "the submission queue is full");
    }

    fn active(&mut self, id: Id) -> &mut Active {
        match &mut self.active[id.io as usize] {
            Some(active) => active,
            None => unreachable!("an I/O stays until its last piece has ended"),
        }
    }

    /// Takes all completions that are there, and ends the I/Os that they end.
    fn reap(&mut self) {
        let batch: Vec<cqueue::Entry> = self.ring.kernel.completion().collect();
        let held_back = !self.ready.is_empty();
        let mut ended = Vec::new();
        let mut moved = Vec::with_capacity(batch.len());
        for entry in batch {
            if entry.user_data() == WAKE {
                self.woken(&entry);
                continue;
            }
            let id = Id::of(entry.user_data());
            self.in_flight -= 1;
            // Relaxed: see the engine's module.
            self.shared
                .counters
                .operations
                .fetch_add(1, Ordering::Relaxed);
            let active = self.active(id);
            let piece = &mut active.pieces[id.piece as usize];
            let bytes = piece.memory.left();
            if let Ok(len) = usize::try_from(entry.result()) {
                moved.push(len);
            }
            match piece.complete(active.fd.as_fd(), entry.result()) {
                Next::Again => self.ready.push_front(id),
                // No read is blocked.
                Next::Done | Next::Blocked => {
                    active.left -= 1;
                    if active.left == 0 {
                        ended.extend(self.active[id.io as usize].take());
                        self.free.push(id.io);
                    }
                }
            }
            self.bytes_in_flight -= bytes;
        }
        if !moved.is_empty() {
            let now = self.began.elapsed().as_nanos() as u64;
            self.depth.completed(now, moved.into_iter(), held_back);
        }
        // Relaxed, both: see the engine's module.
        let counters = &self.shared.counters;
        counters.in_flight.store(self.in_flight, Ordering::Relaxed);
        counters.depth.store(self.depth.limit(), Ordering::Relaxed);
        // Waiting pieces are submitted before the callbacks run, so that the device does not idle.
        if !ended.is_empty() && self.push() > 0 {
            // An error here appears again in the next turn.
            let _ = self.ring.kernel.submit();
        }
        for active in ended {
            let result = outcome(&active.pieces);
            // Before the callback, which may close the file.
            drop((active.pieces, active.fd));
            end(&self.shared, active.done, result);
        }
    }

    /// The kernel takes no more entries, because of `error`: waits for those that it has, and lets
    /// the others fail.
    fn fail(&mut self, error: Errno) {
        let polls = usize::from(self.wake == Wake::Queued);
        let is_io = |entry: &cqueue::Entry| entry.user_data() != WAKE;
        self.ring.abandon(self.in_flight + polls, is_io);
        for active in self.active.iter_mut().filter_map(Option::take) {
            end(&self.shared, active.done, Err(error));
        }
    }

    /// The poll of the eventfd reported an event; usually it continues.
    fn woken(&mut self, entry: &cqueue::Entry) {
        if !cqueue::more(entry.flags()) {
            self.wake = Wake::Idle;
        }
    }
}
