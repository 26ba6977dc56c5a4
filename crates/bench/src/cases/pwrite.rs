//! Overwrites at offset 0, each thread in a separate file: of 64 bytes to 128 KiB.
//!
//! # Model
//!
//! The loop of will-it-scale's pwrite1, on memfs and on tmpfs, which writes 4 KiB, and the same with other sizes. Buffers are on a
//! page boundary for all. Beside both is the bare copy of the same bytes, which shows the cost around it: by one thread, and
//! by several.
//!
//! Ours against ours with the source faulted in before the call, which is the older order. Only for this the cache has fault
//! handlers, which are off by default: with them faulting a source in is one access a page, as it is in the kernel; without them
//! it is a system call, and the older order would look far worse than it was.

use foliocache_sys::usercopy;

use crate::cases::prelude::*;
use crate::copies::{Call, beside_copy, writes_beside};
use crate::files::Ours;
use crate::ratio::Target;

const NAME: &str = "pwrite 4 KiB";
const HANDLERS: &str = "foliocache, handlers";
const PREFAULT: &str = "foliocache, handlers, prefault";

/// Writes beside their copies and the kernel's: row, beginning of the ratios, bytes, and the aims of one thread.
const SIZES: [(&str, &str, usize, [Option<f64>; 2]); 6] = [
    ("pwrite 64 B", "pwrite64", 64, [None, None]),
    ("pwrite 512 B", "pwrite512", 512, [None, None]),
    (NAME, "pwrite", PAGE, [Some(0.8), Some(6.0)]),
    ("pwrite 16 KiB", "pwrite16k", 16 << 10, [Some(0.7), None]),
    ("pwrite 64 KiB", "pwrite64k", 64 << 10, [None, None]),
    ("pwrite 128 KiB", "pwrite128k", 128 << 10, [None, None]),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let files = Ours::new(false)?;
    let mut matches = vec![order_of_faulting_in()?];
    let row = ("pwrite 8 KiB", "pwrite8k_vs_copy", 0.7);
    let calls = (Call::Write, Call::CopyIn);
    matches.push(beside_copy(&files, row, calls, 2 * PAGE)?);
    for (name, id, len, aims) in SIZES {
        matches.push(writes_beside(&files, (name, id), len, (1, aims))?);
        if settings.threads > 1 {
            let id = format!("{id}_threads");
            let several = (settings.threads, [None; 2]);
            matches.push(writes_beside(&files, (name, &id), len, several)?);
        }
    }
    Ok(matches.into())
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
