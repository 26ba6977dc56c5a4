//! Counts of what a `dirfs` did, and of refusals that it had to work around.
//!
//! # Memory ordering
//!
//! All counters are statistics that nothing depends on: every access is `Relaxed`.

use foliocache_mm::show::{Bytes, Count, lines};
use foliocache_sync::ShardedCounter;
use foliocache_sync::atomic::{AtomicU64, Ordering};
use foliocache_sync::rank::LeafMutex;
use foliocache_sys::Errno;
use foliocache_sys::uring::EngineStats;
use std::fmt;

/// Something that was refused, and what is done instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// No direct I/O: the kernel's cache is used, and emptied behind us.
    DirectIo,
    /// No io_uring: nothing is read in the background.
    IoUring,
    /// No hole punching: zeros are written.
    PunchHole,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fallback::DirectIo => "direct I/O refused, buffered with drop-behind instead",
            Fallback::IoUring => "io_uring refused, nothing is read in the background",
            Fallback::PunchHole => "hole punching refused, zeros are written instead",
        })
    }
}

/// Figures of one [`DirFs`](crate::DirFs) since it was opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DirFsStats {
    /// Reads past the kernel's cache.
    pub direct_reads: u64,
    /// Reads through the kernel's cache.
    pub buffered_reads: u64,
    /// Writes past the kernel's cache.
    pub direct_writes: u64,
    /// Writes through the kernel's cache; the last partial block of a file is always one.
    pub buffered_writes: u64,
    /// Reads in the background, through io_uring; each is a direct read, too.
    pub background_reads: u64,
    /// Flushes of one file to the medium.
    pub flushes: u64,
    /// Small new files that were written through the kernel's cache, to become durable many at a time.
    pub batched_files: u64,
    /// Flushes of everything at once, for a batch of files.
    pub batch_flushes: u64,
    /// Bytes of such files in the kernel's cache; they are charged to the bound.
    pub kernel_cache_bytes: u64,
    /// Operations in the background, and how deep; `None` without io_uring.
    pub engine: Option<EngineStats>,
    /// Files that were opened without a call: all of each was cached, and no change had been reported.
    pub opens_from_cache: u64,
    /// Files that the source was asked about when they were opened.
    pub opens_asked: u64,
    /// Directories that were opened to be read and whose names were all known.
    pub directories_from_cache: u64,
    /// Directories that the source was asked for the names of.
    pub directories_read: u64,
    /// Names that [uncached](foliocache_vfs::UncachedDir) passes asked the source for the attributes of.
    pub uncached_names: u64,
    /// Those of them that led to an inode in memory.
    pub uncached_names_known: u64,
    /// Bytes of names that are known; they are charged to the bound.
    pub listing_bytes: u64,
    /// Files that were changed from outside and whose pages were dropped.
    pub invalidations: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Inodes in memory that the bound had no room for.
    pub inodes_uncharged: u64,
    /// Open descriptors that stand for names.
    pub path_descriptors: u64,
    /// Directories in which the kernel tells of changes, [`watch`](crate::DirFsOptions::watch).
    pub watches: u64,
    /// Directories in which it does not: their names and attributes go by time.
    pub watches_refused: u64,
    /// Changes that it told of, our own included.
    pub changes_told: u64,
    /// How often it lost some, so that everything was asked for again.
    pub changes_lost: u64,
    /// Files open for writing of which it tells whether others write to them.
    pub watched_files: u64,
    /// Refusals, each kind with its first reason and how often.
    pub fallbacks: Vec<(Fallback, Errno, u64)>,
}

