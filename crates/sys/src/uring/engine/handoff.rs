//! Handing requests to the one worker: their queue, the wake-up that the worker is owed, and the end.
//!
//! # Model
//!
//! ```text
//!   put:   queue it
//!   wake:  something is queued? clear `asleep` ──▶ it was set? wake the worker
//!   take:  take the queue, set `asleep` ─▶ work on it, then sleep until woken
//! ```
//!
//! The worker sets `asleep` before it sleeps, in the same step in which it finds the queue empty. A later request
//! finds it set and wakes the worker, or finds that another has done so. Several requests share one wake-up.
//!
//! # Invariants
//!
//! 1. A request is handed to the worker, or to [`Handoff::fail`], or given back, once.
//! 2. While there is a request that the worker has not taken, or an end that it has not seen, `asleep` is
//!    clear: a wake-up is on its way, or the worker looks again before it sleeps. Or whoever put the request
//!    has yet to call [`Handoff::wake`].
//!
//! # Locking
//!
//! *Protects*: one lock everything. *Order*: nothing is taken under it except to start the worker,
//! once.

use std::collections::VecDeque;

use crate::lock::{Mutex, lock};

/// A queue of `T` for a worker with the handle `W`, which may fail with `E`.
pub(super) struct Handoff<T, W, E>(Mutex<State<T, W, E>>);

struct State<T, W, E> {
    /// Requests that the worker has not taken.
    requests: VecDeque<T>,
    /// The worker, once it was started.
    worker: Option<W>,
    /// The worker could not start, or takes no more.
    failed: Option<E>,
    /// No further requests come: the worker ends when it has nothing left.
    closing: bool,
    /// The worker has seen all of the above, and looks again only when it is woken.
    asleep: bool,
}

impl<T, W, E: Copy> Handoff<T, W, E> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            requests: VecDeque::new(),
            worker: None,
            failed: None,
            closing: false,
            asleep: false,
        }))
    }

    /// Queues a request, for a worker that `start` starts if there is none; [`Handoff::wake`] is to follow. Gives
    /// the request back where there is no worker.
    pub(super) fn put(
        &self,
        request: T,
        start: impl FnOnce() -> Result<W, E>,
    ) -> Result<(), (T, E)> {
        let mut state = lock(&self.0);
        if state.worker.is_none() && state.failed.is_none() {
            match start() {
                Ok(worker) => state.worker = Some(worker),
                Err(error) => state.failed = Some(error),
            }
        }
        if let Some(error) = state.failed {
            return Err((request, error));
        }
        state.requests.push_back(request);
        Ok(())
    }

    /// Whether the worker must be woken for the queued requests.
    pub(super) fn wake(&self) -> bool {
        let mut state = lock(&self.0);
        !state.requests.is_empty() && std::mem::take(&mut state.asleep)
    }

    /// For the worker: the new requests, and whether the queue is closed. The worker may sleep once it has handled
    /// them.
    pub(super) fn take(&self) -> (VecDeque<T>, bool) {
        let mut state = lock(&self.0);
        state.asleep = true;
        (std::mem::take(&mut state.requests), state.closing)
    }

    /// Takes no requests any more, because of `error` unless there was one before; returns those that the
    /// worker has not taken.
    pub(super) fn fail(&self, error: E) -> VecDeque<T> {
        let mut state = lock(&self.0);
        state.failed.get_or_insert(error);
        std::mem::take(&mut state.requests)
    }

    /// Why it takes no requests any more.
    pub(super) fn failed(&self) -> Option<E> {
        lock(&self.0).failed
    }

    /// Has the worker end once it has nothing left; its handle, and whether it must be woken for that.
    pub(super) fn close(&self) -> (Option<W>, bool) {
        let mut state = lock(&self.0);
        state.closing = true;
        (state.worker.take(), std::mem::take(&mut state.asleep))
    }
}
