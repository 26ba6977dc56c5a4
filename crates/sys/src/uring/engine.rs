//! Background reads, each with a completion callback.
//!
//! # Model
//!
//! ```text
//!  submit ──split──▶ requests ──┐                              ┌──▶ done(bytes or error)
//!  submit ──split──▶ requests ──┤                              │
//!  wake (eventfd) ──────────────┴──▶ worker: one ring ──reap───┴──▶ done(…)
//! ```
//!
//! One thread, started at the first submission, owns the ring: it submits, waits, restarts short
//! pieces, and calls `done` when the last piece of an I/O has ended. Long transfers are cut into
//! pieces of 1 MiB. As many of these are in flight as the device gains by ([`depth`](self)), or
//! shorter ones of as many bytes, 64 at most; the rest waits its turn.
//!
//! # Why a thread submits, and not the caller
//!
//! A ring posts completions on the thread that submitted. If that were the caller, an application's thread, each
//! completion would interrupt it, end its system calls with `EINTR`, and wait for it whenever it is not running;
//! then the reaper would have to be woken as well. With one submitter the ring has `SINGLE_ISSUER` and
//! `DEFER_TASKRUN`: a completion wakes only the thread that wants it. The price is a wake-up where the worker is
//! asleep, one for all operations that are submitted together. Woken for each, the worker would hand them to the
//! device one by one, and take the processor from the submitter meanwhile.
//!
//! A device that works in the submitting thread (a compressed RAM disk) would be driven by one processor then, and
//! in the kernel's threads at that. The engine notices such devices by [`Engine::run_blocking`], and
//! [`Engine::is_synchronous`] tells callers to do their I/O themselves.
//!
//! Writes are made by callers that wait for them, many at a time: see [`writes`](self).
//!
//! # Invariants
//!
//! 1. `done` of every I/O is called exactly once, except in a forked child, where nothing of the
//!    parent's is called.
//! 2. The memory of an I/O is not accessed after its `done` was called. The worker does not end
//!    before that, by any path: it aborts the process where it cannot keep this.
//!
//! # Locking
//!
//! The locks of [`handoff`] and [`writes`]; `done` is called with no lock held. *May block*: starting the thread happens
//! inside it, once.
//!
//! # Memory ordering
//!
//! The statistics and hints are Relaxed: they say nothing about other memory.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use smallvec::SmallVec;

use self::device::Device;
use self::handoff::Handoff;
use self::writes::Writes;
use super::piece::{Direction, Piece, split};
use super::ring::Ring;
use crate::Errno;
use crate::event::Event;
use crate::fd::{Extent, IoSegment};
use crate::fork::ForkGuard;
use crate::lock::{Arc, JoinHandle, ThreadBuilder, current_thread};
use crate::signal::undisturbed;

mod depth;
mod device;
mod handoff;
mod worker;
mod writes;

/// Called when an I/O has ended, with the bytes read or the error.
pub type IoDone = Box<dyn FnOnce(Result<usize, Errno>) + Send>;

/// Longest piece of a transfer. A multiple of every alignment that direct I/O asks for; longer ones
/// gained nothing on the devices at hand, and shorter ones cost more commands.
const PIECE: usize = 1 << 20;

/// Most pieces in flight.
const DEEPEST: usize = 64;

/// Long pieces in flight before anything is known of the device.
const FIRST_DEPTH: usize = 16;

/// An I/O that goes through the ring.
struct Active {
    fd: Arc<OwnedFd>,
    pieces: SmallVec<[Piece; 1]>,
    /// Pieces that have not ended.
    left: usize,
    done: IoDone,
}

