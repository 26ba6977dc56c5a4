//! A backing store in memory, and the pieces that every test of this crate needs.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod huge;
pub(crate) mod stuck;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Iocb, IovIter, Mm,
    MmConfig, ReadaheadState, SlabArc,
};
use foliocache_sys::Errno;

/// A backing store that keeps its bytes in memory and counts what is asked of it.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    /// So many writes fail from now on.
    pub(crate) failing: AtomicU32,
    /// What the cache is told, when it asks whether others write to it.
    pub(crate) written_by_others: AtomicBool,
}

impl Store {
    pub(crate) fn with(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes.to_vec()),
            ..Self::default()
        })
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl AddressSpaceOperations for Store {
    fn read_folios(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.lock().unwrap();
        let mut at = (pos as usize).min(bytes.len());
        let start = at;
        for segment in segments {
            let n = segment.len().min(bytes.len() - at);
            segment.copy_from(0, &bytes[at..at + n]);
            at += n;
        }
        Ok(at - start)
    }

    fn look_before_writeback(&self) -> bool {
        self.written_by_others.load(Ordering::Relaxed)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let (read, written) = (Ordering::Relaxed, Ordering::Relaxed);
        let fewer = |left: u32| left.checked_sub(1);
        if self.failing.fetch_update(written, read, fewer).is_ok() {
            return Err(Errno::EIO);
        }
        let mut bytes = self.bytes.lock().unwrap();
        let mut at = pos as usize;
        for segment in segments {
            let end = at + segment.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            segment.copy_to(0, &mut bytes[at..end]);
            at = end;
        }
        Ok(at - pos as usize)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.bytes.lock().unwrap().resize(size as usize, 0);
        Ok(())
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        let mut bytes = self.bytes.lock().unwrap();
        let end = ((pos + len) as usize).min(bytes.len());
        if (pos as usize) < end {
            bytes[pos as usize..end].fill(0);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        "a store in memory".into()
    }
}

/// A cache of `mib` MiB with one storage file system.
pub(crate) fn storage(mib: u64) -> (Arc<Mm>, Arc<BackingDevInfo>) {
    let mm = Mm::new(MmConfig::new(mib << 20)).unwrap();
    let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
    (mm, bdi)
}

/// A file over `store`, as large as that is now.
pub(crate) fn file(bdi: &Arc<BackingDevInfo>, store: &Arc<Store>) -> SlabArc<AddressSpace> {
    let size = store.bytes.lock().unwrap().len() as u64;
    AddressSpace::new(
        bdi,
        Arc::clone(store) as Arc<dyn AddressSpaceOperations>,
        size,
    )
}

/// Reads `len` bytes at `pos`, as many as there are.
pub(crate) fn read(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let n = file
        .read(
            &ReadaheadState::new(),
            &mut Iocb::at(pos),
            &mut IovIter::destination(&mut bytes),
        )
        .unwrap();
    bytes.truncate(n);
    bytes
}

/// Writes all of `bytes` at `pos`.
pub(crate) fn write(file: &SlabArc<AddressSpace>, pos: u64, bytes: &[u8]) {
    let n = file
        .write(&mut Iocb::at(pos), &mut IovIter::source(bytes))
        .unwrap();
    assert_eq!(n, bytes.len());
}

/// Bytes that tell where they belong: file `who`, page and offset.
pub(crate) fn pattern(who: u8, pos: u64, len: usize) -> Vec<u8> {
    (pos..pos + len as u64)
        .map(|at| (at as u8) ^ ((at >> 12) as u8).wrapping_mul(31) ^ who.wrapping_mul(97))
        .collect()
}

/// Waits until no frame is in use any more: the flusher may hold a file for a moment after its
/// last user dropped it.
pub(crate) fn assert_empty(mm: &Mm) {
    let start = std::time::Instant::now();
    while mm.usage().in_use_pages > 0 {
        assert!(start.elapsed().as_secs() < 10, "{:?}", mm.usage());
        std::thread::yield_now();
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |n| n.parse().expect("a number"))
}

/// How long a stress test goes on, in its own unit: `FOLIOCACHE_STRESS`, 1 by default.
pub(crate) fn stress_scale() -> u64 {
    number("FOLIOCACHE_STRESS", 1)
}

/// A generator of numbers, good enough to choose with.
pub(crate) struct Random(u64);

impl Random {
    /// Number `n` of a test, different with each `FOLIOCACHE_SEED`.
    pub(crate) fn of(n: u64) -> Self {
        Self(number("FOLIOCACHE_SEED", 0).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
