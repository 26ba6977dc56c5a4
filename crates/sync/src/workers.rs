//! Threads that run jobs which may block, for callers that must not.
//!
//! # Model
//!
//! ```text
//!   submit(lane, job) ──▶ the lane's queue ──▶ a worker runs it
//! ```
//!
//! A thread is started when there are more jobs than idle threads, up to a limit for each lane and
//! one for all of them. A thread ends after some time without work. A lane that is full does not
//! take the threads of another one.
//!
//! # Invariants
//!
//! 1. A job in a queue has a thread on its way to it, unless its lane or the whole is at its limit:
//!    one that is idle and woken, or one that looks at the queues before it goes idle, or ends.
//! 2. Jobs of one lane start in the order in which they were submitted.
//! 3. A job that panics ends no thread. It is counted and reported ([`Panics`]).
//!
//! # Locking
//!
//! *Protects*: queues and counts. *Order*: leaf; jobs run and are dropped without it. *May block*:
//! the workers, and [`Workers::wait_idle`].

use crate::background::Panics;
use crate::thread;
use crate::time::Duration;
use crate::{Arc, Condvar, Mutex};
use foliocache_sys::signal::undisturbed;
use std::collections::VecDeque;
use std::io;
use std::mem;

/// How many threads there may be, and how long they stay.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The name of the threads.
    pub name: &'static str,
    /// Most threads that run jobs of each lane.
    pub lanes: Vec<usize>,
    /// Most threads together.
    pub threads: usize,
    /// How long a thread stays without work.
    pub idle: Duration,
}

/// Counts of the workers' threads and jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkersStats {
    /// Jobs ever submitted.
    pub submitted: u64,
    /// Jobs that wait for a thread.
    pub queued: usize,
    /// Jobs that run.
    pub running: usize,
    /// Threads that run or are being started.
    pub threads: usize,
}

/// No thread could be started, and there is none: the jobs that were not run, and why.
#[derive(Debug)]
pub struct NoThread<J> {
    /// The jobs, in order.
    pub jobs: Vec<J>,
    /// The error.
    pub error: io::Error,
}

/// Threads that run jobs. They outlive it until [`Workers::stop`].
pub struct Workers<J: Send + 'static> {
    shared: Arc<Shared<J>>,
}

struct Shared<J> {
    limits: Limits,
    panics: Arc<Panics>,
    run: fn(J, &Panics),
    state: Mutex<State<J>>,
    /// There is work, or an end.
    work: Condvar,
    /// The last job is done.
    done: Condvar,
}

struct State<J> {
    lanes: Vec<Lane<J>>,
    /// Threads that run.
    threads: usize,
    /// Threads that are being started.
    starting: usize,
    /// Threads that sleep, or were woken and have not taken a job yet.
    idle: usize,
    stop: bool,
    submitted: u64,
}

struct Lane<J> {
    queue: VecDeque<J>,
    running: usize,
    most: usize,
}

impl<J> State<J> {
    /// Jobs that a thread could take now.
    fn ready(&self) -> usize {
        let of = |lane: &Lane<J>| lane.queue.len().min(lane.most.saturating_sub(lane.running));
        self.lanes.iter().map(of).sum()
    }

    /// Takes the next job, of the lane that runs the fewest.
    fn next(&mut self) -> Option<(usize, J)> {
        let free = |lane: &Lane<J>| lane.running < lane.most && !lane.queue.is_empty();
        let lanes = self.lanes.iter().enumerate();
        let (at, _) = lanes
            .filter(|(_, lane)| free(lane))
            .min_by_key(|(_, lane)| lane.running)?;
        let lane = &mut self.lanes[at];
        let job = lane.queue.pop_front()?;
        lane.running += 1;
        Some((at, job))
    }

    fn queued(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queue.len()).sum()
    }

    fn running(&self) -> usize {
        self.lanes.iter().map(|lane| lane.running).sum()
    }
}

impl<J: Send + 'static> Workers<J> {
    /// Workers that do `run` with each job. Starts no thread yet.
    pub fn new(limits: Limits, panics: &Arc<Panics>, run: fn(J, &Panics)) -> Self {
        let lane = |&most: &usize| Lane {
            queue: VecDeque::new(),
            running: 0,
            most,
        };
        let state = State {
            lanes: limits.lanes.iter().map(lane).collect(),
            threads: 0,
            starting: 0,
            idle: 0,
            stop: false,
            submitted: 0,
        };
        Self {
            shared: Arc::new(Shared {
                limits,
                panics: Arc::clone(panics),
                run,
                state: Mutex::new(state),
                work: Condvar::new(),
                done: Condvar::new(),
            }),
        }
    }

    /// Has a worker run `job`. Does not wait for one.
    ///
    /// # Errors
    /// [`NoThread`] with all jobs that wait, where no thread could be started and none runs.
    pub fn submit(&self, lane: usize, job: J) -> Result<(), NoThread<J>> {
        let mut state = self.shared.state.lock();
        state.submitted += 1;
        state.lanes[lane].queue.push_back(job);
        let busy = state.ready() > state.idle + state.starting;
        let more = busy && state.threads + state.starting < self.shared.limits.threads;
        state.starting += usize::from(more);
        drop(state);
        self.shared.work.notify_one();
        if more { self.start() } else { Ok(()) }
    }

    /// Starts a thread that `starting` counts already.
    fn start(&self) -> Result<(), NoThread<J>> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(self.shared.limits.name.to_owned());
        let started = undisturbed(|| thread.spawn(move || shared.run()));
        let Err(error) = started else { return Ok(()) };
        let mut state = self.shared.state.lock();
        state.starting -= 1;
        if state.starting + state.threads > 0 {
            // Those come to the job sooner or later.
            return Ok(());
        }
        let queues = state
            .lanes
            .iter_mut()
            .map(|lane| mem::take(&mut lane.queue));
        let jobs = queues.flatten().collect();
        Err(NoThread { jobs, error })
    }

    /// The counts of now. Takes a lock for a moment.
    pub fn stats(&self) -> WorkersStats {
        let state = self.shared.state.lock();
        WorkersStats {
            submitted: state.submitted,
            queued: state.queued(),
            running: state.running(),
            threads: state.threads + state.starting,
        }
    }

    /// Ends the threads once the queues are empty. Does not wait for them.
    pub fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_all();
    }

    /// Waits until every job that was submitted has been run.
    pub fn wait_idle(&self) {
        let mut state = self.shared.state.lock();
        while state.queued() + state.running() > 0 {
            state = self.shared.done.wait(state);
        }
    }
}