/// Shared by the engine and its worker.
pub(super) struct Shared {
    handoff: Handoff<Active, JoinHandle<()>, Errno>,
    guard: ForkGuard,
    wake: Event,
    /// I/Os submitted and not ended.
    pending: AtomicUsize,
    device: Device,
    counters: Counters,
    writes: Writes,
    /// The ring's descriptor, once there is one.
    #[cfg(test)]
    pub(super) ring_fd: core::sync::atomic::AtomicI32,
    /// The worker panics after it has taken over new requests.
    #[cfg(test)]
    pub(super) inject_panic: core::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Counters {
    ios: AtomicU64,
    operations: AtomicU64,
    wakes: AtomicU64,
    panics: AtomicU64,
    depth: AtomicUsize,
    in_flight: AtomicUsize,
    deepest: AtomicUsize,
}

/// Counts of an engine since it was made, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// I/Os that have ended.
    pub ios: u64,
    /// I/Os submitted and not ended.
    pub pending: usize,
    /// Operations that the ring finished; a long I/O takes several.
    pub operations: u64,
    /// Operations in flight.
    pub in_flight: usize,
    /// Most operations that were ever in flight.
    pub deepest: usize,
    /// Most operations of 1 MiB that may be in flight now, and shorter ones of as many bytes, 64 at most: adapts
    /// to the device.
    pub depth: usize,
    /// Whether the device does its work in the thread that asks for it.
    pub synchronous: bool,
    /// Times that the worker was woken by a submission.
    pub wakes: u64,
    /// Panics of the worker: of `done`, which it outlives, or its own, which ends the engine.
    pub panics: u64,
    /// Why the engine takes no I/O any more.
    pub failed: Option<Errno>,
}

impl fmt::Display for EngineStats {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} I/Os, {} pending, {} of at most {} operations in flight",
            self.ios, self.pending, self.in_flight, self.depth,
        )?;
        match self.failed {
            Some(errno) => write!(f, "; out of order: {errno}"),
            None => Ok(()),
        }
    }
}

/// Reads in the background through one ring and one thread, and many writes at once, shared by any number of threads.
///
/// Dropping it waits until all I/O has ended and `done` was called for it, unless it is dropped by
/// a `done`: then the worker ends by itself.
pub struct Engine {
    pub(super) shared: Arc<Shared>,
}

