//! Batches of reads: each ends as a single read would, and none waits for another's disk.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{Store, assert_empty, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, Batch, BdiKind, FaultMode, IoSegment,
    Iocb, Mm, MmConfig, PAGE_SIZE, ReadDone, ReadMode, ReadaheadState, Request, SlabArc,
    ViewRequest, VmaAccess, read_batch, view_batch,
};
use foliocache_sys::Errno;
use proptest::prelude::*;

const PAGE: u64 = PAGE_SIZE as u64;

/// A read that was started: from where on, to where, and what it calls in the end.
type Started = (u64, Vec<IoSegment<'static>>, ReadDone);

/// A store that reads in the background, and begins no read before it has to: each ends when it is told so, or at
/// once by a thread of its own. Some pages cannot be read.
struct Background {
    store: Arc<Store>,
    held_back: Mutex<Vec<Started>>,
    parked: Mutex<Vec<Started>>,
    parks: AtomicBool,
    /// How many reads began together, each time.
    begun: Mutex<Vec<usize>>,
    bad: HashSet<u64>,
}

impl Background {
    fn with(bytes: &[u8], parks: bool, bad: &[u64]) -> Arc<Self> {
        Arc::new(Self {
            store: Store::with(bytes),
            held_back: Mutex::default(),
            parked: Mutex::default(),
            parks: AtomicBool::new(parks),
            begun: Mutex::default(),
            bad: bad.iter().copied().collect(),
        })
    }

    fn file(self: &Arc<Self>, bdi: &Arc<BackingDevInfo>) -> SlabArc<AddressSpace> {
        let size = self.store.content().len() as u64;
        AddressSpace::new(bdi, Arc::clone(self) as _, size)
    }

    /// The first page of each read that waits.
    fn parked(&self) -> Vec<u64> {
        let parked = self.parked.lock().unwrap();
        let mut pages: Vec<u64> = parked.iter().map(|(pos, ..)| pos / PAGE).collect();
        pages.sort_unstable();
        pages
    }

    /// All reads end when it goes: a test that fails waits for no reader.
    fn ending(&self) -> Ending<'_> {
        Ending(self)
    }

    fn end_all(&self) {
        for (pos, segments, done) in std::mem::take(&mut *self.parked.lock().unwrap()) {
            done(self.read_folios(pos, &segments));
        }
    }
}

/// Of [`Background::ending`].
struct Ending<'a>(&'a Background);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.parks.store(false, Ordering::Relaxed);
        self.0.end_all();
    }
}

impl AddressSpaceOperations for Background {
    fn read_folios(&self, pos: u64, segments: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let len: usize = segments.iter().map(IoSegment::len).sum();
        let mut pages = pos / PAGE..(pos + len as u64).div_ceil(PAGE);
        match pages.any(|page| self.bad.contains(&page)) {
            true => Err(Errno::EIO),
            false => self.store.read_folios(pos, segments),
        }
    }

