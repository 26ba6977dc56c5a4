//! Logs: records that are durable before the next one is written. Default settings, over a directory of the local disk, with
//! the usual soft limit of 1,024 descriptors.
//!
//! # Model
//!
//! | match | what a thread does, over and over |
//! |---|---|
//! | append | writes a record of 100 B, 4 KiB or 16 KiB at the end of a file that grows, `fdatasync` |
//! | group | the same with 4 KiB by four threads on one file: each takes the next place |
//! | overwrite | writes 4 KiB at a random place of a file that is larger than the processor's caches, `fdatasync` |
//!
//! Beside it the kernel's buffered calls, and `O_DIRECT` with `O_DSYNC`; there a record of 100 B is a write of the last
//! block. See [`logs`](crate::logs).

use foliocache_sys::fd::OFlags;

use crate::cases::prelude::*;
use crate::logs::{Shape, Side, log};

const DIRECT: &str = "kernel O_DIRECT, O_DSYNC";

/// The file that is overwritten takes this part of the memory.
const MEMORY_PER_FILE: u64 = 4;

/// The most bytes that a second of appends may take, for the estimate of the room.
const PER_SECOND: f64 = 500e6;

/// Row, ratios, bytes of a record, threads, whether it is an overwrite, aim.
type Log = (&'static str, &'static str, usize, usize, bool, Option<f64>);

#[rustfmt::skip]
const LOGS: [Log; 5] = [
    ("append 100 B, fdatasync", "wal_append100", 100, 1, false, Some(0.95)),
    ("append 4 KiB, fdatasync", "wal_append4k", PAGE, 1, false, Some(1.0)),
    ("append 16 KiB, fdatasync", "wal_append16k", 4 * PAGE, 1, false, None),
    ("append 4 KiB, fdatasync, one file", "wal_group4", PAGE, 4, false, Some(1.0)),
    ("overwrite 4 KiB at random, fdatasync", "wal_overwrite", PAGE, 1, true, Some(1.0)),
];

pub(super) fn plan(settings: &Settings) -> Result<Plan, BenchError> {
    let memory = settings.bound()?;
    let folder = Folder::on_disk(settings)?;
    let len = memory / MEMORY_PER_FILE;
    let room = 4 * len + (4.0 * PER_SECOND * settings.seconds) as u64;
    check_room(folder.path(), room, 16)?;
    let sides = set_up("the file of a log", || {
        let direct = OFlags::DIRECT | OFlags::DSYNC;
        Ok([
            (DIRFS, Side::ours(&folder, "ours", memory, false)?),
            (KERNEL, Side::kernel(&folder, "kernel", OFlags::empty())?),
            (DIRECT, Side::kernel(&folder, "direct", direct)?),
        ])
    })?;
    let mut matches = Vec::new();
    for (name, id, record, threads, overwrite, least) in LOGS {
        let shape = Shape {
            record,
            together: 1,
            threads,
            overwrite: overwrite.then_some(len),
            time: Duration::from_secs_f64(settings.seconds),
        };
        let mut one = Match::default();
        for (variant, side) in &sides {
            one.add(name, variant, log(&side.again(), shape, "op/s"));
        }
        ratios! { one;
            format!("{id}_vs_kernel") => DIRFS / KERNEL, at_least(least);
            format!("{id}_p99_vs_kernel") => DIRFS / KERNEL, of_p99();
            format!("{id}_vs_direct") => DIRFS / DIRECT;
        }
        matches.push(one);
    }
    let description = folder.describe();
    Ok(Plan::at(matches, folder, description))
}
