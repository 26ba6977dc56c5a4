//! Time of a shuttle model that passes only while all threads wait.
//!
//! # Model
//!
//! A model asks for it with [`with_virtual_time`]; without that, time stands still and no wait times out.
//!
//! ```text
//!  sleep, wait with a timeout ──▶ a sleeper, and a timer of its ──┐
//!                                                                 ▼
//!  all other threads wait ──▶ the keeper runs: now = the earliest timer, its sleepers are woken
//! ```
//!
//! The keeper is a thread of the model. It can run always, and a scheduler that knows of it (those of
//! [`model`](crate::model)) lets it run only when no other thread can. It ends when there is no timer left: then all threads
//! have ended, or wait for ever, which shuttle reports. A thread that works now and then has a timer always and hides that others
//! wait for ever: so an execution fails whose time comes to [`LONGEST`].
//!
//! Condition variables have separate queues here, since those of shuttle have no timeout. There are no spurious
//! wake-ups: a lost wake-up stays lost until the timeout, or for ever.
//!
//! # Invariants
//!
//! 1. A sleeper enters the queue in the step that releases the mutex: a wake-up before that does not reach it, and one after
//!    it does.
//! 2. A sleeper is woken once: by the thread that changes its state from [`WAITING`].
//!
//! # Locking
//!
//! All threads of a model run on one thread of the system. So the clock is a thread local of that, which is not
//! borrowed across a switch of threads, and a queue's mutex is of `std` and never waited for.
//!
//! # Memory ordering
//!
//! Relaxed throughout, for the same reason.

use super::guard::MutexGuard;
use crate::facade::imp;
use shuttle::scheduler::TaskId;
use shuttle::thread::{self, Thread};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An execution takes minutes of virtual time. One that takes longer does not end.
const LONGEST: Duration = Duration::from_secs(3600);

/// The state of a sleeper that waits.
const WAITING: u8 = 0;
/// Woken by a notification.
const NOTIFIED: u8 = 1;
/// Woken by its timer.
const TIMED_OUT: u8 = 2;

/// The clock of one execution.
#[derive(Default)]
struct Clock {
    /// Since the beginning of the execution.
    now: Duration,
    /// By time, and then by the order in which they were set.
    timers: BTreeMap<(Duration, u64), Arc<Sleeper>>,
    /// Timers ever set.
    set: u64,
    /// Once it has run.
    keeper: Option<TaskId>,
    /// It is amid waking those whose time has come.
    keeper_is_busy: bool,
}

