//! Overwrites of one page: 4 KiB at offset 0, each thread in a file of its own.
//!
//! # Model
//!
//! The loop of will-it-scale's pwrite1, on memfs and on tmpfs. The buffer is on a page boundary for
//! both.
//!
//! Ours against the kernel's by one thread, and by several; and ours against ours with the source
//! faulted in before the call, which is the older order. For that alone the cache has fault handlers, which it has not by
//! default: to fault a source in is one access a page then, as it is in the kernel; without, it is a system call, and
//! the older order would look far worse than it was. Writes of 4, 8 and 16 KiB beside the bare copy of the same bytes show
//! what is around the copy.

use foliocache_sys::usercopy;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{KERNEL, OURS};
use crate::case::{Case, Contestant, Match, Plan, RatioPlan, Work, Worker, repeat};
use crate::copies::{Call, beside_copy};
use crate::error::BenchError;
use crate::files::{Ours, PAGE, PageBuf, kernel_file, whole};
use crate::ratio::Target;
use crate::settings::Settings;

/// See the module.
pub(crate) struct Pwrite;

const NAME: &str = "pwrite 4 KiB";

/// Writes beside their copies: name, ratio, what it is to reach, and pages.
const BESIDE_COPY: [(&str, &str, f64, usize); 3] = [
    (NAME, "pwrite_vs_copy", 0.8, 1),
    ("pwrite 8 KiB", "pwrite8k_vs_copy", 0.7, 2),
    ("pwrite 16 KiB", "pwrite16k_vs_copy", 0.7, 4),
];

impl Case for Pwrite {
    fn name(&self) -> &'static str {
        "pwrite"
    }

    fn about(&self) -> &'static str {
        "overwrites of 4 KiB at offset 0 of a file in memory, as will-it-scale's pwrite1"
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 10 } else { 80 }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let files = Ours::new()?;
        let mut matches = vec![
            against_kernel(&files, 1, "pwrite_vs_kernel", Some(Target::AtLeast(6.0)))?,
            order_of_faulting_in()?,
        ];
        for (name, ratio, least, pages) in BESIDE_COPY {
            let row = (name, ratio, least);
            matches.push(beside_copy(&files, row, Call::Write, pages * PAGE)?);
        }
        if settings.threads > 1 {
            let name = "pwrite_threads_vs_kernel";
            matches.push(against_kernel(&files, settings.threads, name, None)?);
        }
        Ok(Plan {
            matches,
            ..Plan::default()
        })
    }
}

fn against_kernel(
    files: &Ours,
    threads: usize,
    name: &'static str,
    target: Option<Target>,
) -> Result<Match, BenchError> {
    let each = || 0..threads;
    let ours: Result<_, BenchError> = each()
        .map(|thread| Ok(ours(files.file(&format!("{name}-{thread}"))?)))
        .collect();
    let kernel: Result<_, BenchError> = each()
        .map(|thread| Ok(kernel(kernel_file(&format!("{name}-{thread}"))?)))
        .collect();
    Ok(Match {
        contestants: vec![contestant(OURS, ours?), contestant(KERNEL, kernel?)],
        ratios: vec![RatioPlan {
            target,
            ..RatioPlan::new(name, 0, 1)
        }],
        ..Match::default()
    })
}

fn order_of_faulting_in() -> Result<Match, BenchError> {
    let files = Ours::with_fault_handlers()?;
    let file = files.file("order-of-faulting-in")?;
    Ok(Match {
        contestants: vec![
            contestant("foliocache, handlers", vec![ours(Arc::clone(&file))]),
            contestant("foliocache, handlers, prefault", vec![prefault(file)]),
        ],
        ratios: vec![RatioPlan {
            target: Some(Target::NotWorse),
            ..RatioPlan::new("pwrite_noprefault_vs_prefault", 0, 1)
        }],
        ..Match::default()
    })
}

fn contestant(variant: &'static str, workers: Vec<Box<dyn Worker>>) -> Contestant {
    Contestant {
        name: NAME,
        variant,
        work: Work::Operations(workers),
    }
}

fn ours(file: Arc<foliocache::File>) -> Box<dyn Worker> {
    let page = PageBuf::new();
    repeat(move || whole(file.write_at(&page.0, 0).map_err(io::Error::from)?, PAGE))
}

fn prefault(file: Arc<foliocache::File>) -> Box<dyn Worker> {
    let page = PageBuf::new();
    repeat(move || {
        usercopy::fault_in_readable(page.0.as_ptr(), PAGE);
        whole(file.write_at(&page.0, 0).map_err(io::Error::from)?, PAGE)
    })
}

fn kernel(file: Arc<fs::File>) -> Box<dyn Worker> {
    let page = PageBuf::new();
    repeat(move || whole(file.write_at(&page.0, 0)?, PAGE))
}
