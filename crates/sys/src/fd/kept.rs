//! [`KeptFds`]: how many descriptors may be kept for files that nobody has open.
//!
//! # Memory ordering
//!
//! Counts alone, all `Relaxed`: nothing is published through them.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::open_file_limit;

/// Those of the process.
static OF_PROCESS: AtomicUsize = AtomicUsize::new(0);

/// A count of descriptors, with a limit.
#[derive(Debug)]
pub struct KeptFds {
    /// The process's if there is none.
    own: Option<AtomicUsize>,
    most: usize,
}

impl KeptFds {
    /// At most `most`, in a count of its own.
    pub fn own(most: usize) -> KeptFds {
        let own = Some(AtomicUsize::new(0));
        KeptFds { own, most }
    }

    /// At most a quarter of the files that the process may have open. All of these share one count, as they share
    /// the limit.
    pub fn of_process() -> KeptFds {
        let most = (open_file_limit() / 4).clamp(32, 8192) as usize;
        KeptFds { own: None, most }
    }

    fn nr(&self) -> &AtomicUsize {
        self.own.as_ref().unwrap_or(&OF_PROCESS)
    }

    /// Keeps one more, if that is allowed.
    pub fn try_keep(&self) -> bool {
        let more = |nr| (nr < self.most).then_some(nr + 1);
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
