//! Files in fewer frames than they have pages, stored into through mappings by some threads, read and written, uncached,
//! directly and in batches too, cut, punched, locked for I/O, pinned, viewed, made durable and evicted: every byte where it belongs, the
//! bound held, nothing left. All stores write short, and one of them fails. One file is not mapped: views of the
//! others are copies. `FOLIOCACHE_STRESS` is the number of seconds for each way to resolve faults.

use crate::common::huge::HugePool;
use crate::common::{Random, Store, assert_empty, pattern, stress_scale};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, Extent, FaultMode, FolioPin,
    IoSegment, Iocb, IovIter, LockedAccess, MapError, Mm, MmConfig, PAGE_SIZE, PinError, PinMode,
    ReadaheadState, Request, SlabArc, View, Vma, VmaAccess, read_batch,
};
use foliocache_sys::Errno;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_SIZE as u64;

/// Each has one byte in so many of all files.
const THREADS: u64 = 4;

/// Most bytes of the files. One is that of the store that fails. Dirty, under writeback and unstable at a time it
/// counts three times, and is still below the least dirty limit: beyond that a store through a mapping would be SIGBUS.
const MOST: [u64; FILES] = [24 * MIB, 24 * MIB, 4 * PAGE, 12 * MIB];
const FILES: usize = 4;
const FAILING: usize = 2;
const UNMAPPED: usize = 3;

/// Views that a thread keeps.
const VIEWS: usize = 16;

/// A store that writes short, and on demand fails.
struct Faulty {
    store: Arc<Store>,
    /// What survives a flush that fails, if some do.
    durable: Option<Mutex<Vec<u8>>>,
    fails: AtomicBool,
    random: Mutex<Random>,
}

impl Faulty {
    /// One in `n` times.
    fn now(&self, n: u64) -> bool {
        self.random.lock().unwrap().below(n) == 0
    }

    fn fails(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }

    /// A byte that survives.
    fn durable(&self, pos: u64) -> u8 {
        let bytes = self.durable.as_ref().unwrap_or(&self.store.bytes);
        bytes.lock().unwrap()[pos as usize]
    }

    /// Writes all of it, or some.
    fn write_some(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let whole = segments.iter().map(IoSegment::len).sum::<usize>();
        if whole <= PAGE_SIZE || !self.now(3) {
            return self.store.writepages(pos, segments);
        }
        let mut left = PAGE_SIZE
            + self
                .random
                .lock()
                .unwrap()
                .below((whole - PAGE_SIZE) as u64) as usize;
        let mut short = Vec::new();
        for segment in segments {
            let len = segment.len().min(left);
            short.push(segment.sub(0, len));
            left -= len;
        }
        self.store.writepages(pos, &short)
    }
}

impl AddressSpaceOperations for Faulty {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }

    fn writepages(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        match self.fails() && self.now(4) {
            true => Err(Errno::EIO),
            false => self.write_some(pos, segments),
        }
    }

    /// As often as if there were one: where most passes over a file fail nobody gets on.
    fn write_extents(&self, extents: &mut [Extent<'_>]) {
        let fails = self.fails() && self.now(4);
        let bad = fails.then(|| self.random.lock().unwrap().below(extents.len() as u64) as usize);
        for (nr, extent) in extents.iter_mut().enumerate() {
            extent.written = Some(match bad == Some(nr) {
                true => Err(Errno::EIO),
                false => self.write_some(extent.pos, extent.segments()),
            });
        }
    }

    fn flush(&self) -> Result<(), Errno> {
        let Some(durable) = &self.durable else {
            return Ok(());
        };
        let mut written = self.store.bytes.lock().unwrap();
        let mut durable = durable.lock().unwrap();
        if self.fails() && self.now(8) {
            // The loss of what was written is reported once.
            written.clone_from(&durable);
            return Err(Errno::EIO);
        }
        durable.clone_from(&written);
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        if let Some(durable) = &self.durable {
            durable.lock().unwrap().resize(size as usize, 0);
        }
        self.store.truncate(size)
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        if let Some(durable) = &self.durable {
            let mut bytes = durable.lock().unwrap();
            let end = ((pos + len) as usize).min(bytes.len());
            let start = (pos as usize).min(end);
            bytes[start..end].fill(0);
        }
        self.store.punch_hole(pos, len)
    }

    fn describe(&self) -> String {
        "a store with faults".into()
    }
}

