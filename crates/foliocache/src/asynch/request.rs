//! A request to a worker, and the future that waits for what comes of it.
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
//! A task owns what it works on: it never sees memory of the caller's.
//!
//! # Invariants
//!
//! 1. A task runs once or, if its future went before a worker came to it, not at all;
//!    one with [`Task::UNATTENDED`] always runs.
//! 2. When a future is woken its task is dropped already: what the task held is free.
//!
//! # Locking
//!
//! *Protects*: the stage and the waker. *Order*: before the counters of [`Stragglers`]; nobody is
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

use super::workers::NAME;

/// Something to do that may block.
pub(crate) trait Task: Send + 'static {
    /// What comes of it.
    type Value: Send + 'static;
    /// Whether it is done even if nobody waits for it any more.
    const UNATTENDED: bool = false;
    /// Does it.
    fn run(&mut self) -> Result<Self::Value, Errno>;
}

/// What a worker is handed.
pub(crate) trait Run: Send + Sync {
    /// Does it, unless it was given up. A panic of it is noted in `panics`.
    fn run(&self, panics: &Panics);
    /// Ends it with an error, undone.
    fn refuse(&self, errno: Errno);
}

/// A task on its way.
pub(crate) struct Request<T: Task> {
    slot: Mutex<Slot<T>>,
    stragglers: Option<Arc<Stragglers>>,
}

struct Slot<T: Task> {
    stage: Stage<T>,
    waker: Option<Waker>,
    /// The future is still there.
    attended: bool,
}

enum Stage<T: Task> {
    Queued(T),
    Running,
    Done(Result<T::Value, Errno>),
    Over,
}

impl<T: Task> Request<T> {
    /// A request to run `task`; one that is dropped while it runs counts among `stragglers`.
    pub(crate) fn new(task: T, stragglers: Option<&Arc<Stragglers>>) -> Arc<Self> {
        Arc::new(Self {
            slot: Mutex::new(Slot {
                stage: Stage::Queued(task),
                waker: None,
                attended: true,
            }),
            stragglers: stragglers.map(Arc::clone),
        })
    }

    fn finish(&self, result: Result<T::Value, Errno>) {
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
        if unclaimed.is_some()
            && !T::UNATTENDED
            && let Some(stragglers) = &self.stragglers
        {
            stragglers.leave();
        }
    }
}

impl<T: Task> Run for Request<T> {
    fn run(&self, panics: &Panics) {
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
        // A panic is the store's: the caller gets an error.
        let result = panics.catch(NAME, || task.run()).unwrap_or(Err(Errno::EIO));
        // Invariant 2. What the last holder of a file does when it goes may panic, too.
        panics.catch(NAME, || drop(task));
        self.finish(result);
    }

    fn refuse(&self, errno: Errno) {
        let stage = mem::replace(&mut self.slot.lock().stage, Stage::Running);
        drop(stage);
        self.finish(Err(errno));
    }
}

/// The future of a [`Request`].
pub(crate) struct Pending<T: Task> {
    request: Arc<Request<T>>,
    mm: Arc<Mm>,
}

impl<T: Task> Pending<T> {
    pub(super) fn new(request: Arc<Request<T>>, mm: &Arc<Mm>) -> Self {
        let mm = Arc::clone(mm);
        Self { request, mm }
    }
}

impl<T: Task> Future for Pending<T> {
    type Output = Result<T::Value, Errno>;

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

impl<T: Task> Drop for Pending<T> {
    fn drop(&mut self) {
        // A worker of the parent may have held the lock when a child was forked.
        if self.mm.check_fork().is_err() {
            return;
        }
        let mut slot = self.request.slot.lock();
        slot.attended = false;
        let waker = slot.waker.take();
        let given_up = match &slot.stage {
            Stage::Queued(_) if T::UNATTENDED => None,
            Stage::Queued(_) | Stage::Done(_) => Some(mem::replace(&mut slot.stage, Stage::Over)),
            Stage::Running if !T::UNATTENDED => {
                if let Some(stragglers) = &self.request.stragglers {
                    stragglers.enter();
                }
                None
            }
            Stage::Running | Stage::Over => None,
        };
        drop(slot);
        drop((waker, given_up));
    }
}

/// Changes of one file that go on although their futures were dropped.
///
/// What is asked for afterwards through the same file waits for them, or else a write that was
/// given up could overwrite a newer one.
#[derive(Default)]
pub(crate) struct Stragglers {
    /// As `waiting.0`, to be looked at without the lock.
    count: AtomicUsize,
    waiting: Mutex<(usize, Vec<Waker>)>,
}

impl Stragglers {
    fn enter(&self) {
        let mut waiting = self.waiting.lock();
        waiting.0 += 1;
        // Relaxed: who dropped the future and then asks for more has seen this by his own order of
        // events; nobody else is promised anything.
        self.count.store(waiting.0, Ordering::Relaxed);
    }

    fn leave(&self) {
        let mut waiting = self.waiting.lock();
        waiting.0 -= 1;
        // Relaxed: see `enter`. What a straggler wrote is seen by way of the folios' own locks.
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
