//! Waiting for the background reclaimer, and when a caller may be refused memory (decision 78).
//!
//! # Model
//!
//! A caller that needs memory evicts pages itself. Names and inodes are given up for it by the background reclaimer, whose
//! rounds are numbered. A caller that finds no page to evict asks for a round that begins after its request.
//!
//! ```text
//!   look ──refused──▶ a page that may be evicted, now or once it is written? ──yes──▶ make room, look again
//!    ▲                    │ no
//!    │                a round that begins now
//!    │                    ├─ gave something up ─────────────▶ look again
//!    │                    ├─ more is on its way ────────────▶ look again, until nothing has come for some time
//!    └── the last look ◀──┴─ nothing left
//!          refused: ENOMEM
//! ```
//!
//! The last look comes after the round: what others gave back meanwhile counts. No number of rounds or looks ends a wait.
//! Waits for memory that may never come are bounded by time: names that somebody outside holds ([`GivenUp::more`](crate::GivenUp::more)),
//! memory that others may give back of their own accord ([`Need`]), and the end of a round that a store holds up (half a minute,
//! `rounds.rs`).
//!
//! # Invariants
//!
//! 1. A caller is refused only after a round that began after a look of its own, and that found nothing.
//! 2. The background reclaimer never waits for a round.
//! 3. A round that somebody waits for is not held up by evictions: those come after its end, and stop for the next one.
//!
//! # Locking
//!
//! *Protects*: the numbers. *Order*: leaf. *May block*: [`Waiter::refused`], until a round ends. The round takes the locks
//! of [`Shrinker::shrink`](crate::Shrinker::shrink), so the caller holds none of them.
//!
//! # Memory ordering
//!
//! `favoured_until` is a hint: Relaxed.

use foliocache_sync::atomic::Ordering;
use foliocache_sync::rank;
use foliocache_sync::time::{self, Duration, Instant, sleep};
use foliocache_sys::Errno;

use crate::records::Mm;
use crate::rounds::Found;

/// First and longest pause between two rounds while more is on its way.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// The memory that a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Frames. Memory of names becomes frames only in units of 2 MiB: it counts if metadata is less than ever before. Others
    /// that move folios may have free frames in hand for some milliseconds.
    Frames,
    /// Metadata of pages.
    Metadata,
    /// Metadata that others may give back of their own accord: they close files.
    Handles,
}

/// A caller that was refused memory, from its first look to its last.
pub(crate) struct Waiter<'a> {
    mm: &'a Mm,
    need: Need,
    patience: Duration,
    least_metadata: u64,
    /// When the current wait began; `None` after something was made free.
    since: Option<Instant>,
    pause: Duration,
    /// The next look is the last.
    is_last: bool,
    has_waited: bool,
}

impl<'a> Waiter<'a> {
    /// For a caller that needs memory, and waits for `patience` for memory that may never come.
    pub(crate) fn new(mm: &'a Mm, need: Need, patience: Duration) -> Self {
        Self {
            mm,
            need,
            patience,
            least_metadata: u64::MAX,
            since: None,
            pause: PAUSES[0],
            is_last: false,
            has_waited: false,
        }
    }

    /// Pages were evicted, and more are needed. Names that hold more than their share are to go, too.
    pub(crate) fn evicted(&mut self) {
        self.go_on();
        self.mm.reclaimer.worker.wake();
    }

    /// Something was made free: the wait begins anew.
    pub(crate) fn go_on(&mut self) {
        (self.since, self.pause, self.is_last) = (None, PAUSES[0], false);
    }

    /// Nothing was made free, but may be once pages are written or let go of. Has the reclaimer give up names meanwhile,
    /// after a while also those that it leaves alone otherwise.
    pub(crate) fn held_up(&mut self) {
        self.is_last = false;
        let Some(since) = self.since else {
            self.mm.reclaimer.worker.wake();
            self.since = Some(Instant::now());
            return;
        };
        if since.elapsed() >= self.patience {
            self.round();
            self.since = None;
        }
    }

    /// Waits for a round after a look that found neither memory nor a page to evict.
    ///
    /// Context: **sleeps**; no lock that [`Shrinker::shrink`](crate::Shrinker::shrink) takes, no read section.
    ///
    /// # Errors
    /// `ENOMEM` if there was nothing left before that look, which was the last.
    pub(crate) fn refused(&mut self) -> Result<(), Errno> {
        if self.is_last {
            return Err(Errno::ENOMEM);
        }
        match self.round() {
            Found::Memory if self.need != Need::Frames || self.is_new_low() => self.go_on(),
            Found::Nothing if self.need == Need::Metadata => self.is_last = true,
            _ if self.is_patient() => self.rest(),
            _ => self.is_last = true,
        }
        Ok(())
    }

    /// Whether there is less metadata than it has seen before: units of 2 MiB may come of it.
    fn is_new_low(&mut self) -> bool {
        let now = self.mm.frames.metadata();
        let is_new = now < self.least_metadata;
        self.least_metadata = self.least_metadata.min(now);
        is_new
    }

    /// Whether its time is not over yet, since something was made free.
    fn is_patient(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        time::passes() && since.elapsed() < self.patience
    }

    fn rest(&mut self) {
        sleep(self.pause);
        self.pause = (2 * self.pause).min(PAUSES[1]);
    }

    fn round(&mut self) -> Found {
        if foliocache_sync::planted!(memory_given_up_by_count) {
            return Found::Nothing;
        }
        rank::might_sleep();
        self.has_waited = true;
        self.mm
            .reclaimer
            .rounds
            .wait(|| self.mm.reclaimer.worker.wake())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.has_waited {
            // Relaxed: see the module's header.
            self.mm
                .reclaimer
                .rounds
                .favoured_until
                .store(0, Ordering::Relaxed);
        }
    }
}
