//! Stores that read in the background.

use foliocache::Errno;
use foliocache_mm::{AddressSpaceOperations, IoSegment, ReadDone, ReadMode};
use foliocache_sim::FaultyBackend;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// A store whose background reads end on command.
pub struct Parked {
    bytes: Vec<u8>,
    parked: Mutex<Vec<(u64, Vec<IoSegment<'static>>, ReadDone)>>,
    /// A truncate fails, after all reads have ended within it.
    pub truncate_fails: AtomicBool,
}

impl Parked {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            parked: Mutex::default(),
            truncate_fails: AtomicBool::new(false),
        })
    }

    /// Reads that have not ended.
    pub fn parked(&self) -> usize {
        self.parked.lock().unwrap().len()
    }

    /// Ends all of them, with this error or well.
    pub fn end_all(&self, error: Option<Errno>) {
        let parked = std::mem::take(&mut *self.parked.lock().unwrap());
        for (pos, segments, done) in parked {
            done(match error {
                Some(error) => Err(error),
                None => self.read_folios(pos, &segments),
            });
        }
    }
}

impl AddressSpaceOperations for Parked {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let start = (pos as usize).min(self.bytes.len());
        let mut at = start;
        for segment in segments {
            let n = segment.len().min(self.bytes.len() - at);
            segment.copy_from(0, &self.bytes[at..at + n]);
            at += n;
        }
        Ok(at - start)
    }

    fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        self.parked
            .lock()
            .unwrap()
            .push((pos, segments.to_vec(), done));
    }

    fn read_mode(&self) -> ReadMode {
        ReadMode::Background
    }

    fn writepages(&self, _: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        Ok(segments.iter().map(IoSegment::len).sum())
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _: u64) -> Result<(), Errno> {
        if self.truncate_fails.load(Ordering::Relaxed) {
            self.end_all(None);
            return Err(Errno::EIO);
        }
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self) -> String {
        "parked".into()
    }
}

/// A faulty store with threads for its reads.
pub struct Background {
    pub store: Arc<FaultyBackend>,
    threads: Vec<Sender<(u64, Vec<IoSegment<'static>>, ReadDone)>>,
}

impl Background {
    pub fn new(store: Arc<FaultyBackend>) -> Arc<Self> {
        let thread = |_| {
            let (sender, reads) = channel::<(u64, Vec<IoSegment<'static>>, ReadDone)>();
            let store = Arc::clone(&store);
            thread::spawn(move || {
                for (pos, segments, done) in reads {
                    done(store.read_folios(pos, &segments));
                }
            });
            sender
        };
        let threads = (0..3).map(thread).collect();
        Arc::new(Self { store, threads })
    }
}

impl AddressSpaceOperations for Background {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        let thread = &self.threads[(pos >> 14) as usize % self.threads.len()];
        if let Err(refused) = thread.send((pos, segments.to_vec(), done)) {
            (refused.0.2)(Err(Errno::EIO));
        }
    }

    fn read_mode(&self) -> ReadMode {
        ReadMode::Background
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.writepages(pos, segments)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.store.flush()
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}
