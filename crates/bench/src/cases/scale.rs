//! What a unit of work costs while there is much of everything, over what it costs while there is little.
//!
//! # Model
//!
//! Each row does the same small piece of work beside a smaller or a larger crowd that the work does not touch. A
//! ratio is the time of one unit at the largest size over that at the smallest: 1 where the work costs what it
//! changes, and the sizes' own ratio where it looks at everything. The store [keeps nothing](crate::beds), so nothing but the cache's own work is measured.
//!
//! | ratio | sizes, at a bound of 16 GiB | unit of work |
//! |---|---|---|
//! | `scale_dirty_files` | 10,000 and 100,000 dirty files | one of 64 files is made durable, and dirty again |
//! | `scale_bound` | bounds of 1, 4 and 16 GiB | a page is read in, which evicts another |
//! | `scale_bound_metadata` | bounds of 128 and 512 MiB and 2 GiB, half of it pages | 2 MiB are charged as metadata, for which a block is given back |
//! | `scale_file_systems` | 1, 16 and 64 file systems, each with a dirty file | a file of the first is made durable, and dirty again |
//! | `scale_shrink` | 64, 256 and 512 MiB of pages, out of the processor's caches | one block, while the limit shrinks by half |
//!
//! For `scale_bound` a bound is an address space: all but 32 MiB of it are charged as metadata that nobody has, so that
//! the cache is full without the memory being touched. `--memory` sets the largest bound; the other sizes go with it.

use foliocache_mm::BLOCK_SIZE;
use foliocache_sys::memory::total_memory;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::beds::{Bed, BedFile};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work, Worker, repeat};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::place::Random;
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Scale;

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

/// What a ratio is to reach.
const MOST: f64 = 1.25;

impl Case for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn about(&self) -> &'static str {
        "a unit of work at the largest size over the smallest: files, bound, file systems, shrinking"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, memory) = if quick { (6, MEMORY / 4) } else { (22, MEMORY) };
        Settings {
            samples,
            seconds: 0.05,
            memory: Some(memory.min(total_memory() / 4 * 3)),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 30 } else { 180 }
    }

    fn uses(&self) -> Uses {
        Uses {
            seconds: true,
            memory: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = settings.memory.unwrap_or(MEMORY);
        if memory < LEAST_MEMORY {
            return Err(BenchError::Setting("memory: at least 1 GiB"));
        }
        if memory > total_memory() {
            return Err(BenchError::Setting("memory: more than this machine's"));
        }
        Ok(Plan {
            matches: vec![
                dirty_files(memory)?,
                page_read_in(memory)?,
                metadata_charged(memory)?,
                file_systems()?,
                shrink(memory)?,
            ],
            notes: vec![
                format!(
                    "in scale_bound the largest bound has {} MiB, of which no more than {} MiB are touched",
                    memory >> 20,
                    FRAMES >> 20
                ),
                "nothing is written back in the background: the dirty limits are 90 %, and data may be a day old"
                    .to_owned(),
            ],
            ..Plan::default()
        })
    }
}

/// Compares sizes that stand in ascending order. Figures are units a second.
fn speeds(ratio: &'static str, contestants: Vec<Contestant>) -> Match {
    let largest = contestants.len() - 1;
    Match {
        contestants,
        ratios: vec![RatioPlan::new(ratio, 0, largest).at_most(MOST)],
        ..Match::default()
    }
}

