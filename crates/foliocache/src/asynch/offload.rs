//! What the async files of one file system share: workers, and memory for what is handed to them.

use foliocache_mm::{MetadataCharge, Mm};
use foliocache_sync::{Arc, Mutex, Weak};
use foliocache_sys::Errno;

use crate::asynch::buffers::{Buffers, whole_pages};
use crate::asynch::workers::Workers;
use crate::parent_only::{Forked, ParentOnly};

/// Share of the bound that one file system's buffers take, and its limits in bytes.
const SHARE: u64 = 64;
const LEAST: u64 = 256 << 10;
const MOST: u64 = 4 << 20;

/// Workers and buffers of one file system.
pub(crate) struct Offload {
    pub(crate) workers: Workers,
    /// For reads that found their pages evicted time and again. Apart from the others, so that
    /// writers that are throttled do not stop readers.
    pub(crate) reads: Arc<Buffers>,
    /// For what a write hands to a worker.
    pub(crate) writes: Arc<Buffers>,
    /// Bytes of both.
    bytes: usize,
    mm: Arc<Mm>,
}

impl Offload {
    /// Bytes of buffers in use.
    pub(crate) fn buffered(&self) -> u64 {
        (self.bytes - self.reads.free() - self.writes.free()) as u64
    }

    /// Charges the buffers to the bound; starts no thread.
    ///
    /// # Errors
    /// `ENOMEM` if the bound leaves no room for them; `ECHILD` after a fork.
    fn new(mm: &Arc<Mm>) -> Result<Self, Errno> {
        mm.check_fork()?;
        let bytes = whole_pages((mm.usage().limit / SHARE).clamp(LEAST, MOST) as usize);
        // Each buffer holds on to it: some may be in use for longer than this.
        let charge = &Arc::new(MetadataCharge::new(mm, bytes as u64)?);
        let (reads, writes) = (bytes / 4, bytes - bytes / 4);
        Ok(Self {
            workers: Workers::new(mm),
            reads: Buffers::new(mm, charge, reads, whole_pages(reads / 4)),
            writes: Buffers::new(mm, charge, writes, whole_pages(writes / 3).min(1 << 20)),
            bytes,
            mm: Arc::clone(mm),
        })
    }
}

impl Forked for Offload {
    fn check_fork(&self) -> Result<(), Errno> {
        self.mm.check_fork()
    }
}

/// The place of an [`Offload`] that is made when it is first needed and goes with its last user.
#[derive(Default)]
pub(crate) struct OffloadCell(Mutex<Weak<ParentOnly<Offload>>>);

impl OffloadCell {
    /// The one there is, or a new one.
    ///
    /// # Errors
    /// As [`Offload::new`].
    pub(crate) fn get(&self, mm: &Arc<Mm>) -> Result<Arc<ParentOnly<Offload>>, Errno> {
        // Before the lock, which somebody in the parent may have held.
        mm.check_fork()?;
        let mut cell = self.0.lock();
        if let Some(offload) = cell.upgrade() {
            return Ok(offload);
        }
        let offload = Arc::new(ParentOnly::new(Offload::new(mm)?));
        *cell = Arc::downgrade(&offload);
        Ok(offload)
    }
}
