//! The numbered rounds of a background reclaimer: callers wait for one, and learn what it found. `reclaim/waiting.rs`
//! says why.
//!
//! # Locking
//!
//! *Protects*: the numbers. *Order*: leaf. *May block*: [`Rounds::wait`], until a round ends.
//!
//! # Memory ordering
//!
//! `favoured_until` is a hint: Relaxed.

use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sync::thread::{self, ThreadId};
use foliocache_sync::time::{self, Duration, Instant, coarse_monotonic_ms};
use foliocache_sync::{Condvar, Mutex, Weak};

use crate::dirty::Limiter;
use crate::shrinker::{GivenUp, Shrinker};
use crate::worker::Worker;

/// How long a caller sleeps before it looks again whether others made room.
pub(crate) const RECLAIM_WAIT: Duration = Duration::from_millis(20);

/// How long a caller waits for what may never come: memory that others may give back of their own accord.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// How long a caller waits for a round at most: a store that does not answer may hold the reclaimer up for ever.
const LONGEST_ROUND: Duration = Duration::from_secs(30);
/// How long memory that a round gave up is kept from names that are not needed, in milliseconds.
const FAVOURED_MS: u64 = 20;

/// The background reclaimer of a cache, and the state of its work.
#[derive(Debug, Default)]
pub(crate) struct Reclaimer {
    pub(crate) worker: Worker,
    pub(crate) rounds: Rounds,
    /// Lets one thread at a time give memory back. Before every lock of memory, held over waits for folios and
    /// for RCU.
    pub(crate) giving_back: Mutex<()>,
    pub(crate) shrinkers: LeafMutex<Vec<Weak<dyn Shrinker>>>,
    /// Until when caches of metadata need not ask for memory, in coarse milliseconds.
    pub(crate) no_metadata_until: AtomicU64,
    /// Until when it need not look whether caches of metadata hold too much, likewise.
    pub(crate) no_ahead_until: AtomicU64,
    /// Lines of the log that tell of callers that reclaim for themselves.
    pub(crate) told: Limiter,
}

/// The rounds of a cache's background reclaimer.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    state: Mutex<State>,
    ended: Condvar,
    /// Until when memory that a round gave up is for callers that waited, in coarse milliseconds.
    pub(crate) favoured_until: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    reclaimer: Option<ThreadId>,
    begun: u64,
    ended: u64,
    /// The latest round that a caller asked for.
    asked: u64,
    /// The latest rounds that gave something up, and that left more on its way.
    freed_in: u64,
    more_in: u64,
}

impl State {
    /// The result of the rounds from `first` on.
    fn found_since(&self, first: u64) -> Found {
        match () {
            () if self.freed_in >= first => Found::Memory,
            () if self.more_in >= first => Found::More,
            () => Found::Nothing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Memory,
    More,
    Nothing,
}

/// A round of the reclaimer; ends as it is dropped. One that panicked has not found out whether there is more.
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    given: GivenUp,
    /// Somebody waits for it.
    pub(crate) is_awaited: bool,
}

impl Round<'_> {
    pub(crate) fn end(mut self, given: GivenUp) {
        self.given = given;
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.state.lock();
        state.ended = state.begun;
        if self.given.bytes > 0 {
            state.freed_in = state.ended;
        }
        if self.given.more {
            state.more_in = state.ended;
        }
        if self.is_awaited && self.given.bytes > 0 {
            let until = coarse_monotonic_ms() + FAVOURED_MS;
            // Relaxed: see the module's header.
            self.rounds.favoured_until.store(until, Ordering::Relaxed);
        }
        drop(state);
        self.rounds.ended.notify_all();
    }
}

impl Rounds {
    /// Begins a round. Context: the background reclaimer.
    pub(crate) fn begin(&self) -> Round<'_> {
        let mut state = self.state.lock();
        state.reclaimer = Some(thread::current().id());
        state.begun += 1;
        Round {
            rounds: self,
            given: GivenUp {
                bytes: 0,
                more: true,
            },
            is_awaited: state.asked >= state.begun,
        }
    }

    /// Whether somebody waits for a round that has not ended.
    pub(crate) fn are_awaited(&self) -> bool {
        let state = self.state.lock();
        state.asked > state.ended
    }

    /// Whether memory that was given up a moment ago is for callers that waited for it.
    pub(crate) fn favour_others(&self) -> bool {
        // Relaxed: see the module's header.
        let until = self.favoured_until.load(Ordering::Relaxed);
        until > 0 && coarse_monotonic_ms() < until
    }

    /// Waits for a round that begins after the call, which `wake` asks for.
    pub(crate) fn wait(&self, wake: impl FnOnce()) -> Found {
        let asked = {
            let mut state = self.state.lock();
            if state.reclaimer == Some(thread::current().id()) {
                return Found::Nothing;
            }
            state.asked = state.begun + 1;
            state.asked
        };
        wake();
        let start = Instant::now();
        let mut state = self.state.lock();
        while state.ended < asked {
            let left = LONGEST_ROUND.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            state = match time::passes() {
                true => self.ended.wait_timeout(state, left).0,
                false => self.ended.wait(state),
            };
        }
        state.found_since(asked)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use foliocache_sync::Arc;
    use foliocache_sync::atomic::AtomicBool;

    const NOTHING: GivenUp = GivenUp {
        bytes: 0,
        more: false,
    };
    const SOME: GivenUp = GivenUp {
        bytes: 1,
        more: false,
    };

    /// Waits until somebody waits for the next round.
    fn until_awaited(rounds: &Rounds) {
        while !rounds.are_awaited() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_round_that_began_before_the_request_does_not_count() {
        let rounds = Arc::new(Rounds::default());
        thread::scope(|scope| {
            let reclaimer = {
                let rounds = Arc::clone(&rounds);
                let (asked, ended) = (Arc::new(AtomicBool::new(false)), rounds.clone());
                let before = scope.spawn({
                    let asked = Arc::clone(&asked);
                    move || {
                        let early = ended.begin();
                        asked.store(true, Ordering::Release);
                        until_awaited(&ended);
                        early.end(NOTHING);
                        ended.begin().end(SOME);
                    }
                });
                while !asked.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                before
            };
            assert_eq!(rounds.wait(|| ()), Found::Memory);
            reclaimer.join().unwrap();
        });
    }

    #[test]
    fn a_round_that_ends_early_leaves_the_question_open() {
        let rounds = Rounds::default();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| rounds.wait(|| ()));
            until_awaited(&rounds);
            drop(rounds.begin());
            assert_eq!(waiter.join().unwrap(), Found::More);
            let waiter = scope.spawn(|| rounds.wait(|| ()));
            until_awaited(&rounds);
            rounds.begin().end(NOTHING);
            assert_eq!(waiter.join().unwrap(), Found::Nothing);
        });
    }

    #[test]
    fn the_reclaimer_does_not_wait_for_itself() {
        let rounds = Rounds::default();
        let round = rounds.begin();
        assert_eq!(rounds.wait(|| unreachable!()), Found::Nothing);
        drop(round);
    }
}
