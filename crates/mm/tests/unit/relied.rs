//! Pages that handles rely on: they stay until what is not cached can be read, and never at the cost of the bound.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::common::{Store, file, pattern, read, storage, write};
use foliocache_mm::{
    AddressSpace, AddressSpaceOperations, BackingDevInfo, BdiKind, IoSegment, Mm, PAGE_SIZE,
    SlabArc, SlabWeak,
};
use foliocache_sys::Errno;

const PAGE: u64 = PAGE_SIZE as u64;

/// What a store says when pages that are relied on are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Descriptor,
    Gone,
    Busy,
    /// It does not return before another answer is set.
    Hangs,
}

/// A store whose file others may replace.
struct Replaced {
    store: Arc<Store>,
    answer: Mutex<Answer>,
    changed: Condvar,
    asked: AtomicU64,
    file: Mutex<Option<SlabWeak<AddressSpace>>>,
}

impl Replaced {
    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
        self.changed.notify_all();
    }

    fn asked(&self) -> u64 {
        // Relaxed: looked at after the flusher was waited for, or as a hint.
        self.asked.load(Ordering::Relaxed)
    }
}

impl AddressSpaceOperations for Replaced {
    fn read_folios(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
        self.store.read_folios(pos, segments)
    }
    fn writepages(&self, pos: u64, segments: &[IoSegment]) -> Result<usize, Errno> {
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
    fn keep_readable(&self) -> bool {
        // Relaxed: as in `asked`.
        self.asked.fetch_add(1, Ordering::Relaxed);
        let hangs = |answer: &mut Answer| *answer == Answer::Hangs;
        let answer = self.answer.lock().unwrap();
        let answer = *self.changed.wait_while(answer, hangs).unwrap();
        let file = self
            .file
            .lock()
            .unwrap()
            .as_ref()
            .and_then(SlabWeak::upgrade);
        match (answer, file) {
            (Answer::Busy, _) => return false,
            (Answer::Descriptor, Some(file)) => file.end_reliance(),
            (Answer::Gone, Some(file)) => file.lose_reliance(),
            _ => {}
        }
        true
    }
    fn describe(&self) -> String {
        "a file that others replace".into()
    }
}

/// A file of `pages` pages, all cached and relied on, whose store gives this answer.
fn relied(
    bdi: &Arc<BackingDevInfo>,
    pages: u64,
    answer: Answer,
) -> (SlabArc<AddressSpace>, Arc<Replaced>) {
    let (file, replaced) = cached(bdi, pages, answer);
    assert!(file.rely_on_pages());
    (file, replaced)
}

/// As [`relied`], not yet relied on.
fn cached(
    bdi: &Arc<BackingDevInfo>,
    pages: u64,
    answer: Answer,
) -> (SlabArc<AddressSpace>, Arc<Replaced>) {
    let bytes = pattern(2, 0, (pages * PAGE) as usize);
    let replaced = Arc::new(Replaced {
        store: Store::with(&bytes),
        answer: Mutex::new(answer),
        changed: Condvar::new(),
        asked: AtomicU64::new(0),
        file: Mutex::default(),
    });
    let ops = Arc::clone(&replaced) as Arc<dyn AddressSpaceOperations>;
    let file = AddressSpace::new(bdi, ops, bytes.len() as u64);
    *replaced.file.lock().unwrap() = Some(SlabArc::downgrade(&file));
    assert!(read(&file, 0, bytes.len()) == bytes);
    (file, replaced)
}

/// Reads a file of `pages` pages, each once, in no order.
fn read_another(bdi: &Arc<BackingDevInfo>, pages: u64) {
    let bytes = pattern(1, 0, (pages * PAGE) as usize);
    let other = file(bdi, &Store::with(&bytes));
    for at in 0..pages {
        let page = at * 7919 % pages;
        assert_eq!(read(&other, page * PAGE, PAGE_SIZE).len(), PAGE_SIZE);
    }
}

fn within_the_bound(mm: &Mm) {
    let usage = mm.usage();
    assert!(usage.total_bytes() <= usage.limit_bytes, "{usage:?}");
}

#[test]
fn pages_that_are_relied_on_stay_until_there_is_a_descriptor() {
    let (mm, bdi) = storage(16);
    let (file, store) = relied(&bdi, 64, Answer::Busy);
    read_another(&bdi, 8191);
    assert_eq!(file.nr_pages(), 64);
    assert!(store.asked() > 0);
    assert_eq!(file.invalidate(0, u64::MAX), 0);
    store.set(Answer::Descriptor);
    while file.is_relied_on() {
        std::thread::yield_now();
    }
    read_another(&bdi, 8191);
    assert!(file.nr_pages() < 64);
    within_the_bound(&mm);
}

#[test]
fn pages_of_a_file_that_is_gone_are_the_last_to_go() {
    let (_mm, bdi) = storage(16);
    let (file, store) = relied(&bdi, 64, Answer::Gone);
    read_another(&bdi, 8191);
    assert!(store.asked() > 0);
    assert_eq!(file.nr_pages(), 64);
    assert!(!file.rely_on_pages(), "a further handle asks");
    file.end_reliance();
    assert!(file.rely_on_pages());
}

/// Nothing else can be evicted, whatever the store says.
#[test]
fn a_cache_full_of_pages_that_are_relied_on_goes_on() {
    for answer in [
        Answer::Descriptor,
        Answer::Gone,
        Answer::Busy,
        Answer::Hangs,
    ] {
        let (mm, bdi) = storage(16);
        let other = BackingDevInfo::new(&mm, "other", BdiKind::Storage).unwrap();
        // More than the bound, if they all stayed.
        let all: Vec<_> = (0..80).map(|_| cached(&bdi, 64, answer)).collect();
        let relied = all.iter().filter(|(file, _)| file.rely_on_pages()).count();
        assert!(relied > 20, "{relied}");
        // More than is left, by readers and by a writer.
        let written = file(&other, &Store::with(&[]));
        std::thread::scope(|scope| {
            scope.spawn(|| read_another(&other, 4093));
            scope.spawn(|| {
                for chunk in 0..64 {
                    write(&written, chunk << 18, &vec![7; 1 << 18]);
                }
            });
        });
        within_the_bound(&mm);
        let asked: u64 = all.iter().map(|(_, store)| store.asked()).sum();
        assert!(asked > 0, "{answer:?}");
        for (_, store) in &all {
            store.set(Answer::Descriptor);
        }
        written.sync().unwrap();
    }
}

/// A page that is being evicted when somebody begins to rely on the file: he finds it gone, or it stays.
#[test]
fn who_relies_on_pages_beside_reclaim_has_them_all_or_is_told() {
    let (_mm, bdi) = storage(16);
    let (file, store) = cached(&bdi, 64, Answer::Busy);
    let reclaims = || read_another(&bdi, 16_381);
    std::thread::scope(|scope| {
        let reclaim = scope.spawn(reclaims);
        let (mut relied, mut refused) = (0, 0);
        while !reclaim.is_finished() {
            read(&file, 0, 64 * PAGE_SIZE);
            match file.rely_on_pages() {
                true => {
                    for _ in 0..50 {
                        assert_eq!(file.nr_pages(), 64);
                        std::thread::yield_now();
                    }
                    relied += 1;
                }
                false => refused += 1,
            }
            file.end_reliance();
        }
        assert!(relied > 0, "{refused} refused");
    });
    store.set(Answer::Descriptor);
}
