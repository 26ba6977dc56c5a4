//! Hit ratios of ours, of plain LRU and of the crate `quick_cache`.
//!
//! # Model
//!
//! All three read the same pages, one at a time, and keep the same number of pages: as many as ours
//! holds within the bound when it is full, besides its tables. Ours is the whole cache, over a file
//! on a tmpfs with random advice, so that a hit is due to the policy and not to readahead. Each
//! turn begins with empty caches; the first part of a trace is not counted.
//!
//! | trace | pages | what it asks for |
//! |---|---|---|
//! | mix | zipf (θ = 0.99) over four times what is kept; scans of half of it between, as many reads | popular pages survive scans |
//! | loop | a tenth more than is kept, over and over | part of the loop stays; LRU has no hit at all |
//! | database | look-ups in a b-tree, zipf by key, and scans of ranges with their rows; six times what is kept | the upper pages and popular rows survive scans |
//! | web | objects of one to eight pages, zipf, of which ever others become popular; six times what is kept | what was popular goes |
//! | build | sources read once, headers by zipf, objects written and all of them read; three times what is kept | headers stay |
//! | given | those of a file (`--trace`), alone: an access a line, the number of a page, or that of the first and how many | |
//!
//! One hit is added to each count, so that a cache without
//! any can be divided by.

use foliocache::{Advice, Cache, File};
use std::io;
use std::io::BufReader;
use std::path::Path;

use crate::cases::prelude::*;
use crate::policy::{Lru, Policy, Quick};
use crate::trace::{Given, build, cycle, database, web, zipf_and_scan};

/// The file.
const FILE: &str = "data";

/// The file is this many times the capacity.
const FILE_PER_CAPACITY: u32 = 20;

/// Reads of a trace, as a multiple of the capacity.
const READS_PER_CAPACITY: usize = 40;

type MakePolicy = fn(&Bed) -> io::Result<Box<dyn Policy>>;
/// Arguments: the capacity, the reads of a trace, and a seed.
type MakeTrace = fn(u32, usize, u64) -> Vec<u32>;

/// Traces: row, suffix of the ratios, and generator.
const TRACES: [(&str, &str, MakeTrace); 5] = [
    ("zipf and scans", "mix", |kept, reads, seed| {
        let end = FILE_PER_CAPACITY * kept;
        zipf_and_scan(4 * kept, end, kept as usize / 2, reads, seed)
    }),
    ("loop", "loop", |kept, reads, _| {
        cycle(kept + kept / 10, reads)
    }),
    ("database", "database", |kept, reads, seed| {
        database(6 * kept, reads, seed)
    }),
    ("web", "web", |kept, reads, seed| web(6 * kept, reads, seed)),
    ("build", "build", |kept, reads, seed| {
        build(3 * kept, reads, seed)
    }),
];

/// The policies that are compared. All keep as many pages.
const POLICIES: [(&str, MakePolicy); 3] = [
    (OURS, |bed| {
        Ok(Box::new(Ours::new(&bed.folder, bed.memory)?))
    }),
    ("LRU", |bed| Ok(Box::new(Lru::new(bed.capacity as usize)))),
    ("quick_cache", |bed| {
        Ok(Box::new(Quick::new(bed.capacity as usize)))
    }),
];

