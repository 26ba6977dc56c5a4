//! Chooses the thread that serves a request.
//!
//! # Model
//!
//! ```text
//!  kernel ──▶ reader ──┬─ never waits ─────────────▶ served by the reader
//!                      ├─ may wait, readers left ──▶ served by the reader
//!                      ├─ a cached read or write ──▶ served by the reader, without waiting
//!                      └─ else ────────────────────▶ handed over to a worker
//! ```
//!
//! The *readers* are the FUSE library's threads: a fixed number, each with a large buffer. A
//! request that may wait for a store, for memory or for the dirty limit is served by its reader as
//! long as enough other readers are left. That is the usual case and costs one atomic operation.
//! Beyond that, requests go to *workers*, which start on demand and end when they are idle. So a
//! hung store or throttled writers occupy a limited number of readers and workers, and requests
//! that cannot wait are still served.
//!
//! Requests have two lanes, because file data usually hangs before names do: one for requests that only read names
//! and attributes, and one for all others. The kernel sends no request that must follow another one before that one
//! is answered, so requests need no order here: a handle's release comes after the answers to all its reads, writes
//! and syncs, and a sync after the answers to the writes that it covers.
//!
//! # Invariants
//!
//! 1. At least one reader serves no request that may wait, and one more none of [`Lane::Io`].
//! 2. Workers hold at most [`HELD`] bytes of writes, not counting stores into mappings: those must
//!    be taken whole, and the kernel sends at most [`MAX_BACKGROUND`] at once. A write beyond that
//!    is cut to a page, and the caller gets a short count. [`WORKERS_MEMORY`] includes all of it,
//!    in pages that return to the kernel when they are written.
//! 3. A request is answered exactly once, after a panic too: a dropped reply answers `EIO`.
//!
//! # Memory ordering
//!
//! `busy` and `held` only count; nothing is published through them: every access is `Relaxed`.

use crate::buffers::MAX_REQUEST;
use crate::conn::{FuseConn, answer};
use crate::data::{ReadRequest, WriteRequest};
use crate::entry::Entry;
use crate::stats::add;
use foliocache_sync::Arc;
use foliocache_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use foliocache_sync::time::Duration;
use foliocache_sync::workers::{Limits, NoThread, Workers};
use foliocache_sys::Errno;
use foliocache_sys::memory::{PAGE_SIZE, PageVec};

/// The queue that a request joins when all workers are busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Reads of names and attributes.
    Names = 0,
    /// All other requests that may wait.
    Io = 1,
}

/// Most workers of each lane.
const WORKERS: [usize; 2] = [16, 64];

/// How long an idle worker stays.
const IDLE: Duration = Duration::from_secs(5);

/// Most bytes of writes that workers hold.
const HELD: usize = 8 << 20;

/// Most requests that the kernel sends without a waiting caller: readahead and stores into mappings. Workers may
/// have to hold all of these at once.
pub(crate) const MAX_BACKGROUND: u16 = 8;

/// Memory of a worker: its stack, and a buffer for copies from file to file.
const WORKER_BYTES: u64 = 96 << 10;

/// Most memory of the workers and of the writes that they hold.
pub(crate) const WORKERS_MEMORY: u64 = (WORKERS[0] + WORKERS[1]) as u64 * WORKER_BYTES
    + HELD as u64
    + MAX_BACKGROUND as u64 * MAX_REQUEST as u64;

/// A request on its way to a worker.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Readers that serve a request that may wait: all of them in the lower half, those of [`Lane::Io`]
/// in the upper.
struct Readers {
    busy: AtomicU32,
    most: u32,
    most_io: u32,
}

/// A reader is busy as long as this lives.
struct Busy<'a> {
    readers: &'a Readers,
    amount: u32,
}

impl Readers {
    fn new(threads: usize) -> Readers {
        let threads = threads.min(usize::from(u16::MAX)) as u32;
        Readers {
            busy: AtomicU32::new(0),
            most: threads.saturating_sub(1),
            most_io: threads.saturating_sub(2),
        }
    }

