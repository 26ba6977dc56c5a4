//! [`Generation`]: a number that tells whether remembered results may have changed.
//!
//! # Model
//!
//! ```text
//! a thread that changes              a thread that remembers
//!   begin: changing += 1               remember = value, if nothing is changing
//!   change what is looked at           look, and note what was found
//!   end:   changing -= 1, times += 1   … later: value == remember? then it is still so
//! ```
//!
//! One number stands for many things. It is for state that seldom changes and is read all the time: a hit costs one
//! load of a line that is not written.
//!
//! # Invariants
//!
//! 1. The number differs from all values that were to be remembered before a change began, from before the
//!    change can be seen; and from all that are to be remembered after it ended.
//!
//! # Memory ordering
//!
//! Claim: a thread that finds the number that it remembered may use its remembered result, as one that was true
//! when the call began.
//!
//! - [`begin`](Generation::begin) precedes the change in its thread, and the change is published by a `Release`
//!   store, or behind the release fence of a sequence counter. A thread that has seen the change, or was notified
//!   by one that has, sees the number of the beginning too, or a later one.
//! - The end is a `Release` and the look before remembering an `Acquire`: a thread that remembers the number of the
//!   end sees the change.
//! - Memory removed by a change is freed a grace period after its end. The number is read inside a read section,
//!   and stores before a cookie was taken are visible to readers that the grace period does not wait for
//!   ([`rcu`](foliocache_sync::rcu)): they see that the number has changed.

use foliocache_sync::atomic::{AtomicU64, Ordering};

/// Changes that are going on, in the lower bits; those that have ended, above.
const ENDED: u64 = 1 << 16;

/// The number; nothing has changed by default. See the module's header.
#[derive(Debug, Default)]
pub struct Generation(AtomicU64);

/// A change that is going on; ends when dropped.
#[derive(Debug)]
#[must_use = "the change ends when it is dropped"]
pub struct Changing<'a>(&'a Generation);

impl Generation {
    /// Begins a change of remembered state: before it becomes visible. Changes may overlap.
    pub fn begin(&self) -> Changing<'_> {
        // Relaxed: a thread that sees the change, which is published later, sees this; see the module's header.
        self.0.fetch_add(1, Ordering::Relaxed);
        Changing(self)
    }

    /// The number to remember with a result computed from here on; `None` during a change.
    #[must_use]
    pub fn to_remember(&self) -> Option<u64> {
        // Acquire pairs with the Release in `Changing::drop`.
        let value = self.0.load(Ordering::Acquire);
        value.is_multiple_of(ENDED).then_some(value)
    }

    /// Whether nothing has changed since `remembered` was the number.
    #[inline(always)]
    #[must_use]
    pub fn is(&self, remembered: u64) -> bool {
        // Relaxed: the answer publishes no later store of another thread; see the module's header.
        self.0.load(Ordering::Relaxed) == remembered
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `to_remember`.
        self.0.0.fetch_add(ENDED - 1, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_remembered_generation_holds_until_a_change_begins() {
        let generation = Generation::default();
        let remembered = generation.to_remember().unwrap();
        assert!(generation.is(remembered));
        let first = generation.begin();
        assert!(!generation.is(remembered));
        assert_eq!(generation.to_remember(), None);
        let second = generation.begin();
        drop(first);
        assert_eq!(generation.to_remember(), None);
        drop(second);
        assert!(!generation.is(remembered));
        let again = generation.to_remember().unwrap();
        assert!(generation.is(again));
    }
}
