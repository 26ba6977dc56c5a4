//! Which changes of something are durable, for callers that make them so at the same time.
//!
//! # Model
//!
//! ```text
//!  changed   generation of the last change
//!  durable   generation that the last successful sync had read before it began
//! ```
//!
//! A sync covers the changes that were complete before it began, and is recorded only after it has
//! succeeded. A second caller that comes meanwhile finds the changes not durable yet and syncs too;
//! so does the next caller after a failed sync.
//!
//! # Invariants
//!
//! 1. `durable` equals `changed` only if a sync that began after the last change has succeeded.
//! 2. Syncs that overlap may note an older generation last. That costs one more sync and loses
//!    nothing.
//!
//! # Memory ordering
//!
//! The `Release` increment in [`Durability::changed`] pairs with the `Acquire` load in
//! [`Durability::begin`]: a sync that covers a generation comes after its change. The `Release` store
//! in [`Durability::end`] pairs with the `Acquire` load of `durable` in [`Durability::begin`]: a caller
//! that finds everything durable comes after the sync.

use crate::atomic::{AtomicU32, Ordering};

/// A pair of generations. Numbers wrap around; they are compared for equality only.
#[derive(Debug, Default)]
pub struct Durability {
    changed: AtomicU32,
    durable: AtomicU32,
}

impl Durability {
    const_unless_loom! {
        /// Nothing has changed.
        pub fn new() -> Durability {
            Durability {
                changed: AtomicU32::new(0),
                durable: AtomicU32::new(0),
            }
        }
    }

    /// A change is complete, and not durable. Returns its generation, which a sync that begins from now
    /// on covers.
    pub fn changed(&self) -> u32 {
        self.changed.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// Whether the last change is durable.
    pub fn is_durable(&self) -> bool {
        self.begin().is_none()
    }

    /// The changes that a sync covers if it begins now, for [`Durability::end`]; `None` if everything is durable.
    pub fn begin(&self) -> Option<u32> {
        // In this order: a change that comes between the two loads is not taken for durable.
        let changed = self.changed.load(Ordering::Acquire);
        (self.durable.load(Ordering::Acquire) != changed).then_some(changed)
    }

    /// A sync has succeeded, or its changes are given up; `begun` is the result of
    /// [`Durability::begin`] or [`Durability::changed`] before it.
    pub fn end(&self, begun: u32) {
        self.durable.store(begun, Ordering::Release);
    }

    /// Runs `sync` unless everything is durable, and records what it covered if it succeeds.
    ///
    /// # Errors
    /// That of `sync`. Nothing is noted then.
    pub fn sync<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if let Some(begun) = self.begin() {
            sync()?;
            let begun = match crate::planted!(sync_covers_what_came_later) {
                true => self.begin().unwrap_or(begun),
                false => begun,
            };
            self.end(begun);
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_sync_does_not_cover_a_change_that_comes_while_it_runs() {
        let durability = Durability::new();
        durability.changed();
        let sync = || {
            durability.changed();
            Ok::<(), ()>(())
        };
        assert_eq!(durability.sync(sync), Ok(()));
        assert!(!durability.is_durable());
        assert_eq!(durability.sync(|| Ok::<(), ()>(())), Ok(()));
        assert!(durability.is_durable());
    }
}