/// A file, and what its bytes are.
struct Checked {
    file: SlabArc<AddressSpace>,
    store: Arc<Faulty>,
    most: u64,
    /// All zero beyond the size.
    bytes: Vec<AtomicU8>,
    /// Held shared for what changes one thread's bytes alone.
    size: RwLock<u64>,
}

impl Checked {
    fn new(bdi: &Arc<BackingDevInfo>, which: usize, size: u64) -> Self {
        let (content, most) = (pattern(which as u8, 0, size as usize), MOST[which]);
        let durable = (which == FAILING).then(|| Mutex::new(content.clone()));
        let store = Arc::new(Faulty {
            store: Store::with(&content),
            fails: AtomicBool::new(durable.is_some()),
            durable,
            random: Mutex::new(Random::of(which as u64 + 77)),
        });
        let ops = Arc::clone(&store) as Arc<dyn AddressSpaceOperations>;
        let zeros = std::iter::repeat_n(0, (most - size) as usize);
        Self {
            file: AddressSpace::new(bdi, ops, size),
            store,
            most,
            bytes: content
                .into_iter()
                .chain(zeros)
                .map(AtomicU8::new)
                .collect(),
            size: RwLock::new(size),
        }
    }

    fn expected(&self, pos: u64) -> u8 {
        self.bytes[pos as usize].load(Ordering::Relaxed)
    }

    fn set(&self, pos: u64, byte: u8) {
        self.bytes[pos as usize].store(byte, Ordering::Relaxed);
    }

    fn map(&self, pages: std::ops::Range<u64>) -> Vma {
        let (pos, end) = (pages.start * PAGE, (pages.end * PAGE).min(self.most));
        let mapped = (self.file).map(pos, (end - pos) as usize, VmaAccess::ReadWrite);
        mapped.expect("a mapping")
    }

    /// Makes it durable if its store does not fail; whether it is.
    fn sync(&self) -> bool {
        match self.file.sync() {
            Err(Errno::EIO) if self.store.fails() => false,
            synced => synced == Ok(()) || panic!("sync: {synced:?}"),
        }
    }
}

/// One thread's.
struct Worker<'a> {
    files: &'a [Checked],
    /// Of each file one of all, and one of a part.
    vmas: Vec<[Vma; 2]>,
    lane: u64,
    random: Random,
    handle: ReadaheadState,
    /// Some views, and what they have been since they were taken.
    views: Vec<(View, Vec<u8>)>,
    /// A pin, kept for a while.
    pin: Option<(usize, FolioPin)>,
}

impl<'a> Worker<'a> {
    fn new(files: &'a [Checked], lane: u64) -> Self {
        let mut random = Random::of(lane * 1000 + 1);
        Self {
            vmas: (files[..UNMAPPED].iter())
                .map(|checked| Self::map(checked, &mut random))
                .collect(),
            files,
            lane,
            random,
            handle: ReadaheadState::new(),
            views: Vec::new(),
            pin: None,
        }
    }

    fn map(checked: &Checked, random: &mut Random) -> [Vma; 2] {
        let pages = checked.most.div_ceil(PAGE);
        let first = random.below(pages);
        let part = first..first + 1 + random.below(pages - first);
        [checked.map(0..pages), checked.map(part)]
    }

