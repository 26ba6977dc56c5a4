//! Where the writeback of a file stands. `writeback` says what the passes do.

use foliocache_sync::time::monotonic_ns;
use foliocache_sys::Errno;
use std::time::Duration;

use super::flushes::Generations;
use crate::types::PageIndex;

/// Waiting time before the first retry of a failed write; doubles up to `MAX_BACKOFF`.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The state that `wb_lock` protects beside the folios' own.
#[derive(Debug, Default)]
pub(crate) struct WritebackState {
    /// Where the flusher goes on in a large file.
    pub(crate) next: PageIndex,
    /// When the flusher's pass through the file began that it is in.
    pass_began: u64,
    /// It left some dirty data to the next one.
    pass_left: bool,
    /// When the last pass began that came to the end and left nothing, by whichever thread: what is older is written.
    pub(crate) passed: u64,
    pub(crate) failures: u32,
    /// The flusher leaves what failed alone until then, a time of [`monotonic_ns`].
    pub(crate) retry_at: u64,
    pub(crate) flushes: Generations,
    /// The size that the backing file is known to have at least, and never more than the file's
    /// own; the largest number after a failed flush, which may have lost a change of it. A size that no write
    /// brings about (its pages were punched or given up) has to be set: see `store_size`.
    pub(crate) store_size: u64,
}

impl WritebackState {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            store_size: size,
            ..Self::default()
        }
    }

    /// The flusher's pass begins.
    pub(crate) fn begin_pass(&mut self) {
        (self.pass_began, self.pass_left) = (monotonic_ns(), false);
    }

    /// The flusher's pass left some of the dirty data that it came to, or not.
    pub(crate) fn note_left(&mut self, left: bool) {
        self.pass_left |= left;
    }

    /// Whether it left some so far.
    pub(crate) fn has_left(&self) -> bool {
        self.pass_left
    }

    /// The flusher's pass came to the end, and the next one begins.
    pub(crate) fn end_pass(&mut self) {
        if !self.pass_left || foliocache_sync::planted!(passed_over_taken_for_written) {
            self.passed = self.passed.max(self.pass_began);
        }
        self.begin_pass();
    }

    pub(crate) fn note(&mut self, result: Result<(), Errno>) {
        match result {
            Ok(()) => (self.failures, self.retry_at) = (0, 0),
            Err(_) => {
                let backoff = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10));
                self.failures += 1;
                let backoff = backoff.min(MAX_BACKOFF).as_nanos() as u64;
                self.retry_at = monotonic_ns().saturating_add(backoff);
            }
        }
    }

    pub(crate) fn backing_off(&self) -> bool {
        self.retry_at > monotonic_ns()
    }
}