    /// Admits this reader to a request that may wait; `None` if too few others would be left.
    fn enter(&self, lane: Lane) -> Option<Busy<'_>> {
        let amount = match lane {
            Lane::Names => 1,
            Lane::Io => 1 << 16 | 1,
        };
        let more = |busy: u32| {
            let (all, io) = (busy & 0xffff, busy >> 16);
            let room = all < self.most && (lane == Lane::Names || io < self.most_io);
            room.then(|| busy + amount)
        };
        // Relaxed: see the module's header.
        let entered = self
            .busy
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        entered.ok().map(|_| Busy {
            readers: self,
            amount,
        })
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Relaxed: see the module's header.
        self.readers.busy.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// Bytes of a write that a worker holds, counted until the drop.
pub(crate) struct HeldRoom {
    len: usize,
    all: Arc<AtomicUsize>,
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        // Relaxed: see the module's header.
        self.all.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Serves the requests of one mount.
pub(crate) struct Server {
    pub(crate) conn: Arc<FuseConn>,
    readers: Readers,
    pub(crate) workers: Arc<Workers<Job>>,
    held: Arc<AtomicUsize>,
}

impl Server {
    /// For a mount with this many readers. No worker runs yet.
    pub(crate) fn new(conn: Arc<FuseConn>, threads: usize) -> Server {
        let limits = Limits {
            name: "fuse-worker",
            lanes: WORKERS.to_vec(),
            threads: WORKERS.iter().sum(),
            idle: IDLE,
        };
        Server {
            readers: Readers::new(threads),
            workers: Arc::new(Workers::new(limits, &conn.panics, |job: Job, _| job())),
            held: Arc::default(),
            conn,
        }
    }

    /// Serves a request that may wait, here or on a worker.
    pub(crate) fn serve(&self, lane: Lane, serve: impl FnOnce(&FuseConn) + Send + 'static) {
        match self.readers.enter(lane) {
            Some(_busy) => _ = self.run(|| serve(&self.conn)),
            None => self.hand_over(lane, serve),
        }
    }

    /// Serves a request whose answer is only success or an error.
    pub(crate) fn serve_empty(
        &self,
        lane: Lane,
        name: &'static str,
        reply: fuser::ReplyEmpty,
        run: impl FnOnce(&FuseConn) -> Result<(), Errno> + Send + 'static,
    ) {
        self.serve(lane, move |conn| {
            let done = conn.attempt(name, || run(conn));
            answer!(reply, done, () => reply.ok());
        });
    }

    /// Serves a request whose answer is an inode.
    pub(crate) fn serve_entry(
        &self,
        lane: Lane,
        name: &'static str,
        reply: fuser::ReplyEntry,
        run: impl FnOnce(&FuseConn) -> Result<Entry, Errno> + Send + 'static,
    ) {
        self.serve(lane, move |conn| {
            let done = conn.attempt(name, || run(conn));
            answer!(reply, done, entry => {
                let (attr_ttl, name_ttl) = (entry.attr_ttl, entry.name_ttl);
                reply.entry_with_ttls(&attr_ttl, &name_ttl, &entry.attr, entry.generation);
            });
        });
    }

    /// Reads: here if it may wait here or need not wait, otherwise on a worker.
    pub(crate) fn read(&self, request: ReadRequest, reply: fuser::ReplyData) {
        let conn = &self.conn;
        let answer = move |done: Result<&[u8], _>| answer!(reply, done, bytes => reply.data(bytes));
        if let Some(_busy) = self.readers.enter(Lane::Io) {
            self.run(|| conn.read(&request, answer));
            return;
        }
        if let Some(Some(unanswered)) = self.run(|| conn.read_nowait(&request, answer)) {
            self.hand_over(Lane::Io, move |conn| {
                conn.fetch_and_read(&request, unanswered);
            });
        }
    }

