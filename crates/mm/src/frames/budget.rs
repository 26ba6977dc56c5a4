//! The counts behind a promise: which frames may still be reserved, and who waits for them. There is one for
//! each [`FrameKind`].
//!
//! # Model
//!
//! ```text
//!   capacity in frames, less the free frames of isolated blocks = *managed*
//!                                                       managed = available + reserved + in use
//!
//!   word:  │ available, signed (32) │ waiters (1) │ reserved (31) │
//!
//!   try_reserve  available → reserved         only if available ≥ n and nobody waits
//!   alloc        reserved  → in use           never fails
//!   free         in use    → available        the frame is on its list first
//! ```
//!
//! `available` and `reserved` share one atomic word with the flag that somebody waits, so that a
//! reservation is taken in one step from a state without waiters, and a free learns from the same addition whether a
//! waiter is to be woken.
//!
//! Waiters queue with a [`Ticket`]. While there is one no other caller reserves, and only the first may take. A
//! thread that makes frames available wakes the first waiter once there are as many as it needs; a waiter that leaves
//! the first place wakes the next. Each sleeps on its own condition variable, so no waiter is woken in vain.
//!
//! # Invariants
//!
//! 1. `available` is lowered below zero only by a shrink of the limit; a reservation needs
//!    `available ≥ n`. So, except after a shrink, `reserved + in use ≤ managed`, and a reserved
//!    frame is either free in an open block or a magazine, or in a block that may still be taken.
//! 2. A frame is on a list before it is counted as available, and taken off only with a reservation. So the holder of
//!    a reservation finds a frame, if no frames are moved meanwhile.
//! 3. The flag is set exactly while the queue is not empty, and `head_need` is what its first needs. If
//!    so many are available, the first is awake or about to be woken.
//!
//! # Locking
//!
//! The queue's lock has [`Rank::Budget`]; frames may be freed under every lock above it. A ticket sleeps
//! with no other lock of the frame space.
//!
//! # Memory ordering
//!
//! Additions to `available` release and subtractions acquire (`AcqRel` on one word, partners of each
//! other): a reservation made from a freed frame sees the list that the frame is on. The `WAITERS` flag
//! lies in the same word and so in the same order of changes: a free either sees the flag, or comes before its
//! setting, and then the thread that set it sees the freed frame. A waiter writes `head_need` before such a change of
//! the word, and a free reads it after one, hence relaxed.

use super::{FrameKind, Frames, Reservation};
use foliocache_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use foliocache_sync::rank::{Rank, RankedMutex};
use foliocache_sync::time::{Duration, Instant};
use foliocache_sync::{Arc, CachePadded, Condvar};
use std::collections::VecDeque;

const RESERVED: u64 = WAITERS - 1;
const WAITERS: u64 = 1 << 31;
const AVAILABLE_SHIFT: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) available: i64,
    pub(super) reserved: u64,
    pub(super) waiters: bool,
}

impl Counts {
    fn unpack(word: u64) -> Self {
        Self {
            available: i64::from((word >> AVAILABLE_SHIFT) as u32 as i32),
            reserved: word & RESERVED,
            waiters: word & WAITERS != 0,
        }
    }
}

#[derive(Default)]
pub(super) struct Budget {
    word: CachePadded<AtomicU64>,
    head_need: AtomicU32,
    queue: RankedMutex<{ Rank::Budget as u8 }, Queue>,
}

struct Waiter {
    need: u32,
    wake: Condvar,
}

type Queue = VecDeque<Arc<Waiter>>;

impl Budget {
    /// The counts of now. A hint unless the caller keeps them from changing.
    #[inline]
    pub(super) fn counts(&self) -> Counts {
        // Acquire: pairs with the additions; a waiter decides by it whether to sleep.
        Counts::unpack(self.word.load(Ordering::Acquire))
    }

    /// Turns `n` available frames into reserved ones; only past those who wait if `first`.
    #[inline]
    pub(super) fn reserve(&self, n: u32, first: bool) -> bool {
        let change = (u64::from(n) << AVAILABLE_SHIFT).wrapping_sub(u64::from(n));
        self.subtract(n, change, first)
    }

    /// Takes `n` available frames straight into use, or out of those managed. Does not pass those
    /// who wait unless `first`.
    #[inline]
    pub(super) fn take(&self, n: u32, first: bool) -> bool {
        self.subtract(n, u64::from(n) << AVAILABLE_SHIFT, first)
    }