fn contestant(name: &'static str, variant: &'static str, worker: Box<dyn Worker>) -> Contestant {
    Contestant {
        name,
        variant,
        work: Work::Operations(vec![worker]),
    }
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

/// What a case could not set up.
fn failed(error: io::Error) -> BenchError {
    BenchError::setup("files in the cache", error)
}

fn dirty_files(memory: u64) -> Result<Match, BenchError> {
    const NAME: &str = "fsync beside dirty files";
    let most = (DIRTY_FILES as f64 * (memory as f64 / MEMORY as f64)) as usize;
    let crowd = |files: usize, variant| {
        // Less than three eighths of it are dirty, so that nothing is written in the background.
        let bytes = (files * PAGE * 4) as u64;
        let bed = Bed::new(bytes + (256 << 20), 1)?;
        let mut worked_on = Vec::new();
        for number in 0..files {
            let file = bed.file(0, PAGE as u64);
            file.dirty().map_err(failed)?;
            // Spread over the list as they are over time. The list holds the others.
            if number % (files / WORKED_ON) == 0 && worked_on.len() < WORKED_ON {
                worked_on.push(file);
            }
        }
        Ok(contestant(NAME, variant, sync_and_dirty(bed, worked_on)))
    };
    Ok(speeds(
        "scale_dirty_files",
        vec![crowd(most / 10, "10 %")?, crowd(most, "100 %")?],
    ))
}

/// A cache in which metadata leaves a part of the bound, all of it full of pages of one file.
struct Full {
    bed: Arc<Bed>,
    file: BedFile,
    /// Pages of the file.
    pages: usize,
    random: Random,
}

impl Full {
    /// The file has so many times as many pages as there are frames.
    const TIMES: u64 = 4;

    /// Leaves `left` bytes of the bound to pages.
    fn new(limit: u64, left: u64) -> Result<Self, BenchError> {
        let bed = Bed::new(limit, 1)?;
        // The first of it takes the room that is kept for metadata, and no frames. Straight from the frame
        // space: a cache leaves pages a quarter of the bound.
        while bed.mm.usage().capacity_pages * PAGE as u64 > left {
            if !bed.mm.frames().charge_metadata(BLOCK_SIZE as u64) {
                return Err(failed(io::ErrorKind::OutOfMemory.into()));
            }
        }
        let mut full = Self {
            file: bed.file(0, Self::TIMES * left),
            bed,
            pages: (Self::TIMES * left) as usize / PAGE,
            random: Random(1),
        };
        for _ in 0..2 * full.pages {
            full.read().map_err(failed)?;
        }
        Ok(full)
    }

    /// Reads a page that is in the cache one time in [`Full::TIMES`].
    fn read(&mut self) -> io::Result<()> {
        self.file.read(self.random.below(self.pages) as u64)
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
        for _ in 0..2 * BLOCK_SIZE / PAGE {
            self.0.read()?;
        }
        Ok(1)
    }
}

fn page_read_in(memory: u64) -> Result<Match, BenchError> {
    let of = |limit, variant| {
        let mut full = Full::new(limit, FRAMES)?;
        let worker = repeat(move || full.read());
        Ok(contestant("page read in", variant, worker))
    };
    Ok(speeds(
        "scale_bound",
        vec![
            of(memory / 16, "1/16 of the bound")?,
            of(memory / 4, "1/4 of the bound")?,
            of(memory, "the whole bound")?,
        ],
    ))
}

fn metadata_charged(memory: u64) -> Result<Match, BenchError> {
    const NAME: &str = "2 MiB of metadata charged";
    let of = |limit, variant| {
        let full = Full::new(limit, limit / 2)?;
        Ok(contestant(NAME, variant, Box::new(Charge(full))))
    };
    Ok(speeds(
        "scale_bound_metadata",
        vec![
            of(memory / 128, "1/128 of the bound")?,
            of(memory / 32, "1/32 of the bound")?,
            of(memory / 8, "1/8 of the bound")?,
        ],
    ))
}

fn file_systems() -> Result<Match, BenchError> {
    const NAME: &str = "fsync beside file systems";
    let of = |number, variant| {
        let bed = Bed::new(256 << 20, number)?;
        let dirty = |file_system| {
            let file = bed.file(file_system, PAGE as u64);
            file.dirty().map_err(failed)?;
            Ok(file)
        };
        for other in 1..number {
            dirty(other)?;
        }
        let files: Result<Vec<_>, _> = (0..WORKED_ON).map(|_| dirty(0)).collect();
        let files = files?;
        Ok(contestant(NAME, variant, sync_and_dirty(bed, files)))
    };
    Ok(speeds(
        "scale_file_systems",
        vec![
            of(1, "1 file system")?,
            of(16, "16 file systems")?,
            of(64, "64 file systems")?,
        ],
    ))
}

/// Shrinks the limit of a full cache by half.
struct Shrink {
    bed: Arc<Bed>,
    file: BedFile,
    limit: u64,
    pages: u64,
    random: Random,
}

impl Shrink {
    fn new(limit: u64) -> Result<Self, BenchError> {
        let bed = Bed::new(limit, 1)?;
        let pages = 2 * limit / PAGE as u64;
        Ok(Self {
            file: bed.file(0, pages * PAGE as u64),
            bed,
            limit,
            pages,
            random: Random(2),
        })
    }

    fn set_limit(&self, limit: u64) -> io::Result<u64> {
        let set = self.bed.mm.set_limit(limit);
        set.map_err(io::Error::other)?;
        Ok(self.bed.mm.usage().blocks_held)
    }
}

impl Pass for Shrink {
    fn prepare(&mut self) -> io::Result<()> {
        self.set_limit(self.limit)?;
        // One page at a time, at random: none of them is part of a larger folio.
        for _ in 0..self.pages {
            self.file
                .read(self.random.below(self.pages as usize) as u64)?;
        }
        // No size finds its own in the processor's caches.
        let mut cold = vec![0_u8; COLD];
        cold.iter_mut().for_each(|byte| *byte += 1);
        std::hint::black_box(&cold);
        Ok(())
    }

    fn run(&mut self) -> io::Result<Outcome> {
        let before = self.bed.mm.usage().blocks_held;
        let start = Instant::now();
        let after = self.set_limit(self.limit / 2)?;
        let took = start.elapsed();
        let given_back = before.saturating_sub(after).max(1);
        Ok(Outcome::plain(took.as_secs_f64() * 1e6 / given_back as f64))
    }
}

fn shrink(memory: u64) -> Result<Match, BenchError> {
    const NAME: &str = "shrink by half";
    let largest = (memory / 32).max(128 << 20);
    let of = |limit, variant| {
        Ok(Contestant {
            name: NAME,
            variant,
            work: Work::Pass {
                threads: 1,
                unit: "µs/block",
                pass: Box::new(Shrink::new(limit)?),
            },
        })
    };
    Ok(Match {
        contestants: vec![
            of(largest / 8, "1/8 of the pages")?,
            of(largest / 2, "1/2 of the pages")?,
            of(largest, "all pages")?,
        ],
        ratios: vec![RatioPlan::new("scale_shrink", 2, 0).at_most(MOST)],
        ..Match::default()
    })
}
