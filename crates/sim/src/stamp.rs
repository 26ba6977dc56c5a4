//! Pages that say which they are, and a backing store that keeps nothing but their generations.
//!
//! # Model
//!
//! Every eight bytes of a stamped page follow from its file, its index, its generation and their
//! own place, so a page that holds bytes of another file, of another page, or of two generations
//! at once is found out wherever it is read. A [`StampBackend`] therefore needs four bytes a page:
//! it checks each page that is written to it, keeps the generation, and makes the page again when
//! it is read. Tests of the memory bound and of eviction use it, since a backend with real content
//! would itself be most of the memory that they measure.
//!
//! Generation 0 is a page never written: zeros. Files are whole pages.

use foliocache_mm::{AddressSpaceOperations, IoSegment, PAGE_SIZE};
use foliocache_sync::Arc;
use foliocache_sync::Mutex;
use foliocache_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use foliocache_sys::Errno;

use crate::faults::Outcome;
use crate::{Faults, OpKind, scramble, segments};

fn seed(file: u32, page: u64) -> u64 {
    scramble((u64::from(file) << 40) ^ page)
}

/// The word at place `i` of a page. The low half holds the generation (scrambled by the page and
/// the place), the high half proves it.
fn word(seed: u64, generation: u32, i: usize) -> u64 {
    let place = seed.wrapping_add(i as u64);
    let low = generation ^ place as u32;
    let proof = scramble(place ^ (u64::from(generation) << 32)) as u32;
    u64::from(low) | u64::from(proof) << 32
}

/// Fills `page`, a whole number of words from the start of a page on.
///
/// # Panics
/// If the length is not a multiple of eight.
pub fn stamp(page: &mut [u8], file: u32, index: u64, generation: u32) {
    assert!(page.len().is_multiple_of(8), "stamps are words");
    if generation == 0 {
        page.fill(0);
        return;
    }
    let seed = seed(file, index);
    for (i, bytes) in page.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(seed, generation, i).to_le_bytes());
    }
}

/// The generation of stamped bytes that start at byte `offset` of a page (a multiple of eight).
///
/// # Errors
/// The place of the first word, in bytes from the start of the page, that is not of this file, of
/// this page, or of the same generation as the words before it.
pub fn stamped(bytes: &[u8], offset: usize, file: u32, index: u64) -> Result<u32, usize> {
    let mut first = None;
    scan(bytes, offset, file, index, |generation| {
        *first.get_or_insert(generation) == generation
    })?;
    Ok(first.unwrap_or(0))
}

/// The least and the greatest generation among stamped bytes, for reads beside a writer, which may
/// see some words of the old and some of the new page, and a word that is in part old and in part new: a copy that is
/// interrupted stops at any byte.
///
/// # Errors
/// The place of the first word that is not of this file and this page.
pub fn stamped_mixed(
    bytes: &[u8],
    offset: usize,
    file: u32,
    index: u64,
) -> Result<(u32, u32), usize> {
    let seed = seed(file, index);
    let words: Vec<[u8; 8]> = (bytes.chunks_exact(8))
        .map(|bytes| bytes.try_into().expect("eight bytes"))
        .collect();
    let genuine = |i: usize| {
        let (_, generation, genuine) = read_word(words.get(i)?, seed, offset / 8 + i);
        genuine.then_some(generation)
    };
    let (mut least, mut greatest) = (u32::MAX, 0);
    for i in 0..words.len() {
        let at = offset / 8 + i;
        let Some(generation) = genuine(i) else {
            let neighbours = (i.checked_sub(1).and_then(genuine), genuine(i + 1));
            let alone = (i == 0, i + 1 == words.len());
            match is_torn(words[i], seed, at, neighbours, alone) {
                true => continue,
                false => return Err(at * 8),
            }
        };
        least = least.min(generation);
        greatest = greatest.max(generation);
    }
    Ok((least.min(greatest), greatest))
}

/// Whether a word begins as that of one generation and ends as that of another: the generations of the words before and
/// after it. Of a word that is the `(first, last)` one, that side is of any generation. Half a word at least has to be proved.
fn is_torn(
    found: [u8; 8],
    seed: u64,
    at: usize,
    (before, after): (Option<u32>, Option<u32>),
    (first, last): (bool, bool),
) -> bool {
    let of = |generation: u32| match generation {
        0 => [0; 8],
        _ => word(seed, generation, at).to_le_bytes(),
    };
    // Of a low half without its first `cut` bytes all are tried.
    let ends_as_any = |cut: usize| {
        let [.., a, b, c, d] = found;
        let high = u32::from_le_bytes([a, b, c, d]);
        let known = u64::from_le_bytes(found) as u32 >> (8 * cut) << (8 * cut);
        (0..1_u32 << (8 * cut)).any(|missing| {
            let low = known | missing;
            let generation = low ^ seed.wrapping_add(at as u64) as u32;
            let ends = of(generation);
            ends[4..] == high.to_le_bytes() && ends[..4] == low.to_le_bytes()
        })
    };
    (1..8).any(|cut| {
        let begins = |generation| found[..cut] == of(generation)[..cut];
        let ends = |generation| found[cut..] == of(generation)[cut..];
        match (before, after) {
            (Some(before), Some(after)) => begins(before) && ends(after),
            // The low half, as far as it exists, has the generation.
            (None, Some(after)) if first => {
                let (_, told, _) = read_word(&found, seed, at);
                ends(after) && (cut <= 4 || begins(told))
            }
            (Some(before), None) if last => begins(before) && (cut >= 4 || ends_as_any(cut)),
            _ => false,
        }
    })
}

