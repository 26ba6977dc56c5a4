//! A request to a worker, and the future of its result.
//!
//! # Model
//!
//! ```text
//!   queued ──a worker takes it──▶ running ──▶ done ──the future takes it──▶ over
//!     │ future dropped               │ future dropped
//!     ▼                              ▼
//!   over, nothing was done         finished all the same, as a straggler
//! ```
//!
//! A task owns its data: it never accesses the caller's memory.
//!
//! # Invariants
//!
//! 1. A task runs once or, if its future went before a worker came to it, not at all;
//!    [`Kind::Always`] and [`Kind::Accepted`] always run.
//! 2. When a future is woken its task has been dropped: everything that the task held is free.
//!
//! # Locking
//!
//! *Protects*: the stage and the waker. *Order*: before the counters of [`Stragglers`]; no future is
//! woken and nothing is dropped under it. *May block*: no.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use foliocache_mm::Mm;
use foliocache_sync::atomic::{AtomicUsize, Ordering};
use foliocache_sync::background::Panics;
use foliocache_sync::{Arc, Mutex};
use foliocache_sys::Errno;

/// The name of the threads.
pub(super) const NAME: &str = "foliocache-async";

/// Something to do that may block.
pub(crate) type Task<V> = Box<dyn FnMut() -> Result<V, Errno> + Send>;

/// The lane of a request, and its fate if its future is dropped.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A read. Without its future it is not needed.
    Read,
    /// A change. Without its future it is a straggler if a worker has begun it, and else not done.
    Change(Arc<Stragglers>),
    /// A change that the caller counts on without its future: it runs in any case, and counts among the stragglers from
    /// the beginning to its end.
    #[cfg_attr(
        not(feature = "tokio"),
        expect(dead_code, reason = "the adapters for tokio make it")
    )]
    Accepted(Arc<Stragglers>),
    /// Runs even without its future: a sync, a close.
    Always,
}

/// A task on its way.
pub(super) struct Request<V> {
    slot: Mutex<Slot<V>>,
    kind: Kind,
}

struct Slot<V> {
    stage: Stage<V>,
    waker: Option<Waker>,
    /// The future is still there.
    attended: bool,
}

enum Stage<V> {
    Queued(Task<V>),
    Running,
    Done(Result<V, Errno>),
    Over,
}

impl<V> Request<V> {
    pub(super) fn new(kind: Kind, task: Task<V>) -> Arc<Self> {
        Arc::new(Self {
            slot: Mutex::new(Slot {
                stage: Stage::Queued(task),
                waker: None,
                attended: true,
            }),
            kind,
        })
    }

    /// Runs it, unless it was given up; panics are recorded in `worker`. Refuses it where that is
    /// an error.
    pub(super) fn run(&self, worker: Result<&Panics, Errno>) {
        let mut task = {
            let mut slot = self.slot.lock();
            match mem::replace(&mut slot.stage, Stage::Running) {
                Stage::Queued(task) => task,
                given_up => {
                    slot.stage = given_up;
                    return;
                }
            }
        };
        let result = worker.and_then(|panics| {
            // A panic is the store's: the caller gets an error.
            let result = panics.catch(NAME, &mut task).unwrap_or(Err(Errno::EIO));
            // Invariant 2. Dropping the last reference to a file may panic too.
            panics.catch(NAME, || drop(task));
            result
        });
        let mut unclaimed = None;
        let mut slot = self.slot.lock();
        let waker = slot.waker.take();
        if slot.attended {
            slot.stage = Stage::Done(result);
        } else {
            slot.stage = Stage::Over;
            unclaimed = Some(result);
        }
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
        match &self.kind {
            Kind::Change(stragglers) if unclaimed.is_some() => stragglers.leave(),
            Kind::Accepted(stragglers) => stragglers.leave(),
            _ => {}
        }
    }
}

/// The future of a [`Request`].
pub(crate) struct Pending<V> {
    pub(super) request: Arc<Request<V>>,
    pub(super) mm: Arc<Mm>,
}

impl<V> Future for Pending<V> {
    type Output = Result<V, Errno>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.mm.check_fork()?;
        let mut slot = self.request.slot.lock();
        match mem::replace(&mut slot.stage, Stage::Over) {
            Stage::Done(result) => Poll::Ready(result),
            Stage::Over => panic!("a future was polled after it was ready"),
            stage => {
                slot.stage = stage;
                let stale = match &slot.waker {
                    Some(waker) if waker.will_wake(context.waker()) => None,
                    _ => slot.waker.replace(context.waker().clone()),
                };
                drop(slot);
                drop(stale);
                Poll::Pending
            }
        }
    }
}

impl<V> Drop for Pending<V> {
    fn drop(&mut self) {
        // A worker of the parent may have held the lock when a child was forked.
        if self.mm.check_fork().is_err() {
            return;
        }
        let mut slot = self.request.slot.lock();
        slot.attended = false;
        let waker = slot.waker.take();
        let given_up = match (&slot.stage, &self.request.kind) {
            (Stage::Queued(_), Kind::Always | Kind::Accepted(_)) => None,
            (Stage::Queued(_) | Stage::Done(_), _) => {
                Some(mem::replace(&mut slot.stage, Stage::Over))
            }
            (Stage::Running, Kind::Change(stragglers)) => {
                stragglers.enter();
                None
            }
            (Stage::Running | Stage::Over, _) => None,
        };
        drop(slot);
        drop((waker, given_up));
    }
}

/// Changes that continue although their futures were dropped.
///
/// Later changes through the same handle wait for them, or else a write that was
/// given up could overwrite a newer one.
#[derive(Default)]
pub(crate) struct Stragglers {
    /// As `waiting.0`, to be looked at without the lock.
    count: AtomicUsize,
    waiting: Mutex<(usize, Vec<Waker>)>,
}

impl Stragglers {
    pub(super) fn enter(&self) {
        let mut waiting = self.waiting.lock();
        waiting.0 += 1;
        // Relaxed: a caller that dropped the future and then asks for more sees this by its own order of
        // events; others are promised nothing.
        self.count.store(waiting.0, Ordering::Relaxed);
    }

    fn leave(&self) {
        let mut waiting = self.waiting.lock();
        waiting.0 -= 1;
        // Relaxed: see `enter`. The bytes of a straggler are seen by way of the folios' own locks.
        self.count.store(waiting.0, Ordering::Relaxed);
        let wakers = match waiting.0 {
            0 => mem::take(&mut waiting.1),
            _ => Vec::new(),
        };
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ready once there is none.
    pub(crate) fn poll_none(&self, context: &mut Context<'_>) -> Poll<()> {
        // Relaxed: see `enter`.
        if self.count.load(Ordering::Relaxed) == 0 {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock();
        if waiting.0 == 0 {
            return Poll::Ready(());
        }
        let mine = context.waker();
        if !waiting.1.iter().any(|waker| waker.will_wake(mine)) {
            waiting.1.push(mine.clone());
        }
        Poll::Pending
    }
}