    /// Some of the thread's bytes within `size`: alone, a page's, or a run.
    fn bytes(&mut self, size: u64) -> impl Iterator<Item = u64> + use<> {
        let at = self.random.below(size) / THREADS * THREADS + self.lane;
        let (n, step) = match self.random.below(8) {
            0..4 => (1, 1),
            4..6 => (10, THREADS * 7),
            _ => (self.random.below(100), PAGE),
        };
        (0..n)
            .map(move |i| at + i * step)
            .filter(move |&at| at < size)
    }

    /// Where a byte is, in the mapping of a part if that has it.
    fn address(&self, which: usize, pos: u64) -> *mut u8 {
        let [all, part] = &self.vmas[which];
        match part.range().contains(&pos) {
            true => part
                .address()
                .wrapping_add((pos - part.range().start) as usize),
            false => all.address().wrapping_add(pos as usize),
        }
    }

    fn check(&self, which: usize, pos: u64, found: u8, how: &str) {
        let expected = self.files[which].expected(pos);
        assert_eq!(
            found,
            expected,
            "{how} byte {pos} of file {which}, page {}",
            pos / PAGE
        );
    }

    fn step(&mut self) {
        let which = self.random.below(FILES as u64) as usize;
        match self.random.below(1000) {
            0..960 => self.share(which),
            960..968 if which != UNMAPPED => {
                self.vmas[which] = Self::map(&self.files[which], &mut self.random);
            }
            _ => self.change_all(which),
        }
    }

    /// Does something to the thread's own bytes.
    fn share(&mut self, which: usize) {
        let files = self.files;
        let checked = &files[which];
        let guard = checked.size.read().expect("no panic");
        let size = *guard;
        if size == 0 {
            return;
        }
        match self.random.below(120) {
            100..104 => self.view(which, size),
            104..108 => self.read_batch(which, size),
            108..112 => self.pin(which, size),
            112..116 => self.write_past(which, size),
            116..120 => self.read_past(which, size),
            0..75 | 91..95 if which == UNMAPPED => {}
            0..38 => {
                for pos in self.bytes(size) {
                    // SAFETY: inside the mapping and the file, whose end stays.
                    let found = unsafe { self.address(which, pos).read_volatile() };
                    self.check(which, pos, found, "load of");
                }
            }
            38..72 => {
                let byte = self.random.below(256) as u8;
                for pos in self.bytes(size) {
                    // SAFETY: as above; nobody else changes the byte.
                    unsafe { self.address(which, pos).write_volatile(byte) };
                    checked.set(pos, byte);
                }
            }
            72..75 => {
                // Beyond the end in the last page: as if it had never been.
                let at = size / THREADS * THREADS + self.lane;
                if at >= size && at / PAGE == (size - 1) / PAGE {
                    // SAFETY: inside the mapping and a page of the file.
                    unsafe { self.address(which, at).write_volatile(0xbb) };
                }
            }
            75..83 => {
                let byte = self.random.below(256) as u8;
                for pos in self.bytes(size) {
                    let mut iter = IovIter::source(std::slice::from_ref(&byte));
                    let written = checked.file.write(&mut Iocb::at(pos), &mut iter);
                    assert_eq!(written, Ok(1));
                    checked.set(pos, byte);
                }
            }
            83..91 => {
                let pos = self.random.below(size);
                let mut bytes = vec![0; (1 + self.random.below(20 * PAGE)) as usize];
                let mut iter = IovIter::destination(&mut bytes);
                let read = checked
                    .file
                    .read(&self.handle, &mut Iocb::at(pos), &mut iter);
                let read = read.expect("read") as u64;
                assert_eq!(read, (size - pos).min(bytes.len() as u64));
                for at in (pos..pos + read).filter(|at| at % THREADS == self.lane) {
                    self.check(which, at, bytes[(at - pos) as usize], "read of");
                }
            }
            91..93 => {
                let start = self.random.below(size);
                let end = (start + 1 + self.random.below(64 * PAGE)).min(size);
                let write = self.random.below(2) == 0;
                let populated = self.vmas[which][0].populate(start as usize..end as usize, write);
                populated.unwrap_or_else(|error| {
                    panic!(
                        "{start}..{end} of file {which}: {error}; {:?}",
                        checked.file.stats()
                    )
                });
            }
            93 => self.store_locked_for_io(which, size),
            94 => self.store_untracked(which, size),
            95 | 96 => self.sync(which, size),
            97 => checked.file.fdatawrite(),
            _ => {
                let start = self.random.below(size);
                checked.file.invalidate(start, self.random.below(size) + 1);
            }
        }
    }

