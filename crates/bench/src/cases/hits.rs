//! Reads at random of the first 16 KiB to 1 GiB of a cached file: what a hit costs when memory is far away.
//!
//! # Model
//!
//! Reads of 64 bytes and of 4 KiB by one thread, at places at random: ours, the kernel's pread(2), and a copy out of its
//! mapping, all of one file on the disk with random bytes, all of it in memory. A small set is in the processor's caches
//! with all that leads to it; a large one is not: there each read waits for the bytes, and ours for its descriptors, too,
//! where the kernel's call waits for its own and a mapping for page tables.
//!
//! Ours is with default settings but for the bound, which holds two such files. One was read from front to back, so its
//! folios are large; the other page by page at random, so that each page has a folio of its own. `--memory` is the
//! largest set.

use std::rc::Rc;
use std::sync::Arc;

use foliocache::File;

use super::{KERNEL, KERNEL_MMAP, OURS, memory};
use crate::cached::{Folios, Hits as RandomReads, How, kernels, read_in};
use crate::case::{Case, Match, Plan, RatioPlan, Work, Worker};
use crate::error::BenchError;
use crate::files::PAGE;
use crate::host::processor_cache;
use crate::place::Place;
use crate::settings::{Settings, Uses};

/// See the module.
pub(crate) struct Hits;

const OURS_PAGES: &str = "foliocache, folios of 4 KiB";

/// Files: one has large folios, the other those of a page.
const LARGE: &str = "large";
const PAGES: &str = "pages";

/// A working set, what its rows and ratios are called.
struct Set {
    bytes: u64,
    /// Of 64 bytes, and of 4 KiB.
    reads: [Names; 2],
}

struct Names {
    len: usize,
    row: &'static str,
    vs_pread: &'static str,
    vs_mmap: &'static str,
    pages_vs_pread: &'static str,
}

macro_rules! set {
    ($bytes:expr, $size:literal, $id:literal) => {
        Set {
            bytes: $bytes,
            reads: [
                Names {
                    len: 64,
                    row: concat!("read 64 B of ", $size),
                    vs_pread: concat!("hit64_vs_pread_", $id),
                    vs_mmap: concat!("hit64_vs_mmap_", $id),
                    pages_vs_pread: concat!("hit64_pages_vs_pread_", $id),
                },
                Names {
                    len: PAGE,
                    row: concat!("read 4 KiB of ", $size),
                    vs_pread: concat!("hit4k_vs_pread_", $id),
                    vs_mmap: concat!("hit4k_vs_mmap_", $id),
                    pages_vs_pread: concat!("hit4k_pages_vs_pread_", $id),
                },
            ],
        }
    };
}

static SETS: [Set; 5] = [
    set!(16 << 10, "16 KiB", "16k"),
    set!(256 << 10, "256 KiB", "256k"),
    set!(4 << 20, "4 MiB", "4m"),
    set!(64 << 20, "64 MiB", "64m"),
    set!(1 << 30, "1 GiB", "1g"),
];

impl Case for Hits {
    fn name(&self) -> &'static str {
        "hits"
    }

    fn about(&self) -> &'static str {
        "random reads of cached data in working sets of 16 KiB to 1 GiB"
    }

    fn settings(&self, quick: bool) -> Settings {
        let settings = if quick {
            Settings {
                memory: Some(64 << 20),
                ..Settings::quick()
            }
        } else {
            Settings {
                memory: Some(1 << 30),
                ..Settings::default()
            }
        };
        Settings {
            threads: 1,
            ..settings
        }
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 35 } else { 320 }
    }

    fn uses(&self) -> Uses {
        Uses::FILES
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let len = memory(settings, self)?;
        let bound = 2 * (len + len / 8) + (64 << 20);
        let place = Place::on_disk(settings, bound, 2 * len)?;
        let mut plan = Plan {
            place: Some(place.describe()),
            notes: vec![
                format!(
                    "the processor's largest cache: {}; our bound: {} MiB",
                    processor_cache(),
                    bound >> 20
                ),
                "the file with folios of 4 KiB was told that reads are at random".to_owned(),
            ],
            ..Plan::default()
        };
        let read_in = |name, folios| {
            place.make(name, len)?;
            let file = place.ours(name);
            read_in(
                file.map_err(|error| BenchError::setup(name, error))?,
                len,
                folios,
            )
        };
        let large = read_in(LARGE, Folios::Large)?;
        let pages = read_in(PAGES, Folios::SinglePages)?;
        let place = Rc::new(place);
        for set in SETS.iter().filter(|set| set.bytes <= len) {
            for names in &set.reads {
                let one = reads(&place, names, set.bytes, &large, &pages)?;
                plan.matches.push(one);
            }
        }
        Ok(plan)
    }
}

fn reads(
    place: &Rc<Place>,
    names: &Names,
    within: u64,
    large: &Arc<File>,
    pages: &Arc<File>,
) -> Result<Match, BenchError> {
    let (file, mapping) = kernels(&place.path(LARGE), within)?;
    let mut one = Match::default();
    let mut add = |variant, how| {
        let reads = RandomReads::new(how, names.len, within);
        let worker: Box<dyn Worker> = Box::new(reads);
        one.add(names.row, variant, Work::Operations(vec![worker]))
    };
    let ours = add(OURS, How::OneByOne(Arc::clone(large)));
    let pages = add(OURS_PAGES, How::OneByOne(Arc::clone(pages)));
    let pread = add(KERNEL, How::Pread(file));
    let mmap = add(KERNEL_MMAP, How::Mapping(mapping));
    one.ratios = vec![
        RatioPlan::new(names.vs_pread, ours, pread),
        RatioPlan::new(names.vs_mmap, ours, mmap),
        RatioPlan::new(names.pages_vs_pread, pages, pread),
    ];
    Ok(one)
}