/// The words around byte `at` of stamped bytes that start at byte `offset` of a page, for messages: each with the
/// generation in its low half, in brackets if its high half does not prove it.
pub fn words_around(bytes: &[u8], offset: usize, file: u32, index: u64, at: usize) -> String {
    let seed = seed(file, index);
    let first = (at - offset).saturating_sub(24) / 8;
    let words = bytes.chunks_exact(8).enumerate().skip(first).take(8);
    words
        .map(|(i, bytes)| {
            let place = offset / 8 + i;
            let (found, generation, genuine) = read_word(bytes, seed, place);
            match genuine {
                true => format!("{}: {found:016x} of {generation:x}; ", place * 8),
                false => format!("{}: {found:016x} [of {generation:x}]; ", place * 8),
            }
        })
        .collect()
}

/// The word at place `at`, the generation in its low half, and whether its high half proves it.
fn read_word(bytes: &[u8], seed: u64, at: usize) -> (u64, u32, bool) {
    let mut raw = [0; 8];
    raw.copy_from_slice(bytes);
    let found = u64::from_le_bytes(raw);
    match found {
        0 => (0, 0, true),
        _ => {
            let generation = found as u32 ^ seed.wrapping_add(at as u64) as u32;
            (found, generation, found == word(seed, generation, at))
        }
    }
}

/// Hands the generation of each word to `accept`.
fn scan(
    bytes: &[u8],
    offset: usize,
    file: u32,
    index: u64,
    mut accept: impl FnMut(u32) -> bool,
) -> Result<(), usize> {
    let seed = seed(file, index);
    for (i, bytes) in bytes.chunks_exact(8).enumerate() {
        let at = offset / 8 + i;
        let (_, generation, genuine) = read_word(bytes, seed, at);
        if !genuine || !accept(generation) {
            return Err(at * 8);
        }
    }
    Ok(())
}

