//! The store of the models: bytes in memory.
#![allow(dead_code, reason = "each model uses its own part")]

use foliocache_mm::{AddressSpaceOperations, IoSegment};
use foliocache_sync::{Arc, Mutex, thread};
use foliocache_sys::Errno;

/// A store that lets others run in the middle of its operations.
#[derive(Debug)]
pub(crate) struct Store(Mutex<Vec<u8>>);

impl Store {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, bytes: Vec<u8>) {
        *self.0.lock() = bytes;
    }

    pub(crate) fn byte(&self, pos: u64) -> u8 {
        self.0.lock()[pos as usize]
    }
}

impl AddressSpaceOperations for Store {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let mut done = 0;
        for segment in segments {
            let bytes = self.0.lock();
            let at = (pos as usize + done).min(bytes.len());
            let n = segment.len().min(bytes.len() - at);
            segment.copy_from(0, &bytes[at..at + n]);
            done += n;
        }
        thread::yield_now();
        Ok(done)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        thread::yield_now();
        let mut done = 0;
        for segment in segments {
            let mut bytes = self.0.lock();
            let at = pos as usize + done;
            if bytes.len() < at + segment.len() {
                bytes.resize(at + segment.len(), 0);
            }
            segment.copy_to(0, &mut bytes[at..at + segment.len()]);
            done += segment.len();
        }
        thread::yield_now();
        Ok(done)
    }

    fn flush(&self) -> Result<(), Errno> {
        thread::yield_now();
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        thread::yield_now();
        self.0.lock().resize(size as usize, 0);
        thread::yield_now();
        Ok(())
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        thread::yield_now();
        let mut bytes = self.0.lock();
        let end = ((pos + len) as usize).min(bytes.len());
        let start = (pos as usize).min(end);
        bytes[start..end].fill(0);
        Ok(())
    }

    fn describe(&self) -> String {
        "a store in memory".into()
    }
}