/// The state that all passes share.
struct Bed {
    folder: Folder,
    memory: u64,
    /// Pages that are kept.
    capacity: u32,
    given: Option<Given>,
}

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    let given = settings.trace.as_deref().map(given).transpose()?;
    let folder = Folder::in_memory(&settings.helper)?;
    let most = (memory / PAGE as u64) as u32;
    let pages = (most * FILE_PER_CAPACITY).max(given.as_ref().map_or(0, |given| given.pages));
    let capacity = set_up("a file on a tmpfs", || {
        // Without blocks: the bytes do not matter here, and zeros cost no memory.
        let file = fs::File::create(folder.path().join(FILE))?;
        file.set_len(u64::from(pages) * PAGE as u64)?;
        Ours::capacity(&folder, memory)
    })?;
    let mut notes = vec![format!(
        "all keep {capacity} pages, what ours holds within a bound of {most} pages; ours is told that reads are at random"
    )];
    if let Some(given) = &given {
        let (accesses, pages) = (given.accesses.len(), given.pages);
        notes.push(format!(
            "the trace has {accesses} accesses of {pages} pages, the first quarter of them not counted"
        ));
        if pages <= capacity {
            notes.push("all of its pages are kept: give less --memory".to_owned());
        }
    }
    let traces = match given {
        // It is used unchanged.
        Some(_) => vec![("given trace", "given", None)],
        None => (TRACES.into_iter())
            .map(|(name, id, make)| (name, id, Some(make)))
            .collect(),
    };
    let bed = Rc::new(Bed {
        folder,
        memory,
        capacity,
        given,
    });
    let mut one = Match {
        exact: true,
        ..Match::default()
    };
    for (name, id, make) in traces {
        let [ours, lru, quick] = POLICIES.map(|(variant, policy)| {
            // Turns so far, the seed of the next trace: all contestants get the same ones.
            let (bed, mut turns) = (Rc::clone(&bed), 0);
            let reads = move || {
                let reads = READS_PER_CAPACITY * bed.capacity as usize;
                let made = make.map(|make| make(bed.capacity, reads, turns));
                turns += 1;
                let given = || bed.given.as_ref().map_or(&[][..], |given| &given.accesses);
                hits(&mut *policy(&bed)?, made.as_deref().unwrap_or_else(given))
            };
            one.add(name, variant, Work::pass(1, "% hits", reads))
        });
        ratios! { one;
            format!("hit_ratio_vs_lru_{id}") => ours / lru, at_least(1.0);
            format!("hit_ratio_vs_quick_cache_{id}") => ours / quick, at_least(1.0);
        }
    }
    Ok(Plan {
        notes,
        ..vec![one].into()
    })
}

/// The trace of a file.
fn given(path: &Path) -> Result<Given, BenchError> {
    let refused = |why: String| BenchError::Refused(format!("{}: {why}", path.display()));
    let file = fs::File::open(path).map_err(|error| refused(error.to_string()))?;
    Given::read(BufReader::new(file)).map_err(refused)
}

/// A trace, read through a new cache. The first part is not counted.
fn hits(policy: &mut dyn Policy, trace: &[u32]) -> io::Result<Outcome> {
    let (first, counted) = trace.split_at(trace.len() / 4);
    for &page in first {
        policy.read(page)?;
    }
    let mut hits = 0_u64;
    for &page in counted {
        hits += u64::from(policy.read(page)?);
    }
    let all = counted.len() as f64;
    Ok(Outcome {
        hit_ratio: Some(hits as f64 / all),
        ..Outcome::plain(100.0 * (hits + 1) as f64 / all)
    })
}

/// Our cache over the file. The file goes before its cache.
struct Ours {
    file: File,
    misses: u64,
    page: Box<PageBuf>,
    _cache: Cache,
}

impl Ours {
    fn new(folder: &Folder, memory: u64) -> io::Result<Self> {
        let cache = Cache::builder().memory(memory).build()?;
        let file = cache.directory(folder.path())?.open(FILE)?;
        file.advise(Advice::Random, ..)?;
        Ok(Self {
            file,
            misses: 0,
            page: PageBuf::new(),
            _cache: cache,
        })
    }

    /// The most pages that it ever holds.
    fn capacity(folder: &Folder, memory: u64) -> io::Result<u32> {
        let mut ours = Self::new(folder, memory)?;
        let mut most = 0;
        for page in 0..2 * (memory / PAGE as u64) as u32 {
            ours.read(page)?;
            if page % 64 == 0 {
                most = most.max(ours.file.stats()?.resident_pages);
            }
        }
        Ok(most as u32)
    }
}

impl Policy for Ours {
    fn read(&mut self, page: u32) -> io::Result<bool> {
        let pos = u64::from(page) * PAGE as u64;
        whole(self.file.read_at(&mut self.page.0, pos)?, PAGE)?;
        let misses = self.file.stats()?.missed_pages;
        let hit = misses == self.misses;
        self.misses = misses;
        Ok(hit)
    }
}
