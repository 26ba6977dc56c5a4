//! The cost of a unit of work beside much of everything, over its cost beside little.
//!
//! # Model
//!
//! Each row does the same small piece of work beside a smaller or a larger crowd that the work does not touch. A
//! ratio is the time of one unit at the largest size over that at the smallest: 1 if the cost depends on the change
//! alone, and the sizes' own ratio if the work examines everything. The store [keeps nothing](crate::beds), so only
//! the cache's own work is measured.
//!
//! | ratio | sizes, at a bound of 16 GiB | unit of work |
//! |---|---|---|
//! | `scale_dirty_files` | 10,000 and 100,000 dirty files | one of 64 files is made durable, and dirty again |
//! | `scale_bound` | bounds of 1, 4 and 16 GiB | a page is read in, which evicts another |
//! | `scale_bound_metadata` | bounds of 128 and 512 MiB and 2 GiB, half of it pages | 2 MiB are charged as metadata, for which a block is given back |
//! | `scale_file_systems` | 1, 16 and 64 file systems, each with a dirty file | a file of the first is made durable, and dirty again |
//! | `scale_shrink` | 64, 256 and 512 MiB of pages, out of the processor's caches | one block, while the limit shrinks by half |
//!
//! For `scale_bound` a bound is an address space: all but 32 MiB of it are charged as metadata that has no owner, so that
//! the cache is full without the memory being touched. `--memory` sets the largest bound; the other sizes go with it.

use foliocache_mm::BLOCK_SIZE;
use foliocache_sys::memory::total_memory;

use crate::beds::{Bed, BedFile};
use crate::cases::prelude::*;

/// The largest bound of a run that is not quick.
const MEMORY: u64 = 16 << 30;

/// The least of the largest bound: sizes below are too small to tell apart.
const LEAST_MEMORY: u64 = 1 << 30;

/// Dirty files at [`MEMORY`].
const DIRTY_FILES: u64 = 100_000;

/// Files that are worked on, whatever the crowd: as many as the processor's caches hold.
const WORKED_ON: usize = 64;

/// Frames of a cache that is full, in bytes.
const FRAMES: u64 = 32 << 20;

/// More than the processor's caches hold, in bytes.
const COLD: usize = 128 << 20;

/// The target of the ratios.
const MOST: f64 = 1.25;

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.memory.unwrap_or(MEMORY);
    if memory < LEAST_MEMORY {
        return Err(BenchError::Setting("memory: at least 1 GiB"));
    }
    if memory > total_memory() {
        return Err(BenchError::Setting("memory: more than this machine's"));
    }
    let shrunk = (memory / 32).max(128 << 20);
    let matches = set_up("files in the cache", || {
        let speeds = |ratio, name, workers: Vec<(&'static str, Box<dyn Worker>)>| {
            let mut one = Match::default();
            for (variant, worker) in workers {
                one.operations(name, variant, vec![worker]);
            }
            // Figures are units a second, sizes in ascending order.
            let largest = one.contestants.len() - 1;
            ratios! { one; ratio => 0 / largest, at_most(MOST); }
            one
        };
        let most = (DIRTY_FILES as f64 * (memory as f64 / MEMORY as f64)) as usize;
        let dirty = vec![
            ("10 %", beside_dirty_files(most / 10)?),
            ("100 %", beside_dirty_files(most)?),
        ];
        let read = |limit| {
            let mut full = Full::beside_metadata(limit, FRAMES)?;
            Ok::<_, io::Error>(repeat(move || full.read(1)))
        };
        let bounds = vec![
            ("1/16 of the bound", read(memory / 16)?),
            ("1/4 of the bound", read(memory / 4)?),
            ("the whole bound", read(memory)?),
        ];
        let charge = |limit| -> io::Result<Box<dyn Worker>> {
            Ok(Box::new(Charge(Full::beside_metadata(limit, limit / 2)?)))
        };
        let charged = vec![
            ("1/128 of the bound", charge(memory / 128)?),
            ("1/32 of the bound", charge(memory / 32)?),
            ("1/8 of the bound", charge(memory / 8)?),
        ];
        let systems = vec![
            ("1 file system", beside_file_systems(1)?),
            ("16 file systems", beside_file_systems(16)?),
            ("64 file systems", beside_file_systems(64)?),
        ];
        let mut halved = Match::default();
        for (variant, part) in [
            ("1/8 of the pages", 8),
            ("1/2 of the pages", 2),
            ("all pages", 1),
        ] {
            halved.add("shrink by half", variant, shrink(shrunk / part)?);
        }
        ratios! { halved; "scale_shrink" => 2 / 0, at_most(MOST); }
        Ok(vec![
            speeds("scale_dirty_files", "fsync beside dirty files", dirty),
            speeds("scale_bound", "page read in", bounds),
            speeds("scale_bound_metadata", "2 MiB of metadata charged", charged),
            speeds("scale_file_systems", "fsync beside file systems", systems),
            halved,
        ])
    })?;
    Ok(Plan {
        notes: vec![
            format!(
                "in scale_bound the largest bound has {} MiB, of which no more than {} MiB are touched",
                memory >> 20,
                FRAMES >> 20
            ),
            "nothing is written back in the background: the dirty limits are 90 %, and data may be a day old"
                .to_owned(),
        ],
        ..matches.into()
    })
}