    /// The thread's bytes of what was found from `pos` on.
    fn check_all(&self, which: usize, pos: u64, found: &[u8], how: &str) {
        for (at, &byte) in (pos..).zip(found) {
            if at % THREADS == self.lane {
                self.check(which, at, byte, how);
            }
        }
    }

    /// Takes a view, or looks at one that it has.
    fn view(&mut self, which: usize, size: u64) {
        if self.views.len() == VIEWS || self.random.below(2) == 0 && !self.views.is_empty() {
            let at = self.random.below(self.views.len() as u64) as usize;
            let (view, bytes) = self.views.swap_remove(at);
            assert!(view[..] == bytes[..], "a view changed");
            return;
        }
        let (pos, len) = (self.random.below(size), 1 + self.random.below(20 * PAGE));
        let mut iocb = Iocb::at(pos);
        iocb.uncached = self.random.below(4) == 0;
        let file = &self.files[which].file;
        let view = file
            .view(&self.handle, &mut iocb, len as usize)
            .expect("view");
        assert!(!view.is_empty() && view.len() as u64 <= len.min(size - pos));
        let bytes = view.to_vec();
        self.check_all(which, pos, &bytes, "view of");
        self.views.push((view, bytes));
    }

    fn read_batch(&mut self, which: usize, size: u64) {
        let mut wanted = Vec::new();
        for _ in 0..self.random.below(70) {
            let most = if self.random.below(8) == 0 {
                6 * PAGE
            } else {
                64
            };
            let len = 1 + self.random.below(most);
            wanted.push((self.random.below(size), vec![0; len as usize]));
        }
        let (file, handle) = (&self.files[which].file, &self.handle);
        let mut requests: Vec<_> = wanted
            .iter_mut()
            .map(|(pos, bytes)| Request::new(file, handle, Iocb::at(*pos), bytes))
            .collect();
        read_batch(&mut requests);
        let read: Vec<_> = requests.iter().map(|request| request.result()).collect();
        for ((pos, bytes), read) in wanted.iter().zip(read) {
            assert_eq!(read, Ok(bytes.len().min((size - pos) as usize)));
            self.check_all(
                which,
                *pos,
                &bytes[..read.expect("read")],
                "batched read of",
            );
        }
    }

    /// Loads and stores through pins, one of which may last.
    fn pin(&mut self, which: usize, size: u64) {
        if self.pin.take().is_some() && self.random.below(2) == 0 {
            return;
        }
        let start = self.random.below(size);
        let end = (start + 1 + self.random.below(8 * PAGE)).min(size);
        let mut mode = match self.random.below(2) {
            0 => PinMode::READ,
            _ => PinMode::WRITE,
        };
        if self.random.below(2) == 0 {
            mode = mode.long_term();
        }
        let checked = &self.files[which];
        let pin = match checked.file.pin(&self.handle, start..end, mode) {
            Err(PinError::TooMuch { .. } | PinError::Barred) => return,
            Err(PinError::Failed(Errno::EIO)) if checked.store.fails() => return,
            pin => pin.expect("it is in the file"),
        };
        let byte = self.random.below(256) as u8;
        for part in pin.parts() {
            for pos in (part.pos..part.pos + part.len as u64).filter(|at| at % THREADS == self.lane)
            {
                let at = part.addr.wrapping_add((pos - part.pos) as usize);
                // SAFETY: inside the part; nobody else changes the byte.
                let found = unsafe { at.read_volatile() };
                self.check(which, pos, found, "pinned");
                if mode.device_writes {
                    // SAFETY: as above.
                    unsafe { at.write_volatile(byte) };
                    checked.set(pos, byte);
                }
            }
        }
        if self.random.below(4) == 0 {
            self.pin = Some((which, pin));
        }
    }

