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
//! | database | look-ups in a b-tree, zipf by key, and scans of ranges with their rows; six times what is kept | the upper pages and popular rows survive scans |
//! | web | objects of one to eight pages, zipf, of which ever others become popular; six times what is kept | what was popular goes |
//! | build | sources read once, headers by zipf, objects written and all of them read; three times what is kept | headers stay |
//! | given | those of a file (`--trace`), alone: an access a line, the number of a page, or that of the first and how many | |
//!
//! One hit is added to each count, so that a cache without
//! any can be divided by.

use foliocache::{Advice, Cache, File};
use std::fs;
use std::io::{self, BufReader};
use std::path::Path;
use std::rc::Rc;

use super::{OURS, memory};
use crate::case::{Case, Match, Outcome, Pass, Plan, RatioPlan, Work};
use crate::error::BenchError;
use crate::files::{PAGE, PageBuf, whole};
use crate::place::Folder;
use crate::policy::{Lru, Policy, Quick};
use crate::settings::{Settings, Uses};
use crate::trace::{Given, build, cycle, database, web, zipf_and_scan};

/// See the module.
pub(crate) struct HitRatio;

/// The file.
const FILE: &str = "data";

/// The file is so many times what is kept.
const FILE_PER_CAPACITY: u32 = 20;

/// Reads of a trace are so many times what is kept.
const READS_PER_CAPACITY: usize = 40;

/// A trace: what its rows and ratios are called, and what makes it.
struct Named {
    name: &'static str,
    vs_lru: &'static str,
    vs_quick_cache: &'static str,
    make: MakeTrace,
}

/// Those that are made.
const TRACES: [Named; 5] = [
    Named {
        name: "zipf and scans",
        vs_lru: "hit_ratio_vs_lru_mix",
        vs_quick_cache: "hit_ratio_vs_quick_cache_mix",
        make: Bed::mix,
    },
    Named {
        name: "loop",
        vs_lru: "hit_ratio_vs_lru_loop",
        vs_quick_cache: "hit_ratio_vs_quick_cache_loop",
        make: |bed, _| cycle(bed.capacity + bed.capacity / 10, bed.reads()),
    },
    Named {
        name: "database",
        vs_lru: "hit_ratio_vs_lru_database",
        vs_quick_cache: "hit_ratio_vs_quick_cache_database",
        make: |bed, seed| database(6 * bed.capacity, bed.reads(), seed),
    },
    Named {
        name: "web",
        vs_lru: "hit_ratio_vs_lru_web",
        vs_quick_cache: "hit_ratio_vs_quick_cache_web",
        make: |bed, seed| web(6 * bed.capacity, bed.reads(), seed),
    },
    Named {
        name: "build",
        vs_lru: "hit_ratio_vs_lru_build",
        vs_quick_cache: "hit_ratio_vs_quick_cache_build",
        make: |bed, seed| build(3 * bed.capacity, bed.reads(), seed),
    },
];

/// The one that is given.
const GIVEN: Named = Named {
    name: "given trace",
    vs_lru: "hit_ratio_vs_lru_given",
    vs_quick_cache: "hit_ratio_vs_quick_cache_given",
    make: |bed, _| {
        bed.given
            .as_ref()
            .map_or(Vec::new(), |given| given.accesses.clone())
    },
};

impl Case for HitRatio {
    fn name(&self) -> &'static str {
        "hitratio"
    }

    fn about(&self) -> &'static str {
        "hit ratios beside LRU and quick_cache, on five traces or on one that is given"
    }

    fn settings(&self, quick: bool) -> Settings {
        let (samples, memory) = if quick { (2, 16 << 20) } else { (4, 64 << 20) };
        Settings {
            samples,
            memory: Some(memory),
            ..Settings::default()
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 10 } else { 60 }
    }

    fn uses(&self) -> Uses {
        Uses {
            memory: true,
            trace: true,
            ..Uses::NONE
        }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let memory = memory(settings, self)?;
        let given = settings.trace.as_deref().map(given).transpose()?;
        let folder = Folder::in_memory(&settings.helper)?;
        let most = (memory / PAGE as u64) as u32;
        let pages = (most * FILE_PER_CAPACITY).max(given.as_ref().map_or(0, |given| given.pages));
        let made = || {
            // Without blocks: what is read does not matter here, and zeros cost no memory.
            let file = fs::File::create(folder.path().join(FILE))?;
            file.set_len(u64::from(pages) * PAGE as u64)?;
            Ours::capacity(&folder, memory)
        };
        let capacity = made().map_err(|error| BenchError::setup("a file on a tmpfs", error))?;
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
        let traces: &[Named] = if given.is_some() { &[GIVEN] } else { &TRACES };
        let bed = Rc::new(Bed {
            folder,
            memory,
            capacity,
            pages,
            given,
        });
        let policies: [(_, MakePolicy); 3] = [
            (OURS, Bed::ours),
            ("LRU", Bed::lru),
            ("quick_cache", Bed::quick),
        ];
        let mut one = Match {
            exact: true,
            ..Match::default()
        };
        for trace in traces {
            let [ours, lru, quick] = policies.map(|(variant, policy)| {
                let reads = Reads {
                    bed: Rc::clone(&bed),
                    trace: trace.make,
                    policy,
                    turns: 0,
                };
                one.add(trace.name, variant, Work::pass(1, "% hits", reads))
            });
            let vs = |name, to| RatioPlan::new(name, ours, to).at_least(1.0);
            one.ratios.push(vs(trace.vs_lru, lru));
            one.ratios.push(vs(trace.vs_quick_cache, quick));
        }
        Ok(Plan {
            matches: vec![one],
            place: None,
            notes,
        })
    }
}

/// The trace of a file.
fn given(path: &Path) -> Result<Given, BenchError> {
    let refused = |why: String| BenchError::Refused(format!("{}: {why}", path.display()));
    let file = fs::File::open(path).map_err(|error| refused(error.to_string()))?;
    Given::read(BufReader::new(file)).map_err(refused)
}

/// What all passes share.
struct Bed {
    folder: Folder,
    memory: u64,
    /// Pages that are kept.
    capacity: u32,
    /// Pages of the file.
    pages: u32,
    given: Option<Given>,
}

type MakePolicy = fn(&Bed) -> io::Result<Box<dyn Policy>>;
type MakeTrace = fn(&Bed, u64) -> Vec<u32>;

impl Bed {
    fn ours(&self) -> io::Result<Box<dyn Policy>> {
        Ok(Box::new(Ours::new(&self.folder, self.memory)?))
    }

    fn lru(&self) -> io::Result<Box<dyn Policy>> {
        Ok(Box::new(Lru::new(self.capacity as usize, self.pages)))
    }

    fn quick(&self) -> io::Result<Box<dyn Policy>> {
        Ok(Box::new(Quick::new(self.capacity as usize)))
    }

    fn mix(&self, seed: u64) -> Vec<u32> {
        let (capacity, reads) = (self.capacity, self.reads());
        let end = FILE_PER_CAPACITY * capacity;
        zipf_and_scan(4 * capacity, end, capacity as usize / 2, reads, seed)
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
