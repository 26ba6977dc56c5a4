//! What a mount did.
//!
//! # Memory ordering
//!
//! Statistics that nothing depends on: every access is `Relaxed`.

use foliocache_sync::atomic::{AtomicU64, Ordering};

/// Figures of one [`Mount`](crate::Mount) since it was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FuseStats {
    /// Requests of the kernel.
    pub requests: u64,
    /// Requests that ended with an error, names that were not found included.
    pub errors: u64,
    /// Panics of operations, each of which was answered with `EIO`, and of the mount's own threads.
    pub panics: u64,
    /// Requests that were handed over to a worker, because too many readers were waiting.
    pub handed_over: u64,
    /// Workers that there are now.
    pub workers: u64,
    /// Bytes handed to the kernel.
    pub bytes_read: u64,
    /// Bytes of `bytes_read` that the kernel copied from the cache itself, without a copy of ours.
    pub bytes_in_place: u64,
    /// Bytes taken from the kernel.
    pub bytes_written: u64,
    /// Bytes of `bytes_read` that went into the kernel's own cache.
    pub bytes_to_kernel_cache: u64,
    /// Files open now.
    pub open_files: u64,
    /// Look-ups that the kernel holds now: how often it was told of inodes other than the root,
    /// less what it has forgotten.
    pub lookups: u64,
    /// Inodes that the kernel was asked to forget, because memory was short; one in use may be asked for again.
    pub asked_to_forget: u64,
    /// Inodes of `asked_to_forget` that it forgot.
    pub forgotten_on_request: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) handed_over: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_in_place: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_to_kernel_cache: AtomicU64,
    pub(crate) open_files: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) asked_to_forget: AtomicU64,
    pub(crate) forgotten_on_request: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    // Relaxed: a statistic.
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, n: u64) {
    // Relaxed: a statistic.
    counter.fetch_sub(n, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn snapshot(&self) -> FuseStats {
        // Relaxed: statistics.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FuseStats {
            requests: read(&self.requests),
            errors: read(&self.errors),
            panics: 0,
            handed_over: read(&self.handed_over),
            workers: 0,
            bytes_read: read(&self.bytes_read),
            bytes_in_place: read(&self.bytes_in_place),
            bytes_written: read(&self.bytes_written),
            bytes_to_kernel_cache: read(&self.bytes_to_kernel_cache),
            open_files: read(&self.open_files),
            lookups: read(&self.lookups),
            asked_to_forget: read(&self.asked_to_forget),
            forgotten_on_request: read(&self.forgotten_on_request),
        }
    }
}