    /// A call that is uncached or direct.
    fn past(&mut self, pos: u64) -> Iocb {
        let mut iocb = Iocb::at(pos);
        iocb.direct = self.random.below(2) == 0;
        iocb.uncached = !iocb.direct;
        iocb
    }

    fn write_past(&mut self, which: usize, size: u64) {
        let byte = self.random.below(256) as u8;
        for pos in self.bytes(size) {
            let mut iocb = self.past(pos);
            let mut iter = IovIter::source(std::slice::from_ref(&byte));
            let written = self.files[which].file.write(&mut iocb, &mut iter);
            assert_eq!(written, Ok(1));
            self.files[which].set(pos, byte);
        }
    }

    fn read_past(&mut self, which: usize, size: u64) {
        let pos = self.random.below(size);
        let mut iocb = self.past(pos);
        for _ in 0..1 + self.random.below(4) {
            let (pos, mut bytes) = (iocb.pos, vec![0; 1 + self.random.below(40 * PAGE) as usize]);
            let mut iter = IovIter::destination(&mut bytes);
            let read = self.files[which]
                .file
                .read(&self.handle, &mut iocb, &mut iter);
            let read = read.expect("read");
            assert_eq!(read, bytes.len().min((size - pos) as usize));
            self.check_all(which, pos, &bytes[..read], "uncached or direct read of");
        }
    }

    /// After a sync that succeeded, the thread's bytes survive.
    fn sync(&mut self, which: usize, size: u64) {
        let checked = &self.files[which];
        if checked.sync() {
            for _ in 0..10 {
                for pos in self.bytes(size) {
                    self.check(which, pos, checked.store.durable(pos), "after a sync,");
                }
            }
        }
    }

    /// Stores to a part that is locked for I/O, as system calls would.
    fn store_locked_for_io(&mut self, which: usize, size: u64) {
        let (start, byte) = (self.random.below(size), self.random.below(256) as u8);
        let end = (start + 1 + self.random.below(32 * PAGE)).min(size);
        let vma = &self.vmas[which][0];
        let locked = match vma.lock_for_io(start as usize..end as usize) {
            Err(MapError::TooMuchHeld { .. }) => return,
            locked => locked.expect("it is in the file"),
        };
        for pos in (start..end).filter(|pos| pos % THREADS == self.lane) {
            // SAFETY: inside the mapping and the file; nobody else changes the byte.
            unsafe {
                vma.address()
                    .wrapping_add(pos as usize)
                    .write_volatile(byte)
            };
            self.files[which].set(pos, byte);
        }
        drop(locked);
    }

    /// Stores to a part that is kept in memory, and makes that durable before it is unmapped, or leaves that to others.
    fn store_untracked(&mut self, which: usize, size: u64) {
        let checked = &self.files[which];
        let first = self.random.below(size) / PAGE;
        let pages = first..(first + 1 + self.random.below(32)).min(size.div_ceil(PAGE));
        let len = (pages.end - pages.start) * PAGE;
        let mapped =
            checked
                .file
                .map_locked(pages.start * PAGE, len as usize, LockedAccess::Untracked);
        let vma = match mapped {
            Err(MapError::TooMuchHeld { .. }) => return,
            mapped => mapped.expect("it is in the file"),
        };
        for _ in 0..self.random.below(4) {
            let byte = self.random.below(256) as u8;
            let end = (pages.end * PAGE).min(size);
            for pos in (pages.start * PAGE..end).filter(|pos| pos % THREADS == self.lane) {
                let at = (pos - pages.start * PAGE) as usize;
                // SAFETY: as above.
                unsafe { vma.address().wrapping_add(at).write_volatile(byte) };
                checked.set(pos, byte);
            }
            if self.random.below(2) == 0 && checked.sync() {
                for pos in (pages.start * PAGE..end).filter(|pos| pos % THREADS == self.lane) {
                    self.check(
                        which,
                        pos,
                        checked.store.durable(pos),
                        "untracked, after a sync,",
                    );
                }
            }
        }
    }