    #[inline]
    fn subtract(&self, n: u32, change: u64, first: bool) -> bool {
        // Relaxed: the value is checked again by the exchange.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let counts = Counts::unpack(word);
            if (counts.waiters && !first) || counts.available < i64::from(n) {
                return false;
            }
            match self.word.compare_exchange_weak(
                word,
                word.wrapping_sub(change),
                // AcqRel: pairs with `add`.
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    pub(super) fn settle(&self, n: u32) {
        // Relaxed: only lowers a figure; the frames were taken off their lists under a lock.
        self.word.fetch_sub(u64::from(n), Ordering::Relaxed);
    }

    /// Turns `n` frames in use into reserved ones again, for a caller that could not use them.
    #[inline]
    pub(super) fn unreserve(&self, n: u32) {
        let change = (u64::from(n) << AVAILABLE_SHIFT).wrapping_sub(u64::from(n));
        self.added(change);
    }

    /// Makes `n` more frames available: freed (and on their list already), or contributed.
    #[inline]
    pub(super) fn add(&self, n: u32) {
        self.added(u64::from(n) << AVAILABLE_SHIFT);
    }

    /// Lowers the available frames without asking, after a shrink.
    pub(super) fn remove(&self, n: u64) {
        // AcqRel: keeps the chain of `add`s whole for later reservations.
        self.word.fetch_sub(n << AVAILABLE_SHIFT, Ordering::AcqRel);
    }

    #[inline]
    fn added(&self, change: u64) {
        // AcqRel: Release pairs with `subtract`; Acquire with `announce_head`, for `head_need`.
        let before = self.word.fetch_add(change, Ordering::AcqRel);
        let now = Counts::unpack(before.wrapping_add(change));
        if now.waiters {
            self.tell(now.available);
        }
    }

    #[cold]
    fn tell(&self, available: i64) {
        if available >= i64::from(self.head_need.load(Ordering::Relaxed))
            && let Some(head) = self.queue.lock().front()
        {
            head.wake.notify_all();
        }
    }

    pub(super) fn nr_waiting(&self) -> usize {
        self.queue.lock().len()
    }

    /// Announces the need of the first waiter, or that there is none; true if it could be served now.
    ///
    /// Context: the queue's lock is held.
    fn announce_head(&self, need: Option<u32>) -> bool {
        let Some(need) = need else {
            // AcqRel: keeps the chain of `add`s whole.
            self.word.fetch_and(!WAITERS, Ordering::AcqRel);
            return false;
        };
        // Relaxed: published by the next line.
        self.head_need.store(need, Ordering::Relaxed);
        // AcqRel: Release publishes `head_need` to `added`, Acquire sees what was freed before.
        let word = self.word.fetch_or(WAITERS, Ordering::AcqRel);
        Counts::unpack(word).available >= i64::from(need)
    }
}

/// A place in the queue of those who wait for frames; dropping it leaves the queue.
///
/// While a ticket exists nobody else can reserve, so its owner must not keep it longer than it waits,
/// and should help to free memory meanwhile.
#[must_use = "a ticket that is dropped has left the queue"]
pub struct Ticket<'a> {
    frames: &'a Frames,
    budget: &'a Budget,
    kind: FrameKind,
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
        let mut queue = self.budget.queue.lock();
        if !self.is_first(&queue) || !self.budget.reserve(self.waiter.need, true) {
            return None;
        }
        queue.pop_front();
        self.queued = false;
        self.pass_on(&queue);
        Some(Reservation::new(self.frames, self.kind, self.waiter.need))
    }

    /// Sleeps until it may be worth trying, or `timeout` is over; true if it may be.
    ///
    /// Context: sleeps; no lock and no RCU read section that freeing memory could need.
    pub fn wait(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        let mut queue = self.budget.queue.lock();
        loop {
            let available = self.budget.counts().available;
            if self.is_first(&queue) && available >= i64::from(self.waiter.need) {
                return true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || !self.queued {
                return false;
            }
            (queue, _) = self.waiter.wake.wait_timeout_ranked(queue, left);
        }
    }

    fn is_first(&self, queue: &Queue) -> bool {
        queue
            .front()
            .is_some_and(|head| Arc::ptr_eq(head, &self.waiter))
    }

    /// Tells the first of the queue that it is the first.
    fn pass_on(&self, queue: &Queue) {
        let head = queue.front();
        if self.budget.announce_head(head.map(|head| head.need))
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
        let mut queue = self.budget.queue.lock();
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
    /// Joins the queue for `n` frames of a kind.
    ///
    /// `n` must not be more than [`Frames::capacity`], or the wait never ends. Costs some hundred bytes
    /// outside the bound while the ticket lives.
    pub fn enqueue(&self, kind: FrameKind, n: u32) -> Ticket<'_> {
        let budget = self.budget_of(kind);
        let waiter = Arc::new(Waiter {
            need: n,
            wake: Condvar::new(),
        });
        let mut queue = budget.queue.lock();
        queue.push_back(Arc::clone(&waiter));
        if queue.len() == 1 {
            budget.announce_head(Some(n));
        }
        Ticket {
            frames: self,
            budget,
            kind,
            waiter,
            queued: true,
        }
    }
}