    fn start_read(&self, pos: u64, segments: &[IoSegment<'static>], done: ReadDone) {
        self.held_back
            .lock()
            .unwrap()
            .push((pos, segments.to_vec(), done));
    }

    fn begin_reads(&self) {
        let reads = std::mem::take(&mut *self.held_back.lock().unwrap());
        self.begun.lock().unwrap().push(reads.len());
        if self.parks.load(Ordering::Relaxed) {
            return self.parked.lock().unwrap().extend(reads);
        }
        for (pos, segments, done) in reads {
            let result = self.read_folios(pos, &segments);
            thread::spawn(move || {
                thread::yield_now();
                done(result);
            });
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
        "a store that reads in the background".into()
    }
}

/// Which file, from where on, how many bytes.
type Place = (usize, u64, usize);

/// Reads all places in one batch; what each returned.
fn batch(
    files: &[SlabArc<AddressSpace>],
    handle: &ReadaheadState,
    places: &[Place],
) -> Vec<Result<Vec<u8>, Errno>> {
    let mut buffers: Vec<_> = places.iter().map(|&(.., len)| vec![0xee; len]).collect();
    let mut requests: Vec<_> = places
        .iter()
        .zip(&mut buffers)
        .map(|(&(which, pos, _), buffer)| {
            Request::new(&files[which], handle, Iocb::at(pos), buffer)
        })
        .collect();
    read_batch(&mut requests);
    let results: Vec<_> = requests.iter().map(Request::result).collect();
    let cut = |(result, mut bytes): (Result<usize, Errno>, Vec<u8>)| {
        result.map(|read| {
            bytes.truncate(read);
            bytes
        })
    };
    results.into_iter().zip(buffers).map(cut).collect()
}

/// What a read there returns, of a file with these bytes.
fn expected(content: &[u8], pos: u64, len: usize) -> Vec<u8> {
    let start = usize::try_from(pos).unwrap_or(usize::MAX);
    let start = start.min(content.len());
    content[start..content.len().min(start.saturating_add(len))].to_vec()
}

fn check(files: &[SlabArc<AddressSpace>], contents: &[Vec<u8>], places: &[Place]) {
    let read = batch(files, &ReadaheadState::new(), places);
    for (&(which, pos, len), read) in places.iter().zip(read) {
        let expected = expected(&contents[which], pos, len);
        assert!(read.unwrap() == expected, "file {which}, {len} at {pos}");
    }
}

const PAGES: usize = 300;
const SIZE: usize = PAGES * PAGE_SIZE + 100;

fn place() -> impl Strategy<Value = Place> {
    let pos = prop_oneof![
        8 => 0..SIZE as u64,
        1 => SIZE as u64 - 200..SIZE as u64 + 200,
        1 => prop_oneof![Just(u64::MAX), Just(u64::MAX - 4095), Just(1 << 63), Just(SIZE as u64)],
    ];
    let len = prop_oneof![
        6 => 1usize..200,
        2 => 1usize..3 * PAGE_SIZE,
        1 => 4 * PAGE_SIZE - 2..4 * PAGE_SIZE + 3,
        1 => Just(0),
        1 => 1usize..40 * PAGE_SIZE,
    ];
    (0usize..2, pos, len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is cached, as pages or as large folios, and however the store reads: also where the cache holds
    /// less than the batch.
    #[test]
    fn a_batch_reads_what_single_reads_do(
        cached in prop::collection::vec(place(), 0..12),
        written in prop::collection::vec((0..SIZE as u64 - 300, 1usize..300), 0..4),
        places in prop::collection::vec(place(), 0..150),
        background: bool,
        small: bool,
    ) {
        let (mm, bdi) = storage(if small { 4 } else { 16 });
        let mut contents = [pattern(1, 0, SIZE), pattern(2, 0, SIZE)];
        let files = [
            match background {
                true => Background::with(&contents[0], false, &[]).file(&bdi),
                false => file(&bdi, &Store::with(&contents[0])),
            },
            file(&bdi, &Store::with(&contents[1])),
        ];
        for (which, pos, len) in cached {
            prop_assert_eq!(read(&files[which], pos, len), expected(&contents[which], pos, len));
        }
        for (pos, len) in written {
            let bytes = vec![pos as u8; len];
            write(&files[0], pos, &bytes);
            contents[0][pos as usize..][..len].copy_from_slice(&bytes);
        }
        check(&files, &contents, &places);
        check(&files, &contents, &places);
        files[0].fsync(&files[0].sample_wb_err()).unwrap();
        drop(files);
        assert_empty(&mm);
    }
}

#[test]
fn all_misses_are_on_their_way_before_one_is_waited_for() {
    let (mm, bdi) = storage(16);
    let content = pattern(3, 0, SIZE);
    let store = Background::with(&content, true, &[]);
    let files = [store.file(&bdi)];
    let handle = ReadaheadState::new();
    handle.advise(foliocache_mm::Access::Random);
    // Pages far apart, one of them twice, and one request of which the second page is missing.
    let mut places: Vec<Place> = (0..70).map(|i| (0, i * 4 * PAGE + 9, 64)).collect();
    places.push((0, 9, 10));
    places.push((0, 5 * PAGE - 1, 2));
    thread::scope(|scope| {
        let _ending = store.ending();
        let reader = scope.spawn(|| batch(&files, &handle, &places));
        let expected: Vec<u64> = (0..70).map(|i| i * 4).collect();
        while store.parked().len() < 71 {
            thread::yield_now();
        }
        let mut parked = store.parked();
        assert_eq!(parked.remove(2), 5, "the page after one that is on its way");
        assert_eq!(parked, expected, "each page once");
        assert_eq!(
            *store.begun.lock().unwrap(),
            [8, 8, 8, 8, 8, 8, 8, 8, 7],
            "together"
        );
        assert!(!reader.is_finished());
        store.end_all();
        for (&(_, pos, len), read) in places.iter().zip(reader.join().unwrap()) {
            assert_eq!(read.unwrap(), content[pos as usize..][..len]);
        }
    });
    let stats = files[0].stats();
    assert_eq!((stats.missed_pages, stats.readahead_pages), (71, 0));
    drop(files);
    assert_empty(&mm);
}

#[test]
fn all_misses_of_a_batch_of_views_are_on_their_way_before_one_is_waited_for() {
    let (mm, bdi) = storage(16);
    let content = pattern(3, 0, SIZE);
    let store = Background::with(&content, true, &[]);
    let file = store.file(&bdi);
    let handle = ReadaheadState::new();
    handle.advise(foliocache_mm::Access::Random);
    let request = |page: u64| ViewRequest::new(&file, &handle, Iocb::at(page * PAGE + 9), 64);
    let mut requests: Vec<_> = (0..70).map(|i| request(i * 4)).collect();
    thread::scope(|scope| {
        let requests = &mut requests;
        let _ending = store.ending();
        let reader = scope.spawn(|| view_batch(requests));
        while store.parked().len() < 70 {
            thread::yield_now();
        }
        assert_eq!(
            *store.begun.lock().unwrap(),
            [8, 8, 8, 8, 8, 8, 8, 8, 6],
            "together"
        );
        assert!(!reader.is_finished());
        store.end_all();
    });
    for (i, request) in requests.into_iter().enumerate() {
        let view = request.into_result().unwrap().unwrap();
        assert!(!view.is_copy());
        assert_eq!(*view, content[i * 4 * PAGE_SIZE + 9..][..64]);
    }
    let stats = file.stats();
    assert_eq!((stats.missed_pages, stats.hit_pages), (70, 0));
    drop(file);
    assert_empty(&mm);
}

#[test]
fn a_batch_copies_cached_data_while_its_misses_are_read() {
    let (mm, bdi) = storage(16);
    let content = pattern(4, 0, SIZE);
    let store = Background::with(&content, false, &[]);
    let file = store.file(&bdi);
    for page in 0..40 {
        read(&file, page * PAGE, 1);
    }
    store.parks.store(true, Ordering::Relaxed);
    let handle = ReadaheadState::new();
    let mut buffers = vec![[0; 100]; 80];
    // Every other one is cached; some of these go over the boundary of two folios.
    let pos = |i: u64| match i % 2 {
        0 => i * 2049 % (38 * PAGE),
        _ => (100 + i * 2) * PAGE,
    };
    let mut requests: Vec<_> = (0..)
        .zip(&mut buffers)
        .map(|(i, buffer)| Request::new(&file, &handle, Iocb::at(pos(i)), buffer))
        .collect();
    // Given up when it would have to wait: for the last, after which the others are most likely there.
    let mut batch = Batch::new(&mut requests);
    assert_eq!(batch.next_to_finish().unwrap().pos(), pos(79));
    for (i, request) in requests.iter().enumerate() {
        match i % 2 {
            0 => {
                assert_eq!(request.result(), Ok(100), "request {i}");
                assert_eq!(request.bytes(), &content[pos(i as u64) as usize..][..100]);
            }
            _ => assert_eq!(request.result(), Err(Errno::EAGAIN), "request {i}"),
        }
    }
    assert!(!store.parked().is_empty());
    store.end_all();
    store.parks.store(false, Ordering::Relaxed);
    // And taken up again.
    read_batch(&mut requests);
    for (i, request) in (0..).zip(&requests) {
        assert_eq!(request.result(), Ok(100));
        assert_eq!(request.bytes(), &content[pos(i) as usize..][..100]);
    }
    drop(requests);
    drop(file);
    assert_empty(&mm);
}

#[test]
fn each_request_has_an_error_of_its_own() {
    let (mm, bdi) = storage(16);
    let content = pattern(5, 0, SIZE);
    for parks in [false, true] {
        let store = Background::with(&content, parks, &[20, 41]);
        let files = [store.file(&bdi)];
        let handle = ReadaheadState::new();
        handle.advise(foliocache_mm::Access::Random);
        let places = [
            (0, 0, 10),
            (0, 20 * PAGE + 5, 10),
            (0, 21 * PAGE + 5, 10),
            // What comes before the bad page is read.
            (0, 41 * PAGE - 7, 20),
            (0, 41 * PAGE, 20),
            (0, SIZE as u64, 20),
        ];
        let results = thread::scope(|scope| {
            let reader = scope.spawn(|| batch(&files, &handle, &places));
            while !reader.is_finished() {
                store.end_all();
                thread::yield_now();
            }
            reader.join().unwrap()
        });
        let good = |pos: u64, len| Ok(content[pos as usize..][..len].to_vec());
        assert_eq!(
            results,
            [
                good(0, 10),
                Err(Errno::EIO),
                good(21 * PAGE + 5, 10),
                good(41 * PAGE - 7, 7),
                Err(Errno::EIO),
                Ok(Vec::new()),
            ]
        );
    }
    assert_empty(&mm);
}

#[test]
fn hits_count_as_those_of_single_reads() {
    let (_mm, bdi) = storage(16);
    let files = [1, 2].map(|who| file(&bdi, &Store::with(&pattern(who, 0, SIZE))));
    let places: Vec<Place> = (0..100)
        .map(|i| (i % 3 % 2, i as u64 * 777, 50 + i * 30))
        .collect();
    let hits = || files.each_ref().map(|file| file.stats().hit_pages);
    let single = || {
        let before = hits();
        for &(which, pos, len) in &places {
            read(&files[which], pos, len);
        }
        let after = hits();
        [after[0] - before[0], after[1] - before[1]]
    };
    single();
    let counted = single();
    let before = hits();
    batch(&files, &ReadaheadState::new(), &places);
    let after = hits();
    assert_eq!([after[0] - before[0], after[1] - before[1]], counted);
    assert_eq!(files[0].stats().refaults, 0);
}

#[test]
fn a_batch_keeps_pages_in_the_cache_as_single_reads_do() {
    let (_mm, bdi) = storage(8);
    let files = [
        file(&bdi, &Store::with(&pattern(6, 0, SIZE))),
        file(&bdi, &Store::with(&pattern(7, 0, 12 << 20))),
    ];
    let handle = ReadaheadState::new();
    handle.advise(foliocache_mm::Access::Random);
    let hot: Vec<Place> = (0..64).map(|i| (0, i * 3 * PAGE, 64)).collect();
    batch(&files, &handle, &hot);
    let misses = files[0].stats().missed_pages;
    for round in 0..3 {
        batch(&files, &handle, &hot);
        batch(&files, &handle, &hot);
        // Once through a file larger than the cache.
        for page in 0..1024 {
            files[1]
                .read(
                    &handle,
                    &mut Iocb::at((round * 1024 + page) * PAGE),
                    &mut foliocache_mm::IovIter::destination(&mut [0; 64]),
                )
                .unwrap();
        }
    }
    assert_eq!(files[0].stats().missed_pages, misses, "they were in use");
}

#[test]
fn a_batch_may_be_larger_than_the_cache() {
    let (mm, bdi) = storage(4);
    let content = pattern(8, 0, 16 << 20);
    for background in [false, true] {
        let files = [match background {
            true => Background::with(&content, false, &[]).file(&bdi),
            false => file(&bdi, &Store::with(&content)),
        }];
        let places: Vec<Place> = (0..4096).map(|i| (0, i * 1237 % 4096 * PAGE, 32)).collect();
        check(&files, std::slice::from_ref(&content), &places);
        assert!(mm.usage().in_use_pages <= 4 << 8, "{:?}", mm.usage());
    }
    assert_empty(&mm);
}

#[test]
fn requests_may_fill_a_mapping_of_the_same_file() {
    for mode in [FaultMode::Thread, FaultMode::Inline] {
        let mut config = MmConfig::new(16 << 20);
        config.fault_mode = mode;
        let mm = Mm::new(config).unwrap();
        let bdi = BackingDevInfo::new(&mm, "test", BdiKind::Storage).unwrap();
        let content = pattern(9, 0, 64 * PAGE_SIZE);
        let file = file(&bdi, &Store::with(&content));
        let vma = file.map(0, content.len(), VmaAccess::ReadWrite).unwrap();
        // SAFETY: all of it is in the file, and nothing else uses the mapping.
        let mapped = unsafe { std::slice::from_raw_parts_mut(vma.address(), vma.len()) };
        let (to, rest) = mapped.split_at_mut(32 * PAGE_SIZE);
        let handle = ReadaheadState::new();
        let mut elsewhere = [0; 64];
        // The second half into the first, page by page, and the page that a request is in into itself.
        let mut requests: Vec<_> = to
            .chunks_mut(PAGE_SIZE)
            .zip(32..)
            .map(|(to, page)| Request::new(&file, &handle, Iocb::at(page * PAGE), to))
            .collect();
        requests.push(Request::new(
            &file,
            &handle,
            Iocb::at(50 * PAGE),
            &mut elsewhere,
        ));
        let last = &mut rest[31 * PAGE_SIZE..];
        requests.push(Request::new(&file, &handle, Iocb::at(63 * PAGE), last));
        read_batch(&mut requests);
        for request in &requests {
            assert_eq!(request.result(), Ok(request.bytes().len()));
        }
        drop(requests);
        assert_eq!(mapped[..32 * PAGE_SIZE], content[32 * PAGE_SIZE..]);
        assert_eq!(mapped[32 * PAGE_SIZE..], content[32 * PAGE_SIZE..]);
        assert_eq!(elsewhere, content[50 * PAGE_SIZE..][..64]);
        drop(vma);
        file.fsync(&file.sample_wb_err()).unwrap();
        drop(file);
        assert_empty(&mm);
    }
}

#[test]
fn a_batch_beside_truncates_and_writes_reads_bytes_that_were_there() {
    let (mm, bdi) = storage(8);
    let content = pattern(1, 0, SIZE);
    let files = [file(&bdi, &Store::with(&content))];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for size in (0..400).map(|i| (i * 7919) % SIZE as u64) {
                files[0].truncate(size).unwrap();
                write(&files[0], size, &content[size as usize..]);
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            let places: Vec<Place> = (0..64).map(|i| (0, i * 19_001 % SIZE as u64, 64)).collect();
            let read = batch(&files, &ReadaheadState::new(), &places);
            for (&(_, pos, _), read) in places.iter().zip(read) {
                for (byte, &expected) in read.unwrap().iter().zip(&content[pos as usize..]) {
                    // Zero where the file grows again before the write comes there.
                    assert!([0, expected].contains(byte), "at {pos}");
                }
            }
        }
    });
    drop(files);
    assert_empty(&mm);
}
