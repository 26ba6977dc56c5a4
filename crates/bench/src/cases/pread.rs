//! Reads of one cached page: 4 KiB and 64 bytes at offset 0, and all threads the same page.
//!
//! # Model
//!
//! The loop of will-it-scale's pread1, on memfs and on tmpfs, and the same with 64 bytes, where
//! the copy is nothing and the way to it all; beside them a copy out of the kernel's mapping. Buffers are on a page
//! boundary for all. One page is in the processor's nearest cache: [`hits`](super::hits) reads more.
//!
//! Scaling: one page read by several threads, over the same by one, divided by the gain of a bare copy of the page
//! by as many threads. It shows the shared cache lines that the readers write; processors that share a core do not
//! show, since the copies share it too. The same for two threads that read different places through one handle.
//! Crowd: four threads for each processor, over one for each. The threads of a crowd share everything that exists
//! once for each processor.
//!
//! Reads of 4, 8 and 16 KiB beside the bare copy of the same bytes show the cost around the copy.

use std::iter::repeat_with;
use std::os::unix::fs::FileExt;
use std::thread;

use crate::cases::prelude::*;
use crate::copies::{Call, beside_copy, shared_handle};
use crate::files::{Ours, kernel_file};
use crate::mapped::{Kernels, copy};

/// Beside the kernel: row, ratios, bytes of a read, aim.
const BESIDE_KERNEL: [(&str, &str, usize, f64); 2] = [
    ("pread 4 KiB", "pread4k", PAGE, 5.0),
    ("pread 64 B", "pread64", 64, 10.0),
];

/// Reads beside their copies: row, ratio, aim, and pages.
const BESIDE_COPY: [(&str, &str, f64, usize); 3] = [
    ("pread 4 KiB", "pread4k_vs_copy", 0.9, 1),
    ("pread 8 KiB", "pread8k_vs_copy", 0.7, 2),
    ("pread 16 KiB", "pread16k_vs_copy", 0.7, 4),
];

/// Crowds that read one page: row, ratio, aim, and bytes of a read.
const CROWDS: [(&str, &str, f64, usize); 2] = [
    ("pread 4 KiB, crowd", "pread4k_crowd_vs_threads", 0.7, PAGE),
    ("pread 64 B, crowd", "pread64_crowd_vs_threads", 0.5, 64),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let files = Ours::new(false)?;
    let mut matches = Vec::new();
    for (name, id, len, least) in BESIDE_KERNEL {
        let file = kernel_file(name)?;
        let mapping = Kernels::new(&file, PAGE).setting_up(KERNEL_MMAP)?;
        let mut one = Match::default();
        let read = move |to: &mut [u8]| file.read_at(to, 0);
        one.operations(name, OURS, ours(&files.file(name)?, len, 1));
        one.operations(name, KERNEL, vec![reads(len, read)]);
        let copied = move |to: &mut [u8]| copy(&mapping, to, black_box(0)).map(|()| len);
        one.operations(name, KERNEL_MMAP, vec![reads(len, copied)]);
        ratios! { one;
            format!("{id}_vs_kernel") => OURS / KERNEL, at_least(least);
            format!("{id}_vs_mmap") => OURS / KERNEL_MMAP;
        }
        matches.push(one);
    }
    for (name, ratio, least, pages) in BESIDE_COPY {
        let row = (name, ratio, least);
        let calls = (Call::Read, Call::CopyOut);
        matches.push(beside_copy(&files, row, calls, pages * PAGE)?);
    }
    if settings.threads > 1 {
        matches.push(scaling(&files, settings.threads)?);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = settings.threads.max(processors);
        for (name, ratio, least, len) in CROWDS {
            let (file, mut one) = (files.file(name)?, Match::default());
            one.operations(name, OURS, ours(&file, len, 4 * threads));
            one.operations(name, OURS, ours(&file, len, threads));
            ratios! { one; ratio => 0 / 1, at_least(least); }
            matches.push(one);
        }
        let row = ("pread 4 KiB, one handle", "shared_handle_scaling_2t");
        matches.push(shared_handle(&files, row, PAGE)?);
    }
    Ok(matches.into())
}

/// One page, one thread and several, beside a bare copy of one page by as many.
fn scaling(files: &Ours, threads: usize) -> Result<Match, BenchError> {
    let file = files.file("same-folio")?;
    let page: Arc<PageBuf> = PageBuf::new().into();
    let mut one = Match::default();
    for threads in [1, threads] {
        let file = ours(&file, PAGE, threads);
        one.operations("pread 4 KiB, same folio", OURS, file);
        let copies = repeat_with(|| memcpy(Arc::clone(&page))).take(threads);
        one.operations("copy 4 KiB, same page", "memcpy", copies.collect());
    }
    ratios! { one;
        "pread_samefolio_scaling" => 2 / 0, over((3, 1)), at_least(0.95);
        "memcpy_scaling" => 3 / 1;
    }
    Ok(one)
}

/// Threads that read the first bytes of one file of ours.
fn ours(file: &Arc<foliocache::File>, len: usize, threads: usize) -> Vec<Box<dyn Worker>> {
    let reader = || {
        let file = Arc::clone(file);
        reads(len, move |to| Ok(file.read_at(to, 0)?))
    };
    repeat_with(reader).take(threads).collect()
}

/// Reads of `len` bytes, over and over; `read` returns how many it has read.
fn reads(
    len: usize,
    read: impl Fn(&mut [u8]) -> std::io::Result<usize> + Send + 'static,
) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || whole(read(black_box(&mut page.0[..len]))?, len))
}

fn memcpy(from: Arc<PageBuf>) -> Box<dyn Worker> {
    let mut page = PageBuf::new();
    repeat(move || {
        black_box(&mut page.0).copy_from_slice(black_box(&from.0));
        Ok(())
    })
}
