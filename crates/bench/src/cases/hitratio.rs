//! What is kept: hit ratios of ours, of plain LRU and of the crate `quick_cache`.
//!
//! # Model
//!
//! All three read the same pages, one at a time, and keep the same number of pages: as many as ours
//! holds within the bound when it is full, its tables having taken their part. Ours is the whole
//! cache, over a file on a tmpfs and told that reads are random, so that a hit is the policy's and
//! not readahead's. Each turn begins with empty caches; the first part of a trace is not counted.
//!
//! | trace | pages | what it asks for |
//! |---|---|---|
//! | mix | zipf (θ = 0.99) over four times what is kept; scans of half of it between, as many reads | popular pages survive scans |
//! | loop | a tenth more than is kept, over and over | part of the loop stays; LRU has no hit at all |
//!
//! A ratio of both traces is the worse one. One hit is added to each count, so that a cache without
//! any can be divided by.

use foliocache::{Advice, Cache, File};
use std::fs;
use std::io;
use std::rc::Rc;

use super::{OURS, memory};
use crate::case::{Case, Contestant, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::{PAGE, PageBuf, whole};
use crate::place::Folder;
use crate::policy::{Lru, Policy, Quick};
use crate::settings::{Settings, Uses};
use crate::trace::{cycle, zipf_and_scan};

/// See the module.
pub(crate) struct HitRatio;

/// The file.
const FILE: &str = "data";

/// The file is so many times what is kept.
const FILE_PER_CAPACITY: u32 = 20;

/// Reads of a trace are so many times what is kept.
const READS_PER_CAPACITY: usize = 40;

const MIX: &str = "zipf and scans";
const LOOP: &str = "loop";

impl Case for HitRatio {
    fn name(&self) -> &'static str {
        "hitratio"
    }

    fn about(&self) -> &'static str {
        "hit ratios beside LRU and quick_cache, on zipf with scans and on a loop"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, memory) = if quick { (2, 16 << 20) } else { (5, 64 << 20) };
        Settings {
            samples,
            memory: Some(memory),
            ..Settings::default()
        }
    }

    fn uses(&self) -> Uses {
        Uses {
            memory: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let folder = Folder::in_memory(&settings.helper)?;
        let most = (memory / PAGE as u64) as u32;
        let made = || {
            // Without blocks: what is read does not matter here, and zeros cost no memory.
            let file = fs::File::create(folder.path().join(FILE))?;
            file.set_len(u64::from(most) * u64::from(FILE_PER_CAPACITY) * PAGE as u64)?;
            Ours::capacity(&folder, memory)
        };
        let capacity = made().map_err(|error| BenchError::setup("a file on a tmpfs", error))?;
        let bed = Rc::new(Bed {
            folder,
            memory,
            capacity,
        });
        let contestant = |(name, trace), variant, policy| Contestant {
            name,
            variant,
            work: Work::Pass {
                threads: 1,
                unit: "% hits",
                pass: Box::new(Reads {
                    bed: Rc::clone(&bed),
                    trace,
                    policy,
                    turns: 0,
                }),
            },
        };
        let policies: [(_, MakePolicy); 3] = [
            (OURS, Bed::ours),
            ("LRU", Bed::lru),
            ("quick_cache", Bed::quick),
        ];
        let traces: [(_, MakeTrace); 2] = [(MIX, Bed::mix), (LOOP, Bed::round)];
        let contestants = traces
            .into_iter()
            .flat_map(|trace| policies.map(|(variant, policy)| contestant(trace, variant, policy)));
        let worse = |name, mix: (usize, usize), round| {
            let mut plan = RatioPlan::new(name, mix.0, mix.1).at_least(1.0);
            plan.or = Some(round);
            plan
        };
        Ok(Plan {
            matches: vec![Match {
                contestants: contestants.collect(),
                ratios: vec![
                    worse("hit_ratio_vs_lru", (0, 1), (3, 4)),
                    RatioPlan::new("hit_ratio_vs_lru_mix", 0, 1),
                    RatioPlan::new("hit_ratio_vs_lru_loop", 3, 4),
                    worse("hit_ratio_vs_quick_cache", (0, 2), (3, 5)),
                    RatioPlan::new("hit_ratio_vs_quick_cache_mix", 0, 2),
                    RatioPlan::new("hit_ratio_vs_quick_cache_loop", 3, 5),
                ],
            }],
            place: None,
            notes: vec![format!(
                "all keep {capacity} pages, what ours holds within a bound of {most} pages"
            )],
        })
    }
}

/// What all passes share.
struct Bed {
    folder: Folder,
    memory: u64,
    /// Pages that are kept.
    capacity: u32,
}

type MakePolicy = fn(&Bed) -> io::Result<Box<dyn Policy>>;
type MakeTrace = fn(&Bed, u64) -> Vec<u32>;

impl Bed {
    fn ours(&self) -> io::Result<Box<dyn Policy>> {
        Ok(Box::new(Ours::new(&self.folder, self.memory)?))
    }

    fn lru(&self) -> io::Result<Box<dyn Policy>> {
        let pages = self.capacity * FILE_PER_CAPACITY;
        Ok(Box::new(Lru::new(self.capacity as usize, pages)))
    }

    fn quick(&self) -> io::Result<Box<dyn Policy>> {
        Ok(Box::new(Quick::new(self.capacity as usize)))
    }

    fn mix(&self, seed: u64) -> Vec<u32> {
        let (capacity, reads) = (self.capacity, self.reads());
        let end = FILE_PER_CAPACITY * capacity;
        zipf_and_scan(4 * capacity, end, capacity as usize / 2, reads, seed)
    }

    fn round(&self, _seed: u64) -> Vec<u32> {
        cycle(self.capacity + self.capacity / 10, self.reads())
    }

    fn reads(&self) -> usize {
        READS_PER_CAPACITY * self.capacity as usize
    }
}

/// A trace, read through a new cache each turn.
struct Reads {
    bed: Rc<Bed>,
    trace: MakeTrace,
    policy: MakePolicy,
    /// Turns so far, the seed of the next trace: those who are compared get the same ones.
    turns: u64,
}

impl Pass for Reads {
    fn run(&mut self) -> io::Result<Outcome> {
        let trace = (self.trace)(&self.bed, self.turns);
        self.turns += 1;
        let mut policy = (self.policy)(&self.bed)?;
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
                most = most.max(ours.file.stats()?.resident);
            }
        }
        Ok(most as u32)
    }
}

impl Policy for Ours {
    fn read(&mut self, page: u32) -> io::Result<bool> {
        let pos = u64::from(page) * PAGE as u64;
        whole(self.file.read_at(&mut self.page.0, pos)?, PAGE)?;
        let misses = self.file.stats()?.misses;
        let hit = misses == self.misses;
        self.misses = misses;
        Ok(hit)
    }
}
