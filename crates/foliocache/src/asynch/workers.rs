//! The few threads that do what would block an async caller.
//!
//! # Model
//!
//! ```text
//!   reads   ─▶ ┐ at most LANE workers each,
//!   changes ─▶ ┘ WORKERS together
//! ```
//!
//! One set of workers a file system, so that a store that hangs stops its own users only. They are
//! started when there is more to do than idle workers, and end after some seconds without work. No
//! lane ever has all of them: writers that are throttled, or syncs that take long, leave readers
//! one, and the other way round. No request waits for another, so a queue is served as long as
//! the store is.
//!
//! # Invariants
//!
//! 1. A request in a queue has a worker on its way to it: one that is idle and woken, or one that
//!    looks at the queues before it goes idle, or ends.
//!
//! # Locking
//!
//! *Protects*: queues and counts. *Order*: leaf; requests run and are dropped without it. *May
//! block*: workers only.

use std::collections::VecDeque;
use std::mem;

use foliocache_mm::Mm;
use foliocache_sync::background::Panics;
use foliocache_sync::thread;
use foliocache_sync::time::Duration;
use foliocache_sync::{Arc, Condvar, Mutex};
use foliocache_sys::Errno;

use crate::asynch::AsyncStats;
use crate::asynch::request::{Pending, Request, Run, Stragglers, Task};

/// The threads' name.
pub(super) const NAME: &str = "foliocache-async";

/// Most threads of one file system.
const WORKERS: usize = 4;

/// Most of them that one lane may have.
const LANE: usize = WORKERS - 1;

/// How long a worker stays without work.
const IDLE: Duration = Duration::from_secs(5);

/// What a request is in line with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Bringing pages in.
    Reads = 0,
    /// Everything else.
    Changes = 1,
}

/// The workers of one file system.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    mm: Arc<Mm>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is work, or an end.
    work: Condvar,
}

#[derive(Default)]
struct State {
    lanes: [Queue; 2],
    /// The threads there are.
    threads: usize,
    /// Those that sleep, or were woken and have not taken a request yet.
    idle: usize,
    stop: bool,
    /// Requests ever taken in.
    requests: u64,
    /// Threads being started.
    starting: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<dyn Run>>,
    running: usize,
}

impl State {
    /// Requests that a worker could take now.
    fn ready(&self) -> usize {
        let of = |lane: &Queue| lane.waiting.len().min(LANE.saturating_sub(lane.running));
        self.lanes.iter().map(of).sum()
    }

    /// Takes the next request: of the lane that has fewer workers.
    fn next(&mut self) -> Option<(usize, Arc<dyn Run>)> {
        let mut order = [Lane::Reads as usize, Lane::Changes as usize];
        order.sort_by_key(|&lane| self.lanes[lane].running);
        order.into_iter().find_map(|at| {
            let lane = &mut self.lanes[at];
            if lane.running >= LANE {
                return None;
            }
            let request = lane.waiting.pop_front()?;
            lane.running += 1;
            Some((at, request))
        })
    }
}

impl Workers {
    /// No thread yet.
    pub(crate) fn new(mm: &Arc<Mm>) -> Self {
        Self {
            shared: Arc::default(),
            mm: Arc::clone(mm),
        }
    }

    /// Has a worker run `task`. Does not block.
    ///
    /// # Errors
    /// `ECHILD` after a fork. The future gets the kernel's error where no thread could be started
    /// and there is none.
    pub(crate) fn submit<T: Task>(
        &self,
        lane: Lane,
        task: T,
        stragglers: Option<&Arc<Stragglers>>,
    ) -> Result<Pending<T>, Errno> {
        self.mm.check_fork()?;
        let request = Request::new(task, stragglers);
        let mut state = self.shared.state.lock();
        state.requests += 1;
        let queued = Arc::clone(&request) as Arc<dyn Run>;
        state.lanes[lane as usize].waiting.push_back(queued);
        let busy = state.ready() > state.idle + state.starting;
        let more = busy && state.threads + state.starting < WORKERS;
        state.starting += usize::from(more);
        drop(state);
        self.shared.work.notify_one();
        if more {
            self.start();
        }
        Ok(Pending::new(request, &self.mm))
    }

    /// Starts a worker that `starting` counts already.
    fn start(&self) {
        let shared = Arc::clone(&self.shared);
        let panics = Arc::clone(self.mm.panics());
        let started = thread::Builder::new()
            .name(NAME.into())
            .spawn(move || shared.run(&panics));
        let Err(error) = started else { return };
        let mut state = self.shared.state.lock();
        state.starting -= 1;
        if state.starting + state.threads > 0 {
            // Those come to it sooner or later.
            return;
        }
        let refused = mem::take(&mut state.lanes);
        drop(state);
        let errno = Errno::from(error);
        for request in refused.into_iter().flat_map(|lane| lane.waiting) {
            request.refuse(errno);
        }
    }

    /// What they are at. Takes a lock for a moment.
    pub(crate) fn stats(&self) -> AsyncStats {
        let state = self.shared.state.lock();
        AsyncStats {
            requests: state.requests,
            running: state.lanes.iter().map(|lane| lane.running).sum(),
            workers: state.threads + state.starting,
            buffered: 0,
        }
    }
}

impl Shared {
    fn run(&self, panics: &Panics) {
        let mut state = self.state.lock();
        state.starting -= 1;
        state.threads += 1;
        loop {
            if let Some((lane, request)) = state.next() {
                drop(state);
                // What may panic here are wakers, and what goes with the last holder of a file.
                panics.catch(NAME, || request.run(panics));
                state = self.state.lock();
                state.lanes[lane].running -= 1;
                continue;
            }
            if state.stop {
                break;
            }
            state.idle += 1;
            let (locked, timeout) = self.work.wait_timeout(state, IDLE);
            state = locked;
            state.idle -= 1;
            // Invariant 1: once more, in case a request came with the end of the wait.
            if timeout.timed_out() && state.ready() == 0 {
                break;
            }
        }
        state.threads -= 1;
    }
}

impl Drop for Workers {
    /// Ends the workers, once what is under way is done. Does not wait for them: a store may hang,
    /// and they hold nothing of the cache but what they work on.
    fn drop(&mut self) {
        if self.mm.check_fork().is_ok() {
            self.shared.state.lock().stop = true;
            self.shared.work.notify_all();
        }
    }
}
