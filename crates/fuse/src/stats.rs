//! Statistics of a mount.
//!
//! # Memory ordering
//!
//! Statistics that nothing depends on: every access is `Relaxed`.

use foliocache_mm::show::{Bytes, Count, lines};
use foliocache_sync::atomic::{AtomicU64, Ordering};
use std::fmt;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Statistics of one [`Mount`](crate::Mount) since it was mounted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct FuseStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Panics of operations, each of which was answered with `EIO`, and of the mount's own threads.
            pub panics: u64,
            /// Workers that run now.
            pub workers: u64,
        }

        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Without the figures that are counted elsewhere.
            pub(crate) fn snapshot(&self) -> FuseStats {
                FuseStats {
                    // Relaxed: a statistic.
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    ..FuseStats::default()
                }
            }
        }
    };
}

counters! {
    /// Requests of the kernel.
    requests,
    /// Requests that ended with an error, names that were not found included.
    errors,
    /// Requests that were handed over to a worker, because too many readers were waiting.
    handed_over,
    /// Bytes handed to the kernel.
    read_bytes,
    /// Bytes of `read_bytes` that the kernel copied directly from the cache.
    in_place_bytes,
    /// Bytes taken from the kernel.
    written_bytes,
    /// Bytes of `read_bytes` that went into the kernel's own cache.
    kernel_cache_bytes,
    /// Files open now.
    open_files,
    /// Look-ups that the kernel holds now: answers that named an inode other than the root, less those that it has
    /// forgotten.
    lookups,
    /// Inodes that the kernel was asked to forget because memory was short. One in use may be
    /// counted again.
    asked_to_forget,
    /// Inodes of `asked_to_forget` that it forgot.
    forgotten_on_request,
}

impl fmt::Display for FuseStats {
    /// Prints several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = format!(
            "{}: {} with an error, {} handed over, {} workers",
            Count(self.requests),
            Count(self.errors),
            Count(self.handed_over),
            Count(self.workers),
        );
        let read = format!(
            "{}: {} in place, {} into the kernel's cache",
            Bytes(self.read_bytes),
            Bytes(self.in_place_bytes),
            Bytes(self.kernel_cache_bytes),
        );
        let kernel = format!(
            "{} look-ups, {} of {} forgotten on request",
            Count(self.lookups),
            Count(self.forgotten_on_request),
            Count(self.asked_to_forget),
        );
        let mut all = vec![
            ("requests", requests),
            ("read", read),
            ("written", Bytes(self.written_bytes).to_string()),
            ("open files", Count(self.open_files).to_string()),
            ("kernel holds", kernel),
        ];
        if self.panics > 0 {
            all.push(("panics", Count(self.panics).to_string()));
        }
        lines(f, &all)
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    // Relaxed: a statistic.
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn subtract(counter: &AtomicU64, n: u64) {
    // Relaxed: a statistic.
    counter.fetch_sub(n, Ordering::Relaxed);
}
