//! Directories of an ordered walk, which several threads read ahead of the caller.
//!
//! # Model
//!
//! ```text
//!            offer                    take                         put
//!  (in order) ───▶ next: one directory ───▶ slots: Taken, by a thread ──▶ Read │ Part
//!                  in each that was read                                  │
//!  caller ◀────────────────────────────── claim ──────────────────────────┘
//! ```
//!
//! Paths compare as the order of the walk is: component by component, a directory before what is in it.
//! A thread takes the first directory of [`State::next`], whose place goes to the one after it that is in
//! the same directory. The caller needs directories in the same order, takes each out of its slot, and
//! reads it itself where no thread has come to it yet: it waits only for a thread that reads.
//!
//! A thread that reads waits for nothing. Where there is no room for more entries it leaves the rest
//! of a directory to the caller ([`Slot::Part`]). A directory gets no more room than it leaves
//! over, so that a large one, read early because a thread was free, leaves some for those before it.
//!
//! # Invariants
//!
//! 1. At most [`DIRECTORIES`] slots for each thread.
//! 2. [`State::room`] and what all slots and threads hold make [`ENTRIES`].
//! 3. A path in `next` is in no slot. It was not passed by the caller either.
//!
//! # Locking
//!
//! *Protects*: [`State`]. *Order*: before everything else; nothing is called under it. *May block*: in
//! waits for its conditions.

use foliocache_sync::{Arc, Condvar, Mutex};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Walk;
use super::read::{Below, Job, Open, Unsorted};
use super::threads::{Threads, Work};
use crate::directory::BATCH;
use crate::error::Result;
use crate::parent_only::{Forked, ParentOnly};

/// Directories that are read ahead or being read, for each thread.
pub(super) const DIRECTORIES: usize = 32;
/// Entries of these, in all.
pub(super) const ENTRIES: usize = 128 * BATCH;

enum Slot {
    /// A thread reads it.
    Taken,
    Read(Result<Open>),
    /// There was no room for all of it.
    Part(Unsorted),
}

struct State {
    /// To be read, by path.
    next: BTreeMap<PathBuf, Below>,
    /// Directories that were read, with the number of entries that each holds, by path.
    slots: BTreeMap<PathBuf, (Slot, usize)>,
    /// For entries.
    room: usize,
    /// The iterator is gone.
    stopped: bool,
}

struct Shared {
    walk: Arc<Walk>,
    /// Slots, at most.
    slots: usize,
    state: Mutex<State>,
    /// There is a directory to be read and room for it, or the end.
    work: Condvar,
    /// A directory was read.
    ready: Condvar,
}

/// The caller's side.
pub(super) struct Ahead(ParentOnly<Threads<Shared>>);

impl Ahead {
    /// `None` where no thread can be had.
    pub(super) fn new(walk: &Arc<Walk>, threads: usize) -> Option<Self> {
        let shared = Shared {
            walk: Arc::clone(walk),
            slots: DIRECTORIES.saturating_mul(threads),
            state: Mutex::new(State {
                next: BTreeMap::new(),
                slots: BTreeMap::new(),
                room: ENTRIES,
                stopped: false,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
        };
        Threads::start(shared, threads).map(Self)
    }

    /// The next directory in the order.
    pub(super) fn open(&self, walk: &Walk, job: Job) -> Result<Open> {
        // A forked child has no threads that read ahead.
        if self.0.check_fork().is_err() {
            return walk.unsorted(job).map(Unsorted::sort);
        }
        let open = match self.0.shared().claim(&job.entry.path) {
            // The thread that read it has offered the directories in it.
            Some(Slot::Read(open)) => return open,
            Some(Slot::Part(unsorted)) => unsorted.sort(),
            _ => walk.unsorted(job)?.sort(),
        };
        let below = Below::all(walk, &open);
        let shared = self.0.shared();
        shared.offer(&mut shared.state.lock(), below);
        Ok(open)
    }

    /// Directories and entries that are read ahead.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let state = self.0.shared().state.lock();
        let entries = |(slot, held): &(Slot, usize)| {
            let entries = match slot {
                Slot::Read(Ok(open)) => open.len(),
                Slot::Part(unsorted) => unsorted.len(),
                Slot::Read(Err(_)) | Slot::Taken => 0,
            };
            assert_eq!(entries, *held);
            entries
        };
        let read: usize = state.slots.values().map(entries).sum();
        // Directories that threads read now hold no more entries than they got room for.
        assert!(read + state.room <= ENTRIES);
        (state.slots.len(), ENTRIES - state.room)
    }
}

impl Work for Shared {
    fn walk(&self) -> &Walk {
        &self.walk
    }

    fn run(&self) {
        while let Some(job) = self.take() {
            let path = job.entry.path.clone();
            let mut held = BATCH;
            let read = self.walk.catch(&path, || self.read(job, &mut held));
            let (slot, entries) = read.unwrap_or_else(|error| (Slot::Read(Err(error)), 0));
            self.put(path, slot, entries, held);
        }
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
    }
}

impl Shared {
    /// The first directory that is to be read, once there is room; `None` at the end.
    fn take(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if state.slots.len() < self.slots
                && state.room >= BATCH
                && let Some((path, below)) = state.next.pop_first()
            {
                let job = below.job();
                state.room -= BATCH;
                state.slots.insert(path, (Slot::Taken, 0));
                state.add(below.next());
                return Some(job);
            }
            state = self.work.wait(state);
        }
    }

    /// Reads a directory as far as there is room; `held` is the room that it got.
    fn read(&self, job: Job, held: &mut usize) -> (Slot, usize) {
        let mut unsorted = match self.walk.unsorted(job) {
            Ok(unsorted) => unsorted,
            Err(error) => return (Slot::Read(Err(error)), 0),
        };
        while unsorted.read(BATCH) {
            let mut state = self.state.lock();
            if state.stopped || state.room < *held + BATCH {
                let entries = unsorted.len();
                return (Slot::Part(unsorted), entries);
            }
            state.room -= BATCH;
            *held += BATCH;
        }
        let entries = unsorted.len();
        (Slot::Read(Ok(unsorted.sort())), entries)
    }

    /// Leaves the entries to the caller, and the directories below to the threads.
    fn put(&self, path: PathBuf, slot: Slot, entries: usize, held: usize) {
        let below = match &slot {
            Slot::Read(Ok(open)) => Below::all(&self.walk, open),
            _ => None,
        };
        let mut state = self.state.lock();
        state.room += held - entries;
        state.slots.insert(path, (slot, entries));
        self.offer(&mut state, below);
        drop(state);
        self.ready.notify_one();
    }

    fn offer(&self, state: &mut State, below: Option<Below>) {
        if below.is_some() {
            state.add(below);
            self.work.notify_all();
        }
    }

    /// Takes a directory out of its slot, after its thread has read it. `None` if no thread has begun to, and none will.
    fn claim(&self, path: &Path) -> Option<Slot> {
        let mut state = self.state.lock();
        if let Some(below) = state.next.remove(path) {
            state.add(below.next());
            return None;
        }
        while let (Slot::Taken, _) = state.slots.get(path)? {
            state = self.ready.wait(state);
        }
        let (slot, entries) = state.slots.remove(path)?;
        state.room += entries;
        // Not after each: a woken thread should find several directories.
        if state.slots.len() <= self.slots / 2 {
            self.work.notify_all();
        }
        Some(slot)
    }
}

impl State {
    fn add(&mut self, below: Option<Below>) {
        self.next.extend(below.map(|below| (below.path(), below)));
    }
}
