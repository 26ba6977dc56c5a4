//! A store for unit tests of this crate.

use crate::ops::{AddressSpaceOperations, IoSegment};
use foliocache_sys::Errno;

/// Reads as zeros and takes everything.
#[derive(Default)]
pub(crate) struct Sink {
    /// Whether others may change files in it.
    pub(crate) shared: bool,
    /// Runs at each write.
    pub(crate) on_write: Option<Box<dyn Fn() + Send + Sync>>,
    /// Runs at each flush.
    pub(crate) on_flush: Option<Box<dyn Fn() + Send + Sync>>,
}

impl AddressSpaceOperations for Sink {
    fn read_folios(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Ok(segments.iter().map(IoSegment::len).sum())
    }
    fn writepages(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.on_write.iter().for_each(|run| run());
        Ok(segments.iter().map(IoSegment::len).sum())
    }
    fn flush(&self) -> Result<(), Errno> {
        self.on_flush.iter().for_each(|run| run());
        Ok(())
    }
    fn truncate(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn is_shared(&self) -> bool {
        self.shared
    }
    fn describe(&self) -> String {
        "sink".into()
    }
}
