//! The few threads that do what would block an async caller.
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
//! readers one, and the other way round. No request waits for another, so a queue is served as long
//! as the store is.

use foliocache_mm::Mm;
use foliocache_sync::Arc;
use foliocache_sync::time::Duration;
use foliocache_sync::workers::{Limits, NoThread, Workers as Threads};
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
    threads: Threads<Arc<dyn Run>>,
    mm: Arc<Mm>,
}

impl Workers {
    /// No thread yet.
    pub(crate) fn new(mm: &Arc<Mm>) -> Self {
        let limits = Limits {
            name: NAME,
            lanes: vec![LANE; 2],
            threads: WORKERS,
            idle: IDLE,
        };
        Self {
            threads: Threads::new(limits, mm.panics(), |request: Arc<dyn Run>, panics| {
                request.run(panics);
            }),
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
        let queued = Arc::clone(&request) as Arc<dyn Run>;
        if let Err(NoThread { jobs, error }) = self.threads.submit(lane as usize, queued) {
            let errno = Errno::from(error);
            for request in jobs {
                request.refuse(errno);
            }
        }
        Ok(Pending::new(request, &self.mm))
    }

    /// What they do. Takes a lock for a moment.
    pub(crate) fn stats(&self) -> AsyncStats {
        let stats = self.threads.stats();
        AsyncStats {
            requests: stats.submitted,
            running: stats.running,
            workers: stats.threads,
            buffered: 0,
        }
    }
}

impl Drop for Workers {
    /// Ends the workers, once what is under way is done. Does not wait for them: a store may hang,
    /// and they hold nothing of the cache but what they work on.
    fn drop(&mut self) {
        if self.mm.check_fork().is_ok() {
            self.threads.stop();
        }
    }
}
