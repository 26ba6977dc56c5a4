//! One ring: batches of reads and writes, from the first submission to the last completion.
//!
//! # Model
//!
//! ```text
//! Io --split--> pieces --ready--> submission queue --enter--> kernel --completion--+
//!                          ^                                                       |
//!                          +---- short, interrupted, try again --------------------+
//! ```
//!
//! At most `depth` pieces are between *ready* and *completion*; the completion queue has room for
//! twice as many, so it cannot overflow. A piece is known to the kernel by its index.
//!
//! # Invariants
//!
//! 1. `outstanding` counts the entries pushed to the submission queue whose completion was not
//!    taken yet. It is 0 whenever no call is running, unless the ring is broken; then what is left
//!    lies unsubmitted in a queue that nobody hands to the kernel any more.
//! 2. The memory named by an outstanding piece lives: pieces and the segments they come from are
//!    borrowed or owned by the running call, which ends only after invariant 1 holds again. An
//!    unwinding call aborts the process while pieces are outstanding.
//! 3. `registered[slot]` says whether the kernel's table of this ring has a buffer there.
//!
//! # Setup flags
//!
//! Rings of a pool are handed from thread to thread, which `SINGLE_ISSUER` (and `DEFER_TASKRUN`,
//! which needs it) forbids: a ring a thread would have to die with its thread, and each would pin
//! all of the cache once more. The thread that waits is the one that submitted, so `COOP_TASKRUN`
//! spares it the interruptions. The engine's ring belongs to one thread and has both.
//!
//! # Safety
//!
//! Entries are pushed under invariant 2. `enter` is called directly only to wait.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{Builder, EnterFlags, IoUring, types};

use super::Io;
use super::piece::{MAX_RETRIES, Next, Piece, pause};
use super::split::{RUN_MAX, outcome, split};
use crate::Errno;
use crate::fork::ForkGuard;

/// Most slots that a ring's table of buffers has.
pub const MAX_BUFFERS: u32 = 1 << 14;

/// Deepest ring that is made.
const MAX_DEPTH: u32 = 4096;

/// How long completions of a ring that the kernel refuses are waited for before the process is
/// aborted.
pub(super) const DRAIN: Duration = Duration::from_secs(60);

/// An io_uring that one thread at a time uses. Costs about 100 bytes of kernel memory for each
/// entry of its depth, outside any cache's bound.
pub struct Ring {
    ring: ManuallyDrop<IoUring>,
    guard: ForkGuard,
    depth: usize,
    /// Invariant 1.
    outstanding: usize,
    /// Whether the kernel refused to take entries that are still in the submission queue.
    broken: Option<Errno>,
    /// Invariant 3.
    registered: Vec<bool>,
    fixed_ios: u64,
    plain_ios: u64,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("fd", &self.ring.as_raw_fd())
            .field("depth", &self.depth)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring that keeps up to `entries` operations in flight (rounded up to a power of two, 1 to
    /// 4,096).
    ///
    /// # Errors
    ///
    /// `ENOSYS` or `EPERM` where io_uring is not there or not allowed; `ENOMEM`, `EMFILE`.
    pub fn new(entries: u32) -> Result<Ring, Errno> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_coop_taskrun().setup_submit_all();
        Ring::build(&builder, entries)
    }