/// A file of stamped pages.
#[derive(Debug)]
pub struct StampBackend {
    file: u32,
    faults: Faults,
    /// Generation of each page. Relaxed everywhere: the cache's locks order a page's writes before
    /// its reads, and no other memory is published through these.
    generations: Box<[AtomicU32]>,
    /// Size in bytes; Relaxed for the same reason.
    size: AtomicU64,
    /// Whether pages may be overwritten while they are written out. Relaxed: set before the test begins.
    overwritten: AtomicBool,
    /// Relaxed: a statistic.
    mixed: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl StampBackend {
    /// File number `file` of at most `pages` pages, empty: size zero.
    pub fn new(file: u32, pages: usize, faults: &Faults) -> Arc<Self> {
        Self::with_generation(file, pages, 0, faults)
    }

    /// A file of `pages` pages that all have `generation` already; empty if that is zero.
    pub fn with_generation(file: u32, pages: usize, generation: u32, faults: &Faults) -> Arc<Self> {
        let size = if generation == 0 {
            0
        } else {
            pages * PAGE_SIZE
        };
        Arc::new(Self {
            file,
            faults: faults.clone(),
            generations: (0..pages).map(|_| AtomicU32::new(generation)).collect(),
            size: AtomicU64::new(size as u64),
            overwritten: AtomicBool::new(false),
            mixed: AtomicU64::new(0),
            wrong: Mutex::new(Vec::new()),
        })
    }

    /// The number of the file.
    pub fn file(&self) -> u32 {
        self.file
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// The generation of a page that was written last.
    pub fn generation(&self, index: u64) -> u32 {
        self.generations[index as usize].load(Ordering::Relaxed)
    }

    /// From now on a page may contain two generations: it is overwritten while it is written out. Then it is dirty
    /// again, and is written once more. Each page is taken in two halves, with a pause in between, so that this
    /// does happen.
    pub fn expect_overwrites(&self) {
        self.overwritten.store(true, Ordering::Relaxed);
    }

    fn is_overwritten(&self) -> bool {
        self.overwritten.load(Ordering::Relaxed)
    }

    /// Pages that were of two generations when they were written.
    pub fn mixed_writes(&self) -> u64 {
        self.mixed.load(Ordering::Relaxed)
    }

    /// One page of a write.
    fn take_page(&self, segment: &IoSegment<'_>, start: usize) -> Vec<u8> {
        let half = match self.is_overwritten() {
            true => PAGE_SIZE / 2,
            false => PAGE_SIZE,
        };
        let mut page = segments::gather(&[segments::part(segment, start)], half);
        if page.len() == half && half < PAGE_SIZE {
            std::thread::yield_now();
            let rest = &[segments::part(segment, start + half)];
            page.extend(segments::gather(rest, PAGE_SIZE - half));
        }
        page
    }

    fn generation_of(&self, page: &[u8], index: u64) -> Result<u32, usize> {
        stamped(page, 0, self.file, index).or_else(|at| {
            if !self.is_overwritten() {
                return Err(at);
            }
            let (_, newest) = stamped_mixed(page, 0, self.file, index)?;
            self.mixed.fetch_add(1, Ordering::Relaxed);
            Ok(newest)
        })
    }

    /// Writes of the cache that were not a page of this file at its place; empty if all is well.
    pub fn wrong_writes(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    fn run(
        &self,
        kind: OpKind,
        pos: u64,
        len: u64,
        body: impl FnOnce() -> u64,
    ) -> Result<u64, Errno> {
        self.faults.run(kind, pos, len, |outcome| match outcome {
            Outcome::Works => Ok(body()),
            // Whole pages are all that can be kept: a cut operation does nothing.
            Outcome::Short(_) => Ok(0),
            Outcome::Lies => Ok(len),
            Outcome::Fails(errno) | Outcome::Torn(errno, _) | Outcome::Loses(errno, _) => {
                Err(errno)
            }
        })
    }
}

impl AddressSpaceOperations for StampBackend {
    fn read_folios(&self, pos: u64, list: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let total = segments::total(list);
        self.run(OpKind::Read, pos, total, || {
            let len = total.min(self.size().saturating_sub(pos));
            let mut page = [0; PAGE_SIZE];
            let mut at = pos;
            for segment in list {
                for start in (0..segment.len()).step_by(PAGE_SIZE) {
                    if at >= pos + len {
                        return len;
                    }
                    let index = at / PAGE_SIZE as u64;
                    stamp(&mut page, self.file, index, self.generation(index));
                    segments::scatter(&[segments::part(segment, start)], &page);
                    at += PAGE_SIZE as u64;
                }
            }
            len
        })
        .map(|bytes| bytes as usize)
    }

    fn writepages(&self, pos: u64, list: &[IoSegment<'_>]) -> Result<usize, Errno> {
        let total = segments::total(list);
        self.run(OpKind::Write, pos, total, || {
            let mut at = pos;
            for segment in list {
                for start in (0..segment.len()).step_by(PAGE_SIZE) {
                    let index = at / PAGE_SIZE as u64;
                    let page = self.take_page(segment, start);
                    match (
                        self.generation_of(&page, index),
                        self.generations.get(index as usize),
                    ) {
                        (Ok(generation), Some(slot)) if page.len() == PAGE_SIZE => {
                            slot.store(generation, Ordering::Relaxed);
                        }
                        (result, _) => self.wrong.lock().push(format!(
                            "file {} page {index}, {} bytes: {result:?}",
                            self.file,
                            page.len()
                        )),
                    }
                    at += page.len() as u64;
                }
            }
            self.size.fetch_max(pos + total, Ordering::Relaxed);
            total
        })
        .map(|bytes| bytes as usize)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.run(OpKind::Flush, 0, 0, || 0).map(|_| ())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.run(OpKind::Truncate, size, 0, || {
            let keep = (size.div_ceil(PAGE_SIZE as u64) as usize).min(self.generations.len());
            for slot in &self.generations[keep..] {
                slot.store(0, Ordering::Relaxed);
            }
            self.size.store(size, Ordering::Relaxed);
            0
        })
        .map(|_| ())
    }

    fn punch_hole(&self, pos: u64, len: u64) -> Result<(), Errno> {
        self.run(OpKind::PunchHole, pos, len, || {
            let first = (pos as usize).div_ceil(PAGE_SIZE);
            let last = (pos.saturating_add(len) as usize / PAGE_SIZE).min(self.generations.len());
            for slot in self.generations.get(first..last).unwrap_or(&[]) {
                slot.store(0, Ordering::Relaxed);
            }
            len
        })
        .map(|_| ())
    }

    fn describe(&self) -> String {
        format!("stamped file {}", self.file)
    }
}

#[cfg(test)]
mod tests {
    use foliocache_mm::{AddressSpaceOperations, IoSegment, PAGE_SIZE};

    use super::{StampBackend, stamp, stamped, stamped_mixed, words_around};
    use crate::Faults;

    #[repr(align(4096))]
    struct Pages([u8; 2 * PAGE_SIZE]);

    /// `next` is page 2 of file 1, of generation 8.
    fn torn_words_are_told_from_foreign_ones(next: &[u8; PAGE_SIZE]) {
        let mut old = [0; PAGE_SIZE];
        stamp(&mut old, 1, 2, 7);
        for cut in 1..PAGE_SIZE {
            let mut page = old;
            page[..cut].copy_from_slice(&next[..cut]);
            assert!(stamped_mixed(&page, 0, 1, 2).is_ok(), "cut at {cut}");
        }
        let mut others = [[0; PAGE_SIZE]; 2];
        stamp(&mut others[0], 1, 2, 9);
        stamp(&mut others[1], 1, 2, 10);
        let mut page = old;
        page[800..804].copy_from_slice(&others[0][800..804]);
        page[804..808].copy_from_slice(&others[1][804..808]);
        assert_eq!(stamped_mixed(&page, 0, 1, 2), Err(800), "of no neighbour");
        assert!(stamped(&page, 0, 1, 2).is_err());
        page[800..808].copy_from_slice(&next[1600..1608]);
        assert_eq!(
            stamped_mixed(&page, 0, 1, 2),
            Err(800),
            "a word of another place"
        );
        page[800..808].copy_from_slice(&old[1600..1608]);
        assert_eq!(
            stamped_mixed(&page, 0, 1, 2),
            Err(800),
            "the same in one generation"
        );
    }

    #[test]
    fn stamps_tell_file_page_generation_and_place() {
        let mut page = [0; PAGE_SIZE];
        assert_eq!(stamped(&page, 0, 1, 2), Ok(0));
        stamp(&mut page, 1, 2, 7);
        assert_eq!(stamped(&page, 0, 1, 2), Ok(7));
        assert_eq!(stamped(&page[64..128], 64, 1, 2), Ok(7));
        assert_eq!(stamped(&page, 0, 2, 2), Err(0));
        assert_eq!(stamped(&page, 0, 1, 3), Err(0));
        assert_eq!(stamped(&page[8..], 0, 1, 2), Err(0));
        let mut next = [0; PAGE_SIZE];
        stamp(&mut next, 1, 2, 8);
        page[2048..].copy_from_slice(&next[2048..]);
        assert_eq!(stamped(&page, 0, 1, 2), Err(2048), "two generations");
        page[2048..].fill(0);
        assert_eq!(stamped(&page, 0, 1, 2), Err(2048), "half a page of zeros");
        assert_eq!(stamped_mixed(&page, 0, 1, 2), Ok((0, 7)));
        assert_eq!(stamped_mixed(&page, 0, 1, 3), Err(0));
        assert_eq!(stamped_mixed(&[], 0, 1, 3), Ok((0, 0)));
        torn_words_are_told_from_foreign_ones(&next);
        page[2048] = 1;
        let words = words_around(&page[64..], 64, 1, 2, 2048);
        assert!(
            words.starts_with("2024: ") && words.contains(" of 7; 2048: "),
            "{words}"
        );
        assert!(words.contains("2048: 0000000000000001 [of "), "{words}");
        assert!(words.ends_with("2080: 0000000000000000 of 0; "), "{words}");
    }

    #[test]
    fn the_backend_regenerates_written_pages() {
        let backend = StampBackend::new(5, 8, &Faults::new(0));
        let mut pages = Box::new(Pages([0; 2 * PAGE_SIZE]));
        stamp(&mut pages.0[..PAGE_SIZE], 5, 3, 9);
        stamp(&mut pages.0[PAGE_SIZE..], 5, 4, 10);
        let write = |pages: &mut Pages, page: u64| {
            backend.writepages(page * 4096, &[IoSegment::from_mut(&mut pages.0)])
        };
        let read = |pages: &mut Pages, page: u64| {
            backend.read_folios(page * 4096, &[IoSegment::from_mut(&mut pages.0)])
        };
        assert_eq!(write(&mut pages, 3), Ok(2 * PAGE_SIZE));
        assert_eq!((backend.generation(3), backend.generation(4)), (9, 10));
        assert_eq!(read(&mut pages, 2), Ok(2 * PAGE_SIZE));
        assert_eq!(stamped(&pages.0[..PAGE_SIZE], 0, 5, 2), Ok(0));
        assert_eq!(stamped(&pages.0[PAGE_SIZE..], 0, 5, 3), Ok(9));
        assert_eq!(read(&mut pages, 4), Ok(PAGE_SIZE), "the file ends there");
        assert!(backend.wrong_writes().is_empty());
        write(&mut pages, 6).expect("works");
        assert_eq!(backend.wrong_writes().len(), 2, "pages of another place");
    }
}