std::thread_local! {
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

fn with_clock<R>(f: impl FnOnce(&mut Clock) -> R) -> Option<R> {
    CLOCK.with(|clock| clock.borrow_mut().as_mut().map(f))
}

/// A thread that waits.
#[derive(Debug)]
struct Sleeper {
    thread: Thread,
    state: AtomicU8,
}

impl Sleeper {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            state: AtomicU8::new(WAITING),
        })
    }

    /// Ends the wait. `true` if the caller ended it; then it has to unpark the thread.
    fn end(&self, state: u8) -> bool {
        // Invariant 2.
        self.state
            .compare_exchange(WAITING, state, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Waits until it is woken, for at most `timeout`; returns whether it timed out.
    fn sleep(self: &Arc<Self>, timeout: Option<Duration>) -> bool {
        let timer = timeout.and_then(|timeout| {
            with_clock(|clock| {
                clock.set += 1;
                let key = (clock.now.saturating_add(timeout), clock.set);
                clock.timers.insert(key, Arc::clone(self));
                key
            })
        });
        let mut parked = 0;
        while self.state.load(Ordering::Relaxed) == WAITING {
            thread::park();
            parked += 1;
        }
        if parked > 1 {
            // A wake-up for a later wait of this thread came meanwhile.
            self.thread.unpark();
        }
        let timed_out = self.state.load(Ordering::Relaxed) == TIMED_OUT;
        if let Some(key) = timer.filter(|_| !timed_out) {
            with_clock(|clock| clock.timers.remove(&key));
        }
        timed_out
    }
}

/// The waiters of a condition variable.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<VecDeque<Arc<Sleeper>>>);

impl Queue {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<Arc<Sleeper>>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits as a condition variable does, and says whether the time was up; hands the guard back where time stands still.
    pub(crate) fn wait<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> Result<(MutexGuard<'a, T>, bool), MutexGuard<'a, T>> {
        if !is_on() {
            return Err(guard);
        }
        let mutex: &'a imp::Mutex<T> = guard.unlock();
        // Invariant 1: shuttle switches before it releases, and not after.
        let sleeper = Sleeper::new();
        self.with(|waiters| waiters.push_back(Arc::clone(&sleeper)));
        let timed_out = sleeper.sleep(timeout);
        if timed_out {
            self.with(|waiters| waiters.retain(|waiter| !Arc::ptr_eq(waiter, &sleeper)));
        }
        Ok((MutexGuard::lock(mutex), timed_out))
    }

    /// Wakes all waiters, or one that the schedule chooses; `false` where time stands still.
    pub(crate) fn notify(&self, all: bool) -> bool {
        if !is_on() {
            return false;
        }
        // A step of the schedule, as shuttle's own is.
        thread::sleep(Duration::ZERO);
        let draw = if all { 0 } else { draw() };
        let woken: Vec<_> = self.with(|waiters| {
            waiters.retain(|waiter| waiter.state.load(Ordering::Relaxed) == WAITING);
            let woken = match (all, waiters.len()) {
                (true, _) => waiters.drain(..).collect(),
                (false, 0) => Vec::new(),
                (false, n) => waiters.remove(draw as usize % n).into_iter().collect(),
            };
            for waiter in &woken {
                waiter.end(NOTIFIED);
            }
            woken
        });
        for waiter in woken {
            waiter.thread.unpark();
        }
        true
    }
}

/// A number that the schedule chooses.
fn draw() -> u64 {
    use shuttle::rand::RngCore;
    shuttle::rand::thread_rng().next_u64()
}

/// Whether this execution runs in virtual time.
pub(crate) fn is_on() -> bool {
    CLOCK.with(|clock| clock.borrow().is_some())
}

/// Virtual time since the execution began; zero where time stands still.
pub(crate) fn now() -> Duration {
    with_clock(|clock| clock.now).unwrap_or_default()
}

/// Sleeps in virtual time; `false` where time stands still.
pub(crate) fn sleep(duration: Duration) -> bool {
    if !is_on() {
        return false;
    }
    Sleeper::new().sleep(Some(duration));
    true
}

/// Time stands still again. For the beginning of an execution.
pub(crate) fn reset() {
    CLOCK.with(|clock| drop(clock.take()));
}

/// Runs `f` in virtual time, in a shuttle model. Threads that outlive `f` stay in it.
pub fn with_virtual_time<R>(f: impl FnOnce() -> R) -> R {
    CLOCK.with(|clock| *clock.borrow_mut() = Some(Clock::default()));
    thread::spawn(keep_time);
    f()
}

fn keep_time() {
    with_clock(|clock| clock.keeper = Some(shuttle::current::me()));
    loop {
        // From here on only while all others wait.
        thread::yield_now();
        let due = with_clock(|clock| {
            let mut due = Vec::new();
            while let Some(timer) = clock.timers.first_entry() {
                let (at, _) = *timer.key();
                if !due.is_empty() && at > clock.now {
                    break;
                }
                clock.now = clock.now.max(at);
                let sleeper = timer.remove();
                if sleeper.end(TIMED_OUT) {
                    due.push(sleeper);
                }
            }
            clock.keeper_is_busy = !due.is_empty();
            due
        });
        let now = now();
        assert!(
            now < LONGEST,
            "after {now:?} threads wait for what never comes"
        );
        match due {
            Some(due) if !due.is_empty() => {
                for sleeper in due {
                    sleeper.thread.unpark();
                }
            }
            // No thread waits for a time: nothing will happen any more.
            _ => return reset(),
        }
        with_clock(|clock| clock.keeper_is_busy = false);
    }
}

/// How a scheduler treats the keeper.
pub(crate) enum Keeper {
    /// There is none, or it is a thread like others.
    Unknown,
    /// It runs only if no other thread can.
    Idle(TaskId),
    /// It goes on.
    Busy(TaskId),
}

/// For a scheduler.
pub(crate) fn keeper() -> Keeper {
    let keeper = with_clock(|clock| clock.keeper.map(|keeper| (keeper, clock.keeper_is_busy)));
    match keeper.flatten() {
        None => Keeper::Unknown,
        Some((keeper, false)) => Keeper::Idle(keeper),
        Some((keeper, true)) => Keeper::Busy(keeper),
    }
}
