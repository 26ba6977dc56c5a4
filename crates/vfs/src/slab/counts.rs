//! The counts of a shared object of a slab.
//!
//! # Model
//!
//! `strong` is of those who keep the object. `weak` is of those who keep its memory: all who keep the object count there as
//! one. The one that takes `strong` to zero drops the object, and the reference that all had together; the one that
//! takes `weak` to zero frees the memory.
//!
//! # Memory ordering
//!
//! To take one more needs no order (`Relaxed`): who takes it has one. Each decrement is a `Release`, and the last one puts an
//! `Acquire` fence behind it: what others did to the object comes before its end. An upgrade is an
//! exchange that finds `strong` not zero (`Acquire`, which pairs with the `Release` of who gave a reference up).

use foliocache_sync::atomic::{AtomicU32, Ordering, fence};

/// Nobody has so many references, unless they are lost in a loop.
const MOST: u32 = i32::MAX as u32;

pub(super) struct Counts {
    strong: AtomicU32,
    weak: AtomicU32,
}

impl Counts {
    /// Of the first reference.
    pub(super) fn one() -> Self {
        Self {
            strong: AtomicU32::new(1),
            weak: AtomicU32::new(1),
        }
    }

    /// Those who keep the object, at some moment.
    pub(super) fn strong(&self) -> usize {
        // Relaxed: the caller orders it, see `link` of the inode cache.
        self.strong.load(Ordering::Relaxed) as usize
    }

    /// One more, by one that is had.
    pub(super) fn get(&self) {
        increment(&self.strong);
    }

    /// Gives one up; whether the object is to be dropped, and then the weak one that all had.
    #[must_use]
    pub(super) fn put(&self) -> bool {
        decrement(&self.strong)
    }

    /// One more weak one, by one of any kind.
    pub(super) fn get_weak(&self) {
        increment(&self.weak);
    }

    /// Gives a weak one up; whether the memory is to be freed.
    #[must_use]
    pub(super) fn put_weak(&self) -> bool {
        decrement(&self.weak)
    }

    /// Takes a strong one by a weak one; false if the object is gone.
    #[must_use]
    pub(super) fn upgrade(&self) -> bool {
        let more = |strong: u32| (strong > 0).then_some(strong + 1);
        // Acquire: see the module's header. Relaxed on failure: nothing is had then.
        let found = self
            .strong
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, more);
        found.is_ok()
    }
}

fn increment(count: &AtomicU32) {
    // Relaxed: see the module's header.
    if count.fetch_add(1, Ordering::Relaxed) > MOST {
        std::process::abort();
    }
}

/// Whether it was the last one; what others did comes before then.
fn decrement(count: &AtomicU32) -> bool {
    // Release pairs with the fence.
    let last = count.fetch_sub(1, Ordering::Release) == 1;
    if last {
        // Acquire: see the module's header.
        fence(Ordering::Acquire);
    }
    last
}
