//! How many files of the process have descriptors.

use foliocache_sync::atomic::{AtomicUsize, Ordering};

/// Files with descriptors in all directories of the process.
static OPEN_FILES: AtomicUsize = AtomicUsize::new(0);

/// One of them until it is dropped.
pub(super) struct OpenFile(());

impl OpenFile {
    pub(super) fn new() -> OpenFile {
        // Relaxed: a hint, which orders nothing.
        OPEN_FILES.fetch_add(1, Ordering::Relaxed);
        OpenFile(())
    }

    /// How many there are.
    pub(super) fn count() -> usize {
        // Relaxed: a hint, which orders nothing.
        OPEN_FILES.load(Ordering::Relaxed)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Relaxed: a hint, which orders nothing.
        OPEN_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}