    /// A ring that only the calling thread will ever use.
    ///
    /// # Errors
    ///
    /// Those of [`Ring::new`].
    pub(super) fn of_this_thread(entries: u32) -> Result<Ring, Errno> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all();
        Ring::build(&builder, entries)
    }

    fn build(builder: &Builder, entries: u32) -> Result<Ring, Errno> {
        let entries = entries.clamp(1, MAX_DEPTH);
        let guard = ForkGuard::new()?;
        let ring = builder.build(entries).or_else(|e| {
            // EINVAL: a kernel that does not know one of the flags.
            if e.raw_os_error() == Some(libc::EINVAL) {
                IoUring::builder().dontfork().build(entries)
            } else {
                Err(e)
            }
        })?;
        let params = ring.params();
        // Without NODROP a kernel may lose completions; without SUBMIT_STABLE it may look at lists
        // of segments later. Both came with 5.5, and registered buffers need a later one anyway.
        if !params.is_feature_nodrop() || !params.is_feature_submit_stable() {
            return Err(Errno::ENOSYS);
        }
        let depth = params.sq_entries().min(params.cq_entries()) as usize;
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            guard,
            depth,
            outstanding: 0,
            broken: None,
            registered: Vec::new(),
            fixed_ios: 0,
            plain_ios: 0,
        })
    }

    /// How many operations are kept in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the ring can be used no more; every I/O on it then has this error.
    pub fn broken(&self) -> Option<Errno> {
        self.broken
    }

    /// The kernel's side, for whoever runs the ring by itself and keeps to its invariants 1 and 2.
    pub(super) fn kernel(&mut self) -> &mut IoUring {
        &mut self.ring
    }

    /// Waits for a completion without submitting anything.
    pub(super) fn wait_for_one(&mut self) -> Result<(), Errno> {
        loop {
            if !self.ring.completion().is_empty() {
                return Ok(());
            }
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: nothing is submitted and no argument is passed.
            let woken = unsafe {
                self.ring
                    .submitter()
                    .enter::<libc::sigset_t>(0, 1, flags, None)
            };
            match woken.map_err(Errno::from) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The kernel takes no more entries, because of `error`; nothing of the ring is in flight.
    pub(super) fn set_broken(&mut self, error: Errno) {
        self.broken = Some(error);
    }

    /// The ring's descriptor.
    #[cfg(test)]
    pub(super) fn raw_fd(&self) -> i32 {
        self.ring.as_raw_fd()
    }

    /// Counts an operation that is over.
    pub(super) fn count(&mut self, piece: &Piece<'_>) {
        if piece.is_fixed() {
            self.fixed_ios += 1;
        } else {
            self.plain_ios += 1;
        }
    }

    /// Operations finished so far: those through registered buffers, and the others.
    pub fn operations(&self) -> (u64, u64) {
        (self.fixed_ios, self.plain_ios)
    }

    /// Gives the ring a table of `n` empty slots for buffers, at most [`MAX_BUFFERS`]. Once only.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a number that is 0 or too large, or on a kernel without sparse tables (before
    /// 5.19); `EBUSY` the second time; `ECHILD` in a forked child.
    pub fn register_sparse_buffers(&mut self, n: u32) -> Result<(), Errno> {
        self.guard.check()?;
        if n == 0 || n > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        self.ring.submitter().register_buffers_sparse(n)?;
        self.registered = vec![false; n as usize];
        Ok(())
    }

    /// Whether the table has a buffer in `slot`.
    pub fn has_buffer(&self, slot: u32) -> bool {
        self.registered.get(slot as usize).copied().unwrap_or(false)
    }

    /// Puts a buffer into a slot (in place of what was there), or empties it with `None`. The
    /// kernel pins the buffer's memory while it is in the table. May block.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a slot outside the table; `ENOMEM` beyond `RLIMIT_MEMLOCK`; `EFAULT` for memory
    /// that is not there; `EOPNOTSUPP` for memory that cannot be pinned; `ECHILD` in a forked
    /// child. The slot is empty after an error, or holds what it held.
    ///
    /// # Safety
    ///
    /// From here until the slot has been emptied again or the ring is dropped, the memory stays
    /// mapped as it is, and no reference to it is made that relies on its bytes not changing.
    pub unsafe fn update_buffer(
        &mut self,
        slot: u32,
        buffer: Option<(*mut u8, usize)>,
    ) -> Result<(), Errno> {
        self.guard.check()?;
        let known = self
            .registered
            .get_mut(slot as usize)
            .ok_or(Errno::EINVAL)?;
        if buffer.is_none() && !*known {
            return Ok(());
        }
        let (addr, len) = buffer.unwrap_or((std::ptr::null_mut(), 0));
        let iov = [libc::iovec {
            iov_base: addr.cast(),
            iov_len: len,
        }];
        // SAFETY: the caller's contract.
        unsafe {
            self.ring
                .submitter()
                .register_buffers_update(slot, &iov, None)
        }?;
        *known = buffer.is_some() && len > 0;
        Ok(())
    }

    /// Does all of `ios` and waits for the last of them. `results` is emptied and gets one result
    /// for each, in order: the bytes moved, or why none were (see the module on short transfers).
    ///
    /// Blocks. Allocates a little for each I/O; nothing of it counts against a cache's bound.
    ///
    /// # Errors
    ///
    /// In `results`: those of `preadv(2)` and `pwritev(2)`; `ECHILD` for all in a forked child;
    /// what broke the ring for those not submitted any more.
    pub fn submit_and_wait(&mut self, ios: &[Io<'_>], results: &mut Vec<Result<usize, Errno>>) {
        results.clear();
        let refused = self.guard.check().err().or(self.broken);
        if let Some(e) = refused {
            results.resize(ios.len(), Err(e));
            return;
        }
        let mut pieces = Vec::with_capacity(ios.len());
        for (index, io) in ios.iter().enumerate() {
            let ready = split(
                index,
                io.pos,
                io.segments,
                RUN_MAX,
                |block| self.has_buffer(block),
                &mut pieces,
            );
            results.push(ready.map(|()| 0));
        }
        Batch {
            ring: self,
            ios,
            pieces: &mut pieces,
        }
        .run();
        let mut rest = pieces.as_slice();
        for (index, io) in ios.iter().enumerate() {
            let own = rest.iter().take_while(|piece| piece.io == index).count();
            let (own, others) = rest.split_at(own);
            rest = others;
            if results[index].is_ok() {
                results[index] = outcome(io.op, own.iter());
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // In a child the ring's memory is not mapped, and its addresses may be somebody else's.
        if !self.guard.is_child() {
            // SAFETY: dropped here only, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

/// One running call of [`Ring::submit_and_wait`].
struct Batch<'r, 'p, 'a> {
    ring: &'r mut Ring,
    ios: &'r [Io<'a>],
    pieces: &'p mut Vec<Piece<'a>>,
}

impl Drop for Batch<'_, '_, '_> {
    /// Invariant 2: a panic must not let the kernel write into memory that is given back.
    fn drop(&mut self) {
        if self.ring.outstanding > 0 && self.ring.broken.is_none() {
            abort("unwinding with I/O in flight");
        }
    }
}

impl<'a> Batch<'_, '_, 'a> {
    fn run(mut self) {
        // Taken from the end, so that the file is gone through in order.
        let mut ready: Vec<usize> = (0..self.pieces.len()).rev().collect();
        while !ready.is_empty() || self.ring.outstanding > 0 {
            while self.ring.outstanding < self.ring.depth
                && let Some(index) = ready.pop()
            {
                self.push(index);
            }
            // With more to come, go on at the first completion; else sleep until the last.
            let want = if ready.is_empty() {
                self.ring.outstanding
            } else {
                1
            };
            if let Err(e) = self.enter(want) {
                self.fail(e, &mut ready);
                return;
            }
            self.reap(&mut ready);
        }
    }

    fn push(&mut self, index: usize) {
        let piece = &self.pieces[index];
        let io = &self.ios[piece.io];
        let entry = piece.entry(io.op, io.fd).user_data(index as u64);
        // SAFETY: invariant 2: everything that the entry points to outlives its completion.
        let pushed = unsafe { self.ring.ring.submission().push(&entry) };
        // The queue is emptied by every successful `enter` and holds `depth` entries.
        assert!(
            pushed.is_ok(),
            "the submission queue is full below its depth"
        );
        self.ring.outstanding += 1;
    }

    /// Entries that the kernel has not taken from the submission queue.
    fn unsubmitted(&mut self) -> usize {
        self.ring.ring.submission().len()
    }

    /// Submits what is queued and waits for `want` completions, or fewer.
    ///
    /// An error means that the kernel takes no more entries.
    fn enter(&mut self, want: usize) -> Result<(), Errno> {
        let mut refusals = 0;
        loop {
            let Err(e) = self.ring.ring.submit_and_wait(want) else {
                // Some may be left when the kernel ran short in between; then this call did not
                // wait for all. The next round submits them.
                return Ok(());
            };
            match Errno::from(e) {
                Errno::EINTR => {}
                // Short of memory, or completions to be taken first.
                e @ (Errno::EAGAIN | Errno::EBUSY | Errno::ENOMEM) => {
                    if self.unsubmitted() < self.ring.outstanding {
                        return self.ring.wait_for_one();
                    }
                    refusals += 1;
                    if refusals > MAX_RETRIES {
                        return Err(e);
                    }
                    pause();
                }
                e => return Err(e),
            }
        }
    }

    /// Takes all completions that are there.
    fn reap(&mut self, ready: &mut Vec<usize>) {
        loop {
            let Some(done) = self.ring.ring.completion().next() else {
                return;
            };
            self.ring.outstanding -= 1;
            let index = done.user_data() as usize;
            let piece = &mut self.pieces[index];
            let io = &self.ios[piece.io];
            self.ring.count(piece);
            match piece.complete(io.op, io.fd, done.result()) {
                Next::Again => ready.push(index),
                Next::Done => {}
            }
        }
    }

    /// The kernel takes no more entries, because of `error`: waits for those that it has, and lets
    /// the others fail. The entries left in the queue are never submitted: the ring is broken.
    fn fail(&mut self, error: Errno, ready: &mut Vec<usize>) {
        // No more than tries to shorten the wait: what is at a disk cannot be cancelled.
        let any = types::CancelBuilder::any();
        let no_wait = Some(types::Timespec::new());
        let _ = self
            .ring
            .ring
            .submitter()
            .register_sync_cancel(no_wait, any);
        let since = Instant::now();
        loop {
            self.reap(ready);
            if self.ring.outstanding == self.unsubmitted() {
                break;
            }
            if self.ring.wait_for_one().is_err() {
                if since.elapsed() > DRAIN {
                    abort("the kernel neither finishes nor cancels I/O in flight");
                }
                // The kernel posts completions without being asked, at the latest on the way out
                // of a system call.
                pause();
            }
        }
        if self.ring.outstanding > 0 {
            self.ring.broken = Some(error);
        }
        for piece in self.pieces.iter_mut() {
            if !piece.ended {
                piece.error = Some(error);
            }
        }
        ready.clear();
    }
}

pub(super) fn abort(why: &str) -> ! {
    eprintln!("foliocache: io_uring: {why}; memory would be overwritten later; aborting");
    std::process::abort();
}
