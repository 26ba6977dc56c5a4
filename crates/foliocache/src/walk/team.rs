//! A walk in several threads.
//!
//! # Model
//!
//! Each thread takes a directory and walks it depth first. It leaves directories below to
//! other threads while these may lack work, and else walks them itself. So the number of waiting directories is bounded, however
//! wide the tree is. Entries go
//! in batches through a queue of a fixed length.
//!
//! # Locking
//!
//! *Protects*: [`State`]. *Order*: before everything else; nothing is called under it. *May block*: in
//! waits for its conditions.

use foliocache_sync::{Arc, Condvar, Mutex, thread};
use foliocache_sys::Errno;
use foliocache_sys::signal::undisturbed;
use std::collections::VecDeque;
use std::vec;

use super::read::Job;
use super::steps::Steps;
use super::{Walk, WalkEntry};
use crate::error::{Operation, Result};
use crate::parent_only::{Forked, ParentOnly};

/// Entries that are handed over at once.
pub(super) const BATCH: usize = 128;
/// Batches and directories that wait, for each thread.
pub(super) const WAITING: usize = 4;

type Batch = Vec<Result<WalkEntry>>;

struct State {
    jobs: Vec<Job>,
    /// Threads that walk, and may find more.
    busy: usize,
    batches: VecDeque<Batch>,
    /// The reader is gone.
    stopped: bool,
}

struct Shared {
    walk: Arc<Walk>,
    threads: usize,
    state: Mutex<State>,
    /// There is a job, or the end.
    work: Condvar,
    /// There is a batch, or the end.
    ready: Condvar,
    /// There is room for a batch, or the reader is gone.
    room: Condvar,
}

/// The threads, which end when this is dropped.
struct Threads {
    shared: Arc<Shared>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl Threads {
    /// As many threads as can be had of those wanted; `None` if that is none.
    fn start(shared: Shared, wanted: usize) -> Option<ParentOnly<Self>> {
        let shared = Arc::new(shared);
        let handles = (0..wanted).map_while(|_| {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name("foliocache-walk".to_owned());
            undisturbed(|| builder.spawn(move || shared.run())).ok()
        });
        let handles: Vec<_> = handles.collect();
        (!handles.is_empty()).then(|| ParentOnly::new(Self { shared, handles }))
    }
}

impl Forked for Threads {
    fn check_fork(&self) -> Result<(), Errno> {
        self.shared.walk.start.check_fork()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop();
        for handle in self.handles.drain(..) {
            // A panic was reported when it happened.
            let _ = handle.join();
        }
    }
}

/// The reader's side.
pub(super) struct Team {
    threads: ParentOnly<Threads>,
    batch: vec::IntoIter<Result<WalkEntry>>,
    /// In a forked child the walk ended with an error.
    ended: bool,
}

impl Team {
    /// Starts the walk; gives it back where no thread can be had.
    pub(super) fn new(walk: &Arc<Walk>, start: Box<Job>, threads: usize) -> Result<Self, Box<Job>> {
        let shared = Shared {
            walk: Arc::clone(walk),
            threads,
            state: Mutex::new(State {
                jobs: Vec::new(),
                // Until there is work.
                busy: 1,
                batches: VecDeque::new(),
                stopped: false,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            room: Condvar::new(),
        };
        let Some(threads) = Threads::start(shared, threads) else {
            return Err(start);
        };
        let shared = &threads.shared;
        let starting = Busy(shared);
        shared.state.lock().jobs.push(*start);
        drop(starting);
        shared.work.notify_one();
        Ok(Self {
            threads,
            batch: Vec::new().into_iter(),
            ended: false,
        })
    }

    pub(super) fn next(&mut self) -> Option<Result<WalkEntry>> {
        loop {
            if let Some(entry) = self.batch.next() {
                return Some(entry);
            }
            if let Err(errno) = self.threads.check_fork() {
                // A forked child has no threads that walk.
                let walk = &self.threads.shared.walk;
                let error = walk.start.error(Operation::ReadDir, &walk.path, errno);
                let ended = std::mem::replace(&mut self.ended, true);
                return (!ended).then_some(Err(error));
            }
            self.batch = self.threads.shared.next_batch()?.into_iter();
        }
    }

    /// Directories and entries that wait.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let state = self.threads.shared.state.lock();
        (state.jobs.len(), state.batches.iter().map(Vec::len).sum())
    }
}

/// A thread that walks; it does no more once this is dropped, also by a panic.
struct Busy<'a>(&'a Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.busy -= 1;
        if state.is_done() {
            self.0.work.notify_all();
            self.0.ready.notify_all();
        }
    }
}

impl State {
    fn is_done(&self) -> bool {
        self.stopped || (self.busy == 0 && self.jobs.is_empty())
    }
}

impl Shared {
    /// Runs in each thread.
    fn run(&self) {
        while let Some((busy, job)) = self.take() {
            let (path, mut batch) = (job.entry.path.clone(), Batch::new());
            let walked = self.walk.catch(&path, || self.walk_below(job, &mut batch));
            let walked = walked.unwrap_or_else(|error| {
                batch.push(Err(error));
                self.hand_over(batch)
            });
            if walked.is_err() {
                return;
            }
            drop(busy);
        }
    }

    /// Makes the threads end soon, waiting ones included.
    fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    fn take(&self) -> Option<(Busy<'_>, Job)> {
        let mut state = self.state.lock();
        loop {
            if state.is_done() {
                return None;
            }
            if let Some(job) = state.jobs.pop() {
                state.busy += 1;
                return Some((Busy(self), job));
            }
            state = self.work.wait(state);
        }
    }

    /// Walks a directory; an error if the reader is gone.
    fn walk_below(&self, job: Job, batch: &mut Batch) -> Result<(), ()> {
        let mut steps = Steps::new(&self.walk, Box::new(job));
        while let Some(step) = steps.next() {
            batch.push(step.map(|(entry, job)| {
                steps.descend(job.and_then(|job| self.offer(job)));
                entry
            }));
            if batch.len() >= BATCH {
                self.hand_over(std::mem::take(batch))?;
            }
        }
        self.hand_over(std::mem::take(batch))
    }

    /// Leaves a directory to others, unless they have enough.
    fn offer(&self, job: Box<Job>) -> Option<Box<Job>> {
        let mut state = self.state.lock();
        if state.jobs.len() >= WAITING * self.threads {
            return Some(job);
        }
        state.jobs.push(*job);
        drop(state);
        self.work.notify_one();
        None
    }

    fn hand_over(&self, batch: Batch) -> Result<(), ()> {
        let mut state = self.state.lock();
        while state.batches.len() >= WAITING * self.threads && !state.stopped {
            state = self.room.wait(state);
        }
        if state.stopped {
            return Err(());
        }
        if !batch.is_empty() {
            state.batches.push_back(batch);
            self.ready.notify_one();
        }
        Ok(())
    }

    fn next_batch(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                self.room.notify_one();
                return Some(batch);
            }
            if state.is_done() {
                return None;
            }
            state = self.ready.wait(state);
        }
    }
}
