//! Direct writes of a file that a flush has yet to make durable. `filemap/direct.rs` says who changes the counts.

use foliocache_sync::atomic::{AtomicU32, Ordering};

/// Direct writes of a file, and those of them that a flush has made durable. Both wrap.
#[derive(Debug, Default)]
pub(crate) struct DirectWrites {
    pub(crate) written: AtomicU32,
    pub(crate) durable: AtomicU32,
}

impl DirectWrites {
    /// Context: `wb_lock` held.
    pub(crate) fn written(&self) -> u32 {
        self.written.load(Ordering::Relaxed)
    }

    /// Those are durable that had ended when there were `written`, or are given up.
    pub(crate) fn settle(&self, written: u32) {
        self.durable.store(written, Ordering::Relaxed);
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.durable.load(Ordering::Relaxed) != self.written()
    }
}
