//! Making a file system's record, with its flusher.

use foliocache_sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use foliocache_sync::rank::RankedMutex;
use foliocache_sync::{Arc, Condvar, Mutex};

use crate::counters::PageCounts;
use crate::dirty::{Closed, DirtyFiles, Handed, Rewrites, Space, Throttle, Told};
use crate::error::MmError;
use crate::records::{BackingDevInfo, BdiKind, Mm};
use crate::reliance::AskedFiles;
use crate::worker::Worker;

impl BackingDevInfo {
    /// Accounting and flusher for a file system that `name` names in messages.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn new(mm: &Arc<Mm>, name: impl Into<String>, kind: BdiKind) -> Result<Arc<Self>, MmError> {
        let bdi = Arc::new(Self {
            mm: Arc::clone(mm),
            name: name.into(),
            kind,
            counts: PageCounts::default(),
            hit_bytes: AtomicU64::new(0),
            stay_dirty: AtomicU64::new(0),
            dirty_files: RankedMutex::new(DirtyFiles::new()),
            handed: RankedMutex::new(Handed::new()),
            closed: RankedMutex::new(Closed::default()),
            asked: AskedFiles::default(),
            flusher: Worker::default(),
            oldest_dirty: AtomicU64::new(0),
            throttle: Throttle::new(mm.shares.now()),
            rewrites: Rewrites::default(),
            share: AtomicU64::new(0),
            error: AtomicI32::new(0),
            progress: (Mutex::new(0), Condvar::new()),
            stopped: AtomicBool::new(false),
            scarce: AtomicBool::new(false),
            space: Space::default(),
            told: Told::default(),
        });
        if kind == BdiKind::Storage {
            // Relaxed: it steers.
            (mm.shares.nr_stores).fetch_add(1, Ordering::Relaxed);
            bdi.start_flusher()?;
            mm.add_bdi(&bdi);
        }
        Ok(bdi)
    }
}
