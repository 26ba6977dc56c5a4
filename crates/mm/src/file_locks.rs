//! Taking the locks of a file: `i_rwsem` and `invalidate_lock` shared, by callers that give way to a first mapping
//! (`linear/busy.rs`), and `wb_lock`, by callers that make the file durable.
//!
//! # Memory ordering
//!
//! Relaxed: a turn more or less.

use foliocache_sync::atomic::{AtomicBool, Ordering};
use foliocache_sync::rank::{RankedMutexGuard, RankedReadGuard};
use foliocache_sync::time::{Duration, Instant, sleep};

use crate::dirty::WritebackState;
use crate::mapped::Wants;
use crate::records::AddressSpace;

/// Between two tries at first, and later: an eighth of the wait so far.
const POLL: Duration = Duration::from_micros(200);

/// Longest time between two tries.
const LONG_POLL: Duration = Duration::from_millis(20);

/// Tries until an attempt gives something, or `patience` is over.
pub(crate) fn wait_for<G>(patience: Duration, mut attempt: impl FnMut() -> Option<G>) -> Option<G> {
    let start = Instant::now();
    loop {
        let got = attempt();
        let waited = start.elapsed();
        if got.is_some() || waited >= patience {
            return got;
        }
        sleep((waited / 8).clamp(POLL, LONG_POLL));
    }
}

/// See [`AddressSpace::awaited`].
pub(crate) struct Awaited<'a>(&'a AddressSpace);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        // Relaxed: a turn more or less.
        self.0.awaited.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AddressSpace {
    /// Takes `i_rwsem` shared.
    pub(crate) fn share_i_rwsem(&self) -> RankedReadGuard<'_, ()> {
        self.lock_unless_held_off(|| {
            self.give_way(|wants| &wants.i_rwsem);
            self.i_rwsem.read()
        })
    }

    /// Takes `invalidate_lock` shared.
    pub(crate) fn share_invalidate_lock(&self) -> RankedReadGuard<'_, ()> {
        self.give_way(|wants| &wants.invalidate_lock);
        self.invalidate_lock.read()
    }

    /// As [`AddressSpace::share_i_rwsem`], if that need not wait.
    pub(crate) fn try_share_i_rwsem(&self) -> Option<RankedReadGuard<'_, ()>> {
        let free = !self.is_wanted(|wants| &wants.i_rwsem);
        let shared = free.then(|| self.i_rwsem.try_read()).flatten();
        shared.filter(|_| !self.holds_off_writers())
    }

    /// As [`AddressSpace::share_invalidate_lock`], if that need not wait.
    pub(crate) fn try_share_invalidate_lock(&self) -> Option<RankedReadGuard<'_, ()>> {
        let free = !self.is_wanted(|wants| &wants.invalidate_lock);
        free.then(|| self.invalidate_lock.try_read()).flatten()
    }

    fn is_wanted(&self, wanted: impl Fn(&Wants) -> &AtomicBool) -> bool {
        let linear = self.linear.get();
        linear.is_some_and(|linear| wanted(&linear.wants).load(Ordering::Relaxed))
    }

    fn give_way(&self, wanted: impl Fn(&Wants) -> &AtomicBool) {
        while self.is_wanted(&wanted) {
            sleep(POLL);
        }
    }

    /// `wb_lock`, for a caller that makes the file durable. The flusher lets go of it, and does not take it again
    /// before the caller has it: it is fast enough to starve the caller.
    pub(crate) fn lock_awaited(&self) -> RankedMutexGuard<'_, WritebackState> {
        let _awaited = self.awaited();
        self.wb_lock.lock()
    }

    /// Has the flusher let go of `wb_lock` until the value is dropped.
    pub(crate) fn awaited(&self) -> Awaited<'_> {
        // Relaxed: the lock orders what matters; a flusher that sees it late does a write more.
        self.awaited.fetch_add(1, Ordering::Relaxed);
        Awaited(self)
    }

    /// Whether somebody waits for `wb_lock` to make the file durable.
    pub(crate) fn is_awaited(&self) -> bool {
        // Relaxed: as above.
        self.awaited.load(Ordering::Relaxed) > 0
    }
}
