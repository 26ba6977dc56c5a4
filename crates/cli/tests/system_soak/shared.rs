//! A file larger than the cache that many threads read and write, and that lives through all rounds.
//!
//! # Model
//!
//! Each page says which file, page and generation it is. A writer raises `begun` of the page before its write and `done`
//! after it. So a reader must find no generation older than `done` was before its read, and none newer than `begun` is after it.
//!
//! # Memory ordering
//!
//! `done` is stored with Release and loaded with Acquire, as is `begun`: a reader's loads before and after its read
//! are ordered with that read.
//!
//! # Safety
//!
//! Loads of a mapping are volatile, of words within it, while it lives.
#![allow(unsafe_code)]

use crate::library::is_refusal;
use crate::work::{Context, Done, Worker, patiently, same};
use foliocache::{Advice, Cache, Directory, Error, File, IoOptions, MapAccess, Mapping, PAGE_SIZE};
use foliocache_sim::{stamp, stamped_mixed};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages of the file.
pub(crate) const PAGES: usize = 12 << 10;

/// Most pages of one read or write.
const MOST: u64 = 64;

/// The file's name.
const NAME: &str = "shared";

pub(crate) struct Shared {
    /// Which file the pages say that they are of.
    number: u32,
    directory: Directory,
    maps: bool,
    begun: Vec<AtomicU32>,
    done: Vec<AtomicU32>,
    /// Held while pages of its part are written.
    parts: Vec<Mutex<()>>,
}

/// Pages of a part.
const PART: usize = 128;

impl Shared {
    pub(crate) fn new(number: u32, directory: Directory, maps: bool) -> Done<Shared> {
        let file = directory.create(NAME);
        let sized = file.and_then(|file| file.set_len((PAGES * PAGE_SIZE) as u64));
        sized.context(|| format!("make {NAME}"))?;
        Ok(Shared {
            number,
            directory,
            maps,
            begun: (0..PAGES).map(|_| AtomicU32::new(0)).collect(),
            done: (0..PAGES).map(|_| AtomicU32::new(0)).collect(),
            parts: (0..PAGES.div_ceil(PART))
                .map(|_| Mutex::default())
                .collect(),
        })
    }

    fn open(&self) -> Done<File> {
        let mut options = self.directory.open_options();
        let options = options.read(true).write(true);
        let file = patiently(|| options.open(NAME));
        file.context(|| format!("open {NAME}"))
    }

    /// Evicts the clean pages of the file.
    pub(crate) fn drop_cached(&self) -> Done {
        let done = self.open()?.advise(Advice::DontNeed, ..);
        done.context(|| format!("drop what is cached of {NAME}"))
    }

    /// Reads all of it while no other thread uses it: each page has the generation that was written
    /// last.
    pub(crate) fn check_all(&self) -> Done {
        let file = self.open()?;
        let mut bytes = vec![0; MOST as usize * PAGE_SIZE];
        for first in (0..PAGES).step_by(MOST as usize) {
            let read = file.read_exact_at(&mut bytes, (first * PAGE_SIZE) as u64);
            read.context(|| format!("read {NAME}"))?;
            let before = self.generations(first, MOST as usize);
            self.check(first, &bytes, &before, "the last read")?;
        }
        Ok(())
    }

    pub(crate) fn remove(&self) -> Done {
        self.directory
            .remove_file(NAME)
            .context(|| format!("remove {NAME}"))
    }

    fn generations(&self, first: usize, pages: usize) -> Vec<u32> {
        let done = self.done[first..first + pages].iter();
        done.map(|page| page.load(Ordering::Acquire)).collect()
    }

