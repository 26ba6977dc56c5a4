//! [`Retired`]: how many references of an object only wait for RCU readers.
//!
//! # Model
//!
//! A file whose last name and handle are gone must give its pages and descriptors back at once, but the memory
//! of its inode stays until its readers are gone: the caches keep their references in a
//! [`Limbo`](crate::limbo::Limbo). So the count of an [`SlabArc`] says too much. `Retired` counts the references that are
//! in a limbo. An object whose other references are all gone is dead: readers may still look at it, but
//! nobody can take a reference.
//!
//! ```text
//!  word:  │ left the limbo (32) │ entered it (32) │     in it: entered - left
//! ```
//!
//! # Invariants
//!
//! 1. A reference counts as entered before it is put into the limbo, when no new reference can be taken by way of
//!    it. It counts as left before it is dropped.
//!
//! # Memory ordering
//!
//! Claim: if [`Retired::is_last`] says yes, the caller's reference is the only one that is not in a limbo.
//!
//! - It reads the word, the count of the `SlabArc`, and the word again. Each is monotonic in both halves, so equal
//!   words mean that nothing entered or left between. A reference that is dropped leaves before
//!   (`Release`, as is the drop); a count that misses it comes with the newer word, by the `Acquire` fence.
//! - So the count is that of the references in the limbo, of the caller's, and of others. If it leaves no
//!   room for others there was none at that point of the count's history. A later one would be a clone of one that
//!   was in the limbo, made before it entered; entering is `Release` and the first look `Acquire`, so the count
//!   would have it. A finder of an [`InodeCache`](crate::InodeCache) may make one later, if it pinned the inode
//!   before that was unhashed: pins are looked at in between, with `Acquire`. Who unpins before that is counted.
//!
//! # Differences from Linux
//!
//! `i_count` does not count what waits for readers; a `SlabArc` does.

use crate::slab::SlabArc;
use foliocache_sync::atomic::{AtomicU64, Ordering, fence};
use std::fmt;

const ENTERED: u64 = 1;
const LEFT: u64 = 1 << 32;

/// References of an object that wait in a limbo.
#[derive(Default)]
pub struct Retired(AtomicU64);

impl Retired {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A reference is about to go into a limbo.
    pub(crate) fn enter(&self) {
        // AcqRel: Release pairs with the first look of `is_last`, Acquire hands on what entered before.
        self.0.fetch_add(ENTERED, Ordering::AcqRel);
    }

    /// A reference is about to be dropped by a limbo.
    pub(crate) fn leave(&self) {
        // AcqRel: Release pairs with the fence of `is_last`, Acquire hands on what entered before.
        self.0.fetch_add(LEFT, Ordering::AcqRel);
    }

    /// Whether some references of `object` wait in a limbo, and `object` is the only other one. `pinned` says
    /// whether somebody who found it before is about to take one.
    ///
    /// Two callers that let go of theirs at the same moment may both get a no.
    pub fn is_last<T>(&self, object: &SlabArc<T>, pinned: impl FnOnce() -> bool) -> bool {
        // Acquire pairs with the Release in `enter`.
        let word = self.0.load(Ordering::Acquire);
        if pinned() {
            return false;
        }
        let waiting = (word as u32).wrapping_sub((word >> 32) as u32) as usize;
        let others = SlabArc::count(object) != waiting + 1;
        // Acquire pairs with the Release in `leave` and in the drop that follows it.
        fence(Ordering::Acquire);
        // Relaxed: after the fence.
        waiting > 0 && !others && self.0.load(Ordering::Relaxed) == word
    }
}

impl fmt::Debug for Retired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for people.
        write!(f, "Retired({:#x})", self.0.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_last_reference_is_known_whatever_waits() {
        let (object, retired) = (SlabArc::new(()), Retired::new());
        assert!(
            !retired.is_last(&object, || false),
            "nothing waits: its drop is enough"
        );
        let waiting = [object.clone(), object.clone()];
        waiting.iter().for_each(|_| retired.enter());
        assert!(retired.is_last(&object, || false));
        let other = object.clone();
        assert!(!retired.is_last(&object, || false));
        retired.leave();
        assert!(
            !retired.is_last(&object, || false),
            "one that leaves counts no more"
        );
        let [first, second] = waiting;
        drop(first);
        drop(other);
        assert!(retired.is_last(&object, || false));
        retired.leave();
        drop(second);
        assert!(!retired.is_last(&object, || false));
    }
}
