//! The queue of those who wait for frames, served first in, first out.
//!
//! # Model
//!
//! A ticket joins at the end. While the queue is not empty the `waiters` flag of the budget's word is set,
//! and nobody else reserves; only the first ticket may take. Whoever makes frames available wakes the
//! first ticket once there are as many as it needs; whoever leaves the first place passes the word on to
//! the next. Sleeping is on a condition variable of the ticket's own: nobody is woken in vain.
//!
//! # Invariants
//!
//! 1. The flag is set exactly while the queue is not empty, and `head_need` is what its first needs.
//! 2. If the frames that the first needs are available, it is awake or about to be woken.
//!
//! # Locking
//!
//! The queue's lock has [`Rank::Budget`]; frames may be freed under every lock above it. A ticket sleeps
//! with no other lock of the frame space.

use super::{Frames, Reservation};
use foliocache_sync::rank::{Rank, RankedMutex, RankedMutexGuard};
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::{Arc, Condvar};
use std::collections::VecDeque;

struct Waiter {
    need: u32,
    wake: Condvar,
}

type Queue = VecDeque<Arc<Waiter>>;

pub(super) struct Waiters {
    queue: RankedMutex<Queue>,
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self {
            queue: RankedMutex::new(Rank::Budget, VecDeque::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    pub(super) fn wake_head(&self) {
        if let Some(head) = self.queue.lock().front() {
            head.wake.notify_all();
        }
    }
}

/// A place in the queue of those who wait for frames; dropping it leaves the queue.
///
/// While a ticket exists nobody else can reserve, so its owner must not keep it longer than it waits,
/// and should help to free memory meanwhile.
#[must_use = "a ticket that is dropped has left the queue"]
pub struct Ticket<'a> {
    frames: &'a Frames,
    waiter: Arc<Waiter>,
    queued: bool,
}

impl<'a> Ticket<'a> {
    /// Takes the reservation if this ticket is the first in the queue and the frames are there.
    ///
    /// After success the ticket is no longer in the queue, and another call gives `None`. Does not
    /// block. Context: no lock of rank `Frames` or inner.
    pub fn try_take(&mut self) -> Option<Reservation<'a>> {
        if !self.queued {
            return None;
        }
        self.frames.try_room_to_capacity();
        let mut queue = self.frames.budget.waiters.queue.lock();
        let first = queue
            .front()
            .is_some_and(|head| Arc::ptr_eq(head, &self.waiter));
        if !first || !self.frames.budget.reserve(self.waiter.need, true) {
            return None;
        }
        queue.pop_front();
        self.queued = false;
        self.pass_on(&queue);
        Some(Reservation::new(self.frames, self.waiter.need))
    }

    /// Sleeps until it may be worth trying, or `timeout` is over; true if it may be.
    ///
    /// Context: sleeps; no lock and no RCU read section that freeing memory could need.
    pub fn wait(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        let mut queue = self.frames.budget.waiters.queue.lock();
        loop {
            if self.servable(&queue) {
                return true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || !self.queued {
                return false;
            }
            (queue, _) = self.waiter.wake.wait_timeout_ranked(queue, left);
        }
    }

    fn servable(&self, queue: &RankedMutexGuard<'_, Queue>) -> bool {
        let first = queue
            .front()
            .is_some_and(|head| Arc::ptr_eq(head, &self.waiter));
        first && self.frames.budget.counts().available >= i64::from(self.waiter.need)
    }

    /// Tells the first of the queue that it is the first.
    fn pass_on(&self, queue: &RankedMutexGuard<'_, Queue>) {
        let head = queue.front();
        if self.frames.budget.announce_head(head.map(|head| head.need))
            && let Some(head) = head
        {
            head.wake.notify_all();
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.queued {
            return;
        }
        let mut queue = self.frames.budget.waiters.queue.lock();
        let place = queue
            .iter()
            .position(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        if let Some(place) = place {
            queue.remove(place);
            if place == 0 {
                self.pass_on(&queue);
            }
        }
    }
}

impl Frames {
    /// Joins the queue for `n` frames.
    ///
    /// From now on nobody reserves before this ticket was served or dropped, except those queued
    /// before it. `n` must not be more than [`Frames::capacity`], or the wait never ends. Costs some
    /// hundred bytes outside the bound while the ticket lives.
    pub fn enqueue(&self, n: u32) -> Ticket<'_> {
        let waiter = Arc::new(Waiter {
            need: n,
            wake: Condvar::new(),
        });
        let mut queue = self.budget.waiters.queue.lock();
        queue.push_back(Arc::clone(&waiter));
        if queue.len() == 1 {
            self.budget.announce_head(Some(n));
        }
        Ticket {
            frames: self,
            waiter,
            queued: true,
        }
    }
}