/// Files of the first file system that are made durable and dirty again, in turns.
fn sync_and_dirty(bed: Arc<Bed>, files: Vec<BedFile>) -> Box<dyn Worker> {
    let mut at = 0;
    repeat(move || {
        // Held for as long as its files.
        let _ = &bed;
        at = (at + 1) % files.len();
        files[at].sync()?;
        files[at].dirty()
    })
}

fn beside_dirty_files(files: usize) -> io::Result<Box<dyn Worker>> {
    // Less than three eighths of it are dirty, so that nothing is written in the background.
    let bytes = (files * PAGE * 4) as u64;
    let bed = Bed::new(bytes + (256 << 20), 1)?;
    let mut worked_on = Vec::new();
    for number in 0..files {
        let file = bed.file(0, PAGE as u64);
        file.dirty()?;
        // Spread over the list as they are over time. The list holds the others.
        if number % (files / WORKED_ON) == 0 && worked_on.len() < WORKED_ON {
            worked_on.push(file);
        }
    }
    Ok(sync_and_dirty(bed, worked_on))
}

fn beside_file_systems(number: usize) -> io::Result<Box<dyn Worker>> {
    let bed = Bed::new(256 << 20, number)?;
    let dirty = |file_system| {
        let file = bed.file(file_system, PAGE as u64);
        file.dirty().map(|()| file)
    };
    for other in 1..number {
        dirty(other)?;
    }
    let files = (0..WORKED_ON)
        .map(|_| dirty(0))
        .collect::<io::Result<_>>()?;
    Ok(sync_and_dirty(bed, files))
}

/// A cache and a file in it, whose pages are read at random, one at a time.
struct Full {
    bed: Arc<Bed>,
    file: BedFile,
    /// Pages of the file.
    pages: usize,
    random: Random,
}

impl Full {
    /// The file's pages, as a multiple of the frames.
    const TIMES: u64 = 4;

    fn new(limit: u64, len: u64) -> io::Result<Self> {
        let bed = Bed::new(limit, 1)?;
        Ok(Self {
            file: bed.file(0, len),
            bed,
            pages: len as usize / PAGE,
            random: Random(1),
        })
    }

    /// Metadata leaves `left` bytes of the bound to pages, and all of it is full of them.
    fn beside_metadata(limit: u64, left: u64) -> io::Result<Self> {
        let mut full = Self::new(limit, Self::TIMES * left)?;
        let mm = &full.bed.mm;
        // The first of it takes the room that is kept for metadata, and no frames. Straight from the frame
        // space: a cache leaves pages a quarter of the bound.
        while mm.usage().capacity_pages * PAGE as u64 > left {
            if !mm.frames().charge_metadata(BLOCK_SIZE as u64) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
        }
        full.read(2 * full.pages)?;
        Ok(full)
    }

    /// Reads `n` pages. One in [`Full::TIMES`] is in a full cache.
    fn read(&mut self, n: usize) -> io::Result<()> {
        (0..n).try_for_each(|_| self.file.read(self.random.below(self.pages) as u64))
    }

    fn set_limit(&self, limit: u64) -> io::Result<u64> {
        let set = self.bed.mm.set_limit(limit);
        set.map_err(io::Error::other)?;
        Ok(self.bed.mm.usage().blocks_held)
    }
}

/// Bytes that are charged as metadata at a time.
const PIECE: usize = 64 << 10;

/// Charges a block's worth, gives it back, and fills the frames again.
struct Charge(Full);

impl Worker for Charge {
    fn batch(&mut self) -> io::Result<u64> {
        for _ in 0..BLOCK_SIZE / PIECE {
            self.0.bed.mm.charge_metadata(PIECE as u64)?;
        }
        self.0.bed.mm.uncharge_metadata(BLOCK_SIZE as u64);
        self.0.read(2 * BLOCK_SIZE / PAGE)?;
        Ok(1)
    }
}

/// Shrinks the limit of a full cache by half: the time for each block.
fn shrink(limit: u64) -> io::Result<Work> {
    let mut full = Full::new(limit, 2 * limit)?;
    Ok(Work::pass(1, "µs/block", move || {
        full.set_limit(limit)?;
        // One page at a time, at random: none of them is part of a larger folio.
        full.read(full.pages)?;
        // No size finds its own in the processor's caches.
        let mut cold = vec![0_u8; COLD];
        cold.iter_mut().for_each(|byte| *byte += 1);
        std::hint::black_box(&cold);
        let before = full.bed.mm.usage().blocks_held;
        let start = Instant::now();
        let after = full.set_limit(limit / 2)?;
        let took = start.elapsed();
        let given_back = before.saturating_sub(after).max(1);
        Ok(Outcome::plain(took.as_secs_f64() * 1e6 / given_back as f64))
    }))
}