    /// Does something to everybody's bytes.
    fn change_all(&mut self, which: usize) {
        let from_which = (which + 1) % FILES;
        let (target, other) = (&self.files[which], &self.files[from_which]);
        // All, always in the same order.
        let mut sizes: Vec<_> = (self.files.iter())
            .map(|checked| checked.size.write().expect("no panic"))
            .collect();
        let other_size = *sizes[from_which];
        let (size, most): (&mut u64, _) = (&mut sizes[which], target.most);
        match self.random.below(8) {
            0..4 => {
                // Mostly by little.
                let new = match self.random.below(3) {
                    0 => self.random.below(most),
                    1 => *size - self.random.below(10 * PAGE).min(*size),
                    _ => (*size + self.random.below(10 * PAGE)).min(most),
                };
                if pinned(target.file.truncate(new)) {
                    return;
                }
                (new..*size).for_each(|at| target.set(at, 0));
                *size = new;
            }
            4..6 if *size > 0 => {
                let start = self.random.below(*size);
                let end = (start + 1 + self.random.below(40 * PAGE)).min(*size);
                if pinned(target.file.punch_hole(start, end - start)) {
                    return;
                }
                (start..end).for_each(|at| target.set(at, 0));
            }
            6 if other_size > 0 && from_which != UNMAPPED => {
                // From the other's mapping.
                let from = self.random.below(other_size);
                let len = (1 + self.random.below(100 * PAGE))
                    .min(other_size - from)
                    .min(most / 2);
                let to = self.random.below(most - len);
                let address = self.vmas[from_which][0]
                    .address()
                    .wrapping_add(from as usize);
                // SAFETY: inside the mapping and the file, which nobody changes.
                let source = unsafe { std::slice::from_raw_parts(address, len as usize) };
                let mut iter = IovIter::source(source);
                let written = target.file.write(&mut Iocb::at(to), &mut iter);
                assert_eq!(written, Ok(len as usize));
                for at in 0..len {
                    target.set(to + at, other.expected(from + at));
                }
                *size = (*size).max(to + len);
            }
            _ => {
                let len = (600 * PAGE).min(most / 2);
                let to = self.random.below(most - len);
                let bytes = pattern(self.random.below(256) as u8, to, len as usize);
                let mut iter = IovIter::source(&bytes);
                let mut iocb = Iocb::at(to);
                // A store that fails makes it short.
                iocb.direct = which != FAILING && self.random.below(2) == 0;
                let written = target.file.write(&mut iocb, &mut iter);
                assert_eq!(written, Ok(bytes.len()));
                for (at, byte) in (to..).zip(&bytes) {
                    target.set(at, *byte);
                }
                *size = (*size).max(to + len);
            }
        }
    }
}

/// Whether a change did not take place because of a pin.
fn pinned(changed: Result<(), Errno>) -> bool {
    changed == Err(Errno::EBUSY) || {
        assert_eq!(changed, Ok(()));
        false
    }
}

