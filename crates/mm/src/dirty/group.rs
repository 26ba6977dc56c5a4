//! Group commit: callers that make the same file durable at the same time share one pass and one flush.
//!
//! # Model
//!
//! ```text
//!  leader      ├ gathers ┤ closes the group ├── writes all that is dirty, flushes ──┤ result
//!  others        × joins                                                            ▼ theirs, too
//!                                             × comes later: joins the next group, waits, or leads it
//! ```
//!
//! A pass covers what was dirty when it began, so a group takes members only until then. The next group has a leader
//! once the work before it has ended: the first member that wakes, or a caller that comes just then.
//!
//! A leader gathers if others were there last time, until as many have come or [`WINDOW`] is over. It gives way
//! instead of sleeping: the others are about to run, and a wake-up may take longer than they do. Callers that take
//! longer than the window between two records make it gather in vain, so leaders then gather less and less often.
//!
//! Files of which many pages are to be written have no groups: there a write beside a flush gains more than a shared one
//! ([decision 36](../../../../docs/decisions/0036-writes-beside-a-flush.md)).
//!
//! # Invariants
//!
//! 1. Who joins a group has dirtied its data before, and the group's work begins afterwards.
//! 2. The work of one group runs at a time.
//! 3. A group gets one result, an error if its work panicked, and each of its members returns it.
//!
//! # Locking
//!
//! `state` is a leaf, and not held over the work. *May block*: members, for the work of the group before and of their
//! own; so they hold no lock that the work takes.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::cell::OnceLock;
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use foliocache_sys::Errno;

use crate::types::PAGE_SIZE;

/// Longest that a leader gathers.
const WINDOW: Duration = Duration::from_micros(60);

/// How often a leader gives way at most. Time stands still in a model.
const MOST_TURNS: u32 = if cfg!(any(loom, shuttle)) { 3 } else { 1000 };

/// After how many vain gatherings in a row leaders do not gather still less often: once in 128 groups.
const MOST_VAIN: u32 = 7;

/// Most pages that are to be written of a file with groups. A model has both ways.
const MOST_PAGES: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

#[derive(Debug)]
struct Group {
    result: OnceLock<Result<(), Errno>>,
    /// The result, or nobody leads.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody leads: gathers or works.
    led: bool,
    /// The group that takes members, if anybody but a leader is in it.
    open: Option<Arc<Group>>,
    /// Its members, without a leader that never waited.
    members: u32,
    /// Callers that the next leader gathers.
    expected: u32,
    /// Gatherings in a row that were in vain, at most [`MOST_VAIN`].
    vain: u32,
    /// Groups that do not gather, after one that was in vain.
    skip: u32,
}

/// The groups of a file.
#[derive(Debug)]
pub(crate) struct Groups {
    state: Mutex<State>,
    /// Bytes that the last work wrote, the largest number before the first. Relaxed: a guess at what the next one will.
    written: AtomicU64,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            written: AtomicU64::new(u64::MAX),
        }
    }
}

/// Work that is under way. Dropped, it gives the group its result, an error if the work panicked.
struct Working<'a> {
    groups: &'a Groups,
    group: Option<Arc<Group>>,
    members: u32,
    result: Result<(), Errno>,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.groups.state.lock();
        if foliocache_sync::planted!(record_acknowledged_too_early) && self.group.is_none() {
            self.group = state.open.take();
        }
        if let Some(group) = &self.group {
            let noted = group.result.set(self.result);
            debug_assert!(noted.is_ok(), "one result for each group");
        }
        state.led = false;
        state.expected = self.members + state.members;
        let next = state.open.clone();
        drop(state);
        if let Some(group) = &self.group {
            group.changed.notify_all();
        }
        if let Some(next) = next {
            next.changed.notify_one();
        }
    }
}

impl Groups {
    /// Whether a file of which so many pages count as dirty may have much to be written. A large folio counts whole, so with
    /// one record in it a log has many dirty pages; its last record tells better.
    pub(crate) fn may_be_much(&self, dirty_pages: u64) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        dirty_pages > MOST_PAGES && written / PAGE_SIZE as u64 > MOST_PAGES
    }

    /// Bytes that the work for a group, or beside one, has written. Zero is ignored: others had written them by then.
    pub(crate) fn note_written(&self, bytes: u64) {
        if bytes > 0 {
            self.written.store(bytes, Ordering::Relaxed);
        }
    }

    /// Whether a caller would have to wait now.
    pub(crate) fn is_led(&self) -> bool {
        self.state.lock().led
    }

    /// Runs `work`, or returns the result of somebody else's that began after this call.
    ///
    /// Context: no lock that the work takes. May block for the work of two groups.
    ///
    /// # Errors
    /// Those of the work; `EIO` if it panicked in another thread.
    pub(crate) fn run(&self, work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.members += 1;
        if state.led {
            let group = state.open.get_or_insert_with(|| {
                Arc::new(Group {
                    result: OnceLock::new(),
                    changed: Condvar::new(),
                })
            });
            let group = Arc::clone(group);
            loop {
                state = group.changed.wait(state);
                if let Some(&result) = group.result.get() {
                    return result;
                }
                if !state.led {
                    break;
                }
            }
        }
        state.led = true;
        let mut state = self.gather(state);
        let mut working = Working {
            groups: self,
            group: state.open.take(),
            members: std::mem::take(&mut state.members),
            result: Err(Errno::EIO),
        };
        drop(state);
        working.result = work();
        working.result
    }

    /// Gives way until as many have joined as were there last time, or the window is over.
    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.members >= state.expected {
            return state;
        }
        if state.skip > 0 {
            state.skip -= 1;
            return state;
        }
        let began = Instant::now();
        for _ in 0..MOST_TURNS {
            drop(state);
            thread::yield_now();
            state = self.state.lock();
            if state.members >= state.expected || began.elapsed() >= WINDOW {
                break;
            }
        }
        // On a busy machine the processor may come back much later.
        if state.members < state.expected || began.elapsed() >= 4 * WINDOW {
            state.vain = (state.vain + 1).min(MOST_VAIN);
            state.skip = 1 << state.vain;
        } else {
            state.vain = 0;
        }
        state
    }
}