impl fmt::Display for DirFsStats {
    /// Several lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads = format!(
            "{} direct, {} of them in the background, {} through the kernel's cache",
            Count(self.direct_reads),
            Count(self.background_reads),
            Count(self.buffered_reads),
        );
        let writes = format!(
            "{} direct, {} through the kernel's cache",
            Count(self.direct_writes),
            Count(self.buffered_writes),
        );
        let flushes = format!(
            "{} of files, {} of batches of {} small files",
            Count(self.flushes),
            Count(self.batch_flushes),
            Count(self.batched_files),
        );
        let opened = format!(
            "{} files from the cache, {} asked about; {} directories from the cache, {} read, {} names uncached",
            Count(self.opens_from_cache),
            Count(self.opens_asked),
            Count(self.directories_from_cache),
            Count(self.directories_read),
            Count(self.uncached_names),
        );
        let changes = format!(
            "{} told, {} times lost, {} files dropped; {} directories and {} files watched, {} refused",
            Count(self.changes_told),
            Count(self.changes_lost),
            Count(self.invalidations),
            Count(self.watches),
            Count(self.watched_files),
            Count(self.watches_refused),
        );
        let known = format!(
            "{} inodes, {} of names, {} descriptors",
            Count(self.inodes),
            Bytes(self.listing_bytes),
            Count(self.path_descriptors),
        );
        let mut all = vec![
            ("reads", reads),
            ("writes", writes),
            ("flushes", flushes),
            ("opened", opened),
            ("changes by others", changes),
            ("known", known),
        ];
        if self.kernel_cache_bytes > 0 {
            let waiting = format!("{} of small files", Bytes(self.kernel_cache_bytes));
            all.push(("in the kernel's cache", waiting));
        }
        if let Some(engine) = self.engine {
            all.push(("io_uring", engine.to_string()));
        }
        for (what, reason, times) in &self.fallbacks {
            all.push((
                "fallback",
                format!("{what}: {reason}, {} times", Count(*times)),
            ));
        }
        lines(f, &all)
    }
}

/// The counters behind [`DirFsStats`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) direct_reads: AtomicU64,
    pub(super) buffered_reads: AtomicU64,
    pub(super) direct_writes: AtomicU64,
    pub(super) buffered_writes: AtomicU64,
    pub(super) background_reads: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) batched_files: AtomicU64,
    pub(super) batch_flushes: AtomicU64,
    /// By threads: counted where nothing else is shared.
    pub(super) opens_from_cache: ShardedCounter,
    pub(super) opens_asked: AtomicU64,
    pub(super) directories_from_cache: AtomicU64,
    pub(super) directories_read: AtomicU64,
    pub(super) uncached_names: AtomicU64,
    pub(super) uncached_names_known: AtomicU64,
    pub(super) invalidations: AtomicU64,
    fallbacks: LeafMutex<Vec<(Fallback, Errno, u64)>>,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Counts so many.
pub(super) fn add(counter: &AtomicU64, number: u64) {
    // Relaxed: a statistic.
    counter.fetch_add(number, Ordering::Relaxed);
}

pub(super) fn read(counter: &AtomicU64) -> u64 {
    // Relaxed: a statistic.
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// Remembers that something was refused; says so in the log the first time.
    pub(super) fn fell_back(&self, what: Fallback, reason: Errno) {
        let mut fallbacks = self.fallbacks.lock();
        match fallbacks.iter_mut().find(|known| known.0 == what) {
            Some(known) => known.2 += 1,
            None => {
                tracing::warn!(%reason, "{what}");
                fallbacks.push((what, reason, 1));
            }
        }
    }

    /// The figures that are counted here.
    pub(super) fn snapshot(&self) -> DirFsStats {
        DirFsStats {
            direct_reads: read(&self.direct_reads),
            buffered_reads: read(&self.buffered_reads),
            direct_writes: read(&self.direct_writes),
            buffered_writes: read(&self.buffered_writes),
            background_reads: read(&self.background_reads),
            flushes: read(&self.flushes),
            batched_files: read(&self.batched_files),
            batch_flushes: read(&self.batch_flushes),
            opens_from_cache: self.opens_from_cache.sum_positive(),
            opens_asked: read(&self.opens_asked),
            directories_from_cache: read(&self.directories_from_cache),
            directories_read: read(&self.directories_read),
            uncached_names: read(&self.uncached_names),
            uncached_names_known: read(&self.uncached_names_known),
            invalidations: read(&self.invalidations),
            fallbacks: self.fallbacks.lock().clone(),
            ..DirFsStats::default()
        }
    }
}
