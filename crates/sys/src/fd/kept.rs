//! [`KeptFds`]: how many descriptors may be kept for files that are not open.
//!
//! # Memory ordering
//!
//! Counts alone, all `Relaxed`: nothing is published through them.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::open_file_limit;

/// A count of descriptors, with a limit.
#[derive(Debug)]
pub struct KeptFds {
    nr: Count,
    most: usize,
}

#[derive(Debug)]
enum Count {
    Own(AtomicUsize),
    OfProcess(&'static AtomicUsize),
}

impl KeptFds {
    /// A separate count, of at most `most`.
    pub fn own(most: usize) -> KeptFds {
        let nr = Count::Own(AtomicUsize::new(0));
        KeptFds { nr, most }
    }

    /// For files: at most a quarter of those that the process may have open. All of these share one count, as
    /// they share the limit.
    pub fn for_files() -> KeptFds {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let most = (open_file_limit() / 4).clamp(32, 8192) as usize;
        let nr = Count::OfProcess(&FILES);
        KeptFds { nr, most }
    }

    /// For names: at most an eighth, in a count that all of these share.
    pub fn for_names() -> KeptFds {
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let most = (open_file_limit() / 8).max(1) as usize;
        let nr = Count::OfProcess(&NAMES);
        KeptFds { nr, most }
    }

    fn nr(&self) -> &AtomicUsize {
        match &self.nr {
            Count::Own(nr) => nr,
            Count::OfProcess(nr) => nr,
        }
    }

    /// The most that may be kept.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Keeps one more, if that is allowed.
    pub fn try_keep(&self) -> bool {
        self.try_keep_within(self.most)
    }

    /// Keeps one more, if that is allowed and leaves half of them to those that cannot do without.
    pub fn try_keep_within_half(&self) -> bool {
        self.try_keep_within(self.most / 2)
    }

    fn try_keep_within(&self, most: usize) -> bool {
        let more = |nr| (nr < most).then_some(nr + 1);
        // Relaxed: see the module's header.
        let kept = self
            .nr()
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        kept.is_ok()
    }

    /// Keeps one more in any case.
    pub fn keep(&self) {
        // Relaxed: see the module's header.
        self.nr().fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps `nr` less.
    pub fn release(&self, nr: usize) {
        // Relaxed: see the module's header.
        self.nr().fetch_sub(nr, Ordering::Relaxed);
    }

    /// Whether more are kept than allowed.
    pub fn too_many(&self) -> bool {
        // Relaxed: see the module's header.
        self.nr().load(Ordering::Relaxed) > self.most
    }
}