impl Engine {
    /// An engine. Costs a descriptor and a page; the thread and its ring come with the first
    /// submission. A ring is made and closed at once, to know that the kernel allows it.
    ///
    /// # Errors
    ///
    /// `ENOSYS` or `EPERM` where io_uring is not there or not allowed; `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Engine, Errno> {
        drop(Ring::new(1)?);
        let shared = Shared {
            handoff: Handoff::new(),
            guard: ForkGuard::new()?,
            wake: Event::new()?,
            pending: AtomicUsize::new(0),
            device: Device::new(),
            counters: Counters::default(),
            writes: Writes::default(),
            #[cfg(test)]
            ring_fd: core::sync::atomic::AtomicI32::new(-1),
            #[cfg(test)]
            inject_panic: core::sync::atomic::AtomicBool::new(false),
        };
        // Relaxed: see the module.
        shared.counters.depth.store(FIRST_DEPTH, Ordering::Relaxed);
        Ok(Engine {
            shared: Arc::new(shared),
        })
    }

    /// Queues one read, which begins at the latest when [`Engine::wake`] is called, and calls `done` once when it has
    /// ended: on the engine's thread, or on this one where the I/O cannot be started. `fd` stays open until then.
    ///
    /// The memory of the segments stays mapped until `done` is called, and no code relies on its
    /// bytes until then. The lifetime of the segments stands for that. A caller that makes segments
    /// from shorter-lived memory keeps the memory until then.
    ///
    /// Does not wait. `done` may submit, may drop the engine, and should be short: everything else
    /// of this engine waits for it. A panic of it on the engine's thread is counted and ends there.
    /// Allocates a little for each I/O; how much is queued is bounded by its callers alone.
    ///
    /// # Errors
    ///
    /// Handed to `done`: those of `preadv(2)`; `EINVAL` for a range that does not
    /// fit into a file; `ECHILD` in a forked child; why the ring or the thread cannot be made
    /// (`ENOSYS`, `EPERM`, `ENOMEM`, `EMFILE`, `EAGAIN`) or broke.
    pub fn submit(
        &self,
        fd: Arc<OwnedFd>,
        pos: u64,
        segments: &[IoSegment<'static>],
        done: IoDone,
    ) {
        let shared = &self.shared;
        let checked = shared.guard.check();
        let pieces = match checked.and_then(|()| split(Direction::Read, pos, segments, PIECE)) {
            Ok(pieces) if pieces.is_empty() => return done(Ok(0)),
            Ok(pieces) => pieces,
            Err(error) => return done(Err(error)),
        };
        let active = Active {
            fd,
            left: pieces.len(),
            pieces,
            done,
        };
        if let Err((active, error)) = shared.enqueue(active) {
            (active.done)(Err(error));
        }
    }

    /// Has all begin that was submitted. Does not wait.
    pub fn wake(&self) {
        // A child has its own copy of a lock that some thread of the parent may hold, and has submitted nothing.
        if !self.shared.guard.is_child() {
            self.shared.wake_if(self.shared.handoff.wake());
        }
    }

    /// Whether the device does its work in the thread that asks for it, so that a ring, whose
    /// operations it makes the kernel give to other threads, is no gain: callers had better do their
    /// I/O themselves. A hint.
    pub fn is_synchronous(&self) -> bool {
        self.shared.device.is_synchronous()
    }

    /// Runs a read or write that blocks, and learns by the first ones and by one in 32 whether the device is a synchronous
    /// one.
    pub fn run_blocking<R>(&self, io: impl FnOnce() -> R) -> R {
        self.shared.device.run(io)
    }

    /// Writes `extents`, in any order and many at a time, and stores each one's result in it.
    /// Blocks until all have ended.
    ///
    /// Costs a ring for each call that is under way at a time, of which four are kept: a descriptor and some pages of
    /// memory each, outside any cache's bound.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`]. Extents without a result may or may not have been written.
    pub fn write_all(
        &self,
        fd: BorrowedFd<'_>,
        extents: &mut [&mut Extent<'_>],
    ) -> Result<(), Errno> {
        self.shared.guard.check()?;
        self.shared.writes.write(fd, extents)
    }

    /// Why the engine takes no I/O any more. Takes the engine's lock for a moment.
    pub fn failed(&self) -> Option<Errno> {
        // A child has its own copy of a lock that some thread of the parent may hold.
        if self.shared.guard.is_child() {
            return Some(Errno::ECHILD);
        }
        self.shared.handoff.failed()
    }

    /// Counts and present state. Takes the engine's lock for a moment.
    pub fn stats(&self) -> EngineStats {
        let shared = &self.shared;
        // Relaxed: see the module.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let gauge = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed);
        let counters = &shared.counters;
        EngineStats {
            ios: count(&counters.ios),
            pending: gauge(&shared.pending),
            operations: count(&counters.operations),
            in_flight: gauge(&counters.in_flight),
            deepest: gauge(&counters.deepest),
            depth: gauge(&counters.depth),
            synchronous: shared.device.is_synchronous(),
            wakes: count(&counters.wakes),
            panics: count(&counters.panics),
            failed: self.failed(),
        }
    }
}

impl Shared {
    /// Queues an I/O for the worker, which is started if need be; gives it back where it cannot.
    fn enqueue(self: &Arc<Shared>, active: Active) -> Result<(), (Active, Errno)> {
        // Relaxed: see the module. Before the worker can have ended it.
        self.pending.fetch_add(1, Ordering::Relaxed);
        let put = self.handoff.put(active, || {
            let shared = Arc::clone(self);
            let named = ThreadBuilder::new().name("foliocache-io".to_owned());
            Ok(undisturbed(|| named.spawn(move || worker::run(shared)))?)
        });
        put.inspect_err(|_| {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Makes the worker look for new requests, if it is asleep.
    fn wake_if(&self, asleep: bool) {
        if asleep {
            // Relaxed: see the module.
            self.counters.wakes.fetch_add(1, Ordering::Relaxed);
            // Adding 1 to a counter of 64 bits cannot fail in this process's life.
            self.wake.set();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A child has no worker, and the parent may have held the lock. The worker's share keeps
        // the parent's queue alive; the child never drops it.
        if self.shared.guard.is_child() {
            return;
        }
        let (worker, asleep) = self.shared.handoff.close();
        self.shared.wake_if(asleep);
        if let Some(worker) = worker
            && worker.thread().id() != current_thread().id()
        {
            // A worker that panicked has printed why, and left nothing in flight.
            let _ = worker.join();
        }
    }
}
