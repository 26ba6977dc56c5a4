//! Random reads through a mapping of a file four times the memory bound; a part of [`fault`](super::fault).
//!
//! # Model
//!
//! Threads read 64 bytes at a time of random pages, uniformly or by popularity (zipf, θ = 0.99), of a file four
//! times the bound, on the disk and on a compressed disk in memory. Ours are mappings of caches with that bound,
//! one for each way to resolve faults, without advice. The kernel's side is a process in a memory cgroup of the
//! bound's size, with its default advice (a miss reads around, as far as the device's `read_ahead_kb` says) and
//! with `MADV_RANDOM` (a miss reads its page). All read the same traces, each from a separate file that no cache
//! had, and keep their caches from turn to turn; before the first turn each has read twice as many pages as the
//! file has, or for ten times the length of a turn.
//!
//! The kernel's hits are the reads that were no major fault; ours, those that read no page. Ratios with the kernel are
//! those of the inline mode.

use foliocache::{MapAccess, MappingFaults};
use std::iter::repeat_with;

use super::fault::can_map;
use crate::cases::prelude::*;
use crate::readers::{Mappings, Reader, Set, Way};
use crate::reads::{Read, Shape, Source, Trace, Until};

/// Bytes of a read.
const READ: usize = 64;

/// Of all traces.
const SEED: u64 = 43;

/// A separate file for each side, so that neither finds the other's pages in a cache.
const FILE_DEFAULT: &str = "data-of-the-kernels";
const FILE_RANDOM: &str = "data-advised";
const FILE_OURS: &str = "data";

/// Adds the matches, and notes about those left out.
pub(super) fn plan(settings: &Settings, plan: &mut Plan) -> Result<(), BenchError> {
    plan.notes.push(
        "mappings of ours are of directories opened read-only, since their caches are several"
            .to_owned(),
    );
    let len = 3 * FILE_PER_MEMORY * settings.bound()?;
    on_disk_and_zram(plan, settings, [len; 2], |place, at, plan| {
        if let Some(kib) = place.read_ahead().filter(|_| !at.zram) {
            let note =
                format!("the kernel's default on the disk: it reads {kib} KiB around a miss");
            plan.notes.push(note);
        }
        matches(place, settings, at, plan)
    })
}

fn matches(place: &Place, settings: &Settings, at: At, plan: &mut Plan) -> Result<(), BenchError> {
    let (memory, threads) = (settings.bound()?, settings.threads);
    let len = FILE_PER_MEMORY * memory;
    for name in [FILE_DEFAULT, FILE_RANDOM, FILE_OURS] {
        place.make(name, len)?;
    }
    for (shape, of, id) in [
        (Shape::Uniform, "uniform", "map_random"),
        (Shape::Zipf, "zipf", "map_zipf"),
    ] {
        let trace = Trace {
            zipf: shape == Shape::Zipf,
            ..Trace::new(threads, len, SEED)
        };
        let warm_up = Some(Until {
            seconds: 10.0 * settings.seconds,
            reads: 2 * u64::from(trace.pages),
        });
        let mut sources = Vec::new();
        for (variant, file, advised) in [
            (KERNEL_DEFAULT, FILE_DEFAULT, false),
            (KERNEL_RANDOM, FILE_RANDOM, true),
        ] {
            let side = KernelSide::start(&settings.helper, place.guard(), memory, Some(trace))?;
            let side = Rc::new(RefCell::new(side));
            let of = (Set::one(place.path(file)), Way::Mapping { advised });
            sources.push((variant, Source::kernel(threads, warm_up, &side, of)));
        }
        for (variant, faults) in [
            (INLINE, MappingFaults::Inline),
            (THREAD, MappingFaults::Thread),
        ] {
            if can_map(faults).is_ok() {
                let (file, mapping) = set_up(variant, || {
                    let file = place.of_own_cache(FILE_OURS, memory, faults)?;
                    let mapping = file.map(.., MapAccess::Read)?;
                    Ok::<_, io::Error>((file, Arc::new(mapping)))
                })?;
                let reader = || {
                    let files = vec![Arc::clone(&mapping)];
                    let each = u64::MAX;
                    Box::new(Mappings { files, each }) as Box<dyn Reader>
                };
                let readers = repeat_with(reader).take(threads).collect();
                let missed = move || Ok(file.stats()?.missed_pages);
                let source = Source::here(&trace, warm_up, readers, missed);
                sources.push((variant, source));
            }
        }
        let mut one = at.new_match();
        for (variant, source) in sources {
            let read = Read::new(shape, READ, settings.seconds);
            one.add(&format!("read 64 B, {of}"), variant, source.work(read));
        }
        ratios! { one;
            format!("{id}_kernel_advice") => KERNEL_RANDOM / KERNEL_DEFAULT;
            format!("{id}_vs_kernel_mmap") => INLINE / KERNEL_DEFAULT, at_least(3.0);
            format!("{id}_vs_madv_random") => INLINE / KERNEL_RANDOM, at_least(at.pick(0.75, 0.4));
            format!("{id}_p99_vs_madv_random") => INLINE / KERNEL_RANDOM, of_p99(), at_most(at.pick(Some(1.5), None));
            format!("{id}_thread_vs_inline") => THREAD / INLINE;
        }
        plan.matches.push(one);
    }
    Ok(())
}
