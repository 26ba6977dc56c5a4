//! The workers of one file system: a few threads for calls that would block an async caller, and the memory of the
//! requests.
//!
//! # Model
//!
//! ```text
//!   reads   ─▶ ┐ at most LANE workers each,
//!   changes ─▶ ┘ WORKERS together
//! ```
//!
//! One set of [`workers`](foliocache_sync::workers) for each file system, so that a store that hangs
//! stops its own users only. No lane ever has all of them: throttled writers and long syncs leave
//! one to readers, and the other way round. No request waits for another, so a queue is served as long
//! as the store is.
//!
//! This module knows neither files nor directories: a request is a closure.

mod buffers;
mod request;

use foliocache_mm::show::{Bytes, Count};
use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::Arc;
use foliocache_sync::background::Panics;
use foliocache_sync::time::Duration;
use foliocache_sync::workers::{Limits, NoThread, Workers};
use foliocache_sys::Errno;
use std::fmt;

use self::buffers::{Buffers, whole_pages};
use self::request::{NAME, Request, Task};
use crate::parent_only::Forked;

pub(crate) use self::buffers::Buffer;
pub(crate) use self::request::{Kind, Pending, Stragglers};

/// Most threads of one file system, and of them in one lane.
const WORKERS: usize = 4;
const LANE: usize = WORKERS - 1;

/// How long a worker stays without work.
const IDLE: Duration = Duration::from_secs(5);

/// Share of the bound that one file system's buffers take, and its limits in bytes.
const SHARE: u64 = 64;
const LEAST: u64 = 256 << 10;
const MOST: u64 = 4 << 20;

/// Figures of the workers that serve the async files and directories of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncStats {
    /// Requests handed to workers, ever.
    pub requests: u64,
    /// Requests that workers are at now.
    pub running: usize,
    /// Worker threads now.
    pub workers: usize,
    /// Bytes of the buffers that are in use now.
    pub buffered_bytes: u64,
}

impl fmt::Display for AsyncStats {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests handed over, {} running on {} workers, {} of buffers in use",
            Count(self.requests),
            self.running,
            self.workers,
            Bytes(self.buffered_bytes),
        )
    }
}

/// Runs a request, or refuses it.
type Job = Box<dyn FnOnce(Result<&Panics, Errno>) + Send>;

/// Workers and buffers of one file system.
pub(crate) struct Offload {
    workers: Workers<Job>,
    /// For reads that found their pages evicted time and again. Apart from the others, so that
    /// writers that are throttled do not stop readers.
    pub(crate) reads: Arc<Buffers>,
    /// For the bytes of writes that go to a worker.
    pub(crate) writes: Arc<Buffers>,
    /// Bytes of both.
    bytes: usize,
    mm: Arc<Mm>,
}

impl Offload {
    /// Charges the buffers to the bound; starts no thread.
    ///
    /// # Errors
    /// `ENOMEM` if the bound leaves no room for them.
    pub(crate) fn new(mm: &Arc<Mm>) -> Result<Self, Errno> {
        let bytes = whole_pages((mm.usage().limit_bytes / SHARE).clamp(LEAST, MOST) as usize);
        // Each buffer holds on to it: some may be in use for longer than this.
        let charge = &Arc::new(MetadataCharge::before_names(
            mm,
            bytes as u64,
            Duration::ZERO,
        )?);
        let (reads, writes) = (bytes / 4, bytes - bytes / 4);
        let limits = Limits {
            name: NAME,
            lanes: vec![LANE; 2],
            threads: WORKERS,
            idle: IDLE,
        };
        Ok(Self {
            workers: Workers::new(limits, mm.panics(), |job: Job, panics| job(Ok(panics))),
            reads: Buffers::new(mm, charge, reads, whole_pages(reads / 4)),
            writes: Buffers::new(mm, charge, writes, whole_pages(writes / 3).min(1 << 20)),
            bytes,
            mm: Arc::clone(mm),
        })
    }

    /// Has a worker run `task`. Does not block.
    ///
    /// # Errors
    /// `ECHILD` after a fork. The future gets the kernel's error where no thread could be started
    /// and there is none.
    pub(crate) fn submit<V: Send + 'static>(
        &self,
        kind: Kind,
        task: Task<V>,
    ) -> Result<Pending<V>, Errno> {
        self.mm.check_fork()?;
        if let Kind::Accepted(stragglers) = &kind {
            stragglers.enter();
        }
        let lane = usize::from(!matches!(kind, Kind::Read));
        let request = Request::new(kind, task);
        let queued = Arc::clone(&request);
        let job: Job = Box::new(move |worker| queued.run(worker));
        if let Err(NoThread { jobs, error }) = self.workers.submit(lane, job) {
            let errno = Errno::from(error);
            jobs.into_iter().for_each(|job| job(Err(errno)));
        }
        let mm = Arc::clone(&self.mm);
        Ok(Pending { request, mm })
    }

    /// Has a worker make `call`, and waits for its result.
    ///
    /// # Errors
    /// As [`Offload::submit`]; `EIO` if `call` panics.
    pub(crate) async fn call<V: Send + 'static>(
        &self,
        kind: Kind,
        call: impl FnOnce() -> V + Send + 'static,
    ) -> Result<V, Errno> {
        let mut call = Some(call);
        let task = Box::new(move || call.take().map(|call| call()).ok_or(Errno::EIO));
        self.submit(kind, task)?.await
    }

    /// Their figures. Takes a lock for a moment.
    pub(crate) fn stats(&self) -> AsyncStats {
        let stats = self.workers.stats();
        AsyncStats {
            requests: stats.submitted,
            running: stats.running,
            workers: stats.threads,
            buffered_bytes: (self.bytes - self.reads.free() - self.writes.free()) as u64,
        }
    }
}

impl Drop for Offload {
    /// Ends the workers after their current work. Does not wait for them: a store may hang, and
    /// they hold only the files that they work on.
    fn drop(&mut self) {
        self.workers.stop();
    }
}

impl Forked for Offload {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mm.check_fork()
    }
}
