//! What the models of the cache share: a store in memory, and a cache over it.
#![allow(dead_code, reason = "each model uses its own part")]

use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, FrameKind, IoSegment, Iocb,
    IovIter, Mm, MmConfig, ReadaheadState, Reservation, SlabArc,
};
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

/// A store with a volatile cache. A flush covers what was written before it began; one that fails loses
/// that, and what was written beside it too, and no later flush tells.
pub(crate) struct Volatile {
    live: Arc<Store>,
    pub(crate) durable: Mutex<Vec<u8>>,
    /// So many flushes from now on the next one fails.
    pub(crate) fails_after: Mutex<Option<u32>>,
    pub(crate) flushes: Mutex<u32>,
}

impl Volatile {
    pub(crate) fn new(live: &Arc<Store>, fails_after: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            live: Arc::clone(live),
            durable: Mutex::new(live.content()),
            fails_after: Mutex::new(fails_after),
            flushes: Mutex::new(0),
        })
    }
}

impl AddressSpaceOperations for Volatile {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.live.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.live.writepages(pos, segments)
    }

    fn flush(&self) -> Result<(), Errno> {
        *self.flushes.lock() += 1;
        let covered = self.live.content();
        // Long enough for another to write all of its page.
        for _ in 0..30 {
            thread::yield_now();
        }
        let fails = {
            let mut after = self.fails_after.lock();
            let fails = *after == Some(0);
            *after = after.and_then(|after| after.checked_sub(1));
            fails
        };
        if fails {
            // What is live now is gone: a power cut would leave what was durable before.
            let durable = self.durable.lock().clone();
            self.live.set(durable);
            return Err(Errno::EIO);
        }
        *self.durable.lock() = covered;
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.live.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.live.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a store with a volatile cache".into()
    }
}

/// A cache of few frames with one file system.
pub(crate) struct Machine {
    pub(crate) mm: Arc<Mm>,
    pub(crate) bdi: Arc<BackingDevInfo>,
}

impl Machine {
    pub(crate) fn new(change: impl FnOnce(&mut MmConfig)) -> Self {
        let mut config = MmConfig::new(4 << 20);
        change(&mut config);
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "model", BdiKind::Storage).unwrap();
        Self { mm, bdi }
    }

    /// Takes all frames but `left` out of the game.
    pub(crate) fn leave(&self, left: u64) -> Reservation<'_> {
        let away = self.mm.usage().available_pages - left;
        self.mm
            .frames()
            .try_reserve(FrameKind::General, away as u32)
            .unwrap()
    }

    pub(crate) fn file(&self, store: &Arc<Store>) -> SlabArc<AddressSpace> {
        let size = store.content().len() as u64;
        let ops = Arc::clone(store) as Arc<dyn AddressSpaceOperations>;
        AddressSpace::new(&self.bdi, ops, size)
    }

    /// Makes the files durable, compares cache and store, and drops everything.
    pub(crate) fn end(self, files: Vec<(SlabArc<AddressSpace>, Arc<Store>)>) {
        for (file, store) in &files {
            file.sync().unwrap();
            let cached = read(file, 0, file.size() as usize + 10);
            assert_eq!(cached.len() as u64, file.size());
            assert!(cached == store.content(), "store and cache differ");
            let stats = file.stats();
            let left = (
                stats.dirty_pages,
                stats.writeback_pages,
                stats.unstable_pages,
                stats.failed_pages,
            );
            assert_eq!(left, (0, 0, 0, 0));
        }
        drop(files);
        self.bdi.stop();
        let usage = self.mm.usage();
        assert_eq!(
            (usage.in_use_pages, usage.reserved_pages, usage.waiters),
            (0, 0, 0)
        );
        assert!(usage.total_bytes() <= usage.limit_bytes);
        let stats = self.mm.stats();
        assert_eq!((stats.known_files, stats.files.resident_pages), (0, 0));
    }
}

pub(crate) fn read(file: &SlabArc<AddressSpace>, pos: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let handle = ReadaheadState::new();
    let mut iter = IovIter::destination(&mut bytes);
    let n = file.read(&handle, &mut Iocb::at(pos), &mut iter).unwrap();
    bytes.truncate(n);
    bytes
}

pub(crate) fn write(file: &SlabArc<AddressSpace>, pos: u64, len: usize, byte: u8) {
    let bytes = vec![byte; len];
    let n = file
        .write(&mut Iocb::at(pos), &mut IovIter::source(&bytes))
        .unwrap();
    assert_eq!(n, len);
}

pub(crate) fn spawn(
    file: &SlabArc<AddressSpace>,
    run: impl FnOnce(&SlabArc<AddressSpace>) + Send + 'static,
) -> thread::JoinHandle<()> {
    let file = file.share();
    thread::spawn(move || run(&file))
}

pub(crate) fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}
