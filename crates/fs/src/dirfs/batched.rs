//! Batches as the state of a file knows them: the result of each, and the room that a file has in one. The batches
//! themselves: [`batch`](super::batch).

use super::Shared;
use foliocache_sync::Arc;
use foliocache_sync::cell::OnceLock;
use foliocache_sys::Errno;

/// Files that become durable together.
#[derive(Default)]
pub(super) struct Batch(OnceLock<Result<(), Errno>>);

impl Batch {
    /// Whether it is durable; `None` before the answer.
    pub(super) fn result(&self) -> Option<Result<(), Errno>> {
        self.0.get().copied()
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.result() == Some(Ok(()))
    }

    /// Notes the result, once.
    pub(super) fn set_result(&self, result: Result<(), Errno>) {
        let noted = self.0.set(result);
        debug_assert!(noted.is_ok(), "one result for each batch");
    }
}

/// A batch, and what of a file it makes durable.
pub(super) struct Batched {
    pub(super) batch: Arc<Batch>,
    /// Generation of the data.
    pub(super) data: u32,
    /// Of the size, unless that was durable.
    pub(super) size: Option<u32>,
    /// No descriptor may be left that would report an error of it.
    pub(super) small: bool,
}

impl Batched {
    /// Whether a write into `batch` makes this one unnecessary.
    pub(super) fn is_covered_by(&self, batch: &Arc<Batch>) -> bool {
        !self.small && (Arc::ptr_eq(&self.batch, batch) || self.batch.has_succeeded())
    }
}

/// Memory and descriptors that files of batches take.
#[derive(Clone, Copy, Default)]
pub(super) struct Taken {
    /// In the kernel's cache.
    pub(super) bytes: u64,
    /// Descriptors that are kept.
    pub(super) fds: usize,
}

/// Takes back what no batch took over.
pub(super) trait TakeBack {
    /// Context: no lock of a batch; may be called with the state of a file locked.
    fn take_back(&self, taken: Taken);
}

/// Room for a file in the kernel's cache. Given back when this is dropped, unless a batch took it over.
pub(super) struct Room {
    shared: Arc<Shared>,
    /// Nothing once the room is a batch's.
    taken: Taken,
}

impl Room {
    pub(super) fn new(shared: Arc<Shared>, taken: Taken) -> Room {
        Room { shared, taken }
    }

    /// Whether the file keeps its descriptor.
    pub(super) fn keeps_descriptor(&self) -> bool {
        self.taken.fds > 0
    }

    /// The batch's from here on.
    pub(super) fn take_over(mut self) -> Taken {
        std::mem::take(&mut self.taken)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.taken.bytes > 0 {
            self.shared.take_back(self.taken);
        }
    }
}