fn stress(mode: FaultMode, resize: bool, huge: bool, time: Duration) {
    let mut config = MmConfig::new(16 * MIB);
    config.fault_mode = mode;
    config.external_pressure = false;
    config.huge_frames = huge;
    let mm = Mm::new(config).expect("a cache");
    let bdi = |name| BackingDevInfo::new(&mm, name, BdiKind::Storage).expect("a file system");
    let (sound, failing) = (bdi("sound"), bdi("failing"));
    let files = [
        Checked::new(&sound, 0, MOST[0]),
        Checked::new(&sound, 1, 9 * MIB + 77),
        Checked::new(&failing, FAILING, 3 * PAGE + 10),
        Checked::new(&sound, UNMAPPED, 11 * MIB + 5),
    ];
    mm.set_pin_wait(Duration::from_millis(2));
    if huge {
        // One page of it that failed is as much as a cache of this size may have.
        files[FAILING].store.fails.store(false, Ordering::Relaxed);
    }
    let (steps, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|lane| {
                let (files, steps, stop) = (&files, &steps, &stop);
                scope.spawn(move || {
                    let mut worker = Worker::new(files, lane);
                    while !stop.load(Ordering::Relaxed) {
                        worker.step();
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let start = Instant::now();
        let (mut seen, mut progress, mut turn) = (0, Instant::now(), 0);
        while !workers.iter().all(|worker| worker.is_finished()) {
            let usage = mm.usage();
            if resize {
                turn += 1;
                mm.set_limit([16, 20, 17, 32][turn % 4] * MIB)
                    .expect("a limit");
                thread::sleep(Duration::from_millis(5));
            } else if usage.total_bytes() > usage.limit_bytes {
                crate::common::stuck::abort(&format!("beyond the bound: {usage:?}"));
            }
            let now = steps.load(Ordering::Relaxed);
            if now != seen {
                (seen, progress) = (now, Instant::now());
            }
            if progress.elapsed().as_secs() > 60 {
                let stats = mm.stats();
                crate::common::stuck::abort(&format!(
                    "nobody gets on after {now} steps: {stats:?}"
                ));
            }
            // A slow machine gets the time until memory was short.
            let is_over = start.elapsed() > time
                && (mm.stats().files.evicted_pages > 0 || start.elapsed() > 60 * time);
            if is_over || workers.iter().any(|worker| worker.is_finished()) {
                stop.store(true, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_micros(100));
        }
        for worker in workers {
            worker.join().expect("a worker");
        }
    });
    let steps = steps.into_inner();
    for (which, checked) in files.iter().enumerate() {
        checked.store.fails.store(false, Ordering::Relaxed);
        checked.file.sync().expect("sync");
        let size = *checked.size.read().expect("no panic");
        let stored = checked.store.store.content();
        assert_eq!(stored.len() as u64, size);
        let wrong = (0..size).find(|&at| stored[at as usize] != checked.expected(at));
        assert_eq!(
            wrong, None,
            "in the store of file {which}, after {steps} steps"
        );
        let stats = checked.file.stats();
        let left = (
            stats.dirty_pages,
            stats.writeback_pages,
            stats.unstable_pages,
            stats.failed_pages,
        );
        assert_eq!(left, (0, 0, 0, 0));
    }
    let stats = mm.stats();
    assert!(stats.files.evicted_pages > 0, "{stats:?}");
    drop(files);
    // Frames that are leaving are in use.
    assert_empty(&mm);
    let usage = mm.usage();
    assert_eq!((usage.reserved_pages, usage.waiters), (0, 0));
    println!(
        "{mode:?}, resize {resize}, {}: {steps} steps, {:?}",
        stats.memory.huge, stats.files
    );
}

/// A quarter of it while the limit goes up and down.
fn stress_in(mode: FaultMode, huge: bool) {
    let time = Duration::from_millis(1000 * stress_scale());
    stress(mode, false, huge, time * 3 / 4);
    stress(mode, true, huge, time / 4);
}

#[test]
fn mappings_under_stress_with_faults_resolved_by_threads() {
    stress_in(FaultMode::Thread, false);
}

#[test]
fn mappings_under_stress_with_faults_resolved_inline() {
    stress_in(FaultMode::Inline, false);
}

#[test]
fn mappings_of_huge_pages_under_stress() {
    let Some(_pool) = HugePool::of(7) else { return };
    stress_in(FaultMode::Thread, true);
    stress_in(FaultMode::Inline, true);
}
