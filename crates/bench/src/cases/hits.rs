//! Random reads of the first 16 KiB to 1 GiB of a cached file: the cost of a hit when memory is far
//! away.
//!
//! # Model
//!
//! One thread reads 64 bytes and 4 KiB at random places: ours, the kernel's pread(2), and a copy out of its
//! mapping, all of one file on the disk with random bytes, completely in memory. A small set is in the processor's
//! caches with all its metadata. In a large one each read waits for the bytes, and besides ours for its
//! descriptors, the kernel's call for its own, and a mapping for page tables.
//!
//! Ours has default settings except for the bound, which holds two such files. One was read from front to back, so
//! its folios are large; the other page by page at random, so each page has a separate folio. `--memory` is the
//! largest set.

use crate::cached::{Folios, hits, kernels, read_in};
use crate::cases::prelude::*;
use crate::host::processor_cache;
use crate::readers::Ours;

const OURS_PAGES: &str = "foliocache, folios of 4 KiB";

/// Files: one has large folios, the other those of a page.
const LARGE: &str = "large";
const PAGES: &str = "pages";

/// Working sets: bytes, row, suffix of the ratios.
const SETS: [(u64, &str, &str); 5] = [
    (16 << 10, "16 KiB", "16k"),
    (256 << 10, "256 KiB", "256k"),
    (4 << 20, "4 MiB", "4m"),
    (64 << 20, "64 MiB", "64m"),
    (1 << 30, "1 GiB", "1g"),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let len = settings.bound()?;
    let bound = 2 * (len + len / 8) + (64 << 20);
    let place = Place::on_disk(settings, bound, 2 * len)?;
    let read_in = |name, folios| {
        place.make(name, len)?;
        read_in(place.ours(name).setting_up(name)?, len, folios)
    };
    let large = read_in(LARGE, Folios::Large)?;
    let pages = read_in(PAGES, Folios::SinglePages)?;
    let mut matches = Vec::new();
    for (within, of, id) in SETS.into_iter().filter(|(within, ..)| *within <= len) {
        for (size, bytes, what) in [("64 B", 64, "hit64"), ("4 KiB", PAGE, "hit4k")] {
            let (pread, mapping) = kernels(&place.path(LARGE), within)?;
            let (mut one, row) = (Match::default(), format!("read {size} of {of}"));
            one.operations(&row, OURS, hits(Ours::new(&large, 1), bytes, within));
            one.operations(&row, OURS_PAGES, hits(Ours::new(&pages, 1), bytes, within));
            one.operations(&row, KERNEL, hits(pread, bytes, within));
            one.operations(&row, KERNEL_MMAP, hits(mapping, bytes, within));
            ratios! { one;
                format!("{what}_vs_pread_{id}") => OURS / KERNEL;
                format!("{what}_vs_mmap_{id}") => OURS / KERNEL_MMAP;
                format!("{what}_pages_vs_pread_{id}") => OURS_PAGES / KERNEL;
            }
            matches.push(one);
        }
    }
    let description = place.describe();
    let mut plan = Plan::at(matches, place, description);
    plan.notes = vec![
        format!(
            "the processor's largest cache: {}; our bound: {} MiB",
            processor_cache(),
            bound >> 20
        ),
        "the file with folios of 4 KiB was told that reads are at random".to_owned(),
    ];
    Ok(plan)
}