impl<J> Shared<J> {
    fn run(&self) {
        let mut state = self.state.lock();
        state.starting -= 1;
        state.threads += 1;
        loop {
            if let Some((lane, job)) = state.next() {
                drop(state);
                let panics = &*self.panics;
                panics.catch(self.limits.name, || (self.run)(job, panics));
                state = self.state.lock();
                state.lanes[lane].running -= 1;
                if state.queued() + state.running() == 0 {
                    self.done.notify_all();
                }
                continue;
            }
            if state.stop {
                break;
            }
            state.idle += 1;
            let (locked, timed_out) = self.work.wait_timeout(state, self.limits.idle);
            state = locked;
            state.idle -= 1;
            // Invariant 1: a job may have come with the end of the wait.
            if timed_out && state.ready() == 0 {
                break;
            }
        }
        state.threads -= 1;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicUsize, Ordering};
    use crate::background::tests::is_undisturbed;
    use crate::time::{Instant, sleep};

    type Job = Box<dyn FnOnce() + Send>;

    fn panics() -> Arc<Panics> {
        Arc::new(Panics::new(|_, _| {}))
    }

    fn workers(lanes: &[usize], threads: usize, idle: Duration) -> Workers<Job> {
        let limits = Limits {
            name: "test",
            lanes: lanes.to_vec(),
            threads,
            idle,
        };
        Workers::new(limits, &panics(), |job, _| job())
    }

    fn submit(workers: &Workers<Job>, lane: usize, job: Job) {
        assert!(workers.submit(lane, job).is_ok());
    }

    /// A gate that jobs wait at.
    #[derive(Default)]
    struct Gate(Mutex<bool>, Condvar);

    impl Gate {
        fn pass(&self) {
            let mut open = self.0.lock();
            while !*open {
                open = self.1.wait(open);
            }
        }

        fn open(&self) {
            *self.0.lock() = true;
            self.1.notify_all();
        }
    }

    fn wait_for(mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn handlers_of_the_program_do_not_run_on_a_worker() {
        let workers = workers(&[1], 1, Duration::from_secs(60));
        let seen = Arc::new(AtomicUsize::new(0));
        let job = {
            let seen = Arc::clone(&seen);
            move || seen.store(1 + usize::from(is_undisturbed()), Ordering::Relaxed)
        };
        submit(&workers, 0, Box::new(job));
        workers.wait_idle();
        assert_eq!(seen.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_full_lane_leaves_threads_to_the_other() {
        let workers = workers(&[2, 1], 3, Duration::from_secs(60));
        let (gate, ran) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        for _ in 0..5 {
            let gate = Arc::clone(&gate);
            submit(&workers, 0, Box::new(move || gate.pass()));
        }
        wait_for(|| workers.stats().running == 2);
        let counter = Arc::clone(&ran);
        let count: Job = Box::new(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        submit(&workers, 1, count);
        wait_for(|| ran.load(Ordering::Relaxed) == 1);
        let stats = workers.stats();
        assert_eq!((stats.queued, stats.running, stats.threads), (3, 2, 3));
        gate.open();
        workers.wait_idle();
        assert_eq!(workers.stats().submitted, 6);
        assert_eq!(workers.stats().running, 0);
    }

    #[test]
    fn threads_end_when_they_are_idle_and_start_again() {
        let workers = workers(&[4], 4, Duration::from_millis(5));
        for _ in 0..2 {
            submit(&workers, 0, Box::new(|| {}));
            wait_for(|| workers.stats().threads == 0);
        }
        assert_eq!(workers.stats().queued, 0);
    }

    #[test]
    fn a_panic_is_counted_and_ends_no_thread() {
        let workers = workers(&[1], 1, Duration::from_secs(60));
        submit(&workers, 0, Box::new(|| panic!("a bug")));
        submit(&workers, 0, Box::new(|| {}));
        workers.wait_idle();
        assert_eq!(workers.shared.panics.count(), 1);
        assert_eq!(workers.stats().threads, 1);
        workers.stop();
        wait_for(|| workers.stats().threads == 0);
    }
}
