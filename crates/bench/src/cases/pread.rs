//! Reads of one cached page: 4 KiB and 64 bytes at offset 0, and all threads the same page.
//!
//! # Model
//!
//! The loop of will-it-scale's pread1, on memfs and on tmpfs, and the same with 64 bytes, where
//! the copy is nothing and the way to it all. Buffers are on a page boundary for both.
//!
//! Scaling: one page read by several threads, over the same by one, divided by what a bare copy of
//! the page gains by so many threads. Whatever the readers write that others share shows there;
//! processors that share a core do not, since the copies share it too. So for two threads that read at
//! places of their own through one handle.
//!
//! Reads of 4, 8 and 16 KiB beside the bare copy of the same bytes show what is around the copy.

use std::fs;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{KERNEL, OURS};
use crate::case::{Case, Contestant, Match, Plan, RatioPlan, Work, Worker, repeat};
use crate::copies::{Call, beside_copy, shared_handle};
use crate::error::BenchError;
use crate::files::{Ours, PAGE, PageBuf, kernel_file, whole};
use crate::settings::Settings;

/// See the module.
pub(crate) struct Pread;

/// Reads beside their copies: name, ratio, what it is to reach, and pages.
const BESIDE_COPY: [(&str, &str, f64, usize); 3] = [
    ("pread 4 KiB", "pread4k_vs_copy", 0.9, 1),
    ("pread 8 KiB", "pread8k_vs_copy", 0.7, 2),
    ("pread 16 KiB", "pread16k_vs_copy", 0.7, 4),
];

impl Case for Pread {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn about(&self) -> &'static str {
        "reads of 4 KiB and 64 bytes at offset 0 of a file in memory, and of one page by all threads"
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, BenchError> {
        let files = Ours::new()?;
        let mut matches = vec![
            against_kernel(&files, "pread 4 KiB", PAGE, "pread4k_vs_kernel", 5.0)?,
            against_kernel(&files, "pread 64 B", 64, "pread64_vs_kernel", 10.0)?,
        ];
        for (name, ratio, least, pages) in BESIDE_COPY {
            let row = (name, ratio, least);
            matches.push(beside_copy(&files, row, Call::Read, pages * PAGE)?);
        }
        if settings.threads > 1 {
            matches.push(scaling(&files, settings.threads)?);
            let row = ("pread 4 KiB, one handle", "shared_handle_scaling_2t");
            matches.push(shared_handle(&files, row, PAGE)?);
        }
        Ok(Plan {
            matches,
            ..Plan::default()
        })
    }
}

fn against_kernel(
    files: &Ours,
    name: &'static str,
    len: usize,
    ratio: &'static str,
    least: f64,
) -> Result<Match, BenchError> {
    let contestant = |variant, worker| Contestant {
        name,
        variant,
        work: Work::Operations(vec![worker]),
    };
    Ok(Match {
        contestants: vec![
            contestant(OURS, ours(files.file(ratio)?, len)),
            contestant(KERNEL, kernel(kernel_file(ratio)?, len)),
        ],
        ratios: vec![RatioPlan::new(ratio, 0, 1).at_least(least)],
    })
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
    scaling.control = Some((3, 1));
    Ok(Match {
        contestants: vec![read(1), copy(1), read(threads), copy(threads)],
        ratios: vec![scaling, RatioPlan::new("memcpy_scaling", 3, 1)],
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

fn memcpy(from: Arc<PageBuf>) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || {
        black_box(&mut page.0).copy_from_slice(black_box(&from.0));
        Ok(())
    })
}
