//! Reads of 8 bytes to 4 KiB at random places, one by one and many in one call: of a file that is cached, and of
//! one four times the memory bound.
//!
//! # Model
//!
//! *Hits*: a file four times the bound, completely in a cache that holds it, read in from front to back, so that
//! its folios are large; for 64 bytes also read in page by page at random, so that each page has a separate folio.
//! Ours one by one, in batches of 8 and of 64; the kernel's, of the same file in its page cache: pread(2), a loop
//! over a mapping, and an io_uring, 64 reads at once. Pages of 4 KiB are also viewed one by one, and copied out of
//! the view as they are out of the mapping. All read the same places, one thread each. They are not in a list,
//! which would pull itself and its targets into the processor's caches. The [floor](crate::floor) reads the same
//! bytes in groups, with an index and descriptors of its own and no check.
//!
//! *Misses*: a cache of the bound's size. Ours one by one and in batches of 64; the kernel's are processes in
//! memory cgroups of that size: pread, a mapping with `MADV_RANDOM`, and an io_uring, 64 reads submitted at once
//! and all waited for, through the kernel's cache and past it (`O_DIRECT`, which reads whole pages and keeps none).
//! The ratio is with the better of the rings. All have the same trace and keep their caches from turn to turn, also
//! when the length of the reads changes; before the first turn each has read twice as many pages as the file has,
//! or for twenty times the length of a turn. Latencies are those of a batch.

use foliocache::{File, MappingFaults};

use crate::cached::{Folios, hits as worker, kernels, read_in};
use crate::cases::prelude::*;
use crate::floor::Floor;
use crate::host::processor_cache;
use crate::readers::{MANY, Ours, Rings, Set, Views, Way};
use crate::reads::{Read, Shape, Source, Trace, Until};

/// Requests of a small batch.
const FEW: usize = 8;

const OURS_FEW: &str = "foliocache, batches of 8";
const OURS_MANY: &str = "foliocache, batches of 64";
const VIEWS: &str = "foliocache views";
const FLOOR: &str = "floor: index, descriptor, copy";
const PREAD: &str = "kernel pread";
const RING: &str = "kernel io_uring, 64 at once";
const RING_BUFFERED: &str = "kernel io_uring, 64 at once, cgroup";
const RING_DIRECT: &str = "kernel io_uring, 64 at once, O_DIRECT";

const FILE_HITS: &str = "cached";
const FILE_OURS: &str = "data";
const FILE_PREAD: &str = "data-of-pread";
const FILE_MMAP: &str = "data-mapped";
const FILE_RING: &str = "data-of-the-ring";

const SEED: u64 = 44;

/// Lengths of reads: bytes, row, and suffix of the ratios.
const SIZES: [(usize, &str, &str); 4] = [
    (8, "read 8 B", "_8"),
    (64, "read 64 B", ""),
    (1024, "read 1 KiB", "_1k"),
    (PAGE, "read 4 KiB", "_4k"),
];