    fn check(&self, first: usize, bytes: &[u8], before: &[u32], way: &str) -> Done {
        for (i, (page, &oldest)) in bytes.chunks(PAGE_SIZE).zip(before).enumerate() {
            let index = first + i;
            let newest = self.begun[index].load(Ordering::Acquire);
            match stamped_mixed(page, 0, self.number, index as u64) {
                Ok((least, most)) if least >= oldest && most <= newest => {}
                Ok((least, most)) => {
                    return Err(format!(
                        "{way}: page {index} has generations {least} to {most}, expected {oldest} to {newest}"
                    ));
                }
                Err(at) => {
                    return Err(format!(
                        "{way}: page {index} has bytes of something else from {at} on: {:02x?}",
                        &page[at..PAGE_SIZE.min(at + 16)]
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Reads and writes the file until the end of the round.
pub(crate) fn work(worker: &mut Worker<'_>, shared: &Shared) -> Done {
    let mut file = shared.open()?;
    let mut mapping = None;
    let mut scan = 0;
    while worker.goes_on() {
        let pages = worker.rng.between(1, MOST) as usize;
        let first = match worker.rng.below(3) {
            // A scan, for readahead.
            0 => {
                scan = (scan + MOST as usize) % PAGES;
                scan.min(PAGES - pages)
            }
            // A part in regular use.
            1 => worker.rng.below(PAGES as u64 / 8) as usize,
            _ => worker.rng.below((PAGES - pages) as u64) as usize,
        };
        if worker.rng.one_in(1, 3) {
            write(worker, shared, &file, first, pages.min(16))?;
        } else {
            read(worker, shared, &file, &mut mapping, first, pages)?;
        }
        if worker.rng.one_in(1, 200) {
            file.sync_data().context(|| format!("sync of {NAME}"))?;
            worker.did("sync of a shared file", 0);
        }
        if worker.rng.one_in(1, 100) {
            file = shared.open()?;
            mapping = None;
        }
    }
    Ok(())
}

fn write(
    worker: &mut Worker<'_>,
    shared: &Shared,
    file: &File,
    first: usize,
    pages: usize,
) -> Done {
    let (how, way) = match worker.rng.below(6) {
        0 => (
            IoOptions::new().uncached(true),
            "uncached write of a shared file",
        ),
        1 => (
            IoOptions::new().direct(true),
            "direct write of a shared file",
        ),
        _ => (IoOptions::new(), "write of a shared file"),
    };
    let part = shared.parts[first / PART].lock().unwrap();
    let last = (first + pages).min((first / PART + 1) * PART);
    let mut bytes = vec![0; (last - first) * PAGE_SIZE];
    for (index, page) in (first..last).zip(bytes.chunks_mut(PAGE_SIZE)) {
        // Relaxed: the part's lock orders writers.
        let generation = shared.begun[index].load(Ordering::Relaxed) + 1;
        shared.begun[index].store(generation, Ordering::Release);
        stamp(page, shared.number, index as u64, generation);
    }
    let mut written = 0;
    while written < bytes.len() {
        let pos = (first * PAGE_SIZE + written) as u64;
        let n = file.write_at_with(&bytes[written..], pos, how);
        written += n.context(|| format!("{way} at page {first}"))?;
    }
    for index in first..last {
        let generation = shared.begun[index].load(Ordering::Relaxed);
        shared.done[index].store(generation, Ordering::Release);
    }
    drop(part);
    worker.did(way, bytes.len());
    Ok(())
}

fn read(
    worker: &mut Worker<'_>,
    shared: &Shared,
    file: &File,
    mapping: &mut Option<Mapping>,
    first: usize,
    pages: usize,
) -> Done {
    let (pos, len) = ((first * PAGE_SIZE) as u64, pages * PAGE_SIZE);
    let before = shared.generations(first, pages);
    let mut bytes = vec![0; len];
    let fill = |bytes: &mut [u8], how: IoOptions| -> Result<(), Error> {
        let mut done = 0;
        while done < len {
            done += file.read_at_with(&mut bytes[done..], pos + done as u64, how)?;
        }
        Ok(())
    };
    let way = match worker.rng.below(8) {
        0 => fill(&mut bytes, IoOptions::new().uncached(true))
            .map(|()| "uncached read of a shared file"),
        1 => {
            fill(&mut bytes, IoOptions::new().direct(true)).map(|()| "direct read of a shared file")
        }
        2 => file.view(pos..pos + len as u64).map(|view| {
            bytes.truncate(view.len() / PAGE_SIZE * PAGE_SIZE);
            bytes.copy_from_slice(&view[..view.len() / PAGE_SIZE * PAGE_SIZE]);
            "view of a shared file"
        }),
        3 => {
            let mut requests: Vec<_> = bytes
                .chunks_mut(PAGE_SIZE)
                .enumerate()
                .map(|(i, page)| file.read_request(page, pos + (i * PAGE_SIZE) as u64))
                .collect();
            File::read_batch(&mut requests).map(|()| "batch of a shared file")
        }
        4 | 5 if shared.maps => match load(file, mapping, pos as usize, &mut bytes) {
            Ok(()) => Ok("loads of a mapping of a shared file"),
            Err(error) if is_refusal(&error) => return Ok(()),
            Err(error) => Err(error),
        },
        _ => fill(&mut bytes, IoOptions::new()).map(|()| "read of a shared file"),
    };
    let way = way.context(|| format!("read {pages} pages of {NAME} at page {first}"))?;
    worker.did(way, bytes.len());
    shared.check(first, &bytes, &before, way)
}

/// Loads through a mapping of the whole file.
fn load(
    file: &File,
    mapping: &mut Option<Mapping>,
    from: usize,
    bytes: &mut [u8],
) -> Result<(), Error> {
    if mapping.is_none() {
        *mapping = Some(file.map(.., MapAccess::Read)?);
    }
    let mapping = mapping.as_ref().expect("was just made");
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        // SAFETY: the word is within the mapping, which has the size of the file.
        let address = unsafe { mapping.as_ptr().add(from + i * 8) };
        // SAFETY: the mapping lives, and pages are aligned.
        let value = unsafe { address.cast::<u64>().read_volatile() };
        word.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(())
}

/// Kept views: each must keep its bytes while its file changes.
pub(crate) fn views(worker: &mut Worker<'_>, shared: &Shared) -> Done {
    let file = shared.open()?;
    let mut kept = Vec::new();
    while worker.goes_on() {
        if kept.len() < 32 && worker.rng.one_in(1, 2) {
            let pos = worker.rng.below(PAGES as u64) * PAGE_SIZE as u64;
            let view = file.view(pos..pos + PAGE_SIZE as u64);
            let view = view.context(|| format!("view of {NAME} at {pos}"))?;
            let copy = view.to_vec();
            kept.push((view, copy, pos));
            worker.did("view kept", PAGE_SIZE);
        } else if !kept.is_empty() {
            let at = worker.rng.below(kept.len() as u64) as usize;
            let (view, copy, pos) = kept.swap_remove(at);
            same(&view, &copy, || format!("a kept view of {NAME} at {pos}"))?;
        }
    }
    Ok(())
}

/// Moves the memory bound, asks for statistics, and expects that the bound holds.
pub(crate) fn limits(worker: &mut Worker<'_>, cache: &Cache, bounds: &[u64]) -> Done {
    let most = *bounds.iter().max().expect("there are bounds");
    while worker.goes_on() {
        for _ in 0..8 {
            if !worker.goes_on() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let bound = bounds[worker.rng.below(bounds.len() as u64) as usize];
        let set = cache.set_memory(bound);
        set.context(|| format!("set_memory {bound}"))?;
        worker.did("set_memory", 0);
        let stats = cache.stats().context(|| "stats".to_owned())?;
        let (used, forced) = (stats.memory.total_bytes(), stats.memory.blocks_forced);
        if used > most + forced * (2 << 20) {
            return Err(format!(
                "{used} bytes in use beyond the largest bound, {most}"
            ));
        }
        if stats.background_panics + stats.memory_faults > 0 {
            return Err(format!("panics or bad memory: {stats}"));
        }
        cache.holders(20).context(|| "holders".to_owned())?;
        cache
            .unsynced_files()
            .context(|| "unsynced_files".to_owned())?;
        cache.pinned().context(|| "pinned".to_owned())?;
        worker.did("statistics", 0);
    }
    Ok(())
}