    /// Writes: here if it may wait here or need not wait, otherwise on a worker, which gets a copy
    /// of the bytes.
    pub(crate) fn write(&self, request: WriteRequest, data: &[u8], reply: fuser::ReplyWrite) {
        let (conn, whole) = (&self.conn, request.is_from_cache());
        let from_cache = whole.then(|| conn.kernel_pages.write_begins());
        if let Some(_busy) = self.readers.enter(Lane::Io) {
            self.run(|| {
                let done = conn.attempt("write", || conn.do_write(&request, data));
                answer!(reply, done, n => reply.written(n));
            });
            return;
        }
        let done = match conn.attempt("write", || conn.write_nowait(&request, data)) {
            Ok((done, true)) => return reply.written(done as u32),
            Ok((done, false)) => done,
            Err(error) => return reply.error(error),
        };
        let held = match conn.catch("write", || self.hold(&data[done..], whole)) {
            Ok(held) => held,
            // The next write gets the error.
            Err(_) if done > 0 && !whole => return reply.written(done as u32),
            Err(error) => return reply.error(error),
        };
        self.hand_over(Lane::Io, move |conn| {
            let rest = request.after(done);
            let more = conn.catch("write", || conn.do_write(&rest, &held.0));
            drop(held);
            match more {
                Ok(more) => reply.written(done as u32 + more),
                // The next write gets the error.
                Err(_) if done > 0 && !whole => reply.written(done as u32),
                Err(error) => reply.error(error),
            }
            drop(from_cache);
        });
    }

    /// Hands a request to a worker. Does not wait.
    fn hand_over(&self, lane: Lane, serve: impl FnOnce(&FuseConn) + Send + 'static) {
        add(&self.conn.counters.handed_over, 1);
        let conn = Arc::clone(&self.conn);
        let job: Job = Box::new(move || serve(&conn));
        if let Err(NoThread { jobs, error }) = self.workers.submit(lane as usize, job) {
            tracing::warn!(%error, "cannot start a thread: requests wait for one another");
            for job in jobs {
                self.run(job);
            }
        }
    }

    /// A copy of the bytes for a worker: all of `data`, or as many as there is room for.
    ///
    /// # Errors
    /// Those of [`PageVec::copy_of`].
    fn hold(&self, data: &[u8], whole: bool) -> Result<(PageVec<u8>, HeldRoom), Errno> {
        let more = |held: usize| {
            let sum = held + data.len();
            (whole || sum <= HELD).then_some(sum)
        };
        // Relaxed, here and below: see the module's header.
        let relaxed = Ordering::Relaxed;
        let mut len = data.len();
        if self.held.fetch_update(relaxed, relaxed, more).is_err() {
            len = len.min(PAGE_SIZE);
            self.held.fetch_add(len, relaxed);
        }
        let room = HeldRoom {
            len,
            all: Arc::clone(&self.held),
        };
        Ok((PageVec::copy_of(&data[..len])?, room))
    }

    /// Runs the handler of a request. A panic outside the operation itself does not end the reader
    /// either.
    fn run<R>(&self, serve: impl FnOnce() -> R) -> Option<R> {
        self.conn.panics.catch("fuser", serve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_may_wait_leave_some_for_requests_that_cannot() {
        let readers = Readers::new(8);
        let io: Vec<_> = (0..6).map(|_| readers.enter(Lane::Io).unwrap()).collect();
        assert!(readers.enter(Lane::Io).is_none());
        let names = readers.enter(Lane::Names).unwrap();
        assert!(readers.enter(Lane::Names).is_none());
        drop(io);
        assert!(readers.enter(Lane::Io).is_some());
        drop(names);
        assert_eq!(readers.busy.load(Ordering::Relaxed), 0);
        assert!(Readers::new(1).enter(Lane::Names).is_none());
        assert!(Readers::new(2).enter(Lane::Io).is_none());
    }
}