/// Ways of the kernel's: variant, file.
const WAYS: [(Way, &str, &str); 4] = [
    (Way::Ring { direct: false }, RING_BUFFERED, FILE_RING),
    (Way::Ring { direct: true }, RING_DIRECT, FILE_RING),
    (Way::Pread, BUFFERED, FILE_PREAD),
    (Way::Mapping { advised: true }, KERNEL_RANDOM, FILE_MMAP),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    let len = FILE_PER_MEMORY * memory;
    let files = [FILE_HITS, FILE_OURS, FILE_PREAD, FILE_MMAP, FILE_RING];
    let place = Place::on_disk(settings, memory, files.len() as u64 * len)?;
    for name in files {
        place.make(name, len)?;
    }
    let trace = Trace::new(1, len, SEED);
    let start = || KernelSide::start(&settings.helper, place.guard(), memory, Some(trace));
    let sides = WAYS.map(|_| start().map(|side| Rc::new(RefCell::new(side))));
    let cached = |folios| {
        let bound = len + len / 8 + (64 << 20);
        let file = place.of_own_cache(FILE_HITS, bound, MappingFaults::default());
        read_in(file.setting_up(FILE_HITS)?, len, folios)
    };
    let mut matches = Vec::new();
    let large = cached(Folios::Large)?;
    for (size, name, suffix) in SIZES {
        let row = format!("{name}, hit");
        matches.push(hits(&place, &large, len, (&row, size, suffix))?);
    }
    let (single, row) = (
        cached(Folios::SinglePages)?,
        "read 64 B, hit, folios of 4 KiB",
    );
    matches.push(hits(&place, &single, len, (row, 64, "_pages"))?);

    let warm_up = Some(Until {
        seconds: 20.0 * settings.seconds,
        reads: 2 * u64::from(trace.pages),
    });
    let mut sources = Vec::new();
    for (variant, at_once) in [(OURS_MANY, MANY), (OURS, 1)] {
        let file = place.of_own_cache(FILE_OURS, memory, MappingFaults::default());
        let file = Arc::new(file.setting_up(FILE_OURS)?);
        let readers = vec![Box::new(Ours::new(&file, at_once)) as _];
        let missed = move || Ok(file.stats()?.missed_pages);
        let source = Source::here(&trace, warm_up, readers, missed);
        sources.push((variant, at_once, source));
    }
    for ((way, variant, file), side) in WAYS.into_iter().zip(sides) {
        let at_once = if matches!(way, Way::Ring { .. }) {
            MANY
        } else {
            1
        };
        let of = (Set::one(place.path(file)), way);
        let source = Source::kernel(1, warm_up, &side?, of);
        sources.push((variant, at_once, source));
    }
    for (size, name, suffix) in SIZES {
        let mut one = Match::default();
        for (variant, at_once, source) in &sources {
            let read = Read {
                at_once: *at_once,
                ..Read::new(Shape::Uniform, size, settings.seconds)
            };
            one.add(name, variant, source.work(read));
        }
        let least = (size == 64).then_some(0.95);
        ratios! { one;
            format!("batch64_cold_vs_io_uring{suffix}") => 0 / 2, or(0, 3), at_least(least);
            format!("batch64_cold_vs_single{suffix}") => OURS_MANY / OURS;
        }
        matches.push(one);
    }
    Ok(Plan {
        matches,
        place: Some(place.describe()),
        holds: vec![Rc::new(place)],
        notes: vec![
            format!(
                "hits are in a file of {} MiB; the processor's largest cache: {}",
                len >> 20,
                processor_cache()
            ),
            "ours opens the directory read-only, since its caches are several".to_owned(),
        ],
    })
}

/// Reads of a cached file; row, bytes, and suffix of the ratios.
fn hits(
    place: &Place,
    file: &Arc<File>,
    len: u64,
    (name, size, suffix): (&str, usize, &str),
) -> Result<Match, BenchError> {
    let path = place.path(FILE_HITS);
    let (pread, mapping) = kernels(&path, len)?;
    let ring = Rings::cached(Set::one(path));
    let ours = |at_once| worker(Ours::new(file, at_once), size, len);
    let mut one = Match::default();
    one.operations(name, OURS_MANY, ours(MANY));
    one.operations(name, OURS, ours(1));
    one.operations(name, OURS_FEW, ours(FEW));
    one.operations(name, PREAD, worker(pread, size, len));
    one.operations(name, KERNEL_MMAP, worker(mapping, size, len));
    one.operations(name, RING, worker(ring, size, len));
    one.operations(name, FLOOR, worker(Floor::of(file, len)?, size, len));
    if size == PAGE {
        one.operations(name, VIEWS, worker(Views(Arc::clone(file)), size, len));
    }
    let aims = [
        (size == 64).then_some(2.5),
        suffix.is_empty().then_some(0.6),
    ];
    ratios! { one;
        format!("batch64_hit_vs_single{suffix}") => OURS_MANY / OURS, at_least(aims[0]);
        format!("batch64_hit_vs_mmap{suffix}") => OURS_MANY / KERNEL_MMAP, at_least(aims[1]);
        format!("batch64_hit_vs_floor{suffix}") => OURS_MANY / FLOOR, at_least(0.9);
        format!("batch8_hit_vs_single{suffix}") => OURS_FEW / OURS;
        format!("view_hit_vs_mmap{suffix}") => VIEWS / KERNEL_MMAP;
    }
    Ok(one)
}
