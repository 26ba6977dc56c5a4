//! A cache over a store that keeps nothing, for cases in which only the cache's own work is to show.
//!
//! # Model
//!
//! Writes and flushes succeed at once and drop the bytes; reads leave the frames unchanged. Nothing is written back
//! unless a case asks for it: data does not expire while a case runs, and the case stays below the background
//! limit.

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Iocb, IovIter, Mm,
    MmConfig, ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::files::{PAGE, whole};

/// A file of the store.
struct Nothing;

fn all(segments: &[IoSegment<'_>]) -> usize {
    segments.iter().map(IoSegment::len).sum()
}

impl AddressSpaceOperations for Nothing {
    fn read_folios(&self, _pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Ok(all(segments))
    }

    fn writepages(&self, _pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Ok(all(segments))
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch_hole(&self, _pos: u64, _len: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a store that keeps nothing".to_owned()
    }
}

/// A cache with file systems over such stores.
pub(crate) struct Bed {
    pub(crate) mm: Arc<Mm>,
    bdis: Vec<Arc<BackingDevInfo>>,
}

impl Bed {
    /// With a bound of `limit` bytes and this many file systems.
    pub(crate) fn new(limit: u64, file_systems: usize) -> io::Result<Arc<Self>> {
        let mut config = MmConfig::new(limit);
        config.dirty_percent = 90;
        config.dirty_background_percent = 90;
        config.dirty_expire = Duration::from_secs(24 * 3600);
        config.external_pressure = false;
        let mm = Mm::new(config).map_err(io::Error::other)?;
        let bdi = |number| {
            let bdi = BackingDevInfo::new(&mm, format!("store {number}"), BdiKind::Storage);
            bdi.map_err(io::Error::other)
        };
        let bdis = (0..file_systems).map(bdi).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { mm, bdis }))
    }

    /// A new file of `len` bytes, all of them in the store.
    pub(crate) fn file(&self, file_system: usize, len: u64) -> BedFile {
        let readahead = ReadaheadState::new();
        readahead.advise(foliocache_mm::Access::Random);
        BedFile {
            mapping: AddressSpace::new(&self.bdis[file_system], Arc::new(Nothing), len),
            readahead,
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for bdi in &self.bdis {
            bdi.stop();
            // Dirty data holds the file systems, which hold the cache.
            bdi.discard_all();
        }
    }
}

/// A file of a [`Bed`], whose reads are at random.
pub(crate) struct BedFile {
    mapping: SlabArc<AddressSpace>,
    readahead: ReadaheadState,
}

impl BedFile {
    /// Makes the first page dirty.
    pub(crate) fn dirty(&self) -> io::Result<()> {
        let n = self
            .mapping
            .write(&mut Iocb::at(0), &mut IovIter::source(&[7; 64]));
        whole(n.map_err(io::Error::other)?, 64)
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.mapping.sync().map_err(io::Error::other)
    }

    /// Reads the first bytes of a page.
    pub(crate) fn read(&self, page: u64) -> io::Result<()> {
        let mut bytes = [0; 64];
        let mut iter = IovIter::destination(&mut bytes);
        let n = self.mapping.read(
            &self.readahead,
            &mut Iocb::at(page * PAGE as u64),
            &mut iter,
        );
        whole(n.map_err(io::Error::other)?, 64)
    }
}
