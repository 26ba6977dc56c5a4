//! Reads of one cached page: 4 KiB and 64 bytes at offset 0, and all threads the same page.
//!
//! # Model
//!
//! The loop of will-it-scale's pread1, on memfs and on tmpfs, and the same with 64 bytes, where
//! the copy is nothing and the way to it all; beside them a copy out of the kernel's mapping. Buffers are on a page
//! boundary for all. One page is in the processor's nearest cache: [`hits`](super::hits) reads more.
//!
//! Scaling: one page read by several threads, over the same by one, divided by what a bare copy of
//! the page gains by so many threads. Whatever the readers write that others share shows there;
//! processors that share a core do not, since the copies share it too. So for two threads that read at
//! places of their own through one handle. Crowd: four threads for each processor, over one for each. The threads of a crowd
//! share what there is one of for each processor.
//!
//! Reads of 4, 8 and 16 KiB beside the bare copy of the same bytes show what is around the copy.

use std::fs;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;

use super::{KERNEL, KERNEL_MMAP, OURS};
use crate::case::{Case, Contestant, Match, Plan, RatioPlan, Work, Worker, repeat};
use crate::copies::{Call, beside_copy, shared_handle};
use crate::error::BenchError;
use crate::files::{Ours, PAGE, PageBuf, kernel_file, whole};
use crate::mapped::{Kernels, copy};
use crate::settings::Settings;

/// See the module.
pub(crate) struct Pread;

/// Reads beside their copies: name, ratio, what it is to reach, and pages.
const BESIDE_COPY: [(&str, &str, f64, usize); 3] = [
    ("pread 4 KiB", "pread4k_vs_copy", 0.9, 1),
    ("pread 8 KiB", "pread8k_vs_copy", 0.7, 2),
    ("pread 16 KiB", "pread16k_vs_copy", 0.7, 4),
];

/// Crowds that read one page: name, ratio, what it is to reach, and bytes of a read.
const CROWDS: [(&str, &str, f64, usize); 2] = [
    ("pread 4 KiB, crowd", "pread4k_crowd_vs_threads", 0.7, PAGE),
    ("pread 64 B, crowd", "pread64_crowd_vs_threads", 0.5, 64),
];

impl Case for Pread {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn about(&self) -> &'static str {
        "reads of 4 KiB and 64 bytes at offset 0 of a file in memory, and of one page by all threads"
    }

    fn takes(&self, quick: bool) -> u32 {
        if quick { 20 } else { 140 }
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let files = Ours::new()?;
        let mut matches = vec![
            against_kernel(
                &files,
                ("pread 4 KiB", PAGE),
                RatioPlan::new("pread4k_vs_kernel", 0, 1).at_least(5.0),
                "pread4k_vs_mmap",
            )?,
            against_kernel(
                &files,
                ("pread 64 B", 64),
                RatioPlan::new("pread64_vs_kernel", 0, 1).at_least(10.0),
                "pread64_vs_mmap",
            )?,
        ];
        for (name, ratio, least, pages) in BESIDE_COPY {
            let row = (name, ratio, least);
            matches.push(beside_copy(&files, row, Call::Read, pages * PAGE)?);
        }
        if settings.threads > 1 {
            matches.push(scaling(&files, settings.threads)?);
            let processors = thread::available_parallelism().map_or(1, usize::from);
            let threads = settings.threads.max(processors);
            for (name, ratio, least, len) in CROWDS {
                matches.push(crowd(&files, (name, ratio, least), len, threads)?);
            }
            let row = ("pread 4 KiB, one handle", "shared_handle_scaling_2t");
            matches.push(shared_handle(&files, row, PAGE)?);
        }
        Ok(Plan {
            matches,
            ..Plan::default()
        })
    }
}

/// Beside the kernel's call, and a copy out of its mapping of the same file.
fn against_kernel(
    files: &Ours,
    (name, len): (&'static str, usize),
    vs_kernel: RatioPlan,
    vs_mmap: &'static str,
) -> Result<Match, BenchError> {
    let file = kernel_file(name)?;
    let mapping =
        Kernels::new(&file, PAGE).map_err(|error| BenchError::setup(KERNEL_MMAP, error))?;
    let mut one = Match::default();
    let mut add = |variant, worker| one.add(name, variant, Work::Operations(vec![worker]));
    let ours = add(OURS, ours(files.file(name)?, len));
    let kernel = add(KERNEL, kernel(file, len));
    let mmap = add(KERNEL_MMAP, mapped(mapping, len));
    one.ratios = vec![
        vs_kernel.between(ours, kernel),
        RatioPlan::new(vs_mmap, ours, mmap),
    ];
    Ok(one)
}

/// One page, one thread and several, beside a bare copy of one page by as many.
fn scaling(files: &Ours, threads: usize) -> Result<Match, BenchError> {
    let file = files.file("same-folio")?;
    let page: Arc<PageBuf> = PageBuf::new().into();
    let read = |threads| Contestant {
        name: "pread 4 KiB, same folio",
        variant: OURS,
        work: Work::Operations(
            (0..threads)
                .map(|_| ours(Arc::clone(&file), PAGE))
                .collect(),
        ),
    };
    let copy = |threads| Contestant {
        name: "copy 4 KiB, same page",
        variant: "memcpy",
        work: Work::Operations((0..threads).map(|_| memcpy(Arc::clone(&page))).collect()),
    };
    let mut scaling = RatioPlan::new("pread_samefolio_scaling", 2, 0).at_least(0.95);
    scaling.divisor = Some((3, 1));
    Ok(Match {
        contestants: vec![read(1), copy(1), read(threads), copy(threads)],
        ratios: vec![scaling, RatioPlan::new("memcpy_scaling", 3, 1)],
        ..Match::default()
    })
}

/// One page, read by `threads` threads and by four times as many.
fn crowd(
    files: &Ours,
    (name, ratio, least): (&'static str, &'static str, f64),
    len: usize,
    threads: usize,
) -> Result<Match, BenchError> {
    let file = files.file(name)?;
    let read = |threads| Contestant {
        name,
        variant: OURS,
        work: Work::Operations((0..threads).map(|_| ours(Arc::clone(&file), len)).collect()),
    };
    Ok(Match {
        contestants: vec![read(4 * threads), read(threads)],
        ratios: vec![RatioPlan::new(ratio, 0, 1).at_least(least)],
        ..Match::default()
    })
}

fn ours(file: Arc<foliocache::File>, len: usize) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || {
        let read = file.read_at(black_box(&mut page.0[..len]), 0);
        whole(read.map_err(io::Error::from)?, len)
    })
}

fn kernel(file: Arc<fs::File>, len: usize) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || whole(file.read_at(black_box(&mut page.0[..len]), 0)?, len))
}

fn mapped(mapping: Kernels, len: usize) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || copy(&mapping, black_box(&mut page.0[..len]), black_box(0)))
}

fn memcpy(from: Arc<PageBuf>) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || {
        black_box(&mut page.0).copy_from_slice(black_box(&from.0));
        Ok(())
    })
}
