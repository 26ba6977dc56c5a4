//! Overwrites of one page: 4 KiB at offset 0, each thread in a separate file.
//!
//! # Model
//!
//! The loop of will-it-scale's pwrite1, on memfs and on tmpfs. The buffer is on a page boundary for
//! both.
//!
//! Ours against the kernel's by one thread, and by several; and ours against ours with the source faulted in before
//! the call, which is the older order. Only for this the cache has fault handlers, which are off by default: with
//! them faulting a source in is one access a page, as it is in the kernel; without them it is a system call, and
//! the older order would look far worse than it was. Writes of 4, 8 and 16 KiB beside the bare copy of the same
//! bytes show the cost around the copy.

use foliocache_sys::usercopy;
use std::os::unix::fs::FileExt;

use crate::cases::prelude::*;
use crate::copies::{Call, beside_copy};
use crate::files::{Ours, kernel_file};
use crate::ratio::Target;

const NAME: &str = "pwrite 4 KiB";
const HANDLERS: &str = "foliocache, handlers";
const PREFAULT: &str = "foliocache, handlers, prefault";

/// Writes beside their copies: row, ratio, aim, and pages.
const BESIDE_COPY: [(&str, &str, f64, usize); 3] = [
    (NAME, "pwrite_vs_copy", 0.8, 1),
    ("pwrite 8 KiB", "pwrite8k_vs_copy", 0.7, 2),
    ("pwrite 16 KiB", "pwrite16k_vs_copy", 0.7, 4),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let files = Ours::new(false)?;
    let mut matches = vec![
        against_kernel(&files, 1, "pwrite_vs_kernel", Some(6.0))?,
        order_of_faulting_in()?,
    ];
    for (name, ratio, least, pages) in BESIDE_COPY {
        let row = (name, ratio, least);
        let calls = (Call::Write, Call::CopyIn);
        matches.push(beside_copy(&files, row, calls, pages * PAGE)?);
    }
    if settings.threads > 1 {
        let ratio = "pwrite_threads_vs_kernel";
        matches.push(against_kernel(&files, settings.threads, ratio, None)?);
    }
    Ok(matches.into())
}

/// Each thread in a separate file.
fn against_kernel(
    files: &Ours,
    threads: usize,
    ratio: &str,
    least: Option<f64>,
) -> Result<Match, BenchError> {
    let (mut ours, mut kernels) = (Vec::new(), Vec::new());
    for thread in 0..threads {
        let name = format!("{ratio}-{thread}");
        let (file, kernel) = (files.file(&name)?, kernel_file(&name)?);
        ours.push(writes(move |page| Ok(file.write_at(&page.0, 0)?)));
        kernels.push(writes(move |page| kernel.write_at(&page.0, 0)));
    }
    let mut one = Match::default();
    one.operations(NAME, OURS, ours);
    one.operations(NAME, KERNEL, kernels);
    ratios! { one; ratio => OURS / KERNEL, at_least(least); }
    Ok(one)
}

fn order_of_faulting_in() -> Result<Match, BenchError> {
    let file = Ours::new(true)?.file("order-of-faulting-in")?;
    let (again, mut one) = (Arc::clone(&file), Match::default());
    let plain = writes(move |page| Ok(file.write_at(&page.0, 0)?));
    one.operations(NAME, HANDLERS, vec![plain]);
    let prefault = writes(move |page| {
        usercopy::fault_in_readable(page.0.as_ptr(), PAGE);
        Ok(again.write_at(&page.0, 0)?)
    });
    one.operations(NAME, PREFAULT, vec![prefault]);
    ratios! { one; "pwrite_noprefault_vs_prefault" => HANDLERS / PREFAULT, aim(Target::NotWorse); }
    Ok(one)
}

/// Writes of a page, over and over; `write` returns how much it has written.
fn writes(write: impl Fn(&PageBuf) -> io::Result<usize> + Send + 'static) -> Box<dyn Worker> {
    let page = PageBuf::new();
    repeat(move || whole(write(&page)?, PAGE))
}
