//! The state of files whose handles have nothing but the cached pages, and of files that reclaim asks for. `relied.rs` has the model
//! and the invariants.
//!
//! # Memory ordering
//!
//! The two SeqCst fences of [`Reliance`] are each other's partner: a thread that takes a page out counts as a holder and then looks
//! at the state; a thread that begins to rely sets the state and then looks for holders. The Acquire load of the holders is the
//! partner of the Release in `owner::count_down`.

use foliocache_sync::Mutex;
use foliocache_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use foliocache_sync::time::{Duration, coarse_monotonic_ms};

/// How long the flusher has to get a descriptor before the pages are given up without.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) mod state {
    pub(crate) const FREE: u8 = 0;
    pub(crate) const RELIED: u8 = 1;
    pub(crate) const ASKED: u8 = 2;
    pub(crate) const LOST: u8 = 3;
}

/// Whether handles of a file have nothing but its pages.
#[derive(Debug, Default)]
pub(crate) struct Reliance(pub(crate) AtomicU8);

/// Files of a file system that are asked for.
#[derive(Debug, Default)]
pub(crate) struct AskedFiles {
    /// By their numbers.
    pub(crate) files: Mutex<Vec<u64>>,
    /// Since when the list is not empty, in coarse milliseconds; 0 if it is. Relaxed everywhere: changed under the lock, and
    /// a thread that misses a change looks again.
    pub(crate) since: AtomicU64,
}

impl Reliance {
    /// Begins it; whether it holds. It does if all pages are there, and no thread takes one out, as the count of
    /// `holders` shows.
    pub(crate) fn begin(&self, holders: &AtomicU32, is_whole: impl FnOnce() -> bool) -> bool {
        let (free, relied) = (state::FREE, state::RELIED);
        // Relaxed: ordered by the fence.
        let order = Ordering::Relaxed;
        let begun = self.0.compare_exchange(free, relied, order, order);
        // Partner: the fence in `is_begun_for_holder`.
        fence(Ordering::SeqCst);
        // Acquire: the Release of `owner::count_down`.
        let whole = holders.load(Ordering::Acquire) == 0 && is_whole();
        whole && begun != Err(state::LOST)
    }

    /// Whether it has begun. Context: counted as a holder before.
    pub(crate) fn is_begun_for_holder(&self) -> bool {
        // Partner: the fence in `begin`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        self.0.load(Ordering::Relaxed) != state::FREE
    }
}

impl AskedFiles {
    pub(crate) fn push(&self, file: u64) {
        let mut files = self.files.lock();
        files.push(file);
        // Relaxed: see the field.
        if self.since.load(Ordering::Relaxed) == 0 {
            self.since
                .store(coarse_monotonic_ms().max(1), Ordering::Relaxed);
        }
    }

    /// Whether the flusher has not answered for a while.
    pub(crate) fn is_overdue(&self) -> bool {
        // Relaxed: see the field.
        let since = self.since.load(Ordering::Relaxed);
        let patience = PATIENCE.as_millis() as u64;
        since != 0 && coarse_monotonic_ms().saturating_sub(since) > patience
    }
}
